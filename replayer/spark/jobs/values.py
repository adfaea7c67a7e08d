"""What the values of a job become: the options, checked, and the columns that Spark makes of decoded rows."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from blockgz_runtime.errors import UsageError
from blockgz_runtime.spark.errors import PREFIX, spark_errors
from replayer.spark.jobs.avro import AvroDecoder, avro_decoder
from replayer.spark.jobs.schema_registry import SchemaRegistry


@dataclass(frozen=True)
class RowDecoder:
    """Batches of `rows.to_rows` with decoded columns, and `bad`: why a row could not be decoded, null elsewhere."""

    key_as_text: bool
    value_as_text: bool
    decoder: AvroDecoder | None = None

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; what could not be decoded is null."""
        bad: list[str | None] = [None] * rows.num_rows
        if self.key_as_text:
            rows = _replaced(rows, "key", _texts(rows.column("key"), "the key is not UTF-8", bad))
        if self.value_as_text:
            rows = _replaced(rows, "value", _texts(rows.column("value"), "the value is not UTF-8", bad))
        elif self.decoder is not None:
            rows = _replaced(rows, "value", _decoded(rows.column("value"), self.decoder, bad))
        return rows.append_column("bad", pa.array(bad, pa.string()))


def _replaced(rows: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(name), pa.field(name, column.type), column)


def _texts(column: pa.Array, reason: str, bad: list[str | None]) -> pa.Array:
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return _each(column, pa.string(), bytes.decode, lambda _: reason, bad)


def _decoded(column: pa.Array, decoder: AvroDecoder, bad: list[str | None]) -> pa.Array:
    try:
        return _each(column, decoder.type, decoder.decode, str, bad)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):

        def checked(value: bytes) -> object:
            decoded = decoder.decode(value)
            try:
                pa.array([decoded], decoder.type)
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise ValueError(f"a decoded field does not fit its column: {error}") from error
            return decoded

        return _each(column, decoder.type, checked, str, bad)


def _each(
    column: pa.Array,
    kind: pa.DataType,
    decode: Callable[[bytes], object],
    reason: Callable[[ValueError], str],
    bad: list[str | None],
) -> pa.Array:
    found = []
    for row, content in enumerate(column.to_pylist()):
        try:
            found.append(None if content is None else decode(content))
        except ValueError as error:
            found.append(None)
            bad[row] = bad[row] or reason(error)
    return pa.array(found, kind)


_CORRUPT = "_blockgz_corrupt"


@dataclass(frozen=True)
class ValueOptions:
    """How to read keys and values. `schema` is Avro's or Spark's JSON or a DDL text, as given; None to find it out."""

    value: str = "binary"
    key: str = "binary"
    schema: str | None = None
    registry: str | None = None
    on_bad: str = "fail"

    def __post_init__(self) -> None:
        if self.registry is not None and self.value != "avro":
            raise UsageError("--schema-registry goes with --value avro")
        if self.schema is not None and self.value not in ("json", "avro"):
            raise UsageError("--schema goes with --value json and --value avro", why=f"--value is {self.value}")
        if self.value == "avro" and self.schema is None and self.registry is None:
            raise UsageError(
                "--value avro needs a schema",
                why="a value names its schema by a number alone",
                remedy="give --schema FILE.avsc, or --schema-registry URL",
            )

    @property
    def decodes(self) -> bool:
        """Whether values become columns with fields."""
        return self.value in ("json", "avro")


def row_decoder(options: ValueOptions, topics: tuple[str, ...]) -> RowDecoder:
    """What tasks do with rows; asks the registry where it must. Raises UsageError, NotInArchive, StoreUnavailable."""
    decoder = None
    if options.value == "avro":
        registry = None if options.registry is None else SchemaRegistry(options.registry)
        decoder = avro_decoder(_avro_schema(options.schema, registry, topics), options.registry)
    return RowDecoder(options.key == "text", options.value in ("text", "json"), decoder)


def with_values(rows: DataFrame, options: ValueOptions) -> DataFrame:
    """Decoded rows with JSON values as Spark reads them: where a value is none, it is null and `bad` says so."""
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
    bad = fn.coalesce(fn.col("bad"), fn.when(is_bad, fn.lit("the value is no JSON object of that schema")))
    value = fn.when(is_null | is_bad, fn.lit(None)).otherwise(found.dropFields(_CORRUPT))
    return parsed.withColumn("bad", bad).withColumn("value", value).drop("_blockgz_json")


def inferred(rows: DataFrame) -> StructType:
    """The schema that fits all JSON values; reads every record. Raises UsageError where there is none."""
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
    """A schema as DDL (`id BIGINT, name STRING`) or as Spark's JSON; raises UsageError."""
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


def settled(rows: DataFrame, on_bad: str) -> DataFrame:
    """Rows without `bad`, after what is to be done with those that could not be decoded."""
    bad = fn.col("bad")
    if on_bad == "fail":
        rows = rows.withColumn(
            "value", fn.when(bad.isNotNull(), fn.raise_error(_complaint())).otherwise(fn.col("value"))
        )
    elif on_bad == "skip":
        rows = rows.where(bad.isNull())
    return rows.drop("bad")


def _complaint() -> Column:
    """The text of the error about a row, for `errors.failure_of`."""
    place = fn.concat_ws(":", fn.col("topic"), fn.col("partition").cast("string"), fn.col("offset").cast("string"))
    error = fn.struct(
        fn.concat(fn.lit("the record "), place, fn.lit(" cannot be decoded")).alias("what"),
        fn.col("bad").alias("why"),
        fn.lit("name another --value, --key or --schema, or continue: --on-bad-value null or skip").alias("remedy"),
        fn.lit(1).alias("exit_code"),
    )
    return fn.concat(fn.lit(PREFIX), fn.to_json(error))


def _avro_schema(schema: str | None, registry: SchemaRegistry | None, topics: tuple[str, ...]) -> Any:
    """What to read by: the schema that was given, or the newest of the topics."""
    if schema is not None:
        try:
            return json.loads(schema)
        except ValueError as error:
            raise UsageError("--schema is no Avro schema", why=str(error), remedy="give a file .avsc") from error
    assert registry is not None, "the options were checked"
    found = {topic: registry.latest(f"{topic}-value") for topic in topics}
    first = next(iter(found.values()), "null")
    others = [topic for topic, each in found.items() if each != first]
    if others:
        raise UsageError(
            f"topics {topics[0]} and {others[0]} have different schemas",
            why="a column has one type",
            remedy="take them one by one, or give a schema for all by --schema",
        )
    return first
