"""When an open chunk ends: a pure decision over sizes and times."""

from dataclasses import dataclass
from enum import Enum


class RollReason(Enum):
    """Why a chunk ended; the value is what logs and metrics say."""

    BYTES = "bytes"
    BLOCKS = "blocks"
    RECORDS = "records"
    INTERVAL = "interval"
    BUFFER = "buffer"
    FLUSH = "flush"


MAX_BLOCKS = 100_000
"""A chunk with more would have an index that readers refuse: small blocks, or a text block at every hole of a log."""


@dataclass(frozen=True)
class RollLimits:
    """Bounds of one chunk: compressed bytes, records, seconds since its first record. None: no bound."""

    chunk_bytes: int
    chunk_records: int | None
    chunk_interval_seconds: float


@dataclass(frozen=True)
class OpenChunkFacts:
    """What a roll is decided on. Compressed bytes; times in seconds of one monotonic clock."""

    compressed_bytes: int
    num_records: int
    num_blocks: int
    opened_at: float


def roll_reason(chunk: OpenChunkFacts, limits: RollLimits, now: float) -> RollReason | None:
    """Why the chunk should end now, or None while it may go on."""
    if chunk.num_records == 0:
        return None
    if chunk.compressed_bytes >= limits.chunk_bytes:
        return RollReason.BYTES
    if chunk.num_blocks >= MAX_BLOCKS:
        return RollReason.BLOCKS
    if limits.chunk_records is not None and chunk.num_records >= limits.chunk_records:
        return RollReason.RECORDS
    if now - chunk.opened_at >= limits.chunk_interval_seconds:
        return RollReason.INTERVAL
    return None


def rows_until_full(num_records: int, limits: RollLimits) -> int | None:
    """How many more records the chunk takes before it must roll by count; None where it has no such bound."""
    return None if limits.chunk_records is None else max(0, limits.chunk_records - num_records)
