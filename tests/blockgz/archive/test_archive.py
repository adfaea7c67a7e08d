"""Archives as they are opened: topics, inventory, offset files, old archives, tables of groups."""

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec import UNSET

from blockgz import errors
from blockgz.archive import old_archive
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.group_tables import WINDOW_MS, GroupTable, config_at, groups_at, vanished_groups
from blockgz.archive.inventory import Compared, MissingPartition, Wanted, compare, missing_partitions
from blockgz.archive.lookup import Absent, FoundRecord, Outcome, hole, in_gap, look_up, not_yet
from blockgz.archive.positions import AT_END, AtOffset, AtTime, BeforeEnd, Ends
from blockgz.archive.selection import parse_offset_file, scan
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from blockgz.store.reader import CountingReader
from index_format import groups, objects
from index_format.groups import GoneGroup, LogEnd, LogEnds
from index_format.keys import Conflict, TopicFolder, configs_home, dated_key, groups_home, inventory_key, topic_home
from index_format.objects import Gap, Incarnation, Inventory, TopicConfig, TopicInfo, encode
from index_format.records import Record, iter_records
from replayer.cli import main
from tests.index_format.builders import group, groups_of
from tests.support.ancestor_archives import (
    HARMLESS,
    OldChunk,
    OldWriter,
    Row,
    binary_keys,
    delimited,
    lines,
    member,
    rows_of,
    two_blocks,
    without_keys,
)
from tests.support.archives import ArchiveWriter, records
from tests.support.commands import succeeded
from tests.support.memory_reader import MemoryReader
from tests.support.opened import Opened


async def scanned(
    archive: ArchiveReader, topic: str, partition: int, start: int = 0, end: int = 2**63 - 1
) -> list[Record]:
    opened = await archive.open_partition(topic, partition)
    return [record async for batch in scan(opened, start, end) for record in iter_records(batch)]


def lookup(opened: Opened, offset: int, topic: str = "orders") -> Outcome:
    async def use(archive: ArchiveReader) -> Outcome:
        return await look_up(await archive.open_partition(topic, 0), offset)

    return opened.read(use)


@pytest.mark.parametrize(("chunks", "depth"), [(1, 0), (64, 0), (65, 1), (200, 1), (64 * 65 + 1, 2)])
def test_a_cold_look_up_takes_three_requests_and_one_for_each_catalog(
    opened: Opened, writer: ArchiveWriter, chunks: int, depth: int
) -> None:
    partition = writer.partition("orders", 0)
    if chunks > 1:
        partition.commit(records([0]))
    partition.pretend(range(1, chunks - 1))
    last = records(range(chunks - 1, chunks + 50))
    partition.commit(last, block_bytes=500)
    found = lookup(opened, 0)
    assert isinstance(found, FoundRecord)
    assert found.record == partition.records[0]
    assert opened.counts.requests == 3 + depth
    found = lookup(opened, chunks + 20)
    assert isinstance(found, FoundRecord)
    assert found.record == last[21]
    assert opened.counts.requests == 3
    assert opened.counts.data_bytes_fetched < found.chunk_bytes


@pytest.mark.slow
def test_planning_a_look_up_does_not_grow_with_the_archive(opened: Opened, writer: ArchiveWriter) -> None:
    """Twenty thousand chunks: marker and two catalogs, a few times the bytes that a hundred chunks take."""
    for topic, chunks in (("small", 100), ("large", 20_000)):
        writer.partition(topic, 0).pretend(range(chunks))

    async def plan(archive: ArchiveReader, topic: str, offset: int) -> int:
        entry = await (await archive.open_partition(topic, 0)).chunk_at_or_after(offset)
        assert entry is not None
        return entry.start_offset

    for offset in (0, 63, 64, 4095, 4096, 10_000, 19_871, 19_999):
        assert opened.read(lambda archive, at=offset: plan(archive, "large", at)) == offset
        requests, num_bytes = opened.counts.requests, opened.counts.bytes_fetched
        assert opened.read(lambda archive, at=offset: plan(archive, "small", at % 100)) == offset % 100
        assert requests <= 3
        assert num_bytes < 6 * opened.counts.bytes_fetched


