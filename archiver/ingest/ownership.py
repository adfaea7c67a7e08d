"""The partitions that are this process's: claiming, feeding, restarting and giving them up.

All methods belong to the consumer thread. Claims run in threads of their own; see commit.recovery.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from archiver.commit.commit import PartitionIdentity
from archiver.commit.driver import Driver, LogReader
from archiver.commit.recovery import Claimed, TakeoverPolicy, name_successors, take_over
from archiver.config.model import RunConfig
from archiver.errors import AssignmentLost, Fenced
from archiver.ingest.buffer import BufferFolder
from archiver.ingest.chunk_builder import ChunkSettings
from archiver.ingest.kafka_source import Event, Partition, PartitionFailed
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.partition_state import ArchivingState, Flush, PartitionCounts, Tick
from archiver.ingest.roll_policy import RollReason
from archiver.ingest.topics import TopicDirectory
from archiver.logs import LogEvent, log
from blockgz_runtime.errors import BrokerUnreachable, BufferFailed, PartitionUnavailable, StoreUnavailable
from blockgz_runtime.store.retry import LONGEST_BACKOFF_SECONDS, backoff_seconds
from blockgz_runtime.store.writer import Store
from index_format.errors import BlockgzError
from index_format.keys import LAYOUTS

HEARTBEAT_SECONDS = 3.0
"""A fenced writer waits this long before it claims again: by then a zombie has learnt that it is none."""
RESTARTS_IN_A_ROW = 5
"""So often a partition is taken over again after a passing failure before `--once` gives up on it."""
PASSING = (BrokerUnreachable, BufferFailed, PartitionUnavailable, StoreUnavailable)
"""Failures after which a partition is taken over again."""


@dataclass
class PartitionReport:
    """What a run did to one partition."""

    partition: Partition
    end_offset: int | None = None
    """Where `--once` stops: the last stable offset when the run started."""
    high_watermark: int | None = None
    """Above end_offset lie records of open transactions."""
    is_drained: bool = False
    """Whether `--once` committed everything up to its end."""
    counts: PartitionCounts = field(default_factory=PartitionCounts)
    next_offset: int | None = None
    newest_ms: int | None = None
    """The timestamp up to which the archive holds records, as of the last owner's end."""
    failure: BlockgzError | None = None
    lost_offsets: int = 0
    """Offsets that claims recorded as gaps, because the log had deleted them."""
    retries: int = 0
    """Waits before another try at store or broker."""
    restarts: int = 0
    """Times the partition was taken over again after a failure."""
    fenced: int = 0
    """Times another writer took the partition over while this one worked."""

    def add(self, archiver: PartitionArchiver) -> None:
        self.counts += archiver.state.counts
        marker = archiver.state.marker
        self.next_offset, self.newest_ms = marker.next_offset, marker.newest_timestamp


class PartitionState(StrEnum):
    """Where a partition that is or was this process's stands."""

    CLAIMING = "claiming"
    ARCHIVING = "archiving"
    WAITING = "waiting"
    """Something failed; the partition is taken over again soon."""
    STOPPED = "stopped"
    """Something failed that another try cannot mend."""
    DONE = "done"
    """`--once` reached its end."""
    RELEASED = "released"
    """It went to another process, or is given back at the end."""


class PartitionView(NamedTuple):
    """A partition as other threads may look at it."""

    state: PartitionState
    report: PartitionReport
    counts: PartitionCounts
    archiving: ArchivingState | None


@dataclass(frozen=True)
class ArchivingContext:
    config: RunConfig
    archive_id: str
    store: Store
    buffer: BufferFolder
    topics: TopicDirectory
    log_of: Callable[[Partition], LogReader]
    writer: str
    back_off: Callable[[int, str], None]
    """Waits before another try at the store; raises ShuttingDown when the run ends meanwhile."""
    clock: Callable[[], float]
    takers: Executor
    builders: Executor
    committers: Executor


