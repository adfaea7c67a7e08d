"""Records of an archive as files or as a table, written by Spark: `replayer spark export` and `replayer spark load`."""

import json
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
from pyspark import Accumulator
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import Column, DataFrame, DataFrameWriter, Observation, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from blockgz.archive.archive import ArchivePlace, ArchiveReader, TopicPartitions, opened, parse_partitions, parse_topic
from blockgz.archive.cuts import Cut
from blockgz.archive.partition import STOP, SkipDamage
from blockgz.archive.positions import OffsetRange
from blockgz.archive.rows import to_rows
from blockgz.archive.selection import Selection, SelectionRequest, cuts_of, notes_of, selected
from blockgz.errors import UsageError
from blockgz.record_filter import RecordFilter
from blockgz.spark.errors import PREFIX, TaskFailed, carry_errors, spark_errors
from blockgz.topic_patterns import is_pattern, matching
from index_format.objects import Gap
from index_format.records import SCHEMA
from replayer.spark.background import iterated
from replayer.spark.decoding import REGISTERED, Decoder, RowDecoder, TextDecoder
from replayer.spark.planning import PartitionRange, Portion, range_of, shared_out
from replayer.spark.protobuf import avro_values, registered_values
from replayer.spark.source import batched

T = TypeVar("T")


_CORRUPT = "_blockgz_corrupt"


# Topic, partition, offsets [start, end) that were passed over because their records cannot be read, and the reason.
Skipped = tuple[str, int, int, int, str]


class _Lists(AccumulatorParam["list[Skipped]"]):
    """Lists of skipped ranges, concatenated."""

    def zero(self, value: list[Skipped]) -> list[Skipped]:  # noqa: ARG002
        return []

    def addInPlace(self, value1: list[Skipped], value2: list[Skipped]) -> list[Skipped]:  # noqa: N802
        return value1 + value2


async def match_topics(archive: ArchiveReader, texts: Sequence[str], more: Iterable[str] = ()) -> list[TopicPartitions]:
    """Return the topics that names, globs and `~regex` match, each once; raises UsageError or NotInArchive.

    Patterns match `more` names of topics in addition to the archived ones.
    """
    found: dict[str, TopicPartitions] = {}
    topics = sorted({*await archive.topics(), *more}) if any(map(is_pattern, texts)) else []
    for text in texts:
        for named in _match(topics, text):
            known = found.get(named.topic, named).partitions
            both = None if known is None or named.partitions is None else tuple(sorted({*known, *named.partitions}))
            found[named.topic] = replace(named, partitions=both)
    return list(found.values())


def _match(topics: Sequence[str], text: str) -> list[TopicPartitions]:
    if not is_pattern(text):
        return [parse_topic(text)]
    pattern, separator, numbers = (text, "", "") if text.startswith("~") else text.partition(":")
    partitions = parse_partitions(numbers) if separator else None
    return [TopicPartitions(topic, partitions) for topic in matching(pattern, topics)]


