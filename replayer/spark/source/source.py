"""What reads for format `blockgz`: tasks and batches with the columns of Spark's own Kafka source."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from blockgz_runtime.spark.errors import ReadFailed, report_errors
from blockgz_runtime.spark.shipping import Shipped
from replayer.place import opened
from replayer.read.damage import STOP, Unreadable
from replayer.read.partition import ArchivedPartition
from replayer.read.positions import Earliest
from replayer.read.rows import HEADERS, INCARNATION, to_rows
from replayer.read.selection import scan
from replayer.spark.background import iterated
from replayer.spark.source import planning
from replayer.spark.source.options import SourceOptions, parse_options
from replayer.spark.source.planning import PartitionRange
from replayer.spark.source.rows import batched, check_columns, schema_text

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter  # of Spark 4.1 and later

T = TypeVar("T")


@dataclass
class Task(InputPartition):
    """What one task reads."""

    run: PartitionRange


class TaskReader(Shipped):
    """What Spark pickles to tasks."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """`columns` are those of the rows, in their order."""
        self._options = options
        self._columns = tuple(columns)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The rows of a task; Spark asks for None where no task was planned."""
        if isinstance(partition, Task):
            with report_errors(ReadFailed):
                yield from batched(iterated(lambda: _rows(partition.run, self._options, self._columns)))


class TellSkipped:
    """Skips what is damaged, and says so on the worker's stderr, which is the executor's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def meet(self, unreadable: Unreadable) -> None:
        start, end, reason = unreadable.start, unreadable.end, unreadable.reason
        print(f"blockgz: FAILURE {self._name} skipped offsets [{start}..{end}): {reason}", file=sys.stderr, flush=True)


class BatchReader(TaskReader, DataSourceReader):
    """The archive as it is when the job is planned."""

    _filters: "tuple[Filter, ...]" = ()

    def partitions(self) -> Sequence[InputPartition]:
        return [Task(run) for run in done(_batch(self._options, self._filters))]


class FilteredReader(BatchReader):
    """The same where Spark says which rows a query wants: it leaves out blocks that hold none of them."""

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802
        """Takes note of all; Spark applies each of them to the rows again."""
        self._filters = tuple(filters)
        return filters


def schema_of(given: Mapping[str, str]) -> str:
    """The columns of a read, in Spark's notation; raises ReadFailed."""
    with report_errors(ReadFailed):
        options = parse_options(given, default_start=Earliest())
    return schema_text(headers=options.headers, incarnation=options.incarnation)


def batch_reader(given: Mapping[str, str], schema: StructType, *, takes_filters: bool) -> BatchReader:
    """Raises ReadFailed; `schema` may leave columns out."""
    kind = FilteredReader if takes_filters else BatchReader
    with report_errors(ReadFailed):
        return kind(parse_options(given, default_start=Earliest()), columns_of(schema))


def columns_of(schema: StructType) -> list[str]:
    """Of the rows, in their order; raises UsageError."""
    check_columns({field.name: field.dataType.simpleString() for field in schema.fields})
    return schema.names


def done(work: Coroutine[Any, Any, T]) -> T:
    """The result of asynchronous work; raises ReadFailed."""
    with report_errors(ReadFailed):
        return asyncio.run(work)


async def _batch(options: SourceOptions, filters: "Sequence[Filter]") -> list[PartitionRange]:
    async with opened(options.place) as archive:
        wanted = await planning.subscribed(archive, options)
        runs = await planning.ranges(wanted, options)
        return await planning.tasks([each.partition for each in wanted], runs, options, filters)


async def _rows(
    run: PartitionRange, options: SourceOptions, columns: tuple[str, ...]
) -> AsyncGenerator[pa.RecordBatch]:
    async with opened(options.place) as archive:
        partition = await archive.open_partition(run.topic, run.partition)
        policy = TellSkipped(str(partition)) if options.skips_damage else STOP
        async with aclosing(scan(partition, run.start, run.end, on_damage=policy)) as batches:
            async for batch in batches:
                if not batch.num_rows:
                    continue
                number = incarnation_of(partition, batch) if INCARNATION in columns else None
                yield to_rows(
                    batch, partition.topic, partition.partition, headers=HEADERS in columns, incarnation=number
                ).select(columns)


def incarnation_of(partition: ArchivedPartition, batch: pa.RecordBatch) -> int:
    """The number of the folder that holds a batch: no chunk lies in two."""
    first = batch.column("offset")[0].as_py()
    (keys, _), *newer = partition.folders
    return next((keys for keys, start in reversed(newer) if start <= first), keys).folder.incarnation
