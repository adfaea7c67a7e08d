"""Comparing an archive with an earlier report of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from blockgz.archive.archive import Archive, parse_topic
from blockgz.archive.damage import Verdict
from blockgz.errors import UsageError
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader
from index_format import marker as marker_module
from index_format.chunk_index import Gap
from index_format.keys import Conflict
from index_format.marker import encode, inserted
from replayer.verify.earlier import compare_with, parse_report
from replayer.verify.report import ArchiveReport, Depth, EarlierFindings, StoredReport, verification_document
from replayer.verify.verifying import survey, verify_partition
from tests.support.archives import ArchiveWriter, PartitionWriter, records

HEAD = {"format": "blockgz-report", "version": 1, "created": "2026-11-22T00:00:00Z"}


@pytest.fixture(params=["topic", "seed"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> ArchiveWriter:
    return ArchiveWriter(tmp_path, request.param)


@pytest.fixture
def partition(writer: ArchiveWriter, monkeypatch: pytest.MonkeyPatch) -> PartitionWriter:
    """Five chunks, two catalogs, and a gap in front of the last chunk."""
    monkeypatch.setattr(marker_module, "FAN_OUT", 2)
    partition = writer.partition("orders", 0)
    for start in range(0, 40, 10):
        partition.commit(records(range(start, start + 10)))
    partition.lose(50)
    partition.commit(records(range(50, 60)), next_offset=62)
    return partition


def report_of(writer: ArchiveWriter, *topics: str) -> StoredReport:
    """A report of everything, or of these topics, as a file has it."""

    async def made() -> ArchiveReport:
        archive = Archive(LocalReader(LocalAddress(str(writer.root))))
        identity, places, report = await survey(archive, [(topic, None) for topic in topics])
        for topic, number in places:
            report.partitions.append(
                await verify_partition(archive, topic, number, Depth.STRUCTURE, lambda *_: None, identity=identity)
            )
        return report

    document = verification_document(asyncio.run(made()), "somewhere", Depth.STRUCTURE)
    return parse_report(msgspec.json.encode(HEAD | document), "report.json")


def compared(writer: ArchiveWriter, earlier: StoredReport, *topics: str) -> EarlierFindings:
    async def found() -> EarlierFindings:
        archive = Archive(LocalReader(LocalAddress(str(writer.root))))
        identity, _, _ = await survey(archive, [])
        return await compare_with(archive, identity.archive_id, earlier, [parse_topic(topic) for topic in topics])

    return asyncio.run(found())


def test_what_was_archived_since_makes_no_difference(writer: ArchiveWriter, partition: PartitionWriter) -> None:
    earlier = report_of(writer)
    assert compared(writer, earlier).verdict is Verdict.OK
    partition.advance(65)
    assert compared(writer, earlier).verdict is Verdict.OK
    partition.lose(70)
    partition.advance(75)
    behind_a_gap = report_of(writer)
    for start in range(80, 150, 10):
        partition.commit(records(range(start, start + 10)))
    for report in (earlier, behind_a_gap, report_of(writer)):
        found = compared(writer, report)
        assert (found.partitions, found.differences, found.warnings) == (1, [], [])


def test_an_archive_that_lost_its_newest_chunk_is_shorter_than_the_report(
    writer: ArchiveWriter, partition: PartitionWriter
) -> None:
    """Also where nothing above the marker is left that proves it."""
    before = partition.marker
    partition.commit(records(range(62, 70)))
    earlier = report_of(writer)
    writer.put(partition.keys.marker, encode(before))
    for path in writer.root.rglob("*"):
        if path.name.startswith(f"{62:020d}") or "000000000062." in path.name:
            path.unlink()
    (difference,) = compared(writer, earlier).differences
    assert (difference.topic, difference.partition, difference.start, difference.end) == ("orders", 0, 0, 70)
    assert difference.reason == "it ends at 62 and ended at 70"


def rewrite_newest(partition: PartitionWriter) -> None:
    """The newest chunk is another one, of the same offsets and counts."""
    entry = replace(partition.marker.tail[-1], sha256="0" * 64)
    partition.marker = replace(partition.marker, tail=(*partition.marker.tail[:-1], entry))


def drop_newest(partition: PartitionWriter) -> None:
    """The newest chunk is gone, a gap in its place."""
    tail, gaps = partition.marker.tail[:-1], (*partition.marker.gaps, Gap(50, 62, "retention"))
    name = tail[-1].name if tail else None
    partition.marker = replace(partition.marker, tail=tail, gaps=gaps, last_chunk_index=name)


def forget_gap(partition: PartitionWriter) -> None:
    """The chunk in front of the gap reaches over it."""
    partition.marker = replace(partition.marker, gaps=())


@pytest.mark.parametrize(
    ("change", "why"),
    [(rewrite_newest, "have changed"), (drop_newest, "4 chunks"), (forget_gap, "gap [40..50)")],
)
def test_what_was_changed_below_the_reported_end_is_a_difference(
    writer: ArchiveWriter, partition: PartitionWriter, change: Callable[[PartitionWriter], None], why: str
) -> None:
    earlier = report_of(writer)
    change(partition)
    partition.commit(records(range(62, 70)))
    (difference,) = compared(writer, earlier).differences
    assert why in difference.reason and (difference.start, difference.end) == (0, 62)


@pytest.mark.parametrize("place", [(40, 50), (40, 44), (43, 47), (46, 50)])
def test_a_chunk_that_salvage_put_into_a_gap_makes_no_difference(
    writer: ArchiveWriter, partition: PartitionWriter, place: tuple[int, int]
) -> None:
    earlier = report_of(writer)
    start, end = place
    entry = replace(
        partition.marker.tail[-1],
        **{"start_offset": start, "next_offset": end, "first_offset": start, "last_offset": start, "num_records": 1},
    )
    name = partition.marker.tail[-1].name.replace("50", str(start))
    longer, pending = inserted(partition.marker, replace(entry, name=name), (), nonce="inserted", tail_hash=None)
    for catalog in pending:
        writer.put(partition.keys.home + catalog.reference.name, catalog.body)
    writer.put(partition.keys.marker, encode(longer))
    assert compared(writer, earlier).differences == []


def test_a_partition_that_is_gone_is_a_difference(writer: ArchiveWriter, partition: PartitionWriter) -> None:
    writer.partition("orders", 1)
    writer.partition("bills", 0).commit(records(range(3)))
    earlier = report_of(writer)
    for number in (0, 1):
        (writer.root / partition.keys.home.replace("00000", f"{number:05d}") / "last_chunk_index.json").unlink()
    found = compared(writer, earlier)
    assert [(each.topic, each.partition) for each in found.differences] == [("orders", 0), ("orders", 1)]
    assert compared(writer, earlier, "bills").verdict is Verdict.OK
    assert [each.partition for each in compared(writer, earlier, "orders:1").differences] == [1]


def test_an_incarnation_is_compared_with_itself(writer: ArchiveWriter, partition: PartitionWriter) -> None:
    earlier = report_of(writer)
    partition.hand_over("orders~2")
    newer = writer.partition("orders", 0, incarnation=2)
    newer.commit(records(range(7)), conflict=Conflict(1, "0123abcd"))
    assert compared(writer, earlier).verdict is Verdict.OK
    later = report_of(writer)
    assert {(each.folder.incarnation, each.next_offset) for each in later.partitions} == {(1, 62), (2, 7)}
    newest = report_of(writer, "orders")
    newer.commit(records(range(7, 9)), conflict=Conflict(1, "4567abcd"))
    for report, count in ((later, 2), (newest, 1)):
        found = compared(writer, report)
        assert (found.partitions, found.differences) == (count, [])


def test_a_truncated_log_makes_no_difference(writer: ArchiveWriter, partition: PartitionWriter) -> None:
    earlier = report_of(writer)
    newer = partition.truncated(30)
    newer.commit(records(range(30, 35)), conflict=Conflict(2, "0123abcd"))
    both = report_of(writer)
    newer.commit(records(range(35, 40)), conflict=Conflict(2, "4567abcd"))
    for report in (earlier, both):
        assert compared(writer, report).differences == []


def test_a_report_without_digests_is_compared_by_counts(writer: ArchiveWriter, partition: PartitionWriter) -> None:
    report = report_of(writer)
    partitions = tuple(replace(each, chain=None, incarnation=None) for each in report.partitions)
    found = compared(writer, replace(report, partitions=partitions, archive_id=None))
    assert (found.verdict, found.differences) == (Verdict.WARNING, [])
    assert "orders:0" in found.warnings[0]
    drop_newest(partition)
    partition.store_marker()
    assert compared(writer, replace(report, partitions=partitions)).verdict is Verdict.FAILURE


def test_a_report_of_another_archive_is_refused(writer: ArchiveWriter, partition: PartitionWriter) -> None:
    report = replace(report_of(writer), archive_id="archive-2")
    with pytest.raises(UsageError, match="not of this archive"):
        compared(writer, report)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":"blockgz-report","version":1,"created":"","archive":"","against_topic":"t","partitions":[]}',
        b'{"format":"blockgz-report","version":2,"created":"","archive":"","depth":"blocks","partitions":[]}',
    ],
)
def test_other_files_are_refused(body: bytes) -> None:
    with pytest.raises(UsageError, match=r"r\.json is not a report to compare with"):
        parse_report(body, "r.json")
