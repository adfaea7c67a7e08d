"""Record format `text`: the value and a newline, as the ancestor wrote it."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from index_format import arrow_functions as pc
from index_format.errors import CorruptBlock
from index_format.record_formats.lines import NEWLINE, EncodedLines, LineFormat
from index_format.records import (
    LARGE_CONTENT_BYTES,
    SCHEMA,
    Record,
    batch_without_timestamps,
    content_in_place,
    has_headers,
    iter_records,
)


class TextLines(LineFormat):
    """Values only: no null, newline, key or header; a reader counts offsets from the block's first."""

    name = "text"
    needs_contiguous_blocks = True
    framing_bytes = 0

    def objections(self, batch: pa.RecordBatch) -> dict[int, str]:
        values = batch.column("value")
        if (
            values.null_count == 0
            and batch.column("key").null_count == batch.num_rows
            and not has_headers(batch)
            and not pc.any(pc.match_substring(values, b"\n")).as_py()
        ):
            return {}
        reasons = {row: _objection(record) for row, record in enumerate(iter_records(batch))}
        return {row: reason for row, reason in reasons.items() if reason}

    def encode(self, batch: pa.RecordBatch, timestamp_type: int) -> EncodedLines:  # noqa: ARG002
        values = batch.column("value")
        lengths = pc.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64) + 1
        data = b"".join([value + b"\n" for value in values.to_pylist()])
        return EncodedLines(data, np.cumsum(lengths))

    def decode(self, raw: bytes | bytearray, first_offset: int, timestamp_type: int) -> pa.RecordBatch:  # noqa: ARG002
        """See RecordFormat; timestamps are not in the bytes, so they come as -1."""
        if not raw.endswith(b"\n"):
            raise CorruptBlock("a text block does not end with a newline")
        if raw.find(b"\n") == len(raw) - 1 and len(raw) > LARGE_CONTENT_BYTES:
            batch = batch_without_timestamps(first_offset, [None], [b""])
            return batch.set_column(4, SCHEMA.field("value"), content_in_place(memoryview(raw)[:-1]))
        found = np.frombuffer(raw, np.uint8)
        ends = np.flatnonzero(found == NEWLINE)
        batch = batch_without_timestamps(first_offset, [None] * len(ends), [b""] * len(ends))
        edges = np.concatenate(([0], ends - np.arange(len(ends)))).astype(np.int32)
        buffers = [None, pa.py_buffer(edges), pa.py_buffer(found[found != NEWLINE])]
        values = pa.BinaryArray.from_buffers(pa.binary(), len(ends), buffers)
        return batch.set_column(4, SCHEMA.field("value"), values)

    def decode_near(self, raw: bytes, offsets: Sequence[int], timestamp_type: int) -> None:
        """See RecordFormat; a few records cost as much as all."""


def _objection(record: Record) -> str:
    """Why a record cannot be a line of text; empty when it can."""
    if record.value is None:
        return "cannot hold a null value"
    if b"\n" in record.value:
        return "cannot hold a value with a newline"
    if record.key is not None:
        return "cannot hold a key"
    return "cannot hold headers" if record.headers else ""
