"""Records by offset or time, many at once, or for each the reason why there is none."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.blocks import RANGE_BYTES, READ_AHEAD, RangeRead, StoredBlock, decoded, fetch_range, read_block
from blockgz.archive.partition import (
    MOST_REWRITES,
    ArchivedPartition,
    Chunk,
    Damaged,
    Unreadable,
    across_rewrites,
    prefetched,
    streamed,
)
from blockgz.archive.positions import (
    AtOffset,
    AtTime,
    BeforeEnd,
    Position,
    block_at_time,
    first_row_since,
    parse_position,
    resolve_position,
)
from blockgz.errors import BlockgzError, NotInArchive, UsageError
from index_format.blocks import decode_block_near
from index_format.keys import parse_topic_folder
from index_format.marker import ChunkEntry, block_at_or_after, gap_at, range_groups
from index_format.objects import EMPTY, ERASED, Gap
from index_format.records import Record, batch_from_records, is_large, record_at

CONCURRENT_INDEXES = 16
CONCURRENT_PARTITIONS = 8

T = TypeVar("T")


@dataclass(frozen=True)
class FoundRecord:
    """The record, and the bytes of the whole chunk that it was cut out of."""

    batch: pa.RecordBatch
    """The record alone."""
    chunk_bytes: int

    @property
    def record(self) -> Record:
        return record_at(self.batch, 0)


@dataclass(frozen=True)
class Absent:
    """The reason why an offset has no record."""

    kind: Literal["before first", "pruned", "erased", "gap", "hole", "not yet", "after last"]
    why: str
    """The reason, for people."""
    resume: int | None = None
    """The offset where a search for a later record continues; None if the archive cannot say."""


def pruned(floor: int) -> Absent:
    """Return the answer for an offset below the floor."""
    return Absent("pruned", f"it was pruned: the archive keeps nothing of this partition below offset {floor}", floor)


def erased(start: int, end: int) -> Absent:
    """Return the answer for a record that was erased with all others at offsets [start, end)."""
    return Absent("erased", f"it was erased from the archive, as offsets [{start}..{end}) were", end)


def in_gap(gap: Gap) -> Absent:
    """Return the answer for an offset that the archive lost, never saw, or erased."""
    if gap.reason == ERASED:
        return erased(gap.start, gap.end)
    return Absent("gap", f"it is in the recorded gap [{gap.start}..{gap.end}): {gap.reason}", gap.end)


def hole(before: int | None, after: int | None) -> Absent:
    """Return the answer for an offset that never had a record, or lost it to compaction, by its neighbours."""
    below = "none lies before" if before is None else f"the one before is {before}"
    above = "none follows yet" if after is None else f"the next is {after}"
    return Absent("hole", f"the log held no record there (compaction or a transaction): {below}, {above}", after)


def not_yet(next_offset: int) -> Absent:
    """Return the answer for an offset at or above the archive's end."""
    return Absent("not yet", f"it is not archived yet: the archive ends before offset {next_offset}")


def _after_last(next_offset: int) -> Absent:
    return Absent("after last", f"no archived record is that late: the archive ends before offset {next_offset}")


@dataclass(frozen=True)
class Lost:
    """The archive would have it, but what should tell is damaged or missing."""

    error: BlockgzError


Outcome = FoundRecord | Absent | Lost
# Outcomes by offset.
Outcomes = dict[int, Outcome]


async def look_up(partition: ArchivedPartition, offset: int) -> FoundRecord | Absent:
    """Return the record at an offset, or why there is none; raises a FormatError or ObjectMissing if damaged."""
    # At most one index, one block and one catalog per level are read, and at the edge of a chunk the next index.
    outcome = (await look_up_all(partition, [offset]))[offset]
    if isinstance(outcome, Lost):
        raise outcome.error
    return outcome


