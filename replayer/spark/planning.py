"""The logs of a subscription, the offsets that a job reads of them, and how these are shared out to tasks.

A topic that was created again has one log for each time. Several folders hold one log if it was truncated: a folder
then holds a partition's own part, up to where the next folder continues it.
"""

import re
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pyspark.sql import datasource

from blockgz.archive import positions
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.partition import ArchivedPartition, Damaged, prefetched, streamed
from blockgz.archive.selection import first_notes, notes_behind
from blockgz.errors import BlockgzError, NotInArchive, UsageError
from blockgz.units import timestamp_text
from index_format.keys import TopicFolder, parse_topic_folder
from index_format.marker import ChunkEntry, TimeBounded
from index_format.objects import ERASED, UNVERIFIED, BlockEntry
from index_format.records import NO_TIMESTAMP
from replayer.spark.source_options import Bound, SourceOptions, Subscription, names_partition, position_in

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter


T = TypeVar("T")
R = TypeVar("R")

CONCURRENT_REQUESTS = 64
# A stream lists topics and partitions no more often; a topic that was created again is seen in its markers.
LISTED_SECONDS = 10.0

# A folder and a partition in it.
Place = tuple[TopicFolder, int]


class LogPart(NamedTuple):
    """A partition as one folder holds it: offsets [start, end) are its own part."""

    partition: ArchivedPartition
    log: int
    """The number of the log among those of the topic; 0 is the oldest."""
    start: int
    end: int

    @property
    def folder(self) -> TopicFolder:
        return self.partition.keys.folder


class Listing:
    """The partitions of a subscription, listed again after `LISTED_SECONDS`."""

    def __init__(self, subscription: Subscription, clock: Callable[[], float] = time.monotonic) -> None:
        self._subscription = subscription
        self._clock = clock
        self._listed_at: float | None = None
        self._places: list[Place] = []

    def forget(self) -> None:
        """List again when asked next."""
        self._listed_at = None

    async def places(self, archive: ArchiveReader) -> Sequence[Place]:
        """Return places by topic in the subscription's order, then from the oldest incarnation; raises NotInArchive."""
        if self._listed_at is None or self._clock() - self._listed_at > LISTED_SECONDS:
            listed_at = self._clock()
            self._places = await _listed(archive, self._subscription)
            self._listed_at = listed_at
        return self._places


async def log_parts(archive: ArchiveReader, listing: Listing) -> list[LogPart]:
    """Every partition that is subscribed to, in the order of `Listing.places`, as its marker is now.

    Takes a request for each. Raises NotInArchive, or as `ArchiveReader.open_partition`.
    """
    found = parts_of(await _opened(archive, await listing.places(archive)))
    known = {f"{part.folder.topic}~{part.folder.incarnation}" for part in found}
    if any(part.partition.marker.successor not in {None, *known} for part in found):
        listing.forget()
        found = parts_of(await _opened(archive, await listing.places(archive)))
    return found


def parts_of(opened: Sequence[ArchivedPartition]) -> list[LogPart]:
    """Return partitions with their logs: neighbouring folders of a topic hold one log if ids or markers say so."""
    folders = sorted({each.keys.folder for each in opened})
    ids = {each.keys.folder: each.marker.topic_id for each in opened if each.marker.topic_id is not None}
    continued = {(older.folder, each.keys.folder) for each in opened for older, _ in each.folders[:-1]}
    logs = dict.fromkeys(folders[:1], 0)
    for before, folder in pairwise(folders):
        same_id = ids.get(folder) is not None and ids.get(before) == ids.get(folder)
        is_same = same_id or (before, folder) in continued
        logs[folder] = 0 if folder.topic != before.topic else logs[before] + (not is_same)
    ends = {
        (keys.folder, each.partition): behind for each in opened for (keys, _), (_, behind) in pairwise(each.folders)
    }
    parts = []
    for each in opened:
        folder, begins = each.keys.folder, each.folders
        start = max(each.own_start, begins[-1][1]) if begins[1:] else each.own_start
        end = min(each.next_offset, ends.get((folder, each.partition), each.next_offset))
        parts.append(LogPart(each, logs[folder], start, end))
    return parts


