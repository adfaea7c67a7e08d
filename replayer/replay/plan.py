"""The plan of a replay: what is known before the first record, and where the archive says it.

Sums over blocks, and records that a target would refuse.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow.compute as pc

from blockgz.archive.blocks import (
    RANGE_BYTES,
    StoredBlock,
    decoded,
    readable_chunks,
    stored_blocks,
    unreadable_chunk,
    worked,
)
from blockgz.archive.cuts import Cut
from blockgz.archive.damage import Damaged, DamagePolicy, Unreadable, across_rewrites
from blockgz.archive.partition import ArchivedPartition, Chunk, prefetched, streamed
from blockgz.archive.positions import Budget, OffsetRange
from blockgz.archive.selection import Reading, Selection, chosen_entries, scan, selected, trimmed
from blockgz.kafka.batch_producer import sizes_above
from blockgz.record_filter import RecordFilter
from index_format.chunk_index import BlockEntry, Gap
from index_format.marker import ChunkEntry
from index_format.seek import TimeBounded, blocks_between
from replayer.kafka.topic_facts import TopicConfig, TopicFacts, Watermarks
from replayer.replay.pipeline import KeepPartitions, Router

LOSSLESS_FORMATS = frozenset({"json", "arrow"})
"""Record formats that keep keys, headers and timestamps."""


class TimeBounds(NamedTuple):
    """The smallest and largest timestamp of some records, ms since the epoch, -1 for a record that has none."""

    min: int
    max: int


@dataclass(frozen=True)
class SourcePartition:
    """Archived records of offsets [start, end) of one partition.

    `records` are those inside, and at most so many unless `is_exact`; `bytes` (encoded, uncompressed) take a share of
    the blocks at the edges. To read them takes `stored_bytes` and `requests` of the store.
    """

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    timestamps: TimeBounds | None
    """The times of these records; None if there are none."""
    gaps: tuple[Gap, ...] = ()
    """Recorded gaps that begin or end inside."""
    pruned: OffsetRange | None = None
    """What lies below the floor, where that is where the offsets begin."""
    record_formats: frozenset[str] = frozenset({"json"})
    stored_bytes: int = 0
    requests: int = 0
    is_exact: bool = True


class RecordPlace(NamedTuple):
    """Where a record stands in the archive."""

    partition: int
    offset: int


class LargeRecord(NamedTuple):
    """A record that is larger than a limit, and the bytes that it takes in Kafka, compressed if that is smaller."""

    place: RecordPlace
    bytes: int


@dataclass(frozen=True)
class Findings:
    """What the records themselves have to say where the target's configuration asks; None: nothing found, or not asked.

    `without_key` is a record that has no key, `too_large` the first one that is larger than the target accepts.
    """

    without_key: RecordPlace | None = None
    too_large: LargeRecord | None = None


@dataclass(frozen=True)
class TargetRequest:
    """What was asked for; `into_source` is the operator's word that the source topic itself is meant."""

    topic: str
    target: str
    into_source: bool = False
    append: bool = False
    """The operator's word that the target may hold records already."""


@dataclass(frozen=True)
class JobState:
    """The job that the replay belongs to, and what is recorded of it; `written` are records in the target."""

    name: str
    transactional: bool
    resume: bool
    written: int = 0
    begun: bool = False
    complete: bool = False


@dataclass(frozen=True)
class Preflight:
    """Everything that is known before the first record; the checks of `preflight` look at this.

    `target` is None where the cluster has no such topic; `now_ms` is the time, ms since the epoch.
    """

    request: TargetRequest
    sources: tuple[SourcePartition, ...]
    target: TopicFacts | None
    watermarks: Mapping[int, Watermarks]
    findings: Findings
    now_ms: int
    router: Router = field(default_factory=KeepPartitions)
    job: JobState = JobState("unnamed", transactional=False, resume=False)
    creates: bool = False
    """Whether the replay makes the target; `target` says then what it will be like."""
    notes: tuple[str, ...] = ()
    """What is done to records and target that a plan should show."""
    lifted: Mapping[str, str] = field(default_factory=dict)
    """Settings that the target is created with for the time of the replay, in place of its own."""
    cuts: tuple[tuple[str, int, Cut], ...] = ()
    """By topic and partition, how ends as of a time were found."""
    cut_bytes: int = 0
    """Stored bytes of blocks that were read to find the cuts."""
    can_hold: bool = True
    """Whether the target's retention can be held for the time of the replay."""

    @property
    def lanes(self) -> tuple[int, ...]:
        """The target partitions that may get records, rising."""
        return tuple(sorted({lane for source in self.sources for lane in self.router.targets(source.partition)}))


