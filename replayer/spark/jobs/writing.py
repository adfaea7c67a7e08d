"""Records of an archive as files or as a table, written by Spark: what `spark export` and `spark load` do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import DataFrame, DataFrameWriter, Observation, SparkSession
from pyspark.sql import functions as fn

from blockgz_runtime.errors import UsageError
from blockgz_runtime.spark.errors import spark_errors
from replayer.read.record_filter import RecordFilter
from replayer.spark.archive_place import ArchivePlace
from replayer.spark.jobs.job_plan import JobPlan
from replayer.spark.jobs.layout import check_parts, column_of, fitted, parted
from replayer.spark.jobs.reading import Skipped, SkippedRanges, records
from replayer.spark.jobs.values import ValueOptions, row_decoder, settled, with_values

CSV = {"header": "true", "escape": '"'}
"""Quotes are doubled, as RFC 4180 has them."""


@dataclass(frozen=True)
class Target:
    """Where rows go: files below `path`, or the table of that name."""

    file_format: str
    mode: str
    path: str | None = None
    table: str | None = None
    partition_by: Sequence[str] = ()


class Written(NamedTuple):
    """What a job did. `bad` rows are among `read`, and among `written` unless they were skipped."""

    read: int
    written: int
    bad: int
    first_bad: str | None
    skipped: Sequence[Skipped]


@dataclass(frozen=True)
class Reading:
    """Which records, and what becomes of them."""

    place: ArchivePlace
    filter: RecordFilter
    values: ValueOptions
    skips_damage: bool


def write(spark: SparkSession, plan: JobPlan, reading: Reading, target: Target) -> Written:
    """Writes the planned records; what is visible of them before it is done is up to Spark's committer for the target.

    Raises UsageError, SparkFailed, or what a task met.
    """
    check_parts(target.partition_by, decodes=reading.values.decodes)
    decoder = row_decoder(reading.values, plan.topics)
    skipped = SkippedRanges(spark) if reading.skips_damage else None
    seen = Observation("blockgz")
    with spark_errors():
        rows = records(spark, reading.place, plan.tasks, reading.filter, decoder, skipped)
        rows = _counted(with_values(rows, reading.values), seen)
        rows = fitted(parted(settled(rows, reading.values.on_bad), target.partition_by), target.file_format)
        _refuse_homeless_table(spark, target)
        _save(rows.write, target)
        counts = seen.get
    bad, first = counts["bad"], counts["first_bad"]
    left_out = bad if reading.values.on_bad == "skip" else 0
    place = None if first is None else "{topic}:{partition}:{offset}: {bad}".format(**first.asDict())
    return Written(counts["rows"], counts["rows"] - left_out, bad, place, [] if skipped is None else skipped.ranges)


def _counted(rows: DataFrame, seen: Observation) -> DataFrame:
    first = fn.min(fn.when(fn.col("bad").isNotNull(), fn.struct("topic", "partition", "offset", "bad")))
    return rows.observe(
        seen, fn.count(fn.lit(1)).alias("rows"), fn.count(fn.col("bad")).alias("bad"), first.alias("first_bad")
    )


def _save(writer: DataFrameWriter, target: Target) -> None:
    writer = writer.format(target.file_format).mode(target.mode)
    if target.partition_by:
        writer = writer.partitionBy(*map(column_of, target.partition_by))
    if target.file_format == "csv":
        writer = writer.options(**CSV)
    if target.table is not None:
        writer.saveAsTable(target.table)
    else:
        assert target.path is not None
        writer.save(target.path)


def _refuse_homeless_table(spark: SparkSession, target: Target) -> None:
    if target.table is None:
        return
    catalog = target.table.split(".")[0] if target.table.count(".") > 1 else spark.catalog.currentCatalog()
    if catalog == "spark_catalog" and spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory":
        raise UsageError(
            f"the table {target.table} would be forgotten as this job ends",
            why="Spark's catalog is in memory",
            remedy="name a lasting one: --conf spark.sql.catalogImplementation=hive, or a catalog of your own; "
            "or write files: replayer spark export",
        )
