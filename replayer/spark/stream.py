"""Format `blockgz` as a stream, for Spark 4.2 and later: its offsets, and the tasks between two of them."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from blockgz.archive.archive import opened
from blockgz.archive.partition import END, ArchivedPartition
from blockgz.archive.positions import AT_END
from index_format.keys import TopicFolder, parse_topic_folder
from replayer.spark import planning
from replayer.spark.decoding import RowDecoder
from replayer.spark.planning import Listing, LogPart, PartitionRange, each_of, log_parts
from replayer.spark.source import ReadTask, TaskReader, done, reader_of
from replayer.spark.source_options import SourceOptions

# Next offsets to read, by incarnation (`orders~1`) and partition.
Offsets = dict[str, dict[str, int]]

# An incarnation and a partition, as offsets name them.
PartitionName = tuple[str, str]


# A key next to the latest offsets of a query's progress; incarnations have a ~ in their names.
BEHIND = "behind"


async def initial(options: SourceOptions) -> Offsets:
    """Return the start of a new query; raises UsageError or DataLost."""
    async with opened(options.place) as archive:
        wanted = await planning.subscribed(archive, options)
        starts = await planning.starting_offsets(wanted, options)
        planning.print_notes(wanted, [(start, END) for start in starts])
    return _offsets(zip((each.partition for each in wanted), starts, strict=True))


def _offsets(reached: Iterable[tuple[ArchivedPartition, int]]) -> Offsets:
    """Return offsets for each folder: those of a truncated log have the end of their own part."""
    offsets: Offsets = {}
    for partition, offset in reached:
        folders = partition.folders
        for (keys, _), (_, end) in pairwise(folders):
            _note(offsets, keys.folder, partition.partition, min(offset, end))
        own = max(offset, folders[-1][1]) if folders[1:] else offset
        _note(offsets, partition.keys.folder, partition.partition, own)
    return offsets


async def latest(options: SourceOptions, listing: Listing) -> Offsets:
    """Return the end of every partition by now, of older incarnations of the topics too."""
    async with opened(options.place) as archive:
        return _ends(await log_parts(archive, listing))


async def next_end(
    start: Offsets, last: Offsets | None, most: int | None, options: SourceOptions, listing: Listing
) -> tuple[Offsets, Offsets]:
    """Return the end of the next batch: never below `start`, not beyond `last`, at most `most` offsets ahead in all.

    The second value is the end of all committed records, with the lag between the two.

    A batch reads one log of a topic: a newer one when all that is committed of those before it is read.
    """
    async with opened(options.place) as archive:
        parts = await log_parts(archive, listing)
    ends = _ends(parts)
    bounds = known_ends(start, last if last is not None else ends)
    reached = _reached(start, parts, bounds, most)
    return reached, {**ends, BEHIND: behind(reached, parts, known_ends(start, ends))}


def behind(reached: Offsets, parts: Iterable[LogPart], ends: Offsets) -> dict[str, int]:
    """Return how much is committed and not read: `offsets` of all partitions, and the largest `seconds` of a partition.

    The latter lie between the earliest time of the chunk or catalog to be read next and the latest of all that follow.
    """
    offsets = seconds = 0
    for part in parts:
        name, number = _name(part)
        end = ends.get(name, {}).get(number, part.start)
        first = reached.get(name, {}).get(number, part.start)
        if end > first:
            offsets += end - first
            left = [span for span in part.partition.marker.spans if span.next_offset > first]
            milliseconds = max(span.max_timestamp for span in left) - left[0].min_timestamp if left else 0
            seconds = max(seconds, round(milliseconds / 1000))
    return {"offsets": offsets, "seconds": seconds}


def _reached(start: Offsets, parts: Sequence[LogPart], bounds: Offsets, most: int | None) -> Offsets:
    firsts: dict[PartitionName, int] = {}
    lags: dict[PartitionName, int] = {}
    for part in _current(start, parts, bounds):
        name, number = place = _name(part)
        firsts[place] = first = start.get(name, {}).get(number, part.start)
        lags[place] = max(0, bounds[name][number] - first)
    steps = shared_out(lags, most)
    reached: Offsets = {topic: dict(partitions) for topic, partitions in start.items()}
    for (topic, number), first in firsts.items():
        reached.setdefault(topic, {})[number] = first + steps[topic, number]
    return reached


def _current(start: Offsets, parts: Sequence[LogPart], bounds: Offsets) -> list[LogPart]:
    """Return the parts that the next batch may read: each topic's oldest log with a record left, else the newest."""
    # Within a log, a partition's folder follows when the one before it is read.
    lagging: dict[str, int] = {}
    newest: dict[str, int] = {}
    behind: dict[tuple[str, int, int], TopicFolder] = {}
    inside = [part for part in parts if _name(part)[1] in bounds.get(_name(part)[0], {})]
    for part in inside:
        (name, number), topic = _name(part), part.folder.topic
        newest[topic] = max(part.log, newest.get(topic, 0))
        if bounds[name][number] > start.get(name, {}).get(number, part.start):
            lagging[topic] = min(part.log, lagging.get(topic, part.log))
            place = (topic, part.log, part.partition.partition)
            behind[place] = min(part.folder, behind.get(place, part.folder))
    return [
        part
        for part in inside
        if part.log == lagging.get(part.folder.topic, newest[part.folder.topic])
        and part.folder <= behind.get((part.folder.topic, part.log, part.partition.partition), part.folder)
    ]


