"""The plan of a replay: what is known before the first record, and where the archive says it.

Sums over blocks, and records that a target would refuse.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow.compute as pc

from blockgz_runtime.record_filter import RecordFilter
from index_format.chunk_index import BlockEntry, Gap
from index_format.marker import ChunkEntry
from index_format.seek import TimeBounded, blocks_between
from replayer.kafka.topic_facts import TopicConfig, TopicFacts, Watermarks
from replayer.read.blocks import RANGE_BYTES, read_block, unreadable_blocks, unreadable_chunk
from replayer.read.damage import Damaged, DamagePolicy, Unreadable, across_rewrites
from replayer.read.partition import ArchivedPartition, Chunk
from replayer.read.positions import OffsetRange
from replayer.read.prefetch import prefetched
from replayer.read.selection import Reading, Selection, chosen_entries, selected, trimmed
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

    `records` are those inside; `bytes` (encoded, uncompressed) take a share of the blocks at the edges. A filter makes
    both upper bounds. To read them takes `stored_bytes` and `requests` of the store.
    """

    partition: int
    start: int
    end: int
    records: int
    bytes: int
    timestamps: TimeBounds | None
    """Of the blocks that are read; None where there are none."""
    gaps: tuple[Gap, ...] = ()
    """Recorded gaps that begin or end inside."""
    pruned: OffsetRange | None = None
    """What lies below the floor, where that is where the offsets begin."""
    record_formats: frozenset[str] = frozenset({"json"})
    stored_bytes: int = 0
    requests: int = 0


class RecordPlace(NamedTuple):
    """Where a record stands in the archive."""

    partition: int
    offset: int


class SoloBlock(NamedTuple):
    """A record that fills a block of its own, and the block's compressed size in bytes."""

    place: RecordPlace
    bytes: int


@dataclass(frozen=True)
class Findings:
    """What the records themselves have to say where the target's configuration asks; None: nothing found, or not asked.

    `without_key` is a record that has no key, `largest_solo` the largest record that fills a block of its own.
    """

    without_key: RecordPlace | None = None
    largest_solo: SoloBlock | None = None


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

    @property
    def records(self) -> int:
        """Records of all partitions; with a filter an upper bound, as each source's."""
        return sum(source.records for source in self.sources)

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
EVERYTHING = Reading()


async def describe_source(selection: Selection, reading: Reading = EVERYTHING) -> SourcePartition:
    """Sums over the chunks of a selection.

    Where it cuts through a chunk, its index is read, and where it cuts through a block, the block; one index more for
    the record format. Blocks whose timestamps the filter rules out do not count. Raises a FormatError or ObjectMissing
    where the archive is damaged, unless the reading passes over damage.
    """
    on_damage = reading.on_damage(selection.partition)

    async def described(partition: ArchivedPartition) -> SourcePartition:
        return await _described(selection._replace(partition=partition), reading, on_damage)

    return await across_rewrites(selection.partition, described)