async def _listed(archive: ArchiveReader, subscription: Subscription) -> list[Place]:
    folders = sorted(map(parse_topic_folder, await archive.all_incarnations()))
    if isinstance(subscription, str):
        names = sorted({folder.topic for folder in folders})
        topics: Mapping[str, tuple[int, ...] | None]
        topics = {name: None for name in names if re.fullmatch(subscription, name)}
        if not topics:
            raise NotInArchive(
                f"no archived topic matches {subscription!r}",
                why=f"there is {', '.join(names)}",
                remedy="subscribePattern must match a whole name",
            )
    else:
        topics = subscription
    wanted: dict[TopicFolder, tuple[int, ...] | None] = {}
    for name, numbers in topics.items():
        folder, is_one = parse_topic_folder(name), "~" in name
        mine = [each for each in folders if each == folder or (not is_one and each.topic == folder.topic)]
        if not mine:
            await archive.folder_of(name)  # raises NotInArchive
        wanted |= dict.fromkeys(mine, numbers)

    async def partitions_in(folder: TopicFolder) -> list[Place]:
        numbers = wanted[folder]
        archived = await archive.partitions_in(folder)
        return [(folder, number) for number in archived if numbers is None or number in numbers]

    return [place for places in await each_of(list(wanted), partitions_in) for place in places]


async def _opened(archive: ArchiveReader, places: Sequence[Place]) -> list[ArchivedPartition]:
    async def opened(place: Place) -> ArchivedPartition:
        folder, number = place
        return await archive.open_partition(f"{folder.topic}~{folder.incarnation}", number)

    return await each_of(places, opened)


async def each_of(items: Sequence[T], work: Callable[[T], Coroutine[Any, Any, R]]) -> list[R]:
    """Return the results of `work`, in the order of the items; many run at once."""
    return [each async for each in prefetched(streamed(items), work, cost=lambda _: 1, budget=CONCURRENT_REQUESTS)]


# A chunk this many times as large as a task is worth reading its index to cut it; smaller ones stay whole.
SLACK = 1.5


class DataLost(BlockgzError):
    """Offsets that a read asks for are not in the archive."""

    def __init__(self, where: str, start: int, end: int, why: str) -> None:
        super().__init__(
            f"offsets [{start}..{end}) of {where} cannot be read",
            why=why,
            remedy="set failOnDataLoss to false to read the rest, or choose other offsets",
        )


class PartitionRange(NamedTuple):
    """Offsets [start, end) of a partition; `topic` names the incarnation (`orders~2`), so that all open the same."""

    topic: str
    partition: int
    start: int
    end: int


class Portion(NamedTuple):
    """A run, and the chunks that may hold records of it."""

    partition: ArchivedPartition
    run: PartitionRange
    entries: Sequence[ChunkEntry]


class WantedLog(NamedTuple):
    """A partition of a log, and the offsets from and to which it is read; `is_past` says that its topic has a newer
    log.
    """

    partition: ArchivedPartition
    start: positions.Position
    end: positions.Position
    is_past: bool


async def subscribed(archive: ArchiveReader, options: SourceOptions) -> list[WantedLog]:
    """Return the partitions that the options select, the logs of each topic oldest first.

    Older logs of a topic are read where a partition begins at the earliest offset or at a time, each to its end.
    Raises NotInArchive or UsageError.
    """
    parts = await log_parts(archive, Listing(options.subscription))
    whole = {(part.folder.topic, part.log, part.partition.partition): part.partition for part in parts}
    newest: dict[str, int] = {}
    for topic, log, _ in whole:
        newest[topic] = max(log, newest.get(topic, 0))
    named = {} if isinstance(options.subscription, str) else options.subscription
    for name, numbers in named.items():
        held = {part.partition.partition for part in parts if part.folder.topic == parse_topic_folder(name).topic}
        if missing := set(numbers or ()) - held:
            await archive.open_topic(name, sorted(missing))  # raises NotInArchive
    found = []
    for (topic, log, _), partition in sorted(whole.items(), key=lambda item: (item[0][0], item[0][1:])):
        is_past = log < newest[topic]
        start = _position(
            options.start, partition, "startingOffsets", positions.AfterStart | positions.AtTime if is_past else None
        )
        end = _position(options.end, partition, "endingOffsets", positions.AtTime if is_past else None)
        if start is not None:
            found.append(WantedLog(partition, start, end or positions.AT_END, is_past))
    return found


