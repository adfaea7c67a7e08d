"""An earlier report as a witness: the chunks that it saw must be the beginning of the archive's chunks now."""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.archive.blocks import read_block
from blockgz.archive.partition import END, ArchivedPartition, Damaged
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import erased_ranges, joined_ranges
from blockgz.errors import NotInArchive, UsageError
from index_format.marker import ChunkEntry
from index_format.objects import LOST, Erased, Gap
from replayer.verify.chunk_checks import EVERY_CHUNK, ChunkChain
from replayer.verify.report import FORMAT, EarlierDifference, EarlierFindings, StoredPartition, StoredReport


def parse_report(body: bytes, name: str) -> StoredReport:
    """Return the report in a file's bytes; raise UsageError for any other file."""
    try:
        report = msgspec.json.decode(body, type=StoredReport)
        if (report.format, report.version) != (FORMAT, 1) or report.depth == "comparison":
            raise ValueError("it is not the report of a verification")
        for partition in report.partitions:
            _ = partition.folder
    except ValueError as error:  # msgspec's errors and BadName among them
        raise UsageError(
            f"{name} is not a report to compare with",
            why=str(error).splitlines()[0],
            remedy="use a .json report of `replayer verify` without --against-topic",
        ) from error
    return report


def selected(report: StoredReport, topics: Sequence[TopicPartitions]) -> list[StoredPartition]:
    """Return its partitions of these topics, all if none is named; `orders` means every incarnation."""

    def is_named(each: StoredPartition) -> bool:
        return any(
            wanted.topic in (each.folder.topic, f"{each.folder.topic}~{each.folder.incarnation}")
            and (wanted.partitions is None or each.partition in wanted.partitions)
            for wanted in topics
        )

    return [each for each in report.partitions if not topics or is_named(each)]


async def compare_with(
    archive: ArchiveReader, archive_id: str | None, report: StoredReport, topics: Sequence[TopicPartitions]
) -> EarlierFindings:
    """Compare what an earlier report found of these topics, or of all if none is named, with what is there now.

    It reads markers and catalogs. Raise UsageError for a report of another archive.
    """
    if None not in (archive_id, report.archive_id) and archive_id != report.archive_id:
        raise UsageError(
            f"the report of {report.created} is not of this archive",
            why=f"it is of archive {report.archive_id} at {report.archive}, this one is {archive_id}",
            remedy="check -a; if it is right, the archive verified then is no longer there",
        )
    found = EarlierFindings(report.created, report.own_verdict)
    for each in selected(report, topics):
        found.partitions += 1
        name = f"{each.topic}:{each.partition}"
        if each.chain is None and each.next_offset is not None:
            found.warnings.append(f"{name}: the report has no digest of its chunks, so only their number was compared")
        try:
            now = await archive.open_partition(f"{each.folder.topic}~{each.folder.incarnation}", each.partition)
            reason = await _difference(now, each, is_old=archive.other is not None)
        except (*Damaged, NotInArchive) as error:
            reason = f"it can no longer be read: {error.what}" + (f" ({error.why})" if error.why else "")
        if reason is not None:
            found.differences.append(EarlierDifference(each.topic, each.partition, *_span(each), reason))
    return found


def _span(each: StoredPartition) -> tuple[int, int]:
    return each.first_offset or 0, each.next_offset or 0


async def _difference(now: ArchivedPartition, then: StoredPartition, *, is_old: bool) -> str | None:
    """Return why the earlier state is not the beginning of the partition; None if it is."""
    # A chunk may have filled an earlier gap since. If the chunks were rewritten since, the records are counted: only
    # pruning and erasing explain a smaller count. Raise as `entries`.
    if then.next_offset is None:
        return None
    if now.next_offset < then.next_offset:
        return f"it ends at {now.next_offset} and ended at {then.next_offset}"
    if now.floor < (then.pruned_before or 0):
        return f"it was pruned below {then.pruned_before}, and its floor is {now.floor}"
    chain, filled = ChunkChain(EVERY_CHUNK), list[tuple[int, int]]()
    async for entry in now.entries(0, then.next_offset):
        if _is_inside(entry, then.gaps):
            filled.append((entry.start_offset, entry.next_offset))
        elif entry.first_offset < then.next_offset:
            chain.add(entry)
    reason = _chain_difference(chain, then)
    if now.is_maintained and (reason is not None or then.erased):
        reason = await _unexplained(now, then)
    if reason is not None:
        return reason
    recorded = sorted([(0, now.floor), *filled, *((gap.start, gap.end) for gap in await now.gaps())])
    for gap in () if is_old else then.gaps:
        if not _covers(recorded, gap):
            return f"its gap [{gap.start}..{gap.end}) is no longer recorded, and no chunks are there instead"
    return None


def _chain_difference(chain: ChunkChain, then: StoredPartition) -> str | None:
    if (chain.chunks, chain.first_offset) != (then.chunks, then.first_offset):
        was = f"{then.chunks} chunks from {then.first_offset} on"
        return f"it has {chain.chunks} chunks from {chain.first_offset} on there and had {was}"
    return "its chunks have changed" if then.chain not in (None, chain.digest.sha256) else None


async def _unexplained(now: ArchivedPartition, then: StoredPartition) -> str | None:
    """Return what pruning, erasing and accepted losses do not explain of a rewritten partition; None if nothing."""
    # Reads all indexes.
    start, end = _span(then)
    accepted = [(max(gap.start, start), min(gap.end, end)) for gap in await now.gaps() if gap.reason == LOST]
    erased = joined_ranges([*await erased_ranges(now, start, end), *(each for each in accepted if each[0] < each[1])])
    gone = [OffsetRange(0, now.floor), *erased]
    for each in then.erased:
        if not _covers(sorted(gone), each):
            return f"what was erased at [{each.start}..{each.end}) is there again"
    if then.records is None:
        return "its chunks were rewritten, and the report does not say how many records it had"
    before = sum(each.end - each.start for each in then.erased)
    pruned = max(0, min(now.floor, end) - max(start, then.pruned_before or 0))
    explained = pruned + sum(each.end - each.start for each in erased) - before
    records = await _records_below(now, end)
    missing = then.records - records
    if missing > max(explained, 0):
        why = f"{max(explained, 0)} of them are explained by what was pruned, erased or lost"
        return f"it has {records} records there and had {then.records}: at most {why}"
    return None


async def _records_below(partition: ArchivedPartition, end: int) -> int:
    """Return the number of records below an offset; a chunk that contains it is read."""
    records = 0
    async for entry in partition.entries(0, end):
        if entry.last_offset < end:
            records += entry.num_records
            continue
        chunk = await partition.chunk(entry)
        for number, block in enumerate(chunk.index.blocks):
            if block.last_record_offset < end:
                records += block.num_records
            elif block.first_record_offset < end:
                batch = await read_block(partition, chunk, number)
                records += int(np.searchsorted(batch.column("offset").to_numpy(), end))
    return records


def _is_inside(entry: ChunkEntry, gaps: Sequence[Gap]) -> bool:
    behind = bisect_right(gaps, entry.start_offset, key=lambda gap: gap.start)
    return behind > 0 and entry.last_offset < gaps[behind - 1].end


def _covers(runs: Sequence[tuple[int, int]], gap: Gap | Erased) -> bool:
    """Return whether runs of offsets, sorted and apart, hold all of the gap."""
    position = gap.start
    for start, end in runs[max(0, bisect_right(runs, (position, END)) - 1) :]:
        if start > position or position >= gap.end:
            break
        position = max(position, end)
    return position >= gap.end
