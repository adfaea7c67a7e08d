"""When a chunk ends."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from archiver.ingest.chunk_builder import (
    MAX_BLOCKS,
    MAX_GAPS,
    RollLimits,
    is_due,
    largest,
    rows_that_fit,
)

LIMITS = RollLimits(chunk_bytes=1000, chunk_records=10, chunk_interval_seconds=60.0)
CHUNK = {
    "compressed_bytes": 1,
    "encoded_bytes": 1,
    "num_records": 1,
    "num_blocks": 0,
    "num_gaps": 0,
    "opened_at": 100.0,
    "last_record_at": 100.0,
}


def ends(limits: RollLimits, now: float, **facts: Any) -> bool:
    chunk: Any = SimpleNamespace(**CHUNK | facts)
    return is_due(chunk, limits, now)


@pytest.mark.parametrize(
    ("facts", "age", "is_ended"),
    [
        ({"num_records": 0, "compressed_bytes": 5000}, 99, False),
        ({}, 59.9, False),
        ({"compressed_bytes": 999, "num_records": 9}, 0, False),
        ({"compressed_bytes": 1000}, 0, True),
        ({"compressed_bytes": 5000}, 99, True),
        ({"num_records": 10}, 0, True),
        ({}, 60, True),
        ({"num_blocks": MAX_BLOCKS - 1}, 0, False),
        ({"num_blocks": MAX_BLOCKS}, 0, True),
        ({"num_gaps": MAX_GAPS - 1}, 0, False),
        ({"num_gaps": MAX_GAPS}, 0, True),
        ({"num_gaps": MAX_GAPS, "num_records": 0}, 0, False),
    ],
)
def test_the_first_limit_that_is_reached_ends_a_chunk(facts: dict[str, Any], age: float, is_ended: bool) -> None:
    assert ends(LIMITS, 100.0 + age, **facts) is is_ended


@pytest.mark.parametrize(
    ("encoded_bytes", "idle_for", "is_ended"), [(500, 10, True), (500, 9.9, False), (499, 59, False)]
)
def test_idling_ends_no_tiny_chunk(encoded_bytes: int, idle_for: float, is_ended: bool) -> None:
    limits = replace(LIMITS, chunk_idle_seconds=10.0, tiny_bytes=500)
    assert ends(limits, 100.0 + idle_for, encoded_bytes=encoded_bytes) is is_ended


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
    assert "".join(largest(open_bytes, 80, committing)) == ending
