"""Reading for format `blockgz`: tasks and batches with the columns of Spark's own Kafka source."""

import asyncio
import re
import sys
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from blockgz.archive.archive import opened
from blockgz.archive.partition import STOP, ArchivedPartition, DamagePolicy, Unreadable
from blockgz.archive.positions import AT_START, Position
from blockgz.archive.rows import HEADERS, INCARNATION, to_rows
from blockgz.archive.selection import scan
from blockgz.errors import UsageError
from blockgz.spark.errors import ReadFailed, report_errors
from blockgz.spark.formats import Shipped
from index_format.keys import parse_topic_folder
from index_format.records import SCHEMA
from replayer.spark import planning
from replayer.spark.background import iterated
from replayer.spark.decoding import RowDecoder, decoded_rows
from replayer.spark.planning import PartitionRange
from replayer.spark.source_options import SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # of Spark 4.1 and later


# Bytes handed to Spark at once: smaller batches cost more each, larger ones leave the processor's caches.
BATCH_BYTES = 4 * 1024 * 1024


def check_columns(types: Mapping[str, str], known: Mapping[str, str]) -> None:
    """Raise UsageError for a schema that a user gave and that has other columns or types than `known`."""
    for name, found in types.items():
        if name not in known:
            raise UsageError(
                f"format blockgz has no column {name!r}",
                why=f"the columns are {', '.join(known)}",
                remedy="remove it from the schema: .schema(…) selects from these",
            )
        if found != known[name]:
            raise UsageError(
                f"the schema has column {name} as {found}",
                why=f"the archive holds it as {known[name]}",
                remedy=f"use this type, and convert after the read: .withColumn({name!r}, col({name!r}).cast(…))",
            )


def batched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches of about `BATCH_BYTES`."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.get_total_buffer_size()
        if size >= BATCH_BYTES:
            yield pa.concat_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_batches(waiting)


T = TypeVar("T")


@dataclass
class ReadTask(InputPartition):
    run: PartitionRange


class TaskReader(Shipped):
    """The reader that Spark pickles for tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[str], decoder: RowDecoder | None = None) -> None:
        """`columns` are those of the rows, in their order."""
        self._options = options
        self._columns = tuple(columns)
        self._decoder = decoder

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; Spark passes None if no task was planned."""
        if isinstance(partition, ReadTask):
            with report_errors(ReadFailed):
                yield from batched(iterated(lambda: self._rows(partition.run)))

    async def _rows(self, run: PartitionRange) -> AsyncGenerator[pa.RecordBatch]:
        async with opened(self._options.place) as archive:
            partition = await archive.open_partition(run.topic, run.partition)
            policy = TellSkipped(str(partition)) if self._options.skips_damage else STOP
            async with aclosing(scan(partition, run.start, run.end, on_damage=policy)) as batches:
                async for batch in batches:
                    if batch.num_rows:
                        yield self._row_batch(partition, batch)

    def _row_batch(self, partition: ArchivedPartition, batch: pa.RecordBatch) -> pa.RecordBatch:
        number = incarnation_of(partition, batch) if INCARNATION in self._columns else None
        has_headers = HEADERS in self._columns
        place = (partition.topic, partition.partition)
        # Spark does not say which columns a query wants, so a time that it may not read must not end it.
        rows = to_rows(batch, *place, headers=has_headers, incarnation=number, times="nullable")
        return (rows if self._decoder is None else self._decoder(rows)).select(self._columns)


R = TypeVar("R", bound=TaskReader)


class TellSkipped(DamagePolicy):
    """A damage policy that skips, and reports it on the worker's stderr, which is the executor's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def meet(self, unreadable: Unreadable) -> None:
        start, end, reason = unreadable.start, unreadable.end, unreadable.reason
        print(f"blockgz: FAILURE {self._name} skipped offsets [{start}..{end}): {reason}", file=sys.stderr, flush=True)


class BatchReader(TaskReader, DataSourceReader):
    """The archive as it is when the job is planned."""

    _filters: "tuple[Filter, ...]" = ()

    def partitions(self) -> Sequence[InputPartition]:
        return [ReadTask(run) for run in done(_batch(self._options, self._filters))]


class FilteredReader(BatchReader):
    """A reader for a query with filters: it leaves out blocks that hold no matching rows."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802
        """Take note of all; Spark applies each of them to the rows again."""
        self._filters = tuple(filters)
        return filters


def schema_of(given: Mapping[str, str]) -> StructType:
    """Return the columns of a read; raises ReadFailed."""
    with report_errors(ReadFailed):
        options = parse_options(given, default_start=AT_START)
        return columns_of(decoder_of(options), headers=options.headers, incarnation=options.incarnation)


def columns_of(decoder: RowDecoder | None, *, headers: bool = True, incarnation: bool = True) -> StructType:
    """Return the columns of the rows."""
    nothing = pa.RecordBatch.from_pylist([], SCHEMA)
    rows = to_rows(nothing, "", 0, headers=headers, incarnation=1 if incarnation else None)
    return from_arrow_schema((rows if decoder is None else decoder(rows)).schema)


def decoder_of(options: SourceOptions) -> RowDecoder | None:
    """Return the decoder of keys and values; None if they stay bytes. Raises as `decoded_rows`, or ReadFailed."""
    return None if options.decoding is None else decoded_rows(options.decoding, done(_topics(options)))


async def _topics(options: SourceOptions) -> list[str]:
    """Names of what is subscribed to, without incarnations."""
    subscription = options.subscription
    if not isinstance(subscription, str):
        return list(dict.fromkeys(parse_topic_folder(name).topic for name in subscription))
    async with opened(options.place) as archive:
        return [topic for topic in await archive.topics() if re.fullmatch(subscription, topic)]


def batch_reader(given: Mapping[str, str], schema: StructType, *, takes_filters: bool) -> BatchReader:
    """Raise ReadFailed; `schema` may leave columns out."""
    return reader_of(FilteredReader if takes_filters else BatchReader, given, schema, AT_START)


def reader_of(kind: type[R], given: Mapping[str, str], schema: StructType, default_start: Position) -> R:
    """Return a reader of the columns of `schema`; raises ReadFailed."""
    with report_errors(ReadFailed):
        options = parse_options(given, default_start=default_start)
        decoder = decoder_of(options)
        check_columns(_kinds(schema), _kinds(columns_of(decoder)))
        return kind(options, schema.names, decoder)


def _kinds(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema.fields}


def done(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of asynchronous work; raises ReadFailed."""
    with report_errors(ReadFailed):
        return asyncio.run(work)


async def _batch(options: SourceOptions, filters: "Sequence[Filter]") -> list[PartitionRange]:
    async with opened(options.place) as archive:
        wanted = await planning.subscribed(archive, options)
        runs = await planning.ranges(wanted, options)
        planning.print_notes(wanted, [(run.start, run.end) for run in runs])
        return await planning.tasks([each.partition for each in wanted], runs, options, filters)


def incarnation_of(partition: ArchivedPartition, batch: pa.RecordBatch) -> int:
    """Return the number of the folder that holds a batch: no chunk is in two."""
    first = batch.column("offset")[0].as_py()
    (keys, _), *newer = partition.folders
    return next((keys for keys, start in reversed(newer) if start <= first), keys).folder.incarnation