@dataclass(frozen=True)
class ReplayPlan:
    """Which records go where, by `router`: order is kept inside a partition."""

    topic: str
    target: str
    target_partitions: int
    sources: tuple[SourcePartition, ...]
    warnings: tuple[str, ...]
    router: Router
    job: JobState
    notes: tuple[str, ...] = ()
    lifted: Mapping[str, str] = field(default_factory=dict)
    """As in Preflight."""
    cuts: tuple[tuple[str, int, Cut], ...] = ()
    """As in Preflight."""
    cut_bytes: int = 0

    @property
    def records(self) -> int:
        """Records of all partitions, at most so many unless `is_exact`."""
        return sum(source.records for source in self.sources)

    @property
    def is_exact(self) -> bool:
        """Return whether `records` is the number that will be written, not only a bound."""
        return all(source.is_exact for source in self.sources)

    @property
    def bytes(self) -> int:
        """Encoded bytes of all partitions, likewise."""
        return sum(source.bytes for source in self.sources)

    @property
    def stored_bytes(self) -> int:
        """Bytes of data and of no index that the store will give."""
        return sum(source.stored_bytes for source in self.sources)

    @property
    def requests(self) -> int:
        """Requests for data and indexes, some more for retries."""
        return sum(source.requests for source in self.sources)

    @property
    def span_ms(self) -> int:
        """The time from the earliest to the latest record."""
        bounds = [source.timestamps for source in self.sources if source.timestamps]
        return max(each.max for each in bounds) - min(each.min for each in bounds) if bounds else 0


INDEXES_AT_ONCE = 8
EDGE_BYTES = 1024**3
"""Stored bytes of blocks that a plan reads at most in order to count by timestamp."""
EVERYTHING = Reading()


async def describe_source(
    selection: Selection, reading: Reading = EVERYTHING, budget: Budget | None = None
) -> SourcePartition:
    """Return the records, sizes and times of a selection.

    Indexes of chunks that the selection divides are read, and blocks that it divides: by offset all of them, by
    timestamp as many as `budget` allows; the rest count whole. One index more is read for the record format. Raises a
    FormatError or ObjectMissing if the archive is damaged, unless the reading skips damage.
    """
    on_damage, budget = reading.on_damage(selection.partition), budget or Budget(EDGE_BYTES)

    async def described(partition: ArchivedPartition) -> SourcePartition:
        return await _described(selection._replace(partition=partition), reading, on_damage, budget)

    return await across_rewrites(selection.partition, described)


async def _described(
    selection: Selection, reading: Reading, on_damage: DamagePolicy, budget: Budget
) -> SourcePartition:
    partition, (start, end) = selection[:2]
    sums = _Sums(selection.offsets, reading.filter, budget)
    divided: list[ChunkEntry | Unreadable] = []
    whole: ChunkEntry | None = None
    async for found in chosen_entries(partition, start, end, reading.filter.may_match):
        if isinstance(found, ChunkEntry) and sums.holds(found, found.first_offset, found.last_offset):
            whole = found
            sums.add(found, found.num_records, found.raw_bytes)
            sums.read(found.bytes)
        else:
            divided.append(found)
    await _add_divided(partition, divided, sums, on_damage)
    if whole is not None and not sums.formats:
        chunk = await _chunk(partition, whole, on_damage)
        sums.formats |= {chunk.index.record_format} if chunk is not None else set()
    return SourcePartition(
        partition=partition.partition,
        start=start,
        end=end,
        records=sums.records,
        bytes=sums.bytes,
        timestamps=sums.times,
        is_exact=sums.is_exact and not reading.filter.conditions,
        gaps=tuple(gap for gap in await _gaps(selection, on_damage) if gap.start < end and gap.end > start),
        pruned=OffsetRange(partition.began_at, start) if partition.began_at < partition.floor == start else None,
        record_formats=frozenset(sums.formats),
        stored_bytes=sums.stored_bytes,
        requests=sums.requests,
    )


