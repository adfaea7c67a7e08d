"""The plan of a replay: what is known before the first record, and where the archive says it.

Sums over blocks, and records that a target would refuse.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec
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
from blockgz.archive.cuts import Cut, cut_lines
from blockgz.archive.partition import (
    ArchivedPartition,
    Chunk,
    Damaged,
    DamagePolicy,
    Unreadable,
    across_rewrites,
    prefetched,
    streamed,
)
from blockgz.archive.positions import Budget, OffsetRange
from blockgz.archive.selection import Reading, Selection, chosen_entries, scan, selected, trimmed
from blockgz.errors import NoSuchTopic
from blockgz.kafka import LogBounds
from blockgz.kafka.batch_producer import sizes_above
from blockgz.record_filter import RecordFilter
from blockgz.units import time_text
from index_format.blocks import decode_block
from index_format.marker import ChunkEntry, TimeBounded, blocks_between
from index_format.objects import BlockEntry, Gap
from replayer.errors import ReplayRefused
from replayer.kafka.topic_facts import EffectiveConfig, TopicFacts
from replayer.replay.job import Job
from replayer.replay.pipeline import NO_TIMESTAMP, Router, Routing

# Record formats that keep keys, headers and timestamps.
LOSSLESS_FORMATS = frozenset({"json", "arrow"})


class TimeBounds(NamedTuple):
    """The smallest and largest timestamp of some records, ms since the epoch, -1 for a record that has none."""

    min: int
    max: int


@dataclass(frozen=True)
class SourcePartition:
    """Archived records of offsets [start, end) of one partition.

    `records` is their number, an upper bound unless `is_exact`; `bytes` (encoded, uncompressed) take a share of
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
    """Offsets below the log start that were pruned, if the selection begins there."""
    record_formats: frozenset[str] = frozenset({"json"})
    stored_bytes: int = 0
    requests: int = 0
    is_exact: bool = True


class RecordPlace(NamedTuple):
    """The partition and offset of an archived record."""

    partition: int
    offset: int


@dataclass(frozen=True)
class ReplayPlan:
    """Everything that is known before the first record; `make_plan` refuses what the target would not keep.

    Without `append` or `into_source`, a target that holds records is refused.
    """

    topic: str
    target: str
    sources: tuple[SourcePartition, ...]
    facts: TopicFacts | None
    """The target topic as it is or will be created; None if it is missing."""
    now_ms: int
    router: Router = field(default_factory=Routing)
    """Order is kept inside a partition."""
    job: Job = field(default_factory=lambda: Job("unnamed", "", ""))
    transactional: bool = False
    resume: bool = False
    begun: bool = False
    """True if something is recorded of the job; `written` are its records in the target."""
    written: int = 0
    complete: bool = False
    into_source: bool = False
    append: bool = False
    watermarks: Mapping[int, LogBounds] = field(default_factory=dict)
    """Ends of the target's partitions."""
    without_key: RecordPlace | None = None
    """A record without a key, if the target requires keys."""
    too_large: tuple[RecordPlace, int] | None = None
    """The first record above the target's limit, and its bytes, compressed if that is smaller."""
    creates: bool = False
    """True if the replay creates the target."""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Changes to records and target that a plan should show."""
    lifted: Mapping[str, str] = field(default_factory=dict)
    """Settings that a new target has only until the replay is complete."""
    cuts: tuple[tuple[str, int, Cut], ...] = ()
    """Topic, partition, and how its end as of a time was found."""
    cut_bytes: int = 0
    """Stored bytes of blocks that were read to find the cuts."""
    can_hold: bool = True
    """True if the target's retention can be lifted during the replay."""
    missing: tuple[str, ...] = ()
    """Parts of the topic that the archive lacks by its inventory."""

    @property
    def target_partitions(self) -> int:
        return self.facts.num_partitions if self.facts else 0

    @property
    def lanes(self) -> tuple[int, ...]:
        """Target partitions that may get records, in ascending order."""
        return tuple(sorted({lane for source in self.sources for lane in self.router.targets(source.partition)}))

    @property
    def records(self) -> int:
        """Records of all partitions, an upper bound unless `is_exact`."""
        return sum(source.records for source in self.sources)

    @property
    def is_exact(self) -> bool:
        """Return whether `records` is the number that will be written, not only a bound."""
        return all(source.is_exact for source in self.sources)

    @property
    def bytes(self) -> int:
        """Encoded bytes of all partitions, an upper bound unless `is_exact`."""
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
# Stored bytes of blocks that a plan reads at most in order to count by timestamp.
EDGE_BYTES = 1024**3
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
    """The sums of a source while it is described."""

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
        """Count some records; `span` and the request bound their times."""
        self.records += records
        self.bytes += num_bytes
        low, high = span.min_timestamp, span.max_timestamp
        low = low if self.asked.since is None else max(low, self.asked.since)
        high = high if self.asked.until is None else min(high, self.asked.until - 1)
        self.times = TimeBounds(min(low, *(self.times or (low,))), max(high, *(self.times or (high,))))

    def read(self, stored_bytes: int) -> None:
        """Count the requests for a chunk's index and for `stored_bytes` of its data."""
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


