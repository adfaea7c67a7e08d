"""`replayer spark` without Spark: plans, options, errors; the jobs themselves run in the system tests."""

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from blockgz.errors import StoreUnavailable, UsageError
from blockgz.errors import exit_code as exit_code_of
from blockgz.program import progress
from blockgz.program.main import EXIT_CODES
from blockgz.program.options import spark_needed
from blockgz.spark.errors import SparkFailed, TaskFailed, carry_errors, failure_of, spark_errors
from index_format.errors import CorruptBlock
from index_format.objects import Gap
from replayer.cli import COMMANDS, main
from replayer.cli.options import options as progress_module
from replayer.cli.options.options import stage_progress, tasks_now
from replayer.cli.spark import command as group
from tests.support.archives import ArchiveWriter, records


def spark(*args: object) -> Result:
    return CliRunner().invoke(main, ["spark", *map(str, args)], prog_name="replayer")


def verify(*args: object) -> Result:
    return CliRunner().invoke(main, ["verify", "--spark", *map(str, args)], prog_name="replayer")


def done(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def planned(*args: object) -> dict[str, Any]:
    return done(spark(*args, "--dry-run", "--json"))


def checked(*args: object) -> dict[str, Any]:
    return done(verify(*args, "--dry-run", "--json"))


@pytest.fixture
def root(writer: ArchiveWriter, tmp_path: Path) -> Path:
    orders = writer.partition("orders", 0)
    for first in range(0, 400, 100):
        orders.commit(records(range(first, first + 100)))
    other = writer.partition("orders", 1)
    other.commit(records(range(50, 60)))
    other.commit(records(range(70, 80)), gaps=[Gap(60, 70, "retention")])
    writer.partition("bills", 0).commit(records(range(5)))
    return tmp_path


@pytest.mark.slow
def test_nothing_but_a_job_imports_spark() -> None:
    """Help pages and all other commands come without it, in time and in what must be installed."""
    code = "import sys; from replayer.cli import main\n"
    code += "for args in (['--help'], ['spark', '--help'], ['spark', 'export', '--help']):\n"
    code += "    main(args, standalone_mode=False)\n"
    code += "assert not {'pyspark', 'py4j', 'fastavro'} & set(sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("missing", ["pyspark.sql", "fastavro", "pandas"])
def test_what_is_missing_is_named_with_the_remedy(missing: str) -> None:
    with pytest.raises(UsageError) as caught, spark_needed("replayer spark"):
        raise ModuleNotFoundError(name=missing)
    assert missing.partition(".")[0] in caught.value.what
    assert "pip install 'blockgz[spark]'" in caught.value.remedy
    with pytest.raises(ModuleNotFoundError), spark_needed("replayer spark"):
        raise ModuleNotFoundError(name="replayer.nothing")


def jobs() -> list[click.Command]:
    context = click.Context(group)
    return [found for name in group.list_commands(context) if (found := group.get_command(context, name)) is not None]


def test_every_help_shows_an_example_and_the_exit_codes() -> None:
    assert "spark" in COMMANDS
    for args in ([], *([job.name] for job in jobs())):
        page = spark(*args, "--help").stdout
        assert "Examples:" in page
        assert all(f"{code:>3}  {meaning}" in page for code, meaning in EXIT_CODES.items())


CONSENTS = {"yes", "into_source", "switch_over"}


def test_an_environment_variable_means_one_option() -> None:
    """Within the jobs, and beside all other commands."""
    context = click.Context(main)
    others = [found for name in COMMANDS if (found := main.get_command(context, name)) is not None]
    variables: dict[str, set[str]] = {}
    for command in [*jobs(), *others]:
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                if parameter.name in CONSENTS:  # never taken from the environment
                    assert parameter.envvar is None
                    continue
                assert isinstance(parameter.envvar, str), (command.name, parameter.opts)
                variables.setdefault(parameter.envvar, set()).add(max(parameter.opts, key=len))
    assert all(len(options) == 1 for options in variables.values()), variables


class TestPlans:
    def test_an_export(self, root: Path) -> None:
        plan = planned("export", "orders", "/out", "--format", "parquet", "--partition-by", "topic,date", "-a", root)
        assert (plan["topics"], plan["tasks"], plan["chunks"], plan["records_at_most"]) == (["orders"], 2, 6, 420)
        assert plan["bytes"] > 1000
        assert plan["gaps"] == [{"topic": "orders~1", "partition": 1, "from": 60, "to": 70, "reason": "retention"}]
        assert plan["partition_by"] == ["topic", "date"]

    def test_tasks_are_cut_at_blocks(self, root: Path) -> None:
        assert planned("load", "orders:0", "--table", "t", "--min-tasks", "30", "-a", root)["tasks"] >= 30

    def test_positions_times_and_patterns_narrow_it(self, root: Path) -> None:
        common = ("/out", "--format", "csv", "-a", root)
        assert planned("export", "orders:0", *common, "--from", "150", "--to", "250")["chunks"] == 2
        assert planned("export", "*", *common)["topics"] == ["bills", "orders"]
        assert planned("export", "~b.*", "bills:0", *common)["records_at_most"] == 5
        assert planned("export", "orders", *common, "--since", "@1760000000390")["chunks"] == 1
        assert planned("export", "orders", *common, "--from", "latest")["tasks"] == 0

    @pytest.mark.slow
    def test_an_end_in_doubt_is_refused_before_a_session_starts(
        self, root: Path, writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stamps = [5_000 if n < 250 else 1_000 for n in range(600)]
        writer.partition("skewed", 0).commit(records(range(600), timestamps=stamps))
        monkeypatch.setattr("blockgz.spark.session.session", lambda *_, **__: pytest.fail("it began"))
        for command in (("export", "skewed", "/out", "--format", "csv"), ("load", "skewed", "--table", "t")):
            refused = spark(*command, "--at", "1970-01-01T00:00:03Z", "-a", root)
            assert refused.exit_code == 2, refused.stderr
            assert "--at-rule majority" in refused.stderr and "--at-rule first" in refused.stderr
            args = (*command, "--at", "1970-01-01T00:00:03Z", "-a", root)
            ends = [planned(*args, "--at-rule", rule)["cuts"][0] for rule in ("majority", "first")]
            assert [(end["end"], end["is_chosen"]) for end in ends] == [(600, True), (0, True)]

    def test_a_verification(self, root: Path) -> None:
        plan = checked("--records", "--task-bytes", "1", "-a", root)
        assert (plan["partitions"], plan["chunks"], plan["tasks"]) == (3, 7, 7)
        assert checked("--records", "--digests", "-a", root)["tasks"] == 3

    def test_a_verification_that_compares_and_demands(self, root: Path) -> None:
        report = root.parent / f"{root.name}.json"
        assert CliRunner().invoke(main, ["verify", "--report", str(report), "-a", str(root)]).exit_code == 0
        since = ("--expect", "orders", "--since-report", report, "-a", root)
        assert checked(*since)["partitions"] == 3
        report.write_text(json.dumps(json.loads(report.read_bytes()) | {"archive_id": "another"}))
        refused = verify(*since, "--dry-run")
        assert (refused.exit_code, "is not of this archive" in refused.stderr) == (2, True)
        bad = verify("--expect", "orders~0", "--dry-run", "-a", root)
        assert (bad.exit_code, "orders~0" in bad.stderr) == (2, True)
        unread = verify("--since-report", "none.json", "--dry-run", "-a", root)
        assert (unread.exit_code, "none.json cannot be read" in unread.stderr) == (2, True)

    @pytest.mark.parametrize("given", [("--master", "local"), ("--task-bytes", "1"), ("--digests",), ("--dry-run",)])
    def test_options_of_a_job_require_the_switch(self, root: Path, given: tuple[str, ...]) -> None:
        refused = CliRunner().invoke(main, ["verify", *given, "-a", str(root)], prog_name="replayer")
        assert (refused.exit_code, f"{given[0]} requires --spark" in refused.stderr) == (2, True)

    @pytest.mark.parametrize("given", [("--against-topic", "copy"), ("--job", "j"), ("--from", "3"), ("--at", "-1d")])
    def test_a_verification_of_a_topic_takes_one_process(self, root: Path, given: tuple[str, ...]) -> None:
        refused = verify(*given, "-a", root)
        assert (refused.exit_code, f"{given[0]} cannot be combined with --spark" in refused.stderr) == (2, True)

    def test_variables_for_other_commands_are_no_refusal(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BLOCKGZ_JOBS", str(root / "jobs"))
        monkeypatch.setenv("BLOCKGZ_SPARK_MASTER", "local[2]")
        assert checked("-a", root)["partitions"] == 3
        alone = CliRunner().invoke(main, ["verify", "-a", str(root)], prog_name="replayer")
        assert alone.exit_code == 0, alone.stderr

    def test_for_people(self, root: Path) -> None:
        text = spark("export", "orders", "/out", "--format", "avro", "--dry-run", "-a", root).stdout
        assert "would read orders: 6 chunks" in text
        assert "WARNING orders~1:1 recorded gap [60..70): retention" in text


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("orders", "/out"), 2, "--format"),
        (("orders", "--to", "/out", "--format", "csv"), 2, "TOPIC and DEST are both required"),
        (("orders", "/out", "--format", "csv", "--partition-by", "day"), 2, "is nothing to partition by"),
        (("orders", "/out", "--format", "csv", "--partition-by", "value.id"), 2, "add --value json"),
        (("orders", "/out", "--format", "csv", "--value", "avro"), 2, "needs a schema"),
        (("orders", "/out", "--format", "csv", "--schema", "id INT"), 2, "--schema goes with"),
        (("orders", "/out", "--format", "csv", "--schema-registry", "http://x"), 2, "goes with --value avro"),
        (("orders", "/out", "--format", "csv", "--value", "json", "--schema", "gone.txt"), 2, "cannot be read"),
        (("nowhere", "/out", "--format", "csv"), 4, "nowhere is not in the archive"),
        (("x*", "/out", "--format", "csv"), 4, "no archived topic matches"),
        (("orders", "/out", "--format", "csv", "--conf", "executor.memory=1g"), 2, "does not begin with spark."),
    ],
)
def test_what_cannot_be_done_is_refused_before_spark_starts(
    root: Path, args: tuple[str, ...], code: int, said: str
) -> None:
    result = spark("export", *args, "-a", root)
    assert result.exit_code == code, result.stderr
    assert said in result.stderr


