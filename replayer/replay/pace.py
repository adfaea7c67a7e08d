"""How fast records go: as fast as they can, at a rate, or spaced as they once were. Time is an argument."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blockgz.errors import UsageError
from blockgz.units import SIZES
from replayer.replay.job import LanePosition


class Commands:
    """Asked between portions; `pause`, `resume`, `end` and `wake` are called in the thread of the event loop."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._began = time.monotonic()
        self._paused_at: float | None = None
        # Commit what was sent, and end.
        self.ending = False
        # Positions of the lanes as last committed; replaced, never changed.
        self.committed: Mapping[int, LanePosition] = {}

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    def pause(self) -> None:
        if self._paused_at is None:
            self._paused_at = time.monotonic()
            self._changed.set()

    def resume(self) -> None:
        if self._paused_at is not None:
            self._began += time.monotonic() - self._paused_at
            self._paused_at = None
            self._changed.set()

    def end(self) -> None:
        """End at the next boundary of a transaction."""
        self.ending = True
        self._changed.set()

    def wake(self) -> None:
        """Have the run use a changed pace."""
        self._changed.set()

    def elapsed(self) -> float:
        """Return seconds since the start without pauses."""
        return (self._paused_at or time.monotonic()) - self._began

    async def wait(self, seconds: float | None) -> None:
        """Wait so long, or less if something changed since the last wait; None waits for that alone."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)
        self._changed.clear()


# Seconds without any progress after which a replay ends whose commits are lost.
PATIENCE_SECONDS = 300.0
# Records go in portions of at least this much time, so that a pace costs next to nothing.
TICK_SECONDS = 0.05
LEAST_WAIT_SECONDS = 0.001
# Measured limits of a replay, per record and per byte: see docs/performance.md, 200 B and 1 KB.
RECORDS_A_SECOND, BYTES_A_SECOND = 400_000, 80_000_000
# Seconds of sending that a stall leaves to catch up with, at most.
CREDIT_SECONDS = 1.0


class Due(NamedTuple):
    """The number of records that may be sent now; if none, the seconds until the next request."""

    rows: int
    seconds: float = 0.0


class Pace(Protocol):
    """How fast records are sent; called before and after every portion. `elapsed` are seconds since the start,
    pauses left out.
    """

    @property
    def by_time(self) -> bool:
        """True if records of all partitions are sent in the order of their times, not partition after partition."""

    def due(self, batch: pa.RecordBatch, elapsed: float) -> Due:
        """Return how many of the first records of a batch, which is never empty, may be sent now."""

    def sent(self, records: int, num_bytes: int, elapsed: float) -> None:
        """Count records that were sent."""

    def seconds(self, records: int, num_bytes: int, span_ms: int) -> float:
        """Return the least seconds for these records, whose timestamps span `span_ms`."""


class RecordRate:
    """A rate in records a second, from the first call; records are sent once a tick's worth has come together."""

    by_time = False

    def __init__(self, a_second: float) -> None:
        self._a_second = a_second
        self._portion = max(a_second * TICK_SECONDS, 1.0)
        self._most = max(a_second * CREDIT_SECONDS, self._portion)
        self._left = 0.0
        self._seen: float | None = None

    def due(self, batch: pa.RecordBatch, elapsed: float) -> Due:
        passed = 0.0 if self._seen is None else elapsed - self._seen
        self._left = min(self._left + passed * self._a_second, self._most)
        self._seen = elapsed
        if self._left < self._portion:
            return Due(0, max((self._portion - self._left) / self._a_second, LEAST_WAIT_SECONDS))
        return Due(self._rows(batch))

    def sent(self, records: int, num_bytes: int, elapsed: float) -> None:  # noqa: ARG002
        self._left -= records

    def seconds(self, records: int, num_bytes: int, span_ms: int) -> float:  # noqa: ARG002
        return records / self._a_second

    def _rows(self, batch: pa.RecordBatch) -> int:
        return min(int(self._left), int(batch.num_rows))


class ByteRate(RecordRate):
    """A rate in bytes of keys and values a second."""

    def sent(self, records: int, num_bytes: int, elapsed: float) -> None:  # noqa: ARG002
        self._left -= num_bytes

    def seconds(self, records: int, num_bytes: int, span_ms: int) -> float:  # noqa: ARG002
        return num_bytes / self._a_second

    def _rows(self, batch: pa.RecordBatch) -> int:
        # A record above the rate is sent whole, and the next ones wait for it.
        return max(1, int(np.searchsorted(np.cumsum(record_bytes(batch)), self._left, side="right")))