async def look_up_all(partition: ArchivedPartition, offsets: Iterable[int]) -> Outcomes:
    """Return the outcomes of many offsets, all in memory; damage costs only the offsets that it holds."""
    # Each index and block is read once, adjacent blocks together.
    outcomes = await _all_outcomes(partition, offsets)
    # An object may have been rewritten and deleted since the marker was read.
    for _ in range(MOST_REWRITES):
        lost = [offset for offset, outcome in outcomes.items() if isinstance(outcome, Lost)]
        newer = await partition.newer(lost[0]) or await partition.newer() if lost else None
        if newer is None:
            break
        partition = newer
        outcomes |= await _all_outcomes(partition, lost)
    return outcomes


async def _all_outcomes(partition: ArchivedPartition, offsets: Iterable[int]) -> Outcomes:
    wanted = sorted(set(offsets))
    outcomes: Outcomes = {}
    by_chunk: dict[str, tuple[ChunkEntry, list[int]]] = {}
    for offset, entry in zip(wanted, await asyncio.gather(*(_entry(partition, o) for o in wanted)), strict=True):
        if isinstance(entry, ChunkEntry):
            by_chunk.setdefault(entry.name, (entry, []))[1].append(offset)
        else:
            outcomes[offset] = entry
    located = prefetched(
        streamed(by_chunk.values()), partial(_located, partition, outcomes), cost=lambda _: 1, budget=CONCURRENT_INDEXES
    )
    # What is decoded at once is bounded, not what is fetched: the former is what takes memory.
    decided = prefetched(
        _one_by_one(located), partial(_decided, partition, outcomes), cost=_raw_bytes, budget=READ_AHEAD.decoded
    )
    async for _ in decided:
        pass
    return outcomes


