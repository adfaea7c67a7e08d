"""Archived records as rows of Spark's Kafka source."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from blockgz_runtime.errors import UsageError
from blockgz_runtime.spark.columns import KAFKA_COLUMNS
from index_format.records import HEADER_TYPE

BATCH_BYTES = 4 * 1024 * 1024
"""What is handed to Spark at once: smaller ones cost more each, larger ones leave the processor's caches."""

HEADERS, INCARNATION = "headers", "incarnation"
_COLUMNS = {**KAFKA_COLUMNS, INCARNATION: "int"}
"""With topic, partition and offset an incarnation names one record, also where a topic was created again."""

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
_FIELDS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", _TIMESTAMP),
    ("timestampType", pa.int32()),
]


def schema_text(*, headers: bool, incarnation: bool) -> str:
    """The columns of a read, in Spark's notation."""
    left_out = {*[HEADERS] * (not headers), *[INCARNATION] * (not incarnation)}
    return ", ".join(f"{name} {kind}" for name, kind in _COLUMNS.items() if name not in left_out)


def check_columns(types: Mapping[str, str]) -> None:
    """Raises UsageError for a schema that a user gave and that has columns which records do not have."""
    for name, found in types.items():
        if name not in _COLUMNS:
            raise UsageError(
                f"format blockgz has no column {name!r}",
                why=f"the columns are {', '.join(_COLUMNS)}",
                remedy="remove it from the schema: .schema(…) selects from these",
            )
        if found != _COLUMNS[name]:
            raise UsageError(
                f"the schema has column {name} as {found}",
                why=f"the archive holds it as {_COLUMNS[name]}",
                remedy=f"use this type, and convert after the read: .withColumn({name!r}, col({name!r}).cast(…))",
            )


def to_rows(
    batch: pa.RecordBatch, topic: str, partition: int, *, headers: bool, incarnation: int | None = None
) -> pa.RecordBatch:
    """A batch of `records.SCHEMA` as Spark's columns, the last one `incarnation` if it is given; copies no values.

    Timestamps are instants, and -1, Kafka's "none", the millisecond before the epoch, as in Spark's Kafka source.
    """
    columns = [
        batch.column("key"),
        batch.column("value"),
        pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows),
        pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows),
        batch.column("offset"),
        pc.multiply_checked(batch.column("timestamp"), 1000).cast(_TIMESTAMP),
        batch.column("timestamp_type").cast(pa.int32()),
    ]
    fields = list(_FIELDS)
    if headers:
        columns.append(_spark_headers(batch.column("headers")))
        fields.append((HEADERS, _HEADERS))
    if incarnation is not None:
        columns.append(pa.repeat(pa.scalar(incarnation, pa.int32()), batch.num_rows))
        fields.append((INCARNATION, pa.int32()))
    return pa.record_batch(columns, schema=pa.schema(fields))


def batched(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of about `BATCH_BYTES`."""
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


def _spark_headers(column: pa.Array) -> pa.Array:
    """Kafka's source gives null, not an empty list, for a record without headers."""
    filled = column.cast(pa.list_(pa.field("element", HEADER_TYPE)))
    empty = pc.equal(pc.list_value_length(filled), 0)
    return pc.if_else(empty, pa.scalar(None, filled.type), filled).cast(_HEADERS)
