"""When a chunk ends."""

import pytest

from archiver.roll_policy import MAX_BLOCKS, OpenChunkFacts, RollLimits, RollReason, roll_reason, rows_until_full

LIMITS = RollLimits(chunk_bytes=1000, chunk_records=10, chunk_interval_seconds=60.0)
UNCOUNTED = RollLimits(chunk_bytes=1000, chunk_records=None, chunk_interval_seconds=60.0)


@pytest.mark.parametrize(
    ("num_bytes", "num_records", "num_blocks", "age", "reason"),
    [
        (0, 0, 0, 0, None),
        (0, 1, 0, 0, None),
        (999, 9, 1, 59.9, None),
        (1000, 9, 1, 0, RollReason.BYTES),
        (5000, 9, 1, 99, RollReason.BYTES),
        (999, 10, 1, 0, RollReason.RECORDS),
        (999, 9, 1, 60, RollReason.INTERVAL),
        (999, 9, MAX_BLOCKS - 1, 0, None),
        (999, 9, MAX_BLOCKS, 0, RollReason.BLOCKS),
        (5000, 0, 0, 99, None),
    ],
)
def test_the_first_limit_that_is_reached_ends_a_chunk(
    num_bytes: int, num_records: int, num_blocks: int, age: float, reason: RollReason | None
) -> None:
    assert roll_reason(OpenChunkFacts(num_bytes, num_records, num_blocks, 100.0), LIMITS, 100.0 + age) is reason


def test_without_a_record_limit_any_number_fits() -> None:
    assert roll_reason(OpenChunkFacts(1, 10**9, 1, 0.0), UNCOUNTED, 0.0) is None
    assert rows_until_full(10**9, UNCOUNTED) is None


@pytest.mark.parametrize(("num_records", "room"), [(0, 10), (9, 1), (10, 0), (11, 0)])
def test_room_for_records(num_records: int, room: int) -> None:
    assert rows_until_full(num_records, LIMITS) == room
