"""Record format `arrow`: one Arrow IPC stream a block (FORMAT.md, "Record format arrow")."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from index_format import arrow_functions as pc
from index_format.errors import CorruptBlock
from index_format.records import SCHEMA, TIMESTAMP_TYPES

FIXED_BYTES = 8 + 8 + 1 + 3 * 4 + 1
"""Bytes of each record: offset, timestamp, its type, the ends of key, value and headers, and the null bits."""
HEADER_BYTES = 2 * 4 + 1
"""Bytes of each header: the ends of its key and value, and the null bit."""
END_MARKER = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_HEADER_SLOT = 8
_COMPRESSION_SLOT = 10
"""Slots of the batch and of compressed buffers in the vtables of a Message and a RecordBatch (Message.fbs)."""
_NOT_THIS = (pa.ArrowException, OSError, ValueError, struct.error, IndexError)


class EncodedRows(NamedTuple):
    """Consecutive records, and the bytes that they take in a block up to and with each one."""

    batch: pa.RecordBatch
    ends: npt.NDArray[np.int64]

    def piece(self, start: int, stop: int) -> pa.RecordBatch:
        rows = self.batch.slice(start, stop - start)
        # A slice holds all of the batch that it was cut from.
        return pa.concat_batches([rows]) if rows.get_total_buffer_size() > 2 * rows.nbytes else rows


class ArrowStream:
    """Lossless; the fast way into Spark, pandas, Polars and DuckDB."""

    name = "arrow"
    needs_contiguous_blocks = False
    framing_bytes = 2048

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:  # noqa: ARG002
        return {}

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> EncodedRows:  # noqa: ARG002
        sizes = _lengths(batch.column("key")) + _lengths(batch.column("value")) + FIXED_BYTES
        headers = batch.column("headers")
        flat = headers.flatten()
        if len(flat):
            each = _lengths(flat.field("key")) + _lengths(flat.field("value")) + HEADER_BYTES
            before = np.concatenate(([0], np.cumsum(each)))
            ends = headers.offsets.to_numpy() - headers.offsets[0].as_py()
            sizes = sizes + before[ends[1:]] - before[ends[:-1]]
        return EncodedRows(batch, np.cumsum(sizes))

    def merge(self, pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        return pa.concat_batches(pieces)

    def join(self, pieces: Sequence[pa.RecordBatch]) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_batch(pa.concat_batches(pieces))
        content: bytes = sink.getvalue().to_pybytes()
        return content

    def parts(self, raw: Iterable[bytes]) -> Iterator[bytearray]:
        """See RecordFormat; a stream is not cut."""
        whole = bytearray()
        for piece in raw:
            whole += piece
        yield whole

    def count(self, raw: bytes | bytearray) -> int:
        """See RecordFormat; nothing is decoded."""
        return sum(batch.num_rows for batch in _batches(raw))

    def decode(self, raw: bytes | bytearray, first_offset: int, timestamp_type: int) -> pa.RecordBatch:  # noqa: ARG002
        """See RecordFormat; the batch lies on `raw` without a copy where the block holds one."""
        batches = _batches(raw)
        try:
            for batch in batches:
                batch.validate(full=True)
            whole = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
            types = set(pc.unique(whole.column("timestamp_type")).to_pylist())
        except _NOT_THIS as error:
            raise _corrupt(str(error)) from error
        headers = whole.column("headers")
        nested = (headers.values.field("key"), headers.values) if len(headers.values) else ()
        required = [whole.column(field.name) for field in SCHEMA if not field.nullable]
        if any(column.null_count for column in (*required, *nested)) or not types <= TIMESTAMP_TYPES.keys():
            raise _corrupt("a field that every record has is null or unknown")
        return whole

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> None:
        """See RecordFormat; a few records cost as much as all."""


def _batches(raw: bytes | bytearray) -> list[pa.RecordBatch]:
    source = pa.BufferReader(raw)
    try:
        messages = list(pa.ipc.MessageReader.open_stream(source))
        # Told another kind of message, what reads a schema or a batch crashes.
        if [message.type for message in messages] != ["schema", *["record batch"] * (len(messages) - 1)]:
            raise pa.ArrowInvalid("it is not one schema and batches")
        head, *messages = messages
        same = pa.ipc.read_schema(head).equals(SCHEMA)
        compressed = any(map(_is_compressed, messages))
        batches = [pa.ipc.read_record_batch(message, SCHEMA) for message in messages] if same and not compressed else []
        end = source.tell()
    except _NOT_THIS as error:
        raise _corrupt(str(error)) from error
    if not same or compressed:
        raise _corrupt("its buffers are compressed" if same else "its columns are others")
    if end != len(raw) or not raw.endswith(END_MARKER):
        raise _corrupt("it does not end where the block does")
    return batches


def _is_compressed(message: pa.Message) -> bool:
    metadata = message.metadata.to_pybytes()
    header = _table_field(metadata, _indirect(metadata, 0), _HEADER_SLOT)
    batch = None if header is None else _indirect(metadata, header)
    return batch is None or _table_field(metadata, batch, _COMPRESSION_SLOT) is not None


def _indirect(flatbuffer: bytes, position: int) -> int:
    return position + int(struct.unpack_from("<I", flatbuffer, position)[0])


def _table_field(flatbuffer: bytes, table: int, slot: int) -> int | None:
    vtable = table - struct.unpack_from("<i", flatbuffer, table)[0]
    if vtable < 0 or slot >= struct.unpack_from("<H", flatbuffer, vtable)[0]:
        return None
    distance = struct.unpack_from("<H", flatbuffer, vtable + slot)[0]
    return table + distance if distance else None


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)


def _corrupt(why: str) -> CorruptBlock:
    return CorruptBlock("a block is not the Arrow stream that its index says", why=why)
