"""A part of one partition, pinned to one version of its marker, and the records in it that are meant."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from blockgz_runtime.errors import NotInArchive, UsageError
from replayer.read.archive import Archive
from replayer.read.block_stream import READ_AHEAD, ReadAhead
from replayer.read.damage import STOP, Damaged, DamagePolicy
from replayer.read.partition import ArchivedPartition, Chunk
from replayer.read.positions import OffsetRange, Position, resolve_range
from replayer.read.record_filter import RecordFilter
from replayer.read.scan import scan


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

    async def resolve(self, partition: ArchivedPartition) -> OffsetRange:
        """The offsets that are meant in one partition."""
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
            why="it is not in the archive, or another choice of partitions leaves it out",
            remedy="take it out of the file of positions",
        )
    ranges = await asyncio.gather(*(positions.resolve(partition) for partition in opened))
    return [Selection(*pair) for pair in zip(opened, ranges, strict=True)]


def _stops(_: ArchivedPartition) -> DamagePolicy:
    return STOP


class Reading(NamedTuple):
    """Which records of selections are meant, and what each scan of a partition does at damage."""

    filter: RecordFilter = RecordFilter()
    on_damage: Callable[[ArchivedPartition], DamagePolicy] = _stops


async def selected(
    selection: Selection, record_filter: RecordFilter, on_damage: DamagePolicy = STOP, ahead: ReadAhead = READ_AHEAD
) -> AsyncGenerator[pa.RecordBatch]:
    """The records that are meant as non-empty batches, in offset order; close it (`aclosing`) when you stop early.

    Blocks without such a record, as far as their timestamps tell, are not read. Raises as `scan` does, and UsageError
    where records are asked for by timestamps that the archive does not have.
    """
    partition, offsets = selection
    wanted = None
    if record_filter.by_time:
        await _check_timestamps(partition)
        wanted = record_filter.may_match
    async with aclosing(scan(partition, *offsets, wanted, on_damage=on_damage, ahead=ahead)) as batches:
        async for batch in batches:
            part = record_filter.apply(batch)
            if part.num_rows:
                yield part


async def _check_timestamps(partition: ArchivedPartition) -> None:
    newest = await _newest_readable(partition)
    if newest is not None and newest.index.record_format == "text":
        raise UsageError(
            f"records of {partition} cannot be chosen by their timestamps",
            why="chunks of record format text hold none",
            remedy="use --from and --to with times: they are exact to the block",
        )


async def _newest_readable(partition: ArchivedPartition) -> Chunk | None:
    """The newest chunk that the marker lists whose index can be read: what is damaged is for the scan to meet."""
    for entry in reversed(partition.marker.tail):
        try:
            return await partition.chunk(entry)
        except Damaged:
            continue
    return None
