"""The partitions of this process: claimed, fed, restarted and given up.

All methods of Ownership belong to the consumer thread. Claims run in threads of their own; see commit.recovery.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any, Generic, TypeVar

from archiver import errors
from archiver.commit.commit import Held, PartitionIdentity, read_marker
from archiver.commit.operations import BackOff, CompareAndSwap, Driver, LogReader, Operation, UnreadLog
from archiver.commit.recovery import Claimed, ClaimList, TakeoverPolicy, name_successors, take_over_last
from archiver.ingest.chunk_builder import BufferFolder, ChunkSettings
from archiver.ingest.dead_letters import DeadLetters, DeadLetterTopic
from archiver.ingest.kafka_cluster import AskBounds
from archiver.ingest.kafka_source import Event, Partition, PartitionFailed, name_of
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.partition_state import ArchivingState, Order, PartitionCounts, Tick
from archiver.ingest.topics import TopicDirectory, TopicIds
from archiver.logs import FailureLog, LogEvent, log
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied, BlockgzError, PartitionUnavailable
from blockgz.kafka import LogBounds
from blockgz.store.retry import backoff_seconds
from blockgz.store.writer import Store
from index_format.keys import LAYOUTS, TopicFolder

C = TypeVar("C")
# A partition, what claims it, and where the result goes.
Claim = tuple[Partition, Callable[[Partition, LogBounds], C], Future[C]]


class ClaimQueue(Generic[C]):
    """Has claims carried out, each with the bounds of its log. If nobody tells them, the claim fails.

    A partition without a leader so takes no thread from the others. `submit` and `ask` belong to one thread.
    """

    def __init__(self, ask: AskBounds, executor: Executor) -> None:
        self._ask = ask
        self._executor = executor
        self._new: list[Claim[C]] = []

    def submit(self, partition: Partition, claim: Callable[[Partition, LogBounds], C]) -> Future[C]:
        """Return a future of what `claim` returns or raises in another thread."""
        result: Future[C] = Future()
        self._new.append((partition, claim, result))
        return result

    def ask(self) -> None:
        """Ask for the logs of all partitions that were submitted since the last call."""
        if self._new:
            self._executor.submit(self._begin, self._new)
            self._new = []

    def _begin(self, claims: list[Claim[C]]) -> None:
        left = list(claims)
        try:
            answers = self._ask([partition for partition, _, _ in claims])
            while left:
                answer = answers[left[-1][0]]
                if isinstance(answer, LogBounds):
                    self._executor.submit(_carry_out, left[-1], answer)
                else:
                    left[-1][2].set_exception(answer)
                left.pop()
        except Exception as error:  # nobody reads the result of this call, only each claim's
            for _, _, result in left:
                result.set_exception(_internal(error))


def _carry_out(claim: Claim[C], bounds: LogBounds) -> None:
    partition, carry_out, result = claim
    try:
        result.set_result(carry_out(partition, bounds))
    except BlockgzError as error:
        result.set_exception(error)
    except Exception as error:
        result.set_exception(_internal(error))


def _internal(error: Exception) -> BlockgzError:
    failure = BlockgzError("internal error", why=repr(error))
    failure.__cause__ = error
    return failure


# Seconds a fenced writer waits before it claims again: long enough for a stale writer to notice.
HEARTBEAT_SECONDS = 3.0
# Takeover attempts after passing failures before `--once` gives up on a partition.
RESTARTS_IN_A_ROW = 5
# Between two tries of partitions that stopped, and before a process gives up whose partitions are all another's.
STOPPED_SECONDS = 300.0
# Seconds between attempts to add claims to the inventory that no commit added.
CLAIM_LIST_SECONDS = 30.0
# Claims in a row while neither store nor broker answers: about five minutes.
CLAIMS_IN_A_ROW = 15


@dataclass
class PartitionHistory:
    partition: Partition
    end_offset: int | None = None
    """The end for `--once`: the last stable offset when the run started."""
    high_watermark: int | None = None
    """Above end_offset lie records of open transactions."""
    is_drained: bool = False
    """True if `--once` committed everything up to its end."""
    counts: PartitionCounts = field(default_factory=PartitionCounts)
    next_offset: int | None = None
    newest_ms: int | None = None
    """The timestamp up to which the archive holds records, as of the last owner's end."""
    failure: BlockgzError | None = None
    trouble: BlockgzError | None = None
    """The last failure, while it is tried again; it is over once there are more than `trouble_commits` commits."""
    trouble_commits: int = 0
    lost_offsets: int = 0
    """Offsets that claims recorded as gaps, because the log had deleted them."""
    retries: int = 0
    """Pauses before a request to the store or broker was retried."""
    restarts: int = 0
    """Times the partition was claimed again after a failure."""
    fenced: int = 0
    """Times another writer took over the partition while this one worked."""

    def add(self, archiver: PartitionArchiver) -> None:
        self.counts += archiver.state.counts
        marker = archiver.state.marker
        self.next_offset, self.newest_ms = marker.next_offset, marker.newest_timestamp


