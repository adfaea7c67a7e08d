"""Whole batches as the bytes that `records.canonical_bytes` gives for each record, one after the other, by column."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index_format.records import has_headers

_HEAD = np.dtype([("offset", ">i8"), ("timestamp", ">i8"), ("timestamp_type", "i1")])
_PRESENT = np.dtype([("flag", "u1"), ("length", ">u8")])
_NO_HEADERS = pa.scalar(b"\0\0\0\0", pa.binary())
_NOTHING = pa.scalar(b"", pa.binary())


def canonical_stream(batch: pa.RecordBatch) -> memoryview:
    """The canonical bytes of all records of a batch of `records.SCHEMA`, in order.

    Every record says where it ends, so the stream of two batches is the stream of the batch that holds both.
    """
    head = np.empty(batch.num_rows, _HEAD)
    for name in ("offset", "timestamp", "timestamp_type"):
        head[name] = batch.column(name).to_numpy()
    headers = _headers(batch.column("headers")) if has_headers(batch) else _NO_HEADERS
    key, value = _field(batch.column("key")), _field(batch.column("value"))
    return memoryview(_content(pc.binary_join_element_wise(_fixed(head), *key, *value, headers, _NOTHING)))


def _field(column: Any) -> tuple[Any, Any]:
    """What stands before each content, and the contents."""
    heads = np.empty(len(column), _PRESENT)
    heads["flag"] = 1
    heads["length"] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    if not column.null_count:
        return _fixed(heads), column
    absent = pa.scalar(b"\0", pa.binary())
    return pc.if_else(pc.is_null(column), absent, _fixed(heads)), pc.fill_null(column, _NOTHING)


def _headers(column: Any) -> Any:
    """The count and the fields of each record's headers."""
    flat = column.flatten()
    keys, values = flat.field("key").cast(pa.binary()), flat.field("value")
    joined = pc.binary_join_element_wise(*_field(keys), *_field(values), _NOTHING)
    ends = column.offsets.to_numpy()
    # One record's headers lie side by side: its bytes reach from its first header's to its last one's.
    edges = np.frombuffer(joined.buffers()[1], np.int32, len(joined) + 1)[ends - ends[0]]
    fields = pa.Array.from_buffers(
        pa.binary(), len(column), [None, pa.py_buffer(np.ascontiguousarray(edges)), joined.buffers()[2]]
    )
    counts = np.diff(ends).astype([("count", ">u4")])
    return pc.binary_join_element_wise(_fixed(counts), fields, _NOTHING)


def _fixed(rows: Any) -> Any:
    """Rows of one numpy type as an array of their bytes."""
    edges = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(rows.dtype.itemsize)
    return pa.Array.from_buffers(pa.binary(), len(rows), [None, pa.py_buffer(edges), pa.py_buffer(rows)])


def _content(column: Any) -> Any:
    """The bytes of all values, side by side."""
    _, offsets, data = column.buffers()
    edges = np.frombuffer(offsets, np.int32, column.offset + len(column) + 1)[column.offset :]
    return data.slice(int(edges[0]), int(edges[-1] - edges[0])) if data is not None else pa.py_buffer(b"")
