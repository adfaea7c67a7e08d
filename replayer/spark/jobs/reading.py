"""The selected records as a DataFrame: what each task reads, decodes, and passes over."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
from pyspark import Accumulator
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from index_format.records import SCHEMA
from replayer.read.damage import STOP, SkipDamage
from replayer.read.positions import OffsetRange
from replayer.read.record_filter import RecordFilter
from replayer.read.selection import Selection, selected
from replayer.spark.archive_place import ArchivePlace, opened
from replayer.spark.jobs.decoding import RowDecoder
from replayer.spark.jobs.spreading import spread
from replayer.spark.source.planning import Run
from replayer.spark.source.rows import gathered, to_rows
from replayer.spark.source.running import iterated


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


class SkippedRanges:
    """Gathers what tasks skip: exact for what is written once, as Spark counts each task of a job's last stage once."""

    def __init__(self, spark: SparkSession) -> None:
        self.found: Accumulator[list[Skipped]] = spark.sparkContext.accumulator([], _Lists())

    @property
    def ranges(self) -> list[Skipped]:
        """In order, each once."""
        return sorted(set(self.found.value))


@dataclass(frozen=True)
class _Read:
    """What a task does with its run."""

    place: ArchivePlace
    filter: RecordFilter
    decoder: RowDecoder
    skipped: "Accumulator[list[Skipped]] | None"

    def __call__(self, run: Run) -> Iterator[pa.RecordBatch]:
        damage = SkipDamage()
        for rows in gathered(iterated(lambda: self._rows(run, damage))):
            yield self.decoder(rows)
        if self.skipped is not None and damage.skipped:
            self.skipped.add([Skipped(run.topic, run.partition, *each) for each in damage.skipped])

    async def _rows(self, run: Run, damage: SkipDamage) -> AsyncGenerator[pa.RecordBatch]:
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
    runs: tuple[Run, ...],
    record_filter: RecordFilter,
    decoder: RowDecoder,
    skipped: SkippedRanges | None,
) -> DataFrame:
    """The records of the runs, a task for each; damage ends the job, or is noted in `skipped`."""
    empty = decoder(_no_rows())
    work = _Read(place, record_filter, decoder, None if skipped is None else skipped.found)
    return spread(spark, runs, work, from_arrow_schema(empty.schema))


def _no_rows() -> pa.RecordBatch:
    return to_rows(pa.RecordBatch.from_pylist([], SCHEMA), "", 0, headers=True)