@dataclass
class _Sums:
    """What is counted of a source on the way."""

    offsets: OffsetRange
    asked: RecordFilter
    budget: Budget
    records: int = 0
    bytes: int = 0
    times: TimeBounds | None = None
    is_exact: bool = True
    formats: set[str] = field(default_factory=set)
    stored_bytes: int = 0
    requests: int = 0

    def add(self, span: TimeBounded, records: int, num_bytes: int) -> None:
        """Count some records; `span` bounds their times, and what was asked for as well."""
        self.records += records
        self.bytes += num_bytes
        low, high = span.min_timestamp, span.max_timestamp
        low = low if self.asked.since is None else max(low, self.asked.since)
        high = high if self.asked.until is None else min(high, self.asked.until - 1)
        self.times = TimeBounds(min(low, *(self.times or (low,))), max(high, *(self.times or (high,))))

    def read(self, stored_bytes: int) -> None:
        """The index of a chunk, and so much of its data."""
        self.stored_bytes += stored_bytes
        self.requests += 1 + -(-stored_bytes // RANGE_BYTES)

    def holds(self, span: TimeBounded, first: int, last: int) -> bool:
        """Return whether all records of a span are selected; `first` and `last` are its offsets."""
        since, until = self.asked.since, self.asked.until
        in_time = (since is None or span.min_timestamp >= since) and (until is None or span.max_timestamp < until)
        return in_time and self._holds_offsets(first, last)

    def _holds_offsets(self, first: int, last: int) -> bool:
        return self.offsets.start <= first and last < self.offsets.end

    def must_read(self, block: TimeBounded) -> bool:
        """Return whether the records of a block have to be looked at one by one; count it here if not."""
        assert isinstance(block, BlockEntry)
        place = block.first_record_offset, block.last_record_offset
        if not self.asked.may_match(block):
            return False
        if not self.holds(block, *place):
            if not self._holds_offsets(*place) or self.budget.take(block.byte_length):
                return True
            self.is_exact = False
        self.add(block, block.num_records, block.byte_length_uncompressed)
        return False


class _Kept(NamedTuple):
    """The selected records of a block that was read, and the bounds of their times."""

    block: BlockEntry
    records: int
    min_timestamp: int
    max_timestamp: int


async def _add_divided(
    partition: ArchivedPartition, entries: Sequence[ChunkEntry | Unreadable], sums: _Sums, on_damage: DamagePolicy
) -> None:
    """Count the selected records of chunks that the selection divides."""
    start, end = sums.offsets
    in_time = RecordFilter(sums.asked.since, sums.asked.until)

    def kept(stored: StoredBlock) -> _Kept:
        block, rows = stored.entry, trimmed(decoded(stored, partition.max_block_bytes), start, end)
        rows = in_time.apply(rows)
        if not rows.num_rows or stored.chunk.index.record_format not in LOSSLESS_FORMATS:
            return _Kept(block, rows.num_rows, block.min_timestamp, block.max_timestamp)
        times = pc.min_max(rows.column("timestamp")).as_py()
        return _Kept(block, rows.num_rows, times["min"], times["max"])

    chunks = readable_chunks(partition, streamed(entries))
    async with aclosing(worked(stored_blocks(partition, chunks, start, end, sums.must_read), kept)) as items:
        async for item in items:
            match item:
                case Unreadable():
                    on_damage.meet(item._replace(start=max(item.start, start), end=min(item.end, end)))
                case _Kept(block, records) if records:
                    sums.add(item, records, block.byte_length_uncompressed * records // block.num_records)
                case Chunk():
                    sums.formats.add(item.index.record_format)
                    wanted = filter(sums.asked.may_match, _selected(item, start, end))
                    sums.read(sum(block.byte_length for block in wanted))


async def find_refusable(
    selections: Sequence[Selection], config: TopicConfig | None, reading: Reading = EVERYTHING, codec: str = "lz4"
) -> Findings:
    """Return what the target's configuration asks of records: keys if it is compacted, sizes if it limits them.

    For keys, records are read up to the first without one. For sizes, blocks are read that are larger, uncompressed,
    than the limit; `codec` compresses what is sent.
    """
    if config is None:
        return Findings()
    without_key = await _first_without_key(selections, reading) if config.compacts else None
    limit = config.max_message_bytes
    return Findings(without_key, None if limit is None else await _first_too_large(selections, limit, codec, reading))


async def _first_without_key(selections: Sequence[Selection], reading: Reading) -> RecordPlace | None:
    for selection in selections:
        partition = selection.partition
        async with aclosing(selected(selection, reading.filter, reading.on_damage(partition))) as batches:
            async for batch in batches:
                keys = batch.column("key")
                if keys.null_count:
                    row = pc.index(pc.is_null(keys), True).as_py()
                    return RecordPlace(partition.partition, batch.column("offset")[row].as_py())
    return None


async def _first_too_large(
    selections: Sequence[Selection], limit: int, codec: str, reading: Reading
) -> LargeRecord | None:
    def may_hold_one(span: TimeBounded) -> bool:
        match span:
            case BlockEntry(byte_length_uncompressed=size) | ChunkEntry(raw_bytes=size):
                return size > limit and reading.filter.may_match(span)
            case _:
                return reading.filter.may_match(span)

    for partition, (start, end), *_ in selections:
        batches = scan(partition, start, end, may_hold_one, on_damage=reading.on_damage(partition))
        async with aclosing(batches):
            async for batch in batches:
                for offset, size in sizes_above(reading.filter.apply(batch), limit, codec):
                    return LargeRecord(RecordPlace(partition.partition, offset), size)
    return None


async def largest_block(selections: Sequence[Selection], above: int, reading: Reading = EVERYTHING) -> int:
    """Return the uncompressed bytes of the largest block, or `above` if none is larger."""
    largest, wanted = above, reading.filter.may_match
    for selection in selections:
        partition, (start, end) = selection[:2]
        on_damage = reading.on_damage(partition)
        entries = (entry async for entry in _entries(selection, wanted, on_damage) if entry.raw_bytes > largest)
        opened = partial(_chunk, partition, on_damage=on_damage)
        async for chunk in prefetched(entries, opened, cost=lambda _: 1, budget=INDEXES_AT_ONCE):
            if chunk is not None:
                blocks = filter(wanted, _selected(chunk, start, end))
                largest = max([largest, *(block.byte_length_uncompressed for block in blocks)])
    return largest


async def _entries(
    selection: Selection, wanted: Callable[[TimeBounded], bool], on_damage: DamagePolicy
) -> AsyncIterator[ChunkEntry]:
    async for found in chosen_entries(selection.partition, *selection.offsets, wanted):
        if isinstance(found, ChunkEntry):
            yield found
        else:
            on_damage.meet(found)


async def _chunk(partition: ArchivedPartition, entry: ChunkEntry, on_damage: DamagePolicy) -> Chunk | None:
    try:
        return await partition.chunk(entry)
    except Damaged as error:
        on_damage.meet(unreadable_chunk(entry, partition.index_key(entry), error))
        return None


async def _gaps(selection: Selection, on_damage: DamagePolicy) -> tuple[Gap, ...]:
    partition, (start, end) = selection[:2]
    try:
        return await partition.gaps()
    except Damaged as error:
        on_damage.meet(Unreadable(start, end, 0, partition.keys.marker, error))
        return partition.listed_gaps


def _selected(chunk: Chunk, start: int, end: int) -> Sequence[BlockEntry]:
    numbers = blocks_between(chunk.index.blocks, start, end)
    return chunk.index.blocks[numbers.start : numbers.stop]
