"""Records as Arrow: the one schema that travels from Kafka to the encoder and from the decoder to every sink."""

import hashlib
import hmac
import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index_format import arrow_functions as pc
from index_format.kernel_choice import KERNEL

# Kafka's timestamp type ids and names (org.apache.kafka.common.record.TimestampType).
TIMESTAMP_TYPES = {-1: "NoTimestampType", 0: "CreateTime", 1: "LogAppendTime"}
NO_TIMESTAMP = NO_TIMESTAMP_TYPE = -1
TIMESTAMP_TYPE_IDS = {name: number for number, name in TIMESTAMP_TYPES.items()}

HEADER_TYPE = pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
# One row a record. timestamp is ms since the epoch, -1 for none; headers are empty rather than null.
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
    """Return columns of equal length as one batch of `SCHEMA`; a None among the headers means no headers."""
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


class _Columns:
    def __init__(self, capsules: tuple[object, object]) -> None:
        self._capsules = capsules

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._capsules


def batch_from_capsules(capsules: tuple[object, object]) -> pa.RecordBatch:
    """Take the batch of `SCHEMA` out of the PyCapsules of Arrow's C data interface for schema and array."""
    return pa.record_batch(_Columns(capsules))


def batch_without_timestamps(
    first_offset: int, keys: Sequence[bytes | None], values: Sequence[bytes | None]
) -> pa.RecordBatch:
    """Return records at consecutive offsets, which have no headers and no timestamps."""
    count = len(values)
    offsets = range(first_offset, first_offset + count)
    times, types = [NO_TIMESTAMP] * count, [NO_TIMESTAMP_TYPE] * count
    return batch_from_columns(offsets, times, types, keys, values, [None] * count)


def header_column(headers: Sequence[Headers | None]) -> pa.ListArray:
    """Return the column `headers`; None means no headers."""
    header_type = SCHEMA.field("headers").type
    if any(headers):
        return pa.array([row or [] for row in headers], header_type)
    no_headers = pa.repeat(pa.scalar(0, pa.int32()), len(headers) + 1)
    return pa.ListArray.from_arrays(no_headers, pa.array([], HEADER_TYPE), type=header_type)


def header_column_of_lists(lists: pa.ListArray) -> pa.ListArray:
    """Return the column `headers` from nullable lists of structs; raises ValueError for a key that is null."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    flat = lists.flatten()
    keys, values = flat.field("key").cast(pa.string()), flat.field("value").cast(pa.binary())
    if flat.null_count or keys.null_count:
        raise ValueError("a header without a key")
    ends = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    structs = pa.StructArray.from_arrays([keys, values], fields=list(HEADER_TYPE))
    return pa.ListArray.from_arrays(ends, structs, type=SCHEMA.field("headers").type)


def batch_from_records(records: Sequence[Record]) -> pa.RecordBatch:
    columns: list[Any] = list(zip(*records, strict=True)) if records else [()] * len(SCHEMA)
    return batch_from_columns(*columns)


def has_headers(batch: pa.RecordBatch) -> bool:
    ends = batch.column("headers").offsets
    return bool(ends[0] != ends[len(ends) - 1])


def header_rows(batch: pa.RecordBatch) -> list[Headers]:
    """Return the headers of each record as a tuple of (key, value) pairs in order."""
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
    if not pa.types.is_binary(column.type) or _content_bytes(column) < LARGE_CONTENT_BYTES:
        return column.to_pylist()  # type: ignore[no-any-return]
    # `to_pylist` holds a large value twice for a moment.
    _, ends, content = column.buffers()
    bounds = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1].tolist()
    view = memoryview(content)
    return [
        bytes(view[start:end]) if is_valid else None
        for start, end, is_valid in zip(bounds, bounds[1:], column.is_valid().to_pylist(), strict=False)
    ]


LARGE_RECORD_BYTES = 1024 * 1024


def is_large(batch: pa.RecordBatch) -> bool:
    """Return whether it is a single record that should not be copied more than it must."""
    return bool(batch.num_rows == 1 and batch.nbytes > LARGE_RECORD_BYTES)


SLICE_ROWS, SLICE_BYTES = 16 * 1024, 1024 * 1024


def small_slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch as small ones that share its memory; a record with more than SLICE_BYTES is one alone."""
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy() for name in ("key", "value")]
    ends = np.cumsum(lengths[0].astype(np.int64) + lengths[1])
    row = 0
    while row < batch.num_rows:
        before = ends[row - 1] if row else 0
        stop = int(np.searchsorted(ends, before + SLICE_BYTES, side="right"))
        stop = min(max(stop, row + 1), row + SLICE_ROWS)
        yield batch.slice(row, stop - row)
        row = stop


