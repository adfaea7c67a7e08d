"""Records of an archive as files or as a table, written by Spark: what `spark export` and `spark load` do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, DataFrameWriter, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from blockgz.archive.cuts import Cut
from blockgz.archive.place import ArchivePlace, opened
from blockgz.archive.request import SelectionRequest
from blockgz.archive.selection import cuts_of, notes_of
from blockgz.errors import UsageError
from blockgz.record_filter import RecordFilter
from blockgz.spark.errors import spark_errors
from index_format.chunk_index import Gap
from replayer.spark.jobs.reading import Skipped, named_topics, records, skipped_ranges
from replayer.spark.jobs.values import ValueOptions, row_decoder, settled, with_values
from replayer.spark.source.planning import PartitionRange, Portion, range_of, shared_out

PARTS = ("topic", "date", "hour")
"""What there is to partition by besides fields of values; date and hour of the timestamp are UTC's."""

FIELD = "value."

CSV = {"header": "true", "escape": '"'}
"""Quotes are doubled, as RFC 4180 has them."""


class GapRead(NamedTuple):
    """A recorded gap inside what is read."""

    topic: str
    partition: int
    gap: Gap


@dataclass(frozen=True)
class JobPlan:
    """`bytes` are those of whole chunks as stored, `records` all of theirs: what is read is at most as much."""

    topics: tuple[str, ...]
    tasks: tuple[PartitionRange, ...]
    chunks: int
    records: int
    bytes: int
    gaps: tuple[GapRead, ...]
    cuts: tuple[tuple[str, int, Cut], ...]
    notes: tuple[str, ...]


async def planned(
    place: ArchivePlace, topics: Sequence[str], selection: SelectionRequest, task_bytes: int, min_tasks: int = 1
) -> JobPlan:
    """A plan for the records that are meant of topics as `named_topics` takes them.

    Chunks that the filter's times leave out are not in it. Raises as opening and resolving do.
    """
    wanted = selection.filter.may_match if selection.filter.by_time else None
    portions, gaps = [], []
    async with opened(place) as archive:
        named = await named_topics(archive, topics)
        selections = [each for topic in named for each in await selection.select(archive, topic)]
        for partition, (start, end), *_ in selections:
            if end <= start:
                continue
            run = range_of(partition, start, end)
            portions.append(Portion(partition, run, [each async for each in partition.entries(start, end, wanted)]))
            found = [gap for gap in await partition.gaps() if gap.start < end and gap.end > start]
            gaps += [GapRead(run.topic, run.partition, gap) for gap in found]
        tasks = await shared_out(portions, task_bytes, min_tasks)
    entries = [entry for portion in portions for entry in portion.entries]
    return JobPlan(
        tuple(dict.fromkeys(each.partition.topic for each in selections)),
        tuple(tasks),
        len(entries),
        sum(entry.num_records for entry in entries),
        sum(entry.bytes for entry in entries),
        tuple(gaps),
        cuts_of(selections),
        tuple(notes_of(selections)),
    )


@dataclass(frozen=True)
class Output:
    """Where rows go: files below `path`, or the table of that name."""

    file_format: str
    mode: str
    path: str | None = None
    table: str | None = None
    partition_by: Sequence[str] = ()


class WriteResult(NamedTuple):
    """What a job did. `bad` rows are among `read`, and among `written` unless they were skipped."""

    read: int
    written: int
    bad: int
    first_bad: str | None
    skipped: Sequence[Skipped]


@dataclass(frozen=True)
class ReadRequest:
    """Which records, and what becomes of them."""

    place: ArchivePlace
    filter: RecordFilter
    values: ValueOptions
    skips_damage: bool


def write(spark: SparkSession, plan: JobPlan, reading: ReadRequest, output: Output) -> WriteResult:
    """Writes the planned records; what is visible of them before it is done is up to Spark's committer for the output.

    Raises UsageError, SparkFailed, or what a task met.
    """
    check_parts(output.partition_by, decodes=reading.values.decodes)
    decoder = row_decoder(reading.values, plan.topics)
    skipped = skipped_ranges(spark) if reading.skips_damage else None
    seen = Observation("blockgz")
    with spark_errors():
        rows = records(spark, reading.place, plan.tasks, reading.filter, decoder, skipped)
        rows = _counted(with_values(rows, reading.values), seen)
        rows = fitted(parted(settled(rows, reading.values.on_bad), output.partition_by), output.file_format)
        _refuse_homeless_table(spark, output)
        _save(rows.write, output)
        counts = seen.get
    bad, first = counts["bad"], counts["first_bad"]
    left_out = bad if reading.values.on_bad == "skip" else 0
    place = None if first is None else "{topic}:{partition}:{offset}: {bad}".format(**first.asDict())
    ranges = [] if skipped is None else sorted(set(skipped.value))
    return WriteResult(counts["rows"], counts["rows"] - left_out, bad, place, ranges)


