"""The answer of a broker for one partition as an Arrow batch of `index_format.records.SCHEMA`."""

import ctypes
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa
import zstandard
from isal import igzip, isal_zlib

from benchmarks.prototype.native import BadBatch, Batch, Column, Columns, Native, Totals
from index_format.records import HEADER_TYPE, SCHEMA

CODEC_BITS, CONTROL_BIT = 7, 1 << 5
_lz4 = pa.Codec("lz4")


class Raw(NamedTuple):
    """The records of a batch, decompressed; `least` is the offset, less the batch's first, of the first one wanted."""

    buffer: pa.Buffer
    batch: Batch
    least: int


class Cut(NamedTuple):
    """Consecutive records that were written under one leader epoch."""

    batch: pa.RecordBatch
    leader_epoch: int


class Answer:
    """The batches that a broker sent for a partition, of which the records at or above `position` are wanted."""

    def __init__(self, native: Native, content: memoryview, position: int) -> None:
        """Checks their checksums; raises BadBatch. `content` must not change before `cut` is over."""
        self._native = native
        self._content = pa.py_buffer(content)
        self._position = position
        self._batches = native.scan(self._content.address, self._content.size)

    @property
    def next_position(self) -> int:
        """Where the next fetch goes on; the same as before where no whole batch came."""
        if not self._batches:
            return self._position
        last = self._batches[-1]
        return max(self._position, last.base_offset + last.last_offset_delta + 1)

    def raws(self) -> list[Raw]:
        """The batches but control records, decompressed. Raises BadBatch."""
        return [self._raw(batch) for batch in self._batches if not batch.attributes & CONTROL_BIT]

    def cut(self) -> Iterator[Cut]:
        """The wanted records in order. Raises BadBatch."""
        for epoch, run in groupby(self.raws(), lambda raw: raw.batch.leader_epoch):
            if (batch := arrow_batch(self._native, list(run))).num_rows:
                yield Cut(batch, epoch)

    def _raw(self, batch: Batch) -> Raw:
        stored = self._content.slice(batch.start, batch.length)
        raw = inflated(self._native, stored, batch.attributes & CODEC_BITS)
        return Raw(raw, batch, self._position - batch.base_offset)


def inflated(native: Native, stored: pa.Buffer, codec: int) -> pa.Buffer:
    """The records' bytes, perhaps with more behind them; raises BadBatch. Lets go of the lock."""
    try:
        match codec:
            case 0:
                return stored
            case 1:
                return pa.py_buffer(igzip.decompress(stored))
            case 3:
                # The frame need not say its size; Arrow takes more room than is needed.
                return _lz4.decompress(stored, native.lz4_bound(stored.address, stored.size))
            case 4:
                return pa.py_buffer(zstandard.ZstdDecompressor().decompressobj().decompress(stored))
    except (OSError, EOFError, isal_zlib.error, zstandard.ZstdError) as error:
        raise BadBatch(f"a record batch cannot be read: {error}") from error
    raise BadBatch(f"a record batch cannot be read: its codec has the number {codec}")


def arrow_batch(native: Native, pieces: Sequence[Raw]) -> pa.RecordBatch:
    """The wanted records of all pieces as one batch of `SCHEMA`. Raises BadBatch."""
    totals = Totals()
    for raw, batch, least in pieces:
        native.measure(raw.address, raw.size, batch.records, least, totals)
    count = totals.records
    offsets, timestamps = pa.allocate_buffer(8 * count), pa.allocate_buffer(8 * count)
    types, header_ends = pa.allocate_buffer(count), _ends(count)
    keys = _Bytes(count, totals.key_bytes, totals.null_keys)
    values = _Bytes(count, totals.value_bytes, totals.null_values)
    header_keys = _Bytes(totals.headers, totals.header_key_bytes, 0)
    header_values = _Bytes(totals.headers, totals.header_value_bytes, totals.null_header_values)
    columns = Columns(
        *(buffer.address for buffer in (offsets, timestamps, types, header_ends)),
        0,
        *(column.pointers for column in (keys, values, header_keys, header_values)),
    )
    for raw, batch, least in pieces:
        native.fill(raw.address, raw.size, batch, least, columns)
    headers = pa.StructArray.from_buffers(
        HEADER_TYPE, totals.headers, [None], children=[_text(header_keys.array()), header_values.array()]
    )
    return pa.record_batch(
        [
            pa.Array.from_buffers(pa.int64(), count, [None, offsets]),
            pa.Array.from_buffers(pa.int64(), count, [None, timestamps]),
            pa.Array.from_buffers(pa.int8(), count, [None, types]),
            keys.array(),
            values.array(),
            pa.Array.from_buffers(SCHEMA.field("headers").type, count, [None, header_ends], children=[headers]),
        ],
        schema=SCHEMA,
    )


class _Bytes:
    """A column of variable length that is still to be filled."""

    def __init__(self, rows: int, size: int, nulls: int) -> None:
        self._rows, self._nulls = rows, nulls
        self._ends, self._content = _ends(rows), pa.allocate_buffer(size)
        self._valid = _zeroed((rows + 7) // 8) if nulls else None
        valid = self._valid.address if self._valid is not None else None
        self.pointers = Column(self._ends.address, self._content.address, valid, 0, 0)

    def array(self) -> pa.Array:
        """Once it is filled."""
        return pa.Array.from_buffers(pa.binary(), self._rows, [self._valid, self._ends, self._content], self._nulls)


def _ends(rows: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(4 * (rows + 1))
    ctypes.memset(buffer.address, 0, 4)
    return buffer


def _zeroed(size: int) -> pa.Buffer:
    buffer = pa.allocate_buffer(size)
    ctypes.memset(buffer.address, 0, size)
    return buffer


def _text(column: pa.Array) -> pa.Array:
    """Header keys, which must be UTF-8 as they must for librdkafka's binding."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise BadBatch("a record batch cannot be read: a header key is not UTF-8") from error
