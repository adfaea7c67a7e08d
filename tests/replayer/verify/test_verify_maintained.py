"""Verifying archives that are maintained: what is pruned or erased is known, and everything else is as before."""

import asyncio
import hashlib
from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from blockgz.archive.archive import Archive
from blockgz.archive.damage import Verdict
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.kafka import LogBounds
from index_format import objects
from index_format.chunk_index import Erased, Gap
from index_format.marker import encode
from index_format.records import Record, batch_from_records
from replayer.cli.report import print_report
from replayer.kafka.topic_facts import TopicFacts
from replayer.verify.above_marker import list_above
from replayer.verify.comparison import compare_source
from replayer.verify.earlier import compare_with, parse_report
from replayer.verify.report import (
    ArchiveReport,
    Depth,
    EarlierFindings,
    PartitionFindings,
    StoredReport,
    verification_document,
)
from replayer.verify.verifying import verify_partition
from tests.support.archives import MemoryArchiveWriter, PartitionWriter, records
from tests.support.maintained import Maintainer
from tests.support.memory_reader import MemoryReader

HEAD = {"format": "blockgz-report", "version": 1, "created": "2026-11-22T00:00:00Z"}


@pytest.fixture
def archive() -> MemoryArchiveWriter:
    return MemoryArchiveWriter()


@pytest.fixture
def writer(archive: MemoryArchiveWriter) -> PartitionWriter:
    """Six chunks of ten records in three catalogs, and one in the tail."""
    writer = archive.partition("orders", 0)
    maintainer = Maintainer(writer)
    for start in range(0, 60, 20):
        writer.commit(records(range(start, start + 10)))
        writer.commit(records(range(start + 10, start + 20)))
        maintainer.fold()
    writer.commit(records(range(60, 70)))
    return writer


@pytest.fixture
def maintainer(writer: PartitionWriter) -> Maintainer:
    return Maintainer(writer)


def verified(archive: MemoryArchiveWriter, reader: MemoryReader | None = None) -> PartitionFindings:
    opened = Archive(reader or MemoryReader(archive.objects))
    return asyncio.run(verify_partition(opened, "orders", 0, Depth.RECORDS, lambda *_: None))


def report_of(archive: MemoryArchiveWriter) -> StoredReport:
    document = verification_document(ArchiveReport(partitions=[verified(archive)]), "somewhere", Depth.RECORDS)
    return parse_report(msgspec.json.encode({**HEAD, **document}), "report.json")


def since(archive: MemoryArchiveWriter, report: StoredReport) -> EarlierFindings:
    return asyncio.run(compare_with(Archive(MemoryReader(archive.objects)), None, report, ()))


def test_what_is_pruned_and_erased_is_told_and_no_fault(
    archive: MemoryArchiveWriter, maintainer: Maintainer, capsys: pytest.CaptureFixture[str]
) -> None:
    maintainer.prune(1)
    maintainer.rewrite([2], [21, *range(40, 60)])
    report = verified(archive)
    assert (report.verdict, report.records, report.pruned_before) == (Verdict.OK, 70 - 20 - 21, 20)
    assert report.erased == [(21, 22), (40, 60)]
    print_report(ArchiveReport(partitions=[report]))
    printed = capsys.readouterr().out
    assert "orders:0 pruned: nothing below offset 20 is kept" in printed
    assert "orders:0 erased: [21..22), [40..60)" in printed


