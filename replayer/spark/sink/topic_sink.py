"""What writes for format `blockgz-kafka`: checks before the first row, then the tasks of a batch or a stream."""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from blockgz.errors import UsageError
from blockgz.spark.errors import WriteFailed, report_errors
from blockgz.spark.shipping import Shipped
from blockgz.spark.versions import DataSourceStreamArrowWriter, require_spark
from replayer.spark.sink.options import SinkOptions, parse_sink_options
from replayer.spark.sink.row_position import Writer
from replayer.spark.sink.rows_in import Columns, check_columns
from replayer.spark.sink.rows_out import WriteWork, write_rows
from replayer.spark.sink.target_check import find_target, opened_admin, refuse_foreign_records, refuse_other_key

BATCH_ID = "streaming.sql.batchId"
"""Spark's local property for the number of a stream's batch."""


@dataclass
class WrittenRows(WriterCommitMessage):
    """What one task wrote."""

    records: int


def prepare(given: Mapping[str, str], schema: StructType, *, overwrite: bool, batch: bool) -> WriteWork:
    """Checks everything that can be checked before the tasks run; raises a BlockgzError."""
    options = parse_sink_options(given)
    columns = check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
    if overwrite:
        raise UsageError(
            "a topic cannot be overwritten", why="records are only ever appended to one", remedy='.mode("append")'
        )
    refuse_unfit(options, columns)
    admin = opened_admin(options)
    refuse_other_key(options, columns, admin)
    if options.topic is None:
        return WriteWork(options, columns, None)
    target = find_target(options, columns, options.topic, admin)
    if batch:
        refuse_foreign_records(options, target, admin)
    return WriteWork(options, columns, target)


def refuse_unfit(options: SinkOptions, columns: Columns) -> None:
    """Raises UsageError where these columns do not go with these options."""
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
            why=f"there is no column {missing[0]}: rows written before could not be told apart from new ones",
            remedy="keep the columns topic, partition and offset of the source, or remove transactional",
        )


def refuse_unfit_incarnation(options: SinkOptions, columns: Columns) -> None:
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


class _Writer(Shipped):
    """What Spark pickles to tasks, which commit for themselves: what they have committed stays, whatever comes then."""

    def __init__(self, work: WriteWork) -> None:
        self._work = work
        self._run = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenRows:
        context = TaskContext.get()
        task = context.partitionId() if context else 0
        batch = context.getLocalProperty(BATCH_ID) if context else None
        with report_errors(WriteFailed):
            return WrittenRows(write_rows(iterator, self._work, Writer(f"{self._run}:{batch or ''}", task)))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One `save()`."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """The batches of a query."""


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Raises WriteFailed before anything is written, where the target would not keep the rows."""
    with report_errors(WriteFailed):
        return BatchWriter(prepare(given, schema, overwrite=overwrite, batch=True))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Raises WriteFailed, as `batch_writer`."""
    with report_errors(WriteFailed):
        require_spark("4.1", "a stream of format blockgz-kafka")
        return StreamWriter(prepare(given, schema, overwrite=overwrite, batch=False))
