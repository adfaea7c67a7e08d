"""What reads for format `blockgz` as a stream, for Spark 4.2 and later."""

from collections.abc import Mapping, Sequence

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from blockgz.archive.positions import Latest
from replayer.spark.source import following
from replayer.spark.source.decoding import DecodedRows
from replayer.spark.source.logs import Listing
from replayer.spark.source.options import SourceOptions
from replayer.spark.source.source import Task, TaskReader, done, reader_of


class StreamReader(TaskReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What is committed to the archive while the query runs; offsets are Kafka's: {topic: {partition: next offset}}."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], decoder: DecodedRows | None = None) -> None:
        super().__init__(options, columns, decoder)
        self._listing = Listing(options.subscription)
        self._last: following.Offsets | None = None
        """Where Trigger.AvailableNow ends."""
        self._latest: following.Offsets | None = None
        """What the newest trigger found, for the query's progress."""

    def initialOffset(self) -> following.Offsets:  # noqa: N802
        return done(following.initial(self._options))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._listing.forget()
        self._last = done(following.latest(self._options, self._listing))

    def latestOffset(self, start: following.Offsets, limit: ReadLimit) -> following.Offsets:  # noqa: N802
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        reached, self._latest = done(following.next_end(start, self._last, most, self._options, self._listing))
        return reached

    def reportLatestOffset(self) -> following.Offsets:  # noqa: N802
        return self._latest or done(following.latest(self._options, self._listing))

    def partitions(self, start: following.Offsets, end: following.Offsets) -> Sequence[InputPartition]:
        return [Task(run) for run in done(following.tasks_between(start, end, self._options))]


def stream_reader(given: Mapping[str, str], schema: StructType) -> StreamReader:
    """Raises ReadFailed; `schema` may leave columns out."""
    return reader_of(StreamReader, given, schema, Latest())
