"""`archiver spark` as far as it goes without Spark."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkRuntimeError

from archiver.cli import main
from archiver.spark import job
from archiver.spark.job import JobResult
from blockgz.config.kinds import SPARK_NAMES

ARGUMENTS = ["spark", "orders", "-b", "localhost:9", "-a", "./archive", "--checkpoint", "./checkpoint"]


@pytest.fixture(autouse=True)
def signals_stay_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archiver.cli.spark.stop_on_signals", lambda _: set())


@pytest.mark.slow
def test_without_pyspark_it_says_what_to_install() -> None:
    program = (
        f"import sys; sys.modules['pyspark'] = None; sys.argv[1:] = {ARGUMENTS}; import archiver.cli as cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: `archiver spark` needs pyspark, which is not installed",
        "why:   Spark is an optional extra, which most commands do not need",
        "do:    pip install 'blockgz[spark]', and Java 17 for it",
    ]


def test_the_isolation_level_is_reported_once() -> None:
    done = CliRunner().invoke(main, [*ARGUMENTS, "-X", "isolation.level=read_committed"])
    assert done.exit_code == 2
    assert "use --isolation-level" in done.stderr


def test_every_option_of_the_sink_is_one_here() -> None:
    shown = CliRunner().invoke(main, ["spark", "--help"]).stdout
    for field in SPARK_NAMES.values():
        assert f"--{field.replace('_', '-')}" in shown
    whole = "".join(shown.split())
    assert "default:(blockgz-spark)" in whole and "default:(128MiB)" in whole and "Exitcodes:" in whole


@pytest.mark.parametrize(("once", "ended", "code"), [(True, True, 0), (True, False, 3), (False, False, 0)])
def test_a_drain_that_is_ended_too_early_does_not_look_like_success(
    monkeypatch: pytest.MonkeyPatch, once: bool, ended: bool, code: int
) -> None:
    monkeypatch.setattr(job, "run_job", lambda *_: JobResult(5, 1, ended))
    done = CliRunner().invoke(main, [*ARGUMENTS, "--json", *(["--once"] if once else [])])
    assert done.exit_code == code
    assert json.loads(done.stdout)["drained"] is (ended if once else None)
    assert ("run it again" in done.stderr) is (code == 3)


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(job, "session", session)
    done = CliRunner().invoke(main, ARGUMENTS)
    assert (done.exit_code, "install Java 17" in done.stderr, "fault" in done.stderr) == (2, True, False)


def test_what_spark_refuses_as_a_query_starts_is_not_a_fault_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise PySparkRuntimeError("[CANNOT_LOAD_STATE] The checkpoint is another query's.")

    monkeypatch.setattr(job, "session", session)
    done = CliRunner().invoke(main, ARGUMENTS)
    assert done.exit_code == 1
    assert "The checkpoint is another query's" in done.stderr and "fault" not in done.stderr
