from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from archiver.ingest.backpressure import (
    LEAST_SHARE_BYTES,
    STALL_SECONDS,
    Fetching,
    FetchMode,
    exceeds,
    mode_after,
    share_of,
)
from archiver.ingest.kafka_source import EndReached, Event, Partition
from archiver.ingest.partition_state import ArchivingState
from archiver.logs import LogEvent

PARTITION, OTHER = ("orders", 3), ("orders", 4)
LOADS: Any = {PARTITION: None, OTHER: None}
MIB = 1024**2


def test_shares_shrink_with_the_number_of_partitions_down_to_a_floor() -> None:
    shares = [share_of(16 * MIB, partitions) for partitions in (0, 1, 2, 8, 10_000)]
    assert shares == [16 * MIB, 16 * MIB, 2 * MIB, MIB // 2, LEAST_SHARE_BYTES]


def holding(waiting_bytes: int, buffer_bytes: int, *, is_blocked: bool, is_committing: bool) -> ArchivingState:
    values = {"inbox_bytes": waiting_bytes, "buffered_bytes": buffer_bytes, "is_blocked": is_blocked}
    return cast(ArchivingState, SimpleNamespace(**values, pending=[None] if is_committing else []))


@pytest.mark.parametrize(
    ("state", "buffer_is_tight", "does"),
    [
        (holding(101, 0, is_blocked=True, is_committing=True), False, True),
        (holding(100, 0, is_blocked=True, is_committing=True), False, False),
        (holding(10**6, 0, is_blocked=False, is_committing=True), False, False),
        (holding(0, 1001, is_blocked=False, is_committing=True), True, True),
        (holding(0, 1001, is_blocked=False, is_committing=True), False, False),
        (holding(0, 10**6, is_blocked=False, is_committing=False), True, False),
    ],
    ids=[
        "blocked with more than its share",
        "blocked with its share",
        "waits for processor time only",
        "a commit under way while the buffer is tight",
        "the buffer has space",
        "an open chunk can be ended",
    ],
)
def test_a_partition_exceeds_its_share_only_where_the_store_holds_it_up(
    state: ArchivingState, buffer_is_tight: bool, does: bool
) -> None:
    assert exceeds(state, 100, 1000 if buffer_is_tight else None) is does


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
        self.next_turns = (set(), set())
        self.events: list[Event] = []

    def have_capacity(self, _: object) -> bool:
        return self.has_capacity

    def turns(self, _: object, paused: Collection[Partition]) -> tuple[set[Partition], set[Partition]]:
        self.paused = set(paused)
        turns, self.next_turns = self.next_turns, (set(), set())
        return turns

    def consume(self, positions: Mapping[Partition, int]) -> None:
        self.calls.append(f"consume {dict(positions)}")

    def poll(self) -> list[Event]:
        self.calls.append("poll")
        return self.events

    def pause(self, partitions: Collection[Partition]) -> None:
        self._note("pause", partitions)

    def resume(self, partitions: Collection[Partition]) -> None:
        self._note("resume", partitions)

    def release(self, partitions: Collection[Partition]) -> None:
        self._note("release", partitions)

    def _note(self, what: str, partitions: Collection[Partition]) -> None:
        if partitions:
            self.calls.append(f"{what} {','.join(str(number) for _, number in sorted(partitions))}")

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
        fetching.poll(LOADS)
        return journal.since()

    assert step(0) == ["connect", "poll"]
    journal.has_capacity = False
    assert step(0.1) == ["rest"]
    assert step(STALL_SECONDS - 0.2) == ["rest"] and not fetching.is_paused
    assert step(0.1) == ["pause 3,4", "poll"] and fetching.is_paused
    assert step(100) == ["poll"], "the group hears of this member"
    fetching.consume({PARTITION: 5})
    assert journal.since() == ["consume {('orders', 3): 5}", "pause 3"], "what is new is paused as well"
    journal.has_capacity = True
    assert step(0.1) == ["resume 3,4", "poll"] and not fetching.is_paused
    journal.has_capacity = False
    assert step(0.1) == ["rest"], "the stall counts from the last capacity"


def test_another_consumer_starts_unpaused() -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]
    journal.has_capacity = False
    journal.now += STALL_SECONDS
    fetching.poll(LOADS)
    fetching.reconnect()
    assert not fetching.is_paused
    journal.since()
    fetching.poll(LOADS)
    assert journal.since() == ["pause 3,4", "poll"]


def test_a_partition_over_its_share_is_paused_alone_until_it_is_not() -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]

    def step(pause: set[Partition] = frozenset(), resume: set[Partition] = frozenset()) -> list[str]:  # type: ignore[assignment]
        journal.since()
        journal.now += 1
        journal.next_turns = (set(pause), set(resume))
        fetching.poll(LOADS)
        return journal.since()

    assert step() == ["connect", "poll"], "the group is known by then"
    assert step(pause={PARTITION}) == ["pause 3", "poll"], "the others are fetched"
    step()
    assert journal.paused == {PARTITION}
    assert fetching.ages(PARTITION, journal.now + 2) == (None, 3.0)
    assert fetching.ages(OTHER, journal.now) == (None, None)
    journal.has_capacity = False
    journal.now += STALL_SECONDS
    assert step() == ["pause 3,4", "poll"]
    journal.has_capacity = True
    assert step() == ["resume 4", "poll"], "only the one that holds too much stays paused"
    assert step(resume={PARTITION}) == ["resume 3", "poll"]
    assert fetching.ages(PARTITION, journal.now)[1] is None


@pytest.mark.parametrize("way", ["released", "taken away"])
def test_a_partition_that_is_consumed_again_is_not_paused(way: str) -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]
    journal.next_turns = ({PARTITION}, set())
    fetching.poll(LOADS)
    if way == "released":
        fetching.release([PARTITION])
    else:
        fetching.poll({OTHER: LOADS[OTHER]})
    fetching.consume({PARTITION: 7})
    journal.since()
    fetching.poll(LOADS)
    assert journal.paused == set() and journal.since() == ["poll"]


def test_the_last_fetch_is_known_of_each_partition() -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]
    fetching.consume({PARTITION: 5, OTHER: 5})
    journal.now += 10
    journal.events = [EndReached(PARTITION, 5)]
    fetching.poll(LOADS)
    assert [fetching.ages(each, journal.now + 1)[0] for each in (PARTITION, OTHER)] == [1.0, 11.0]


def test_a_pause_that_lasts_is_logged_once_and_so_is_its_end(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal()
    fetching = Fetching(journal.connect, journal, lambda: journal.now, journal.rest)  # type: ignore[arg-type]

    def logged(seconds: float, turns: tuple[set[Partition], set[Partition]] | None = None) -> list[Any]:
        caplog.clear()
        journal.now += seconds
        journal.next_turns = turns or (set(), set())
        fetching.poll(LOADS)
        return [(line.msg["event"], line.msg["partition"]) for line in caplog.records if isinstance(line.msg, dict)]

    with caplog.at_level("INFO", "blockgz.archiver"):
        assert not logged(0, ({PARTITION, OTHER}, set()))
        assert not logged(STALL_SECONDS - 0.1)
        assert not logged(0, (set(), {OTHER})), "a pause of a moment is not worth a line"
        assert logged(0.1) == [(LogEvent.PARTITION_PAUSED, 3)]
        assert not logged(1)
        assert logged(1, (set(), {PARTITION})) == [(LogEvent.PARTITION_RESUMED, 3)]
