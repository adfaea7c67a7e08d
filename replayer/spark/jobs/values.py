"""What the values of a job become: the options, checked, and the columns that Spark makes of decoded rows."""

import json
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from blockgz.errors import UsageError
from blockgz.spark.errors import PREFIX, spark_errors
from replayer.spark.decoding.registered import avro_values, registered_values
from replayer.spark.decoding.rows import REGISTERED, Decoder, RowDecoder, TextDecoder

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
        """Whether values become columns with fields."""
        return self.value in ("json", *REGISTERED)


def row_decoder(options: ValueOptions, topics: tuple[str, ...]) -> RowDecoder:
    """What tasks do with rows; asks the registry where it must. Raises UsageError, NotInArchive, StoreUnavailable."""
    value: Decoder | None = None
    if options.value in ("text", "json"):
        value = TextDecoder("value")
    elif options.schema is not None and options.value == "avro":
        value = avro_values(options.schema, options.registry)
    elif options.registry is not None:
        value = registered_values(options.value, options.registry, [f"{topic}-value" for topic in topics])
    return RowDecoder(TextDecoder("key") if options.key == "text" else None, value)


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
