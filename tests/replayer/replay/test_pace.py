"""Paces, with the time as an argument."""

import asyncio
from collections.abc import Callable

import pytest

from blockgz.errors import UsageError
from index_format.records import batch_from_records
from replayer.replay.pace import (
    CREDIT_SECONDS,
    TICK_SECONDS,
    Commands,
    Pace,
    SharedRate,
    make_pace,
    parse_rate,
    parse_speed,
    record_bytes,
)
from tests.support.archives import records


def seconds_for(pace: Pace, count: int, timestamps: list[int] | None = None) -> float:
    """How long it takes until all have gone, by a clock that jumps to when it is worth asking again."""
    batch = batch_from_records(records(range(count), timestamps=timestamps))
    elapsed = 0.0
    for _ in range(100_000):
        due = pace.due(batch, elapsed)
        assert due.rows <= batch.num_rows
        if due.rows:
            pace.sent(due.rows, due.rows * 100, elapsed)
            batch = batch.slice(due.rows)
            if not batch.num_rows:
                return elapsed
        else:
            assert due.seconds > 0
            elapsed += due.seconds
    raise AssertionError("it takes for ever")


@pytest.mark.parametrize(
    ("rate", "count", "seconds"),
    [("1000/s", 500, 0.5), ("2/s", 10, 5.0), ("0.5/s", 3, 6.0), ("1000000/s", 100, TICK_SECONDS), ("1/s", 1, 1.0)],
)
def test_records_a_second(rate: str, count: int, seconds: float) -> None:
    assert seconds_for(parse_rate(rate), count) == pytest.approx(seconds, abs=2 * TICK_SECONDS)


def test_bytes_a_second() -> None:
    assert seconds_for(parse_rate("10kB/s"), 1000) == pytest.approx(10, abs=0.2)


def test_a_record_larger_than_the_rate_goes_whole() -> None:
    assert seconds_for(parse_rate("10B/s"), 3) == pytest.approx(20, abs=1)


def test_a_stall_is_not_made_up_for_without_end() -> None:
    pace = parse_rate("100/s")
    batch = batch_from_records(records(range(1000)))
    pace.due(batch, 0.0)
    assert pace.due(batch, 3600.0).rows == 100 * CREDIT_SECONDS


@pytest.mark.parametrize("rate", ["1000/s", "10kB/s"])
def test_replays_that_share_a_rate_get_no_more_together(rate: str) -> None:
    now = 0.0
    shared = SharedRate(parse_rate(rate), lambda: now)
    batch = batch_from_records(records(range(100)))
    most = 1000 if rate == "1000/s" else 10_000 / record_bytes(batch).mean()
    gone = 0
    for tick in range(1001):
        now = tick / 100
        for replay in range(8):
            due = shared.due(batch, 5.0 * replay)
            shared.sent(due.rows, due.rows, 5.0 * replay)
            gone += due.rows
    assert 9 * most < gone < 11 * most + 100


@pytest.mark.parametrize(("speed", "seconds"), [("1x", 9.0), ("10x", 0.9), ("0.5x", 18.0)])
def test_records_follow_as_they_once_did(speed: str, seconds: float) -> None:
    times = [1_760_000_000_000 + 1000 * number for number in range(10)]
    assert seconds_for(parse_speed(speed), 10, times) == pytest.approx(seconds, abs=2 * TICK_SECONDS)


def test_times_that_go_back_or_are_missing_hold_nothing_up() -> None:
    assert seconds_for(parse_speed("1x"), 6, [-1, 5000, 3000, -1, 7000, 6000]) == pytest.approx(2, abs=0.1)


def test_both_hold() -> None:
    times = [1000 * number for number in range(10)]
    assert seconds_for(make_pace("1/s", "10x"), 10, times) == pytest.approx(10, abs=0.2)
    assert seconds_for(make_pace("100/s", "1x"), 10, times) == pytest.approx(9, abs=0.2)
    assert make_pace("100/s", "1x").by_time
    assert not make_pace("100/s", None).by_time


@pytest.mark.parametrize("text", ["5000", "0/s", "5000/m", "20mb/s", "-1/s", "/s", "1e3/s", "٣/s"])
def test_what_is_not_a_rate(text: str) -> None:
    with pytest.raises(UsageError, match="is not a rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1", "0x", "x", "-1x", "1 x"])
def test_what_is_not_a_speed(text: str) -> None:
    with pytest.raises(UsageError, match="is not a speed"):
        parse_speed(text)


@pytest.mark.parametrize(
    ("rate", "speed", "seconds"),
    [("100/s", None, 40), ("2kB/s", None, 200), (None, "2x", 30), ("100/s", "1x", 60), (None, None, 0.015)],
)
def test_how_long_a_replay_takes_at_least(rate: str | None, speed: str | None, seconds: float) -> None:
    assert make_pace(rate, speed).seconds(4_000, 400_000, 60_000) == pytest.approx(seconds)


def test_lanes_share_one_rate() -> None:
    pace = make_pace("1000/s", "1000000x")
    batch = batch_from_records(records(range(1000)))
    sent = 0
    for tick in range(1, 41):
        for _lane in range(10):
            due = pace.due(batch, tick * TICK_SECONDS)
            pace.sent(due.rows, 0, tick * TICK_SECONDS)
            sent += due.rows
    assert sent == pytest.approx(1000 * 40 * TICK_SECONDS, rel=0.05)


@pytest.mark.slow
def test_another_rate_begins_with_nothing_to_catch_up_with() -> None:
    pace = make_pace("1/s", None)
    batch = batch_from_records(records(range(100_000)))
    pace.due(batch, 0.0)
    pace.limit(parse_rate("1000/s"))
    assert pace.due(batch, 500.0).rows == 0
    assert pace.due(batch, 500.5).rows == 500
    pace.limit(None)
    assert pace.due(batch, 500.5).rows == 100_000


def test_the_speed_stays_when_the_rate_changes() -> None:
    times = [1000 * number for number in range(10)]
    pace = make_pace("1/s", "10x")
    pace.limit(None)
    assert pace.by_time
    assert seconds_for(pace, 10, times) == pytest.approx(0.9, abs=0.2)


@pytest.mark.parametrize("told", [Commands.resume, Commands.end, Commands.wake])
def test_what_was_told_before_the_wait_ends_it(told: Callable[[Commands], None]) -> None:
    """A commit may lie between the look at `paused` and the wait."""

    async def waited() -> bool:
        commands = Commands()
        commands.pause()
        await commands.wait(0.0)
        told(commands)
        return await asyncio.wait_for(commands.wait(None), 10) is None

    assert asyncio.run(waited())
