"""Records by offset or time, many at once, or for each the reason why there is none."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from index_format.chunk_index import Gap
from index_format.errors import BlockgzError
from index_format.marker import ChunkEntry
from index_format.records import Record, iter_records
from index_format.seek import block_at_or_after, gap_at, range_groups
from replayer.read.block_reader import StoredBlock, decoded_near, fetch_blocks, read_block
from replayer.read.block_stream import RANGE_BYTES, READ_AHEAD, RangeRead
from replayer.read.damage import Damaged
from replayer.read.partition import ArchivedPartition, Chunk
from replayer.read.positions import AtTime, Position, block_at_time, resolve_position
from replayer.read.prefetch import prefetched

CONCURRENT_INDEXES = 16


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


@dataclass(frozen=True)
class AfterLast:
    """No archived record is at or after the time, or the position, that was asked for."""

    kind: ClassVar[str] = "after-last"
    next_offset: int

    @property
    def why(self) -> str:
        """The reason for people."""
        return f"no archived record is as late: the archive ends before offset {self.next_offset}"


@dataclass(frozen=True)
class Lost:
    """The archive would have it, but what should tell is damaged or missing."""

    error: BlockgzError


Absent = BeforeFirst | NotYet | InGap | Hole | AfterLast
Outcome = Found | Absent | Lost


class _Located(NamedTuple):
    """Wanted offsets of one chunk, by the block that must tell."""

    chunk: Chunk
    blocks: Mapping[int, Sequence[int]]


async def look_up(partition: ArchivedPartition, offset: int) -> Found | Absent:
    """What the archive knows of an offset: at most one index and one block, and one catalog per level.

    A hole at the edge of a chunk may take a look at the chunk beside it. Raises a FormatError or ObjectMissing where
    what should tell is damaged.
    """
    outcome = (await look_up_all(partition, [offset]))[offset]
    if isinstance(outcome, Lost):
        raise outcome.error
    return outcome


async def look_up_all(partition: ArchivedPartition, offsets: Iterable[int]) -> dict[int, Outcome]:
    """The same for many offsets: each index is read once, each block once, adjacent blocks together, all concurrently.

    All outcomes are held in memory. What is damaged costs only the offsets that it holds.
    """
    outcomes: dict[int, Outcome] = {}
    searched = []
    for offset in sorted(set(offsets)):
        outcome = _told_by_marker(partition, offset)
        if outcome is None:
            searched.append(offset)
        else:
            outcomes[offset] = outcome
    by_chunk: dict[str, tuple[ChunkEntry, list[int]]] = {}
    for offset, entry in zip(searched, await asyncio.gather(*(_entry(partition, o) for o in searched)), strict=True):
        if isinstance(entry, ChunkEntry):
            by_chunk.setdefault(entry.name, (entry, []))[1].append(offset)
        else:
            outcomes[offset] = entry

    async def locate(wanted: tuple[ChunkEntry, list[int]]) -> _Located | None:
        try:
            return await _locate(partition, await partition.chunk(wanted[0]), wanted[1], outcomes)
        except Damaged as error:
            outcomes.update((offset, Lost(error)) for offset in wanted[1] if offset not in outcomes)
            return None

    located = prefetched(_each(by_chunk.values()), locate, cost=lambda _: 1, budget=CONCURRENT_INDEXES)
    await _read(partition, located, outcomes)
    return outcomes


async def look_up_position(partition: ArchivedPartition, position: Position) -> Outcome:
    """The first record at or after a position."""
    if isinstance(position, AtTime):
        try:
            return await _first_since(partition, position.timestamp)
        except Damaged as error:
            return Lost(error)
    offset = await resolve_position(position, partition)
    while True:
        outcome = (await look_up_all(partition, [offset]))[offset]
        match outcome:
            case InGap(gap):
                offset = gap.end
            case Hole(after=int(after)):
                offset = after
            case Hole() | NotYet():
                return AfterLast(partition.next_offset)
            case _:
                return outcome


async def _first_since(partition: ArchivedPartition, timestamp: int) -> Found | Absent:
    place = await block_at_time(partition, timestamp)
    if place is None:
        return AfterLast(partition.next_offset)
    chunk, number = place
    batch = await read_block(partition, chunk, number)
    reached = np.flatnonzero(batch.column("timestamp").to_numpy() >= timestamp)
    row = int(reached[0]) if len(reached) else 0
    return Found(_record(batch, row), chunk.index.data.bytes)


def _told_by_marker(partition: ArchivedPartition, offset: int) -> Absent | None:
    gap = gap_at(partition.marker.gaps, offset)
    if gap is not None:
        return InGap(gap)
    if partition.marker.next_offset is None or offset >= partition.marker.next_offset:
        return NotYet(partition.next_offset)
    return BeforeFirst(partition.start_offset) if offset < partition.start_offset else None


async def _entry(partition: ArchivedPartition, offset: int) -> ChunkEntry | Hole | Lost:
    try:
        entry = await partition.chunk_at_or_after(offset)
        return entry or Hole(await _last_before(partition, offset), None)
    except Damaged as error:
        return Lost(error)


async def _locate(
    partition: ArchivedPartition, chunk: Chunk, offsets: Iterable[int], outcomes: dict[int, Outcome]
) -> _Located:
    """The offsets that a block must tell about; the others get their outcome."""
    blocks = chunk.index.blocks
    by_block: dict[int, list[int]] = {}
    for offset in offsets:
        gap = gap_at(chunk.index.gaps, offset)
        number = block_at_or_after(blocks, offset)
        if gap is not None:
            outcomes[offset] = InGap(gap)
        elif number is None:
            following = await partition.chunk_at_or_after(chunk.entry.next_offset)
            outcomes[offset] = Hole(chunk.entry.last_offset, following.first_offset if following else None)
        elif blocks[number].first_record_offset > offset:
            before = blocks[number - 1].last_record_offset if number else await _last_before(partition, offset)
            outcomes[offset] = Hole(before, blocks[number].first_record_offset)
        else:
            by_block.setdefault(number, []).append(offset)
    return _Located(chunk, by_block)


async def _read(
    partition: ArchivedPartition, located: AsyncIterator[_Located | None], outcomes: dict[int, Outcome]
) -> None:
    """Reads the blocks and adds the outcomes of all offsets in them."""
    wanted: dict[tuple[str, int], Sequence[int]] = {}

    async def reads() -> AsyncIterator[RangeRead]:
        async for place in located:
            if place is not None:
                wanted.update({(place.chunk.data_key, number): offsets for number, offsets in place.blocks.items()})
                for numbers in range_groups(place.chunk.index.blocks, sorted(place.blocks), RANGE_BYTES):
                    yield RangeRead(place.chunk, numbers)

    async def fetch(read: RangeRead) -> list[StoredBlock]:
        try:
            return await fetch_blocks(partition, read.chunk, read.numbers)
        except Damaged as error:
            if len(read.numbers) > 1:
                singles = [RangeRead(read.chunk, range(number, number + 1)) for number in read.numbers]
                return [block for single in singles for block in await fetch(single)]
            offsets = wanted.pop((read.chunk.data_key, read.numbers.start))
            outcomes.update(dict.fromkeys(offsets, Lost(error)))
            return []

    async def singly() -> AsyncIterator[StoredBlock]:
        fetched = prefetched(reads(), fetch, cost=lambda read: read.num_bytes, budget=READ_AHEAD.fetched)
        async for blocks in fetched:
            for block in blocks:
                yield block

    async def decide(block: StoredBlock) -> None:
        offsets = wanted.pop((block.chunk.data_key, block.number))
        try:
            batch = await asyncio.to_thread(decoded_near, block, offsets, partition.max_block_bytes)
        except Damaged as error:
            outcomes.update(dict.fromkeys(offsets, Lost(error)))
            return
        outcomes.update(_in_batch(batch, offsets, block.chunk.index.data.bytes))

    decided = prefetched(
        singly(), decide, cost=lambda block: block.entry.byte_length_uncompressed, budget=READ_AHEAD.decoded
    )
    async for _ in decided:
        pass


def _in_batch(batch: pa.RecordBatch, offsets: Sequence[int], chunk_bytes: int) -> dict[int, Outcome]:
    """What a block tells of offsets between its first and last record, both included."""
    present = batch.column("offset").to_numpy()
    outcomes: dict[int, Outcome] = {}
    for offset, row in zip(offsets, np.searchsorted(present, offsets), strict=True):
        if present[row] == offset:
            outcomes[offset] = Found(_record(batch, int(row)), chunk_bytes)
        else:
            outcomes[offset] = Hole(int(present[row - 1]), int(present[row]))
    return outcomes


def _record(batch: pa.RecordBatch, row: int) -> Record:
    return next(iter_records(batch.slice(row, 1)))


async def _last_before(partition: ArchivedPartition, offset: int) -> int | None:
    entry = await partition.chunk_before(offset)
    while entry is not None and entry.last_offset >= offset:
        entry = await partition.chunk_before(entry.start_offset)
    return entry.last_offset if entry is not None else None


async def _each(
    wanted: Iterable[tuple[ChunkEntry, list[int]]],
) -> AsyncIterator[tuple[ChunkEntry, list[int]]]:
    for each in wanted:
        yield each
