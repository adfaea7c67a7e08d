"""Archived records as rows of Spark's Kafka source, which exported files have as well."""

from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import BlockgzError
from index_format.records import HEADER_TYPE

HEADERS, INCARNATION = "headers", "incarnation"

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


class TimestampUnfit(BlockgzError):
    """A timestamp that Arrow's and Spark's instants cannot hold: they count microseconds in 64 bits."""

    exit_code = 1

    def __init__(self, record: str, timestamp: int) -> None:
        super().__init__(
            f"the timestamp of {record} does not fit into a column of times",
            why=f"it is {timestamp} ms since 1970, and such columns hold microseconds in 64 bits",
            remedy="leave the record out with --until or --to, or use replayer export --format csv or jsonl",
        )


def to_rows(
    batch: pa.RecordBatch,
    topic: str,
    partition: int,
    *,
    headers: bool,
    incarnation: int | None = None,
    times: Literal["instants", "nullable", "ms"] = "instants",
) -> pa.RecordBatch:
    """Return a batch of `records.SCHEMA` as Spark's columns, the last one `incarnation` if given; copies no values.

    Timestamps are instants, and -1, Kafka's "none", the millisecond before the epoch, as in Spark's Kafka source.
    One that microseconds cannot hold raises TimestampUnfit; `nullable` makes it null. `ms` keeps the integers.
    """
    fields = list(_FIELDS)
    if times == "ms":
        fields[5] = ("timestamp", pa.int64())
    columns = [
        batch.column("key"),
        batch.column("value"),
        pa.repeat(pa.scalar(topic, pa.string()), batch.num_rows),
        pa.repeat(pa.scalar(partition, pa.int32()), batch.num_rows),
        batch.column("offset"),
        batch.column("timestamp") if times == "ms" else _instants(batch, f"{topic}:{partition}", times == "nullable"),
        batch.column("timestamp_type").cast(pa.int32()),
    ]
    if headers:
        columns.append(_spark_headers(batch.column("headers")))
        fields.append((HEADERS, _HEADERS))
    if incarnation is not None:
        columns.append(pa.repeat(pa.scalar(incarnation, pa.int32()), batch.num_rows))
        fields.append((INCARNATION, pa.int32()))
    return pa.record_batch(columns, schema=pa.schema(fields))


def _instants(batch: pa.RecordBatch, where: str, is_nullable: bool) -> pa.Array:
    """Return timestamps in microseconds; raises TimestampUnfit for the first that does not fit, unless nullable."""
    times = batch.column("timestamp")
    most = (2**63 - 1) // 1000
    if is_nullable:
        fits = pc.and_(pc.greater_equal(times, -most), pc.less_equal(times, most))
        times = pc.if_else(fits, times, pa.scalar(None, times.type))
    try:
        return pc.multiply_checked(times, 1000).cast(_TIMESTAMP)
    except pa.ArrowInvalid as error:
        row = next(row for row, time in enumerate(times.to_pylist()) if not -most <= time <= most)
        raise TimestampUnfit(f"{where}:{batch.column('offset')[row].as_py()}", times[row].as_py()) from error


def _spark_headers(column: pa.Array) -> pa.Array:
    filled = column.cast(pa.list_(pa.field("element", HEADER_TYPE)))
    empty = pc.equal(pc.list_value_length(filled), 0)
    return pc.if_else(empty, pa.scalar(None, filled.type), filled).cast(_HEADERS)
