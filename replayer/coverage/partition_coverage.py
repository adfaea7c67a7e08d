"""What is archived of each partition, by time and by offset: how much, where the gaps are, what cannot be read."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from blockgz.archive.damage import Unreadable
from blockgz.archive.partition import END, ArchivedPartition
from index_format.chunk_index import ERASED, Gap
from index_format.errors import BlockgzError
from index_format.marker import ChunkEntry

Column: TypeAlias = npt.NDArray[np.int64]
Scale = Literal["time", "offset"]
PRUNED = "pruned"


class ChunkColumns(NamedTuple):
    """The chunks of a partition in offset order, a row each; times are ms, -1 where no record has one."""

    first_offset: Column
    next_offset: Column
    min_timestamp: Column
    max_timestamp: Column
    records: Column
    bytes: Column

    @property
    def timed(self) -> "ChunkColumns":
        """Those that hold a record with a timestamp."""
        has_time = self.max_timestamp >= 0
        return ChunkColumns(*(column[has_time] for column in self))


@dataclass(frozen=True)
class TimedGap:
    """A recorded gap and the time around it (ms): the records before it end at `after`, those behind begin at `before`.

    None where there are none, or none with a timestamp. As timestamps may go backwards, `before` may lie below `after`.
    """

    gap: Gap
    after: int | None
    before: int | None


@dataclass(frozen=True)
class PartitionCoverage:
    """One partition in offset order.

    `damage` are the offsets of catalogs that cannot be read, whose chunks are not in `chunks`; `errors` say why.
    `erased` are gaps in which every record was erased; of those that were erased inside a chunk, only its index tells.
    """

    partition: int
    start_offset: int | None
    next_offset: int | None
    chunks: ChunkColumns
    gaps: tuple[TimedGap, ...]
    damage: tuple[TimedGap, ...] = ()
    errors: tuple[BlockgzError, ...] = ()
    erased: tuple[TimedGap, ...] = ()
    pruned: TimedGap | None = None
    """The offsets below the floor, where the partition was pruned."""

    @cached_property
    def timed(self) -> ChunkColumns:
        """The chunks that can be placed in time."""
        return self.chunks.timed

    @property
    def records(self) -> int:
        return int(self.chunks.records.sum())

    @property
    def untimed(self) -> int:
        """Records of chunks in which none has a timestamp."""
        return self.records - int(self.timed.records.sum())

    @property
    def pruned_before(self) -> int | None:
        """The floor; None where nothing was pruned."""
        return None if self.pruned is None else self.pruned.gap.end

    @property
    def times(self) -> tuple[int, int] | None:
        """The earliest and the latest timestamp (ms)."""
        if not len(self.timed.records):
            return None
        return int(np.maximum(self.timed.min_timestamp, 0).min()), int(self.timed.max_timestamp.max())


@dataclass(frozen=True)
class Axis:
    """Times (ms) or offsets [start, end) in equal slices."""

    start: int
    end: int
    slices: int
    scale: Scale = "time"

    def __post_init__(self) -> None:
        if not (self.start < self.end and self.slices > 0):
            raise ValueError(f"nothing between {self.start} and {self.end} in {self.slices} slices")

    def position(self, place: int) -> float:
        """Where a place lies, 0 being the start and 1 the end; places outside are moved to the nearer of them."""
        return min(max((place - self.start) / (self.end - self.start), 0.0), 1.0)

    def slice_of(self, place: int) -> int:
        return min(int(self.position(place) * self.slices), self.slices - 1)

    def slices_of(self, places: npt.NDArray[np.float64]) -> Column:
        """The same for many at once."""
        within = np.clip(places, self.start, self.end)
        numbers = ((within - self.start) / (self.end - self.start) * self.slices).astype(np.int64)
        return np.minimum(numbers, self.slices - 1)

    def start_of(self, number: int) -> int:
        """The place where a slice begins."""
        return self.start + -(-(self.end - self.start) * number // self.slices)


@dataclass(frozen=True)
class Slices:
    """One partition in each slice of an axis: about how many records and chunks, as if a chunk's were spread evenly."""

    records: npt.NDArray[np.float64]
    chunks: Column
    has_gap: npt.NDArray[np.bool_]


async def partition_coverage(partition: ArchivedPartition) -> PartitionCoverage:
    """The coverage of a partition from its marker and catalogs; no index and no data is read."""
    coverage = await _coverage(partition)
    newer = await partition.newer() if coverage.damage else None
    return coverage if newer is None else await _coverage(newer)