def test_every_offset_has_its_outcome(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records([5, 6, 9, 10, 12, 13, 14, 20]), next_offset=25, block_bytes=120)
    partition.lose(40)
    partition.commit(records([40, 41, 45]), gaps=[Gap(42, 44, "skipped")], block_bytes=10)
    partition.commit(records([48, 49], value_bytes=500), next_offset=52)
    partition.advance(60)
    by_offset = {record.offset: record for record in partition.records}
    expected: dict[int, Outcome] = {
        **{offset: Absent("before first", "the archive begins at offset 5") for offset in range(5)},
        **{7: hole(6, 9), 8: hole(6, 9), 11: hole(10, 12)},
        **{offset: hole(14, 20) for offset in range(15, 20)},
        **{offset: hole(20, 40) for offset in range(21, 25)},
        **{offset: in_gap(Gap(25, 40, "retention")) for offset in range(25, 40)},
        **{offset: in_gap(Gap(42, 44, "skipped")) for offset in range(42, 44)},
        44: hole(41, 45),
        46: hole(45, 48),
        47: hole(45, 48),
        **{offset: hole(49, None) for offset in range(50, 60)},
        **{offset: not_yet(60) for offset in range(60, 70)},
    }
    for offset in range(70):
        outcome = lookup(opened, offset)
        if offset in by_offset:
            assert isinstance(outcome, FoundRecord)
            assert outcome.record == by_offset[offset]
        else:
            assert outcome == expected[offset], offset
            assert outcome.why


def test_a_claimed_partition_without_chunks_holds_nothing_yet(opened: Opened, writer: ArchiveWriter) -> None:
    writer.partition("orders", 0)
    assert lookup(opened, 0) == not_yet(0)
    assert opened.read(lambda archive: scanned(archive, "orders", 0)) == []


