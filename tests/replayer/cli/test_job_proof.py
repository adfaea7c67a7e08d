"""`replayer verify --job` as a user runs it, on a cluster in memory."""

import json
import os
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from replayer.cli import main
from replayer.kafka.reader import FETCHING
from replayer.replay.job import LanePosition, SourceProgress
from replayer.replay.sinks.committed_positions import CommittedPositions
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster
from tests.support.s3_server import CREDENTIALS, Bucket, s3_server


@pytest.fixture
def cluster() -> MockCluster:
    made = MockCluster()
    made.create_topic("copy")
    return made


@pytest.fixture
def archive(tmp_path: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    writer = ArchiveWriter(tmp_path / "archive")
    for partition in range(2):
        writer.partition("orders", partition).commit(records(range(40)))
    return "-a", str(tmp_path / "archive"), "-b", cluster.bootstrap_servers


def run(*args: str) -> Result:
    return CliRunner().invoke(main, args, prog_name="replayer")


def test_the_command_that_a_replay_prints_proves_it(archive: tuple[str, ...]) -> None:
    done = run("replay", "orders", "--to-topic", "copy", "--yes", "--json", "--to", "30", *archive)
    assert done.exit_code == 0, done.stderr
    proved = run(*shlex.split(json.loads(done.stdout)["verify"])[1:], "--json")
    told = json.loads(proved.stdout)
    assert (proved.exit_code, told["verdict"], told["records"]) == (0, "OK", 60)


def replayed(*args: str) -> dict[str, Any]:
    done = run("replay", "orders", "--to-topic", "copy", "--yes", "--json", *args)
    assert done.exit_code == 0, done.stderr
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
def test_many_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
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
    result = run("verify", *more, "--job", "nothing", *archive)
    assert result.exit_code == 2
    assert why in result.stderr
