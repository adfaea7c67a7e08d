"""When an open chunk or block ends: pure decisions over sizes and times."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
import numpy.typing as npt


class RollReason(Enum):
    """Why a chunk ended; the value is what logs and metrics say."""

    BYTES = "bytes"
    BLOCKS = "blocks"
    GAPS = "gaps"
    RECORDS = "records"
    INTERVAL = "interval"
    IDLE = "idle"
    BUFFER = "buffer"
    MEMORY = "memory"
    FLUSH = "flush"


MAX_BLOCKS = 100_000
"""A chunk with more would have an index that readers refuse: small blocks, or a text block at every hole of a log."""
MAX_GAPS = 1000
"""A chunk with more ends: its index and the marker list each."""


BUFFER_SHARE_OF_OPEN_CHUNKS = 0.8
"""What open chunks leave of the buffer budget is for chunks that wait to be committed."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class RollLimits:
    """Bounds of one chunk: compressed bytes, records, seconds since its first record, ms of record time.

    None: no bound. A chunk that got no record for `chunk_idle_seconds` ends too, unless it is tiny: a partition with a
    record now and then gets a chunk every `chunk_interval_seconds`, not one a record.
    """

    chunk_bytes: int
    chunk_interval_seconds: float
    chunk_records: int | None = None
    chunk_idle_seconds: float | None = None
    chunk_span_ms: int | None = None
    tiny_bytes: int = 1024 * 1024
    """Encoded bytes below which idling ends no chunk."""


@dataclass(frozen=True)
class OpenChunkFacts:
    """What a roll is decided on. Bytes; times in seconds of one monotonic clock."""

    compressed_bytes: int
    encoded_bytes: int
    num_records: int
    num_blocks: int
    num_gaps: int
    opened_at: float
    last_record_at: float


def roll_reason(chunk: OpenChunkFacts, limits: RollLimits, now: float) -> RollReason | None:
    """Why the chunk should end now, or None while it may stay open."""
    if chunk.num_records == 0:
        return None
    is_long_idle = limits.chunk_idle_seconds is not None and now - chunk.last_record_at >= limits.chunk_idle_seconds
    reached = {
        RollReason.BYTES: chunk.compressed_bytes >= limits.chunk_bytes,
        RollReason.BLOCKS: chunk.num_blocks >= MAX_BLOCKS,
        RollReason.GAPS: chunk.num_gaps >= MAX_GAPS,
        RollReason.RECORDS: limits.chunk_records is not None and chunk.num_records >= limits.chunk_records,
        RollReason.INTERVAL: now - chunk.opened_at >= limits.chunk_interval_seconds,
        RollReason.IDLE: is_long_idle and chunk.encoded_bytes >= limits.tiny_bytes,
    }
    return next((reason for reason, is_reached in reached.items() if is_reached), None)


def rows_that_fit(
    timestamps: npt.NDArray[np.int64], num_records: int, first_timestamp: int | None, limits: RollLimits
) -> int:
    """How many of the next records the chunk takes before it must end by count or by record time; may be 0.

    `timestamps` in ms are those of the records in order; `first_timestamp` is the chunk's, None while it is empty.
    """
    fitting = len(timestamps)
    if limits.chunk_records is not None:
        fitting = min(fitting, max(0, limits.chunk_records - num_records))
    if limits.chunk_span_ms is not None and fitting:
        start = int(timestamps[0]) if first_timestamp is None else first_timestamp
        beyond = np.flatnonzero(timestamps[:fitting] - start >= limits.chunk_span_ms)
        fitting = int(beyond[0]) if len(beyond) else fitting
    return fitting


def chunks_to_end(open_bytes: Mapping[K, int], committing: Mapping[K, bool], budget: int) -> list[K]:
    """Which open chunks should end early to free the buffer, the largest first.

    `open_bytes` are theirs in the buffer, `committing` says for which an earlier one waits to be committed. Where those
    that wait fill the budget, ending more of them frees nothing: then it is on the store.
    """
    excess = sum(open_bytes.values()) - budget * BUFFER_SHARE_OF_OPEN_CHUNKS
    ending: list[K] = []
    for key in sorted(open_bytes, key=lambda key: -open_bytes[key]):
        if excess < 0 or not open_bytes[key]:
            break
        if not committing[key]:
            ending.append(key)
            excess -= open_bytes[key]
    return ending


def blocks_to_end(open_block_bytes: Mapping[K, int], budget: int) -> list[K]:
    """Which open blocks should end early so that the others fit into `budget`, the largest first."""
    excess = sum(open_block_bytes.values()) - budget
    ending: list[K] = []
    for key in sorted(open_block_bytes, key=lambda key: -open_block_bytes[key]):
        if excess <= 0:
            break
        ending.append(key)
        excess -= open_block_bytes[key]
    return ending