@pytest.mark.slow
def test_old_gaps_are_found_after_they_have_folded_into_catalogs(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    for number in range(330):
        partition.commit(records([2 * number]))
        partition.lose(2 * number + 2)
    assert len(partition.marker.gaps) < 330
    for offset in (1, 301, 659):
        assert lookup(opened, offset) == in_gap(Gap(offset, offset + 1, "retention"))

    async def gaps(archive: ArchiveReader) -> list[Gap]:
        return list(await (await archive.open_partition("orders", 0)).gaps())

    assert opened.read(gaps) == [Gap(offset, offset + 1, "retention") for offset in range(1, 660, 2)]


@pytest.mark.parametrize("chunk_sizes", [[100], [1] * 70, [30, 1, 69], [7] * 15])
def test_scan_gives_exactly_the_wanted_records(opened: Opened, writer: ArchiveWriter, chunk_sizes: list[int]) -> None:
    partition = writer.partition("orders", 0)
    offsets = iter(offset for offset in range(10_000) if offset % 4 != 1)
    for size in chunk_sizes:
        partition.commit(records([next(offsets) for _ in range(size)]))
    end = partition.records[-1].offset + 1
    for start, stop in [(0, end), (0, 0), (5, 6), (1, 2), (17, 60), (end - 1, end + 10), (end, end + 5), (3, 4)]:
        found = opened.read(lambda archive, start=start, stop=stop: scanned(archive, "orders", 0, start, stop))
        assert found == [record for record in partition.records if start <= record.offset < stop]


def test_scan_fetches_adjacent_blocks_together(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0)
    partition.commit(records(range(1000)), block_bytes=300)
    assert opened.read(lambda archive: scanned(archive, "orders", 0)) == partition.records
    assert opened.counts.requests == 3


def test_layout_seed_and_conflict_names(opened: Opened, writer: ArchiveWriter) -> None:
    seed = ArchiveWriter(opened.root / "seed", layout="seed")
    for archive_writer in (writer, seed):
        partition = archive_writer.partition("orders", 0)
        partition.commit(records(range(10)), conflict=Conflict(3, "0123abcd"))
        partition.commit(records(range(10, 20)))
    other = Opened(opened.root / "seed")
    for each in (opened, other):
        assert each.read(lambda archive: scanned(archive, "orders", 0)) == partition.records
        assert each.read(lambda archive: archive.topics()) == ("orders",)
        assert isinstance(lookup(each, 15), FoundRecord)
    assert other.counts.requests == 4


def test_text_records_come_back_with_their_offsets(opened: Opened, writer: ArchiveWriter) -> None:
    partition = writer.partition("orders", 0, record_format="text")
    partition.commit([Record(offset, 5, 0, None, b"line %d" % offset, ()) for offset in (0, 1, 2, 5, 6)])
    found = opened.read(lambda archive: scanned(archive, "orders", 0))
    assert [(record.offset, record.value) for record in found] == [(n, b"line %d" % n) for n in (0, 1, 2, 5, 6)]


class TestIncarnations:
    @pytest.fixture(autouse=True)
    def _three_incarnations(self, writer: ArchiveWriter) -> None:
        for incarnation in (1, 2, 3):
            for partition in range(incarnation):
                chunks = writer.partition("orders", partition, incarnation=incarnation)
                chunks.commit(records(range(incarnation)))
                if incarnation < 3:
                    chunks.hand_over(f"orders~{incarnation + 1}")

    def test_the_plain_name_means_the_newest(self, opened: Opened) -> None:
        for partition in range(3):
            assert len(opened.read(lambda archive, p=partition: scanned(archive, "orders", p))) == 3
        assert opened.read(lambda archive: archive.partitions("orders")) == (0, 1, 2)

    def test_a_number_names_an_older_one(self, opened: Opened) -> None:
        assert len(opened.read(lambda archive: scanned(archive, "orders~1", 0))) == 1
        assert len(opened.read(lambda archive: scanned(archive, "orders~2", 1))) == 2
        assert opened.read(lambda archive: archive.partitions("orders~2")) == (0, 1)
        assert opened.read(lambda archive: archive.all_incarnations()) == ("orders~1", "orders~2", "orders~3")
        with pytest.raises(errors.NotInArchive):
            opened.read(lambda archive: archive.open_partition("orders~4", 0))

    def test_a_successor_must_be_a_newer_incarnation(self, opened: Opened, writer: ArchiveWriter) -> None:
        for name in ("payments", "orders~2", "../orders"):
            writer.partition("payments", 0).hand_over(name)
            with pytest.raises(errors.MalformedObject):
                opened.read(lambda archive: archive.open_partition("payments", 0))

    def test_a_partition_that_went_with_the_old_incarnation(self, opened: Opened, writer: ArchiveWriter) -> None:
        writer.partition("payments", 0).hand_over("payments~2")
        with pytest.raises(errors.NotInArchive, match="partition 0 of payments") as caught:
            opened.read(lambda archive: archive.open_partition("payments", 0))
        assert "payments~1" in caught.value.remedy

    def test_what_means_a_topic_whose_successor_is_not_archived_yet(
        self, opened: Opened, writer: ArchiveWriter
    ) -> None:
        payments = writer.partition("payments", 0)
        payments.commit(records([0, 1]))
        assert opened.read(lambda archive: archive.whole_topic("payments~1")) == "payments"
        newer = TopicInfo(topic="payments", topic_id="another", incarnation=2)
        writer.put("topic=payments~2/_topic.json", encode(newer))
        payments.hand_over("payments~2")
        whole = opened.read(lambda archive: archive.whole_topic("payments~1"))
        assert len(opened.read(lambda archive: scanned(archive, whole, 0))) == 2


class TestAbsence:
    def test_no_archive_there(self, opened: Opened) -> None:
        with pytest.raises(errors.NoArchiveThere, match="there is no archive at file:///"):
            opened.read(lambda archive: archive.open_partition("orders", 0))
        with pytest.raises(errors.NoArchiveThere):
            opened.read(lambda archive: archive.topics())

    def test_an_archive_without_topics(self, opened: Opened, writer: ArchiveWriter) -> None:
        assert opened.read(lambda archive: archive.topics()) == ()
        with pytest.raises(errors.NotInArchive, match="topic orders is not") as caught:
            opened.read(lambda archive: archive.open_partition("orders", 0))
        assert "no topics" in caught.value.why
        assert caught.value.remedy.startswith("archive the topic first")

    def test_no_such_topic_names_those_that_are_there(self, opened: Opened, writer: ArchiveWriter) -> None:
        writer.partition("orders", 0)
        writer.partition("payments", 0)
        with pytest.raises(errors.NotInArchive) as caught:
            opened.read(lambda archive: archive.open_partition("order", 0))
        assert "orders, payments" in caught.value.why

    def test_no_such_partition_names_those_that_are_there(self, opened: Opened, writer: ArchiveWriter) -> None:
        writer.partition("orders", 0)
        writer.partition("orders", 4)
        with pytest.raises(errors.NotInArchive) as caught:
            opened.read(lambda archive: archive.open_partition("orders", 1))
        assert "0, 4" in caught.value.why

    def test_a_partition_without_its_marker_is_damage(self, opened: Opened, writer: ArchiveWriter) -> None:
        partition = writer.partition("orders", 0)
        partition.commit(records(range(5)))
        (opened.root / partition.keys.marker).unlink()
        with pytest.raises(errors.ObjectMissing):
            opened.read(lambda archive: archive.open_partition("orders", 0))

    def test_a_marker_in_the_wrong_place_is_refused(self, opened: Opened, writer: ArchiveWriter) -> None:
        one, other = writer.partition("orders", 0), writer.partition("orders", 1)
        (opened.root / one.keys.marker).replace(opened.root / other.keys.marker)
        with pytest.raises(errors.MalformedObject, match="is not this partition's marker"):
            opened.read(lambda archive: archive.open_partition("orders", 1))

    def test_a_store_that_denies_what_is_missing(self, opened: Opened, writer: ArchiveWriter) -> None:
        """S3 answers 403 for a missing key where listing is not allowed: the other layout is tried all the same."""
        seed = ArchiveWriter(opened.root / "seed", layout="seed")
        seed.partition("orders", 0).commit(records(range(3)))

        class Denying(LocalReader):
            async def get(self, key: str, max_bytes: int) -> bytes:
                try:
                    return await super().get(key, max_bytes)
                except errors.ObjectMissing:
                    raise errors.AccessDenied(f"the store denies {key}") from None

        archive = ArchiveReader(Denying(LocalAddress(str(opened.root / "seed"))))
        assert asyncio.run(archive.open_partition("orders", 0)).marker.num_records == 3
        with pytest.raises(errors.AccessDenied, match="denies topic=orders/partition=00007"):
            asyncio.run(ArchiveReader(Denying(LocalAddress(str(opened.root)))).open_partition("orders", 7))


INVENTORY = Inventory(
    incarnations=(
        Incarnation("orders", 1, "a", 10, 20, (0, 1)),
        Incarnation("orders", 2, "b", 20, None, (0, 1, 2)),
        Incarnation("orders", 3, "b", 30, None, (1,)),
        Incarnation("users", 1, None, 10, None, (5,)),
    )
)
HELD = {TopicFolder("orders"): (0,), TopicFolder("orders", 2): (1, 2), TopicFolder("orders", 3): (1,)}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([], ["orders:1", "orders~2:0", "users:5"]),
        ([("orders", None)], ["orders~2:0"]),
        ([("orders", [1, 2])], []),
        ([("orders~1", None)], ["orders:1"]),
        ([("orders~1", [0])], []),
        ([("users", None), ("orders", [0])], ["orders~2:0", "users:5"]),
        ([("nothing", None)], []),
    ],
)
def test_what_is_wanted_and_not_held_is_named(wanted: Sequence[Wanted], expected: list[str]) -> None:
    assert [str(each) for each in missing_partitions(INVENTORY, HELD, wanted)] == expected


