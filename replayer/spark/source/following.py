"""A stream's offsets: where it begins, how far it may go, and what lies between."""

from collections.abc import Iterable, Mapping
from itertools import pairwise

from index_format.keys import TopicFolder, parse_topic_folder
from replayer.read.archive import Archive
from replayer.read.partition import ArchivedPartition
from replayer.spark.archive_place import opened
from replayer.spark.source import planning
from replayer.spark.source.options import SourceOptions
from replayer.spark.source.planning import PartitionRange

Offsets = dict[str, dict[str, int]]
"""By incarnation (`orders~1`) and partition, the offset before which everything is read."""

PartitionName = tuple[str, str]
"""An incarnation and a partition, as they stand in offsets."""


async def initial(options: SourceOptions) -> Offsets:
    """Where a new query begins; raises UsageError or DataLost."""
    async with opened(options.place) as archive:
        found = await planning.subscribed(archive, options)
        return _offsets([(each, await planning.starting_offset(each, options)) for each in found])


async def latest(options: SourceOptions) -> Offsets:
    """The end of every partition by now, of older incarnations of the topics too."""
    async with opened(options.place) as archive:
        return await _ends(archive, options)


async def next_end(start: Offsets, last: Offsets | None, most: int | None, options: SourceOptions) -> Offsets:
    """Where the next batch ends: never behind `start`, not beyond `last`, at most `most` offsets ahead in all.

    What was archived of a topic before it was created again is read to its end, where the query had begun on it.
    """
    firsts: dict[PartitionName, int] = {}
    async with opened(options.place) as archive:
        ends = begun(start, last if last is not None else await _ends(archive, options))
        for topic, partitions in ends.items():
            for partition in partitions:
                known = start.get(topic, {}).get(partition)
                if known is None:
                    known = (await archive.open_partition(topic, int(partition))).own_start
                firsts[topic, partition] = known
    lags = {(topic, number): max(0, ends[topic][number] - first) for (topic, number), first in firsts.items()}
    steps = shared_out(lags, most)
    reached: Offsets = {topic: dict(partitions) for topic, partitions in start.items()}
    for (topic, partition), first in firsts.items():
        reached.setdefault(topic, {})[partition] = first + steps[topic, partition]
    return reached


def begun(start: Offsets, ends: Offsets) -> Offsets:
    """The ends without incarnations older than those that the query began with."""
    oldest: dict[str, int] = {}
    for folder in map(parse_topic_folder, start):
        oldest[folder.topic] = min(folder.incarnation, oldest.get(folder.topic, folder.incarnation))
    folders = {name: parse_topic_folder(name) for name in ends}
    newest = {folder.topic: folder.incarnation for folder in sorted(folders.values())}
    return {
        name: ends[name]
        for name, (topic, incarnation) in folders.items()
        if incarnation >= oldest.get(topic, newest[topic])
    }


def shared_out(lags: Mapping[PartitionName, int], most: int | None) -> dict[PartitionName, int]:
    """How far each partition goes: all of its lag, or its share of `most` offsets, at least one where it lags."""
    total = sum(lags.values())
    if most is None or total <= most:
        return dict(lags)
    return {place: min(lag, max(1, lag * most // total)) if lag else 0 for place, lag in lags.items()}


async def tasks_between(start: Offsets, end: Offsets, options: SourceOptions) -> list[PartitionRange]:
    """The tasks of a batch; a partition that `start` does not know is read from its first archived offset.

    Raises DataLost for a gap inside, NotInArchive for a partition that is no longer there.
    """
    async with opened(options.place) as archive:
        partitions, runs = [], []
        for topic, numbers in end.items():
            for number, stop in numbers.items():
                partition = await archive.open_partition(topic, int(number))
                first = start.get(topic, {}).get(number, partition.own_start)
                partitions.append(partition)
                runs.append(PartitionRange(topic, int(number), first, max(first, stop)))
        return await planning.tasks(partitions, runs, options)


async def _ends(archive: Archive, options: SourceOptions) -> Offsets:
    ends: Offsets = {}
    for partition, end in planning.own_ends(await planning.subscribed_with_past(archive, options)).items():
        _note(ends, partition, partition.keys.folder, end)
    return ends


def _offsets(reached: Iterable[tuple[ArchivedPartition, int]]) -> Offsets:
    """Of a partition whose log was truncated, each folder has the offset up to which its own part is read."""
    offsets: Offsets = {}
    for partition, offset in reached:
        folders = partition.folders
        for (keys, _), (_, end) in pairwise(folders):
            _note(offsets, partition, keys.folder, min(offset, end))
        _note(offsets, partition, partition.keys.folder, max(offset, folders[-1][1]) if folders[1:] else offset)
    return offsets


def _note(offsets: Offsets, partition: ArchivedPartition, folder: TopicFolder, offset: int) -> None:
    offsets.setdefault(f"{folder.topic}~{folder.incarnation}", {})[str(partition.partition)] = offset
