"""Writing for format `blockgz-kafka`: checks before the first row, then the tasks of a batch or a stream.

A task sends its rows as they come, or in transactions that no second run repeats.
"""

import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from time import monotonic

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from blockgz.errors import BlockgzError, UsageError
from blockgz.spark.errors import WriteFailed, report_errors
from blockgz.spark.formats import DataSourceStreamArrowWriter, Shipped, require_spark
from index_format.records import payload_bytes
from replayer.replay.job import LanePosition
from replayer.replay.pipeline import ScannedBatch, sendable
from replayer.replay.run import CADENCE
from replayer.replay.sinks.producer import KafkaSink
from replayer.spark import sink_target
from replayer.spark.background import Background
from replayer.spark.lanes import SourceLane, lane_sink, source_lane
from replayer.spark.row_position import NOTHING, RowLedger, TaskRun, decode_row_position

# A write does not know how many partitions its target will have tomorrow; the first one stays.
PLACES = 1
# Source partitions that a task keeps producers for; rows in order of their partitions need one.
LANES_AT_ONCE = 8

# A source partition, and the incarnation of its topic where the rows say it.
LaneKey = tuple[int, int | None]


@dataclass(frozen=True)
class WriteWork:
    """The work of every task of a write; `target` is None if each row names its topic."""

    options: sink_target.TopicSinkOptions
    columns: sink_target.Columns
    target: sink_target.Target | None


def write_rows(batches: Iterator[pa.RecordBatch], work: WriteWork, writer: TaskRun) -> int:
    """Write all rows; return the number of records once the cluster has taken all of them."""
    arriving = Background[pa.RecordBatch](lambda offer: all(map(offer, batches)), 1)
    reader = sink_target.RowReader(work.columns, headers=work.options.headers)
    producers = _Producers(work, writer)
    try:
        while True:
            try:
                batch = arriving.next(producers.due_in())
            except TimeoutError:
                producers.commit_due()
                continue
            if batch is None:
                break
            for part in reader.parts(batch):
                own = part.incarnation if "incarnation" in work.columns else work.options.incarnation
                producers.write(part._replace(incarnation=own))
            producers.commit_due()
        return producers.finish()
    except BaseException:
        producers.stop()
        raise


class _Producers:
    """One for each target topic."""

    def __init__(self, work: WriteWork, writer: TaskRun) -> None:
        self._work, self._writer = work, writer
        self._by_topic: dict[str, tuple[sink_target.Target, _Idempotent | _Transactional]] = {}

    def write(self, part: sink_target.RowPart) -> None:
        target, producer = self._to(part)
        sink_target.refuse_part(target, part)
        with _without_flags():
            producer.write(part)

    def due_in(self) -> float | None:
        waits = [wait for _, producer in self._by_topic.values() if (wait := producer.due_in()) is not None]
        return min(waits, default=None)

    def commit_due(self) -> None:
        with _without_flags():
            for _, producer in self._by_topic.values():
                producer.commit_due()

    def finish(self) -> int:
        with _without_flags():
            for _, producer in self._by_topic.values():
                producer.finish()
        return sum(producer.written for _, producer in self._by_topic.values())

    def stop(self) -> None:
        for _, producer in self._by_topic.values():
            producer.stop()

    def _to(self, part: sink_target.RowPart) -> "tuple[sink_target.Target, _Idempotent | _Transactional]":
        work, options = self._work, self._work.options
        name = options.topic or part.topic or ""
        if options.topic is not None and part.topic == name and "offset" in work.columns and not options.into_source:
            raise UsageError(
                f"{name} is the topic that the rows come from",
                why="the write would append a second copy of its records to it",
                remedy='choose another topic, or add .option("intoSource", "true") if this is what you want',
            )
        if name not in self._by_topic:
            target = work.target or sink_target.find_target(
                options, work.columns, name, sink_target.opened_admin(options)
            )
            kind = _Transactional if options.transactional else _Idempotent
            self._by_topic[name] = target, kind(options, target, self._writer)
        return self._by_topic[name]


class _Idempotent:
    """Every row once while the task lives; a task that Spark repeats writes its rows again."""

    written = 0
    """Records that were handed over."""

    def __init__(self, options: sink_target.TopicSinkOptions, target: sink_target.Target, writer: TaskRun) -> None:
        self._target, self._writer = target, writer
        self._sink = KafkaSink(options.properties, target.facts.name, _Nowhere(), target.max_message_bytes)

    def write(self, part: sink_target.RowPart) -> None:
        source = self._writer.task if part.partition is None else part.partition
        sink_target.refuse_missing_partition(self._target, source)
        records, _ = sendable(part.records)
        for piece in self._target.router.route(ScannedBatch(source, records)):
            self._sink.send(piece.target, piece.records)
        self.written += records.num_rows

    def due_in(self) -> None:
        """Return None: no transaction is open, and nothing has to end soon."""

    def commit_due(self) -> None:
        """Let go of what the cluster took."""
        self._sink.acknowledged(wait=False)

    def finish(self) -> None:
        self._sink.acknowledged(wait=True)

    def stop(self) -> None:
        self._sink.stop()