def test_a_newest_incarnation_that_is_lost_as_a_whole_is_noticed() -> None:
    held = {TopicFolder("orders"): (0, 1)}
    missing = missing_partitions(INVENTORY, held, [("orders", None)])
    assert [str(each) for each in missing] == ["orders~2:0", "orders~2:1", "orders~2:2", "orders~3:1"]


def _compared(root: Path, *wanted: Wanted) -> Compared:
    return asyncio.run(compare(ArchiveReader(LocalReader(LocalAddress(str(root)))), wanted))


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_a_lost_folder_is_noticed(tmp_path: Path, layout: str) -> None:
    archive = ArchiveWriter(tmp_path, layout)
    for number in range(3):
        archive.partition("orders", number).commit(records(range(5)))
    assert (_compared(tmp_path)).missing == ()
    home = topic_home(layout, TopicFolder("orders"))
    shutil.rmtree(tmp_path / home / "partition=00001")
    for marker in tmp_path.glob("last_chunk_index.orders-00001.txt"):
        marker.unlink()
    assert (_compared(tmp_path)).missing == (MissingPartition("orders", 1, 1),)
    shutil.rmtree(tmp_path / home)
    for marker in tmp_path.glob("last_chunk_index.orders-*"):
        marker.unlink()
    found = _compared(tmp_path, ("orders", None))
    assert [str(each) for each in found.missing] == ["orders:0", "orders:1", "orders:2"]


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_an_inventory_that_is_declared_is_missed_or_read_as_damaged(tmp_path: Path, layout: str) -> None:
    ArchiveWriter(tmp_path, layout).partition("orders", 0)
    path = tmp_path / inventory_key(layout)
    path.write_bytes(path.read_bytes().replace(b"orders", b"ordera"))
    found = _compared(tmp_path)
    assert found.damage is not None and found.inventory is None
    path.unlink()
    found = _compared(tmp_path)
    assert found.damage is not None and "missing" in found.damage.reason


