"""`replayer jobs`, `replayer jobs rm` and those that steer a job."""

import json
import os
import re
import shlex
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner, Result

from blockgz.store.local import LocalStore
from blockgz.units import wall_clock
from replayer.cli import main
from replayer.kafka.reader import FETCHING
from replayer.replay.job import LanePosition, SourceProgress
from replayer.replay.jobs import control
from replayer.replay.jobs.folder import Attempt, JobFolder, LaneEnd, Segment, this_process
from replayer.replay.sinks.transactional import CommittedPositions
from tests.replayer.replay.jobs.test_log import position, progress, request
from tests.support.archives import ArchiveWriter, records
from tests.support.commands import exited, succeeded
from tests.support.mock_cluster import MockCluster
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state" / "blockgz" / "jobs"


def make(place: Path, name: str) -> JobFolder:
    folder = JobFolder(LocalStore(place), name)
    folder.create(request(job=name))
    return folder


def jobs(*args: str) -> Result:
    return CliRunner().invoke(main, ["jobs", *args], prog_name="replayer")


def test_they_are_listed_with_what_counts_and_foreign_things_are_not(place: Path) -> None:
    folder = make(place, "a")
    folder.add_segment(1, 0, Segment(attempt="x", lanes={0: LaneEnd(0, 7)}))
    folder.add_segment(1, 1, Segment(attempt="x", runs=((0, 0, 10, 0, 7, 10),)))
    folder.add_segment(1, 2, Segment(attempt="x", lanes={0: LaneEnd(4, 20)}))
    folder.add_segment(1, 3, Segment(attempt="x", runs=((0, 4, 5, 0, 20, 1),)))
    make(place, "b")
    (place / ".a.lock").touch()
    (place / "not a job").mkdir()
    (place / "empty").mkdir()
    (place / "notes.txt").write_text("x")
    told = json.loads(jobs("--json").stdout)["jobs"]
    assert [(each["job"], each["records"], each["complete"]) for each in told] == [("a", 5, None), ("b", 0, None)]
    assert told[0]["source"] == "orders~1"
    assert "copy" in jobs().stdout


def test_one_that_cannot_be_read_is_named_beside_the_others(place: Path) -> None:
    make(place, "a")
    make(place, "b")
    (place / "a" / "request.json").write_text("{}")
    result = exited(jobs("--json"), 3)
    assert "job a cannot be read" in result.stderr
    assert [each["job"] for each in json.loads(result.stdout)["jobs"]] == ["b"]


def test_without_any_there_is_nothing_to_list_and_a_wrong_place_is_named(place: Path, tmp_path: Path) -> None:
    assert json.loads(jobs("--json").stdout) == {"jobs": []}
    assert not place.exists()
    assert "check --jobs" in jobs("--jobs", str(tmp_path / "nowhere")).stderr


def test_one_is_removed_when_that_is_agreed(place: Path) -> None:
    make(place, "a")
    make(place, "ab")
    assert jobs("rm", "a").exit_code == 2
    assert (place / "a" / "request.json").exists()
    assert jobs("rm", "a", "--yes").exit_code == 0
    assert not (place / "a" / "request.json").exists()
    assert (place / "ab" / "request.json").exists()


@pytest.mark.parametrize("lock", [control.held, control.shared])
def test_one_that_runs_is_not_removed(place: Path, lock: Callable[[Path, str], AbstractContextManager[None]]) -> None:
    make(place, "a")
    with lock(place, "a"):
        result = jobs("rm", "a", "--yes")
    assert result.exit_code == 11
    assert (place / "a" / "request.json").exists()
    assert list(place.glob(".a.lock")) == []


@pytest.mark.parametrize("name", ["..", ".", "b/../a", "nothing"])
def test_what_is_not_a_job_is_not_removed(place: Path, name: str) -> None:
    make(place, "a")
    assert jobs("rm", name, "--yes").exit_code == 2
    assert (place / "a" / "request.json").exists()


def test_two_runs_of_a_job_with_transactions_may_meet(place: Path) -> None:
    with control.shared(place, "a"):
        with control.shared(place, "a"):
            pass
        assert (place / ".a.lock").exists()
    assert not (place / ".a.lock").exists()


