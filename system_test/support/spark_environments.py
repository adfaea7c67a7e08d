"""Other versions of Spark than the one the tests run on, each in a virtual environment of its own."""

import configparser
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from system_test.support.environment import cache_folder, filled_once, run_tool
from system_test.support.maven import single_jars

ROOT = Path(__file__).parents[2]
OLDEST = "4.0"
WITH_DELTA = "4.2"
"""The newest Spark that Delta's jars are published for; streams work there."""
WITH_ICEBERG = "4.1"
"""The newest Spark that Iceberg's jars are published for; an archive is read in batches there."""

DELTA = ("io.delta:delta-spark_4.2_2.13:4.4.0", "io.delta:delta-storage:4.4.0")
ICEBERG = ("org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",)
_INSTALL_SECONDS = 900.0


def delta_jars() -> str:
    """Delta Lake, as `--jars` takes it."""
    return _joined(single_jars("delta-4.4.0", DELTA))


def iceberg_jars() -> str:
    """Iceberg, as `--jars` takes it."""
    return _joined(single_jars("iceberg-1.12.0", ICEBERG))


def spark_environment(version: str, *more: str) -> Path:
    """The folder of an environment with pyspark `version` (such as 4.0), blockgz's needs and more; made once by pip.

    blockgz itself comes from this tree (`spark_variables`). PartMissingError where pip cannot install it.
    """

    def install(folder: Path) -> None:
        run_tool([sys.executable, "-m", "venv", str(folder)], seconds=_INSTALL_SECONDS)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pins = folder / "constraints.txt"
        pins.write_text("".join(line for line in _pins() if not line.startswith(("pyspark=", "py4j="))))
        run_tool([*pip, "-c", str(pins), *wanted], seconds=_INSTALL_SECONDS)

    wanted = [*_requirements(), f"pyspark=={version}.*", *more]
    digest = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:8]
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return filled_once(cache_folder() / f"pyspark-{version}" / f"python-{python}-{digest}", install)


def spark_command(environment: Path, program: Path, *options: str) -> list[str]:
    (submit,) = environment.glob("lib/python*/site-packages/pyspark/bin/spark-submit")
    quiet = ("--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2")
    return [str(submit), "--master", "local[2]", *quiet, *options, str(program)]


def spark_variables(environment: Path, **added: str) -> dict[str, str]:
    """The variables of such a command: its workers run the environment's Python, with this tree."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    python = {"PYSPARK_PYTHON": str(environment / "bin" / "python"), "PYTHONPATH": str(ROOT)}
    return {**own, **python, "SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": "-Xss8m", **added}


def _joined(folder: Path) -> str:
    return ",".join(map(str, sorted(folder.glob("*.jar"))))


def _pins() -> Sequence[str]:
    return (ROOT / "constraints.txt").read_text().splitlines(keepends=True)


def _requirements() -> list[str]:
    """What setup.cfg says that blockgz needs, with Spark."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted = setup["options"]["install_requires"] + setup["options.extras_require"]["spark"]
    return [line for line in wanted.splitlines() if line]
