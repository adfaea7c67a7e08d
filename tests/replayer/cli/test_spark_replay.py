"""`replayer replay --spark` as a user runs it, on a mock cluster, its tasks run here one after the other."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from blockgz.kafka.batch_producer import BatchProducer, batch_producer
from blockgz.spark import session as session_module
from replayer.cli import main
from replayer.kafka.admin import KafkaAdmin
from replayer.spark.lanes import LaneStore
from replayer.spark.replay import LaneOutcome, SourceTask
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import MockCluster

names = map("spark-copy-{}".format, itertools.count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


@pytest.fixture
def copy(cluster: MockCluster) -> str:
    topic = next(names)
    cluster.create_topic(topic)
    return topic


@pytest.fixture
def root(tmp_path: Path) -> Path:
    archive = ArchiveWriter(tmp_path)
    for partition in range(3):
        archive.partition("orders", partition).commit(records(range(40)))
    return tmp_path


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of tasks of the rounds that Spark was given."""
    rounds: list[int] = []

    def parallelize(tasks: list[SourceTask], slices: int) -> SimpleNamespace:
        assert len(tasks) == slices
        rounds.append(slices)

        def mapped(step: Callable[[SourceTask], LaneOutcome]) -> SimpleNamespace:
            return SimpleNamespace(collect=lambda: [step(task) for task in tasks])

        return SimpleNamespace(map=mapped)

    @contextmanager
    def session(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            conf=SimpleNamespace(get=lambda _, default: default),
            sparkContext=SimpleNamespace(parallelize=parallelize),
        )

    monkeypatch.setattr(session_module, "session", session)
    return rounds


class Program:
    def __init__(self, root: Path, cluster: MockCluster) -> None:
        self._root, self._cluster = root, cluster

    def __call__(self, *args: str) -> Result:
        where = ("-a", str(self._root), "-b", self._cluster.bootstrap_servers)
        return CliRunner().invoke(main, ["replay", "--spark", *args, *where], prog_name="replayer")

    def held(self, topic: str) -> list[int]:
        admin = KafkaAdmin({"bootstrap.servers": self._cluster.bootstrap_servers})
        return [bounds.end for bounds in admin.watermarks(topic, range(4)).values()]


@pytest.fixture
def program(root: Path, cluster: MockCluster) -> Program:
    return Program(root, cluster)


@pytest.mark.slow
def test_every_partition_by_a_task(program: Program, copy: str, sessions: list[int]) -> None:
    result = program("orders", "--to-topic", copy, "--yes", "--json")
    assert result.exit_code == 0, result.stderr
    done = json.loads(result.stdout)
    assert (done["records"], done["records_before"], done["complete"], done["tasks"]) == (120, 0, True, 3)
    assert done["partitions"][2] == {
        "partition": 2,
        "target_partitions": [2],
        "records": 40,
        "records_before": 0,
        "from": 0,
        "to": 40,
    }
    assert sessions == [3]
    assert program.held(copy) == [40, 40, 40, 0]


@pytest.mark.slow
def test_into_fewer_partitions_for_people(program: Program, copy: str, sessions: list[int]) -> None:
    result = program("orders", "--to-topic", copy, "--partitions", "2", "--from", "10", "--yes")
    assert result.exit_code == 0, result.stderr
    assert "3 tasks at most, one for each source partition" in result.stderr
    assert f"90 records replayed to {copy}" in result.stdout
    assert program.held(copy) == [60, 30, 0, 0]
    told = program("orders", "--to-topic", copy, "--partitions", "2", "--from", "10", "--yes")
    assert told.exit_code == 2
    assert "is complete" in told.stderr
    again = program("orders", "--to-topic", copy, "--partitions", "2", "--from", "10", "--yes", "--resume", "--json")
    assert again.exit_code == 0, again.stderr
    done = json.loads(again.stdout)
    assert (done["records"], done["records_before"], done["tasks"]) == (0, 90, 0)
    assert sessions == [3]