def test_other_offsets_that_are_missing_are_damage_as_before(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    maintainer.rewrite([2], [21])
    archive.remove(maintainer.keys.chunks + maintainer.chunks[2].name)
    assert [(lost.start, lost.end) for lost in verified(archive).lost] == [(40, 60)]


def test_a_record_at_an_erased_offset_is_damage(archive: MemoryArchiveWriter, writer: PartitionWriter) -> None:
    writer.commit(records(range(70, 75)))
    index = replace(writer.indexes[-1], erased=(Erased(72, 74),))
    body = objects.encode(index)
    archive.put(writer.keys.chunks + writer.marker.tail[-1].name, body)
    entry = replace(writer.marker.tail[-1], sha256=hashlib.sha256(body).hexdigest())
    writer.marker = replace(writer.marker, tail=(*writer.marker.tail[:-1], entry))
    writer.store_marker()
    report = verified(archive)
    assert report.verdict is Verdict.FAILURE
    assert any("holds a record that was erased" in lost.reason for lost in report.lost)


def test_what_is_rewritten_while_it_is_verified_is_verified_again(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    class Rewriting(MemoryReader):
        """Rewrites everything when the first data object is read."""

        async def size(self, key: str) -> int:
            if key.endswith(".gz") and not maintainer.rewrites:
                maintainer.rewrite([2])
            return await super().size(key)

    report = verified(archive, Rewriting(archive.objects))
    assert (report.verdict, report.records, report.chunks) == (Verdict.OK, 70, 4)


def test_fewer_records_than_in_a_report_are_explained_by_pruning_and_erasing_alone(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    before = report_of(archive)
    maintainer.rewrite([2], [21, 22])
    assert since(archive, before).differences == []
    between = report_of(archive)
    maintainer.prune(1)
    maintainer.writer.commit(records(range(70, 80)))
    assert since(archive, before).differences == since(archive, between).differences == []

    # One that nothing explains: as if a maintainer had lost it.
    maintainer.rewrite([1], [30])
    _without_erased_ranges(archive, maintainer, 30)
    (difference,) = since(archive, between).differences
    assert difference.reason == (
        "it has 47 records there and had 68: at most 20 of them are explained by what was pruned or erased"
    )


def _without_erased_ranges(archive: MemoryArchiveWriter, maintainer: Maintainer, offset: int) -> None:
    """Takes an erased offset out of the index that tells of it."""
    lower = maintainer.marker.catalogs[0]
    for number, reference in enumerate(lower):
        catalog = maintainer._read(reference)
        entries = []
        for entry in catalog.entries:
            index = maintainer.index(entry)
            kept = tuple(each for each in index.erased or () if offset not in each)
            body = objects.encode(replace(index, erased=kept or msgspec.UNSET))
            archive.put(maintainer.keys.chunks + entry.name, body)
            entries.append(replace(entry, sha256=hashlib.sha256(body).hexdigest()))
        body = encode(replace(catalog, entries=tuple(entries)))
        archive.put(maintainer.keys.home + reference.name, body)
        lower = (*lower[:number], replace(reference, sha256=hashlib.sha256(body).hexdigest()), *lower[number + 1 :])
    maintainer._swap(maintainer.maintenance, lower)


def test_a_floor_never_falls_and_what_is_erased_never_rises(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    kept = dict(archive.objects)
    maintainer.deletes = False
    maintainer.rewrite([1], [21])
    erased = report_of(archive)
    maintainer.prune(1)
    pruned = report_of(archive)
    archive.objects.update(kept)
    (difference,) = since(archive, pruned).differences
    assert difference.reason == "it was pruned below 20, and its floor is 0"
    (difference,) = since(archive, erased).differences
    assert difference.reason == "what was erased at [21..22) is there again"


class FakeReader:
    def __init__(self, made: list[Record]) -> None:
        self._records = made

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        yield batch_from_records([record for record in self._records if start <= record.offset < end])


def compared(archive: MemoryArchiveWriter, topic: Iterable[int]) -> tuple[Verdict, int, int, list[Gap]]:
    async def compare() -> tuple[Verdict, int, int, list[Gap]]:
        partition = await Archive(MemoryReader(archive.objects)).open_partition("orders", 0)
        selection = Selection(partition, OffsetRange(partition.start_offset, partition.next_offset))
        reader = FakeReader(records(topic))
        facts = TopicFacts("orders", 1, "id-1", None)
        found = await compare_source(selection, facts, LogBounds(0, 70), reader, lambda *_: None)
        return found.verdict, found.missing, found.extra, found.excused

    return asyncio.run(compare())


def test_the_source_may_hold_what_was_pruned_or_erased(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    maintainer.prune(1)
    maintainer.rewrite([1], [25, *range(30, 40)])
    verdict, missing, extra, excused = compared(archive, range(70))
    assert (verdict, missing, extra) == (Verdict.WARNING, 0, 0)
    assert excused == [
        Gap(0, 20, "the archive keeps them no longer (pruned)"),
        Gap(25, 40, "the archive has erased some records since"),
    ]
    assert compared(archive, [each for each in range(70) if each != 50])[1] == 1


def test_a_catalog_without_a_chunk_above_the_marker_is_read(
    archive: MemoryArchiveWriter, maintainer: Maintainer
) -> None:
    """As after a marker was put back from before an erase of everything."""
    before = archive.objects[maintainer.keys.marker]
    maintainer.fold()
    maintainer.rewrite([1], range(70))
    archive.put(maintainer.keys.marker, before)
    opened = Archive(MemoryReader(archive.objects))

    async def listed() -> None:
        listing = await list_above(opened, [("orders", 0)])
        await verify_partition(opened, "orders", 0, Depth.STRUCTURE, lambda *_: None, listing=listing)

    asyncio.run(listed())


def test_a_report_names_them(archive: MemoryArchiveWriter, maintainer: Maintainer) -> None:
    maintainer.prune(1)
    maintainer.rewrite([1], [25])
    document = verification_document(ArchiveReport(partitions=[verified(archive)]), "somewhere", Depth.RECORDS)
    assert document["partitions"][0]["pruned_before"] == 20
    assert document["partitions"][0]["erased"] == [{"from": 25, "to": 26}]
