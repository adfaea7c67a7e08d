"""Records as Kafka's record batches of magic 2: by the C extension if it is in use, otherwise in Python."""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import lz4.frame
import pyarrow as pa
import zstandard
from crc32c import crc32c

from index_format.kernel_choice import KERNEL
from index_format.records import NO_TIMESTAMP, Record, iter_records
from replayer.broker.messages import unsigned_varint

# Larger ones would fill what a client fetches at once with one partition. A record that has more is a batch alone.
MOST_BATCH_BYTES = 512 * 1024
_MOST_DELTA = 2**31 - 1
_LOG_APPEND_TIME, _TIME_OF_LOG = 1, 8
# Behind the checksum: attributes, last offset's delta, first and latest timestamp, no producer, number of records.
_HEAD = struct.Struct(">hiqqqhii")
_NO_PRODUCER = -1, -1, -1
# Before that: first offset, length of all that follows, leader epoch, magic, checksum.
_START = struct.Struct(">qiibI")
_UNCOUNTED_BYTES = 12
_BEFORE_RECORDS = _START.size + _HEAD.size
_NO_LEADER_EPOCH = -1
_MAGIC = 2
_UINT64 = 2**64 - 1


def _lz4(records: bytes) -> bytes:
    # Kafka's own reader takes no blocks that depend on others.
    return bytes(lz4.frame.compress(records, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX64KB))


def _zstd(records: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(records)


# By name: the number in a batch's attributes, and the function.
CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {"lz4": (3, _lz4), "zstd": (4, _zstd)}


class RecordBatch(NamedTuple):
    """A record batch as a client gets it, for the offsets up to `end`."""

    data: bytearray
    end: int
    """The offset behind its last."""


def record_batches(batch: pa.RecordBatch, codec: str | None = None) -> list[RecordBatch]:
    """Return the records of a batch of `SCHEMA`: cut at the limit of size, and where the type of timestamps changes."""
    found = KERNEL.module.record_batches(batch, MOST_BATCH_BYTES) if KERNEL else None
    return [_finished(base, last, data, codec) for base, last, data in found or _bodies(batch)]


def empty_batch(start: int, end: int) -> RecordBatch:
    """Return a batch without records for the offsets [start, end), as Kafka's compaction leaves one."""
    last = min(end - 1, start + _MOST_DELTA)
    head = _HEAD.pack(0, last - start, NO_TIMESTAMP, NO_TIMESTAMP, *_NO_PRODUCER, 0)
    return _finished(start, last, bytearray(_START.size) + head, None)


def _finished(base: int, last: int, data: bytearray, codec: str | None) -> RecordBatch:
    """Fill in what comes before the attributes."""
    if codec is not None:
        number, compress = CODECS[codec]
        data[_START.size + 1] |= number
        data[_BEFORE_RECORDS:] = compress(memoryview(data)[_BEFORE_RECORDS:].tobytes())
    checksum = crc32c(memoryview(data)[_START.size :])
    _START.pack_into(data, 0, base, len(data) - _UNCOUNTED_BYTES, _NO_LEADER_EPOCH, _MAGIC, checksum)
    return RecordBatch(data, last + 1)


def _bodies(batch: pa.RecordBatch) -> Iterator[tuple[int, int, bytearray]]:
    """Do what the extension does: yield each batch's first and last offset, and its bytes, the start left empty."""
    open_batch: _OpenBatch | None = None
    for record in iter_records(batch):
        if open_batch is None or not open_batch.add(record):
            if open_batch is not None:
                yield open_batch.body()
            open_batch = _OpenBatch(record)
    if open_batch is not None:
        yield open_batch.body()


class _OpenBatch:
    def __init__(self, first: Record) -> None:
        self._first = self._last = first
        self._latest = first.timestamp
        self._records = bytearray()
        self._count = 0
        self.add(first)

    def add(self, record: Record) -> bool:
        """Return False if the record needs a batch of its own."""
        first = self._first
        is_log_time = first.timestamp_type == _LOG_APPEND_TIME
        if (
            record.timestamp_type != first.timestamp_type
            or (is_log_time and record.timestamp != first.timestamp)
            or record.offset - first.offset > _MOST_DELTA
        ):
            return False
        encoded = _encoded(record, first)
        if self._records and len(self._records) + len(encoded) > MOST_BATCH_BYTES:
            return False
        self._records += encoded
        self._count += 1
        self._last, self._latest = record, max(self._latest, record.timestamp)
        return True

    def body(self) -> tuple[int, int, bytearray]:
        first, last = self._first, self._last
        attributes = _TIME_OF_LOG if first.timestamp_type == _LOG_APPEND_TIME else 0
        times = first.timestamp, self._latest
        head = _HEAD.pack(attributes, last.offset - first.offset, *times, *_NO_PRODUCER, self._count)
        return first.offset, last.offset, bytearray(_START.size) + head + self._records


def _encoded(record: Record, first: Record) -> bytes:
    deltas = _varint(_wrapped(record.timestamp - first.timestamp)) + _varint(record.offset - first.offset)
    parts = [b"\0" + deltas, _content(record.key), _content(record.value), _varint(len(record.headers))]
    for key, value in record.headers:
        parts += _content(key.encode()), _content(value)
    raw = b"".join(parts)
    return _varint(len(raw)) + raw


def _content(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(number: int) -> bytes:
    return unsigned_varint((number << 1 ^ number >> 63) & _UINT64)


def _wrapped(difference: int) -> int:
    """Return the difference of two int64 as int64: a reader's sum wraps around too."""
    return (difference + 2**63) % 2**64 - 2**63
