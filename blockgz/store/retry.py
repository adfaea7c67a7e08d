"""Waiting before another try at something that failed in passing."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    Retrying,
    retry_if_exception,
    sleep_using_event,
    stop_after_delay,
    stop_when_event_set,
    wait_random_exponential,
)

from blockgz.errors import AccessDenied, BlockgzError, ShuttingDown, StoreFull, StoreUnavailable

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 30.0
# The longest wait after a refusal, which a person has to end: more attempts would only fill logs.
LONGEST_REFUSAL_SECONDS = 300.0
# The longest wait while a grace period runs out.
HURRIED_SECONDS = 1.0
TRIES_OF_COMMANDS = 8
# Seconds that a store may be overloaded before a run that could not begin gives up.
BUSY_SECONDS = 60.0

T = TypeVar("T")


def backoff_seconds(attempt: int, cause: BlockgzError | str = "") -> float:
    """Return the longest wait after that many failures: it doubles up to LONGEST_BACKOFF_SECONDS."""
    # After a refusal and on a full store, up to LONGEST_REFUSAL_SECONDS.
    is_refusal = isinstance(cause, AccessDenied | StoreFull)
    doublings = min(attempt, 20)  # an outage of hours has more attempts than a float has exponents
    longest = LONGEST_REFUSAL_SECONDS if is_refusal else LONGEST_BACKOFF_SECONDS
    return min(longest, FIRST_BACKOFF_SECONDS * float(2**doublings))


@dataclass(frozen=True)
class StoreBackoff:
    """Waits of the whole process for its store, which `abandoned` cuts short."""

    store_url: str
    abandoned: threading.Event
    tries: int | None
    """Failures in a row before it gives up; None: no limit."""

    def __call__(self, attempt: int, cause: BlockgzError | str, hurried: threading.Event | None = None) -> None:
        """Wait with full jitter; raises ShuttingDown when the run ends in the meantime, StoreUnavailable after `tries`.

        `hurried` cuts this wait and later ones short, to HURRIED_SECONDS; who sets `abandoned` sets it as well.
        """
        if self.tries is not None and attempt > self.tries:
            raise StoreUnavailable(
                f"{self.store_url} failed {attempt} times in a row",
                why=str(cause),
                remedy="run it again once the store answers; it resumes where it stopped",
            )
        seconds = random.uniform(0, backoff_seconds(attempt, cause))
        if hurried is not None:
            seconds = min(seconds, HURRIED_SECONDS) if hurried.wait(seconds) else 0.0
        if self.abandoned.wait(seconds):
            raise ShuttingDown("the run ended before the store answered", why=str(cause))


def bounded_backoff(store_url: str) -> StoreBackoff:
    """Return the backoff of a command that ends by itself and is not stopped in order."""
    return StoreBackoff(store_url, threading.Event(), TRIES_OF_COMMANDS)


def retry_while_busy(action: Callable[[], T], ended: threading.Event, is_busy: Callable[[BaseException], bool]) -> T:
    """Return what `action` returns; repeat it while the store is busy, until BUSY_SECONDS are over or the run ends."""
    trials = Retrying(
        retry=retry_if_exception(is_busy),
        stop=stop_after_delay(BUSY_SECONDS) | stop_when_event_set(ended),
        wait=wait_random_exponential(FIRST_BACKOFF_SECONDS, max=LONGEST_BACKOFF_SECONDS),
        sleep=sleep_using_event(ended),
        reraise=True,
    )
    return trials(action)