def report(place: Path, name: str, **changes: Any) -> None:
    """As a run of this process does just now."""
    fields = {"updated_at": wall_clock(), "attempt_host": this_process(), **changes}
    control.ProgressFile(LocalStore(place), name, "x").write(progress(**fields))


def ran(place: Path, name: str, begun_at: int, host: str = "there:2") -> None:
    JobFolder(LocalStore(place), name).add_attempt(Attempt(number=1, id="x", host=host, begun_at=begun_at))


def state(place: Path) -> str | None:
    (told,) = json.loads(jobs("--json").stdout)["jobs"]
    assert f" {told['state'] or '-'} " in jobs().stdout
    return str(told["state"]) if told["state"] else None


@pytest.mark.parametrize("lock", [control.held, control.shared])
def test_without_progress_only_the_lock_tells_a_state(
    place: Path, lock: Callable[[Path, str], AbstractContextManager[None]]
) -> None:
    make(place, "a")
    assert state(place) is None
    with lock(place, "a"):
        assert state(place) == "running"


@pytest.mark.parametrize(
    ("changes", "running", "expected"),
    [
        ({"state": "paused"}, True, "paused"),
        ({"state": "planning"}, True, "planning"),
        ({"state": "paused"}, False, "interrupted"),
        ({"state": "complete"}, False, "complete"),
        ({"state": "ended"}, False, "ended"),
        ({"state": "failed"}, False, "failed"),
        ({"state": "failed"}, True, "failed"),
        ({"attempt_host": "elsewhere:1"}, False, "running"),
        ({"attempt_host": "elsewhere:1", "updated_at": wall_clock() - 3_600_000}, False, "interrupted"),
    ],
)
def test_what_a_run_reports_is_its_state_as_long_as_it_runs(
    place: Path, changes: dict[str, Any], running: bool, expected: str
) -> None:
    make(place, "a")
    report(place, "a", **changes)
    with control.held(place, "a") if running else nullcontext():
        assert state(place) == expected


def test_a_later_run_that_reports_nothing_has_no_state_of_an_earlier_one(place: Path) -> None:
    make(place, "a")
    report(place, "a", state="ended", updated_at=1000)
    ran(place, "a", begun_at=2000)
    assert state(place) is None
    with control.held(place, "a"):
        assert state(place) == "running"
        told = jobs("pause", "a")
    assert told.exit_code == 2
    assert "newest run was not started with --control" in told.stderr.replace("its ", "")


def test_a_run_that_has_just_begun_reports_still(place: Path) -> None:
    make(place, "a")
    report(place, "a", updated_at=1000)
    ran(place, "a", begun_at=2000, host=this_process())
    with control.held(place, "a"):
        assert state(place) == "running"
        assert jobs("pause", "a").exit_code == 0


def test_what_the_positions_call_complete_is(place: Path) -> None:
    """Though another run of it was refused."""
    folder = make(place, "a")
    folder.positions.read()
    folder.positions.write({0: position(1000)})
    body = (place / "a" / "request.json").read_bytes().replace(b'"transactional":true', b'"transactional":false')
    (place / "a" / "request.json").write_bytes(body[: body.rindex(b',"crc32"')] + b"}")
    report(place, "a", state="failed")
    assert state(place) == "complete"


def test_a_running_job_is_steered(place: Path) -> None:
    make(place, "a")
    store = LocalStore(place)
    control.reset_control(store, "a", "7/s")
    report(place, "a")
    with control.held(place, "a"):
        for words, expected in (
            (("pause", "a"), control.JobControl(state="pause", rate="7/s", changes=1)),
            (("rate", "a", "20MB/s"), control.JobControl(state="pause", rate="20MB/s", changes=2)),
            (("rate", "a", "none"), control.JobControl(state="pause", changes=3)),
            (("resume", "a"), control.JobControl(changes=4)),
            (("cancel", "a"), control.JobControl(state="cancel", changes=5)),
        ):
            succeeded(jobs(*words))
            assert control.read_control(store, "a") == expected
        refused = jobs("rate", "a", "fast")
    assert (refused.exit_code, "5000/s or 20MB/s" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (None, "takes no commands.*was not started with --control.*replayer replay --control"),
        ({}, "is not running.*interrupted.*--resume --control"),
        ({"state": "complete"}, "is not running.*complete"),
    ],
)
def test_what_does_not_run_takes_no_commands(place: Path, changes: dict[str, Any] | None, told: str) -> None:
    make(place, "a")
    if changes is not None:
        report(place, "a", **changes)
    for words in (("pause", "a"), ("resume", "a"), ("cancel", "a"), ("rate", "a", "5/s")):
        result = exited(jobs(*words), 2)
        assert re.search(told, result.stderr.replace("\n", " ")), result.stderr
    assert control.read_control(LocalStore(place), "a") is None
    assert "there is no job b" in jobs("pause", "b").stderr