def known_ends(start: Offsets, ends: Offsets) -> Offsets:
    """Return the ends without incarnations older than those of the query's start; all of a topic that is new to it."""
    oldest: dict[str, int] = {}
    for folder in map(parse_topic_folder, start):
        oldest[folder.topic] = min(folder.incarnation, oldest.get(folder.topic, folder.incarnation))
    folders = {name: parse_topic_folder(name) for name in ends}
    return {name: ends[name] for name, (topic, number) in folders.items() if number >= oldest.get(topic, 1)}


def shared_out(lags: Mapping[PartitionName, int], most: int | None) -> dict[PartitionName, int]:
    """Return how many offsets each partition advances: all of its lag, or its share of `most`, at least one if it
    lags.
    """
    total = sum(lags.values())
    if most is None or total <= most:
        return dict(lags)
    return {place: min(lag, max(1, lag * most // total)) if lag else 0 for place, lag in lags.items()}


async def tasks_between(start: Offsets, end: Offsets, options: SourceOptions) -> list[PartitionRange]:
    """Return the tasks of a batch; a partition that `start` does not know is read from its first archived offset.

    Raises DataLost for a gap inside, NotInArchive for a partition that has gone.
    """
    places = [
        (topic, number, stop)
        for topic, numbers in end.items()
        for number, stop in numbers.items()
        if stop > start.get(topic, {}).get(number, -1)
    ]
    async with opened(options.place) as archive:

        async def found(place: tuple[str, str, int]) -> tuple[ArchivedPartition, PartitionRange]:
            topic, number, stop = place
            partition = await archive.open_partition(topic, int(number))
            first = start.get(topic, {}).get(number, partition.own_start)
            return partition, PartitionRange(topic, int(number), first, max(first, stop))

        wanted = await each_of(places, found)
        return await planning.tasks([partition for partition, _ in wanted], [run for _, run in wanted], options)


def _name(part: LogPart) -> PartitionName:
    return f"{part.folder.topic}~{part.folder.incarnation}", str(part.partition.partition)


def _ends(parts: Sequence[LogPart]) -> Offsets:
    ends: Offsets = {}
    for part in parts:
        _note(ends, part.folder, part.partition.partition, part.end)
    return ends


def _note(offsets: Offsets, folder: TopicFolder, partition: int, offset: int) -> None:
    offsets.setdefault(f"{folder.topic}~{folder.incarnation}", {})[str(partition)] = offset


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of records that are committed while the query runs; offsets are {topic: {partition: next offset}}."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], decoder: RowDecoder | None = None) -> None:
        super().__init__(options, columns, decoder)
        self._listing = Listing(options.subscription)
        # The end of Trigger.AvailableNow.
        self._last: Offsets | None = None
        # The latest offsets at the newest trigger, for the query's progress.
        self._latest: Offsets | None = None

    def initialOffset(self) -> Offsets:  # noqa: N802
        return done(initial(self._options))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._listing.forget()
        self._last = done(latest(self._options, self._listing))

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached, self._latest = done(next_end(start, self._last, most, self._options, self._listing))
        return reached

    def reportLatestOffset(self) -> Offsets:  # noqa: N802
        return self._latest or done(latest(self._options, self._listing))

    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return [ReadTask(run) for run in done(tasks_between(start, end, self._options))]


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    """Raise ReadFailed; `schema` may leave columns out."""
    return reader_of(StreamReader, given, schema, AT_END)