async def _add_divided(
    partition: ArchivedPartition, entries: Sequence[ChunkEntry | Unreadable], sums: _Sums, on_damage: DamagePolicy
) -> None:
    """Count the selected records of chunks that the selection divides."""
    start, end = sums.offsets
    in_time = RecordFilter(sums.asked.since, sums.asked.until)

    def kept(stored: StoredBlock) -> BlockEntry | None:
        """Return the entry that a block would have if it held the selected records alone; None if there are none."""
        block, rows = stored.entry, trimmed(decoded(decode_block, stored, partition.max_block_bytes), start, end)
        rows = in_time.apply(rows)
        if not rows.num_rows:
            return None
        num_bytes = block.byte_length_uncompressed * rows.num_rows // block.num_records
        found = {"num_records": rows.num_rows, "byte_length_uncompressed": num_bytes}
        if stored.chunk.index.record_format in LOSSLESS_FORMATS:
            times = pc.min_max(rows.column("timestamp")).as_py()
            found |= {"min_timestamp": times["min"], "max_timestamp": times["max"]}
        return msgspec.structs.replace(block, **found)

    chunks = readable_chunks(partition, streamed(entries))
    async with aclosing(worked(stored_blocks(partition, chunks, start, end, sums.must_read), kept)) as items:
        async for item in items:
            match item:
                case Unreadable():
                    on_damage.meet(item._replace(start=max(item.start, start), end=min(item.end, end)))
                case BlockEntry():
                    sums.add(item, item.num_records, item.byte_length_uncompressed)
                case Chunk():
                    sums.formats.add(item.index.record_format)
                    wanted = filter(sums.asked.may_match, _selected(item, start, end))
                    sums.read(sum(block.byte_length for block in wanted))


async def find_refusable(
    selections: Sequence[Selection], config: EffectiveConfig | None, reading: Reading = EVERYTHING, codec: str = "lz4"
) -> tuple[RecordPlace | None, tuple[RecordPlace, int] | None]:
    """Return a record without a key if the target is compacted, and the first one above its limit, with its bytes.

    `codec` compresses what is sent.
    """
    if config is None:
        return None, None
    without_key = await _first_without_key(selections, reading) if config.compacts else None
    limit = config.max_message_bytes
    return without_key, None if limit is None else await _first_too_large(selections, limit, codec, reading)


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
) -> tuple[RecordPlace, int] | None:
    # A block that is smaller, uncompressed, than the limit holds no record above it, and is not read.
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
                    return RecordPlace(partition.partition, offset), size
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


def make_plan(plan: ReplayPlan) -> ReplayPlan:
    """Return the plan with its warnings; raises NoSuchTopic or ReplayRefused if the target cannot keep the records."""
    # The first reason to refuse is raised.
    for refusal in _refusals_of_records(plan):
        raise refusal
    if plan.facts is None:
        raise NoSuchTopic(
            f"the cluster has no topic {plan.target!r}",
            why="a replay creates a topic only on request",
            remedy=f"add --create-topic, or create it: kafka-topics.sh --create --topic {plan.target} --partitions "
            f"{_needed_partitions(plan)} --config retention.ms=-1",
        )
    for refusal in _refusals_of_lanes(plan):
        raise refusal
    if plan.facts.config is not None:
        refuse_by_config(plan, plan.facts.config)
    return replace(plan, warnings=tuple(_warnings(plan, plan.facts.config)))


