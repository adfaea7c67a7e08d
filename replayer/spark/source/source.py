"""Format `blockgz`: an archive with the columns and options of Spark's own Kafka source (Python Data Source API)."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from blockgz_runtime.spark.errors import ReadFailed, report_errors
from replayer.place import opened
from replayer.read.partition import ArchivedPartition
from replayer.read.positions import Earliest, Latest
from replayer.read.selection import scan
from replayer.spark.background import iterated
from replayer.spark.source import following, planning
from replayer.spark.source.logs import Listing
from replayer.spark.source.options import SourceOptions, parse_options
from replayer.spark.source.planning import PartitionRange
from replayer.spark.source.rows import DDL, HEADERS_DDL, INCARNATION_DDL, batched, to_rows

T = TypeVar("T")


@dataclass
class Task(InputPartition):
    """What one task reads."""

    run: PartitionRange


class ArchiveSource(DataSource):
    """The format, as Spark knows it; its readers raise ReadFailed."""

    @classmethod
    def name(cls) -> str:
        return "blockgz"

    def schema(self) -> str:
        """The columns of Spark's Kafka source."""
        with report_errors(ReadFailed):
            options = parse_options(self.options, default_start=Earliest())
        return DDL + (HEADERS_DDL if options.headers else "") + (INCARNATION_DDL if options.incarnation else "")

    def reader(self, schema: StructType) -> "BatchReader":  # noqa: ARG002
        """A batch: from the earliest offset to the latest, unless the options say otherwise."""
        with report_errors(ReadFailed):
            return BatchReader(parse_options(self.options, default_start=Earliest()))

    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: ARG002, N802
        """A stream: what is committed from now on, unless the options say otherwise."""
        with report_errors(ReadFailed):
            return StreamReader(parse_options(self.options, default_start=Latest()))


class _Reader:
    """What Spark pickles to tasks."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task; Spark asks for None where no task was planned."""
        if isinstance(partition, Task):
            with report_errors(ReadFailed):
                yield from batched(iterated(lambda: _rows(partition.run, self._options)))


class BatchReader(_Reader, DataSourceReader):
    """The archive as it is when the job is planned."""

    def partitions(self) -> Sequence[InputPartition]:
        return [Task(run) for run in _done(_batch(self._options))]


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is committed to the archive while the query runs; offsets are Kafka's: {topic: {partition: next offset}}."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._listing = Listing(options.subscription)
        self._last: following.Offsets | None = None
        """Where Trigger.AvailableNow ends."""
        self._latest: following.Offsets | None = None
        """What the newest trigger found, which Spark asks for once more."""

    def initialOffset(self) -> following.Offsets:  # noqa: N802
        return _done(following.initial(self._options))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._listing.forget()
        self._last = _done(following.latest(self._options, self._listing))

    def latestOffset(self, start: following.Offsets, limit: ReadLimit) -> following.Offsets:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached, self._latest = _done(following.next_end(start, self._last, most, self._options, self._listing))
        return reached

    def reportLatestOffset(self) -> following.Offsets:  # noqa: N802
        return self._latest or _done(following.latest(self._options, self._listing))

    def partitions(self, start: following.Offsets, end: following.Offsets) -> Sequence[InputPartition]:
        return [Task(run) for run in _done(following.tasks_between(start, end, self._options))]


def _done(work: Coroutine[Any, Any, T]) -> T:
    with report_errors(ReadFailed):
        return asyncio.run(work)


async def _batch(options: SourceOptions) -> list[PartitionRange]:
    async with opened(options.place) as archive:
        wanted = await planning.subscribed(archive, options)
        runs = await planning.ranges(wanted, options)
        return await planning.tasks([each.partition for each in wanted], runs, options)


async def _rows(run: PartitionRange, options: SourceOptions) -> AsyncGenerator[pa.RecordBatch]:
    async with opened(options.place) as archive:
        partition = await archive.open_partition(run.topic, run.partition)
        async with aclosing(scan(partition, run.start, run.end)) as batches:
            async for batch in batches:
                if not batch.num_rows:
                    continue
                number = incarnation_of(partition, batch) if options.incarnation else None
                yield to_rows(batch, partition.topic, partition.partition, headers=options.headers, incarnation=number)


def incarnation_of(partition: ArchivedPartition, batch: pa.RecordBatch) -> int:
    """The number of the folder that holds a batch: no chunk lies in two."""
    first = batch.column("offset")[0].as_py()
    (keys, _), *newer = partition.folders
    return next((keys for keys, start in reversed(newer) if start <= first), keys).folder.incarnation
