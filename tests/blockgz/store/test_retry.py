import threading

import pytest

from blockgz.errors import AccessDenied, ShuttingDown, StoreBusy, StoreFull, StoreUnavailable
from blockgz.store.retry import (
    FIRST_BACKOFF_SECONDS,
    HURRIED_SECONDS,
    LONGEST_BACKOFF_SECONDS,
    LONGEST_REFUSAL_SECONDS,
    TRIES_OF_COMMANDS,
    StoreBackoff,
    backoff_seconds,
    bounded_backoff,
    retry_while_busy,
)
from index_format.errors import BlockgzError


def test_waits_double_up_to_the_longest_however_long_an_outage_lasts() -> None:
    waits = [backoff_seconds(attempt) for attempt in (0, 1, 2, 7, 8, 10**6)]
    assert waits[:4] == [FIRST_BACKOFF_SECONDS * factor for factor in (1, 2, 4, 128)]
    assert waits[4:] == [LONGEST_BACKOFF_SECONDS] * 2


@pytest.mark.parametrize("cause", [AccessDenied("403"), StoreFull("507")])
def test_what_waits_for_a_person_is_tried_again_every_few_minutes(cause: BlockgzError) -> None:
    assert backoff_seconds(3, cause) == backoff_seconds(3, "no answer") == 8 * FIRST_BACKOFF_SECONDS
    assert backoff_seconds(10**6, cause) == LONGEST_REFUSAL_SECONDS >= 120


def test_a_run_that_ends_cuts_a_wait_short() -> None:
    abandoned = threading.Event()
    abandoned.set()
    with pytest.raises(ShuttingDown) as caught:
        StoreBackoff("s3://bucket", abandoned, None)(10**6, "no answer")
    assert caught.value.why == "no answer"


def test_who_has_little_time_left_tries_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockgz.store.retry.random.uniform", lambda _, longest: longest)
    hurried, waits = threading.Event(), list[float]()
    waiting = threading.Thread(
        target=lambda: StoreBackoff("s3://bucket", NotAbandoned(waits), None)(10**6, "no answer", hurried)
    )
    waiting.start()
    hurried.set()
    waiting.join(5)
    assert not waiting.is_alive() and waits == [HURRIED_SECONDS]


class NotAbandoned(threading.Event):
    """Notes how long it is waited for, and does not take that long."""

    def __init__(self, waits: list[float]) -> None:
        super().__init__()
        self.waits = waits

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return False


def test_a_bounded_run_gives_up() -> None:
    with pytest.raises(StoreUnavailable, match="s3://bucket failed 31 times in a row"):
        StoreBackoff("s3://bucket", threading.Event(), 30)(31, "no answer")


def test_a_command_gives_up_and_says_that_it_can_be_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("blockgz.store.retry.random.uniform", lambda *_: 0.0)
    back_off = bounded_backoff("s3://bucket")
    for attempt in range(1, TRIES_OF_COMMANDS + 1):
        back_off(attempt, "no answer")
    with pytest.raises(StoreUnavailable, match="s3://bucket failed 9 times in a row") as caught:
        back_off(TRIES_OF_COMMANDS + 1, "no answer")
    assert (caught.value.why, "run it again" in caught.value.remedy) == ("no answer", True)


def is_busy(error: BaseException) -> bool:
    return isinstance(error, StoreBusy)


class BusyStore:
    """Says that it is busy so many times."""

    def __init__(self, times: int, error: StoreUnavailable) -> None:
        self.times = times
        self.error = error
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        if self.asked <= self.times:
            raise self.error
        return "answer"


def test_a_store_that_is_busy_at_the_start_is_asked_again() -> None:
    store = BusyStore(2, StoreBusy("s3://bucket answered 429"))
    assert retry_while_busy(store, threading.Event(), is_busy) == "answer"
    assert store.asked == 3


def test_a_store_that_is_not_there_is_reported_at_once() -> None:
    store = BusyStore(1, StoreUnavailable("s3://bucket does not answer"))
    with pytest.raises(StoreUnavailable, match="does not answer"):
        retry_while_busy(store, threading.Event(), is_busy)
    assert store.asked == 1


def test_an_order_to_end_is_heeded_while_the_store_is_busy() -> None:
    ended = threading.Event()
    ended.set()
    with pytest.raises(StoreBusy):
        retry_while_busy(BusyStore(10**6, StoreBusy("s3://bucket answered 429")), ended, is_busy)