def _position(bound: Bound, partition: ArchivedPartition, option: str, kinds: Any) -> positions.Position | None:
    """Return where a partition begins or ends; None for an older log whose position is none of `kinds`."""
    folder, number = partition.keys.folder, partition.partition
    if kinds is None or names_partition(bound, folder, number):
        return position_in(bound, folder, number, option)
    position = bound.get((folder.topic, number)) if isinstance(bound, Mapping) else bound
    return position if isinstance(position, kinds) else None


async def ranges(wanted: Sequence[WantedLog], options: SourceOptions) -> list[PartitionRange]:
    """Return the selected offsets of each partition; raises UsageError or DataLost."""
    starts = await starting_offsets(wanted, options)

    async def run(item: tuple[WantedLog, int]) -> PartitionRange:
        (partition, _, end, _), start = item
        return range_of(partition, start, max(start, await _offset(partition, end, options)))

    return await each_of(list(zip(wanted, starts, strict=True)), run)


async def starting_offsets(wanted: Sequence[WantedLog], options: SourceOptions) -> list[int]:
    """Return where the options let each partition begin; raises UsageError or DataLost."""

    async def start(each: WantedLog) -> int:
        partition, position = each.partition, each.start
        if not isinstance(position, positions.AtTime) or options.late_start_means_latest:
            return await _offset(partition, position, options)
        found = await positions.seek_time(partition, position.timestamp)
        if found >= partition.next_offset and not each.is_past:
            raise UsageError(
                f"{partition} holds no record at or after {timestamp_text(position.timestamp)}",
                why="a start by time must match a record",
                remedy='set startingOffsetsByTimestampStrategy to "latest" to read nothing in that case',
            )
        return found

    return await each_of(wanted, start)


def print_notes(wanted: Sequence[WantedLog], ends: Sequence[tuple[int, int]]) -> None:
    """Print on stderr which records are on the wrong side of a starting or ending time, if loaded bounds show some."""
    found = [
        note
        for log, (start, end) in zip(wanted, ends, strict=True)
        for note in notes_behind(log.partition, positions.OffsetRange(start, end), log.start, log.end)
    ]
    for note in first_notes(found):
        print(f"blockgz: note: {note}", file=sys.stderr, flush=True)


async def tasks(
    partitions: Sequence[ArchivedPartition],
    runs: Sequence[PartitionRange],
    options: SourceOptions,
    filters: "Sequence[Filter]" = (),
) -> list[PartitionRange]:
    """Cut the runs into tasks at the edges of chunks and blocks; none is empty. Raises DataLost for a gap inside."""
    # Blocks that hold no row which passes the filters are left out where a whole stretch of them does.

    async def portions(each: tuple[ArchivedPartition, PartitionRange]) -> list[Portion]:
        return await _portions(*each, filters, options)

    wanted = [(partition, run) for partition, run in zip(partitions, runs, strict=True) if run.end > run.start]
    found = [portion for each in await each_of(wanted, portions) for portion in each]
    return await shared_out(found, options.task_bytes, options.min_tasks, skips_damage=options.skips_damage)


async def _portions(
    partition: ArchivedPartition, run: PartitionRange, filters: "Sequence[Filter]", options: SourceOptions
) -> list[Portion]:
    """Return the parts of a run to be read; all of it if damage is met and skipped: its tasks report what they skip."""
    try:
        if options.fails_on_data_loss:
            await refuse_gaps(partition, run)
        if filters:
            return await passing(partition, run, filters)
        return [Portion(partition, run, [each async for each in partition.entries(run.start, run.end)])]
    except Damaged:
        if not options.skips_damage:
            raise
    walked = [each async for each in partition.walk(run.start, run.end)]
    return [Portion(partition, run, [each for each in walked if isinstance(each, ChunkEntry)])]


