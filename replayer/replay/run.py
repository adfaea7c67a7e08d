"""A running job: scan, pipeline and sink, with a commit of records and position in between; and what it counts."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from blockgz.archive.blocks import ReadAhead
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Reading, Selection, selected
from blockgz.errors import BlockgzError, BrokerUnreachable, PartitionUnavailable, StoreUnavailable
from index_format.records import SCHEMA, canonical_stream, payload_bytes
from replayer.errors import CommitLost, JobTakenOver, ProducerFenced, TargetChanged
from replayer.replay.job import Acknowledged, Job, LanePosition, Ledger, Outstanding, Run, continued, refuse_other_job
from replayer.replay.pace import PATIENCE_SECONDS, Commands, Pace
from replayer.replay.pipeline import Pipeline, ScannedBatch, sendable


@dataclass(frozen=True)
class LaneResult:
    """Records of one source partition in one target partition, and their offsets; None if there are none.

    The target's offsets are those of all that this run wrote to that partition.
    """

    partition: int
    target_partition: int
    records: int = 0
    offsets: OffsetRange | None = None
    target_offsets: OffsetRange | None = None


@dataclass(frozen=True)
class TargetResult:
    """One target partition: what this run wrote, and how many records of the job earlier runs had written.

    `sha256` is that of `digest_form`'s canonical stream, over this run's records in their order.
    """

    target_partition: int
    records: int
    records_before: int
    offsets: OffsetRange | None
    sha256: str


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay; `bytes` are those of keys and values. A replay that ended early is not complete.

    `lost_commits` counts transactions that were rolled back, after which their records were sent a second time.
    """

    partitions: tuple[LaneResult, ...]
    targets: tuple[TargetResult, ...]
    bytes: int
    seconds: float
    zero_timestamps: int
    lost_commits: int
    complete: bool

    @property
    def records(self) -> int:
        """Records of all partitions that this run wrote."""
        return sum(lane.records for lane in self.targets)

    @property
    def records_before(self) -> int:
        """Records of all partitions that earlier runs of the job had written."""
        return sum(lane.records_before for lane in self.targets)