@pytest.mark.parametrize("command", [("jobs", "rm", "b"), ("undo", "--job", "b", "-b", "127.0.0.1:1")])
def test_a_job_of_another_user_is_missing_with_the_place_and_how_to_name_another(
    place: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    make(place, "a")
    refused = exited(run(*command, "--jobs", str(place)), 2)
    assert str(place) in refused.stderr and "--jobs DIR or --jobs s3://" in refused.stderr
    default = Path(os.environ["XDG_STATE_HOME"]) / "blockgz" / "jobs"
    assert str(default) in exited(run(*command), 2).stderr
    monkeypatch.setattr(Path, "is_dir", raising(PermissionError(13, "Permission denied")))
    hidden = exited(run(*command, "--jobs", str(place / "hidden")), 12)
    assert "Permission denied" in hidden.stderr and "bug" not in hidden.stderr


def raising(error: Exception) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise error

    return refuse


@pytest.mark.parametrize(
    "words", [("pause",), ("rate", "a"), ("rate", "a", "5/s", "x"), ("pause", "a", "b"), ("stop", "a"), ("a",)]
)
def test_mistyped_commands(place: Path, words: tuple[str, ...]) -> None:
    result = exited(jobs(*words), 2)
    assert "rm|pause|resume|cancel and a job, or rate" in " ".join(result.stderr.split())


def test_what_steers_a_job_is_removed_with_it(place: Path) -> None:
    make(place, "a")
    report(place, "a")
    control.change_control(LocalStore(place), "a", state="run")
    report(place, "planned-only", state="failed")
    for name in ("a", "planned-only"):
        assert jobs("rm", name, "--yes").exit_code == 0
    assert [path.name for path in place.iterdir()] == []


@pytest.fixture
def cluster() -> MockCluster:
    made = MockCluster()
    made.create_topic("copy")
    return made


@pytest.fixture
def archive(tmp_path: Path, cluster: MockCluster) -> tuple[str, ...]:
    writer = ArchiveWriter(tmp_path / "archive")
    for partition in range(2):
        writer.partition("orders", partition).commit(records(range(40)))
    return "-a", str(tmp_path / "archive"), "-b", cluster.bootstrap_servers


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="replayer")


def test_the_command_that_a_replay_prints_proves_it(archive: tuple[str, ...]) -> None:
    done = succeeded(run("replay", "orders", "--to-topic", "copy", "--yes", "--json", "--to", "30", *archive))
    proved = run(*shlex.split(json.loads(done.stdout)["verify"])[1:], "--json")
    told = json.loads(proved.stdout)
    assert (proved.exit_code, told["verdict"], told["records"]) == (0, "OK", 60)


