"""Compare archived records with a topic's, in order, whole columns at a time, in bounded memory.

Records pair by offset if the topic is the one that was archived, and by position if it is a copy.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.archive.blocks import readable_chunks
from blockgz.archive.partition import ArchivedPartition, Chunk, Damaged, SkipDamage, Unreadable
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Positions, Selection, chosen_entries, erased_ranges, scan, select
from blockgz.errors import NoSuchTopic, Verdict, listed
from blockgz.kafka import LogBounds
from index_format.objects import ERASED, Gap
from index_format.records import RecordsDigest, batch_from_records, payload_bytes, record_at
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import TopicFacts
from replayer.verify.report import ComparisonReport, Digests, PartitionComparison, RecordDifference, Relation

# How many ranges of missing and of extra offsets are named; the counts are of all.
MAX_RUNS = 100
COMPARED = {
    Relation.SOURCE: ("timestamp", "timestamp_type", "key", "value", "headers"),
    Relation.COPY: ("timestamp", "key", "value", "headers"),
}

# Gets how many archived records, and bytes of their keys and values, each step accounts for.
Progress = Callable[[int, int], None]


class TopicReader(Protocol):
    """Reads the topic; see KafkaReader."""

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Return the readable records of offsets [start, end), in order."""


def relation_of(archived_topic: str, archived_id: str | None, topic: TopicFacts) -> Relation:
    """Return whether a topic is the one that was archived: same name, and same id as far as both are known."""
    unknown = archived_id is None or topic.topic_id is None
    same = topic.name == archived_topic and (unknown or archived_id == topic.topic_id)
    return Relation.SOURCE if same else Relation.COPY


async def compare_copy(
    selection: Selection, topic: str, watermarks: LogBounds, reader: TopicReader, progress: Progress
) -> PartitionComparison:
    """Compare the selected records with all that the topic's partition of the same number holds."""
    # If the archive cannot read some records, the copy may hold them or may have been made without them: the following
    # records decide which.
    partition, (start, end) = selection[:2]
    result = PartitionComparison(partition.partition)
    losses = _Losses()
    found_batches = _in_thread(reader.read(topic, partition.partition, *watermarks))
    archived_batches = scan(partition, start, end, on_damage=losses)
    async with _in_step(archived_batches, found_batches, result) as (archived, found):
        while all(await asyncio.gather(archived.fill(), found.fill())):
            lost = losses.taken()
            if lost and not _is_resumed(archived, found):
                result.found += await found.skip(lost)
                continue
            rows = min(archived.rows, found.rows)
            left, right = archived.take(rows), found.take(rows)
            _compare_rows(left, right, Relation.COPY, result)
            progress(rows, payload_bytes(left))
        async for batch in archived.rest():
            _count_missing(batch, result)
            progress(batch.num_rows, payload_bytes(batch))
        result.found += await found.skip(losses.taken())
        async for batch in found.rest():
            _count_extra(batch, result)
    result.lost = losses.skipped
    return result


async def compare_source(
    selection: Selection, facts: TopicFacts, watermarks: LogBounds, reader: TopicReader, progress: Progress
) -> PartitionComparison:
    """Compare the selected records with those that the source holds at the same offsets.

    Records below the source's log start offset are excused, as are records that log compaction removed from the source
    since, and records that the archive pruned or erased, or that are in its recorded gaps.
    """
    partition, (start, end) = selection[:2]
    result = PartitionComparison(partition.partition)
    if start < min(watermarks.low, end):
        result.excused.append(Gap(start, min(watermarks.low, end), "the source deleted them (retention)"))
    losses = _Losses()
    first = max(start, watermarks.low)
    erased = [Gap(*each, ERASED) for each in await erased_ranges(partition, first, end)]
    known = [*(gap for gap in await _known_gaps(partition) if gap.reason != ERASED), *erased]
    excuses = _Excuses(known, losses, facts.config is not None and facts.config.compacts)
    if partition.began_at < partition.floor == start and watermarks.low < start:
        low = max(partition.began_at, watermarks.low)
        result.excused.append(Gap(low, start, "the archive keeps them no longer (pruned)"))
    found_batches = _in_thread(reader.read(facts.name, partition.partition, first, min(end, watermarks.end)))
    archived_batches = scan(partition, first, end, on_damage=losses)
    async with _in_step(archived_batches, found_batches, result) as (archived, found):
        while all(await asyncio.gather(archived.fill(), found.fill())):
            bound = min(archived.last_offset, found.last_offset) + 1
            left, right = archived.take_below(bound), found.take_below(bound)
            _compare_offsets(left, right, excuses, result)
            progress(left.num_rows, payload_bytes(left))
        async for batch in archived.rest():
            excuses.missing(batch, result)
            progress(batch.num_rows, payload_bytes(batch))
        async for batch in found.rest():
            excuses.extra(batch, result)
    result.lost = losses.skipped
    if end >= partition.next_offset and watermarks.end > partition.next_offset:
        result.not_archived_yet = OffsetRange(max(partition.next_offset, watermarks.low), watermarks.end)
    return result


