"""How far `archiver run` is: a bar on a terminal, a line of the log every few seconds elsewhere."""

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

from archiver.ingest.kafka_source import Partition
from archiver.ingest.ownership import PartitionState
from archiver.ingest.service import ArchiverService
from archiver.logs import LogEvent, progress_log
from archiver.monitor.snapshot import PartitionSnapshot
from blockgz.process import every
from blockgz.program.terminal import printable

LOOK_SECONDS = 0.5
LINE_SECONDS = 10.0
ENDED = (PartitionState.DONE, PartitionState.STOPPED, PartitionState.RELEASED, PartitionState.GONE)


class Progress(NamedTuple):
    """What was read since the first look."""

    offsets: int = 0
    total: int | None = None
    """Offsets from the first look to the end of a run; None where it has none, or not every one is known yet."""
    bytes: int = 0
    """As compressed, committed or not."""

    @property
    def ended(self) -> "Progress":
        """Nothing is left to do."""
        return self._replace(total=self.offsets)

    @property
    def percent(self) -> float | None:
        """Of the total."""
        if self.total is None:
            return None
        return round(100 * self.offsets / self.total, 1) if self.total else 100.0

    def eta_seconds(self, seconds: float) -> float | None:
        """The time that is left where `offsets` took so many seconds."""
        if self.total is None or not self.offsets:
            return None
        return round((self.total - self.offsets) / self.offsets * seconds, 1)


class Tally:
    """Adds up how far the partitions are, look by look."""

    def __init__(self) -> None:
        self._began: dict[Partition, int] = {}
        self._reached: dict[Partition, int] = {}

    def look(self, partitions: Iterable[PartitionSnapshot], ends: Mapping[Partition, int]) -> Progress:
        """`ends` has the offsets where partitions of a run with an end are drained."""
        num_bytes, left, all_known = 0, 0, bool(ends)
        for each in partitions:
            partition = (each.topic, each.partition)
            position = each.position if each.position is not None else each.durable_offset
            if position is not None:
                began = position if each.durable_offset is None else min(position, each.durable_offset)
                self._began.setdefault(partition, began)
                self._reached[partition] = max(position, self._reached.get(partition, position))
            num_bytes += each.stored_bytes + each.open_chunk_bytes
            if each.state in ENDED:
                continue
            end, reached = ends.get(partition), self._reached.get(partition)
            if end is None or reached is None:
                all_known = False
            else:
                left += max(0, end - reached)
        offsets = sum(reached - self._began[partition] for partition, reached in self._reached.items())
        return Progress(offsets, offsets + left if all_known else None, num_bytes)


def looking_at(service: ArchiverService) -> Callable[[], Progress]:
    """What tells how far the service is; safe to call from a thread of its own."""
    tally = Tally()

    def look() -> Progress:
        ends = {partition: report.end_offset for partition, report in list(service.reports.items())}
        known = {partition: end for partition, end in ends.items() if end is not None}
        return tally.look(service.snapshot().partitions, known)

    return look


def summed(parts: Iterable[Progress]) -> Progress:
    """That of workers together."""
    parts = list(parts)
    totals = [part.total for part in parts if part.total is not None]
    return Progress(
        sum(part.offsets for part in parts),
        sum(totals) if len(totals) == len(parts) else None,
        sum(part.bytes for part in parts),
    )


Show = Callable[[Progress], None]


def on_stderr(*, as_json: bool) -> AbstractContextManager[Show]:
    """A bar on a terminal; lines elsewhere, and beside JSON."""
    return _bar() if sys.stderr.isatty() and not as_json else nullcontext(Lines())


def shown_progress(look: Callable[[], Progress], show: Show) -> AbstractContextManager[None]:
    """Shows how far a block is, by looks from a thread of its own."""
    return every(LOOK_SECONDS, lambda: show(look()))


class CurrentStderr(io.TextIOBase):
    """What `sys.stderr` is as something is written: a bar takes it over while it is shown, and escapes nothing."""

    def write(self, text: str) -> int:
        return sys.stderr.write(printable(text) if sys.stderr.isatty() else text)

    def flush(self) -> None:
        sys.stderr.flush()


class Lines:
    """A line every LINE_SECONDS, as long as there is something new."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = self._told_at = clock()
        self._told = Progress()

    def __call__(self, progress: Progress) -> None:
        now = self._clock()
        is_news = progress.total is not None or progress != self._told
        if now - self._told_at >= LINE_SECONDS and is_news:
            self._told_at, self._told = now, progress
            seconds = now - self._began
            progress_log.info(
                LogEvent.PROGRESS,
                offsets=progress.offsets,
                bytes=progress.bytes,
                seconds=round(seconds, 1),
                percent=progress.percent,
                eta_seconds=progress.eta_seconds(seconds),
            )


@contextmanager
def _bar() -> Iterator[Show]:
    # Bars take a while to load, and only people see them.
    from blockgz.program.progress import record_progress  # noqa: PLC0415

    with record_progress("archiving", None, as_json=False) as advance:
        told = Progress()

        def show(progress: Progress) -> None:
            nonlocal told
            advance.expect(progress.total)
            advance(progress.offsets - told.offsets, progress.bytes - told.bytes)
            told = progress

        yield show