class TestErrors:
    def test_an_error_of_a_task_comes_back_whole(self) -> None:
        with pytest.raises(TaskFailed) as caught, carry_errors(TaskFailed):
            raise CorruptBlock("block 3 is damaged", why='crc32 "x" differs', remedy="run verify")
        said = f"org.apache.spark.SparkException: Job aborted\n  File x\n{caught.value} SQLSTATE: P0001\n\tat java.x(y)"
        error = failure_of(said)
        assert (error.what, error.why, error.remedy) == ("block 3 is damaged", 'crc32 "x" differs', "run verify")
        assert exit_code_of(error) == 3

    def test_sparks_own_words_come_without_traces(self) -> None:
        text = (
            "Job aborted due to stage failure.\n\tat org.apache.spark.Thing.run(Thing.scala:1)\n\nDriver stacktrace:\n"
        )
        error = failure_of(text)
        assert (exit_code_of(error), error.why) == (1, "Job aborted due to stage failure.")
        assert "memoryOverhead" in error.remedy

    @pytest.mark.parametrize(
        "said",
        [
            "Traceback:\n  File x\nModuleNotFoundError: No module named 'replayer'\n\tat java.x(y)",
            "Error from python worker:\n  /usr/bin/python3: No module named replayer.spark",
        ],
    )
    def test_a_python_without_the_package(self, said: str) -> None:
        error = failure_of(said)
        assert (exit_code_of(error), error.what) == (2, "the Python of Spark's workers has no module replayer")
        assert "PYSPARK_PYTHON" in error.remedy

    def test_an_error_cut_short_is_sparks(self) -> None:
        assert exit_code_of(failure_of('blockgz failure: {"what": "bl')) == 1

    def test_a_driver_that_died_is_sparks_failure_and_a_stores_is_its_own(self) -> None:
        with pytest.raises(SparkFailed), spark_errors():
            raise ConnectionRefusedError(111, "Connection refused")
        with pytest.raises(StoreUnavailable), spark_errors():
            raise StoreUnavailable("the store does not answer")
        with pytest.raises(KeyError), spark_errors():
            raise KeyError("a fault of ours")

    def test_what_was_asked_for_wrongly_is_usage(self) -> None:
        error = failure_of("[PATH_ALREADY_EXISTS] Path /out already exists.", "PATH_ALREADY_EXISTS")
        assert (exit_code_of(error), "--mode append" in error.remedy) == (2, True)