def digest_form(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with what differs between archive and copy set to 0: offsets, and the kind of timestamp."""
    columns = {name: batch.column(name) for name in SCHEMA.names}
    columns["offset"] = pa.array(np.zeros(batch.num_rows, np.int64))
    columns["timestamp_type"] = pa.array(np.zeros(batch.num_rows, np.int8))
    return pa.record_batch(list(columns.values()), schema=SCHEMA)


@dataclass
class LaneCounts:
    """Counts of what was handed over to one lane."""

    digest: Any = field(default_factory=hashlib.sha256)
    sources: dict[int, LaneResult] = field(default_factory=dict)
    bytes: int = 0
    zero_timestamps: int = 0

    @property
    def records(self) -> int:
        return sum(flow.records for flow in self.sources.values())

    def copied(self) -> "LaneCounts":
        return LaneCounts(self.digest.copy(), dict(self.sources), self.bytes, self.zero_timestamps)


class RunCounts:
    """The counts of records that were handed over, and of those that were committed."""

    def __init__(self, lanes: Iterable[int]) -> None:
        self._running = {lane: LaneCounts() for lane in lanes}
        self._committed = {lane: LaneCounts() for lane in self._running}

    @property
    def records(self) -> int:
        """Records that were committed."""
        return sum(counts.records for counts in self._committed.values())

    def add(self, source: int, lane: int, batch: pa.RecordBatch, zero_timestamps: int) -> None:
        """A batch of records of `source`, as it was handed over; its offsets are the source's."""
        counts = self._running[lane]
        before, offsets = counts.sources.get(source), batch.column("offset")
        first = before.offsets.start if before and before.offsets else offsets[0].as_py()
        records = batch.num_rows + (before.records if before else 0)
        counts.sources[source] = LaneResult(source, lane, records, OffsetRange(first, offsets[-1].as_py() + 1))
        counts.bytes += payload_bytes(batch)
        counts.zero_timestamps += zero_timestamps
        counts.digest.update(canonical_stream(digest_form(batch)))

    def noted(self, lanes: Iterable[int]) -> Mapping[int, LaneCounts]:
        """Return copies of the counts of these lanes, for `committed`."""
        return {lane: self._running[lane].copied() for lane in lanes}

    def committed(self, noted: Mapping[int, LaneCounts]) -> None:
        """Note that these counts are committed."""
        self._committed.update(noted)

    def rolled_back(self) -> None:
        """Forget the counts of records that were not committed."""
        self._running = {lane: counts.copied() for lane, counts in self._committed.items()}

    def result(
        self,
        positions: Mapping[int, LanePosition],
        delivered: Mapping[int, OffsetRange],
        *,
        seconds: float,
        lost_commits: int,
    ) -> ReplayResult:
        """Return the result of what was committed; `positions` are the last ones of all lanes."""
        sources, targets = [], []
        for number, position in sorted(positions.items()):
            counts, written = self._committed[number], delivered.get(number)
            before = position.written - counts.records
            targets.append(TargetResult(number, counts.records, before, written, counts.digest.hexdigest()))
            for source in sorted(position.sources):
                found = counts.sources.get(source, LaneResult(source, number))
                sources.append(replace(found, target_offsets=written))
        return ReplayResult(
            partitions=tuple(sorted(sources, key=lambda each: (each.partition, each.target_partition))),
            targets=tuple(targets),
            bytes=sum(counts.bytes for counts in self._committed.values()),
            seconds=seconds,
            zero_timestamps=sum(counts.zero_timestamps for counts in self._committed.values()),
            lost_commits=lost_commits,
            complete=all(position.complete for position in positions.values()),
        )


class RecordSink(Protocol):
    """Takes records and positions; all but `stop` block and are called by one thread at a time.

    After CommitLost `begin` may be called again, and says what stands.
    """

    rolls_back: bool
    """True if records that were sent but not committed do not count as written."""

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        """Take over these target partitions: earlier runs of the job can no longer write to them.

        Return what they have committed, by lane, without lanes that have no position. What was sent and not committed
        counts as not written from now on.
        """

    def stand_at(self, ends: Mapping[int, int]) -> None:
        """After `begin`: where the lanes end before the first record."""

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        """Take the batch, in order; raises a BlockgzError once it is known that a record was not taken."""

    def acknowledged(self, *, wait: bool) -> Acknowledged | None:
        """Return what the cluster took since the last call, all with `wait`; None: everything, at unknown offsets."""

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Make what was sent to these lanes, and is acknowledged, last, and these positions with it."""

    def stop(self) -> None:
        """Give up: a running call ends soon. May be called from any thread."""


class JobLog:
    """The log of a job, written before the job acts; calls block. This one is for jobs that keep none."""

    def claim(self) -> None:
        """Make this run the newest of the job, before lanes are taken over; raises JobTakenOver."""

    def is_ours(self) -> bool | None:
        """Return whether no other run has claimed the job since; None if that is unknown."""
        return None

    def written_ends(self, positions: Mapping[int, LanePosition]) -> Mapping[int, int]:  # noqa: ARG002
        """Return by lane the target offset after the last record that these positions cover.

        Raises ReplayRefused if the log ends below the positions.
        """
        return {}

    def begun(self, positions: Mapping[int, LanePosition], ends: Mapping[int, int]) -> None:
        """Note that the job continues from these positions, with these ends; runs above them do not count."""

    def note(self, runs: Sequence[Run]) -> None:
        """The cluster took these; they last when the call returns. Raises JobTakenOver or a StoreError."""


class Keeping(NamedTuple):
    """The safeguards of a replay: the job's log, the check of its target, and patience in seconds."""

    log: JobLog = JobLog()
    check: Callable[[Mapping[int, int]], Mapping[int, int]] = lambda _: {}
    """A function such as `TopicPin.check`, from the least ends of lanes to their ends now."""
    patience: float = PATIENCE_SECONDS
    note_skips: Callable[[None], None] = lambda _: None
    """A function that stores what was passed over at damage."""


NOTHING_KEPT = Keeping()


T = TypeVar("T")
U = TypeVar("U")

RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 5.0
# Errors of a target that cannot be queried now.
UNKNOWN_YET = (BrokerUnreachable, PartitionUnavailable)
# Source partitions that are read at once, so that the leaders of as many lanes work.
SOURCES_AT_ONCE = 8
# Seconds after the command to end until a busy sink is stopped; a commit takes far less.
ENDING_SECONDS = 10.0
LISTEN_SECONDS = 0.2
# The sink is the slower side: what keeps it busy is enough.
READ_AHEAD = ReadAhead(16 * 1024 * 1024, 6 * 1024 * 1024)

# Called with the records, and bytes of keys and values, that were read and handled; less, if rolled back.
Progress = Callable[[int, int], None]


class Cadence(NamedTuple):
    """The limits of records, bytes and seconds since the first record after which a commit is due.

    After a commit the next one waits `rest` times as long as that took, but no longer than `longest_rest`.
    """

    records: int = 25_000
    bytes: int = 8 * 1024 * 1024
    seconds: float = 5.0
    rest: float = 30.0
    longest_rest: float = 10.0


CADENCE = Cadence()


@dataclass(frozen=True)
class ReplayWork:
    """The work of a job: selections, the position of each lane before the job's first record, and how to read.

    `recorded` are the positions that earlier runs committed, as far as they are known before `begin`.
    """

    job: Job
    pipeline: Pipeline
    selections: Sequence[Selection]
    first: Mapping[int, LanePosition]
    reading: Reading = field(default_factory=Reading)
    recorded: Mapping[int, LanePosition] = field(default_factory=dict)
    follows: bool = False
    """True if the ends of the job moved since its positions were recorded."""

    @property
    def remaining(self) -> list[Selection]:
        """The selections from the lowest offset that a lane still needs."""
        ledger = Ledger({**self.first, **self.recorded})
        ranges = []
        for selection in self.selections:
            start, end = ledger.start_of(selection.partition.partition), selection.offsets.end
            ranges.append(selection._replace(offsets=OffsetRange(end if start is None else start, end)))
        return ranges

    @property
    def written(self) -> int:
        """Records of the job in the target."""
        return sum(position.written for position in self.recorded.values())

    @property
    def complete(self) -> bool:
        recorded = self.recorded
        return self.first.keys() <= recorded.keys() and all(position.complete for position in recorded.values())


async def run_replay(
    work: ReplayWork,
    sink: RecordSink,
    pace: Pace,
    control: Commands,
    progress: Progress,
    keeping: Keeping = NOTHING_KEPT,
    cadence: Cadence = CADENCE,
) -> ReplayResult:
    """Replay the records that the sink's positions leave, and wait until they are committed.

    Memory holds what is read ahead and what the sink has not sent. The records of a transaction that was rolled back
    are sent a second time. An error, of archive or sink, says in its reason what was written before, and a cancellation
    in a note; everything that was handed over before damage in the archive is committed first.
    """
    run = _RunningReplay(work, sink, pace, control, progress, keeping, cadence)
    try:
        return await run.to_the_end()
    except BlockgzError as error:
        told = await run.settle(error)
        told.why = "; ".join(part for part in (told.why, run.written()) if part)
        raise told from (None if told is error else error)
    except BaseException as error:
        error.add_note(run.written())
        sink.stop()
        raise


class _Source:
    """One partition while it is read."""

    def __init__(self, number: int, end: int, batches: AsyncGenerator[pa.RecordBatch]) -> None:
        self.number = number
        self.end = end
        # The unsent rest of the newest batch; None before the first and after the last.
        self.rest: pa.RecordBatch | None = None
        self._batches = batches
        self._coming: asyncio.Future[pa.RecordBatch | None] | None = None

    @property
    def coming(self) -> asyncio.Future[pa.RecordBatch | None]:
        """A future of the next batch."""
        self._coming = self._coming or asyncio.ensure_future(anext(self._batches, None))
        return self._coming

    async def ready(self, seconds: float) -> bool:
        """Wait for `rest` to be filled; return whether it is, or is None because nothing more comes."""
        if self.rest is None:
            coming = self.coming
            if not coming.done():
                await asyncio.wait({coming}, timeout=seconds)
            if not coming.done():
                return False
            self.rest, self._coming = coming.result(), None
        return True

    def take(self, rows: int) -> pa.RecordBatch:
        assert self.rest is not None
        taken = self.rest.slice(0, rows)
        self.rest = self.rest.slice(rows) if rows < self.rest.num_rows else None
        return taken

    async def close(self) -> None:
        if self._coming is not None:
            self._coming.cancel()
            await asyncio.gather(self._coming, return_exceptions=True)
        await self._batches.aclose()


class _Commit(NamedTuple):
    """The content of a commit, and the counts after it."""

    positions: Mapping[int, LanePosition]
    counts: Mapping[int, LaneCounts]


class _RunningReplay:
    def __init__(
        self,
        work: ReplayWork,
        sink: RecordSink,
        pace: Pace,
        control: Commands,
        progress: Progress,
        keeping: Keeping,
        cadence: Cadence,
    ) -> None:
        self.work, self.sink, self.pace, self.control = work, sink, pace, control
        self.progress, self.keeping, self.cadence = progress, keeping, cadence
        self._began = self.control.elapsed()
        self._counts = RunCounts(self.work.first)
        self._ledger = Ledger({})
        self._outstanding = Outstanding[_Commit]()
        # True if ledger and sink agree: false while the sink works, and after it failed.
        self._sound = False
        self._attempted = _Commit({}, {})
        # The content of a commit that is not answered yet.
        self._attempted_runs: Sequence[Run] = ()
        self._delivered: dict[int, OffsetRange] = {}
        # The least ends of the lanes: after what was written.
        self._ends: Mapping[int, int] = {}
        self._open_records = self._open_bytes = 0
        self._open_since: float | None = None
        # No commit is due before.
        self._not_before = 0.0
        # Time of the loop's clock to stop a busy sink; None before the command to end.
        self._stop_at: float | None = None

    async def to_the_end(self) -> ReplayResult:
        lost = tries = 0
        in_vain_since = self.control.elapsed()
        while True:
            reached = self._ledger.last
            try:
                await self._begin()
                await self._replay()
                break
            except CommitLost as error:
                if isinstance(error, ProducerFenced):
                    await self._refuse_takeover(error)
                lost += 1
                tries += 1
                if self._ledger.last != reached:
                    tries, in_vain_since = 1, self.control.elapsed()
                in_vain = self.control.elapsed() - in_vain_since
                if in_vain >= self.keeping.patience or self.control.ending:
                    raise
                await self.control.wait(min(RETRY_SECONDS * (tries - 1), LONGEST_RETRY_SECONDS))
        seconds = self.control.elapsed() - self._began
        return self._counts.result(self._ledger.last, self._delivered, seconds=seconds, lost_commits=lost)

    async def settle(self, error: BlockgzError) -> BlockgzError:
        """Commit after an error what was handed over, unless the commit itself failed; return the error, or its
        cause.
        """
        if self._sound:
            with suppress(BlockgzError):
                await self._checkpoint(wait=True)
        await asyncio.to_thread(self.sink.stop)
        if not self.sink.rolls_back:
            with suppress(BlockgzError):
                await self._note_the_rest()
        if not isinstance(error, TargetChanged | JobTakenOver) and not self.control.ending:
            try:
                await asyncio.to_thread(self.keeping.check, self._ends)
            except TargetChanged as changed:
                return changed
            except BlockgzError:
                pass
        return error

    def written(self) -> str:
        """Return what this run has written so far, for an error."""
        parts = [f"partition {lane} [{taken.start}..{taken.end})" for lane, taken in sorted(self._delivered.items())]
        if parts:
            return f"written to the target: {', '.join(parts)}"
        records = self._counts.records
        return f"{records} records were written to the target" if records else "nothing was written to the target"

    async def _begin(self) -> None:
        first, log = self.work.first, self.keeping.log
        self._sound = False
        await self._by_sink(log.claim)
        recorded = await self._by_sink(self.sink.begin, sorted(first))
        if self.work.follows:
            recorded = continued(recorded, first)
        refuse_other_job(recorded, first)
        self._refuse_foreign_progress(recorded)
        self._learn_what_stands(recorded)
        least = await self._by_sink(log.written_ends, recorded)
        wanted = {lane: least.get(lane, 0) for lane in first}
        ends = await self._patiently(self.keeping.check, wanted, *UNKNOWN_YET)
        await self._by_sink(log.begun, recorded, ends)
        self.sink.stand_at(ends)
        self._ends = {**ends, **least}
        self._ledger = Ledger({**first, **recorded})
        # This fixes the job's ranges: a resumed run reads the same records even if the archive grows.
        # Those of a job that follows its archive are committed again, or the cluster forgets them when nothing comes.
        again = {} if self.work.follows else recorded
        positions = {lane: recorded.get(lane, position) for lane, position in first.items() if lane not in again}
        await self._commit(_Commit(positions, {}), ())

    def _learn_what_stands(self, recorded: Mapping[int, LanePosition]) -> None:
        """Learn whether an unanswered commit succeeded, and forget the records that must be sent a second time."""
        positions, counts = self._attempted
        standing = {lane for lane, position in positions.items() if recorded.get(lane) == position}
        self._counts.committed({lane: each for lane, each in counts.items() if lane in standing})
        self._deliver(run for run in self._attempted_runs if run.lane in standing)
        self._attempted, self._attempted_runs = _Commit({}, {}), ()
        self._counts.rolled_back()
        self._outstanding = Outstanding()
        self.progress(-self._open_records, -self._open_bytes)
        self._open_records = self._open_bytes = 0
        self._open_since = None

    def _refuse_foreign_progress(self, recorded: Mapping[int, LanePosition]) -> None:
        """Raise JobTakenOver if the recorded positions after a lost commit are not this run's."""
        for lane, ours in self._ledger.last.items():
            found = recorded.get(lane, self.work.first[lane])
            if found not in (ours, self._attempted.positions.get(lane)):
                raise JobTakenOver(
                    f"another run of the job writes to target partition {lane}",
                    why=f"{found.written} records are committed there, and this run knew of {ours.written}",
                    remedy="let the other run finish; if there is none, run this again with --resume",
                )

    async def _refuse_takeover(self, error: ProducerFenced) -> None:
        """Raise JobTakenOver, unless certainly no other run began: then a late request of this run fenced it."""
        try:
            ours = await asyncio.to_thread(self.keeping.log.is_ours)
        except BlockgzError:
            ours = None
        if ours:
            return
        why = "another run of the same job has started" if ours is False else error.why
        raise JobTakenOver(error.what, why=why, remedy=error.remedy) from error

    async def _replay(self) -> None:
        waiting = deque(self.work.selections)
        at_once = len(waiting) if self.pace.by_time else min(len(waiting), SOURCES_AT_ONCE)
        at_once = max(at_once, 1)
        reading: list[_Source] = []
        try:
            while (waiting or reading) and not self.control.ending:
                while waiting and len(reading) < at_once:
                    partition, (_, end), *_ = waiting.popleft()
                    start = self._ledger.start_of(partition.partition)
                    if start is not None:
                        rest = Selection(partition, OffsetRange(start, end))
                        reading.append(_Source(partition.partition, end, self._batches(rest, at_once)))
                await self._portion(reading)
        finally:
            for source in reading:
                await source.close()
        await self._checkpoint(wait=True)
        if not self.control.ending:
            await self._patiently(self.keeping.check, self._ends, *UNKNOWN_YET)

    def _batches(self, rest: Selection, at_once: int) -> AsyncGenerator[pa.RecordBatch]:
        record_filter, on_damage = self.work.reading
        return selected(rest, record_filter, on_damage(rest.partition), READ_AHEAD.shared(at_once))

    async def _portion(self, reading: list[_Source]) -> None:
        """Send what the pace allows from each source, or wait until it allows something or a commit is due."""
        if self.control.paused:
            await self._checkpoint(wait=True)
            await self.control.wait(None)
            return
        wait: float | None = None
        for source in await self._ready(reading):
            if source.rest is None:
                await source.close()
                reading.remove(source)
                self._ledger.passed(source.number, source.end)
                wait = 0.0
                continue
            due = self.pace.due(source.rest, self.control.elapsed())
            if due.rows:
                await self._send(source.number, source.take(due.rows))
                wait = 0.0
            else:
                wait = due.seconds if wait is None else min(wait, due.seconds)
            if self._due_in() <= 0:
                break
        if self._due_in() <= 0:
            await self._checkpoint(wait=False)
        elif wait:
            await self.control.wait(min(wait, self._due_in()))

    async def _ready(self, reading: Sequence[_Source]) -> list[_Source]:
        """Return the sources that have records or are at their end; wait for one, or for all if times decide."""
        if self.pace.by_time:
            ready = []
            for source in reading:
                if not await source.ready(self._due_in()):
                    break
                ready.append(source)
            return ready
        if all(source.rest is None for source in reading) and reading:
            coming = [source.coming for source in reading]
            await asyncio.wait(coming, timeout=self._due_in(), return_when=asyncio.FIRST_COMPLETED)
        return [source for source in reading if await source.ready(0.0)]

    async def _send(self, source: int, batch: pa.RecordBatch) -> None:
        num_bytes = payload_bytes(batch)
        if self._open_since is None:
            self._open_since = self.control.elapsed()
        sent_records, sent_bytes = await self._by_sink(self._hand_over, source, batch)
        self._open_records += batch.num_rows
        self._open_bytes += num_bytes
        self.pace.sent(sent_records, sent_bytes, self.control.elapsed())
        self.progress(batch.num_rows, num_bytes)

    def _hand_over(self, source: int, batch: pa.RecordBatch) -> tuple[int, int]:
        """Send a batch through pipeline and sink; return the records and bytes sent."""
        records = num_bytes = 0
        for piece in self.work.pipeline(ScannedBatch(source, batch)):
            self._sound = False
            fresh, zeros = sendable(self._ledger.accept(source, piece))
            if fresh.num_rows:
                # First: of what cannot be sent to its end, the cluster may have taken the beginning.
                self._outstanding.sent(piece.target, source, fresh.column("offset").to_numpy().copy())
                self.sink.send(piece.target, fresh)
                self._counts.add(source, piece.target, fresh, zeros)
                records += fresh.num_rows
                num_bytes += payload_bytes(fresh)
            self._sound = True
        self._ledger.passed(source, batch.column("offset")[-1].as_py() + 1)
        return records, num_bytes

    async def _checkpoint(self, *, wait: bool) -> None:
        """Commit as far as the cluster took what was handed over; with `wait`, all of it."""
        began = self.control.elapsed()
        positions = self._ledger.positions()
        if positions:
            self._outstanding.mark(_Commit(positions, self._counts.noted(positions)))
        self._sound = False
        taken = await self._beside_check(partial(self.sink.acknowledged, wait=wait))
        self._outstanding.took(taken)
        runs, mark = self._outstanding.due()
        if mark is not None:
            await self._commit(mark, runs)
        self._open_records = self._open_bytes = 0
        self._open_since = None
        self._sound = True
        # A commit that took long, as on a cluster far away, delays the next one: all take a small share of the time.
        rest = (self.control.elapsed() - began) * self.cadence.rest
        self._not_before = self.control.elapsed() + min(rest, self.cadence.longest_rest)

    async def _patiently(self, step: Callable[[U], T], given: U, *passing: type[BlockgzError]) -> T:
        """Take a step; repeat it at errors that pass, of a silent cluster or store, until patience is over."""
        deadline = self.control.elapsed() + self.keeping.patience
        while True:
            try:
                return await self._by_sink(step, given)
            except passing:
                if self.control.ending or self.control.elapsed() >= deadline:
                    raise
            await self.control.wait(RETRY_SECONDS)

    def _check(self) -> None:
        """Check the target; if it cannot be queried now, the next commit does it."""
        with suppress(*UNKNOWN_YET):
            self.keeping.check(self._ends)

    async def _beside_check(self, step: Callable[[], T]) -> T:
        """Take a step of the sink while the target is checked; a changed target ends both."""
        checking = asyncio.ensure_future(asyncio.to_thread(self._check))
        working = asyncio.ensure_future(self._by_sink(step))
        try:
            await asyncio.wait({checking, working}, return_when=asyncio.FIRST_EXCEPTION)
            if checking.done() and checking.exception() is not None:
                await asyncio.to_thread(self.sink.stop)
            else:
                await working
            await checking
            return await working
        finally:
            await asyncio.gather(checking, working, return_exceptions=True)

    async def _commit(self, mark: _Commit, runs: Sequence[Run]) -> None:
        """Note the runs in the log, then commit the positions after them."""
        if runs:
            await self._patiently(self.keeping.log.note, runs, StoreUnavailable)
        self._attempted, self._attempted_runs = mark, runs
        if mark.positions:
            await self._patiently(self.keeping.note_skips, None, StoreUnavailable)
            await self._by_sink(self.sink.commit, mark.positions)
        self._attempted, self._attempted_runs = _Commit({}, {}), ()
        self._ledger.committed(mark.positions)
        self.control.committed = dict(self._ledger.last)
        self._counts.committed(mark.counts)
        self._deliver(runs)
        self._sound = True

    async def _note_the_rest(self) -> None:
        """Note what the cluster took after the last commit, at the end of a job without transactions."""
        self._outstanding.took(await asyncio.to_thread(self.sink.acknowledged, wait=False))
        runs = self._outstanding.rest()
        self._deliver(runs)
        if runs:
            await asyncio.to_thread(self.keeping.log.note, runs)

    def _deliver(self, runs: Iterable[Run]) -> None:
        ends = dict(self._ends)
        for run in runs:
            first = self._delivered[run.lane].start if run.lane in self._delivered else run.target_start
            self._delivered[run.lane] = OffsetRange(first, run.target_end)
            ends[run.lane] = max(run.target_end, ends.get(run.lane, 0))
        self._ends = ends

    async def _by_sink(self, step: Callable[..., T], *args: object) -> T:
        """Run a step of the sink in a thread; stop the sink if the step is slow once the replay is to end."""
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(asyncio.to_thread(step, *args))
        while not (await asyncio.wait({work}, timeout=LISTEN_SECONDS))[0]:
            if not self.control.ending:
                continue
            self._stop_at = self._stop_at or loop.time() + ENDING_SECONDS
            if loop.time() >= self._stop_at:
                await asyncio.to_thread(self.sink.stop)
                break
        return await work

    def _due_in(self) -> float:
        """Return seconds until a commit is due."""
        if self._open_since is None:
            return self.cadence.seconds
        now = self.control.elapsed()
        full = self._open_records >= self.cadence.records or self._open_bytes >= self.cadence.bytes
        return max(0.0 if full else self._open_since + self.cadence.seconds - now, self._not_before - now)