class _Nowhere:
    """Positions of a write that keeps none."""

    def read(self, _lanes: Sequence[int]) -> Mapping[int, LanePosition]:
        return {}

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        pass


class _Transactional:
    """Every row once, however often tasks and writes are repeated: a lane for each partition of an incarnation."""

    written = 0
    """Records that were committed."""

    def __init__(self, options: sink_target.TopicSinkOptions, target: sink_target.Target, writer: TaskRun) -> None:
        self._options, self._target, self._writer = options, target, writer
        # The open lanes, in order of their last write.
        self._lanes: OrderedDict[LaneKey, _OpenLane] = OrderedDict()
        # The last offsets of closed lanes: later rows below them would pass for written.
        self._last: dict[LaneKey, int] = {}

    def write(self, part: sink_target.RowPart) -> None:
        if part.partition is None:
            raise AssertionError("a transactional write without partitions is refused before it begins")
        key = (part.partition, part.incarnation)
        if key not in self._lanes:
            if len(self._lanes) >= LANES_AT_ONCE:
                self._close(next(iter(self._lanes)))
            last = self._last.get(key, NOTHING)
            self._lanes[key] = _OpenLane(self._options, self._target, part, self._writer, last)
        self._lanes.move_to_end(key)
        self._lanes[key].write(part)

    def due_in(self) -> float | None:
        """Return the seconds until `commit_due` has to be called; None if nothing is open."""
        waits = [wait for lane in self._lanes.values() if (wait := lane.due_in()) is not None]
        return min(waits, default=None)

    def commit_due(self) -> None:
        """End the transactions that may not stay open any longer."""
        for lane in self._lanes.values():
            if lane.due_in() == 0.0:
                lane.commit()

    def finish(self) -> None:
        for key in tuple(self._lanes):
            self._close(key)

    def stop(self) -> None:
        for lane in self._lanes.values():
            lane.stop()

    def _close(self, key: LaneKey) -> None:
        lane = self._lanes[key]
        lane.finish()
        self.written += lane.written
        self._last[key] = lane.last
        del self._lanes[key]
        lane.stop()


def _lane_of(options: sink_target.TopicSinkOptions, target: str, partition: int, incarnation: int | None) -> SourceLane:
    """Return the lane of a source partition: group `{job}.{partition}.{incarnation}`, or as other jobs have it."""
    job = options.job_into(target)
    if incarnation is None or incarnation == options.recorded_incarnation:
        return source_lane(job, partition, PLACES)
    return SourceLane(partition, replace(job, name=f"{job.name}.{partition}.{incarnation}"), 0)


class _OpenLane:
    """The rows of one source partition, their transactions, and what is known of them."""

    def __init__(
        self,
        options: sink_target.TopicSinkOptions,
        target: sink_target.Target,
        part: sink_target.RowPart,
        writer: TaskRun,
        last: int = NOTHING,
    ) -> None:
        """Fence earlier writers of the partition, and read its position; `part` holds its first rows.

        `last` is that of the task's lane before this one for the same partition, if there was one.
        """
        assert part.partition is not None
        sink_target.refuse_missing_partition(target, part.partition)
        lane = _lane_of(options, target.facts.name, part.partition, part.incarnation)
        self._number = lane.number
        self.written = 0
        with ExitStack() as stack:
            sink = lane_sink(lane, options.properties, target.router, target.max_message_bytes, decode_row_position)
            self._sink = stack.enter_context(sink)
            recorded = self._sink.begin([lane.number]).get(lane.number)
            self._ledger = RowLedger(
                recorded, part.topic or "", part.partition, writer, last, incarnation=part.incarnation
            )
            self._open = stack.pop_all()
        self._open_since: float | None = None
        self._open_records = self._open_bytes = 0

    @property
    def last(self) -> int:
        """The newest source offset that was written or stood already."""
        return self._ledger.last

    def write(self, part: sink_target.RowPart) -> None:
        """Send those of the records that do not stand yet; raises ReplayRefused, or what TransactionalSink raises."""
        self._ledger.refuse_other_topic(part.topic or "")
        records = part.records
        fresh, _ = sendable(records.slice(self._ledger.accept(records.column("offset").to_numpy())))
        if not fresh.num_rows:
            return
        if self._open_since is None:
            self._open_since = monotonic()
        self._sink.send(self._number, fresh)
        self.written += fresh.num_rows
        self._open_records += fresh.num_rows
        self._open_bytes += payload_bytes(fresh)

    def due_in(self) -> float | None:
        """Return the seconds until the transaction has to end; None if none is open."""
        if self._open_since is None:
            return None
        if self._open_records >= CADENCE.records or self._open_bytes >= CADENCE.bytes:
            return 0.0
        return max(0.0, self._open_since + CADENCE.seconds - monotonic())

    def commit(self) -> None:
        """End the transaction, if there is anything to commit."""
        position = self._ledger.position()
        if position is not None:
            self._sink.acknowledged(wait=True)
            self._sink.commit({self._number: position})
            self._ledger.committed(position)
        self._open_since = None
        self._open_records = self._open_bytes = 0

    def finish(self) -> None:
        self._ledger.finish()
        self.commit()

    def stop(self) -> None:
        self._open.close()