def _counted(rows: DataFrame, seen: Observation) -> DataFrame:
    first = fn.min(fn.when(fn.col("bad").isNotNull(), fn.struct("topic", "partition", "offset", "bad")))
    return rows.observe(
        seen, fn.count(fn.lit(1)).alias("rows"), fn.count(fn.col("bad")).alias("bad"), first.alias("first_bad")
    )


def _save(writer: DataFrameWriter, output: Output) -> None:
    writer = writer.format(output.file_format).mode(output.mode)
    if output.partition_by:
        writer = writer.partitionBy(*map(column_of, output.partition_by))
    if output.file_format == "csv":
        writer = writer.options(**CSV)
    if output.table is not None:
        writer.saveAsTable(output.table)
    else:
        assert output.path is not None
        writer.save(output.path)


def _refuse_homeless_table(spark: SparkSession, output: Output) -> None:
    if output.table is None:
        return
    catalog = output.table.split(".")[0] if output.table.count(".") > 1 else spark.catalog.currentCatalog()
    if catalog == "spark_catalog" and spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory":
        raise UsageError(
            f"the table {output.table} would be forgotten as this job ends",
            why="Spark's catalog is in memory",
            remedy="name a lasting one: --conf spark.sql.catalogImplementation=hive, or a catalog of your own; "
            "or write files: replayer spark export",
        )


def check_parts(parts: Sequence[str], *, decodes: bool) -> None:
    """Raises UsageError for what is nothing to partition by."""
    for part in parts:
        if part in PARTS:
            continue
        if not part.startswith(FIELD) or part == FIELD:
            raise UsageError(
                f"--partition-by {part[:80]!r} is nothing to partition by",
                why=f"there are {', '.join(PARTS)} and {FIELD}FIELD",
                remedy="write topic,date or topic,value.country",
            )
        if not decodes:
            raise UsageError(
                f"--partition-by {part[:80]} needs values with fields", remedy="add --value json or --value avro"
            )
    if len(set(map(column_of, parts))) < len(parts):
        raise UsageError("--partition-by names a column twice", why=", ".join(map(column_of, parts)))


def column_of(part: str) -> str:
    """The column, and so the folder, of a part."""
    return part.rpartition(".")[2]


def parted(rows: DataFrame, parts: Sequence[str]) -> DataFrame:
    """The rows with the columns to partition by, and each task's rows in order of them and of offsets."""
    if not parts:
        return rows
    taken = set(rows.columns)
    for part in parts:
        name = column_of(part)
        if part == "topic":
            continue
        if name in taken:
            raise UsageError(
                f"--partition-by {part} would be a second column {name}", remedy="partition by another field"
            )
        if part == "date":
            column = fn.to_date("timestamp")
        elif part == "hour":
            column = fn.hour("timestamp")
        else:
            _check_field(rows.schema["value"].dataType, part)
            column = fn.col(part)
        rows = rows.withColumn(name, column)
    return rows.sortWithinPartitions(*map(column_of, parts), "topic", "partition", "offset")


def fitted(rows: DataFrame, file_format: str) -> DataFrame:
    """The rows as that format of files can hold them: of `csv`, no bytes and nothing inside of a column."""
    if file_format != "csv":
        return rows
    columns = []
    for field in rows.schema.fields:
        if field.name == "value" and isinstance(field.dataType, StructType):
            inner = field.dataType.fields
            columns += [_flat(f"value.`{each.name}`", f"value.{each.name}", each.dataType) for each in inner]
        else:
            columns.append(_flat(field.name, field.name, field.dataType))
    return rows.select(*columns)


def _flat(path: str, name: str, kind: DataType) -> Column:
    column = fn.col(path)
    if isinstance(kind, BinaryType):
        column = fn.base64(column)
    elif isinstance(kind, ArrayType | MapType | StructType):
        column = fn.to_json(column)
    return column.alias(name)


def _check_field(kind: DataType, part: str) -> None:
    for name in part.split(".")[1:]:
        if not isinstance(kind, StructType) or name not in kind.fieldNames():
            fields = ", ".join(kind.fieldNames()) if isinstance(kind, StructType) else "no fields"
            raise UsageError(f"--partition-by {part} is not a field of the values", why=f"there is {fields[:300]}")
        kind = kind[name].dataType
    if isinstance(kind, ArrayType | MapType | StructType | BinaryType):
        raise UsageError(f"--partition-by {part} is not a single value", why=f"it is a {kind.simpleString()[:100]}")
