"""The size of a record in Kafka, as a broker compares it with a topic's limit."""

from collections.abc import Iterator

import pyarrow as pa

from index_format import arrow_functions as pc
from index_format.records import Record, iter_records

BATCH_BYTES = 61
"""Bytes of a batch in front of its first record."""
ROOM = 128
"""More than lengths and counts of a record without headers take."""
MARGIN = 1.05
"""Compressed sizes differ between libraries: one so little above the limit is left to the broker."""


def sizes_above(batch: pa.RecordBatch, limit: int, codec: str) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the records that are larger than `limit` in a batch of their own, even compressed."""
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
    most = pc.add(lengths[0].cast(pa.int64()), lengths[1].cast(pa.int64()))
    # All headers of the batch are more than those of one record: few batches have any.
    candidates = batch.filter(pc.greater(most, limit - ROOM - batch.column("headers").nbytes))
    for record in iter_records(candidates):
        content = _encoded(record)
        size = BATCH_BYTES + len(content)
        if size <= limit:
            continue
        if codec == "none" or (size := BATCH_BYTES + len(pa.compress(content, codec=codec))) > limit * MARGIN:
            yield record.offset, size


def _encoded(record: Record) -> bytes:
    """Return a record as the first of a batch."""
    parts = [b"\0\0\0", _sized(record.key), _sized(record.value), _varint(len(record.headers))]
    for key, value in record.headers:
        parts += [_sized(key.encode()), _sized(value)]
    content = b"".join(parts)
    return _varint(len(content)) + content


def _sized(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    rest, digits = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        digits.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*digits, rest])