@contextmanager
def _without_flags() -> Iterator[None]:
    """Errors of a replay, with a remedy that a write has."""
    try:
        yield
    except BlockgzError as error:
        if "--" in error.remedy:
            error.remedy = "fix the cause and write again: a transactional write resumes where it stopped"
        raise


# Spark's local property for the number of a stream's batch.
BATCH_ID = "streaming.sql.batchId"


@dataclass
class WrittenRows(WriterCommitMessage):
    """The number of records that one task wrote."""

    records: int


def prepare(given: Mapping[str, str], schema: StructType, *, overwrite: bool, batch: bool) -> WriteWork:
    """Check everything that can be checked before the tasks run; raises a BlockgzError."""
    options = sink_target.parse_sink_options(given)
    columns = sink_target.check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
    if overwrite:
        raise UsageError(
            "a topic cannot be overwritten", why="records are only ever appended to one", remedy='.mode("append")'
        )
    refuse_unfit(options, columns)
    admin = sink_target.opened_admin(options)
    sink_target.refuse_other_key(options, columns, admin)
    if options.topic is None:
        return WriteWork(options, columns, None)
    target = sink_target.find_target(options, columns, options.topic, admin)
    if batch:
        sink_target.refuse_foreign_records(options, target, admin)
    return WriteWork(options, columns, target)


def refuse_unfit(options: sink_target.TopicSinkOptions, columns: sink_target.Columns) -> None:
    """Raise UsageError if these columns do not go with these options."""
    if options.topic is None and "topic" not in columns:
        raise UsageError("no topic is named", why="there is no column topic either", remedy='add .option("topic", …)')
    if options.topic is None and "offset" in columns and not options.into_source:
        raise UsageError(
            "the rows would go to the topics that they come from",
            why="no other topic is named, and the column offset shows that they are records of those topics",
            remedy='add .option("topic", "orders-copy"), or .option("intoSource", "true") for topics of the same name',
        )
    if options.headers and "offset" in columns and "headers" not in columns:
        raise UsageError(
            "the records' headers would be lost",
            why="there is no column headers, and the column offset shows that these are records of a topic",
            remedy='read with .option("includeHeaders", "true"), or write with .option("includeHeaders", "false")',
        )
    if options.routing is not None and options.routing.rule != "by-key" and "partition" not in columns:
        raise UsageError(
            "there is no column partition", why="partitions goes by it", remedy='.option("partitions", "by-key")'
        )
    refuse_unfit_incarnation(options, columns)
    missing = [name for name in ("topic", "partition", "offset") if name not in columns]
    if options.transactional and missing:
        raise UsageError(
            "these rows cannot be written transactionally",
            why=f"there is no column {missing[0]}: rows written before would look like new ones",
            remedy="keep the columns topic, partition and offset of the source, or remove transactional",
        )


def refuse_unfit_incarnation(options: sink_target.TopicSinkOptions, columns: sink_target.Columns) -> None:
    """Raise UsageError if it is unknown which incarnation of its topic a transactional row comes from."""
    known = "incarnation" in columns or options.incarnation is not None
    if options.recorded_incarnation is not None and not (options.transactional and known):
        raise UsageError(
            "recordedIncarnation does not apply to this write",
            why="it applies to the positions of a transactional write of rows with a column incarnation",
            remedy='remove it, or read with .option("includeIncarnation", "true")',
        )
    if options.incarnation is not None and "incarnation" in columns:
        raise UsageError(
            "incarnation is an option and a column", why="each row has its own", remedy="remove the option"
        )
    if options.transactional and not known and {"topic", "partition", "offset"} <= columns:
        raise UsageError(
            "the rows do not say which incarnation of their topic they come from",
            why="a topic that is created again has the same offsets again: its rows would pass for written ones",
            remedy='read with .option("includeIncarnation", "true"); or, if all rows come from one incarnation, write '
            'with .option("incarnation", "1")',
        )


class _TopicWriter(Shipped):
    """The writer that Spark pickles for tasks, which commit for themselves: committed records stay in any case."""

    def __init__(self, work: WriteWork) -> None:
        self._work = work
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        batch = context.getLocalProperty(BATCH_ID) if context else None
        with report_errors(WriteFailed):
            return WrittenRows(write_rows(iterator, self._work, TaskRun(f"{self._run}:{batch or ''}", task)))


class TopicBatchWriter(_TopicWriter, DataSourceArrowWriter):
    """One `save()`."""


class TopicStreamWriter(_TopicWriter, DataSourceStreamArrowWriter):
    """The batches of a query."""


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> TopicBatchWriter:
    """Raise WriteFailed before anything is written, where the target would not keep the rows."""
    with report_errors(WriteFailed):
        return TopicBatchWriter(prepare(given, schema, overwrite=overwrite, batch=True))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> TopicStreamWriter:
    """Raise WriteFailed, as `batch_writer`."""
    with report_errors(WriteFailed):
        require_spark("4.1", "a stream of format blockgz-kafka")
        return TopicStreamWriter(prepare(given, schema, overwrite=overwrite, batch=False))