def replayed(*args: str) -> dict[str, Any]:
    done = succeeded(run("replay", "orders", "--to-topic", "copy", "--yes", "--json", *args))
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def proved(command: str, exit_code: int = 0) -> dict[str, Any]:
    """By the command that a replay printed."""
    done = run(*shlex.split(command)[1:], "--json")
    assert done.exit_code == exit_code, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def sums(told: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(told[name] for name in ("verdict", "complete", "records", "differing", "missing", "foreign"))


def test_a_copy_with_timestamps_of_its_own_is_compared_in_all_else(
    archive: tuple[str, ...], cluster: MockCluster
) -> None:
    result = replayed("--timestamps", "now", *archive)
    told = proved(result["verify"])
    assert sums(told) == ("WARNING", True, 80, 0, 0, 0)
    assert told["warnings"] == ["timestamps are not compared: they are the times of sending"]
    cluster.produce("copy", 1, records([7]))
    told = proved(result["verify"], 3)
    assert sums(told) == ("FAILURE", True, 80, 0, 0, 1)


@pytest.mark.slow
def test_a_copy_by_key_is_proved_lane_by_lane(archive: tuple[str, ...], cluster: MockCluster) -> None:
    result = replayed("--partitions", "by-key", *archive)
    told = proved(result["verify"])
    assert sums(told) == ("OK", True, 80, 0, 0, 0)
    assert sum(each["records"] > 0 for each in told["lanes"]) > 2
    cluster.produce("copy", 3, records([7]))
    assert sums(proved(result["verify"], 3)) == ("FAILURE", True, 80, 0, 0, 1)


@pytest.mark.slow
def test_a_job_folder_in_a_bucket(archive: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server() as url:
        bucket = Bucket(url, "jobs")
        place = ("--jobs", "s3://jobs/replays", "--endpoint-url", url)
        result = replayed("--job", "restore", *place, *archive)
        assert sums(proved(result["verify"])) == ("OK", True, 80, 0, 0, 0)
        refused = run("verify", "--job", "restore", "--jobs", "s3://jobs/elsewhere", *place[2:], *archive)
        assert (refused.exit_code, "s3://jobs/elsewhere" in refused.stderr) == (2, True)
        bucket.close()


@pytest.mark.slow
@pytest.mark.parametrize("lost", [{0}, {0, 1}], ids=["one", "all"])
def test_positions_that_expired_are_named_and_the_copy_is_proved_whole(
    archive: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, lost: set[int]
) -> None:
    """Kafka forgets offsets of a group that is idle: those of a lane that was done first may go first."""

    def settled(_: object, lanes: Iterable[int]) -> dict[int, LanePosition]:
        """The cluster in memory keeps no offsets of transactions."""
        done = {lane: LanePosition("0" * 16, "0" * 16, 40, {lane: SourceProgress(0, 40, 40)}) for lane in lanes}
        return {lane: position for lane, position in done.items() if lane not in lost}

    monkeypatch.setitem(FETCHING, "check.crcs", False)  # the ends of its transactions have none
    result = replayed("--transactional", "--job", "restore", *archive)
    monkeypatch.setattr(CommittedPositions, "settled", settled)
    told = proved(result["verify"])
    assert sums(told) == ("WARNING", False, 80, 0, 0, 0)
    named = ", ".join(map(str, sorted(lost)))
    assert told["warnings"] == [
        f"the cluster has no positions of the job in partitions {named}: these are proved as if they were complete"
    ]
    for segment in (Path(os.environ["XDG_STATE_HOME"]) / "blockgz" / "jobs" / "restore" / "runs").iterdir():
        content = json.loads(segment.read_bytes())
        content.pop("crc32")
        content["runs"] = [each for each in content["runs"] if each[3] != 0]
        segment.write_bytes(json.dumps(content, separators=(",", ":")).encode())
    assert sums(proved(result["verify"], 3))[3:] == (0, 40, 40)


@pytest.mark.slow
def test_many_lanes(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path / "archive")
    for partition in range(200):
        writer.partition("orders", partition).commit(records(range(partition % 7 + 1)))
    cluster = MockCluster()
    cluster.create_topic("copy", 200)
    result = replayed("-a", str(tmp_path / "archive"), "-b", cluster.bootstrap_servers)
    told = proved(result["verify"])
    assert sums(told) == ("OK", True, sum(partition % 7 + 1 for partition in range(200)), 0, 0, 0)
    assert [each["lane"] for each in told["lanes"]] == list(range(200))


@pytest.mark.parametrize(
    ("more", "why"),
    [((), "there is no job nothing"), (("orders",), "--job determines what"), (("--deep",), "--job determines what")],
)
def test_what_cannot_be_asked_for(archive: tuple[str, ...], more: tuple[str, ...], why: str) -> None:
    result = exited(run("verify", *more, "--job", "nothing", *archive), 2)
    assert why in result.stderr
    assert more or ("/blockgz/jobs has that name" in result.stderr and "--jobs DIR" in result.stderr)
