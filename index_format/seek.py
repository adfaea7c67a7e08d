"""Turning an offset or a timestamp into the object and the block that hold it.

The same three functions serve every level: catalog references, chunk entries and blocks are all spans in offset
order. Timestamps may go backwards inside a log, so a time seek asks for the first span whose maximum reaches the time:
that is the position at which the running maximum crosses it, and Kafka's own answer to offsetsForTimes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

from index_format.chunk_index import BlockEntry, Gap
from index_format.marker import Span

S = TypeVar("S", bound=Span)


class TimeBounded(Protocol):
    """Bounds (ms, inclusive) of records' timestamps: a catalog reference, a chunk entry or a block."""

    @property
    def min_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...


def span_at_or_after(spans: Sequence[S], offset: int) -> S | None:
    """Return the first span that ends above `offset`: it holds the offset, or the first record after it."""
    position = bisect_right(spans, offset, key=lambda span: span.next_offset)
    return spans[position] if position < len(spans) else None


def span_for_time(spans: Sequence[S], timestamp: int) -> S | None:
    """Return the first span with a record at or after `timestamp` (ms)."""
    return next((span for span in spans if span.max_timestamp >= timestamp), None)


def block_at_or_after(blocks: Sequence[BlockEntry], offset: int) -> int | None:
    """Return the number of the first block with a record at or above `offset`."""
    position = bisect_right(blocks, offset - 1, key=lambda block: block.last_record_offset)
    return position if position < len(blocks) else None


def block_for_time(blocks: Sequence[BlockEntry], timestamp: int) -> int | None:
    """Return the number of the first block with a record at or after `timestamp` (ms)."""
    return next((number for number, block in enumerate(blocks) if block.max_timestamp >= timestamp), None)


def blocks_between(blocks: Sequence[BlockEntry], start: int, end: int) -> range:
    """Return the numbers of the blocks that may hold records of offsets [start, end)."""
    first = bisect_right(blocks, start - 1, key=lambda block: block.last_record_offset)
    last = bisect_right(blocks, end - 1, key=lambda block: block.first_record_offset)
    return range(first, max(first, last))


def merged_ranges(blocks: Sequence[BlockEntry], max_bytes: int) -> list[range]:
    """Group consecutive blocks, so that each group is one range read of at most `max_bytes`, or of one block."""
    groups: list[range] = []
    start = 0
    for number, (block, following) in enumerate(pairwise([*blocks, None])):
        assert block is not None
        too_long = following is not None and following.byte_end - blocks[start].byte_offset > max_bytes
        if following is None or too_long or following.byte_offset != block.byte_end:
            groups.append(range(start, number + 1))
            start = number + 1
    return groups


def range_groups(blocks: Sequence[BlockEntry], numbers: Sequence[int], max_bytes: int) -> list[range]:
    """Group some blocks, by their rising numbers, into range reads; blocks between them are never read along."""
    groups = merged_ranges([blocks[number] for number in numbers], max_bytes)
    return [range(numbers[group.start], numbers[group.stop - 1] + 1) for group in groups]


def gap_at(gaps: Sequence[Gap], offset: int) -> Gap | None:
    return next((gap for gap in gaps if offset in gap), None)
