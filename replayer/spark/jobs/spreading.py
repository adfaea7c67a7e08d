"""Work on many things, a task for each: the way of all our jobs into Spark."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from blockgz_runtime.spark.errors import TaskFailed, carry_errors

T = TypeVar("T")


def spread(
    spark: SparkSession, items: Sequence[T], work: Callable[[T], Iterator[pa.RecordBatch]], schema: StructType | str
) -> DataFrame:
    """What `work` yields of each item, in a task of its own. Items and `work` are pickled.

    Spark runs a task again after a failure, and perhaps twice at once: `work` only reads.
    """
    if not items:
        return spark.createDataFrame([], schema)
    numbers = spark.range(0, len(items), 1, len(items))
    return numbers.mapInArrow(_Task(items, work), schema)


@dataclass(frozen=True)
class _Task(Generic[T]):
    """The items whose numbers come in."""

    items: Sequence[T]
    work: Callable[[T], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with carry_errors(TaskFailed):
                    yield from self.work(self.items[number])
