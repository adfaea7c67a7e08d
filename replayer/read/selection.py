"""A part of one partition, pinned to one version of its marker, and the records in it that are meant."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from blockgz_runtime.errors import NotInArchive, UsageError
from blockgz_runtime.record_filter import RecordFilter
from blockgz_runtime.units import timestamp_text
from index_format.chunk_index import ERASED
from index_format.marker import ChunkCatalog, ChunkEntry, ReferenceCatalog
from index_format.seek import TimeBounded
from replayer.read.archive import Archive
from replayer.read.blocks import (
    READ_AHEAD,
    ReadAhead,
    StoredBlock,
    decoded_parts,
    readable_chunks,
    stored_blocks,
    worked,
)
from replayer.read.damage import MOST_REWRITES, STOP, Damaged, DamagePolicy, Unreadable
from replayer.read.partition import ArchivedPartition, Chunk
from replayer.read.positions import AtOffset, AtTime, OffsetRange, Position, resolve_range


class Selection(NamedTuple):
    """Offsets of one partition; what is committed later is not in it."""

    partition: ArchivedPartition
    offsets: OffsetRange


@dataclass(frozen=True)
class Positions:
    """Where the range of each partition begins and ends, None meaning the archive's own; partitions may have theirs."""

    start: Position | None = None
    end: Position | None = None
    of_partitions: Mapping[int, tuple[Position | None, Position | None]] = field(default_factory=dict)
    asked: tuple[str, ...] = field(default=(), compare=False)
    """How start and end were written."""

    def __post_init__(self) -> None:
        """Raises UsageError for a start behind the end."""
        match self.start, self.end:
            case AtOffset(start), AtOffset(end) if start > end:
                self._refuse(start, end)
            case AtTime(start), AtTime(end) if start > end:
                self._refuse(timestamp_text(start), timestamp_text(end))

    @staticmethod
    def _refuse(start: object, end: object) -> NoReturn:
        raise UsageError(
            f"the records are to start at {start} and to end before {end}",
            why="the start is after the end, so there are none",
            remedy="swap --from and --to",
        )

    @property
    def notes(self) -> Iterator[str]:
        """The times that were asked for, as sentences for people."""
        if isinstance(self.start, AtTime):
            yield f"begins at {timestamp_text(self.start.timestamp)}"
        if isinstance(self.end, AtTime):
            yield f"ends before {timestamp_text(self.end.timestamp)}"

    async def resolve(self, partition: ArchivedPartition) -> OffsetRange:
        start, end = self.of_partitions.get(partition.partition, (None, None))
        return await resolve_range(partition, start or self.start, end or self.end)


async def select(
    archive: Archive, topic: str, partitions: Sequence[int] | None, positions: Positions
) -> list[Selection]:
    """The offsets that are meant in the named partitions, or in all, each as of one version of its marker.

    Raises NotInArchive where positions are given for a partition that is not among them.
    """
    opened = await archive.open_topic(topic, partitions)
    unknown = sorted(positions.of_partitions.keys() - {partition.partition for partition in opened})
    if unknown:
        raise NotInArchive(
            f"positions are given for partition {unknown[0]} of {topic}, which is not selected",
            why="it is not in the archive, or another option excludes it",
            remedy="remove it from the positions file",
        )
    ranges = await asyncio.gather(*(positions.resolve(partition) for partition in opened))
    return [Selection(*pair) for pair in zip(opened, ranges, strict=True)]


class Reading(NamedTuple):
    """Which records of selections are meant, and what each scan of a partition does at damage."""

    filter: RecordFilter = RecordFilter()
    on_damage: Callable[[ArchivedPartition], DamagePolicy] = lambda _: STOP


async def selected(
    selection: Selection, record_filter: RecordFilter, on_damage: DamagePolicy = STOP, ahead: ReadAhead = READ_AHEAD
) -> AsyncGenerator[pa.RecordBatch]:
    """The records that are meant as non-empty batches, in offset order; close it (`aclosing`) when you stop early.

    Blocks without such a record, as far as their timestamps and key filters tell, are not read. Raises as `scan` does,
    and UsageError where records are asked for by timestamps that the archive does not have.
    """
    partition, offsets = selection
    wanted = None if record_filter.passes_all else record_filter.may_match
    if record_filter.by_time:
        await _check_timestamps(partition)
    async with aclosing(scan(partition, *offsets, wanted, on_damage=on_damage, ahead=ahead)) as batches:
        async for batch in batches:
            part = record_filter.apply(batch)
            del batch
            if part.num_rows:
                yield part
            del part


