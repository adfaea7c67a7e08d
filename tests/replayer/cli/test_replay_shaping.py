"""`replayer replay` with records changed and spread on their way, as a user runs it."""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from click.testing import CliRunner, Result

from index_format.records import Record, iter_records
from replayer.cli import main
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.replay.pipeline import murmur2
from replayer.replay.request import ReplayRequest
from replayer.transforms.chain import PREDICATES, SIDED, WHOLE
from tests.support.archives import ArchiveWriter, records
from tests.support.mock_cluster import PARTITIONS, MockCluster

DOCS = Path(__file__).parents[3] / "docs"

names = map("shaped-{}".format, itertools.count())


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


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
def target(root: Path, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Target:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Target(root, cluster)


def sent(rows: list[Record], **changes: Any) -> list[Record]:
    return [row._replace(offset=0, **changes) for row in rows]


def test_by_key(target: Target) -> None:
    result = target.replay("orders", "--partitions", "by-key", "--json")
    assert result.exit_code == 0, result.stderr
    found = target.records()
    for partition, rows in found.items():
        for row in rows:
            assert row.key is None or (murmur2(row.key) & 0x7FFFFFFF) % PARTITIONS == partition
    assert sum(map(len, found.values())) == 36
    told = json.loads(result.stdout)
    assert sum(lane["records"] for lane in told["partitions"]) == 36
    assert {lane["target_partition"] for lane in told["partitions"]} == set(range(PARTITIONS))
    assert "murmur2 modulo 4" in told["plan"]["notes"][0]


@pytest.mark.parametrize(
    ("partitions", "places"),
    [("2", {0: (0, 6), 1: (1,)}), ("0-1:3,6:0", {3: (0, 1), 0: (6,)})],
)
def test_whole_partitions(target: Target, partitions: str, places: dict[int, tuple[int, ...]]) -> None:
    result = target.replay("orders", "--partitions", partitions)
    assert result.exit_code == 0, result.stderr
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
    result = target.replay("orders:1", "--transforms", str(transforms))
    assert result.exit_code == 1
    assert "partition 1, offset 0" in result.stderr
    assert "transform m (MaskField)" in result.stderr
    assert "Traceback" not in result.stderr


MISSPELT = "transforms=m\ntransforms.m.type=MaskField$Value\ntransforms.m.fields=secert\n"


def test_a_mask_that_changes_nothing_stops_before_anything_is_written(target: Target, tmp_path: Path) -> None:
    transforms = tmp_path / "t.properties"
    transforms.write_text(MISSPELT)
    asked = ("orders:1", "--transforms", str(transforms), "--on-transform-error", "skip", "--job", "masked")
    for more in ((), ("--dry-run",)):
        result = target.replay(*asked, *more)
        assert result.exit_code == 2
        assert "transform m changes none of the first 12 records" in result.stderr
        assert "MaskField names field secert, which none of them has; their values have: partition, secret" in (
            result.stderr
        )
        assert "--allow-unchanged" in result.stderr
    assert not target.records()
    result = target.replay(*asked, "--allow-unchanged")
    assert result.exit_code == 3
    assert "0 records were changed by transform m" in result.stdout
    assert target.records()
    again = target.replay(*asked, "--resume")
    assert again.exit_code == 0, "a job that has begun is not asked again"


def test_a_name_made_of_the_topics(target: Target, cluster: MockCluster) -> None:
    cluster.create_topic("orders-copy")
    result = target.replay("orders:0", "--to-topic", "{topic}-copy")
    assert result.exit_code == 0, result.stderr
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
    result = target.replay("orders:0", "--transforms", str(transforms))
    assert result.exit_code == 0, result.stderr
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
    result = target.replay(*args)
    assert result.exit_code == 2
    assert re.search(expected, result.stderr), result.stderr
    assert "do:" in result.stderr
    assert target.records() == {}


@pytest.mark.slow
def test_a_topic_with_records_wants_append(target: Target) -> None:
    assert target.replay("orders:0").exit_code == 0
    again = target.replay("orders:0")
    assert again.exit_code == 2
    assert "is not empty" in again.stderr
    assert len(target.records()[0]) == 12
    appended = target.replay("orders:0", "--append")
    assert appended.exit_code == 0, appended.stderr
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
