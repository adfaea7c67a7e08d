"""What our jobs read: topics by name and pattern, and their records as a DataFrame, a task for each part."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import Accumulator
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from blockgz.archive.archive import Archive, TopicPartitions, parse_partitions, parse_topic
from blockgz.archive.damage import STOP, SkipDamage
from blockgz.archive.place import ArchivePlace, opened
from blockgz.archive.positions import OffsetRange
from blockgz.archive.rows import to_rows
from blockgz.archive.selection import Selection, selected
from blockgz.record_filter import RecordFilter
from blockgz.spark.errors import TaskFailed, carry_errors
from blockgz.topic_patterns import is_pattern, matching
from index_format.records import SCHEMA
from replayer.spark.background import iterated
from replayer.spark.decoding.rows import RowDecoder
from replayer.spark.source.planning import PartitionRange
from replayer.spark.source.rows import batched

T = TypeVar("T")


class Skipped(NamedTuple):
    """Offsets [start, end) that were passed over because their records cannot be read."""

    topic: str
    partition: int
    start: int
    end: int
    reason: str


class _Lists(AccumulatorParam["list[Skipped]"]):
    """What tasks skipped, one after the other."""

    def zero(self, value: list[Skipped]) -> list[Skipped]:  # noqa: ARG002
        return []

    def addInPlace(self, value1: list[Skipped], value2: list[Skipped]) -> list[Skipped]:  # noqa: N802
        return value1 + value2


def skipped_ranges(spark: SparkSession) -> Accumulator[list[Skipped]]:
    """Collects what tasks skip: exact for what is written once, as Spark counts each task of the last stage once."""
    return spark.sparkContext.accumulator([], _Lists())


async def named_topics(archive: Archive, texts: Sequence[str], more: Iterable[str] = ()) -> list[TopicPartitions]:
    """What names, globs and `~regex` mean, each topic once; raises UsageError or NotInArchive.

    Patterns match `more` names of topics beside the archived ones.
    """
    found: dict[str, TopicPartitions] = {}
    topics = sorted({*await archive.topics(), *more}) if any(map(is_pattern, texts)) else []
    for text in texts:
        for named in _named(topics, text):
            known = found.get(named.topic, named).partitions
            both = None if known is None or named.partitions is None else tuple(sorted({*known, *named.partitions}))
            found[named.topic] = replace(named, partitions=both)
    return list(found.values())


def _named(topics: Sequence[str], text: str) -> list[TopicPartitions]:
    if not is_pattern(text):
        return [parse_topic(text)]
    pattern, separator, numbers = (text, "", "") if text.startswith("~") else text.partition(":")
    partitions = parse_partitions(numbers) if separator else None
    return [TopicPartitions(topic, partitions) for topic in matching(pattern, topics)]


@dataclass(frozen=True)
class _Read:
    """What a task does with its run."""

    place: ArchivePlace
    filter: RecordFilter
    decoder: RowDecoder
    skipped: "Accumulator[list[Skipped]] | None"

    def __call__(self, run: PartitionRange) -> Iterator[pa.RecordBatch]:
        damage = SkipDamage()
        for rows in batched(iterated(lambda: self._rows(run, damage))):
            yield self.decoder(rows)
        if self.skipped is not None and damage.skipped:
            self.skipped.add([Skipped(run.topic, run.partition, *each) for each in damage.skipped])

    async def _rows(self, run: PartitionRange, damage: SkipDamage) -> AsyncGenerator[pa.RecordBatch]:
        async with opened(self.place) as archive:
            partition = await archive.open_partition(run.topic, run.partition)
            selection = Selection(partition, OffsetRange(run.start, run.end))
            policy = STOP if self.skipped is None else damage
            async with aclosing(selected(selection, self.filter, policy)) as batches:
                async for batch in batches:
                    yield to_rows(batch, partition.topic, partition.partition, headers=True)


def records(
    spark: SparkSession,
    place: ArchivePlace,
    runs: tuple[PartitionRange, ...],
    record_filter: RecordFilter,
    decoder: RowDecoder,
    skipped: Accumulator[list[Skipped]] | None,
) -> DataFrame:
    """The records of the runs, a task for each; damage ends the job, or is noted in `skipped`."""
    empty = decoder(to_rows(pa.RecordBatch.from_pylist([], SCHEMA), "", 0, headers=True))
    return spread(spark, runs, _Read(place, record_filter, decoder, skipped), from_arrow_schema(empty.schema))


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
