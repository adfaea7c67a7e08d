"""A second request for a range read that is slow for its size: the first answer wins, the other is cancelled.

A store answers one request in a hundred ten times as slowly as the others; asked again it mostly answers at once. The
share of second requests is bounded, so that a store that is slow altogether is not asked twice as much.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable

from blockgz_runtime.store.reader import ObjectReader, PassingReader, VersionTag

QUANTILE = 0.95
REMEMBERED_READS = 128
FEWEST_READS = 20
"""How many reads of about the same size must be known before one can be called slow."""
SHORTEST_PATIENCE = 0.05
"""Seconds below which a second request cannot help."""
EXTRA_SHARE = 0.05
"""Second requests by requests, in the long run."""
BURST = 4.0
"""How many second requests may be saved up."""


class SlowReads:
    """What reads lately took, by their size, and how many second requests that allows. No clock: seconds are given."""

    def __init__(self) -> None:
        self._seconds: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED_READS))
        self._allowance = 0.0

    def patience(self, num_bytes: int) -> float | None:
        """Seconds after which a read of that size is slow; None while that is not known. Called once for each read."""
        self._allowance = min(self._allowance + EXTRA_SHARE, BURST)
        known = sorted(self._seconds[_size_class(num_bytes)])
        if len(known) < FEWEST_READS:
            return None
        return max(known[int(len(known) * QUANTILE)], SHORTEST_PATIENCE)

    def took(self, num_bytes: int, seconds: float) -> None:
        """Remembers what a read took."""
        self._seconds[_size_class(num_bytes)].append(seconds)

    def spend(self) -> bool:
        """Whether a second request may be made now; counts it if so."""
        if self._allowance < 1:
            return False
        self._allowance -= 1
        return True


class HedgingReader(PassingReader):
    """Asks twice for ranges that come slowly; passes everything else on."""

    def __init__(
        self, reader: ObjectReader, slow_reads: SlowReads | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(reader)
        self._slow_reads = SlowReads() if slow_reads is None else slow_reads
        self._clock = clock
        self.second_requests = 0

    async def get_range(self, key: str, start: int, end: int, version: VersionTag | None = None) -> bytes:
        """See ObjectReader."""
        began = self._clock()
        patience = self._slow_reads.patience(end - start)
        tasks = [asyncio.create_task(self._reader.get_range(key, start, end, version))]
        try:
            done, _ = await asyncio.wait(tasks, timeout=patience)
            if not done and self._slow_reads.spend():
                self.second_requests += 1
                tasks.append(asyncio.create_task(self._reader.get_range(key, start, end, version)))
            body = await _first_answer(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._slow_reads.took(end - start, self._clock() - began)
        return body


async def _first_answer(tasks: list[asyncio.Task[bytes]]) -> bytes:
    """What the first one to succeed gives; where all fail, the error of the first request."""
    waiting = set(tasks)
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task.result()
    return tasks[0].result()


def _size_class(num_bytes: int) -> int:
    """Sizes within a factor of four are alike."""
    return num_bytes.bit_length() // 2