async def _known_gaps(partition: ArchivedPartition) -> Sequence[Gap]:
    """Return the recorded gaps, or only the marker's if a catalog cannot be read: what that led to is lost anyway."""
    try:
        return await partition.gaps()
    except Damaged:
        return partition.listed_gaps


@asynccontextmanager
async def _in_step(
    archived_batches: AsyncGenerator[pa.RecordBatch],
    found_batches: AsyncGenerator[pa.RecordBatch],
    result: PartitionComparison,
) -> AsyncIterator[tuple["_Side", "_Side"]]:
    async with aclosing(archived_batches), aclosing(found_batches):
        archived, found = _Side(archived_batches), _Side(found_batches)
        yield archived, found
        result.archived_digests, result.found_digests = archived.digests, found.digests


class _Side:
    """One of two streams that are read in step."""

    def __init__(self, batches: AsyncIterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._batch = batch_from_records([])
        self._digest = RecordsDigest()

    @property
    def digests(self) -> Digests:
        return Digests(self._digest.content, self._digest.positions)

    async def fill(self) -> bool:
        while self._batch.num_rows == 0:
            try:
                self._batch = await anext(self._batches)
            except StopAsyncIteration:
                return False
        return True

    @property
    def rows(self) -> int:
        """Number of rows that can be taken; at least one after `fill` returned True."""
        return int(self._batch.num_rows)

    @property
    def last_offset(self) -> int:
        return int(self._batch.column("offset")[-1].as_py())

    def take(self, rows: int) -> pa.RecordBatch:
        taken, self._batch = self._batch.slice(0, rows), self._batch.slice(rows)
        self._digest.update(taken)
        return taken

    def take_below(self, offset: int) -> pa.RecordBatch:
        return self.take(int(np.searchsorted(self._batch.column("offset").to_numpy(), offset)))

    def head(self, rows: int) -> pa.RecordBatch:
        return self._batch.slice(0, rows)

    async def skip(self, rows: int) -> int:
        """Skip `rows` records, or as many as there are, and return their number."""
        left = rows
        while left and await self.fill():
            left -= self.take(min(left, self.rows)).num_rows
        return rows - left

    async def rest(self) -> AsyncIterator[pa.RecordBatch]:
        while await self.fill():
            yield self.take(self.rows)


class _Losses(SkipDamage):
    """The losses of the archive, in the order in which a scan meets them."""

    def __init__(self) -> None:
        super().__init__()
        self._records = 0

    def meet(self, unreadable: Unreadable) -> None:
        super().meet(unreadable)
        self._records += min(unreadable.num_records, unreadable.end - unreadable.start)

    def taken(self) -> int:
        """Return the number of records lost since the last call."""
        records, self._records = self._records, 0
        return records

    def among(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return for each record whether its offset was lost."""
        offsets = batch.column("offset").to_numpy()
        among = np.zeros(len(offsets), dtype=bool)
        for start, end, _ in self.skipped:
            among |= (start <= offsets) & (offsets < end)
        return among


class _Excuses:
    """The reasons for which records of a source may rightly be on one side only."""

    def __init__(self, gaps: Sequence[Gap], losses: "_Losses", compacts: bool) -> None:
        self._gaps = sorted(gaps, key=lambda gap: gap.start)
        self._losses = losses
        self._compacts = compacts

    def missing(self, batch: pa.RecordBatch, result: PartitionComparison) -> None:
        if not self._compacts:
            _count_missing(batch, result)
            return
        result.archived += batch.num_rows
        if batch.num_rows:
            _excuse(batch, "compaction has removed some source records since", result)

    def extra(self, batch: pa.RecordBatch, result: PartitionComparison) -> None:
        """Count the source's records that the archive does not have; those that it lost are reported elsewhere."""
        lost = self._losses.among(batch)
        if lost.any():
            result.found += int(lost.sum())
            batch = batch.filter(pa.array(~lost))
        gaps = [self._gap_at(offset) for offset in batch.column("offset").to_pylist()]
        for gap in dict.fromkeys(gap for gap in gaps if gap is not None and gap.reason != ERASED):
            excused = Gap(gap.start, gap.end, f"a recorded gap of the archive ({gap.reason})")
            if excused not in result.excused:
                result.excused.append(excused)
        erased = batch.filter(pa.array([gap is not None and gap.reason == ERASED for gap in gaps], pa.bool_()))
        if erased.num_rows:
            _excuse(erased, "the archive has erased some records since", result)
        inside = np.array([gap is not None for gap in gaps], dtype=bool)
        result.found += int(inside.sum())
        _count_extra(batch.filter(pa.array(~inside)), result)

    def _gap_at(self, offset: int) -> Gap | None:
        behind = bisect_right(self._gaps, offset, key=lambda gap: gap.start)
        return self._gaps[behind - 1] if behind and offset in self._gaps[behind - 1] else None


def _excuse(batch: pa.RecordBatch, reason: str, result: PartitionComparison) -> None:
    first, last = (batch.column("offset")[row].as_py() for row in (0, -1))
    before = result.excused[-1] if result.excused else None
    if before is not None and before.reason == reason:
        result.excused[-1] = Gap(before.start, last + 1, reason)
    else:
        result.excused.append(Gap(first, last + 1, reason))


def _compare_offsets(
    left: pa.RecordBatch, right: pa.RecordBatch, excuses: _Excuses, result: PartitionComparison
) -> None:
    """Compare the records at the same offsets; all others are missing or extra."""
    if not left.column("offset").equals(right.column("offset")):
        ours, theirs = left.column("offset").to_numpy(), right.column("offset").to_numpy()
        _, in_left, in_right = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
        alone_left, alone_right = np.delete(np.arange(len(ours)), in_left), np.delete(np.arange(len(theirs)), in_right)
        excuses.missing(left.take(pa.array(alone_left)), result)
        excuses.extra(right.take(pa.array(alone_right)), result)
        left, right = left.take(pa.array(in_left)), right.take(pa.array(in_right))
    _compare_rows(left, right, Relation.SOURCE, result)


def _is_resumed(archived: _Side, found: _Side) -> bool:
    """Return whether the copy's next records are the archive's."""
    rows = min(archived.rows, found.rows)
    trial = PartitionComparison(0)
    _compare_rows(archived.head(rows), found.head(rows), Relation.COPY, trial)
    return not trial.differing


def _compare_rows(left: pa.RecordBatch, right: pa.RecordBatch, relation: Relation, result: PartitionComparison) -> None:
    """Compare batches of equal length row by row, columns as a whole first."""
    zeros = _zeros_sent_as_one(left, right) if relation is Relation.COPY else None
    if zeros is not None:
        result.zero_timestamps += int(zeros.sum())
        times = np.where(zeros, 1, left.column("timestamp").to_numpy())
        left = left.set_column(
            left.schema.get_field_index("timestamp"), left.schema.field("timestamp"), pa.array(times)
        )
    unequal = [name for name in COMPARED[relation] if not left.column(name).equals(right.column(name))]
    differing = 0
    if unequal:
        pairs = [(left.column(name).to_pylist(), right.column(name).to_pylist()) for name in unequal]
        rows = [row for row in range(left.num_rows) if any(ours[row] != theirs[row] for ours, theirs in pairs)]
        differing, first = len(rows), rows[0]
        if result.first_difference is None:
            fields = [name for name, (a, b) in zip(unequal, pairs, strict=True) if a[first] != b[first]]
            result.first_difference = RecordDifference(record_at(left, first), record_at(right, first), tuple(fields))
    result.archived += left.num_rows
    result.found += right.num_rows
    result.differing += differing
    result.records += left.num_rows - differing


def _zeros_sent_as_one(left: pa.RecordBatch, right: pa.RecordBatch) -> npt.NDArray[np.bool_] | None:
    zeros: npt.NDArray[np.bool_] = (left.column("timestamp").to_numpy() == 0) & (
        right.column("timestamp").to_numpy() == 1
    )
    return zeros if zeros.any() else None


def _count_missing(batch: pa.RecordBatch, result: PartitionComparison) -> None:
    result.archived += batch.num_rows
    result.missing += batch.num_rows
    _add_runs(batch, result.missing_offsets)
    if batch.num_rows and result.first_difference is None:
        result.first_difference = RecordDifference(record_at(batch, 0), None, ())


def _count_extra(batch: pa.RecordBatch, result: PartitionComparison) -> None:
    result.found += batch.num_rows
    result.extra += batch.num_rows
    _add_runs(batch, result.extra_offsets)
    if batch.num_rows and result.first_difference is None:
        result.first_difference = RecordDifference(None, record_at(batch, 0), ())


def _add_runs(batch: pa.RecordBatch, runs: list[OffsetRange]) -> None:
    """Add the offsets of a batch, neighbours as one range."""
    offsets = batch.column("offset").to_numpy()
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    for part in np.split(offsets, breaks) if len(offsets) else ():
        start, end = int(part[0]), int(part[-1]) + 1
        if runs and runs[-1].end == start:
            runs[-1] = OffsetRange(runs[-1].start, end)
        elif len(runs) < MAX_RUNS:
            runs.append(OffsetRange(start, end))
        else:
            return


async def _in_thread(batches: Iterator[pa.RecordBatch]) -> AsyncGenerator[pa.RecordBatch]:
    """Yield the items of a blocking iterator, taking each in a thread."""
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch


EVERYTHING = Positions()


def _unwatched(_: Sequence[Selection], __: ComparisonReport) -> AbstractAsyncContextManager[Progress]:
    return nullcontext(lambda *_: None)


async def compare_with_topic(
    archive: ArchiveReader,
    topic: TopicPartitions,
    against: str,
    properties: Mapping[str, str],
    positions: Positions = EVERYTHING,
    watched: Callable[[Sequence[Selection], ComparisonReport], AbstractAsyncContextManager[Progress]] = _unwatched,
) -> ComparisonReport:
    """Compare record by record; what the archive cannot read is in the report.

    `properties` are librdkafka's. The work is done within `watched`, which is given what is compared and the report
    that grows. Raise NoSuchTopic, NotInArchive, or what archive and cluster raise.
    """
    admin = await asyncio.to_thread(KafkaAdmin, properties)
    facts = await asyncio.to_thread(admin.topic, against)
    if facts is None:
        raise NoSuchTopic(
            f"the cluster has no topic {against!r}",
            why=f"it has {listed(admin.topics, 'no topics')}",
            remedy="check the name and -b",
        )
    selections = await select(archive, topic.topic, topic.partitions, positions)
    newest = selections[0].partition if selections else None
    relation = relation_of(newest.topic, newest.marker.topic_id, facts) if newest else Relation.COPY
    isolation = await _isolation_level(selections, relation)
    watermarks = await asyncio.to_thread(admin.watermarks, against, range(facts.num_partitions), isolation)
    report = ComparisonReport(relation)
    if topic.partitions is None:
        report.warnings += _unarchived(selections, facts, watermarks)
    async with watched(selections, report) as advance:
        reader = await asyncio.to_thread(KafkaReader, properties, isolation)
        try:
            for selection in selections:
                bounds = watermarks.get(selection.partition.partition, LogBounds(0, 0))
                if relation is Relation.SOURCE:
                    compared = await compare_source(selection, facts, bounds, reader, advance)
                else:
                    compared = await compare_copy(selection, facts.name, bounds, reader, advance)
                report.partitions.append(compared)
        finally:
            await asyncio.to_thread(reader.close)
    if relation is Relation.COPY:
        report.warnings += _deleted(report, facts, watermarks)
        report.warnings += await _rewritten(report, selections)
    return report


async def _isolation_level(selections: Sequence[Selection], relation: Relation) -> str:
    """Return the isolation level that the source was read with; a copy holds no transactions of the source."""
    if relation is Relation.SOURCE:
        for partition, offsets, *_ in selections:
            async for chunk in readable_chunks(partition, chosen_entries(partition, *offsets)):
                if isinstance(chunk, Chunk):
                    return chunk.index.isolation_level
    return "read_committed"


def _unarchived(selections: Sequence[Selection], facts: TopicFacts, watermarks: dict[int, LogBounds]) -> list[str]:
    archived = {selection.partition.partition for selection in selections}
    return [
        f"{facts.name}:{partition} holds records but is not in the archive"
        for partition, bounds in watermarks.items()
        if partition not in archived and bounds.end > bounds.low
    ]


async def _rewritten(report: ComparisonReport, selections: Sequence[Selection]) -> list[str]:
    """Return why a copy from before may differ: the archive has pruned or erased records."""
    warnings = []
    for compared, (partition, (start, end), *_) in zip(report.partitions, selections, strict=True):
        if compared.verdict is not Verdict.FAILURE:
            continue
        if partition.floor:
            warnings.append(f"{partition} was pruned below offset {partition.floor}: an earlier copy holds more")
        if erased := sum(high - low for low, high in await erased_ranges(partition, start, end)):
            warnings.append(f"up to {erased} records of {partition} were erased: an earlier copy holds them")
    return warnings


def _deleted(report: ComparisonReport, facts: TopicFacts, watermarks: Mapping[int, LogBounds]) -> list[str]:
    """Return why a copy may differ: its first records were deleted."""
    lows = {number: bounds.low for number, bounds in watermarks.items() if bounds.low}
    return [
        f"{facts.name}:{each.partition} begins at offset {lows[each.partition]}: everything before was deleted"
        for each in report.partitions
        if each.verdict is Verdict.FAILURE and each.partition in lows
    ]
