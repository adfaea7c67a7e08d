"""Writing for format `blockgz-archive`: tasks store chunks, and the driver commits them partition by partition."""

import logging
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from archiver.commit.batch import Committed, check_data, commit_batch, commit_reading
from archiver.commit.commit import read_marker
from archiver.commit.recovery import ClaimList, name_successors, take_over
from archiver.logs import LogEvent, log, log_to
from archiver.spark.context import WriteContext, open_context, parse_options
from archiver.spark.read_ranges import ask_ranges
from archiver.spark.rows import BatchRefused, check_columns, to_rows
from archiver.spark.task import SORT_REMEDY, PartitionBatch, write_task
from blockgz.errors import BlockgzError, UsageError
from blockgz.spark.errors import WriteFailed, carry_errors, in_options
from blockgz.spark.formats import DataSourceStreamArrowWriter, Shipped, require_spark
from blockgz.store.retry import bounded_backoff
from index_format.keys import TopicPartition
from index_format.objects import UNVERIFIED, Gap

# Partitions that are committed at once: a commit is some requests, one after the other.
COMMITTERS = 16


class BatchOutcome(NamedTuple):
    """The result of one partition's batch; None and no error if the archive already held all of it."""

    batch: PartitionBatch
    committed: Committed | None
    error: BlockgzError | None


def ordered(reports: Iterable[PartitionBatch], *, missing_are_unverified: bool = False) -> list[PartitionBatch]:
    """Return the reports of all tasks by partition; raises BatchRefused if two tasks' offsets overlap.

    `missing_are_unverified`: offsets between two chunks are a gap, at the end of the first one.
    """
    by_partition: Mapping[str, list[PartitionBatch]] = defaultdict(list)
    for report in reports:
        by_partition[report.identity.keys.home].append(report)
    batches = [_joined(each) for _, each in sorted(by_partition.items())]
    return [_with_gaps(each) for each in batches] if missing_are_unverified else batches


def _with_gaps(batch: PartitionBatch) -> PartitionBatch:
    chunks = list(batch.chunks)
    for number, (before, after) in enumerate(pairwise(batch.chunks)):
        if after.content.first_offset > before.content.last_offset + 1:
            gap = Gap(before.content.last_offset + 1, after.content.first_offset, UNVERIFIED)
            chunks[number] = before.with_content(gaps=(*before.content.gaps, gap))
    return replace(batch, chunks=tuple(chunks))


def _joined(reports: Sequence[PartitionBatch]) -> PartitionBatch:
    chunks = sorted((chunk for each in reports for chunk in each.chunks), key=lambda chunk: chunk.content.first_offset)
    batch = PartitionBatch(
        reports[0].identity,
        frozenset().union(*(each.ends for each in reports)),
        tuple(chunks),
        sum(each.dropped for each in reports),
        sum(each.too_late for each in reports),
    )
    for before, after in pairwise(chunks):
        if after.content.first_offset <= before.content.last_offset:
            raise BatchRefused(
                f"{batch.partition}: two tasks have offsets around {after.content.first_offset}",
                why=f"one holds [{before.content.first_offset}..{before.content.last_offset + 1}), "
                f"another [{after.content.first_offset}..{after.content.last_offset + 1}); chunks never overlap",
                remedy=SORT_REMEDY,
            )
    return batch


def commit_all(
    batches: Sequence[PartitionBatch], context: WriteContext, readings: Mapping[TopicPartition, range]
) -> list[BatchOutcome]:
    """Commit what the tasks stored; one partition that fails keeps no other from its commit.

    `readings` are the offsets that the batch read, if known, including those of partitions without a record.
    """
    without = readings.keys() - {batch.partition for batch in batches}
    with ThreadPoolExecutor(COMMITTERS) as pool:
        empty = (PartitionBatch(each, frozenset(), (), 0, 0) for each in pool.map(context.identity, sorted(without)))
        every = [*batches, *empty]
        failed = _listed(batches, context, pool)

        def commit(batch: PartitionBatch) -> BatchOutcome:
            error = failed.get(batch.partition)
            return BatchOutcome(batch, None, error) if error else _commit(batch, context, readings.get(batch.partition))

        outcomes = list(pool.map(commit, every))
    for outcome in outcomes:
        _log(outcome)
    return outcomes