def test_an_older_archive_has_none_and_lacks_none(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path, has_inventory=False).partition("orders", 0)
    assert _compared(tmp_path) == Compared(None, is_expected=True)


def test_a_rebuilt_one_says_so(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0)
    (tmp_path / "_inventory.json").write_bytes(objects.encode(Inventory(rebuilt_at=5)))
    found = _compared(tmp_path)
    assert found.inventory is not None and found.inventory.rebuilt_at == 5


EXPORTED = b"orders,0,17\norders,1,0\nother,0,5\n"
"""As `kafka-consumer-groups --reset-offsets --export` prints it."""


def of_orders(body: bytes) -> dict[int, Ends]:
    return dict(parse_offset_file(body, "orders", now=1_000_000))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (EXPORTED, {0: (AtOffset(17), None), 1: (AtOffset(0), None)}),
        (b'\xef\xbb\xbf"group-a","orders",0,17\r\n\r\n', {0: (AtOffset(17), None)}),
        (b"orders, 0 ,-5\n", {0: (BeforeEnd(5), None)}),
        (b"orders,0,@1760000000\n", {0: (AtTime(1760000000000), None)}),
        (b"Topic,partition\n", None),
        (b"topic,partition,to\norders,3,latest\n", {3: (None, AT_END)}),
        (b"Topic,Partition,To\norders,3,7\n", {3: (None, AtOffset(7))}),
        (b"partition,topic,from,to\n0,orders,17,\n1,orders,,5\n", {0: (AtOffset(17), None), 1: (None, AtOffset(5))}),
        (
            b'{"version":1,"partitions":[{"topic":"orders","partition":1,"offset":9},{"topic":"x","partition":1}]}',
            {1: (AtOffset(9), None)},
        ),
        (b'[{"topic":"orders","partition":0,"from":"-1h","to":7}]', {0: (AtTime(-2_600_000), AtOffset(7))}),
        (b"", None),
        (b"other,0,5\n", None),
        (b"orders,0\n", None),
        (b"orders,x,5\n", None),
        (b"orders,0,yesterday\n", None),
        (b"orders,0,5\norders,0,6\n", None),
        (b"topic,partition,from\norders,0\n", None),
        (b'{"partitions":[{"topic":"orders","partition":0,"form":1}]}', None),
        (b'{"partitions":', None),
        (b"\xff,0,1\n", None),
    ],
)
def test_forms(body: bytes, expected: dict[int, Ends] | None) -> None:
    if expected is None:
        with pytest.raises(errors.UsageError):
            of_orders(body)
    else:
        assert of_orders(body) == expected


@pytest.fixture
def old(tmp_path: Path) -> OldWriter:
    return OldWriter(tmp_path)


