"""What writes for format `blockgz-archive`: records of Spark's Kafka source into an archive."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from archiver.commit.batch import Reading
from archiver.logs import log_to
from archiver.spark.commit import commit_all, ordered
from archiver.spark.context import WriteContext, open_context
from archiver.spark.errors import as_write_failed
from archiver.spark.options import parse_options
from archiver.spark.read_ranges import ask_ranges
from archiver.spark.rows import SourcePartition, check_columns, to_rows
from archiver.spark.task import TaskPartition, write_task
from blockgz.errors import UsageError
from blockgz.spark.shipping import Shipped
from blockgz.spark.versions import DataSourceStreamArrowWriter, require_spark


@dataclass
class TaskReport(WriterCommitMessage):
    """What one task stored; pickled on its way to the driver."""

    partitions: tuple[TaskPartition, ...]


class _Writer(Shipped):
    """What Spark pickles to tasks, and to where it commits."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        with as_write_failed():
            return TaskReport(write_task(map(to_rows, iterator), self._context))

    def _commit(
        self, messages: Sequence[WriterCommitMessage | None], readings: Mapping[SourcePartition, Reading]
    ) -> None:
        """Commits everything; where it raises, what was committed is left out of the next try."""
        log_to(sys.stderr, level=logging.WARNING, log_format="text")
        reports = [report for message in messages if isinstance(message, TaskReport) for report in message.partitions]
        with as_write_failed():
            batches = ordered(reports, missing_are_unverified=self._context.options.missing_are_unverified)
            outcomes = commit_all(batches, self._context, readings)
            if errors := [each.error for each in outcomes if each.error is not None]:
                raise errors[0]


class BatchWriter(_Writer, DataSourceArrowWriter):
    """One write."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._commit(messages, {})


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """One micro-batch. The archive's markers say what was committed; by its number the job says what was read."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        address = self._context.options.readings
        with as_write_failed():
            readings = ask_ranges(address, batchId) if address else {}
        self._commit(messages, readings)


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Raises WriteFailed before anything is written."""
    with as_write_failed():
        return BatchWriter(_context(given, schema, overwrite=overwrite, is_batch=True))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Raises WriteFailed before anything is written."""
    with as_write_failed():
        require_spark("4.1", "a stream into an archive")
        return StreamWriter(_context(given, schema, overwrite=overwrite, is_batch=False))


def _context(options: Mapping[str, str], schema: StructType, *, overwrite: bool, is_batch: bool) -> WriteContext:
    if overwrite:
        raise UsageError(
            "an archive is never overwritten",
            why="its chunks are immutable",
            remedy='write .mode("append"), or give another path',
        )
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
    return open_context(parse_options(options), is_batch=is_batch)
