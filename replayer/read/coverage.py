"""What is archived of each partition over time, where the gaps are, and how much falls into each slice of time."""

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from index_format.chunk_index import Gap
from index_format.marker import ChunkEntry
from replayer.read.damage import Unreadable
from replayer.read.partition import END, ArchivedPartition


@dataclass(frozen=True)
class Stretch:
    """The records of a chunk: how many, and their timestamps in [start, end] (ms, both included)."""

    start: int
    end: int
    records: int


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
    """One partition in offset order; records without a timestamp count in `untimed` alone."""

    partition: int
    start_offset: int | None
    next_offset: int | None
    stretches: tuple[Stretch, ...]
    gaps: tuple[TimedGap, ...]
    untimed: int

    @property
    def records(self) -> int:
        return self.untimed + sum(stretch.records for stretch in self.stretches)


@dataclass(frozen=True)
class Timeline:
    """The time [start, end) (ms) in equal slices."""

    start: int
    end: int
    slices: int

    def __post_init__(self) -> None:
        if not (self.start < self.end and self.slices > 0):
            raise ValueError(f"no time between {self.start} and {self.end} in {self.slices} slices")

    def position(self, timestamp: int) -> float:
        """Where a time lies, 0 being the start and 1 the end; times outside are moved to the nearer of them."""
        return min(max((timestamp - self.start) / (self.end - self.start), 0.0), 1.0)

    def slice_of(self, timestamp: int) -> int:
        return min(int(self.position(timestamp) * self.slices), self.slices - 1)


@dataclass(frozen=True)
class TimeSlice:
    """One partition in one slice of time: about how many records, as if a chunk's were spread evenly, and any gap."""

    records: float
    has_gap: bool


async def partition_coverage(partition: ArchivedPartition) -> PartitionCoverage:
    """The coverage of a partition from its marker and catalogs; no index and no data is read."""
    entries: list[ChunkEntry] = []
    recorded = set(partition.listed_gaps)
    async for opened in partition.walk(0, END):
        if isinstance(opened, Unreadable):
            raise opened.error
        if isinstance(opened, ChunkEntry):
            entries.append(opened)
        else:
            recorded.update(opened.gaps)
    timed = [entry for entry in entries if entry.max_timestamp >= 0]
    bounded = [entry for entry in timed if entry.min_timestamp >= 0]
    gaps = []
    for gap in sorted(recorded, key=lambda gap: gap.start):
        before = bisect_left(timed, gap.start, key=lambda entry: entry.first_offset)
        behind = bisect_left(bounded, gap.end, key=lambda entry: entry.last_offset)
        after = timed[before - 1].max_timestamp if before else None
        gaps.append(TimedGap(gap, after, bounded[behind].min_timestamp if behind < len(bounded) else None))
    return PartitionCoverage(
        partition.partition,
        partition.start_offset if partition.marker.next_offset is not None else None,
        partition.marker.next_offset,
        tuple(Stretch(max(entry.min_timestamp, 0), entry.max_timestamp, entry.num_records) for entry in timed),
        tuple(gaps),
        sum(entry.num_records for entry in entries if entry.max_timestamp < 0),
    )


async def topic_coverage(partitions: Sequence[ArchivedPartition]) -> list[PartitionCoverage]:
    return await asyncio.gather(*(partition_coverage(partition) for partition in partitions))


def timeline(partitions: Sequence[PartitionCoverage], slices: int) -> Timeline | None:
    """The time from the earliest to the latest record; None where no record has a timestamp."""
    stretches = [stretch for partition in partitions for stretch in partition.stretches]
    if not stretches:
        return None
    return Timeline(min(each.start for each in stretches), max(each.end for each in stretches) + 1, slices)


def sliced(partition: PartitionCoverage, over: Timeline) -> list[TimeSlice]:
    """A partition in each slice of a timeline. A gap of unknown extent lies where its known neighbour is."""
    records = [0.0] * over.slices
    for stretch in partition.stretches:
        first, last = over.slice_of(stretch.start), over.slice_of(stretch.end)
        for number in range(first, last + 1):
            records[number] += stretch.records / (last - first + 1)
    gaps: set[int] = set()
    for gap in partition.gaps:
        known = [time for time in (gap.after, gap.before) if time is not None]
        if known:
            gaps.update(range(over.slice_of(min(known)), over.slice_of(max(known)) + 1))
    return [TimeSlice(count, number in gaps) for number, count in enumerate(records)]
