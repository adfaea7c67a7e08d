"""Which Python the workers of a Spark job run, and what is said where it lacks the package."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.spark import JAVA_OPTIONS, job_command
from system_test.support.topics import NewRecord, fill_topic
from tests.support.sampling import in_long_run, mostly_long

MODULES = ("pyspark", "py4j", "numpy", "pandas", "pyarrow", "dateutil", "pytz", "six.py", "tzdata", "pyarrow.libs")
TOPIC = "spark-python"


@pytest.fixture(scope="module")
def site(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    site = folder_site(broker.bootstrap, tmp_path_factory.mktemp("python") / "archive")
    fill_topic(site.bootstrap, TOPIC, [NewRecord(b"%d" % n) for n in range(50)])
    site.once(TOPIC)
    yield site


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with a python3 that has what Spark needs, and nothing of ours."""
    packages = tmp_path / "packages"
    packages.mkdir()
    (installed,) = {Path(each) for each in sys.path if (Path(each) / "pyspark").is_dir()}
    for name in MODULES:
        if (installed / name).exists():
            (packages / name).symlink_to(installed / name)
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return tmp_path


def ran(command: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    own |= {"SPARK_LOCAL_IP": "127.0.0.1", "JDK_JAVA_OPTIONS": JAVA_OPTIONS, **env}
    own["PATH"] = f"{folder}{os.pathsep}{own['PATH']}"
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=240, check=False)


def verification(site: Site, *options: str) -> list[str]:
    return [sys.executable, "-m", "replayer", "verify", "--spark", "--json", *site.archive, *options]


@in_long_run
@pytest.mark.parametrize("program", ["archiver", "replayer"])
def test_workers_on_this_machine_run_the_drivers_python(site: Site, bare: Path, program: str) -> None:
    """Another python3 is first on the path."""
    if program == "archiver":
        command = job_command(site, TOPIC, bare / "checkpoint", "--takeover")
    else:
        command = verification(site, "--conf", "spark.master=local[1]")
    result = ran(command, bare)
    assert result.returncode == 0, result.stderr


NOTEBOOK = """
import sys
from pyspark.sql import SparkSession
from replayer.spark import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
print(spark.read.format("blockgz").options(path=sys.argv[1], subscribe=sys.argv[2]).load().count())
"""


@in_long_run
def test_a_notebook_whose_environment_is_not_activated(site: Site, bare: Path) -> None:
    """Another python3 is first on the path, and lacks the package."""
    result = ran([sys.executable, "-c", NOTEBOOK, site.address, TOPIC], bare)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["50"]


@pytest.mark.parametrize("program", mostly_long(["replayer", "archiver"]))
def test_a_python_without_the_package_is_one_clear_error(site: Site, bare: Path, program: str) -> None:
    if program == "archiver":
        command = job_command(site, TOPIC, bare / "checkpoint")
    else:
        command = verification(site, "--master", "local[1]")
    result = ran(command, bare, PYSPARK_PYTHON=str(bare / "python3"))
    assert result.returncode == 2, result.stderr
    what, why, remedy = result.stderr.splitlines()[-3:]
    assert what.startswith("error: the Python of Spark's workers has no module")
    assert why.startswith("why: ")
    assert "PYSPARK_PYTHON" in remedy