def record_view(batch: pa.RecordBatch, row: int) -> Record:
    """Return a record whose key, value and headers' values are memoryviews on the batch, despite its types."""
    offset, timestamp, timestamp_type = (batch.column(name)[row].as_py() for name in SCHEMA.names[:3])
    key, value = (_view(batch.column(name), row) for name in ("key", "value"))
    headers = batch.column("headers")
    first, end = headers.offsets[row].as_py(), headers.offsets[row + 1].as_py()
    keys, values = headers.values.field("key"), headers.values.field("value")
    pairs = [(keys[each].as_py(), _view(values, each)) for each in range(first, end)]
    return Record(offset, timestamp, timestamp_type, key, value, pairs)


def _view(column: pa.BinaryArray, row: int) -> Any:
    if not column.is_valid()[row].as_py():
        return None
    _, ends, content = column.buffers()
    start, end = np.frombuffer(ends, np.int32)[column.offset + row : column.offset + row + 2].tolist()
    return memoryview(content)[start:end] if content is not None else memoryview(b"")


def content_in_place(content: memoryview) -> pa.BinaryArray:
    """Return a key or value as a column of one, without a copy."""
    ends = pa.py_buffer(np.array([0, len(content)], np.int32))
    return pa.BinaryArray.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(content)])


def record_at(batch: pa.RecordBatch, row: int) -> Record:
    return next(iter_records(batch.slice(row % batch.num_rows, 1)))


def payload_bytes(batch: pa.RecordBatch) -> int:
    return sum(_content_bytes(batch.column(name)) for name in ("key", "value"))


def _content_bytes(column: pa.BinaryArray) -> int:
    if column.null_count == len(column):
        return 0
    if column.null_count:
        return int(pc.sum(pc.binary_length(column)).as_py())
    # Asked several times for every batch of a replay, and a tenth of what Arrow's functions take.
    ends = np.frombuffer(column.buffers()[1], np.int32)
    return int(ends[column.offset + len(column)] - ends[column.offset])


def record_hash(record: Record, key: bytes | None = None) -> str:
    """Return a record's SHA-256 (FORMAT.md, "tail_hash"), or with a key its HMAC, as lower-case hex."""
    head = _canonical_head(record)
    digest = hashlib.sha256(head) if key is None else hmac.new(key, head, hashlib.sha256)
    for piece in canonical_contents(record):
        digest.update(piece)
    return digest.hexdigest()


def canonical_bytes(record: Record) -> bytes:
    """Return a record as length-prefixed big-endian binary: equal exactly if the records are equal."""
    return b"".join([_canonical_head(record), *canonical_contents(record)])


def _canonical_head(record: Record) -> bytes:
    return struct.pack(">qqb", record.offset, record.timestamp, record.timestamp_type)


def canonical_contents(record: Record) -> Iterator[bytes]:
    """Yield what follows the numbers, in pieces; contents are given unchanged."""
    yield from _content_pieces(record.key)
    yield from _content_pieces(record.value)
    yield struct.pack(">I", len(record.headers))
    for key, value in record.headers:
        yield from _content_pieces(key.encode())
        yield from _content_pieces(value)


def _content_pieces(content: bytes | None) -> tuple[bytes, ...]:
    return (b"\x00",) if content is None else (b"\x01", struct.pack(">Q", len(content)), content)


ROWS_AT_ONCE = 16_384
_HEAD = np.dtype([("offset", ">i8"), ("timestamp", ">i8"), ("timestamp_type", "i1")])
_PRESENT = np.dtype([("flag", "u1"), ("length", ">u8")])
_BYTES = pa.large_binary()
_NO_HEADERS = pa.scalar(b"\0\0\0\0", _BYTES)
_ABSENT = pa.scalar(b"\0", _BYTES)
_NOTHING = pa.scalar(b"", _BYTES)


