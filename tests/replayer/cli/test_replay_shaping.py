"""`replayer replay` with records changed and spread on their way, and with Spark, its tasks run here."""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest
from click.testing import CliRunner, Result

from blockgz.kafka.batch_producer import BatchProducer, batch_producer
from blockgz.spark import session as session_module
from index_format.records import Record, iter_records
from replayer.cli import main
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.replay.pipeline import murmur2
from replayer.replay.request import ReplayRequest
from replayer.spark.lanes import LaneStore
from replayer.spark.replay import LaneOutcome, SourceTask
from replayer.transforms.chain import PREDICATES, SIDED, WHOLE
from tests.support.archives import ArchiveWriter, records
from tests.support.commands import exited, succeeded
from tests.support.mock_cluster import PARTITIONS, MockCluster

DOCS = Path(__file__).parents[3] / "docs"

names = map("shaped-{}".format, itertools.count())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Topic orders with JSON in some values of its partitions 0, 1 and 6."""
    root = tmp_path_factory.mktemp("archive")
    archive = ArchiveWriter(root)
    for partition in (0, 1, 6):
        archive.partition("orders", partition).commit(source(partition))
    return root


def source(partition: int) -> list[Record]:
    """What is archived of a partition."""
    made = records(range(12))
    made[4] = made[4]._replace(value=b'{"partition":%d, "secret":"x"}' % partition)
    return made


class Target:
    """A topic of four partitions, and what replays do to it."""

    def __init__(self, root: Path, cluster: MockCluster) -> None:
        self._root, self._properties = root, {"bootstrap.servers": cluster.bootstrap_servers}
        self.topic = next(names)
        cluster.create_topic(self.topic)

    def replay(self, topic: str, *args: str) -> Result:
        to_topic = () if "--to-topic" in args else ("--to-topic", self.topic)
        command = ["replay", topic, *to_topic, "--yes", *args]
        address = ["-a", str(self._root), "-b", self._properties["bootstrap.servers"]]
        return CliRunner().invoke(main, [*command, *address], prog_name="replayer")

    def records(self) -> dict[int, list[Record]]:
        """By partition, offsets set to 0."""
        watermarks = KafkaAdmin(self._properties).watermarks(self.topic, range(PARTITIONS))
        reader = KafkaReader(self._properties)
        try:
            return {
                partition: [
                    record._replace(offset=0)
                    for batch in reader.read(self.topic, partition, *bounds)
                    for record in iter_records(batch)
                ]
                for partition, bounds in watermarks.items()
                if bounds.end > bounds.low
            }
        finally:
            reader.close()


@pytest.fixture
def target(root: Path, cluster: MockCluster, tmp_path: Path) -> Target:
    return Target(root, cluster)


def sent(rows: list[Record], **changes: Any) -> list[Record]:
    return [row._replace(offset=0, **changes) for row in rows]


def test_by_key(target: Target) -> None:
    result = succeeded(target.replay("orders", "--partitions", "by-key", "--json"))
    found = target.records()
    for partition, rows in found.items():
        for row in rows:
            assert row.key is None or (murmur2(row.key) & 0x7FFFFFFF) % PARTITIONS == partition
    assert sum(map(len, found.values())) == 36
    told = json.loads(result.stdout)
    assert sum(lane["records"] for lane in told["partitions"]) == 36
    assert {lane["target_partition"] for lane in told["partitions"]} == set(range(PARTITIONS))
    assert "murmur2 modulo 4" in told["plan"]["notes"][0]


@pytest.mark.parametrize(("partitions", "places"), [("2", {0: (0, 6), 1: (1,)}), ("0-1:3,6:0", {3: (0, 1), 0: (6,)})])
def test_whole_partitions(target: Target, partitions: str, places: dict[int, tuple[int, ...]]) -> None:
    succeeded(target.replay("orders", "--partitions", partitions))
    found = target.records()
    assert found.keys() == places.keys()
    for place, sources in places.items():
        assert is_merged(found[place], [sent(source(each)) for each in sources])


def is_merged(rows: list[Record], parts: list[list[Record]]) -> bool:
    """Whether the rows are those of all parts, each part in its order."""
    reached = {(0,) * len(parts)}
    for row in rows:
        reached = {
            (*counts[:number], counts[number] + 1, *counts[number + 1 :])
            for counts in reached
            for number, part in enumerate(parts)
            if counts[number] < len(part) and part[counts[number]] == row
        }
    return tuple(map(len, parts)) in reached


def test_everything_at_once(target: Target, tmp_path: Path) -> None:
    transforms = tmp_path / "t.yaml"
    transforms.write_text(
        "transforms:\n  mask: {type: MaskField$Value, fields: secret}\n"
        "  id: {type: InsertHeader, header: i, value.literal: 1}\n"
    )
    result = target.replay(
        "orders:1",
        *("--transforms", str(transforms), "--on-transform-error", "skip", "--tombstones", "drop"),
        *("--strip-header", "h", "--add-header", "a=b", "--provenance", "--timestamps", "shift=+1s"),
        "--json",
    )
    assert result.exit_code == 3, "a record that was left out is not passed over in silence"
    (found,) = target.records()[1]
    assert found == Record(
        0,
        source(1)[4].timestamp + 1000,
        0,
        b"4",
        b'{"partition":1,"secret":""}',
        (("i", b"1"), ("a", b"b"), ("blockgz-source", b"orders/1/4")),
    )
    tombstones = sum(row.value is None for row in source(1))
    told = json.loads(result.stdout)
    assert told["left_out"] == {"dropped": 0, "routed_elsewhere": 0, "unfit": 12 - 1 - tombstones}
    assert told["transforms"] == {"mask": 1, "id": 1}
    assert len(told["plan"]["notes"]) == 9
    assert "cannot be taken back" in told["plan"]["notes"][8]


def test_a_record_that_a_transform_cannot_handle_ends_the_replay(target: Target, tmp_path: Path) -> None:
    transforms = tmp_path / "t.properties"
    transforms.write_text("transforms=m\ntransforms.m.type=MaskField$Value\ntransforms.m.fields=a\n")
    result = exited(target.replay("orders:1", "--transforms", str(transforms)), 1)
    assert "partition 1, offset 0" in result.stderr
    assert "transform m (MaskField)" in result.stderr
    assert "Traceback" not in result.stderr


MISSPELT = "transforms=m\ntransforms.m.type=MaskField$Value\ntransforms.m.fields=secert\n"


def test_a_mask_that_changes_nothing_stops_before_anything_is_written(target: Target, tmp_path: Path) -> None:
    transforms = tmp_path / "t.properties"
    transforms.write_text(MISSPELT)
    asked = ("orders:1", "--transforms", str(transforms), "--on-transform-error", "skip", "--job", "masked")
    for more in ((), ("--dry-run",)):
        result = exited(target.replay(*asked, *more), 2)
        assert "transform m changes none of the first 12 records" in result.stderr
        assert "MaskField names field secert, which none of them has; their values have: partition, secret" in (
            result.stderr
        )
        assert "--allow-unchanged" in result.stderr
    assert not target.records()
    result = exited(target.replay(*asked, "--allow-unchanged"), 3)
    assert "0 records were changed by transform m" in result.stdout
    assert target.records()
    again = target.replay(*asked, "--resume")
    assert again.exit_code == 0, "a job that has begun is not asked again"


def test_a_name_made_of_the_topics(target: Target, cluster: MockCluster) -> None:
    cluster.create_topic("orders-copy")
    result = succeeded(target.replay("orders:0", "--to-topic", "{topic}-copy"))
    assert "replayed to orders-copy" in result.stdout


ROUTE = "transforms=r\ntransforms.r.type=RegexRouter\ntransforms.r.regex=(.*)\ntransforms.r.replacement="


def test_a_router_names_the_target(target: Target, tmp_path: Path) -> None:
    transforms = tmp_path / "t.properties"
    transforms.write_text(ROUTE + target.topic)
    command = ["replay", "orders:0", "--transforms", str(transforms), "--yes", "-a", str(target._root)]
    done = CliRunner().invoke(main, [*command, "-b", target._properties["bootstrap.servers"]], prog_name="replayer")
    assert done.exit_code == 0, done.stderr
    assert len(target.records()[0]) == 12


def test_records_that_a_router_sends_elsewhere_are_counted(target: Target, tmp_path: Path) -> None:
    transforms = tmp_path / "t.properties"
    transforms.write_text(ROUTE + "another")
    result = succeeded(target.replay("orders:0", "--transforms", str(transforms)))
    assert "12 records were routed to other topics" in result.stdout
    assert target.records() == {}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("orders", "--partitions", "0:1"), "does not say where partition 1 goes"),
        (("orders", "--partitions", "0-6:9"), "it has 4, and partition 0 of orders goes to partition 9"),
        (("orders", "--partitions", "by-key:8"), "has 4 partitions"),
        (("orders:0", "--timestamps", "shift=-99999d"), "before 1970"),
        (("orders:0", "--undo-retention", "--dry-run"), "replays nothing"),
        (("orders",), "it has 4, and partition 6 of orders goes to partition 6"),
    ],
)
def test_refusals_change_nothing(target: Target, args: tuple[str, ...], expected: str) -> None:
    result = exited(target.replay(*args), 2)
    assert re.search(expected, result.stderr), result.stderr
    assert "do:" in result.stderr
    assert target.records() == {}


@pytest.mark.slow
def test_a_topic_with_records_wants_append(target: Target) -> None:
    assert target.replay("orders:0").exit_code == 0
    again = exited(target.replay("orders:0"), 2)
    assert "is not empty" in again.stderr
    assert len(target.records()[0]) == 12
    succeeded(target.replay("orders:0", "--append"))
    assert len(target.records()[0]) == 24


def test_the_page_names_every_option() -> None:
    page = (DOCS / "replay-target.md").read_text()
    hints = get_type_hints(ReplayRequest, include_extras=True)
    about_target = [each.name for each in fields(ReplayRequest)]
    about_target = about_target[: about_target.index("undo_retention") + 1]
    options = {given.name for name in about_target for given in getattr(hints[name], "__metadata__", ())}
    pages = page + (DOCS / "transforms.md").read_text()
    assert options
    assert {name for name in options if f"`{name}" not in pages and f" {name} " not in pages} == set()
    assert set(re.findall(r"`(--[a-z-]+)", pages)) - options <= {"--to-topic", "--into-source", "--resume"}


def test_the_page_names_every_transform() -> None:
    page = (DOCS / "transforms.md").read_text()
    assert set(re.findall(r"^\| ([A-Z][A-Za-z]+) \|", page, re.MULTILINE)) == {*SIDED, *WHOLE, *PREDICATES}


@pytest.fixture
def skewed_root(tmp_path: Path) -> Path:
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
            conf=SimpleNamespace(get=lambda _, default: default), sparkContext=SimpleNamespace(parallelize=parallelize)
        )

    monkeypatch.setattr(session_module, "session", session)
    return rounds


class Program:
    def __init__(self, skewed_root: Path, cluster: MockCluster) -> None:
        self._root, self._cluster = skewed_root, cluster

    def __call__(self, *args: str) -> Result:
        where = ("-a", str(self._root), "-b", self._cluster.bootstrap_servers)
        return CliRunner().invoke(main, ["replay", "--spark", *args, *where], prog_name="replayer")

    def held(self, topic: str) -> list[int]:
        admin = KafkaAdmin({"bootstrap.servers": self._cluster.bootstrap_servers})
        return [bounds.end for bounds in admin.watermarks(topic, range(4)).values()]


@pytest.fixture
def program(skewed_root: Path, cluster: MockCluster) -> Program:
    return Program(skewed_root, cluster)


@pytest.mark.slow
def test_every_partition_by_a_task(program: Program, copy: str, sessions: list[int]) -> None:
    done = json.loads(succeeded(program("orders", "--to-topic", copy, "--yes", "--json")).stdout)
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
    result = succeeded(program("orders", "--to-topic", copy, "--partitions", "2", "--from", "10", "--yes"))
    assert "3 tasks at most, one for each source partition" in result.stderr
    assert f"90 records replayed to {copy}" in result.stdout
    assert program.held(copy) == [60, 30, 0, 0]
    told = exited(program("orders", "--to-topic", copy, "--partitions", "2", "--from", "10", "--yes"), 2)
    assert "is complete" in told.stderr
    again = program("orders", "--to-topic", copy, "--partitions", "2", "--from", "10", "--yes", "--resume", "--json")
    assert again.exit_code == 0, again.stderr
    done = json.loads(again.stdout)
    assert (done["records"], done["records_before"], done["tasks"]) == (0, 90, 0)
    assert sessions == [3]


def test_a_dry_run_starts_nothing(program: Program, copy: str, sessions: list[int]) -> None:
    result = succeeded(program("orders:0,2", "--to-topic", copy, "--dry-run", "--json"))
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
    result = exited(program(*(each.format(copy=copy) for each in arguments)), 2)
    assert message in result.stderr
    assert sessions == []


@pytest.mark.slow
def test_damage_is_skipped_and_named(program: Program, skewed_root: Path, copy: str, sessions: list[int]) -> None:
    data = sorted(skewed_root.rglob("*.gz"))[1]
    content = bytearray(data.read_bytes())
    content[100:120] = bytes(20)
    data.write_bytes(content)
    exited(program("orders", "--to-topic", copy, "--yes"), 3)
    assert program.held(copy)[0] == program.held(copy)[2] == 40, "the other partitions are whole"
    result = exited(program("orders", "--to-topic", copy, "--yes", "--resume", "--on-damage", "skip", "--json"), 3)
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
    succeeded(program("orders", "--to-topic", copy, "--yes", "--compression", "zstd:4"))
    assert (seen, sessions) == ({("zstd", "4")}, [3])
    refused = exited(program("orders", "--to-topic", copy, "--compression", "zstd", "-X", "compression.type=lz4"), 2)
    assert "--compression zstd contradicts -X compression.type=lz4" in refused.stderr


SKEWED = ("skewed", "--at", "1970-01-01T00:00:03Z")


@pytest.fixture
def skewed(skewed_root: Path) -> None:
    for partition in range(2):
        stamps = [5_000 if n < 250 else 1_000 for n in range(600)]
        ArchiveWriter(skewed_root).partition("skewed", partition).commit(records(range(600), timestamps=stamps))


@pytest.mark.slow
@pytest.mark.usefixtures("skewed")
def test_an_end_in_doubt_is_chosen_once(
    program: Program, copy: str, sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*SKEWED, "--to-topic", copy, "--retention", "hold", "--yes", "--json")
    refused = program(*args)
    assert (refused.exit_code, sessions) == (2, []), refused.stderr
    assert "--at-rule majority" in refused.stderr
    done = succeeded(program(*args, "--at-rule", "majority"))
    assert json.loads(done.stdout)["records"] == 1200
    monkeypatch.setattr("blockgz.archive.selection.find_cut", lambda *_: pytest.fail("the ends are recorded"))
    again = succeeded(program(*args, "--resume"))
    assert json.loads(again.stdout)["records_before"] == 1200


@pytest.mark.slow
@pytest.mark.usefixtures("skewed")
def test_lanes_without_a_position_end_as_of_the_time(
    program: Program, copy: str, sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    args = (*SKEWED, "--to-topic", copy, "--retention", "hold", "--yes", "--json", "--resume", "--at-rule", "first")
    read = LaneStore.read
    monkeypatch.setattr(LaneStore, "read", lambda store: {k: v for k, v in read(store).items() if k != 1})
    succeeded(program(*args[:-3], *args[-2:]))
    resumed = succeeded(program(*args, "--dry-run"))
    partitions = json.loads(resumed.stdout)["plan"]["partitions"]
    assert [(each["from"], each["to"]) for each in partitions] == [(0, 0), (0, 0)]