class PartitionState(StrEnum):
    """A state of a partition that is or was this process's."""

    CLAIMING = "claiming"
    ARCHIVING = "archiving"
    WAITING = "waiting"
    """Something failed; the partition is taken over again soon."""
    STOPPED = "stopped"
    """Something failed that another try cannot fix."""
    DONE = "done"
    """`--once` reached its end."""
    RELEASED = "released"
    """It went to another process, or is given back at the end."""
    GONE = "gone"
    """Its topic was deleted; what was fetched of it is archived."""


# A partition as other threads may look at it: the history is a copy that counts what is being archived.
PartitionView = tuple[PartitionState, PartitionHistory, ArchivingState | None]


@dataclass(frozen=True)
class ArchivingContext:
    config: RunConfig
    archive_id: str
    store: Store
    buffer: BufferFolder
    topics: TopicDirectory
    log_of: Callable[[Partition, LogBounds], LogReader]
    """The log of a partition, whose bounds are known."""
    writer: str
    back_off: Callable[[int, BlockgzError | str, threading.Event], None]
    """Waits before another try at the store; see StoreBackoff."""
    clock: Callable[[], float]
    claims: ClaimQueue[tuple[PartitionIdentity, Claimed]]
    claim_list: ClaimList
    builders: Executor
    committers: Executor
    failures: FailureLog = field(default_factory=FailureLog)
    dead_letters: DeadLetterTopic | None = None
    """Takes records that cannot be archived, if that is the policy."""


def denial_to_show(known: BlockgzError | None, denied: AccessDenied) -> BlockgzError:
    """Return the denial, or the one before it if only that has a cause; the causes of both if both have one."""
    if not isinstance(known, AccessDenied):
        return denied
    if known.has_cause and not denied.has_cause:
        return known
    if known.remedy == denied.remedy:
        return known if denied.why in known.why else denied
    if not known.has_cause:
        return denied
    first = known.why.rpartition("; before that: ")[2]
    return AccessDenied(denied.what, why=f"{denied.why}; before that: {first}", remedy=denied.remedy)


class _OneWriterDriver(Driver):
    """For a store that does not keep writers apart: nothing is swapped once the partition was lost."""

    def _carry_out(self, operation: Operation) -> Any:
        if isinstance(operation, CompareAndSwap) and not self._still_assigned():
            raise errors.AssignmentLost("the partition was lost", why="the store cannot keep two writers apart")
        return super()._carry_out(operation)


MOST_BETWEEN_LOOKS = 3.0