async def shared_out(
    portions: Sequence[Portion], task_bytes: int, min_tasks: int, *, skips_damage: bool = False
) -> list[PartitionRange]:
    """Cut portions at the edges of chunks and blocks: at least `min_tasks` tasks of at most about `task_bytes`."""
    total = sum(entry.bytes for portion in portions for entry in portion.entries)
    limit = max(1, min(task_bytes, -(-total // min_tasks)))
    found = []
    for partition, run, entries in portions:
        pieces = [
            piece for entry in entries for piece in await _pieces(partition, entry, limit, skips_damage=skips_damage)
        ]
        found += cut(run, pieces, limit)
    return found


def cut(run: PartitionRange, pieces: Sequence[tuple[int, int]], limit: int) -> list[PartitionRange]:
    """Cut a run at the ends of pieces into parts as near to `limit` bytes from below as they allow, at least a piece.

    A piece is the offset behind it and the stored bytes from the piece before.
    """
    parts: list[PartitionRange] = []
    start, size, end = run.start, 0, run.start
    for behind, num_bytes in pieces:
        if behind <= run.start or end == run.end:
            continue
        if size and size + num_bytes > limit:
            parts.append(run._replace(start=start, end=end))
            start, size = end, 0
        size += num_bytes
        end = min(behind, run.end)
    if run.end > start and size:
        parts.append(run._replace(start=start))
    return parts


async def refuse_gaps(partition: ArchivedPartition, run: PartitionRange) -> None:
    """Raise DataLost if the run covers a recorded gap, unless it is unknown whether it held a record."""
    # Erased records are no lost ones. Of a topic with transactions, streams into an archive leave such gaps where a
    # transaction and a batch end together.
    covered = [gap for gap in await partition.gaps() if gap.start < run.end and gap.end > run.start]
    gap = next((gap for gap in covered if gap.reason not in (UNVERIFIED, ERASED)), None)
    if gap is not None:
        raise DataLost(f"{run.topic}:{run.partition}", gap.start, gap.end, f"the archive has a gap: {gap.reason}")


async def _pieces(
    partition: ArchivedPartition, entry: ChunkEntry, limit: int, *, skips_damage: bool
) -> list[tuple[int, int]]:
    if entry.bytes > limit * SLACK:
        try:
            chunk = await partition.chunk(entry)
            return [(block.last_record_offset + 1, block.byte_length) for block in chunk.index.blocks]
        except Damaged:
            if not skips_damage:
                raise
    return [(entry.next_offset, entry.bytes)]


async def _offset(partition: ArchivedPartition, position: positions.Position, options: SourceOptions) -> int:
    offset = await positions.resolve_position(position, partition)
    if isinstance(position, positions.AtOffset) and offset != position.offset and options.fails_on_data_loss:
        low, high = sorted((offset, position.offset))
        held = f"the archive holds offsets [{partition.start_offset}..{partition.next_offset})"
        if position.offset < partition.floor:
            held += ", what was below is pruned"
        raise DataLost(str(partition), low, high, held)
    return offset


def range_of(partition: ArchivedPartition, start: int, end: int) -> PartitionRange:
    """Return the offsets [start, end) of a partition, by a name that is unambiguous on every machine."""
    folder = partition.keys.folder
    return PartitionRange(f"{folder.topic}~{folder.incarnation}", partition.partition, start, end)


# The least and the greatest value of rows, by column; times in microseconds.
Bounds = Mapping[str, tuple[Any, Any]]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The record format whose rows have no timestamps, though their index has.
WITHOUT_TIMES = "text"
_NO_TIMES: Bounds = {"timestamp": (NO_TIMESTAMP * 1000, NO_TIMESTAMP * 1000)}


# Tests if some value between `low` and `high` passes, by filter; every other filter may let any value through.
_TESTS: Mapping[str, Callable[[Any, Any, Any], bool]] = {
    "EqualTo": lambda low, high, value: low <= value <= high,
    "EqualNullSafe": lambda low, high, value: low <= value <= high,
    "In": lambda low, high, values: any(low <= value <= high for value in values),
    "GreaterThan": lambda _, high, value: high > value,
    "GreaterThanOrEqual": lambda _, high, value: high >= value,
    "LessThan": lambda low, _, value: low < value,
    "LessThanOrEqual": lambda low, _, value: low <= value,
}


def may_pass(filters: "Sequence[Filter]", bounds: Bounds) -> bool:
    """Return whether a row with values in these bounds may pass all filters of these columns."""
    return all(_may_pass(each, bounds) for each in filters)


def _may_pass(condition: Any, bounds: Bounds) -> bool:
    test = _TESTS.get(type(condition).__name__)
    if test is None or len(condition.attribute) > 1 or condition.attribute[0] not in bounds:
        return True
    low, high = bounds[condition.attribute[0]]
    value = _comparable(condition.value)
    values = value if isinstance(value, tuple) else (value,)
    return not all(isinstance(each, type(low)) for each in values) or test(low, high, value)


def _comparable(value: Any) -> Any:
    """Return times as microseconds since 1970, also in a tuple, and other values unchanged."""
    if isinstance(value, list | tuple):
        return tuple(_comparable(each) for each in value)
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value


def narrow_range(start: int, end: int, filters: "Sequence[Filter]") -> tuple[int, int]:
    """Return offsets [start, end) without those at both ends that no row passes: their catalogs are not read."""
    for each in filters:
        match each:
            case datasource.EqualTo(("offset",), int(value)):
                start, end = max(start, value), min(end, value + 1)
            case datasource.GreaterThan(("offset",), int(value)):
                start = max(start, value + 1)
            case datasource.GreaterThanOrEqual(("offset",), int(value)):
                start = max(start, value)
            case datasource.LessThan(("offset",), int(value)):
                end = min(end, value)
            case datasource.LessThanOrEqual(("offset",), int(value)):
                end = min(end, value + 1)
    return start, end


async def passing(partition: ArchivedPartition, run: PartitionRange, filters: "Sequence[Filter]") -> list[Portion]:
    """Return the parts of a run that may hold rows which pass: series of neighbouring chunks."""
    # A series begins and ends with a block that may hold one; every chunk in between may hold one. So there are never
    # more parts than chunks that are left out. Two indexes are read for each part, and those of chunks whose times do
    # not pass where rows without a time would.
    place = {"topic": (partition.topic,) * 2, "partition": (partition.partition,) * 2}
    start, end = narrow_range(run.start, run.end, filters)
    if start >= end or not may_pass(filters, place):
        return []

    def wanted(span: TimeBounded) -> bool:
        return may_pass(filters, _times(span)) or may_pass(filters, _NO_TIMES)

    async def passes(chunk: ChunkEntry) -> bool:
        return may_pass(filters, _times(chunk)) or not await _has_times(partition, chunk)

    chunks = [entry async for entry in partition.entries(start, end, wanted) if may_pass(filters, _offsets(entry))]
    passed = await each_of(chunks, passes)
    chunks = [chunk for chunk, is_wanted in zip(chunks, passed, strict=True) if is_wanted]
    gaps = [at for at, (one, after) in enumerate(pairwise(chunks), 1) if one.next_offset != after.start_offset]
    series = [chunks[first:last] for first, last in pairwise([0, *gaps, len(chunks)])]
    found = []
    for each in filter(None, series):
        first, last = await _blocks(partition, each[0], filters), await _blocks(partition, each[-1], filters)
        begin = max(start, first[0].first_record_offset if first else each[0].next_offset)
        stop = min(end, last[-1].last_record_offset + 1 if last else each[-1].start_offset)
        if begin < stop:
            found.append(Portion(partition, run._replace(start=begin, end=stop), each))
    return found


def _offsets(span: ChunkEntry | BlockEntry) -> Bounds:
    if isinstance(span, ChunkEntry):
        return {"offset": (span.first_offset, span.last_offset)}
    return {"offset": (span.first_record_offset, span.last_record_offset)}


def _times(span: TimeBounded) -> Bounds:
    return {"timestamp": (span.min_timestamp * 1000, span.max_timestamp * 1000)}


async def _blocks(partition: ArchivedPartition, entry: ChunkEntry, filters: "Sequence[Filter]") -> list[BlockEntry]:
    """Return the blocks of a chunk that may hold rows which pass."""
    has_times = await _has_times(partition, entry)
    return [
        block
        for block in (await partition.chunk(entry)).index.blocks
        if may_pass(filters, _offsets(block)) and may_pass(filters, _times(block) if has_times else _NO_TIMES)
    ]


async def _has_times(partition: ArchivedPartition, entry: ChunkEntry) -> bool:
    return (await partition.chunk(entry)).index.record_format != WITHOUT_TIMES
