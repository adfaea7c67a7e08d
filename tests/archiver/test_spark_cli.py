"""`archiver spark` as far as it goes without Spark."""

import subprocess
import sys

from click.testing import CliRunner

from archiver.cli import main
from archiver.configuration.spark_names import SPARK_NAMES

ARGUMENTS = ["spark", "orders", "-b", "localhost:9", "-a", "./archive", "--checkpoint", "./checkpoint"]


def test_without_pyspark_it_says_what_to_install() -> None:
    program = (
        f"import sys; sys.modules['pyspark'] = None; sys.argv[1:] = {ARGUMENTS}; import archiver.cli as cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: pyspark is not installed",
        "why:   archiver spark is a Spark job, and Spark is an extra",
        "do:    pip install 'blockgz[spark]'",
    ]


def test_the_isolation_level_is_said_once() -> None:
    done = CliRunner().invoke(main, [*ARGUMENTS, "-X", "isolation.level=read_committed"])
    assert done.exit_code == 2
    assert "use --isolation-level" in done.stderr


def test_every_option_of_the_sink_is_one_here() -> None:
    shown = CliRunner().invoke(main, ["spark", "--help"]).stdout
    for field in SPARK_NAMES.values():
        assert f"--{field.replace('_', '-')}" in shown
    whole = "".join(shown.split())
    assert "default:(blockgz-spark)" in whole and "default:(128MiB)" in whole and "Exitcodes:" in whole
