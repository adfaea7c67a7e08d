"""When a chunk ends."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from archiver.ingest.chunk_builder import (
    MAX_BLOCKS,
    MAX_GAPS,
    OpenChunkFacts,
    RollLimits,
    RollReason,
    chunks_to_end,
    roll_reason,
    rows_that_fit,
)

LIMITS = RollLimits(chunk_bytes=1000, chunk_records=10, chunk_interval_seconds=60.0)
CHUNK = OpenChunkFacts(
    compressed_bytes=1, encoded_bytes=1, num_records=1, num_blocks=0, num_gaps=0, opened_at=100.0, last_record_at=100.0
)


@pytest.mark.parametrize(
    ("facts", "age", "reason"),
    [
        ({"num_records": 0, "compressed_bytes": 5000}, 99, None),
        ({}, 59.9, None),
        ({"compressed_bytes": 999, "num_records": 9}, 0, None),
        ({"compressed_bytes": 1000}, 0, RollReason.BYTES),
        ({"compressed_bytes": 5000}, 99, RollReason.BYTES),
        ({"num_records": 10}, 0, RollReason.RECORDS),
        ({}, 60, RollReason.INTERVAL),
        ({"num_blocks": MAX_BLOCKS - 1}, 0, None),
        ({"num_blocks": MAX_BLOCKS}, 0, RollReason.BLOCKS),
        ({"num_gaps": MAX_GAPS - 1}, 0, None),
        ({"num_gaps": MAX_GAPS}, 0, RollReason.GAPS),
        ({"num_gaps": MAX_GAPS, "num_records": 0}, 0, None),
    ],
)
def test_the_first_limit_that_is_reached_ends_a_chunk(
    facts: dict[str, Any], age: float, reason: RollReason | None
) -> None:
    assert roll_reason(replace(CHUNK, **facts), LIMITS, 100.0 + age) is reason


@pytest.mark.parametrize(
    ("encoded_bytes", "idle_for", "reason"), [(500, 10, RollReason.IDLE), (500, 9.9, None), (499, 59, None)]
)
def test_idling_ends_no_tiny_chunk(encoded_bytes: int, idle_for: float, reason: RollReason | None) -> None:
    limits = replace(LIMITS, chunk_idle_seconds=10.0, tiny_bytes=500)
    assert roll_reason(replace(CHUNK, encoded_bytes=encoded_bytes), limits, 100.0 + idle_for) is reason


@pytest.mark.parametrize(("num_records", "capacity"), [(0, 10), (9, 1), (10, 0), (11, 0)])
def test_capacity_for_records(num_records: int, capacity: int) -> None:
    assert rows_that_fit(np.arange(50), num_records, 0, LIMITS) == capacity


def test_without_limits_all_rows_fit() -> None:
    assert rows_that_fit(np.arange(50), 10**9, 0, replace(LIMITS, chunk_records=None)) == 50


@pytest.mark.parametrize(
    ("timestamps", "first", "fitting"),
    [
        ([5, 50, 104, 105, 3], None, 3),
        ([5, 50, 104, 105, 3], 5, 3),
        ([5, 50], None, 2),
        ([100, 50], 0, 0),
        ([99, -1, 100], 0, 2),
    ],
)
def test_a_chunk_ends_before_the_record_that_would_stretch_it_beyond_its_span(
    timestamps: list[int], first: int | None, fitting: int
) -> None:
    limits = replace(LIMITS, chunk_records=None, chunk_span_ms=100)
    assert rows_that_fit(np.array(timestamps), 1, first, limits) == fitting


@pytest.mark.parametrize(
    ("open_bytes", "committing", "ending"),
    [
        ({}, "", ""),
        ({"a": 79}, "", ""),
        ({"a": 80}, "", "a"),
        ({"a": 30, "b": 50, "c": 10}, "", "b"),
        ({"a": 30, "b": 50, "c": 10}, "b", "a"),
        ({"a": 30, "b": 50, "c": 10}, "abc", ""),
        ({"a": 20, "b": 15, "c": 70}, "c", "ab"),
        (dict.fromkeys("abcdefghij", 9), "", "ab"),
        ({"a": 0, "b": 90}, "b", ""),
    ],
)
def test_open_chunks_that_fill_the_buffer_end_largest_first(
    open_bytes: dict[str, int], committing: str, ending: str
) -> None:
    waiting = {key: key in committing for key in open_bytes}
    assert "".join(chunks_to_end(open_bytes, waiting, 100)) == ending