def records(
    spark: SparkSession,
    place: ArchivePlace,
    runs: tuple[PartitionRange, ...],
    record_filter: RecordFilter,
    decoder: RowDecoder,
    skipped: Accumulator[list[Skipped]] | None,
) -> DataFrame:
    """Return the records of the runs, read by a task for each; damage ends the job, or is added to `skipped`."""
    # Spark runs a task again after a failure, and perhaps twice at once: tasks only read.
    schema = from_arrow_schema(decoder(to_rows(pa.RecordBatch.from_pylist([], SCHEMA), "", 0, headers=True)).schema)
    if not runs:
        return spark.createDataFrame([], schema)

    def work(batches: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with carry_errors(TaskFailed):
                    yield from _decoded(runs[number], place, record_filter, decoder, skipped)

    return spark.range(0, len(runs), 1, len(runs)).mapInArrow(work, schema)


def _decoded(
    run: PartitionRange,
    place: ArchivePlace,
    record_filter: RecordFilter,
    decoder: RowDecoder,
    skipped: Accumulator[list[Skipped]] | None,
) -> Iterator[pa.RecordBatch]:
    damage = SkipDamage(skips_closed=True)

    async def rows() -> AsyncGenerator[pa.RecordBatch]:
        async with opened(place) as archive:
            partition = await archive.open_partition(run.topic, run.partition)
            selection = Selection(partition, OffsetRange(run.start, run.end))
            policy = STOP if skipped is None else damage
            async with aclosing(selected(selection, record_filter, policy)) as batches:
                async for batch in batches:
                    yield to_rows(batch, partition.topic, partition.partition, headers=True)

    yield from map(decoder, batched(iterated(rows)))
    if skipped is not None and damage.skipped:
        skipped.add([(run.topic, run.partition, *each) for each in damage.skipped])


@dataclass(frozen=True)
class ValueOptions:
    """How to read keys and values. `schema` is Avro's or Spark's JSON or a DDL text, as given; None to infer it."""

    value: str = "binary"
    key: str = "binary"
    schema: str | None = None
    registry: str | None = None
    on_bad: str = "fail"

    def __post_init__(self) -> None:
        if self.registry is not None and self.value not in REGISTERED:
            raise UsageError(f"--schema-registry goes with --value {' and --value '.join(REGISTERED)}")
        if self.schema is not None and self.value not in ("json", "avro"):
            raise UsageError("--schema goes with --value json and --value avro", why=f"--value is {self.value}")
        if self.value in REGISTERED and self.schema is None and self.registry is None:
            raise UsageError(
                f"--value {self.value} needs a schema",
                why="a value names its schema by a number alone",
                remedy="give --schema-registry URL" + (", or --schema FILE.avsc" if self.value == "avro" else ""),
            )

    @property
    def decodes(self) -> bool:
        """True if values become columns with fields."""
        return self.value in ("json", *REGISTERED)


def row_decoder(options: ValueOptions, topics: tuple[str, ...]) -> RowDecoder:
    """Return the decoder of tasks, with schemas of the registry. Raises UsageError, NotInArchive, StoreUnavailable."""
    value: Decoder | None = None
    if options.value in ("text", "json"):
        value = TextDecoder("value")
    elif options.schema is not None and options.value == "avro":
        value = avro_values(options.schema, options.registry)
    elif options.registry is not None:
        value = registered_values(options.value, options.registry, [f"{topic}-value" for topic in topics])
    return RowDecoder(TextDecoder("key") if options.key == "text" else None, value)


def with_values(rows: DataFrame, options: ValueOptions) -> DataFrame:
    """Return decoded rows with JSON values as Spark reads them; a value that is not JSON is null, and `bad` says so."""
    if options.value != "json":
        return rows
    with spark_errors():
        schema = json_schema(options.schema) if options.schema is not None else inferred(rows)
    parsing = StructType([*schema.fields]).add(_CORRUPT, "string")
    modes = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = rows.withColumn("_blockgz_json", fn.from_json(fn.col("value"), parsing, modes))
    text, found = fn.col("value"), fn.col("_blockgz_json")
    is_null = text.isNull() | (fn.trim(text) == "null")
    is_bad = ~is_null & (found.isNull() | found[_CORRUPT].isNotNull())
    bad = fn.coalesce(fn.col("bad"), fn.when(is_bad, fn.lit("the value is not a JSON object of that schema")))
    value = fn.when(is_null | is_bad, fn.lit(None)).otherwise(found.dropFields(_CORRUPT))
    return parsed.withColumn("bad", bad).withColumn("value", value).drop("_blockgz_json")


def inferred(rows: DataFrame) -> StructType:
    """Return the schema that fits all JSON values; reads every record. Raises UsageError if there is none."""
    texts = rows.where(fn.col("value").isNotNull()).select("value")
    found = rows.sparkSession.read.json(texts)
    fields = [field for field in found.schema.fields if field.name != "_corrupt_record"]
    if not fields:
        raise UsageError(
            "no schema can be found out",
            why="no value is a JSON object with a field",
            remedy="give --schema, or take values as --value text",
        )
    return StructType(fields)


def json_schema(text: str) -> StructType:
    """Return a schema as DDL (`id BIGINT, name STRING`) or as Spark's JSON; raises UsageError."""
    try:
        schema = StructType.fromJson(json.loads(text)) if text.lstrip().startswith("{") else StructType.fromDDL(text)
    except Exception as error:  # KeyError, ParseException, …
        raise UsageError(
            "--schema is not a schema of JSON values",
            why=" ".join(str(error).split())[:300],
            remedy='write "id BIGINT, name STRING", or a file with that or with Spark\'s JSON',
        ) from error
    if not isinstance(schema, StructType) or not schema.fields:
        raise UsageError("--schema is not a schema of JSON values", why="it has no fields")
    return schema


def without_bad(rows: DataFrame, on_bad: str) -> DataFrame:
    """Return rows without `bad`: rows that could not be decoded fail, are skipped, or stay as null."""
    bad = fn.col("bad")
    if on_bad == "fail":
        rows = rows.withColumn(
            "value", fn.when(bad.isNotNull(), fn.raise_error(_complaint())).otherwise(fn.col("value"))
        )
    elif on_bad == "skip":
        rows = rows.where(bad.isNull())
    return rows.drop("bad")


def _complaint() -> Column:
    """Return a column with the text of the error about a row, for `errors.failure_of`."""
    place = fn.concat_ws(":", fn.col("topic"), fn.col("partition").cast("string"), fn.col("offset").cast("string"))
    error = fn.struct(
        fn.concat(fn.lit("the record "), place, fn.lit(" cannot be decoded")).alias("what"),
        fn.col("bad").alias("why"),
        fn.lit("name another --value, --key or --schema, or continue: --on-bad-value null or skip").alias("remedy"),
        fn.lit(1).alias("exit_code"),
    )
    return fn.concat(fn.lit(PREFIX), fn.to_json(error))


# Columns to partition by, in addition to fields of values; date and hour of the timestamp are in UTC.
PARTS = ("topic", "date", "hour")

FIELD = "value."

# Quotes are doubled, as RFC 4180 has them.
CSV = {"header": "true", "escape": '"'}


@dataclass(frozen=True)
class Export:
    """The options of an export: what to read, how to decode it, and its destination, files below `path` or a table."""

    place: ArchivePlace
    topics: Sequence[str]
    """Names and patterns, as `match_topics` takes them."""
    selection: SelectionRequest
    values: ValueOptions
    skips_damage: bool
    task_bytes: int
    min_tasks: int
    file_format: str
    mode: str
    partition_by: Sequence[str] = ()
    path: str | None = None
    table: str | None = None

    def __post_init__(self) -> None:
        check_parts(self.partition_by, decodes=self.values.decodes)


@dataclass(frozen=True)
class ExportPlan:
    """The plan of an export; `bytes` and `records` count whole chunks as stored: at most as much is read."""

    topics: tuple[str, ...]
    tasks: tuple[PartitionRange, ...]
    chunks: int
    records: int
    bytes: int
    gaps: tuple[tuple[str, int, Gap], ...]
    """Recorded gaps inside what is read, by topic and partition."""
    cuts: tuple[tuple[str, int, Cut], ...]
    notes: tuple[str, ...]


async def plan_export(export: Export) -> ExportPlan:
    """Return a plan for the selected records, without chunks that the filter's times exclude."""
    selection = export.selection
    wanted = selection.filter.may_match if selection.filter.by_time else None
    portions, gaps = [], []
    async with opened(export.place) as archive:
        named = await match_topics(archive, export.topics)
        selections = [each for topic in named for each in await selection.select(archive, topic)]
        for partition, (start, end), *_ in selections:
            if end <= start:
                continue
            run = range_of(partition, start, end)
            portions.append(Portion(partition, run, [each async for each in partition.entries(start, end, wanted)]))
            found = [gap for gap in await partition.gaps() if gap.start < end and gap.end > start]
            gaps += [(run.topic, run.partition, gap) for gap in found]
        tasks = await shared_out(portions, export.task_bytes, export.min_tasks)
    entries = [entry for portion in portions for entry in portion.entries]
    return ExportPlan(
        tuple(dict.fromkeys(each.partition.topic for each in selections)),
        tuple(tasks),
        len(entries),
        sum(entry.num_records for entry in entries),
        sum(entry.bytes for entry in entries),
        tuple(gaps),
        cuts_of(selections),
        tuple(notes_of(selections)),
    )


class WriteResult(NamedTuple):
    """The counts of an export. `bad` rows are among `read`, and among `written` unless they were skipped."""

    read: int
    written: int
    bad: int
    first_bad: str | None
    skipped: Sequence[Skipped]


def write_export(spark: SparkSession, plan: ExportPlan, export: Export) -> WriteResult:
    """Write the planned records; Spark's committer for the output decides what is visible before the end."""
    values = export.values
    decoder = row_decoder(values, plan.topics)
    skipped = spark.sparkContext.accumulator([], _Lists()) if export.skips_damage else None
    seen = Observation("blockgz")
    with spark_errors():
        rows = records(spark, export.place, plan.tasks, export.selection.filter, decoder, skipped)
        rows = _counted(with_values(rows, values), seen)
        rows = fitted(parted(without_bad(rows, values.on_bad), export.partition_by), export.file_format)
        _refuse_homeless_table(spark, export.table)
        _save(rows.write, export)
        counts = seen.get
    bad, first = counts["bad"], counts["first_bad"]
    left_out = bad if values.on_bad == "skip" else 0
    place = None if first is None else "{topic}:{partition}:{offset}: {bad}".format(**first.asDict())
    ranges = [] if skipped is None else sorted(set(skipped.value))
    return WriteResult(counts["rows"], counts["rows"] - left_out, bad, place, ranges)


def _counted(rows: DataFrame, seen: Observation) -> DataFrame:
    first = fn.min(fn.when(fn.col("bad").isNotNull(), fn.struct("topic", "partition", "offset", "bad")))
    return rows.observe(
        seen, fn.count(fn.lit(1)).alias("rows"), fn.count(fn.col("bad")).alias("bad"), first.alias("first_bad")
    )


def _save(writer: DataFrameWriter, output: Export) -> None:
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


def _refuse_homeless_table(spark: SparkSession, table: str | None) -> None:
    if table is None:
        return
    catalog = table.split(".")[0] if table.count(".") > 1 else spark.catalog.currentCatalog()
    if catalog == "spark_catalog" and spark.conf.get("spark.sql.catalogImplementation", "in-memory") == "in-memory":
        raise UsageError(
            f"the table {table} would be forgotten as this job ends",
            why="Spark's catalog is in memory",
            remedy="name a lasting one: --conf spark.sql.catalogImplementation=hive, or a catalog of your own; "
            "or write files: replayer spark export",
        )


def check_parts(parts: Sequence[str], *, decodes: bool) -> None:
    """Raise UsageError for parts that rows cannot be partitioned by."""
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
    """Return the column, and so the folder, of a part."""
    return part.rpartition(".")[2]


def parted(rows: DataFrame, parts: Sequence[str]) -> DataFrame:
    """Return the rows with the columns to partition by, and each task's rows in order of them and of offsets."""
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
    """Return the rows as that file format can hold them: csv has no bytes and no nested columns."""
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
