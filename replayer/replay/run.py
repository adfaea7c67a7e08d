"""Running a job: scan, pipeline and sink, and after every so much a commit of the records and of the position."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from index_format.errors import BlockgzError
from index_format.records import payload_bytes
from replayer.errors import CommitLost, JobTakenOver
from replayer.read.blocks import ReadAhead
from replayer.read.positions import OffsetRange
from replayer.read.selection import Reading, Selection, selected
from replayer.replay.job import refuse_other_job
from replayer.replay.ledger import LanePosition, Ledger
from replayer.replay.pace import Commands, Pace
from replayer.replay.pipeline import Pipeline, ScannedBatch
from replayer.replay.result import Delivered, ReplayResult, RunCounts
from replayer.replay.stages import sendable

T = TypeVar("T")

LOST_COMMITS = 5
"""So many in a row without any progress end a replay."""
RETRY_SECONDS = 1.0
ENDING_SECONDS = 10.0
"""So long after the word to end, a sink that is still at work is stopped; a commit takes far less."""
LISTEN_SECONDS = 0.2
READ_AHEAD = ReadAhead(16 * 1024 * 1024, 6 * 1024 * 1024)
"""The sink is the slower side: what keeps it busy is enough."""

Progress = Callable[[int, int], None]
"""Called with the records, and bytes of keys and values, that were read and handled; less, if rolled back."""


class Cadence(NamedTuple):
    """A commit is due after so many records or bytes, or so long after the first of them."""

    records: int = 25_000
    bytes: int = 8 * 1024 * 1024
    seconds: float = 5.0


CADENCE = Cadence()


class ReplayWork(NamedTuple):
    """What to replay: selections, where each lane stood before the first record of the job, and how to read."""

    selections: Sequence[Selection]
    first: Mapping[int, LanePosition]
    reading: Reading = Reading()


class RecordSink(Protocol):
    """Takes records and positions; all but `stop` block and are called by one thread at a time.

    After an error that `is_lost` calls a lost commit, `begin` may be called again and says what stands.
    """

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        """Takes these target partitions over: whoever wrote to them for this job can do so no more.

        What they have committed, by lane; a lane without a position is missing. What was sent and not committed counts
        as not written from now on.
        """

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        """Takes the batch, in order; raises a BlockgzError once it is known that a record was not taken."""

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Makes what was sent to these lanes last, and these positions with it."""

    def delivered(self) -> Mapping[int, Delivered]:
        """What is known to be written by now, committed where there are transactions."""

    def stop(self) -> None:
        """Gives up: a call under way ends soon. May be called from any thread."""


async def run_replay(
    work: ReplayWork,
    pipeline: Pipeline,
    sink: RecordSink,
    pace: Pace,
    control: Commands,
    progress: Progress,
    cadence: Cadence = CADENCE,
) -> ReplayResult:
    """Replays what the sink's positions leave to do, and waits until it is committed.

    Memory holds what is read ahead and what the sink has not sent. A transaction that was rolled back is written
    again. An error, of archive or sink, says in its reason what was written before; everything that was handed over
    before damage in the archive is committed first.
    """
    run = _RunningReplay(work, pipeline, sink, pace, control, progress, cadence)
    try:
        return await run.to_the_end()
    except BlockgzError as error:
        await run.settle()
        error.why = "; ".join(part for part in (error.why, written_text(sink.delivered())) if part)
        raise
    except BaseException:
        sink.stop()
        raise


def written_text(delivered: Mapping[int, Delivered]) -> str:
    """What was written before an error, for its reason."""
    parts = [
        f"partition {partition} offsets {lane.first_offset} to {lane.last_offset}"
        for partition, lane in sorted(delivered.items())
        if lane.last_offset is not None
    ]
    return f"written to the target: {', '.join(parts)}" if parts else "nothing was written to the target"


class _Source:
    """One partition while it is read."""

    def __init__(self, number: int, end: int, batches: AsyncGenerator[pa.RecordBatch]) -> None:
        self.number = number
        self.end = end
        self.rest: pa.RecordBatch | None = None
        """What of the newest batch has not gone yet; None before the first and after the last."""
        self._batches = batches
        self._coming: asyncio.Future[pa.RecordBatch | None] | None = None

    async def ready(self, seconds: float) -> bool:
        """Waits so long for `rest` to be filled; whether it is, or is None because nothing more comes.

        Raises what `selected` raises.
        """
        if self.rest is None:
            self._coming = self._coming or asyncio.ensure_future(anext(self._batches, None))
            done, _ = await asyncio.wait({self._coming}, timeout=seconds)
            if not done:
                return False
            self.rest, self._coming = self._coming.result(), None
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


