"""Which offsets a job reads, and how they are shared out to tasks."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from blockgz_runtime.errors import NotInArchive, UsageError
from index_format.chunk_index import UNVERIFIED
from index_format.errors import BlockgzError
from index_format.marker import ChunkEntry
from replayer.read.archive import Archive
from replayer.read.partition import ArchivedPartition
from replayer.read.positions import AtOffset, AtTime, Position, resolve_position, seek_time
from replayer.spark.source.options import SourceOptions, position_in

SLACK = 1.5
"""A chunk this many times as large as a task is worth reading its index to cut it; smaller ones stay whole."""


class DataLost(BlockgzError):
    """Offsets that a read asks for are not in the archive."""

    def __init__(self, where: str, start: int, end: int, why: str) -> None:
        super().__init__(
            f"offsets {start} to {end} of {where} cannot be read",
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


async def subscribed(archive: Archive, options: SourceOptions) -> list[ArchivedPartition]:
    """Every partition that the options ask for, in order; raises NotInArchive."""
    topics = await _topics(archive, options)
    return [each for topic, numbers in topics.items() for each in await archive.open_topic(topic, numbers)]


async def subscribed_with_past(archive: Archive, options: SourceOptions) -> list[ArchivedPartition]:
    """The same of every incarnation of the topics; of an older one, the partitions that it had."""
    found: list[ArchivedPartition] = []
    for topic, numbers in (await _topics(archive, options)).items():
        names = [topic] if "~" in topic else [f"{name}~{n}" for name, n in await archive.incarnations(topic)]
        for name in names:
            archived = await archive.partitions(name)
            wanted = archived if numbers is None else sorted(set(numbers) & set(archived))
            found += await archive.open_topic(name, wanted)
    return found


def own_ends(partitions: Sequence[ArchivedPartition]) -> dict[ArchivedPartition, int]:
    """Where each of them ends that `subscribed_with_past` gave, without what a folder behind it holds instead."""
    bounds = {
        (keys.folder, each.partition): behind
        for each in partitions
        for (keys, _), (_, behind) in pairwise(each.folders)
    }
    return {
        each: min(each.next_offset, bounds.get((each.keys.folder, each.partition), each.next_offset))
        for each in partitions
    }


async def _topics(archive: Archive, options: SourceOptions) -> Mapping[str, Sequence[int] | None]:
    pattern = options.subscription.pattern
    topics: Mapping[str, Sequence[int] | None] = options.subscription.topics
    if pattern is not None:
        topics = {topic: None for topic in await archive.topics() if re.fullmatch(pattern, topic)}
        if not topics:
            raise NotInArchive(
                f"no archived topic fits {pattern!r}",
                why=f"there is {', '.join(await archive.topics())}",
                remedy="subscribePattern must fit a whole name",
            )
    return topics


async def ranges(partitions: Sequence[ArchivedPartition], options: SourceOptions) -> list[PartitionRange]:
    """What the options ask for of each partition; raises UsageError or DataLost."""
    runs = []
    for partition in partitions:
        start = await starting_offset(partition, options)
        position = position_in(options.end, partition.topic, partition.partition, "endingOffsets")
        end = await _offset(partition, position, options)
        runs.append(range_of(partition, start, max(start, end)))
    return runs


async def starting_offset(partition: ArchivedPartition, options: SourceOptions) -> int:
    """Where the options let one partition begin; raises UsageError or DataLost."""
    position = position_in(options.start, partition.topic, partition.partition, "startingOffsets")
    if isinstance(position, AtTime) and not options.late_start_means_latest:
        found = await seek_time(partition, position.timestamp)
        if found >= partition.next_offset:
            raise UsageError(
                f"{partition} holds no record at or after {position.timestamp}",
                why="a start by time must meet a record",
                remedy='set startingOffsetsByTimestampStrategy to "latest" to read nothing then',
            )
        return found
    return await _offset(partition, position, options)


async def tasks(
    partitions: Sequence[ArchivedPartition], runs: Sequence[PartitionRange], options: SourceOptions
) -> list[PartitionRange]:
    """The runs cut into tasks at the edges of chunks and blocks; none is empty. Raises DataLost for a gap inside."""
    wanted = [(partition, run) for partition, run in zip(partitions, runs, strict=True) if run.end > run.start]
    if options.fails_on_data_loss:
        for partition, run in wanted:
            await refuse_gaps(partition, run)
    whole = [Portion(*each, [entry async for entry in each[0].entries(each[1].start, each[1].end)]) for each in wanted]
    return await shared_out(whole, options.task_bytes, options.min_tasks)


async def shared_out(portions: Sequence[Portion], task_bytes: int, min_tasks: int) -> list[PartitionRange]:
    """The portions cut at the edges of chunks and blocks: tasks of at most about `task_bytes`, and so many at least."""
    total = sum(entry.bytes for portion in portions for entry in portion.entries)
    limit = max(1, min(task_bytes, -(-total // min_tasks)))
    found = []
    for partition, run, entries in portions:
        pieces = [piece for entry in entries for piece in await _pieces(partition, entry, limit)]
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

    Of a topic with transactions, streams into an archive leave such gaps where a transaction and a batch end together.
    """
    covered = [gap for gap in await partition.gaps() if gap.start < run.end and gap.end > run.start]
    gap = next((gap for gap in covered if gap.reason != UNVERIFIED), None)
    if gap is not None:
        raise DataLost(f"{run.topic}:{run.partition}", gap.start, gap.end, f"the archive has a gap: {gap.reason}")


async def _pieces(partition: ArchivedPartition, entry: ChunkEntry, limit: int) -> list[CutPoint]:
    if entry.bytes <= limit * SLACK:
        return [CutPoint(entry.next_offset, entry.bytes)]
    chunk = await partition.chunk(entry)
    return [CutPoint(block.last_record_offset + 1, block.byte_length) for block in chunk.index.blocks]


async def _offset(partition: ArchivedPartition, position: Position, options: SourceOptions) -> int:
    offset = await resolve_position(position, partition)
    if isinstance(position, AtOffset) and offset != position.offset and options.fails_on_data_loss:
        low, high = sorted((offset, position.offset))
        held = f"the archive holds offsets {partition.start_offset} to {partition.next_offset}"
        raise DataLost(str(partition), low, high, held)
    return offset


def range_of(partition: ArchivedPartition, start: int, end: int) -> PartitionRange:
    """Offsets [start, end) of a partition, by a name that means the same wherever it is opened."""
    folder = partition.keys.folder
    return PartitionRange(f"{folder.topic}~{folder.incarnation}", partition.partition, start, end)