async def _described(selection: Selection, reading: Reading, on_damage: DamagePolicy) -> SourcePartition:
    partition, (start, end) = selection
    wanted = reading.filter.may_match
    spans: list[ChunkEntry | BlockEntry] = []
    formats: set[str] = set()
    sums = _Sums()
    async for entry in _entries(selection, wanted, on_damage):
        whole = start <= entry.first_offset and entry.last_offset < end
        if not whole or not formats:
            chunk = await _chunk(partition, entry, on_damage)
            if chunk is None:
                continue
            formats.add(chunk.index.record_format)
            if not whole:
                blocks = [block for block in _selected(chunk, start, end) if wanted(block)]
                stored = sum(block.byte_length for block in blocks)
                for block in blocks:
                    records = await _records_inside(selection, chunk, block, on_damage)
                    spans += [block] if records else []
                    sums.add(records, block.byte_length_uncompressed * records // block.num_records)
                sums.read(stored)
                continue
        spans.append(entry)
        sums.add(entry.num_records, entry.raw_bytes)
        sums.read(entry.bytes)
    return SourcePartition(
        partition=partition.partition,
        start=start,
        end=end,
        records=sums.records,
        bytes=sums.bytes,
        timestamps=_bounds(spans, reading.filter),
        gaps=tuple(gap for gap in await _gaps(selection, on_damage) if gap.start < end and gap.end > start),
        pruned=OffsetRange(partition.began_at, start) if partition.began_at < partition.floor == start else None,
        record_formats=frozenset(formats),
        stored_bytes=sums.stored_bytes,
        requests=sums.requests,
    )


@dataclass
class _Sums:
    """What is counted of a source on the way."""

    records: int = 0
    bytes: int = 0
    stored_bytes: int = 0
    requests: int = 0

    def add(self, records: int, num_bytes: int) -> None:
        self.records += records
        self.bytes += num_bytes

    def read(self, stored_bytes: int) -> None:
        """The index of a chunk, and so much of its data."""
        self.stored_bytes += stored_bytes
        self.requests += 1 + -(-stored_bytes // RANGE_BYTES)


async def _records_inside(selection: Selection, chunk: Chunk, block: BlockEntry, on_damage: DamagePolicy) -> int:
    """How many records of the block the selection takes; a block that it cuts through is read."""
    partition, (start, end) = selection
    if start <= block.first_record_offset and block.last_record_offset < end:
        return block.num_records
    number = chunk.index.blocks.index(block)
    try:
        return int(trimmed(await read_block(partition, chunk, number), start, end).num_rows)
    except Damaged as error:
        on_damage.meet(unreadable_blocks(chunk, range(number, number + 1), error))
        return 0


async def find_refusable(
    selections: Sequence[Selection], config: TopicConfig | None, reading: Reading = EVERYTHING
) -> Findings:
    """What the target's configuration asks of single records: keys where it is compacted, sizes where it limits them.

    Reads records up to the first without a key for the one, all indexes for the other; nothing where neither is asked.
    Sizes are not looked at where the filter asks for more than times: indexes do not tell whose they are.
    """
    if config is None:
        return Findings()
    without_key = await _first_without_key(selections, reading) if config.compacts else None
    sized = config.max_message_bytes is not None and not reading.filter.conditions
    return Findings(without_key, await _largest_solo(selections, reading) if sized else None)


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


async def _largest_solo(selections: Sequence[Selection], reading: Reading) -> SoloBlock | None:
    """The largest block that holds one record: nothing that a producer can choose compresses it much better."""
    largest: SoloBlock | None = None
    wanted = reading.filter.may_match
    for selection in selections:
        partition, (start, end) = selection
        on_damage = reading.on_damage(partition)
        entries = _entries(selection, wanted, on_damage)
        opened = partial(_chunk, partition, on_damage=on_damage)
        async for chunk in prefetched(entries, opened, cost=lambda _: 1, budget=INDEXES_AT_ONCE):
            if chunk is None:
                continue
            for block in _selected(chunk, start, end):
                if block.num_records == 1 and wanted(block) and (largest is None or block.byte_length > largest.bytes):
                    place = RecordPlace(partition.partition, block.first_record_offset)
                    largest = SoloBlock(place, block.byte_length)
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
    partition, (start, end) = selection
    try:
        return await partition.gaps()
    except Damaged as error:
        on_damage.meet(Unreadable(start, end, 0, partition.keys.marker, error))
        return partition.listed_gaps


def _bounds(spans: Sequence[ChunkEntry | BlockEntry], asked: RecordFilter) -> TimeBounds | None:
    """The timestamps that the records of some spans may have, as far as the filter lets them."""
    if not spans:
        return None
    low, high = min(span.min_timestamp for span in spans), max(span.max_timestamp for span in spans)
    since, until = low if asked.since is None else asked.since, high if asked.until is None else asked.until - 1
    return TimeBounds(max(low, since), min(high, until))


def _selected(chunk: Chunk, start: int, end: int) -> Sequence[BlockEntry]:
    numbers = blocks_between(chunk.index.blocks, start, end)
    return chunk.index.blocks[numbers.start : numbers.stop]
