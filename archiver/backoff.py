"""Waiting before another try at something that failed in passing."""

import random
import threading
from dataclasses import dataclass

from .errors import ShuttingDown, StoreUnavailable

FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 30.0


def backoff_seconds(attempt: int) -> float:
    """The longest wait after that many failures: it doubles up to LONGEST_BACKOFF_SECONDS."""
    doublings = min(attempt, 20)  # an outage of hours has more attempts than a float has exponents
    return min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * float(2**doublings))


@dataclass(frozen=True)
class StoreBackoff:
    """Waits of the whole process for its store, which `abandoned` cuts short."""

    store_url: str
    abandoned: threading.Event
    tries: int | None
    """So many failures in a row are borne; None: any number."""

    def __call__(self, attempt: int, cause: str) -> None:
        """Wait with full jitter; raises ShuttingDown when the run ends meanwhile, StoreUnavailable after `tries`."""
        if self.tries is not None and attempt > self.tries:
            raise StoreUnavailable(f"{self.store_url} failed {attempt} times in a row", why=cause)
        if self.abandoned.wait(random.uniform(0, backoff_seconds(attempt))):
            raise ShuttingDown("the run ended before the store answered", why=cause)