async def _coverage(partition: ArchivedPartition) -> PartitionCoverage:
    rows: list[tuple[int, ...]] = []
    recorded = set(partition.marked_gaps)
    damage: list[Unreadable] = []
    async for opened in partition.walk(0, END):
        if isinstance(opened, ChunkEntry):
            rows.append(
                (
                    opened.first_offset,
                    opened.last_offset + 1,
                    opened.min_timestamp,
                    opened.max_timestamp,
                    opened.num_records,
                    opened.bytes,
                )
            )
        elif isinstance(opened, Unreadable):
            damage.append(opened)
        else:
            recorded.update(opened.gaps)
    columns = np.array(rows, np.int64).reshape(-1, len(ChunkColumns._fields)).T
    chunks = ChunkColumns(*map(np.ascontiguousarray, columns))
    gaps = sorted(partition.telling(recorded), key=lambda gap: gap.start)
    pruned = [Gap(partition.began_at, partition.floor, PRUNED)] if partition.began_at < partition.floor else []
    return PartitionCoverage(
        partition.partition,
        partition.start_offset if partition.marker.next_offset is not None else None,
        partition.marker.next_offset,
        chunks,
        timed_gaps([gap for gap in gaps if gap.reason != ERASED], chunks.timed),
        timed_gaps([Gap(each.start, each.end, each.reason) for each in damage], chunks.timed),
        tuple(each.error for each in damage),
        timed_gaps([gap for gap in gaps if gap.reason == ERASED], chunks.timed),
        next(iter(timed_gaps(pruned, chunks.timed)), None),
    )


async def topic_coverage(partitions: Sequence[ArchivedPartition]) -> list[PartitionCoverage]:
    """The coverage of each."""
    return await asyncio.gather(*(partition_coverage(partition) for partition in partitions))


def timed_gaps(gaps: Sequence[Gap], timed: ChunkColumns) -> tuple[TimedGap, ...]:
    """Gaps with the times of the chunks beside them; `timed` are those that hold a timestamp."""
    has_start = timed.min_timestamp >= 0
    starts = timed.min_timestamp[has_start]
    before = np.searchsorted(timed.first_offset, [gap.start for gap in gaps])
    behind = np.searchsorted(timed.next_offset[has_start], [gap.end for gap in gaps], side="right")
    return tuple(
        TimedGap(
            gap,
            int(timed.max_timestamp[last - 1]) if last else None,
            int(starts[first]) if first < len(starts) else None,
        )
        for gap, last, first in zip(gaps, before, behind, strict=True)
    )


def axis_of(partitions: Sequence[PartitionCoverage], slices: int, scale: Scale = "time") -> Axis | None:
    """From the earliest to the latest record, or the lowest to the highest offset; None where there is none."""
    if scale == "offset":
        spans = [
            (each.start_offset if each.pruned is None else each.pruned.gap.start, each.next_offset)
            for each in partitions
        ]
        known = [(start, end) for start, end in spans if start is not None and end is not None and start < end]
        return Axis(min(start for start, _ in known), max(end for _, end in known), slices, scale) if known else None
    times = [each.times for each in partitions if each.times is not None]
    return Axis(min(low for low, _ in times), max(high for _, high in times) + 1, slices) if times else None


def sliced(partition: PartitionCoverage, axis: Axis) -> Slices:
    """A partition in each slice of an axis. A gap of unknown extent in time lies where its known neighbour is."""
    chunks = partition.timed if axis.scale == "time" else partition.chunks
    if axis.scale == "time":
        starts, ends = np.maximum(chunks.min_timestamp, 0), chunks.max_timestamp
    else:
        starts, ends = chunks.first_offset, chunks.next_offset - 1
    inside = (ends >= axis.start) & (starts < axis.end)
    # Floats, as the end of an axis may be 2^63; they round such times, so a span of one may come out as none.
    low, high = starts[inside].astype(np.float64), ends[inside].astype(np.float64)
    first, last = axis.slices_of(low), axis.slices_of(high)
    # Of a chunk that reaches beyond the axis, the share inside.
    within = np.maximum(np.minimum(high + 1, axis.end) - np.maximum(low, axis.start), 1)
    share = chunks.records[inside] * within / np.maximum(high + 1 - low, within) / (last - first + 1)
    records = _spread(first, last, share, axis.slices)
    has_gap = np.zeros(axis.slices, np.bool_)
    for gap in partition.gaps:
        extent = gap_extent(gap, axis)
        if extent is not None:
            has_gap[axis.slice_of(extent[0]) : axis.slice_of(extent[1]) + 1] = True
    counts = _spread(first, last, np.ones(len(first)), axis.slices)
    return Slices(np.where(counts > 0.5, records, 0.0), np.rint(counts).astype(np.int64), has_gap)


def _spread(first: Column, last: Column, amount: npt.NDArray[Any], slices: int) -> npt.NDArray[np.float64]:
    """Adds each amount to all slices from its first to its last."""
    steps = np.zeros(slices + 1)
    np.add.at(steps, first, amount)
    np.subtract.at(steps, last + 1, amount)
    return np.cumsum(steps)[:-1]


def gap_extent(gap: TimedGap, axis: Axis) -> tuple[int, int] | None:
    """From where to where a gap lies on an axis, both included; None where it lies outside, or nowhere."""
    if axis.scale == "offset":
        places = [gap.gap.start, gap.gap.end - 1]
    else:
        places = [time for time in (gap.after, gap.before) if time is not None]
    if not places or max(places) < axis.start or min(places) >= axis.end:
        return None
    return min(places), max(places)