async def scan(
    partition: ArchivedPartition,
    start_offset: int,
    end_offset: int,
    wanted: Callable[[TimeBounded], bool] | None = None,
    *,
    on_damage: DamagePolicy = STOP,
    ahead: ReadAhead = READ_AHEAD,
) -> AsyncGenerator[pa.RecordBatch]:
    """The archived records of offsets [start_offset, end_offset) as batches of `index_format.records.SCHEMA`, in order.

    Batches are never empty; each is (a part of) one block, small or of a single record. Close the iterator
    (`aclosing`) when you stop early.
    `wanted` is asked of catalogs, chunks and blocks: what it refuses is not read, nor is anything below it.
    `on_damage` meets each damaged block, chunk or catalog in its place, with the offsets that it costs within the
    wanted ones; by default the scan ends there with a FormatError or ObjectMissing. What came before is right.
    What was rewritten since the marker was read is read through the marker of now, from the same offset on. It meets
    offsets that were pruned as well: NotInArchive by default.
    """
    at, rewrites = start_offset, 0
    while True:
        if at < min(partition.floor, end_offset):
            on_damage.meet(_pruned(partition, at, min(partition.floor, end_offset)))
            at = partition.floor
        newer: ArchivedPartition | None = None
        async with aclosing(_scan(partition, at, end_offset, wanted, ahead)) as items:
            async for item in items:
                if not isinstance(item, Unreadable):
                    yield item
                    del item
                    continue
                rewrites = rewrites if item.start == at else 0
                at = item.start
                newer = await partition.newer(at) if rewrites < MOST_REWRITES else None
                if newer is not None:
                    break
                on_damage.meet(item)
        if newer is None:
            return
        partition, rewrites = newer, rewrites + 1


def _pruned(partition: ArchivedPartition, start: int, end: int) -> Unreadable:
    error = NotInArchive(
        f"offsets [{start}..{end}) of {partition} were pruned",
        why=f"the archive keeps nothing of it below offset {partition.floor}",
        remedy=f"begin at offset {partition.floor}, or at earliest",
    )
    return Unreadable(start, end, 0, partition.keys.marker, error)


async def _scan(
    partition: ArchivedPartition,
    start_offset: int,
    end_offset: int,
    wanted: Callable[[TimeBounded], bool] | None,
    ahead: ReadAhead,
) -> AsyncGenerator[pa.RecordBatch | Unreadable]:
    """What one version of a marker leads to, and what cannot be read in its place."""

    def decode(block: StoredBlock) -> deque[pa.RecordBatch]:
        return deque(decoded_parts(block, partition.max_block_bytes))

    chunks = readable_chunks(partition, chosen_entries(partition, start_offset, end_offset, wanted))
    blocks = stored_blocks(partition, chunks, start_offset, end_offset, wanted, ahead.fetched)
    async for item in worked(blocks, decode, ahead.decoded):
        if isinstance(item, Unreadable):
            start, end = max(item.start, start_offset), min(item.end, end_offset)
            if start < end:
                yield item._replace(start=start, end=end)
        elif isinstance(item, deque):
            while item:
                part = trimmed(item.popleft(), start_offset, end_offset)
                if part.num_rows:
                    yield part
                del part


def trimmed(batch: pa.RecordBatch, start_offset: int, end_offset: int) -> pa.RecordBatch:
    """The rows of a batch whose offsets lie in [start_offset, end_offset)."""
    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, [start_offset, end_offset])
    return batch.slice(int(first), int(last - first))


async def chosen_entries(
    partition: ArchivedPartition, start: int, end: int, wanted: Callable[[TimeBounded], bool] | None = None
) -> AsyncGenerator[ChunkEntry | Unreadable]:
    """The chunks that may hold records of offsets [start, end), in order, and catalogs that cannot be read."""
    async for opened in partition.walk(start, end, wanted):
        if isinstance(opened, ChunkEntry | Unreadable):
            yield opened


async def erased_ranges(partition: ArchivedPartition, start: int, end: int) -> list[OffsetRange]:
    """The offsets of [start, end) whose records were erased, in order and apart; reads catalogs and indexes.

    What is damaged tells of none.
    """
    if not partition.is_maintained:
        return []
    found = [(gap.start, gap.end) for gap in partition.listed_gaps if gap.reason == ERASED]
    async for opened in partition.walk(start, end):
        if isinstance(opened, ChunkCatalog | ReferenceCatalog):
            found += [(gap.start, gap.end) for gap in partition.telling(opened.gaps) if gap.reason == ERASED]
    async for chunk in readable_chunks(partition, chosen_entries(partition, start, end)):
        if isinstance(chunk, Chunk):
            found += [(each.start, each.end) for each in chunk.erased]
    return joined_ranges((max(low, start), min(high, end)) for low, high in found if low < end and high > start)


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> list[OffsetRange]:
    """The offsets of ranges, in order and apart."""
    found: list[OffsetRange] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1].end:
            found[-1] = OffsetRange(found[-1].start, max(found[-1].end, end))
        else:
            found.append(OffsetRange(start, end))
    return found


async def _check_timestamps(partition: ArchivedPartition) -> None:
    newest = await _newest_readable(partition)
    if newest is not None and newest.index.record_format == "text":
        raise UsageError(
            f"records of {partition} cannot be selected by timestamp",
            why="chunks of record format text hold none",
            remedy="use --from and --to with times, which are exact to the block",
        )


async def _newest_readable(partition: ArchivedPartition) -> Chunk | None:
    """The newest chunk that the marker lists whose index can be read: what is damaged is for the scan to meet."""
    for entry, _ in reversed(partition.spans):
        if not isinstance(entry, ChunkEntry):
            return None
        try:
            return await partition.chunk(entry)
        except Damaged:
            continue
    return None