def _warnings(plan: ReplayPlan, config: EffectiveConfig | None) -> Iterator[str]:
    if config is None:
        yield (
            f"the broker does not report the configuration of {plan.target}, or it may not be asked for: "
            "retention, timestamps and sizes are not checked"
        )
    else:
        if config.compacts:
            yield f"{plan.target} is compacted: only the newest record of each key will stay"
        if config.deletes and config.retention_bytes is not None:
            yield f"{plan.target} keeps at most retention.bytes={config.retention_bytes} a partition"
    if plan.begun:
        yield f"job {plan.job.name} is resumed: {plan.written} records of it are in {plan.target} already"
    if plan.begun and not plan.transactional:
        yield "what was sent after the previous run's last checkpoint is sent again"
    held = {partition: bounds for partition, bounds in plan.watermarks.items() if bounds.end > bounds.low}
    for lane in plan.lanes:
        if lane in held:
            low, end = held[lane]
            yield f"{plan.target}:{lane} is not empty, it holds [{low}..{end}): the records are appended"
    for source in plan.sources:
        yield from _source_warnings(source)
    yield from cut_lines(plan.cuts)


def _source_warnings(source: SourcePartition) -> Iterator[str]:
    if source.pruned is not None:
        yield pruned_text(source.partition, source.pruned)
    for gap in source.gaps:
        yield f"partition {source.partition} has a recorded gap [{gap.start}..{gap.end}) ({gap.reason})"
    if source.timestamps is not None and source.timestamps.min <= 0 <= source.timestamps.max:
        yield (
            f"partition {source.partition} may hold records with timestamp 0, which the client cannot send: "
            "they get timestamp 1"
        )
    for name in sorted(source.record_formats - LOSSLESS_FORMATS):
        yield f"partition {source.partition} was archived as {name}: keys, headers and timestamps were not kept"


def pruned_text(partition: int, pruned: OffsetRange) -> str:
    """Return the warning that records of a partition were pruned and cannot be replayed."""
    most = pruned.end - pruned.start
    return f"partition {partition} was pruned: up to {most} records, offsets [{pruned.start}..{pruned.end}), are gone"


def refuse_by_config(plan: ReplayPlan, config: EffectiveConfig) -> None:
    """Raise ReplayRefused if the target's configuration would lose, rewrite or reject the records."""
    for refusal in _refusals_by_config(plan, config):
        raise refusal


def _refusals_of_records(plan: ReplayPlan) -> Iterator[ReplayRefused]:
    """Yield why the records cannot be written, whatever the target is like."""
    if plan.begun and not plan.resume:
        state = "is complete" if plan.complete else "has started and is not complete"
        yield ReplayRefused(
            f"job {plan.job.name} {state}",
            why=f"{plan.written} of its records are in {plan.target}, and this would write them again",
            remedy="add --resume to continue it, or --job NAME to write another copy",
        )
    for source in plan.sources if plan.router.divides else ():
        if lost := sorted(source.record_formats - LOSSLESS_FORMATS):
            yield ReplayRefused(
                "these records cannot be spread by key",
                why=f"partition {source.partition} was archived as {', '.join(lost)}, without keys: records of one key "
                "would go to different partitions and lose their order",
                remedy="remove --partitions, or use a number or a map",
            )
    for source in plan.sources:
        if source.timestamps is not None and source.timestamps.min < NO_TIMESTAMP:
            yield ReplayRefused(
                "some records would get timestamps before 1970",
                why=f"the oldest of partition {source.partition} would be {source.timestamps.min} ms since the epoch, "
                "and Kafka accepts none below 0",
                remedy="shift less far back with --timestamps",
            )