@dataclass
class _RunningReplay:
    """One call of `run_replay`."""

    work: ReplayWork
    pipeline: Pipeline
    sink: RecordSink
    pace: Pace
    control: Commands
    progress: Progress
    cadence: Cadence

    def __post_init__(self) -> None:
        self._began = self.control.elapsed()
        self._counts = RunCounts(self.work.first)
        self._ledger = Ledger({})
        self._sound = False
        """Whether ledger and sink agree: not while the sink is at work, and not after it failed."""
        self._attempted: Mapping[int, LanePosition] = {}
        """What a commit under way writes."""
        self._open_records = self._open_bytes = 0
        self._open_since: float | None = None
        self._stop_at: float | None = None
        """When to stop a sink that is still at work, on the loop's clock; None until the word to end came."""

    async def to_the_end(self) -> ReplayResult:
        lost = in_vain = 0
        while True:
            reached = self._ledger.last
            try:
                await self._begin()
                await self._replay()
                break
            except CommitLost:
                lost += 1
                in_vain = in_vain + 1 if self._ledger.last == reached else 1
                if in_vain >= LOST_COMMITS or self.control.ending:
                    raise
                await self.control.wait(RETRY_SECONDS * (in_vain - 1))
        seconds = self.control.elapsed() - self._began
        return self._counts.result(self._ledger.last, self.sink.delivered(), seconds=seconds, lost_commits=lost)

    async def settle(self) -> None:
        """After an error: commits what was handed over, unless that is what failed."""
        try:
            if self._sound:
                await self._commit(self._ledger.positions())
                return
        except BlockgzError:
            pass
        self.sink.stop()

    async def _begin(self) -> None:
        first = self.work.first
        self._sound = False
        recorded = await self._by_sink(self.sink.begin, sorted(first))
        refuse_other_job(recorded, first)
        self._refuse_foreign_progress(recorded)
        self._counts.committed(lane for lane, position in self._attempted.items() if recorded.get(lane) == position)
        self._counts.rolled_back()
        self.progress(-self._open_records, -self._open_bytes)
        self._ledger = Ledger({**first, **recorded})
        # From then on the job's ranges stand: whoever resumes it reads the same, however the archive grows.
        await self._commit({lane: position for lane, position in first.items() if lane not in recorded})

    def _refuse_foreign_progress(self, recorded: Mapping[int, LanePosition]) -> None:
        """After a lost commit: what is recorded is what this run wrote, or somebody else resumed the job."""
        for lane, ours in self._ledger.last.items():
            found = recorded.get(lane, self.work.first[lane])
            if found not in (ours, self._attempted.get(lane)):
                raise JobTakenOver(
                    f"another run of the job writes to target partition {lane}",
                    why=f"{found.written} records are committed there, and this run knew of {ours.written}",
                    remedy="let the other run finish; if there is none, run this again with --resume",
                )

    async def _replay(self) -> None:
        waiting = deque(self.work.selections)
        at_once = max(len(waiting), 1) if self.pace.by_time else 1
        reading: list[_Source] = []
        try:
            while (waiting or reading) and not self.control.ending:
                while waiting and len(reading) < at_once:
                    partition, (_, end) = waiting.popleft()
                    start = self._ledger.start_of(partition.partition)
                    if start is not None:
                        rest = Selection(partition, OffsetRange(start, end))
                        reading.append(_Source(partition.partition, end, self._batches(rest, at_once)))
                await self._portion(reading)
        finally:
            for source in reading:
                await source.close()
        await self._commit(self._ledger.positions())

    def _batches(self, rest: Selection, at_once: int) -> AsyncGenerator[pa.RecordBatch]:
        record_filter, on_damage = self.work.reading
        return selected(rest, record_filter, on_damage(rest.partition), READ_AHEAD.shared(at_once))

    async def _portion(self, reading: list[_Source]) -> None:
        """Sends what may go now from each source, or waits until something may, with nothing open for too long."""
        if self.control.paused:
            await self._commit(self._ledger.positions())
            await self.control.wait(None)
            return
        wait: float | None = None
        for source in tuple(reading):
            if not await source.ready(self._due_in()):
                break
            if source.rest is None:
                await source.close()
                reading.remove(source)
                self._ledger.passed(source.number, source.end)
                return
            due = self.pace.due(source.rest, self.control.elapsed())
            if due.rows:
                await self._send(source.number, source.take(due.rows))
                wait = 0.0
            else:
                wait = due.seconds if wait is None else min(wait, due.seconds)
        if self._due_in() <= 0:
            await self._commit(self._ledger.positions())
        elif wait:
            await self.control.wait(min(wait, self._due_in()))

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
        """Sends what becomes of a batch; how many records and bytes that were."""
        records = num_bytes = 0
        for piece in self.pipeline(ScannedBatch(source, batch)):
            self._sound = False
            fresh, zeros = sendable(self._ledger.accept(source, piece))
            if fresh.num_rows:
                self.sink.send(piece.target, fresh)
                self._counts.add(source, piece.target, fresh, zeros)
                records += fresh.num_rows
                num_bytes += payload_bytes(fresh)
            self._sound = True
        self._ledger.passed(source, batch.column("offset")[-1].as_py() + 1)
        return records, num_bytes

    async def _commit(self, positions: Mapping[int, LanePosition]) -> None:
        self._attempted = positions
        self._sound = False
        if positions:
            await self._by_sink(self.sink.commit, positions)
        self._attempted = {}
        self._ledger.committed(positions)
        self._counts.committed(positions)
        self._open_records = self._open_bytes = 0
        self._open_since = None
        self._sound = True

    async def _by_sink(self, step: Callable[..., T], *args: object) -> T:
        """Has a thread take a step that the sink may hold up: for a while at most, once the replay is to end."""
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
        """Seconds until a commit is due."""
        if self._open_since is None:
            return self.cadence.seconds
        if self._open_records >= self.cadence.records or self._open_bytes >= self.cadence.bytes:
            return 0.0
        return self._open_since + self.cadence.seconds - self.control.elapsed()
