from collections.abc import Mapping
from typing import Any

import pytest

from archiver.ingest.backpressure import STALL_SECONDS, Fetching, FetchMode, mode_after
from archiver.ingest.kafka_source import Event, Partition

PARTITION = ("orders", 3)


@pytest.mark.parametrize(
    ("before", "has_capacity", "stalled_seconds", "after"),
    [
        (FetchMode.FETCH, True, 0.0, FetchMode.FETCH),
        (FetchMode.FETCH, False, 0.1, FetchMode.WAIT),
        (FetchMode.WAIT, False, STALL_SECONDS - 0.1, FetchMode.WAIT),
        (FetchMode.WAIT, True, 0.0, FetchMode.FETCH),
        (FetchMode.WAIT, False, STALL_SECONDS, FetchMode.POLL_PAUSED),
        (FetchMode.POLL_PAUSED, False, 1000.0, FetchMode.POLL_PAUSED),
        (FetchMode.POLL_PAUSED, True, 0.0, FetchMode.FETCH),
    ],
)
def test_mode(before: FetchMode, has_capacity: bool, stalled_seconds: float, after: FetchMode) -> None:
    assert mode_after(before, has_capacity, stalled_seconds) is after


class Journal:
    """A source, budgets and a clock that note what is asked of them."""

    buffered_bytes = 7

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now = 1000.0
        self.has_capacity = True

    def have_capacity(self, _: object) -> bool:
        return self.has_capacity

    def consume(self, positions: Mapping[Partition, int]) -> None:
        self.calls.append(f"consume {dict(positions)}")

    def poll(self) -> list[Event]:
        self.calls.append("poll")
        return []

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def rest(self) -> None:
        self.calls.append("rest")

    def connect(self) -> Any:
        self.calls.append("connect")
        return self

    def since(self) -> list[str]:
        """The calls since this was asked last."""
        calls, self.calls = self.calls, []
        return calls


def test_without_capacity_the_consumer_waits_then_is_polled_paused_until_there_is_some() -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]

    def step(seconds: float) -> list[str]:
        journal.now += seconds
        fetching.poll(())
        return journal.since()

    assert step(0) == ["connect", "poll"]
    journal.has_capacity = False
    assert step(0.1) == ["rest"]
    assert step(STALL_SECONDS - 0.2) == ["rest"] and not fetching.is_paused
    assert step(0.1) == ["pause", "poll"] and fetching.is_paused
    assert step(100) == ["poll"], "the group hears of this member"
    fetching.consume({PARTITION: 5})
    assert journal.since() == ["consume {('orders', 3): 5}", "pause"], "what is new is paused as well"
    journal.has_capacity = True
    assert step(0.1) == ["resume", "poll"] and not fetching.is_paused
    journal.has_capacity = False
    assert step(0.1) == ["rest"], "the stall counts from the last capacity"


def test_another_consumer_starts_unpaused() -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]
    journal.has_capacity = False
    journal.now += STALL_SECONDS
    fetching.poll(())
    fetching.reconnect()
    assert not fetching.is_paused
    journal.since()
    fetching.poll(())
    assert journal.since() == ["pause", "poll"]
