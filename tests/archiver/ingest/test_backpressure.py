from collections.abc import Mapping
from typing import Any

import pytest

from archiver.ingest.backpressure import STALL_SECONDS, Fetching, Flow, flow_after
from archiver.ingest.kafka_source import Event, Partition

PARTITION = ("orders", 3)


@pytest.mark.parametrize(
    ("before", "has_room", "stalled_seconds", "after"),
    [
        (Flow.FETCH, True, 0.0, Flow.FETCH),
        (Flow.FETCH, False, 0.1, Flow.WAIT),
        (Flow.WAIT, False, STALL_SECONDS - 0.1, Flow.WAIT),
        (Flow.WAIT, True, 0.0, Flow.FETCH),
        (Flow.WAIT, False, STALL_SECONDS, Flow.POLL_PAUSED),
        (Flow.POLL_PAUSED, False, 1000.0, Flow.POLL_PAUSED),
        (Flow.POLL_PAUSED, True, 0.0, Flow.FETCH),
    ],
)
def test_flow(before: Flow, has_room: bool, stalled_seconds: float, after: Flow) -> None:
    assert flow_after(before, has_room, stalled_seconds) is after


class Journal:
    """A source, a room and a clock that note what is asked of them."""

    buffered_bytes = 7

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.now = 1000.0
        self.has_room = True

    def is_left(self, _: object) -> bool:
        return self.has_room

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


def test_without_room_the_consumer_waits_then_is_polled_paused_until_there_is_room() -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]

    def step(seconds: float) -> list[str]:
        journal.now += seconds
        fetching.poll(())
        return journal.since()

    assert step(0) == ["connect", "poll"]
    journal.has_room = False
    assert step(0.1) == ["rest"]
    assert step(STALL_SECONDS - 0.2) == ["rest"] and not fetching.is_paused
    assert step(0.1) == ["pause", "poll"] and fetching.is_paused
    assert step(100) == ["poll"], "the group hears of this member"
    fetching.consume({PARTITION: 5})
    assert journal.since() == ["consume {('orders', 3): 5}", "pause"], "what is new is paused as well"
    journal.has_room = True
    assert step(0.1) == ["resume", "poll"] and not fetching.is_paused
    journal.has_room = False
    assert step(0.1) == ["rest"], "the stall counts from the last room"


def test_another_consumer_starts_unpaused() -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]
    journal.has_room = False
    journal.now += STALL_SECONDS
    fetching.poll(())
    fetching.connect_anew()
    assert not fetching.is_paused
    journal.since()
    fetching.poll(())
    assert journal.since() == ["pause", "poll"]