class RecordsDigest:
    """Two SHA-256 over records in the order in which they are given, however they are cut into batches.

    `content` covers timestamp, key, value and headers: what a faithful copy has as well. `positions` covers offset and
    timestamp type: what only the archived log itself has. Any program can repeat both from the records alone.
    """

    def __init__(self) -> None:
        self._content = hashlib.sha256()
        self._positions = hashlib.sha256()

    def update(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            if is_large(part):
                self._content.update(_heads(part, "timestamp").tobytes())
                for piece in canonical_contents(record_view(part, 0)):
                    self._content.update(piece)
                self._positions.update(_heads(part, "offset", "timestamp_type").tobytes())
                continue
            content, positions = digest_streams(part)
            self._content.update(content)
            self._positions.update(positions)

    @property
    def content(self) -> str:
        """The digest of all records so far, as lower-case hex."""
        return self._content.hexdigest()

    @property
    def positions(self) -> str:
        """The digest of all their positions so far, as lower-case hex."""
        return self._positions.hexdigest()


def canonical_stream(batch: pa.RecordBatch) -> memoryview:
    """Return the bytes that `canonical_bytes` gives for each record of a batch, in order."""
    # Every record says where it ends: the streams of two batches are the stream of both.
    if KERNEL and (stream := KERNEL.module.canonical_stream(batch)) is not None:
        return memoryview(stream)
    return canonical_stream_in_python(batch)


def canonical_stream_in_python(batch: pa.RecordBatch) -> memoryview:
    """Return the same bytes without the C extension, and for what the extension refuses: columns of other types."""
    return _stream(batch, "offset", "timestamp", "timestamp_type")


def digest_streams(batch: pa.RecordBatch) -> tuple[bytes | memoryview, bytes]:
    """Return the bytes of a batch that `content` and `positions` of a RecordsDigest cover."""
    if KERNEL and (streams := KERNEL.module.digest_streams(batch)):
        content, positions = streams
        return content, positions
    return digest_streams_in_python(batch)


def digest_streams_in_python(batch: pa.RecordBatch) -> tuple[memoryview, bytes]:
    """Return the bytes of `digest_streams` without the C extension."""
    return _stream(batch, "timestamp"), _heads(batch, "offset", "timestamp_type").tobytes()


def _stream(batch: pa.RecordBatch, *head: str) -> memoryview:
    headers = _headers(batch.column("headers")) if has_headers(batch) else _NO_HEADERS
    key, value = _flagged(batch.column("key")), _flagged(batch.column("value"))
    joined = pc.binary_join_element_wise(_fixed(_heads(batch, *head)), *key, *value, headers, _NOTHING)
    edges = _edges(joined)
    return memoryview(joined.buffers()[2] or b"")[int(edges[0]) : int(edges[-1])]


def _heads(batch: pa.RecordBatch, *names: str) -> Any:
    heads = np.empty(batch.num_rows, np.dtype([(name, _HEAD[name]) for name in names]))
    for name in names:
        heads[name] = batch.column(name).to_numpy()
    return heads


def _flagged(column: Any) -> tuple[Any, Any]:
    heads = np.empty(len(column), _PRESENT)
    heads["flag"] = 1
    heads["length"] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    contents = column.cast(_BYTES)
    if not column.null_count:
        return _fixed(heads), contents
    return pc.if_else(pc.is_null(column), _ABSENT, _fixed(heads)), pc.fill_null(contents, _NOTHING)


def _headers(column: Any) -> Any:
    flat = column.flatten()
    keys, values = flat.field("key").cast(pa.binary()), flat.field("value")
    joined = pc.binary_join_element_wise(*_flagged(keys), *_flagged(values), _NOTHING)
    ends = column.offsets.to_numpy()
    # One record's headers lie side by side: its bytes reach from its first header's to its last one's.
    edges = np.ascontiguousarray(_edges(joined)[ends - ends[0]])
    fields = pa.Array.from_buffers(_BYTES, len(column), [None, pa.py_buffer(edges), joined.buffers()[2]])
    counts = np.diff(ends).astype([("count", ">u4")])
    return pc.binary_join_element_wise(_fixed(counts), fields, _NOTHING)


def _fixed(rows: Any) -> Any:
    edges = np.arange(len(rows) + 1, dtype=np.int64) * rows.dtype.itemsize
    return pa.Array.from_buffers(_BYTES, len(rows), [None, pa.py_buffer(edges), pa.py_buffer(rows)])


def _edges(column: Any) -> Any:
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
