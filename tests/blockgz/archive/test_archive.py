import asyncio

import pytest

from blockgz.archive.archive import Archive
from blockgz.archive.lookup import Absent, FoundRecord, Outcome, hole, in_gap, look_up, not_yet
from blockgz.archive.selection import scan
from blockgz.errors import AccessDenied, NoArchiveThere, NotInArchive, ObjectMissing
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format.chunk_index import Gap
from index_format.errors import MalformedObject
from index_format.identity import TopicInfo
from index_format.keys import Conflict
from index_format.objects import encode
from index_format.records import Record, iter_records
from tests.support.archives import ArchiveWriter, records
from tests.support.opened import Opened


async def scanned(archive: Archive, topic: str, partition: int, start: int = 0, end: int = 2**63 - 1) -> list[Record]:
    opened = await archive.open_partition(topic, partition)
    return [record async for batch in scan(opened, start, end) for record in iter_records(batch)]


def lookup(opened: Opened, offset: int, topic: str = "orders") -> Outcome:
    async def use(archive: Archive) -> Outcome:
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

    async def plan(archive: Archive, topic: str, offset: int) -> int:
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

    async def gaps(archive: Archive) -> list[Gap]:
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
        with pytest.raises(NotInArchive):
            opened.read(lambda archive: archive.open_partition("orders~4", 0))

    def test_a_successor_must_be_a_newer_incarnation(self, opened: Opened, writer: ArchiveWriter) -> None:
        for name in ("payments", "orders~2", "../orders"):
            writer.partition("payments", 0).hand_over(name)
            with pytest.raises(MalformedObject):
                opened.read(lambda archive: archive.open_partition("payments", 0))

    def test_a_partition_that_went_with_the_old_incarnation(self, opened: Opened, writer: ArchiveWriter) -> None:
        writer.partition("payments", 0).hand_over("payments~2")
        with pytest.raises(NotInArchive, match="partition 0 of payments") as caught:
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
        with pytest.raises(NoArchiveThere, match="there is no archive at file:///"):
            opened.read(lambda archive: archive.open_partition("orders", 0))
        with pytest.raises(NoArchiveThere):
            opened.read(lambda archive: archive.topics())

    def test_an_archive_without_topics(self, opened: Opened, writer: ArchiveWriter) -> None:
        assert opened.read(lambda archive: archive.topics()) == ()
        with pytest.raises(NotInArchive, match="topic orders is not") as caught:
            opened.read(lambda archive: archive.open_partition("orders", 0))
        assert "no topics" in caught.value.why
        assert caught.value.remedy.startswith("archive the topic first")

    def test_no_such_topic_names_those_that_are_there(self, opened: Opened, writer: ArchiveWriter) -> None:
        writer.partition("orders", 0)
        writer.partition("payments", 0)
        with pytest.raises(NotInArchive) as caught:
            opened.read(lambda archive: archive.open_partition("order", 0))
        assert "orders, payments" in caught.value.why

    def test_no_such_partition_names_those_that_are_there(self, opened: Opened, writer: ArchiveWriter) -> None:
        writer.partition("orders", 0)
        writer.partition("orders", 4)
        with pytest.raises(NotInArchive) as caught:
            opened.read(lambda archive: archive.open_partition("orders", 1))
        assert "0, 4" in caught.value.why

    def test_a_partition_without_its_marker_is_damage(self, opened: Opened, writer: ArchiveWriter) -> None:
        partition = writer.partition("orders", 0)
        partition.commit(records(range(5)))
        (opened.root / partition.keys.marker).unlink()
        with pytest.raises(ObjectMissing):
            opened.read(lambda archive: archive.open_partition("orders", 0))

    def test_a_marker_in_the_wrong_place_is_refused(self, opened: Opened, writer: ArchiveWriter) -> None:
        one, other = writer.partition("orders", 0), writer.partition("orders", 1)
        (opened.root / one.keys.marker).replace(opened.root / other.keys.marker)
        with pytest.raises(MalformedObject, match="is not this partition's marker"):
            opened.read(lambda archive: archive.open_partition("orders", 1))

    def test_a_store_that_denies_what_is_missing(self, opened: Opened, writer: ArchiveWriter) -> None:
        """S3 answers 403 for a missing key where listing is not allowed: the other layout is tried all the same."""
        seed = ArchiveWriter(opened.root / "seed", layout="seed")
        seed.partition("orders", 0).commit(records(range(3)))

        class Denying(LocalReader):
            async def get(self, key: str, max_bytes: int) -> bytes:
                try:
                    return await super().get(key, max_bytes)
                except ObjectMissing:
                    raise AccessDenied(f"the store denies {key}") from None

        archive = Archive(Denying(LocalAddress(str(opened.root / "seed"))))
        assert asyncio.run(archive.open_partition("orders", 0)).marker.num_records == 3
        with pytest.raises(AccessDenied, match="denies topic=orders/partition=00007"):
            asyncio.run(Archive(Denying(LocalAddress(str(opened.root)))).open_partition("orders", 7))