@dataclass
class Stage:
    numTasks: int  # noqa: N815
    numActiveTasks: int = 0  # noqa: N815
    numCompletedTasks: int = 0  # noqa: N815
    numFailedTasks: int = 0  # noqa: N815


class Tracker:
    """Two stages, of which one ended as it was asked about."""

    def __init__(self) -> None:
        self.asked = 0

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        self.asked += 1
        return [1, 2, 3]

    def getStageInfo(self, stageId: int) -> Stage | None:  # noqa: N802, N803
        return {1: Stage(10, 2, 5, 1), 2: Stage(4)}.get(stageId)


def test_progress_adds_up_the_stages_that_run() -> None:
    assert tasks_now(Tracker()) == {"done": 5, "running": 2, "failed": 1, "total": 14}


def test_progress_is_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tracker = Tracker()
    with stage_progress("export", tracker, as_json=False):
        pass
    assert (tracker.asked, capsys.readouterr().err) == (0, "")


def test_progress_as_json_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(progress, "STATUS_SECONDS", 0.0)
    tracker = Tracker()
    deadline = time.monotonic() + 30
    with stage_progress("export", tracker, as_json=True):
        while tracker.asked < 3 and time.monotonic() < deadline:
            threading.Event().wait(0.001)
    first, *_ = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (first["status"], first["tasks"]) == ("export", {"done": 5, "running": 2, "failed": 1, "total": 14})