class Ownership:
    """One state a partition; see PartitionState."""

    def __init__(self, context: ArchivingContext) -> None:
        self._context = context
        self._assigned: set[Partition] = set()
        self._claims: dict[Partition, Future[tuple[PartitionIdentity, Claimed]]] = {}
        self._active: dict[Partition, PartitionArchiver] = {}
        self._ending: set[Partition] = set()
        self._retry_at: dict[Partition, float] = {}
        self._tries: dict[Partition, int] = {}
        self._ending_guard = threading.Lock()
        self.reports: dict[Partition, PartitionReport] = {}
        """What was done to every partition that was ever this process's."""

    @property
    def active(self) -> dict[Partition, PartitionArchiver]:
        return self._active

    @property
    def assigned(self) -> set[Partition]:
        """The partitions that are this process's now; a copy."""
        return set(self._assigned)

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do: every partition is drained, given up or stopped."""
        return not (self._claims or self._active or self._retry_at)

    def views(self) -> list[PartitionView]:
        """Every partition that was ever this process's, as it stands. Safe to call from any thread."""
        with self._ending_guard:
            return [self._view(report) for report in list(self.reports.values())]

    def _view(self, report: PartitionReport) -> PartitionView:
        partition, archiver = report.partition, self._active.get(report.partition)
        if archiver is not None:
            archiving = archiver.state
            return PartitionView(PartitionState.ARCHIVING, report, report.counts + archiving.counts, archiving)
        if partition not in self._assigned:
            state = PartitionState.RELEASED
        elif report.failure is not None:
            state = PartitionState.STOPPED
        elif partition in self._retry_at:
            state = PartitionState.WAITING
        elif report.end_offset is not None and partition not in self._claims:
            state = PartitionState.DONE
        else:
            state = PartitionState.CLAIMING
        return PartitionView(state, report, report.counts, None)

    def acquire(self, partition: Partition, end_offset: int | None = None, high_watermark: int | None = None) -> None:
        """Start to take the partition over; see `begin`."""
        self._assigned.add(partition)
        report = self.reports.setdefault(partition, PartitionReport(partition))
        report.end_offset, report.high_watermark, report.failure = end_offset, high_watermark, None
        self._start_claim(partition)

    def begin(self) -> dict[Partition, int]:
        """Partitions whose claim succeeded since the last call, each with the offset to consume from."""
        positions: dict[Partition, int] = {}
        for partition in [partition for partition, claim in self._claims.items() if claim.done()]:
            claim = self._claims.pop(partition)
            if partition not in self._assigned:
                continue
            try:
                identity, claimed = claim.result()
            except BlockgzError as error:
                self._failed(partition, error)
                continue
            _announce(identity, claimed)
            if claimed.gap is not None:
                self.reports[partition].lost_offsets += claimed.gap.end - claimed.gap.start
            positions[partition] = claimed.position
            self._active[partition] = self._archiver(partition, identity, claimed)
        return positions

    def offer(self, event: Event) -> None:
        """Hand an event to its partition; one of a partition that is not active is dropped."""
        archiver = self._active.get(event.partition)
        if archiver is None:
            return
        if isinstance(event, PartitionFailed):
            archiver.fail(event.error)
        else:
            archiver.offer(event)

    def tick(self, now: float) -> None:
        """Let time pass: chunks that are due end, claims that wait are tried again."""
        for partition in [partition for partition, due in self._retry_at.items() if due <= now]:
            del self._retry_at[partition]
            self._start_claim(partition)
        for archiver in self._active.values():
            archiver.offer(Tick(now))

    def review(self) -> list[Partition]:
        """End partitions that failed or are drained; gives those that are to be consumed no longer."""
        ended = []
        for partition, archiver in list(self._active.items()):
            state = archiver.state
            if state.failure is not None:
                ended.append(partition)
                self._end(partition)
                self._failed(partition, state.failure)
            elif state.is_drained and state.is_idle:
                if partition in self._ending:
                    self.reports[partition].is_drained = True
                    ended.append(partition)
                    self._end(partition)
                else:
                    self._ending.add(partition)
                    archiver.offer(Flush(RollReason.FLUSH))
            elif state.counts.chunks:
                self._tries.pop(partition, None)
        return ended

    def give_up(self, partitions: Iterable[Partition], seconds: float, pause: Callable[[], None]) -> None:
        """Flush and commit up to a deadline, then forget: what is not committed, the next owner archives."""
        leaving = [partition for partition in partitions if partition in self._assigned]
        flushing = [self._active[partition] for partition in leaving if partition in self._active]
        for archiver in flushing:
            archiver.offer(Flush(RollReason.FLUSH))
        deadline = self._context.clock() + seconds
        while not all(archiver.state.is_idle for archiver in flushing) and self._context.clock() < deadline:
            pause()
        for partition in leaving:
            if partition in self._active:
                state = self._active[partition].state
                self.reports[partition].is_drained = state.is_drained and state.is_idle and not state.failure
                self._note_uncommitted(partition, state)
        self.lose(leaving)

    def lose(self, partitions: Iterable[Partition]) -> None:
        """Forget at once and write nothing: they are another process's already."""
        for partition in partitions:
            self._assigned.discard(partition)
            self._retry_at.pop(partition, None)
            if partition in self._active:
                self._end(partition)

    def _note_uncommitted(self, partition: Partition, state: ArchivingState) -> None:
        """Log a last chunk that is not committed; a failure that the next owner will meet too is the run's."""
        error = state.failure
        if error is not None and not self._is_passing(error):
            self._stopped(partition, error)
        elif error is not None or not state.is_idle:
            cause = "the grace time ended" if error is None else error.what
            log.warning(LogEvent.ABANDONED, topic=partition[0], partition=partition[1], cause=cause)

    def _start_claim(self, partition: Partition) -> None:
        self._claims[partition] = self._context.takers.submit(self._claim, partition)

    def _claim(self, partition: Partition) -> tuple[PartitionIdentity, Claimed]:
        """Runs in a thread of its own."""
        context, (topic, number) = self._context, partition
        config = context.config
        topic_id, folder = context.topics.locate(topic)
        driver = self._driver(partition, topic_id)
        keys = LAYOUTS[config.layout](folder, number)
        for _ in driver.run(name_successors(keys, context.writer)):
            log.warning(LogEvent.SUCCEEDED, topic=topic, partition=number, folder=str(folder))
        identity = PartitionIdentity.of(config, keys, context.archive_id, topic_id, context.store.prefix)
        return identity, driver.run(take_over(identity, context.writer, TakeoverPolicy.of(config)))

    def _driver(self, partition: Partition, topic_id: str | None) -> Driver:
        def still_assigned() -> bool:
            """A topic that was created again since is another one, whatever its offsets look like."""
            return partition in self._assigned and self._context.topics.is_same(partition[0], topic_id)

        def back_off(attempt: int, cause: str) -> None:
            if partition not in self._assigned:
                raise AssignmentLost("the partition was given up meanwhile", why=cause)
            self.reports[partition].retries += 1
            log.warning(LogEvent.RETRY, topic=partition[0], partition=partition[1], attempt=attempt, cause=cause)
            context.back_off(attempt, cause)

        context = self._context
        return Driver(context.store, context.log_of(partition), back_off, still_assigned)

    def _archiver(self, partition: Partition, identity: PartitionIdentity, claimed: Claimed) -> PartitionArchiver:
        context = self._context
        return PartitionArchiver(
            identity,
            claimed,
            ChunkSettings.of(context.config),
            buffer=context.buffer,
            driver=self._driver(partition, identity.topic_id),
            builders=context.builders,
            committers=context.committers,
            clock=context.clock,
            end_offset=self.reports[partition].end_offset,
        )

    def _failed(self, partition: Partition, error: BlockgzError) -> None:
        """Take the partition over again where that may help, else leave it with its failure."""
        tries = self._tries[partition] = self._tries.get(partition, 0) + 1
        report = self.reports[partition]
        report.fenced += isinstance(error, Fenced)
        once = self._context.config.once
        if self._is_passing(error) and not (once and tries > RESTARTS_IN_A_ROW):
            report.restarts += 1
            log.warning(
                LogEvent.RESTART,
                topic=partition[0],
                partition=partition[1],
                attempt=tries,
                cause=error.what,
                why=error.why,
            )
            least = HEARTBEAT_SECONDS if isinstance(error, Fenced) else 0.0
            delay = min(LONGEST_BACKOFF_SECONDS, least + backoff_seconds(tries))
            self._retry_at[partition] = self._context.clock() + delay
            return
        self._stopped(partition, error)

    def _is_passing(self, error: BlockgzError) -> bool:
        owned_by_group = not self._context.config.once
        return isinstance(error, PASSING) or (owned_by_group and isinstance(error, Fenced | AssignmentLost))

    def _stopped(self, partition: Partition, error: BlockgzError) -> None:
        log.error(LogEvent.STOPPED, topic=partition[0], partition=partition[1], cause=error.what, why=error.why)
        self.reports[partition].failure = error

    def _end(self, partition: Partition) -> None:
        self._ending.discard(partition)
        with self._ending_guard:
            archiver = self._active.pop(partition)
            archiver.close()
            self.reports[partition].add(archiver)


def _announce(identity: PartitionIdentity, claimed: Claimed) -> None:
    topic, number, gap = str(identity.keys.folder), identity.keys.partition, claimed.gap
    log.info(
        LogEvent.CLAIMED, topic=topic, partition=number, epoch=claimed.held.marker.epoch, position=claimed.position
    )
    if gap is not None:
        log.warning(LogEvent.GAP, topic=topic, partition=number, start=gap.start, end=gap.end, reason=gap.reason)
    if claimed.tail_was_compacted:
        log.warning(LogEvent.TAIL_UNVERIFIED, topic=topic, partition=number)
