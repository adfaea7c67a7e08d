"""A digest over the records of a partition that any program can repeat from the records alone (FORMAT.md, "Digest")."""

import hashlib

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from index_format.records import has_headers

ROWS_AT_ONCE = 16_384
_NULL = pa.scalar(b"\x00", pa.large_binary())
_EMPTY = pa.scalar(b"", pa.large_binary())
_NO_HEADERS = pa.scalar(b"\x00\x00\x00\x00", pa.large_binary())


class RecordsDigest:
    """Two SHA-256 over records in the order in which they are given, however they are cut into batches.

    `content` covers timestamp, key, value and headers: what a faithful copy has as well. `positions` covers offset and
    timestamp type: what only the archived log itself has.
    """

    def __init__(self) -> None:
        self.records = 0
        self._content = hashlib.sha256()
        self._positions = hashlib.sha256()

    def update(self, batch: pa.RecordBatch) -> None:
        """Adds the records of a batch of `records.SCHEMA`."""
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            part = batch.slice(start, ROWS_AT_ONCE)
            self._content.update(_content_bytes(part))
            self._positions.update(_position_bytes(part))
        self.records += batch.num_rows

    @property
    def content(self) -> str:
        """Of all records so far, as lower-case hex."""
        return self._content.hexdigest()

    @property
    def positions(self) -> str:
        """The same of their places."""
        return self._positions.hexdigest()


def _content_bytes(batch: pa.RecordBatch) -> memoryview:
    """For each record: timestamp, key, value, headers, as in `records.canonical_bytes`."""
    records = pc.binary_join_element_wise(
        _fixed(batch.column("timestamp").to_numpy().astype(">i8").view(np.uint8), 8),
        *_field(batch.column("key")),
        *_field(batch.column("value")),
        _headers(batch) if has_headers(batch) else _NO_HEADERS,
        _EMPTY,
    )
    return _data(records)


def _position_bytes(batch: pa.RecordBatch) -> bytes:
    places = np.empty(batch.num_rows, np.dtype([("offset", ">i8"), ("type", "i1")]))
    places["offset"] = batch.column("offset").to_numpy()
    places["type"] = batch.column("timestamp_type").to_numpy()
    return places.tobytes()


def _headers(batch: pa.RecordBatch) -> pa.LargeBinaryArray:
    """The number of headers of each record and their fields."""
    column = batch.column("headers")
    flat = column.flatten()
    key, value = flat.field("key").cast(pa.binary()), flat.field("value")
    joined = pc.binary_join_element_wise(*_field(key), *_field(value), _EMPTY)
    ends = column.offsets.to_numpy()
    counts = _fixed(np.diff(ends).astype(">u4").view(np.uint8), 4)
    places = _offsets(joined)[ends - ends[0]]
    rows = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), batch.num_rows, [None, pa.py_buffer(np.ascontiguousarray(places)), joined.buffers()[2]]
    )
    return pc.binary_join_element_wise(counts, rows, _EMPTY)


def _field(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Flag and length, then content: a null has the flag alone."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    heads = np.empty(len(column), np.dtype([("flag", "u1"), ("length", ">u8")]))
    heads["flag"], heads["length"] = 1, lengths
    prefix = _fixed(heads.view(np.uint8), 9)
    if not column.null_count:
        return prefix, column.cast(pa.large_binary())
    return pc.if_else(column.is_null(), _NULL, prefix), pc.fill_null(column.cast(pa.large_binary()), b"")


def _fixed(content: npt.NDArray[np.uint8], width: int) -> pa.LargeBinaryArray:
    """Values of equal width as one array."""
    offsets = np.arange(0, len(content) + 1, width, dtype=np.int64)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    )


def _offsets(array: pa.LargeBinaryArray) -> npt.NDArray[np.int64]:
    return np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]


def _data(array: pa.LargeBinaryArray) -> memoryview:
    """The contents of all values, one after the other."""
    offsets = _offsets(array)
    return memoryview(array.buffers()[2])[int(offsets[0]) : int(offsets[-1])]
