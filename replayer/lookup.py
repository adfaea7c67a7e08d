"""One record by its offset, or the reason why there is none."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from index_format.chunk_index import Gap
from index_format.records import Record, iter_records
from index_format.seek import block_at_or_after, gap_at

from .archive import ArchivedPartition, Chunk
from .block_reader import read_block


@dataclass(frozen=True)
class Found:
    """The record, and the bytes of the whole chunk that it was cut out of."""

    record: Record
    chunk_bytes: int


@dataclass(frozen=True)
class BeforeFirst:
    """The offset lies below all that was archived."""

    kind: ClassVar[str] = "before-first"
    first_offset: int

    @property
    def why(self) -> str:
        """The reason for people."""
        return f"the archive begins at offset {self.first_offset}"


@dataclass(frozen=True)
class NotYet:
    """The offset is not archived yet."""

    kind: ClassVar[str] = "not-yet"
    next_offset: int

    @property
    def why(self) -> str:
        """The reason for people."""
        return f"it is not archived yet: the archive ends before offset {self.next_offset}"


@dataclass(frozen=True)
class InGap:
    """The offset lies in a run that the archive lost or never saw."""

    kind: ClassVar[str] = "gap"
    gap: Gap

    @property
    def why(self) -> str:
        """The reason for people."""
        return f"it lies in the recorded gap from {self.gap.start} to {self.gap.end}: {self.gap.reason}"


@dataclass(frozen=True)
class Hole:
    """The log holds no readable record here: compacted away, a transaction marker, or an aborted record."""

    kind: ClassVar[str] = "hole"
    before: int | None
    """The nearest record below; None where there is none."""
    after: int | None
    """The nearest record above; None where there is none yet."""

    @property
    def why(self) -> str:
        """The reason for people."""
        neighbours = [f"the one before is {self.before}"] if self.before is not None else ["none lies before"]
        neighbours += [f"the next is {self.after}"] if self.after is not None else ["none follows yet"]
        return f"the log held no record there (compaction or a transaction): {', '.join(neighbours)}"


Absent = BeforeFirst | NotYet | InGap | Hole
Outcome = Found | Absent


async def look_up(partition: ArchivedPartition, offset: int) -> Outcome:
    """What the archive knows of an offset: at most one index and one block, and one catalog per level.

    A hole at the edge of a chunk may take a look at the chunk beside it. Raises a FormatError or ObjectMissing where
    what should tell is damaged.
    """
    gap = gap_at(partition.marker.gaps, offset)
    if gap is not None:
        return InGap(gap)
    if partition.marker.next_offset is None or offset >= partition.marker.next_offset:
        return NotYet(partition.next_offset)
    if offset < partition.start_offset:
        return BeforeFirst(partition.start_offset)
    entry = await partition.chunk_at_or_after(offset)
    if entry is None:
        return Hole(await _last_before(partition, offset), None)
    chunk = await partition.chunk(entry)
    gap = gap_at(chunk.index.gaps, offset)
    if gap is not None:
        return InGap(gap)
    return await _in_chunk(partition, chunk, offset)


async def _in_chunk(partition: ArchivedPartition, chunk: Chunk, offset: int) -> Outcome:
    blocks = chunk.index.blocks
    number = block_at_or_after(blocks, offset)
    if number is None:
        following = await partition.chunk_at_or_after(chunk.entry.next_offset)
        return Hole(chunk.entry.last_offset, following.first_offset if following else None)
    if blocks[number].first_record_offset > offset:
        before = blocks[number - 1].last_record_offset if number else await _last_before(partition, offset)
        return Hole(before, blocks[number].first_record_offset)
    batch = await read_block(partition, chunk, number)
    offsets = batch.column("offset").to_numpy()
    row = int(np.searchsorted(offsets, offset))
    if offsets[row] != offset:
        return Hole(int(offsets[row - 1]), int(offsets[row]))
    return Found(next(iter_records(batch.slice(row, 1))), chunk.index.data.bytes)


async def _last_before(partition: ArchivedPartition, offset: int) -> int | None:
    entry = await partition.chunk_before(offset)
    while entry is not None and entry.last_offset >= offset:
        entry = await partition.chunk_before(entry.start_offset)
    return entry.last_offset if entry is not None else None