def replayer(old: OldWriter, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-a", str(old.root)], prog_name="replayer")


def rows(old: OldWriter, *options: str) -> dict[int, Row]:
    done = succeeded(replayer(old, "cat", old.topic, "--json", *options))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return {
        line["offset"]: tuple(None if line[name] is None else line[name].encode() for name in ("key", "value"))  # type: ignore[misc]
        for line in found
    }


def verified(old: OldWriter, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(replayer(old, "verify", "--records", "--json", *options).stdout)
    return found


@pytest.mark.parametrize("chunk", HARMLESS.values(), ids=HARMLESS.keys())
def test_quirks_that_lose_nothing(old: OldWriter, chunk: OldChunk) -> None:
    old.write(chunk)
    assert rows(old) == without_keys(old.rows)
    report = verified(old)
    assert (report["verdict"], report["partitions"][0]["records"]) == ("OK", len(old.rows))


@pytest.mark.parametrize(
    ("encode", "options"),
    [
        (delimited(b"|"), ["--old-format", "delimited", "--key-delimiter", "|"]),
        (binary_keys, ["--old-format", "binary-keys"]),
    ],
    ids=["delimited", "binary"],
)
def test_keys(old: OldWriter, encode: Callable[[Sequence[Row]], bytes], options: list[str]) -> None:
    old.encode = encode
    old.write(two_blocks())
    assert rows(old, *options) == old.rows


def test_look_up_list_describe(old: OldWriter) -> None:
    for start in (0, 100, 300):
        old.write(two_blocks(start))
    old.mark("pfx/2016-02-24/bar-00000-000000000300.index.json")
    done = replayer(old, "get", "bar:0:142", "--json")
    assert json.loads(done.stdout)["offset"] == 142
    assert "old archive: its writer counted the offsets" in done.stderr
    assert replayer(old, "get", "bar:0:250").exit_code == 4
    assert replayer(old, "get", "bar:0:400").exit_code == 4
    assert replayer(old, "get", "bar:1:0").exit_code == 4
    assert replayer(old, "get", "orders:0:0").exit_code == 4
    (topic,) = json.loads(replayer(old, "ls", "--json").stdout)["topics"]
    assert (topic["topic"], topic["records"], topic["chunks"]) == ("bar", 300, 3)
    assert (topic["min_timestamp_ms"], topic["max_timestamp_ms"]) == (None, None)
    (partition,) = json.loads(replayer(old, "describe", "bar", "--json").stdout)["partitions"]
    assert partition["gaps"] == [{"from": 200, "to": 300, "reason": "unverified"}]
    assert set(rows(old, "--from", "150", "--to", "310")) == {*range(150, 200), *range(300, 310)}


def test_twins_and_overlaps_count_once(old: OldWriter) -> None:
    old.write(two_blocks())
    old.write(two_blocks(date="2016-02-25"))
    old.write(OldChunk(30, [rows_of(30, 60), rows_of(60, 170)]))
    assert rows(old) == without_keys(old.rows)
    verified_topic = replayer(old, "verify", "bar:0")
    assert verified_topic.exit_code == 0 and "overlap" in verified_topic.stderr


def test_damage_names_the_offsets(old: OldWriter) -> None:
    def flip(data: bytearray) -> None:
        data[len(member(lines(rows_of(0, 50)))) + 30] ^= 0xFF

    old.write(OldChunk(0, [rows_of(0, 50), rows_of(50, 60), (b"a\nb\nc\n", 2), rows_of(62, 99)], damage=flip))
    report = verified(old)
    (partition,) = report["partitions"]
    assert report["verdict"] == "FAILURE" and partition["records"] == 87
    assert [(lost["from"], lost["to"]) for lost in partition["lost"]] == [(50, 60)]
    assert partition["gaps"] == [{"from": 60, "to": 62, "reason": "unverified"}]
    assert replayer(old, "get", "bar:0:55").exit_code == 3
    assert "unverified" in replayer(old, "get", "bar:0:61").stderr
    assert replayer(old, "get", "bar:0:62").exit_code == 0


def cut(data: bytearray) -> None:
    del data[-9:]


def wipe(data: bytearray) -> None:
    data[:] = bytes(len(data))


@pytest.mark.parametrize(
    ("damage", "kept", "reason"), [(cut, 50, "damaged at bytes"), (wipe, 0, "it holds no gzip member")]
)
def test_damage_without_an_index_is_a_failure_though_no_offsets_can_be_named(
    old: OldWriter, damage: Callable[[bytearray], None], kept: int, reason: str
) -> None:
    old.write(OldChunk(0, [rows_of(0, 50), rows_of(50, 99)], has_index=False, damage=damage))
    old.write(OldChunk(200, [rows_of(200, 210)]))
    report = verified(old)
    (partition,) = report["partitions"]
    assert (report["verdict"], partition["records"]) == ("FAILURE", kept + 10)
    (found,) = partition["damage"]
    assert reason in found["reason"]


def test_a_wrong_old_format_is_reported(old: OldWriter) -> None:
    old.write(two_blocks())
    done = replayer(old, "cat", "bar", "--old-format", "binary")
    assert done.exit_code == 3 and "try another --old-format" in done.stderr


@pytest.mark.parametrize(
    ("encode", "options", "hint"),
    [
        (
            delimited(b"\t"),
            [],
            "every line holds '\\t': if it separates key and value, read with --old-format delimited",
        ),
        (lines, ["--old-format", "delimited"], "no line holds '\\t': without keys"),
        (lines, [], None),
        (delimited(b"|"), ["--old-format", "delimited", "--key-delimiter", "|"], None),
    ],
    ids=["keys as lines", "lines as keys", "lines", "keys"],
)
def test_lines_that_fit_another_format_better_are_reported(
    old: OldWriter, encode: Callable[[Sequence[Row]], bytes], options: list[str], hint: str | None
) -> None:
    old.encode = encode
    old.write(two_blocks())
    done = succeeded(replayer(old, "cat", old.topic, *options))
    assert (" line holds " in done.stderr) == (hint is not None)
    assert hint is None or hint in done.stderr


def test_chunks_that_were_forgotten_are_read_again(old: OldWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_archive, "REMEMBERED_BYTES", 1)
    for start in range(0, 1000, 100):
        old.write(two_blocks(start))
    assert rows(old) == without_keys(old.rows)


def test_other_folders_are_not_archives(tmp_path: Path) -> None:
    (tmp_path / "2016-02-24").mkdir()
    (tmp_path / "2016-02-24/report.gz").touch()
    assert CliRunner().invoke(main, ["ls", "-a", str(tmp_path)]).exit_code == 10


FOLDER = TopicFolder("orders", 2)
HOUR = 3_600_000
SLOTS = [HOUR, 2 * HOUR, 100 * HOUR, 100 * HOUR + 60_000]


class Stored:
    """An archive's objects, and what was asked for by the last read."""

    def __init__(self, layout: str = "topic") -> None:
        self.layout = layout
        self.objects: dict[str, bytes] = {}
        self.requests = 0

    def put_table(self, slot: int, **changes: object) -> None:
        table = groups_of(group("billing", 0, asked_at=slot, offset=slot), **changes)
        self.objects[dated_key(groups_home(self.layout, FOLDER), slot)] = groups.encode(table)

    def put_ends(self, slot: int, groups_slot: int | None) -> None:
        """A table without groups, which names that one."""
        ends = LogEnds(slot, slot, (LogEnd(0, slot),))
        table = groups_of(groups_asked=False, groups_slot=UNSET if groups_slot is None else groups_slot, ends=ends)
        self.objects[dated_key(groups_home(self.layout, FOLDER), slot)] = groups.encode(table)

    def vanished(self, at_ms: int) -> list[str]:
        table = self.groups_at(at_ms)
        assert table is not None
        return asyncio.run(vanished_groups(MemoryReader(self.objects), self.layout, FOLDER, table))

    def put_config(self, seen_at: int | None, partitions: int) -> None:
        config = TopicConfig(
            topic="orders", topic_id=None, partitions=partitions, replication_factor=1, config={}, defaults={}
        )
        key = topic_home(self.layout, FOLDER) + "_topic_config.json"
        if seen_at is not None:
            config = TopicConfig(
                **{name: getattr(config, name) for name in config.__struct_fields__ if name != "seen_at"},
                seen_at=seen_at,
            )
            key = dated_key(configs_home(self.layout, FOLDER), seen_at)
        self.objects[key] = objects.encode(config)

    def groups_at(self, at_ms: int | None) -> GroupTable | None:
        reader = CountingReader(MemoryReader(self.objects))
        try:
            return asyncio.run(groups_at(reader, self.layout, FOLDER, at_ms))
        finally:
            self.requests = reader.requests

    def partitions_at(self, at_ms: int | None) -> int | None:
        found = asyncio.run(config_at(MemoryReader(self.objects), self.layout, FOLDER, at_ms))
        return None if found is None else found.partitions


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_the_newest_table_that_is_not_later(layout: str) -> None:
    stored = Stored(layout)
    for slot in SLOTS:
        stored.put_table(slot)
    for at_ms, slot in [
        (HOUR, HOUR),
        (HOUR + 5, HOUR),
        (2 * HOUR - 1, HOUR),
        (2 * HOUR, 2 * HOUR),
        (99 * HOUR, 2 * HOUR),
        (100 * HOUR + 59_999, 100 * HOUR),
        (1000 * HOUR, SLOTS[-1]),
    ]:
        found = stored.groups_at(at_ms)
        assert found is not None
        assert (found.slot, found.age_ms) == (slot, at_ms - slot)
        assert found.content.groups[0].positions[0].offset == slot
        assert stored.requests == (2 if at_ms - slot < WINDOW_MS else 3)
    assert stored.groups_at(HOUR - 1) is None
    newest = stored.groups_at(None)
    assert newest is not None
    assert newest.slot == SLOTS[-1]
    assert newest.age_ms > WINDOW_MS


def test_a_topic_without_tables() -> None:
    assert Stored().groups_at(HOUR) is None
    assert Stored().groups_at(None) is None


def test_other_names_are_passed_over() -> None:
    stored = Stored()
    stored.put_table(HOUR)
    home = groups_home("topic", FOLDER)
    stored.objects |= {home + name: b"" for name in ("0.json", "00000000000000000001.json~", "notes")}
    found = stored.groups_at(2 * HOUR)
    assert found is not None
    assert found.slot == HOUR


def test_no_older_table_takes_the_place_of_one_that_cannot_be_read() -> None:
    stored = Stored()
    stored.put_table(HOUR)
    stored.put_table(2 * HOUR)
    key = dated_key(groups_home("topic", FOLDER), 2 * HOUR)
    stored.objects[key] = stored.objects[key][:-9]
    with pytest.raises(errors.MalformedObject, match=key):
        stored.groups_at(3 * HOUR)
    stored.put_table(2 * HOUR, version=2)
    with pytest.raises(errors.UnsupportedVersion, match=f"{key} has version 2"):
        stored.groups_at(3 * HOUR)
    stored.put_table(2 * HOUR, topic="bills")
    with pytest.raises(errors.FormatError, match=f"{key} is of another topic"):
        stored.groups_at(3 * HOUR)


def test_tables_without_groups_are_skipped() -> None:
    stored = Stored()
    stored.put_table(HOUR)
    stored.put_table(2 * HOUR)
    for hour in range(3, 1000):
        stored.put_ends(hour * HOUR, 2 * HOUR)
    for hour, slot, requests in ((2, 2, 2), (3, 2, 4), (999, 2, 4)):
        found = stored.groups_at(hour * HOUR)
        assert found is not None
        assert (found.slot, found.age_ms) == (slot * HOUR, (hour - slot) * HOUR)
        assert stored.requests == requests, "it is named, and not looked for"
    del stored.objects[dated_key(groups_home("topic", FOLDER), 2 * HOUR)]
    found = stored.groups_at(50 * HOUR)
    assert found is not None
    assert found.slot == HOUR, "the one that is named was removed"


def test_a_topic_without_any_table_with_groups() -> None:
    stored = Stored()
    for hour in range(1, 100):
        stored.put_ends(hour * HOUR, None)
    assert stored.groups_at(99 * HOUR) is None
    assert stored.requests == 2


def test_groups_that_vanished_without_leaving() -> None:
    stored = Stored()
    three = [group(name, 0, asked_at=5) for name in ("a", "b", "c")]
    for slot, content in (
        (HOUR, groups_of(*three)),
        (2 * HOUR, groups_of(three[0], gone=(GoneGroup("b", 5),))),
        (3 * HOUR, groups_of(three[0])),
        (4 * HOUR, groups_of(groups_asked=False, groups_slot=3 * HOUR)),
        (5 * HOUR, groups_of()),
        (54 * HOUR, groups_of()),
        (55 * HOUR, groups_of(*three)),
    ):
        stored.objects[dated_key(groups_home("topic", FOLDER), slot)] = groups.encode(content)
    vanished = [stored.vanished(hour * HOUR) for hour in (1, 2, 3, 5, 54, 55)]
    assert vanished == [[], ["c"], [], ["a"], [], []]
    stored.objects[dated_key(groups_home("topic", FOLDER), HOUR)] = b"damaged"
    assert stored.vanished(2 * HOUR) == [], "there is nothing to compare with"


def test_the_configuration_at_a_time() -> None:
    stored = Stored()
    assert stored.partitions_at(HOUR) is None
    stored.put_config(None, 8)
    assert stored.partitions_at(HOUR) == 8
    stored.put_config(HOUR, 4)
    stored.put_config(2 * HOUR, 6)
    times = [(HOUR - 1, 8), (HOUR, 4), (2 * HOUR - 1, 4), (2 * HOUR, 6), (1000 * HOUR, 6), (None, 8)]
    assert [(at_ms, stored.partitions_at(at_ms)) for at_ms, _ in times] == times