def _listed(
    batches: Sequence[PartitionBatch], context: WriteContext, pool: Executor
) -> dict[TopicPartition, BlockgzError]:
    """Add the batch's partitions to the archive's inventory, which lists only those with a marker; return failures."""
    # One that has none yet is claimed now, as its commit would do.
    failed: dict[TopicPartition, BlockgzError] = {}

    def claim(batch: PartitionBatch) -> None:
        driver, identity = context.driver(), batch.identity
        try:
            if driver.run(read_marker(identity.keys.marker)) is None:
                for chunk in batch.chunks:
                    driver.run(check_data(identity, batch.ends, chunk, context.policy))
                driver.run(take_over(identity, str(uuid.uuid4()), context.policy))
            claims.add(identity.keys, identity.topic_id)
        except BlockgzError as error:
            failed[batch.partition] = error

    claims = ClaimList(context.store, context.archive)
    list(pool.map(claim, [batch for batch in batches if batch.chunks]))
    for batch in batches:
        with suppress(BlockgzError):  # which is logged
            claims.settle(batch.identity.keys, bounded_backoff(context.store.url))
    return failed


def _commit(batch: PartitionBatch, context: WriteContext, reading: range | None) -> BatchOutcome:
    driver = context.driver()
    try:
        if batch.chunks:
            driver.run(name_successors(batch.identity.keys, str(uuid.uuid4())))
            protocol = commit_batch(batch.identity, batch.ends, batch.chunks, context.policy, reading)
            return BatchOutcome(batch, driver.run(protocol), None)
        if reading is not None:
            driver.run(commit_reading(batch.identity, reading, context.policy))
    except BlockgzError as error:
        return BatchOutcome(batch, None, error)
    return BatchOutcome(batch, None, None)


def _log(outcome: BatchOutcome) -> None:
    batch, committed, _ = outcome
    topic, partition = batch.identity.topic, batch.identity.keys.partition
    dropped = batch.dropped + (committed.passed if committed else 0)
    if dropped:
        log.warning(LogEvent.DROPPED, topic=topic, partition=partition, records=dropped)
    if batch.too_late:
        log.warning(LogEvent.TOO_LATE, topic=topic, partition=partition, records=batch.too_late)
    if committed is not None and committed.gap is not None:
        gap = committed.gap
        log.warning(LogEvent.GAP, topic=topic, partition=partition, start=gap.start, end=gap.end, reason=gap.reason)


def as_write_failed() -> AbstractContextManager[None]:
    """Raise errors of ours as WriteFailed, in words of the format."""
    return carry_errors(WriteFailed, in_options)


@dataclass
class TaskReport(WriterCommitMessage):
    """The partitions that one task stored; pickled on its way to the driver."""

    partitions: tuple[PartitionBatch, ...]


class _ArchiveWriter(Shipped):
    """The writer that Spark pickles for tasks, and for the process that commits."""

    def __init__(self, context: WriteContext) -> None:
        self._context = context

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskReport:
        with as_write_failed():
            return TaskReport(write_task(map(to_rows, iterator), self._context))

    def _commit(self, messages: Sequence[WriterCommitMessage | None], readings: Mapping[TopicPartition, range]) -> None:
        """Commit everything; after an error, the next try leaves out what was committed."""
        log_to(sys.stderr, level=logging.WARNING, log_format="text")
        reports = [report for message in messages if isinstance(message, TaskReport) for report in message.partitions]
        with as_write_failed():
            batches = ordered(reports, missing_are_unverified=self._context.options.missing_are_unverified)
            outcomes = commit_all(batches, self._context, readings)
            if errors := [each.error for each in outcomes if each.error is not None]:
                raise errors[0]


class ArchiveBatchWriter(_ArchiveWriter, DataSourceArrowWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._commit(messages, {})


class ArchiveStreamWriter(_ArchiveWriter, DataSourceStreamArrowWriter):
    """One micro-batch. The archive's markers say what was committed; by its number the job says what was read."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        address = self._context.options.readings
        with as_write_failed():
            readings = ask_ranges(address, batchId) if address else {}
        self._commit(messages, readings)


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> ArchiveBatchWriter:
    """Raise WriteFailed before anything is written."""
    with as_write_failed():
        return ArchiveBatchWriter(_context(given, schema, overwrite=overwrite, is_batch=True))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> ArchiveStreamWriter:
    """Raise WriteFailed before anything is written."""
    with as_write_failed():
        require_spark("4.1", "a stream into an archive")
        return ArchiveStreamWriter(_context(given, schema, overwrite=overwrite, is_batch=False))


def _context(options: Mapping[str, str], schema: StructType, *, overwrite: bool, is_batch: bool) -> WriteContext:
    if overwrite:
        raise UsageError(
            "an archive is never overwritten",
            why="its chunks are immutable",
            remedy='write .mode("append"), or give another path',
        )
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
    return open_context(parse_options(options), is_batch=is_batch)
