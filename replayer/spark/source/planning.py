"""Which offsets a job reads, and how they are shared out to tasks."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from blockgz.archive.archive import Archive
from blockgz.archive.damage import Damaged
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import AtOffset, AtTime, Earliest, Latest, Position, resolve_position, seek_time
from blockgz.errors import UsageError
from blockgz.units import timestamp_text
from index_format.chunk_index import ERASED, UNVERIFIED
from index_format.errors import BlockgzError
from index_format.keys import parse_topic_folder
from index_format.marker import ChunkEntry
from replayer.spark.source.logs import Listing, Stretch, each_of, log_parts
from replayer.spark.source.options import Bound, SourceOptions, named_in, position_in

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

SLACK = 1.5
"""A chunk this many times as large as a task is worth reading its index to cut it; smaller ones stay whole."""


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


class CutPoint(NamedTuple):
    """Offsets up to `end` and the stored bytes that they take from the piece before."""

    end: int
    bytes: int


class Wanted(NamedTuple):
    """A partition of a log, and where it is read from and to; `is_past` says that its topic has a newer log."""

    partition: ArchivedPartition
    start: Position
    end: Position
    is_past: bool


async def subscribed(archive: Archive, options: SourceOptions) -> list[Wanted]:
    """What the options ask for, the logs of each topic oldest first.

    Older logs of a topic are read where a partition begins at the earliest offset or at a time, each to its end.
    Raises NotInArchive or UsageError.
    """
    parts = await log_parts(archive, Listing(options.subscription))
    whole = {(part.folder.topic, part.log, part.partition.partition): part.partition for part in parts}
    newest: dict[str, int] = {}
    for topic, log, _ in whole:
        newest[topic] = max(log, newest.get(topic, 0))
    for name, numbers in options.subscription.topics.items():
        held = {part.partition.partition for part in parts if part.folder.topic == parse_topic_folder(name).topic}
        if missing := set(numbers or ()) - held:
            await archive.open_topic(name, sorted(missing))  # raises NotInArchive
    found = []
    for (topic, log, _), partition in sorted(whole.items(), key=lambda item: (item[0][0], item[0][1:])):
        is_past = log < newest[topic]
        start = _start(options.start, partition, is_past=is_past)
        if start is not None:
            found.append(Wanted(partition, start, _end(options.end, partition, is_past=is_past), is_past))
    return found


def _start(bound: Bound, partition: ArchivedPartition, *, is_past: bool) -> Position | None:
    """Where a partition begins; None for one of an older log that is not read."""
    folder = partition.keys.folder
    if not is_past or named_in(bound, folder, partition.partition):
        return position_in(bound, folder, partition.partition, "startingOffsets")
    position = bound.get((folder.topic, partition.partition)) if isinstance(bound, Mapping) else bound
    return position if isinstance(position, Earliest | AtTime) else None


def _end(bound: Bound, partition: ArchivedPartition, *, is_past: bool) -> Position:
    folder = partition.keys.folder
    if not is_past or named_in(bound, folder, partition.partition):
        return position_in(bound, folder, partition.partition, "endingOffsets")
    position = bound.get((folder.topic, partition.partition)) if isinstance(bound, Mapping) else bound
    return position if isinstance(position, AtTime) else Latest()


async def ranges(wanted: Sequence[Wanted], options: SourceOptions) -> list[PartitionRange]:
    """The offsets that are asked for of each partition; raises UsageError or DataLost."""
    starts = await starting_offsets(wanted, options)

    async def run(item: tuple[Wanted, int]) -> PartitionRange:
        (partition, _, end, _), start = item
        return range_of(partition, start, max(start, await _offset(partition, end, options)))

    return await each_of(list(zip(wanted, starts, strict=True)), run)


async def starting_offsets(wanted: Sequence[Wanted], options: SourceOptions) -> list[int]:
    """Where the options let each partition begin; raises UsageError or DataLost."""

    async def start(each: Wanted) -> int:
        return await _starting_offset(each, options)

    return await each_of(wanted, start)


async def _starting_offset(wanted: Wanted, options: SourceOptions) -> int:
    partition, position = wanted.partition, wanted.start
    if isinstance(position, AtTime) and not options.late_start_means_latest:
        found = await seek_time(partition, position.timestamp)
        if found >= partition.next_offset and not wanted.is_past:
            raise UsageError(
                f"{partition} holds no record at or after {timestamp_text(position.timestamp)}",
                why="a start by time must match a record",
                remedy='set startingOffsetsByTimestampStrategy to "latest" to read nothing in that case',
            )
        return found
    return await _offset(partition, position, options)


async def tasks(
    partitions: Sequence[ArchivedPartition],
    runs: Sequence[PartitionRange],
    options: SourceOptions,
    filters: "Sequence[Filter]" = (),
) -> list[PartitionRange]:
    """The runs cut into tasks at the edges of chunks and blocks; none is empty. Raises DataLost for a gap inside.

    Blocks that hold no row which passes the filters are left out where a whole stretch of them does.
    """

    async def portions(each: tuple[ArchivedPartition, PartitionRange]) -> list[Portion]:
        partition, run = each
        stretches = await _stretches(partition, run, filters, options)
        return [Portion(partition, run._replace(start=start, end=end), chunks) for start, end, chunks in stretches]

    wanted = [(partition, run) for partition, run in zip(partitions, runs, strict=True) if run.end > run.start]
    found = [portion for each in await each_of(wanted, portions) for portion in each]
    return await shared_out(found, options.task_bytes, options.min_tasks, skips_damage=options.skips_damage)


async def _stretches(
    partition: ArchivedPartition, run: PartitionRange, filters: "Sequence[Filter]", options: SourceOptions
) -> list[Stretch]:
    """The parts of a run to be read. Where damage is skipped and met, the whole run: its tasks say what they skip."""
    try:
        if options.fails_on_data_loss:
            await refuse_gaps(partition, run)
        if filters:
            from replayer.spark.source.pruning import passing  # noqa: PLC0415 - Spark 4.0 has no filters

            return await passing(partition, run.start, run.end, filters)
        return [Stretch(run.start, run.end, [each async for each in partition.entries(run.start, run.end)])]
    except Damaged:
        if not options.skips_damage:
            raise
    walked = [each async for each in partition.walk(run.start, run.end)]
    return [Stretch(run.start, run.end, [each for each in walked if isinstance(each, ChunkEntry)])]


async def shared_out(
    portions: Sequence[Portion], task_bytes: int, min_tasks: int, *, skips_damage: bool = False
) -> list[PartitionRange]:
    """The portions cut at the edges of chunks and blocks: tasks of at most about `task_bytes`, and so many at least."""
    total = sum(entry.bytes for portion in portions for entry in portion.entries)
    limit = max(1, min(task_bytes, -(-total // min_tasks)))
    found = []
    for partition, run, entries in portions:
        pieces = [
            piece for entry in entries for piece in await _pieces(partition, entry, limit, skips_damage=skips_damage)
        ]
        found += cut(run, pieces, limit)
    return found


def cut(run: PartitionRange, pieces: Sequence[CutPoint], limit: int) -> list[PartitionRange]:
    """A run at the ends of pieces, each part as near to `limit` bytes from below as they allow; at least a piece."""
    parts: list[PartitionRange] = []
    start, size, end = run.start, 0, run.start
    for piece in pieces:
        if piece.end <= run.start or end == run.end:
            continue
        if size and size + piece.bytes > limit:
            parts.append(run._replace(start=start, end=end))
            start, size = end, 0
        size += piece.bytes
        end = min(piece.end, run.end)
    if run.end > start and size:
        parts.append(run._replace(start=start))
    return parts


async def refuse_gaps(partition: ArchivedPartition, run: PartitionRange) -> None:
    """Raises DataLost where the run covers a recorded gap, unless nobody knows whether it held a record.

    Erased records are no lost ones.
    Of a topic with transactions, streams into an archive leave such gaps where a transaction and a batch end together.
    """
    covered = [gap for gap in await partition.gaps() if gap.start < run.end and gap.end > run.start]
    gap = next((gap for gap in covered if gap.reason not in (UNVERIFIED, ERASED)), None)
    if gap is not None:
        raise DataLost(f"{run.topic}:{run.partition}", gap.start, gap.end, f"the archive has a gap: {gap.reason}")


async def _pieces(partition: ArchivedPartition, entry: ChunkEntry, limit: int, *, skips_damage: bool) -> list[CutPoint]:
    whole = [CutPoint(entry.next_offset, entry.bytes)]
    if entry.bytes <= limit * SLACK:
        return whole
    try:
        chunk = await partition.chunk(entry)
    except Damaged:
        if not skips_damage:
            raise
        return whole
    return [CutPoint(block.last_record_offset + 1, block.byte_length) for block in chunk.index.blocks]


async def _offset(partition: ArchivedPartition, position: Position, options: SourceOptions) -> int:
    offset = await resolve_position(position, partition)
    if isinstance(position, AtOffset) and offset != position.offset and options.fails_on_data_loss:
        low, high = sorted((offset, position.offset))
        held = f"the archive holds offsets [{partition.start_offset}..{partition.next_offset})"
        if position.offset < partition.floor:
            held += ", what was below is pruned"
        raise DataLost(str(partition), low, high, held)
    return offset


def range_of(partition: ArchivedPartition, start: int, end: int) -> PartitionRange:
    """Offsets [start, end) of a partition, by a name that means the same wherever it is opened."""
    folder = partition.keys.folder
    return PartitionRange(f"{folder.topic}~{folder.incarnation}", partition.partition, start, end)