class TimedOffset(NamedTuple):
    """The position of a partition at a time: the first record, in offset order, with this or a later timestamp."""

    topic: str
    partition: int
    time: int
    """The requested time, ms since the epoch."""
    offset: int
    """The record's offset; the end of the partition if no record is as late."""
    timestamp: int | None
    """The record's own, ms since the epoch; None if no record is as late or it has none."""
    found: bool
    """True if a record is as late."""

    @property
    def document(self) -> dict[str, Any]:
        """The position as JSON."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "time_ms": self.time,
            "offset": self.offset,
            "timestamp_ms": self.timestamp,
            "found": self.found,
        }


async def offset_at(partition: ArchivedPartition, at: AtTime) -> TimedOffset:
    """Return the position of a partition at a time; raises a FormatError or ObjectMissing at damage."""
    outcome = await look_up_position(partition, at)
    if isinstance(outcome, Lost):
        raise outcome.error
    assert isinstance(outcome, FoundRecord | Absent)
    record = outcome.record if isinstance(outcome, FoundRecord) else None
    offset = record.offset if record else partition.next_offset
    timestamp = record.timestamp if record and record.timestamp >= 0 else None
    return TimedOffset(partition.topic, partition.partition, at.timestamp, offset, timestamp, record is not None)


async def look_up_position(partition: ArchivedPartition, position: Position) -> Outcome:
    """Return the first record at or after a position; for `latest` and `-N` the newest if none is as late."""
    if isinstance(position, AtTime):
        try:
            return await across_rewrites(partition, lambda newest: _first_since(newest, position.timestamp))
        except Damaged as error:
            return Lost(error)
    offset = await resolve_position(position, partition)
    while True:
        outcome = (await look_up_all(partition, [offset]))[offset]
        if not isinstance(outcome, Absent) or outcome.kind == "before first":
            return outcome
        if outcome.resume is None:
            # The last offsets of a transactional topic hold no record: `-1` alone would never find one.
            is_newest = isinstance(position, BeforeEnd)
            return await _newest(partition) if is_newest else _after_last(partition.next_offset)
        offset = outcome.resume


async def _newest(partition: ArchivedPartition) -> Outcome:
    try:
        offset = await across_rewrites(partition, lambda newest: _last_before(newest, partition.next_offset))
    except Damaged as error:
        return Lost(error)
    return _after_last(partition.next_offset) if offset is None else (await look_up_all(partition, [offset]))[offset]


async def _first_since(partition: ArchivedPartition, timestamp: int) -> FoundRecord | Absent:
    place = await block_at_time(partition, timestamp)
    if place is None:
        return _after_last(partition.next_offset)
    chunk, number = place
    batch = await read_block(partition, chunk, number)
    return FoundRecord(_copy_row(batch, first_row_since(batch, timestamp)), chunk.index.data.bytes)


async def _entry(partition: ArchivedPartition, offset: int) -> ChunkEntry | Outcome:
    if partition.began_at <= offset < partition.floor:
        return pruned(partition.floor)
    try:
        gap = await partition.gap_at(offset)
        if gap is not None:
            return in_gap(gap)
        if partition.marker.next_offset is None or offset >= partition.marker.next_offset:
            return not_yet(partition.next_offset)
        if offset < partition.start_offset:
            start = partition.start_offset
            return Absent("before first", f"the archive begins at offset {start}")
        entry = await partition.chunk_at_or_after(offset)
        return entry or hole(await _last_before(partition, offset), None)
    except Damaged as error:
        return Lost(error)


# Blocks to read together, and the offsets to look for in each, by its number.
_Sought = tuple[RangeRead, Mapping[int, Sequence[int]]]


async def _located(
    partition: ArchivedPartition, outcomes: Outcomes, wanted: tuple[ChunkEntry, Sequence[int]]
) -> list[_Sought]:
    """Find the blocks of a chunk that hold the offsets; an offset without one gets its outcome."""
    entry, offsets = wanted
    try:
        chunk = await partition.chunk(entry)
    except Damaged as error:
        outcomes.update(dict.fromkeys(offsets, Lost(error)))
        return []
    by_block: dict[int, list[int]] = {}
    for offset in offsets:
        block = await _block(partition, chunk, offset)
        if isinstance(block, int):
            by_block.setdefault(block, []).append(offset)
        else:
            outcomes[offset] = block
    groups = range_groups(chunk.index.blocks, sorted(by_block), RANGE_BYTES)
    return [(RangeRead(chunk, group), {number: by_block[number] for number in group}) for group in groups]


async def _block(partition: ArchivedPartition, chunk: Chunk, offset: int) -> int | Outcome:
    blocks = chunk.index.blocks
    gap = gap_at(chunk.index.gaps, offset)
    if gap is not None and gap.reason != EMPTY:
        return in_gap(gap)
    gone = next((each for each in chunk.index.erased or () if offset in each), None)
    if gone is not None:
        return erased(gone.start, gone.end)
    number = block_at_or_after(blocks, offset)
    try:
        if number is None:
            following = await partition.chunk_at_or_after(chunk.entry.next_offset)
            return hole(chunk.entry.last_offset, following.first_offset if following else None)
        if blocks[number].first_record_offset > offset:
            before = blocks[number - 1].last_record_offset if number else await _last_before(partition, offset)
            return hole(before, blocks[number].first_record_offset)
    except Damaged as error:
        return Lost(error)
    return number


def _raw_bytes(sought: _Sought) -> int:
    return sum(sought[0].chunk.index.blocks[number].byte_length_uncompressed for number in sought[1])


async def _decided(partition: ArchivedPartition, outcomes: Outcomes, sought: _Sought) -> None:
    """Read a range of blocks; each offset that is looked for in it gets its outcome."""
    read, offsets = sought

    async def decide(block: StoredBlock | Unreadable) -> None:
        if isinstance(block, Unreadable):
            inside = (each for some in offsets.values() for each in some if block.start <= each < block.end)
            outcomes.update(dict.fromkeys(inside, Lost(block.error)))
            return
        here = offsets[block.number]
        try:
            near = partial(decode_block_near, offsets=here)
            batch = await asyncio.to_thread(decoded, near, block, partition.max_block_bytes)
        except Damaged as error:
            outcomes.update(dict.fromkeys(here, Lost(error)))
            return
        present = batch.column("offset").to_numpy()
        for offset, row in zip(here, np.searchsorted(present, here).tolist(), strict=True):
            if present[row] == offset:
                outcomes[offset] = FoundRecord(_copy_row(batch, row), read.chunk.index.data.bytes)
            else:
                outcomes[offset] = hole(int(present[row - 1]), int(present[row]))

    await asyncio.gather(*(decide(block) for block in await fetch_range(partition, read)))


def _copy_row(batch: pa.RecordBatch, row: int) -> pa.RecordBatch:
    if batch.num_rows == 1:
        return batch
    if is_large(batch.slice(row, 1)):
        return batch.take([row])
    # Not by `take`, which loads all of Arrow's functions: a tenth of the start of a look-up.
    return batch_from_records([record_at(batch, row)])


async def _last_before(partition: ArchivedPartition, offset: int) -> int | None:
    entry = await partition.chunk_before(offset)
    while entry is not None and entry.last_offset >= offset:
        entry = await partition.chunk_before(entry.start_offset)
    return entry.last_offset if entry is not None else None


async def _one_by_one(lists: AsyncIterator[Sequence[T]]) -> AsyncIterator[T]:
    async for items in lists:
        for item in items:
            yield item


class RecordQuery(NamedTuple):
    """A record to look up; `text` is how it was written."""

    topic: str
    partition: int
    position: Position
    text: str


def parse_query(text: str, now: int, zone: tzinfo | None = None) -> RecordQuery:
    """Return the record that `orders:3:17` names, `now` in ms since the epoch; raises UsageError or BadName."""
    match = re.fullmatch(r"([^:]+):([0-9]{1,10}):(.+)", text, re.ASCII)
    if match is None:
        raise UsageError(
            f"{text[:300]!r} names no record", why="it is not TOPIC:PARTITION:OFFSET", remedy="write orders:3:17"
        )
    parse_topic_folder(match[1])
    return RecordQuery(match[1], int(match[2]), parse_position(match[3], now, zone), text)


def failure(query: RecordQuery, outcome: Absent | Lost | NotInArchive) -> BlockgzError:
    """Return the error that says why a record is missing."""
    if isinstance(outcome, NotInArchive):
        return outcome
    if isinstance(outcome, Lost):
        return outcome.error
    return NotInArchive(f"there is no record {query.text}", why=outcome.why, remedy="see `replayer describe TOPIC`")


async def look_up_together(
    archive: ArchiveReader, queries: Sequence[RecordQuery]
) -> dict[RecordQuery, Outcome | NotInArchive]:
    """Return the outcome of each query: one look at each marker, and neighbours are read together."""
    limit = asyncio.Semaphore(CONCURRENT_PARTITIONS)

    async def in_partition(topic: str, number: int, positions: Sequence[Position]) -> list[Outcome | NotInArchive]:
        async with limit:
            try:
                partition = await archive.open_partition(topic, number)
            except NotInArchive as error:
                return [error] * len(positions)
            except Damaged as error:
                return [Lost(error)] * len(positions)
            exact = await look_up_all(partition, [each.offset for each in positions if isinstance(each, AtOffset)])
            return [
                exact[position.offset]
                if isinstance(position, AtOffset)
                else await look_up_position(partition, position)
                for position in positions
            ]

    groups: dict[tuple[str, int], list[RecordQuery]] = {}
    for query in dict.fromkeys(queries):
        groups.setdefault((query.topic, query.partition), []).append(query)
    results = await asyncio.gather(
        *(in_partition(*where, [query.position for query in group]) for where, group in groups.items())
    )
    return {
        query: outcome
        for group, outcomes in zip(groups.values(), results, strict=True)
        for query, outcome in zip(group, outcomes, strict=True)
    }