def test_a_dry_run_starts_nothing(program: Program, copy: str, sessions: list[int]) -> None:
    result = program("orders:0,2", "--to-topic", copy, "--dry-run", "--json")
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)["plan"]
    assert (plan["records"], [each["partition"] for each in plan["partitions"]]) == (80, [0, 2])
    assert "2 tasks at most, one for each source partition" in plan["notes"]
    assert (sessions, program.held(copy)) == ([], [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("orders", "--to-topic", "orders", "--yes"), "is the topic that was archived"),
        (("orders", "--to-topic", "{copy}"), "--yes is not set"),
        (("orders", "--yes"), "--to-topic, which says where the records go"),
        (("orders", "--to-topic", "{copy}", "--rate", "5/s", "--yes"), "--rate cannot be combined with --spark"),
        (("orders", "--to-topic", "{copy}", "--jobs", "./jobs", "--yes"), "--jobs cannot be combined with --spark"),
        (("orders", "--to-topic", "{copy}", "--patience", "1m", "--yes"), "--patience cannot be combined with"),
        (("orders", "--to-topic", "{copy}", "--control", "--job", "j", "--yes"), "--control cannot be combined"),
        (("orders", "--to-topic", "{copy}", "--partitions", "9:0", "--yes"), "does not say where partition 0 goes"),
    ],
)
def test_refusals_come_before_spark(
    program: Program, cluster: MockCluster, copy: str, sessions: list[int], arguments: tuple[str, ...], message: str
) -> None:
    cluster.create_topic("orders")
    result = program(*(each.format(copy=copy) for each in arguments))
    assert result.exit_code == 2
    assert message in result.stderr
    assert sessions == []


@pytest.mark.slow
def test_damage_is_skipped_and_named(program: Program, root: Path, copy: str, sessions: list[int]) -> None:
    data = sorted(root.rglob("*.gz"))[1]
    content = bytearray(data.read_bytes())
    content[100:120] = bytes(20)
    data.write_bytes(content)
    told = program("orders", "--to-topic", copy, "--yes")
    assert told.exit_code == 3
    assert program.held(copy)[0] == program.held(copy)[2] == 40, "the other partitions are whole"
    result = program("orders", "--to-topic", copy, "--yes", "--resume", "--on-damage", "skip", "--json")
    assert result.exit_code == 3, result.stderr
    done = json.loads(result.stdout)
    assert {each["partition"] for each in done["skipped"]} == {1}
    lost = sum(each["to"] - each["from"] for each in done["skipped"])
    assert program.held(copy) == [40, 40 - lost, 40, 0]
    assert 0 < lost < 40
    assert "FAILURE orders:1 skipped offsets" in result.stderr
    assert sessions == [3, 1]


@pytest.mark.slow
def test_batches_are_compressed_as_asked(
    program: Program, copy: str, sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, str]] = set()

    def noted(settings: dict[str, str], topic: str) -> BatchProducer:
        seen.add((settings["compression.type"], settings["compression.level"]))
        return batch_producer(settings, topic)

    monkeypatch.setattr("replayer.replay.sinks.producer.batch_producer", noted)
    result = program("orders", "--to-topic", copy, "--yes", "--compression", "zstd:4")
    assert result.exit_code == 0, result.stderr
    assert (seen, sessions) == ({("zstd", "4")}, [3])
    refused = program("orders", "--to-topic", copy, "--compression", "zstd", "-X", "compression.type=lz4")
    assert refused.exit_code == 2
    assert "--compression zstd contradicts -X compression.type=lz4" in refused.stderr


SKEWED = ("skewed", "--at", "1970-01-01T00:00:03Z")


@pytest.fixture
def skewed(root: Path) -> None:
    for partition in range(2):
        stamps = [5_000 if n < 250 else 1_000 for n in range(600)]
        ArchiveWriter(root).partition("skewed", partition).commit(records(range(600), timestamps=stamps))


@pytest.mark.slow
@pytest.mark.usefixtures("skewed")
def test_an_end_in_doubt_is_chosen_once(
    program: Program, copy: str, sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*SKEWED, "--to-topic", copy, "--retention", "hold", "--yes", "--json")
    refused = program(*args)
    assert (refused.exit_code, sessions) == (2, []), refused.stderr
    assert "--at-rule majority" in refused.stderr
    done = program(*args, "--at-rule", "majority")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["records"] == 1200
    monkeypatch.setattr("blockgz.archive.selection.find_cut", lambda *_: pytest.fail("the ends are recorded"))
    again = program(*args, "--resume")
    assert again.exit_code == 0, again.stderr
    assert json.loads(again.stdout)["records_before"] == 1200


@pytest.mark.slow
@pytest.mark.usefixtures("skewed")
def test_lanes_without_a_position_end_as_of_the_time(
    program: Program, copy: str, sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*SKEWED, "--to-topic", copy, "--retention", "hold", "--yes", "--json", "--resume", "--at-rule", "first")
    read = LaneStore.read
    monkeypatch.setattr(LaneStore, "read", lambda store: {k: v for k, v in read(store).items() if k != 1})
    first = program(*args[:-3], *args[-2:])
    assert first.exit_code == 0, first.stderr
    resumed = program(*args, "--dry-run")
    assert resumed.exit_code == 0, resumed.stderr
    partitions = json.loads(resumed.stdout)["plan"]["partitions"]
    assert [(each["from"], each["to"]) for each in partitions] == [(0, 0), (0, 0)]
