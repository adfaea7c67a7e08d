"""Limits of maintenance: bytes a second, and no step after the process is to end."""

import threading
import time
from collections.abc import Callable
from typing import Any

from archiver.commit.operations import BackOff, Compute, Driver, GetAll, Operation, PutIfAbsent
from archiver.maintain.rewrite.chunks import RangeStore
from blockgz.errors import ShuttingDown, UsageError
from blockgz.store.retry import bounded_backoff
from blockgz.store.writer import Store, ToolStore


class Throttle:
    """A limit of bytes a second, for one thread."""

    def __init__(
        self, bytes_per_second: int, ending: threading.Event, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = bytes_per_second
        self._ending = ending
        self._clock = clock
        self._free_at = clock()
        # Bytes so far.
        self.taken = 0

    def take(self, num_bytes: int) -> None:
        """Wait until the bytes taken before are paid for, then take these; raises ShuttingDown at the end."""
        now = self._clock()
        start = max(now, self._free_at)
        self._ending.wait(start - now)
        self.check()
        self._free_at = start + num_bytes / self._rate
        self.taken += num_bytes

    def check(self) -> None:
        """Raise ShuttingDown when the process is to end."""
        if self._ending.is_set():
            raise ShuttingDown("maintenance was interrupted", why="the archiver ends")


class ThrottledRanges:
    """A store whose parts of objects are read at the throttle's pace."""

    def __init__(self, store: RangeStore, throttle: Throttle) -> None:
        self._store = store
        self._throttle = throttle

    def get_range(self, key: str, start: int, end: int) -> bytes:
        self._throttle.take(end - start)
        return self._store.get_range(key, start, end)


class ThrottledDriver(Driver):
    """A driver that stores at the throttle's pace; at the end it raises ShuttingDown at the next long step."""

    def __init__(self, store: Store, wait: BackOff, throttle: Throttle, clock: Callable[[], float]) -> None:
        super().__init__(store, wait=wait, clock=clock)
        self._throttle = throttle

    def _carry_out(self, operation: Operation) -> Any:
        match operation:
            case PutIfAbsent(body=body):
                self._throttle.take(len(body) if isinstance(body, bytes) else body.size)
            # Get and CompareAndSwap are carried out even then: with these a rewrite removes its intent.
            case GetAll() | Compute():
                self._throttle.check()
        return super()._carry_out(operation)


def paced(store: ToolStore, bytes_per_second: int | None) -> tuple[RangeStore, Driver]:
    """Return how a command reads the data of chunks and stores new ones: as fast as the store allows without a rate."""
    if bytes_per_second == 0:
        raise UsageError("--rate 0 moves nothing", remedy="give bytes a second, such as 20MiB, or no rate")
    if bytes_per_second is None:
        return store, Driver(store)
    throttle = Throttle(bytes_per_second, threading.Event())
    return ThrottledRanges(store, throttle), ThrottledDriver(store, bounded_backoff(store.url), throttle, time.time)