class SharedRate:
    """One rate of several replays together, each of which asks it: what may go is taken at once, by a clock of its own.

    All ask in one thread, and send all that may go.
    """

    by_time = False

    def __init__(self, rate: Pace, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._clock = rate, clock

    def due(self, batch: pa.RecordBatch, elapsed: float) -> Due:  # noqa: ARG002
        now = self._clock()
        due = self._rate.due(batch, now)
        if due.rows:
            self._rate.sent(due.rows, int(record_bytes(batch)[: due.rows].sum()), now)
        return due

    def sent(self, records: int, num_bytes: int, elapsed: float) -> None:
        """Was taken when it became due."""

    def seconds(self, records: int, num_bytes: int, span_ms: int) -> float:
        return self._rate.seconds(records, num_bytes, span_ms)


class OriginalSpacing:
    """Records follow each other as their timestamps do, `factor` times as fast.

    The first record is sent at once, and so is one without a timestamp.
    """

    by_time = True

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self._origin: float | None = None

    def due(self, batch: pa.RecordBatch, elapsed: float) -> Due:
        # A timestamp that goes back is as good as the highest before it.
        reached = np.maximum.accumulate(batch.column("timestamp").to_numpy())
        if self._origin is None:
            if reached[0] < 0:
                return Due(1)
            self._origin = float(reached[0]) - elapsed * 1000 * self._factor
        now = self._origin + elapsed * 1000 * self._factor
        rows = int(np.searchsorted(reached, now, side="right"))
        return Due(rows) if rows else Due(0, max((float(reached[0]) - now) / 1000 / self._factor, TICK_SECONDS))

    def sent(self, records: int, num_bytes: int, elapsed: float) -> None:
        """Ignore what was sent: timestamps alone set the pace."""

    def seconds(self, records: int, num_bytes: int, span_ms: int) -> float:  # noqa: ARG002
        return span_ms / 1000 / self._factor


class Slowest:
    """A speed and a rate at once, or one of them; as fast as they can with none."""

    def __init__(self, speed: Pace | None = None, rate: Pace | None = None) -> None:
        self._speed = speed
        self.by_time = speed is not None and speed.by_time
        self.limit(rate)

    def limit(self, rate: Pace | None) -> None:
        """Change the rate, and keep the speed."""
        self._paces: Sequence[Pace] = [pace for pace in (self._speed, rate) if pace is not None]

    def due(self, batch: pa.RecordBatch, elapsed: float) -> Due:
        answers = [Due(batch.num_rows), *(pace.due(batch, elapsed) for pace in self._paces)]
        return Due(min(each.rows for each in answers), max(each.seconds for each in answers))

    def sent(self, records: int, num_bytes: int, elapsed: float) -> None:
        for pace in self._paces:
            pace.sent(records, num_bytes, elapsed)

    def seconds(self, records: int, num_bytes: int, span_ms: int) -> float:
        unpaced = records / RECORDS_A_SECOND + num_bytes / BYTES_A_SECOND
        return max([unpaced, *(pace.seconds(records, num_bytes, span_ms) for pace in self._paces)])


def record_bytes(batch: pa.RecordBatch) -> Any:
    """Return the bytes of key and value of each record, as a numpy array."""
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0).to_numpy() for name in ("key", "value")]
    return lengths[0].astype(np.int64) + lengths[1]


def parse_rate(text: str) -> Pace:
    """Parse a rate: `5000/s` is records, `20MB/s` bytes of keys and values; raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s?(B|kB|MB|GB|KiB|MiB|GiB)?/s", text, re.ASCII)
    number = float(match[1]) if match else 0.0
    if match is None or not number:
        raise UsageError(
            f"{text[:80]!r} is not a rate",
            why="it is neither records nor bytes per second",
            remedy="write 5000/s or 20MB/s",
        )
    unit = match[2]
    return RecordRate(number) if unit is None else ByteRate(number * SIZES[unit])


def parse_speed(text: str) -> Pace:
    """Parse a speed: `1x` is the original spacing, `10x` ten times as fast; raises UsageError."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)x", text, re.ASCII)
    factor = float(match[1]) if match else 0.0
    if not factor:
        raise UsageError(
            f"{text[:80]!r} is not a speed", why="it is not a factor above 0", remedy="write 1x, 10x or 0.5x"
        )
    return OriginalSpacing(factor)


def make_pace(rate: str | None, speed: str | None) -> Slowest:
    """Return the pace that the options request; raises UsageError."""
    limit = parse_rate(rate) if rate is not None else None
    return Slowest(parse_speed(speed) if speed is not None else None, limit)