class RunningTime:
    """The seconds that this process had: while it was suspended it had none. Looked at every second or so."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._looked_at = clock()
        self._had = 0.0

    def __call__(self) -> float:
        now = self._clock()
        self._had += min(now - self._looked_at, MOST_BETWEEN_LOOKS)
        self._looked_at = now
        return self._had


def confirm_ids(ids: TopicIds, partitions: Mapping[Partition, PartitionArchiver]) -> None:
    """Ask for the ids of the partitions' topics, and pass them on."""
    # Before the question: what was fetched by then is of the topic that the answer names.
    fetched = [(topic, each, each.state.fetched) for (topic, _), each in partitions.items()]
    if fetched:
        answers = ids.asked().ids
        for topic, partition, position in fetched:
            partition.told(answers.get(topic), position)


class Ownership:
    """One state a partition; see PartitionState."""

    def __init__(self, context: ArchivingContext) -> None:
        self._context = context
        self._assigned: set[Partition] = set()
        self._claims: dict[Partition, Future[tuple[PartitionIdentity, Claimed]]] = {}
        self._active: dict[Partition, PartitionArchiver] = {}
        # Partitions of others by now, until the grace time ends, in running time: what was fetched is still offered.
        # They are not claimed again before they are done.
        self._leaving: dict[Partition, tuple[PartitionArchiver, float]] = {}
        self._ending: set[Partition] = set()
        self._retry_at: dict[Partition, float] = {}
        self._tries: dict[Partition, int] = {}
        # Set once a partition is given up: what waits for another try is to try soon.
        self._hurried: dict[Partition, threading.Event] = {}
        # Set to try the stopped partitions again at the next tick.
        self.fixed = threading.Event()
        self._stopped_tried_at = context.clock()
        self._others_since: float | None = None
        # Claims that were refused before any succeeded.
        self._refused: dict[Partition, BlockgzError] = {}
        self._has_claimed = False
        self._claims_written_at = context.clock()
        self._running_time = RunningTime(context.clock)
        self._ending_guard = threading.Lock()
        # Histories of all partitions that were ever this process's.
        self.reports: dict[Partition, PartitionHistory] = {}

    @property
    def active(self) -> dict[Partition, PartitionArchiver]:
        return self._active

    @property
    def in_hand(self) -> dict[Partition, PartitionArchiver]:
        """Active partitions, and those that leave; a copy. Safe to ask from any thread."""
        return {partition: archiver for partition, (archiver, _) in self._leaving.copy().items()} | self._active

    @property
    def assigned(self) -> set[Partition]:
        """Return the partitions that are this process's now; a copy."""
        return set(self._assigned)

    @property
    def situation(self) -> errors.Situation:
        """In which failures meet this process; see archiver.errors."""
        if self._context.config.once:
            return errors.Situation.BOUNDED
        return errors.Situation.SERVING if self._has_claimed else errors.Situation.STARTING

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to do: every partition is drained, given up or stopped."""
        return not (self._claims or self._active or self._retry_at or self._leaving)

    def views(self) -> list[PartitionView]:
        """Return every partition that was ever this process's, as it is now. Safe to call from any thread."""
        with self._ending_guard:
            return [self._view(report) for report in list(self.reports.values())]

    def _view(self, report: PartitionHistory) -> PartitionView:
        partition, archiver = report.partition, self._active.get(report.partition)
        if archiver is not None:
            archiving = archiver.state
            is_over = report.trouble_commits < archiving.counts.commits
            trouble = archiving.full or (None if is_over else report.trouble)
            counted = replace(report, counts=report.counts + archiving.counts, trouble=trouble)
            return PartitionState.ARCHIVING, counted, archiving
        if isinstance(report.failure or report.trouble, errors.TopicGone):
            state = PartitionState.GONE
        elif partition not in self._assigned:
            state = PartitionState.RELEASED
        elif report.failure is not None:
            state = PartitionState.STOPPED
        elif partition in self._retry_at:
            state = PartitionState.WAITING
        elif report.end_offset is not None and partition not in self._claims:
            state = PartitionState.DONE
        else:
            state = PartitionState.CLAIMING
        is_tried_again = state in (PartitionState.CLAIMING, PartitionState.WAITING)
        return state, replace(report, trouble=report.trouble if is_tried_again else None), None

    def acquire(self, partition: Partition, end_offset: int | None = None, high_watermark: int | None = None) -> None:
        """Start to take the partition over; see `begin`."""
        self._assigned.add(partition)
        self._hurried[partition] = threading.Event()
        report = self.reports.setdefault(partition, PartitionHistory(partition))
        report.end_offset, report.high_watermark = end_offset, high_watermark
        report.failure = report.trouble = None
        self._start_claim(partition)

    def refuse(self, partition: Partition, error: BlockgzError) -> None:
        """Leave a partition that cannot even be claimed with what kept it from that."""
        self._assigned.add(partition)
        self.reports.setdefault(partition, PartitionHistory(partition))
        self._stopped(partition, error)

    def begin(self) -> dict[Partition, int]:
        """Return the partitions claimed since the last call, each with the offset to consume from.

        Raises what refused the claims of a service if it refused them all: nothing is archived then.
        """
        self._context.claims.ask()
        positions: dict[Partition, int] = {}
        for partition in [partition for partition, claim in self._claims.items() if claim.done()]:
            claim = self._claims.pop(partition)
            if partition not in self._assigned or partition in self._retry_at:
                continue  # it went to another process since; if it came back, another claim is made
            try:
                identity, claimed = claim.result()
            except BlockgzError as error:
                is_unanswered = errors.what_next(error, self.situation) is errors.Next.AGAIN
                self._failed(partition, error, CLAIMS_IN_A_ROW if is_unanswered else RESTARTS_IN_A_ROW)
                continue
            self._has_claimed = True
            self.reports[partition].trouble = None
            self._is_back(self.reports[partition])
            _announce(identity, claimed)
            if claimed.gap is not None:
                self.reports[partition].lost_offsets += claimed.gap.end - claimed.gap.start
            positions[partition] = claimed.position
            self._active[partition] = self._archiver(partition, identity, claimed)
        self._settle_refused()
        if positions and not self._claims:
            self._write_claims()
        return positions

    def _settle_refused(self) -> None:
        """Try refused claims again once another claim succeeded; raise the first refusal if all were refused."""
        untried = self._claims or any(self._tries.get(each, 0) < RESTARTS_IN_A_ROW for each in self._retry_at)
        if not self._refused or (untried and not self._has_claimed):
            return
        refused = [(partition, error) for partition, error in self._refused.items() if partition in self._assigned]
        self._refused = {}
        if refused and not self._has_claimed:
            raise refused[0][1]
        for partition, error in refused:
            self._failed(partition, error)

    def offer(self, event: Event) -> None:
        """Hand an event to its partition; one of a partition that is not active is dropped."""
        archiver = self._active.get(event.partition)
        if archiver is not None:
            archiver.offer(event)

    def tick(self, now: float) -> None:
        """Let time pass: chunks that are due end, claims that wait are tried again."""
        for partition in [partition for partition, due in self._retry_at.items() if due <= now]:
            del self._retry_at[partition]
            self._start_claim(partition)
        if not self._context.config.once:
            self._try_stopped_again(now)
            self._check_others(now)
        for archiver in self._active.values():
            archiver.offer(Tick(now))
        if now >= self._claims_written_at + CLAIM_LIST_SECONDS:
            self._write_claims()

    def _try_stopped_again(self, now: float) -> None:
        """Claim partitions again that stopped at something that may be fixed: now and then, or at once if asked."""
        if not self.fixed.is_set() and now < self._stopped_tried_at + STOPPED_SECONDS:
            return
        self.fixed.clear()
        self._stopped_tried_at = now
        for partition in self._assigned:
            report = self.reports[partition]
            if report.failure is not None and errors.may_be_fixed(report.failure):
                report.failure, self._tries[partition] = None, 0
                self._start_claim(partition)

    def _check_others(self, now: float) -> None:
        """Raise OwnedByAnother if for minutes every partition of this process has been another group's."""
        failures = [self.reports[partition].failure for partition in self._assigned]
        first = failures[0] if failures else None
        if first is None or not all(isinstance(failure, errors.OwnedByAnother) for failure in failures):
            self._others_since = None
            return
        self._others_since = now if self._others_since is None else self._others_since
        if now >= self._others_since + STOPPED_SECONDS:
            what = f"nothing is left to archive for this process: {first.what}"
            why = f"{first.why}; so it is with all {len(failures)} partitions" if len(failures) > 1 else first.why
            raise errors.OwnedByAnother(what, why=why, remedy=first.remedy)

    def _write_claims(self) -> None:
        """Have claims in the inventory before their first commit needs that, and of partitions without records."""
        self._claims_written_at = self._context.clock()
        if self._context.claim_list.is_behind:
            self._context.committers.submit(self._context.claim_list.write)

    @property
    def to_restart(self) -> list[Partition]:
        """Return the partitions to `restart`: their topic is another one, or its id was learnt."""
        active = list(self._active.items())
        return [each for each, archiver in active if archiver.restart is not None and not archiver.state.is_over]

    def restart(self, partition: Partition) -> None:
        """Commit what was offered, then take the partition over again; nothing of it is to be fetched meanwhile."""
        archiver = self._active[partition]
        why, archiver.restart = archiver.restart, None
        if why is not None:
            archiver.offer(PartitionFailed(partition, why))

    def review(self) -> list[Partition]:
        """End partitions that failed, are drained or left; gives those that are to be consumed no longer."""
        self._see_off()
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
                    archiver.offer(Order.FLUSH)
            elif state.counts.chunks:
                self._tries.pop(partition, None)
        return ended

    def give_up(
        self,
        partitions: Iterable[Partition],
        seconds: float,
        pause: Callable[[], None],
        is_cut_short: Callable[[], bool] = lambda: False,
    ) -> None:
        """Flush and commit up to a deadline; those that were lost before, and are not done yet, are waited for too."""
        # Work that is not done when the wait is cut short continues in the background.
        wanted = set(partitions)
        leaving = [partition for partition in wanted if partition in self._assigned]
        self._leave(leaving, seconds)
        for partition in leaving:
            report = self.reports[partition]
            if isinstance(report.trouble, errors.TopicGone):
                report.failure = report.trouble
        while wanted & self._leaving.keys() and not is_cut_short():
            pause()
            self._see_off()

    def lose(self, partitions: Iterable[Partition]) -> None:
        """Give up partitions that are another process's already; still offer to the store what was fetched."""
        # A newer owner wins by its claim. If nothing in the store keeps writers apart, nothing is written.
        config, lost = self._context.config, list(partitions)
        for partition in lost:
            if partition in self._active:
                self._active[partition].may_claim = False
        self._leave(lost, 0.0 if config.single_writer else config.grace)

    def gone(self, topics: Collection[str]) -> None:
        """Note that the cluster no longer has these topics."""
        for topic in topics:
            self._context.claim_list.gone(topic)
        for (topic, _), report in self.reports.items():
            if topic in topics and report.failure is None:
                report.failure = errors.TopicGone(topic)

    def back(self, topics: Collection[str]) -> None:
        """Note that the cluster has these topics, again or for the first time."""
        for (topic, _), report in self.reports.items():
            if topic in topics:
                self._is_back(report)

    def _is_back(self, report: PartitionHistory) -> None:
        if isinstance(report.failure, errors.TopicGone):
            report.failure = None

    def _leave(self, partitions: Iterable[Partition], seconds: float) -> None:
        until = self._running_time() + seconds
        for partition in list(partitions):
            self._hurried.setdefault(partition, threading.Event()).set()
            self._retry_at.pop(partition, None)
            if partition in self._active:
                with self._ending_guard:
                    archiver = self._active.pop(partition)
                    self._leaving[partition] = archiver, until
                if seconds > 0:
                    archiver.offer(Order.FLUSH)
            self._assigned.discard(partition)  # last: its threads find it assigned or leaving
        self._see_off()

    def _see_off(self) -> None:
        """Forget partitions that left and have nothing more to commit, or no more time to."""
        now, running = self._context.clock(), self._running_time()
        for partition, (archiver, until) in list(self._leaving.items()):
            state = archiver.state
            if state.is_idle or running >= until:
                self.reports[partition].is_drained = state.is_drained and state.is_idle and not state.failure
                self._note_uncommitted(partition, state)
                self._end(partition)
            elif state.full is not None:
                archiver.offer(Tick(now))

    def _note_uncommitted(self, partition: Partition, state: ArchivingState) -> None:
        """Log a last chunk that is not committed; a failure that the next owner will meet too is the run's."""
        error, report = state.failure, self.reports[partition]
        if error is None and report.trouble_commits == state.counts.commits and not state.is_idle:
            error = report.trouble
        at_its_start = errors.Situation.BOUNDED if self._context.config.once else errors.Situation.STARTING
        if error is not None and errors.what_next(error, at_its_start) is errors.Next.STOP:
            self._stopped(partition, error)
        elif error is not None or not state.is_idle:
            cause = "the grace period ended" if error is None else error.what
            log.warning(LogEvent.ABANDONED, topic=partition[0], partition=partition[1], cause=cause)

    def _start_claim(self, partition: Partition) -> None:
        if partition in self._leaving or partition in self._claims:
            self._retry_at[partition] = self._context.clock()
        else:
            self._claims[partition] = self._context.claims.submit(partition, self._claim)

    def _claim(self, partition: Partition, bounds: LogBounds) -> tuple[PartitionIdentity, Claimed]:
        """Claim a partition, in a thread of its own; return its identity with its last folder, and the claim."""
        context, (topic, number) = self._context, partition
        config, end_offset = context.config, self.reports[partition].end_offset
        if end_offset is not None and bounds.end < end_offset:
            raise errors.TopicChanged(
                f"{name_of(partition)} ends at offset {bounds.end} now, and at {end_offset} when the run began",
                why="the topic was created again, or its log was truncated",
                remedy="run it again; it reads the end again",
            )
        topic_id, folder = context.topics.locate(topic)
        keys = LAYOUTS[config.layout](folder, number)

        def put_off(_attempt: int, cause: BlockgzError | str) -> None:
            """Fail, so that the claim waits its turn as all failed ones do; here it would hold a thread."""
            if isinstance(cause, BlockgzError):
                raise cause
            raise PartitionUnavailable(f"{name_of(partition)} cannot be claimed yet", why=cause)

        driver = Driver(
            context.store,
            context.log_of(partition, bounds),
            put_off,
            lambda: partition in self._assigned,
            lambda: errors.Situation.STARTING,
        )
        archived_id = context.topics.archived_id(folder)
        adopts = topic_id is not None and archived_id is None
        if adopts:
            self._adopt_archived(driver.run(read_marker(keys.marker)), folder, topic_id)
        for _ in driver.run(name_successors(keys, context.writer)):
            log.warning(LogEvent.SUCCEEDED, topic=topic, partition=number, folder=str(folder))
        # If the cluster does not report the id now, the archive's own is what later answers are compared with.
        known_id = archived_id if topic_id is None else topic_id
        identity = PartitionIdentity.of(config, keys, context.archive_id, known_id, context.store.prefix)
        identity, claimed = driver.run(take_over_last(identity, context.writer, TakeoverPolicy.of(config)))
        if adopts and topic_id is not None:
            context.topics.adopt(folder, topic_id)
        context.claim_list.add(identity.keys, claimed.held.marker.topic_id)
        return replace(identity, topic_id=claimed.held.marker.topic_id), claimed

    def _adopt_archived(self, held: Held | None, folder: TopicFolder, topic_id: str | None) -> None:
        """Note the topic id in the marker of a folder that has no id yet."""
        archived = held.marker.topic_id if held else None
        if archived is not None and archived != topic_id:
            self._context.topics.adopt(folder, archived)
            raise PartitionUnavailable(
                f"topic {folder.topic!r} was created again", why=f"its id is {topic_id}, the archive's is {archived}"
            )

    def _back_off(self, partition: Partition) -> BackOff:
        hurried = self._hurried[partition]

        def back_off(attempt: int, cause: BlockgzError | str) -> None:
            if partition not in self._assigned and partition not in self._leaving:
                raise errors.AssignmentLost("the partition has been given up", why=str(cause))
            self.reports[partition].retries += 1
            shown = self._note_trouble(partition, cause) if isinstance(cause, BlockgzError) else cause
            self._context.failures.note(partition, attempt, shown)
            self._context.back_off(attempt, cause, hurried)

        return back_off

    def _note_trouble(self, partition: Partition, error: BlockgzError) -> BlockgzError:
        """Keep the failure of a partition that is tried again, and return what to show: see `denial_to_show`."""
        archiver = self.in_hand.get(partition)
        report = self.reports[partition]
        commits = archiver.state.counts.commits if archiver is not None else 0
        if isinstance(error, AccessDenied) and commits == report.trouble_commits:
            error = denial_to_show(report.trouble, error)
        report.trouble, report.trouble_commits = error, commits
        return error

    def _archiver(self, partition: Partition, identity: PartitionIdentity, claimed: Claimed) -> PartitionArchiver:
        context = self._context
        kind = _OneWriterDriver if context.config.single_writer else Driver
        driver = kind(
            context.store,
            UnreadLog(),
            self._back_off(partition),
            lambda: partition in self._assigned or partition in self._leaving,
            lambda: self.situation,
        )
        return PartitionArchiver(
            identity,
            claimed,
            ChunkSettings.of(context.config),
            buffer=context.buffer,
            driver=driver,
            topic_id_now=partial(context.topics.id_of_claimed, partition[0], identity.topic_id, self._context.clock()),
            builders=context.builders,
            committers=context.committers,
            failures=context.failures,
            clock=context.clock,
            end_offset=self.reports[partition].end_offset,
            dead_letters=DeadLetters(context.dead_letters, partition) if context.dead_letters else None,
            settle_claim=partial(context.claim_list.settle, identity.keys),
        )

    def _failed(self, partition: Partition, error: BlockgzError, most_tries: int = RESTARTS_IN_A_ROW) -> None:
        """Take the partition over again if that may help, or else leave it with its failure."""
        tries = self._tries[partition] = self._tries.get(partition, 0) + 1
        report = self.reports[partition]
        report.fenced += isinstance(error, errors.Fenced)
        if isinstance(error, errors.TopicGone):
            self._context.claim_list.gone(partition[0])
        situation = self.situation
        if situation is errors.Situation.STARTING and self._passes_later(error):
            self._refused[partition] = error
            return
        once = self._context.config.once
        if errors.what_next(error, situation) is not errors.Next.STOP and not (once and tries > most_tries):
            report.restarts += 1
            self._context.failures.note(partition, tries, self._note_trouble(partition, error), is_restart=True)
            least = HEARTBEAT_SECONDS if isinstance(error, errors.Fenced) else 0.0
            self._retry_at[partition] = self._context.clock() + least + backoff_seconds(tries, error)
            return
        self._stopped(partition, error)

    def _passes_later(self, error: BlockgzError) -> bool:
        """Return whether only a service that has claimed a partition takes this for passing."""
        now, later = (
            errors.what_next(error, errors.Situation.STARTING),
            errors.what_next(error, errors.Situation.SERVING),
        )
        return now is errors.Next.STOP and later is not errors.Next.STOP

    def _stopped(self, partition: Partition, error: BlockgzError) -> None:
        topic, number = partition
        log.error(LogEvent.STOPPED, topic=topic, partition=number, cause=error.what, why=error.why, remedy=error.remedy)
        self.reports[partition].failure = error

    def _end(self, partition: Partition) -> None:
        self._ending.discard(partition)
        with self._ending_guard:
            archiver = self._active.pop(partition, None) or self._leaving.pop(partition)[0]
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
