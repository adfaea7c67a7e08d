"""Records as canonical bytes, a whole batch at a time, and the digest over them (FORMAT.md, "Digest")."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from index_format import arrow_functions as pc
from index_format.kernel_choice import KERNEL
from index_format.records import canonical_contents, has_headers, is_large, record_view

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
        """Of all records so far, as lower-case hex."""
        return self._content.hexdigest()

    @property
    def positions(self) -> str:
        """The same of their places."""
        return self._positions.hexdigest()


def canonical_stream(batch: pa.RecordBatch) -> memoryview:
    """The bytes that `records.canonical_bytes` gives for each record of a batch of `records.SCHEMA`, in order.

    Every record says where it ends, so the stream of two batches is the stream of the batch that holds both.
    """
    if KERNEL and (stream := KERNEL.module.canonical_stream(batch)) is not None:
        return memoryview(stream)
    return canonical_stream_in_python(batch)


def canonical_stream_in_python(batch: pa.RecordBatch) -> memoryview:
    """The same, as it is done without the C extension and for what that one leaves: columns of other types."""
    return _stream(batch, "offset", "timestamp", "timestamp_type")


def digest_streams(batch: pa.RecordBatch) -> tuple[bytes | memoryview, bytes]:
    """What `content` and what `positions` of a RecordsDigest cover of a batch."""
    if KERNEL and (streams := KERNEL.module.digest_streams(batch)):
        content, positions = streams
        return content, positions
    return digest_streams_in_python(batch)


def digest_streams_in_python(batch: pa.RecordBatch) -> tuple[memoryview, bytes]:
    """The same, as `canonical_stream_in_python`."""
    return _stream(batch, "timestamp"), _heads(batch, "offset", "timestamp_type").tobytes()


def _stream(batch: pa.RecordBatch, *head: str) -> memoryview:
    """For each record the named numbers, then key, value and headers."""
    headers = _headers(batch.column("headers")) if has_headers(batch) else _NO_HEADERS
    key, value = _field(batch.column("key")), _field(batch.column("value"))
    joined = pc.binary_join_element_wise(_fixed(_heads(batch, *head)), *key, *value, headers, _NOTHING)
    edges = _edges(joined)
    return memoryview(joined.buffers()[2] or b"")[int(edges[0]) : int(edges[-1])]


def _heads(batch: pa.RecordBatch, *names: str) -> Any:
    """These numbers of each record, as one row of bytes."""
    heads = np.empty(batch.num_rows, np.dtype([(name, _HEAD[name]) for name in names]))
    for name in names:
        heads[name] = batch.column(name).to_numpy()
    return heads


def _field(column: Any) -> tuple[Any, Any]:
    """What stands before each content, and the contents: a null has the flag alone."""
    heads = np.empty(len(column), _PRESENT)
    heads["flag"] = 1
    heads["length"] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    contents = column.cast(_BYTES)
    if not column.null_count:
        return _fixed(heads), contents
    return pc.if_else(pc.is_null(column), _ABSENT, _fixed(heads)), pc.fill_null(contents, _NOTHING)


def _headers(column: Any) -> Any:
    """The count and the fields of each record's headers."""
    flat = column.flatten()
    keys, values = flat.field("key").cast(pa.binary()), flat.field("value")
    joined = pc.binary_join_element_wise(*_field(keys), *_field(values), _NOTHING)
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
    """Where each value begins in the column's data, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