def _refusals_of_lanes(plan: ReplayPlan) -> Iterator[ReplayRefused]:
    """Yield why the target's partitions cannot take the records."""
    needed = _needed_partitions(plan)
    if plan.target_partitions < needed:
        source = next(s.partition for s in plan.sources if needed - 1 in plan.router.targets(s.partition))
        yield ReplayRefused(
            f"topic {plan.target!r} has too few partitions",
            why=f"it has {plan.target_partitions}, and partition {source} of {plan.topic} goes to partition "
            f"{needed - 1}",
            remedy=f"choose a topic with at least {needed} partitions, fold them into fewer with --partitions "
            f"{plan.target_partitions}, or spread records with --partitions by-key",
        )
    held = [] if plan.begun else [lane for lane in plan.lanes if lane in plan.watermarks and plan.watermarks[lane].end]
    if plan.resume and held:
        # Without positions, nothing was written only if the target never held anything.
        yield ReplayRefused(
            f"there is nothing to resume: nothing is recorded for job {plan.job.name}",
            why=f"{plan.target}:{held[0]} has had records, and it is unknown which of them came from this replay",
            remedy="repeat the first command unchanged, with its --job; or remove --resume to append all records",
        )
    for lane in () if plan.append or plan.into_source else held:
        low, end = plan.watermarks[lane]
        if end > low:
            yield ReplayRefused(
                f"topic {plan.target!r} is not empty",
                why=f"{plan.target}:{lane} holds offsets [{low}..{end}), which are not from this replay",
                remedy="choose an empty topic, or add --append to write after them",
            )


def _refusals_by_config(plan: ReplayPlan, config: EffectiveConfig) -> Iterator[ReplayRefused]:
    topic, now = f"topic {plan.target!r}", plan.now_ms
    times = [time for source in plan.sources for time in source.timestamps or () if time >= 0]
    if config.timestamp_type == "LogAppendTime":
        yield ReplayRefused(
            f"{topic} would replace the records' timestamps",
            why="its message.timestamp.type is LogAppendTime",
            remedy=_alter(plan) + "message.timestamp.type=CreateTime",
        )
    retention = config.retention_ms
    if config.deletes and retention is not None and times and min(times) < now - retention:
        yield ReplayRefused(
            f"{topic} would delete the records soon after they arrive",
            why=f"its retention.ms is {retention} ({_duration(retention)}) and the oldest are of "
            f"{time_text(min(times))}",
            remedy=f"{_alter(plan)}retention.ms=-1"
            + (", or lift it until the replay is complete with --retention hold" if plan.can_hold else ""),
        )
    before, after = config.timestamp_before_max_ms, config.timestamp_after_max_ms
    if before is not None and times and min(times) < now - before:
        yield _out_of_range(plan, "before", before, "as old", f"oldest are of {time_text(min(times))}")
    if after is not None and times and max(times) > now + after:
        yield _out_of_range(plan, "after", after, "as far in the future", f"newest are of {time_text(max(times))}")
    place, found, limit = plan.without_key, plan.too_large, config.max_message_bytes
    if config.compacts and place is not None:
        yield ReplayRefused(
            f"{topic} does not accept records without a key",
            why=f"its cleanup.policy is {','.join(sorted(config.cleanup_policy))}, and the record at partition "
            f"{place.partition}, offset {place.offset} has none",
            remedy=_alter(plan) + "cleanup.policy=delete, or choose another topic",
        )
    if found is not None and limit is not None and found[1] > limit:
        yield ReplayRefused(
            f"{topic} does not accept records as large as some of these",
            why=f"its max.message.bytes is {limit}, and the record at partition {found[0].partition}, offset "
            f"{found[0].offset} takes {found[1]} bytes even compressed",
            remedy=f"{_alter(plan)}max.message.bytes={found[1] * 2}",
        )


def _out_of_range(plan: ReplayPlan, side: str, limit: int, how: str, found: str) -> ReplayRefused:
    setting = f"message.timestamp.{side}.max.ms"
    return ReplayRefused(
        f"topic {plan.target!r} takes no records {how} as these",
        why=f"its {setting} is {limit} ({_duration(limit)}) and the {found}",
        remedy=f"{_alter(plan)}{setting}={2**63 - 1}",
    )


def _needed_partitions(plan: ReplayPlan) -> int:
    return max(plan.lanes, default=0) + 1


def _alter(plan: ReplayPlan) -> str:
    if plan.creates:
        return "add --topic-config "
    return f"kafka-configs.sh --alter --entity-type topics --entity-name {plan.target} --add-config "


def _duration(milliseconds: int) -> str:
    seconds = milliseconds / 1000
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} seconds"
