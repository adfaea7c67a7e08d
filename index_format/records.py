"""Records as Arrow: the one schema that travels from Kafka to the encoder and from the decoder to every sink."""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
"""Kafka's timestamp type ids and names (org.apache.kafka.common.record.TimestampType)."""
NO_TIMESTAMP = NO_TIMESTAMP_TYPE = -1
TIMESTAMP_TYPE_IDS = {name: number for number, name in TIMESTAMP_TYPES.items()}

HEADER_TYPE = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("timestamp_type", pa.int8(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("item", HEADER_TYPE, nullable=False)), nullable=False),
    ]
)
"""One row a record. timestamp is ms since the epoch, -1 for none; headers are empty rather than null."""

Headers = Sequence[tuple[str, bytes | None]]
Integers = Sequence[int] | npt.NDArray[np.integer[Any]]


class Record(NamedTuple):
    """One record of a topic-partition, its fields as in `SCHEMA`."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def batch_from_columns(
    offsets: Integers,
    timestamps: Integers,
    timestamp_types: Integers,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    headers: Sequence[Headers | None],
) -> pa.RecordBatch:
    """Columns of equal length as one batch of `SCHEMA`; a None among the headers stands for no headers."""
    return pa.record_batch(
        [
            pa.array(offsets, pa.int64()),
            pa.array(timestamps, pa.int64()),
            pa.array(timestamp_types, pa.int8()),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            header_column(headers),
        ],
        schema=SCHEMA,
    )


def batch_without_timestamps(
    first_offset: int, keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> pa.RecordBatch:
    """Records at consecutive offsets, which have no headers and no timestamps."""
    count = len(values)
    offsets = range(first_offset, first_offset + count)
    times, types = [NO_TIMESTAMP] * count, [NO_TIMESTAMP_TYPE] * count
    return batch_from_columns(offsets, times, types, keys, values, [None] * count)


def header_column(headers: Sequence[Headers | None]) -> pa.ListArray:
    """The column of that name; None stands for no headers."""
    header_type = SCHEMA.field("headers").type
    if any(headers):
        return pa.array([row or [] for row in headers], header_type)
    no_headers = pa.array(np.zeros(len(headers) + 1, np.int32))
    return pa.ListArray.from_arrays(no_headers, pa.array([], HEADER_TYPE), type=header_type)


def header_column_of_lists(lists: pa.ListArray) -> pa.ListArray:
    """The column `headers` of lists of structs with `key` and `value` that may be null, as other libraries have them.

    A null list stands for no headers. Raises ValueError where a header or its key is null.
    """
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    flat = lists.flatten()
    keys, values = flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary())
    if flat.null_count or keys.null_count:
        raise ValueError("a header without a key")
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    return pa.ListArray.from_arrays(ends, structs, type=SCHEMA.field("headers").type)


def batch_from_records(records: Sequence[Record]) -> pa.RecordBatch:
    """The same from single records."""
    columns: list[Any] = list(zip(*records, strict=True)) if records else [()] * len(SCHEMA)
    return batch_from_columns(*columns)


def has_headers(batch: pa.RecordBatch) -> bool:
    return len(batch.column("headers").flatten()) > 0


def header_rows(batch: pa.RecordBatch) -> list[Headers]:
    """The headers of each record as a tuple of (key, value) pairs in order."""
    if not has_headers(batch):
        return [()] * batch.num_rows
    column = batch.column("headers")
    flat = column.flatten()
    pairs = tuple(zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True))
    ends = column.offsets.to_pylist()
    first = ends[0]
    return [pairs[start - first : end - first] for start, end in pairwise(ends)]


LARGE_CONTENT_BYTES = 16 * 1024 * 1024


def iter_records(batch: pa.RecordBatch) -> Iterator[Record]:
    columns = [_values(batch.column(name)) for name in SCHEMA.names[:-1]]
    return map(Record, *columns, header_rows(batch))


def _values(column: pa.Array) -> list[Any]:
    """As `to_pylist`, which takes a large value twice for a moment."""
    if not pa.types.is_binary(column.type) or _content_bytes(column) < LARGE_CONTENT_BYTES:
        return column.to_pylist()  # type: ignore[no-any-return]
    _, ends, content = column.buffers()
    bounds = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(content)
    return [
        bytes(view[start:end]) if is_valid else None
        for start, end, is_valid in zip(bounds, bounds[1:], column.is_valid().to_pylist(), strict=False)
    ]


def record_at(batch: pa.RecordBatch, row: int) -> Record:
    """One record of a batch; row -1 is the last."""
    return next(iter_records(batch.slice(row % batch.num_rows, 1)))


def payload_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of the keys and values of a batch."""
    return sum(_content_bytes(batch.column(name)) for name in ("key", "value"))


def _content_bytes(column: pa.BinaryArray) -> int:
    if column.null_count or not len(column):
        return pc.sum(pc.binary_length(column)).as_py() or 0
    # Asked several times for every batch of a replay, and a tenth of what Arrow's functions take.
    ends = np.frombuffer(column.buffers()[1], np.int32)
    return int(ends[column.offset + len(column)] - ends[column.offset])


def record_hash(record: Record) -> str:
    """SHA-256 of a record in an unambiguous binary form, as lower-case hex (FORMAT.md, "tail_hash")."""
    return hashlib.sha256(canonical_bytes(record)).hexdigest()


def canonical_bytes(record: Record) -> bytes:
    """A record as length-prefixed big-endian binary: equal exactly when the records are equal."""
    parts = [struct.pack(">qqb", record.offset, record.timestamp, record.timestamp_type)]
    parts += [_field(record.key), _field(record.value), struct.pack(">I", len(record.headers))]
    for key, value in record.headers:
        parts += [_field(key.encode()), _field(value)]
    return b"".join(parts)


def _field(content: bytes | None) -> bytes:
    return b"\x00" if content is None else b"\x01" + struct.pack(">Q", len(content)) + content
