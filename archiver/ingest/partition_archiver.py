"""One partition on its way into the archive: an inbox, an open chunk, and at most one commit in flight.

The consumer thread offers events and never waits. A worker thread encodes and compresses; another commits, while the
next chunk is being built.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import astuple, dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from archiver.commit.commit import PartitionIdentity, commit_chunk, commit_progress
from archiver.commit.driver import Driver
from archiver.commit.objects import Held, RestingMarker
from archiver.commit.operations import Protocol
from archiver.commit.recovery import Claimed
from archiver.errors import Diverged, UnencodableRecord, UnreadableRecord
from archiver.ingest.buffer import BufferFolder
from archiver.ingest.chunk_builder import ENTRY_BYTES, ChunkBuilder
from archiver.ingest.kafka_source import EndReached, Fetched, Unreadable
from archiver.ingest.roll_policy import OpenChunkFacts, RollLimits, RollReason, roll_reason, rows_that_fit
from archiver.logs import LogEvent, log
from index_format import marker as markers
from index_format.blocks import Compressor
from index_format.errors import BlockgzError
from index_format.marker import Marker
from index_format.record_formats import RecordFormat


@dataclass(frozen=True)
class ChunkSettings:
    """How chunks of every partition are made."""

    record_format: RecordFormat
    compressor: Compressor
    block_bytes: int
    limits: RollLimits
    bad_records_are_skipped: bool


@dataclass(frozen=True)
class Tick:
    """Time has passed: `now` in seconds of the service's monotonic clock."""

    now: float


@dataclass(frozen=True)
class Flush:
    """End and commit whatever is open."""

    reason: RollReason


@dataclass(frozen=True)
class EndBlock:
    """Move the open block out of memory, whatever its size."""


PartitionEvent = Fetched | EndReached | Unreadable | Tick | Flush | EndBlock


@dataclass
class PartitionCounts:
    """What this process archived of the partition since it claimed it."""

    records: int = 0
    chunks: int = 0
    commits: int = 0
    """Swaps of the marker: of chunks, and of progress without records."""
    commit_seconds: float = 0.0
    """Time that commits took, uploads and retries included."""
    stored_bytes: int = 0
    dropped_duplicates: int = 0
    skipped: int = 0

    def __add__(self, other: "PartitionCounts") -> "PartitionCounts":
        return PartitionCounts(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


class PartitionArchiver:
    """Takes events of one claimed partition; safe for use by one offering thread and the executors' threads."""

    def __init__(
        self,
        identity: PartitionIdentity,
        claimed: Claimed,
        settings: ChunkSettings,
        *,
        buffer: BufferFolder,
        driver: Driver,
        builders: Executor,
        committers: Executor,
        clock: Callable[[], float],
        end_offset: int | None,
    ) -> None:
        """`end_offset`: archive nothing at or above it; None follows the log."""
        self._identity = identity
        self._settings = settings
        self._buffer = buffer
        self._driver = driver
        self._builders = builders
        self._committers = committers
        self._clock = clock
        self._end_offset = end_offset
        self._guard = threading.Lock()
        self._inbox: deque[PartitionEvent] = deque()
        self._inbox_bytes = 0
        self._building = False
        self._committing = False
        self._resting = RestingMarker.of(claimed.held)
        self._chunk: ChunkBuilder | None = None
        self._pending: deque[PendingCommit] = deque()
        self._chain_end = claimed.held.marker.chain_end
        self._position = claimed.position
        self._leader_epoch = claimed.held.marker.leader_epoch
        self._progressed_at = clock()
        self._closed = False
        self._failing_with: BlockgzError | None = None
        self.failure: BlockgzError | None = None
        """Why the partition stopped; set once."""
        self.counts = PartitionCounts()

    @property
    def held(self) -> Held:
        """The marker as last committed by this writer; unpacked for each call."""
        return self._resting.held()

    @property
    def resting(self) -> RestingMarker:
        """The same as it is kept."""
        return self._resting

    @property
    def position(self) -> int:
        """The offset up to which records were taken into chunks."""
        return self._position

    @property
    def committed(self) -> int | None:
        """The offset up to which the archive holds the partition; None before the first commit."""
        return self._resting.next_offset

    @property
    def inbox_bytes(self) -> int:
        """Bytes that were offered and not yet taken into a chunk."""
        return self._inbox_bytes

    @property
    def open_bytes(self) -> int:
        """Compressed bytes of the open chunk."""
        chunk = self._chunk
        return chunk.facts.compressed_bytes if chunk else 0

    @property
    def open_block_bytes(self) -> int:
        """Encoded bytes that wait in memory for their block to fill."""
        chunk = self._chunk
        return chunk.open_block_bytes if chunk else 0

    @property
    def open_index_bytes(self) -> int:
        """Bytes in memory that say what the open chunk's finished blocks hold."""
        chunk = self._chunk
        return chunk.facts.num_blocks * ENTRY_BYTES if chunk else 0

    @property
    def open_chunk(self) -> OpenChunkFacts | None:
        """The chunk that takes records now; None while none came since the last one ended."""
        chunk = self._chunk
        facts = chunk.facts if chunk else None
        return facts if facts and facts.num_records else None

    @property
    def oldest_uncommitted_ms(self) -> int | None:
        """The timestamp of the first record that was taken into a chunk and is not committed."""
        with self._guard:
            chunks = [commit.chunk for commit in self._pending]
        return next((chunk.first_timestamp for chunk in (*chunks, self._chunk) if chunk is not None), None)

    @property
    def is_idle(self) -> bool:
        """Whether everything offered was handled and no commit runs; true after a failure."""
        with self._guard:
            return not (self._inbox or self._building or self._committing or self._pending)

    @property
    def is_committing(self) -> bool:
        """Whether a chunk waits to be committed, or was told to end."""
        with self._guard:
            return self._committing or bool(self._pending) or any(isinstance(event, Flush) for event in self._inbox)

    @property
    def is_drained(self) -> bool:
        """Whether the partition was archived up to its end offset."""
        return self._end_offset is not None and self._position >= self._end_offset

    def offer(self, event: PartitionEvent) -> None:
        """Hand over an event; never waits. Nothing is taken after a failure or `close`."""
        with self._guard:
            if self._is_over:
                return
            if isinstance(event, Tick) and self._inbox:
                return  # what waits looks at the clock itself; an outage must not pile ticks up
            if isinstance(event, EndBlock) and event in self._inbox:
                return
            self._inbox.append(event)
            self._inbox_bytes += event.num_bytes if isinstance(event, Fetched) else 0
        self._start_building()

    def close(self) -> None:
        """Forget the partition: nothing more is written, the open chunk's buffer is given back."""
        with self._guard:
            self._closed = True
            self._inbox.clear()
            self._inbox_bytes = 0
            if not self._building:
                self._drop_open_chunk()
            if not self._committing:
                self._discard_pending()

    def _start_building(self) -> None:
        with self._guard:
            if self._building or self._is_stalled or not self._inbox:
                return
            self._building = True
        self._builders.submit(self._build)

    def _build(self) -> None:
        """Handle events until none is left or a second finished chunk would have to wait."""
        while True:
            with self._guard:
                if self._is_over:
                    self._inbox.clear()
                    self._inbox_bytes = 0
                    self._drop_open_chunk()
                if self._is_stalled or not self._inbox:
                    self._building = False
                    return
                event = self._inbox.popleft()
            try:
                self._handle(event)
            except BlockgzError as error:
                self.fail(error)
            except Exception as error:  # a fault of ours must stop the partition, never vanish in a thread
                self.fail(self._internal(error))
            if isinstance(event, Fetched):
                with self._guard:
                    self._inbox_bytes = max(0, self._inbox_bytes - event.num_bytes)

    def _handle(self, event: PartitionEvent) -> None:
        match event:
            case Fetched():
                try:
                    self._take(event)
                except UnencodableRecord as error:
                    self._stop_at(error.offset, error)
            case EndReached(position=position):
                self._pass_to(position)
            case Unreadable(offset=offset, error=error):
                self._skip(offset, error)
            case Tick(now=now):
                self._roll_when_due(now)
            case Flush():
                self._roll_or_progress()
            case EndBlock():
                if self._chunk is not None:
                    self._chunk.end_block()

    def _take(self, fetched: Fetched) -> None:
        batch = self._wanted(fetched)
        while batch.num_rows:
            chunk = self._open_chunk()
            timestamps = batch.column("timestamp").to_numpy()
            fitting = rows_that_fit(timestamps, chunk.facts.num_records, chunk.first_timestamp, self._settings.limits)
            if fitting:
                self._add(chunk, batch.slice(0, fitting), fetched.leader_epoch)
                batch = batch.slice(fitting)
            if fitting < len(timestamps) and chunk.facts.num_records:
                self._roll()
            else:
                self._roll_when_due(self._clock())
        if self._end_offset is not None and fetched.last_offset >= self._end_offset:
            self._pass_to(self._end_offset)
        if fetched.leader_epoch is not None:
            self._leader_epoch = fetched.leader_epoch

    def _add(self, chunk: ChunkBuilder, batch: pa.RecordBatch, leader_epoch: int | None) -> None:
        skipped_before = chunk.skipped
        chunk.add(batch, leader_epoch, self._clock())
        self.counts.skipped += chunk.skipped - skipped_before
        self._position = batch.column("offset")[batch.num_rows - 1].as_py() + 1

    def _skip(self, offset: int, error: UnreadableRecord) -> None:
        """Pass a record that the client cannot hand over, where that is the policy."""
        if self._end_offset is not None and offset >= self._end_offset:
            self._pass_to(self._end_offset)
        elif offset >= self._position:
            if not self._settings.bad_records_are_skipped:
                self._stop_at(offset, error)
                return
            self._open_chunk().skip(offset)
            self._pass_to(offset + 1)
            self.counts.skipped += 1

    def _stop_at(self, offset: int, error: BlockgzError) -> None:
        """Commit what lies below a bad record, then fail."""
        self._pass_to(offset)
        self._roll_or_progress()
        with self._guard:
            self._failing_with = error
            is_waited_for = self._committing or self._pending
        if not is_waited_for:
            self.fail(error)

    def _pass_to(self, position: int) -> None:
        """Raise the position, never beyond the end offset: what lies there was fetched, but not taken."""
        bounded = position if self._end_offset is None else min(position, self._end_offset)
        self._position = max(self._position, bounded)

    def _wanted(self, fetched: Fetched) -> pa.RecordBatch:
        """The records at or above the position and below the end offset; see the guard in docs/commit.md."""
        batch = fetched.batch
        offsets = batch.column("offset")
        if offsets[0].as_py() < self._position:
            if _is_newer(fetched.leader_epoch, self._leader_epoch):
                raise Diverged(
                    f"{self._name}: offset {offsets[0].as_py()} came again under leader epoch {fetched.leader_epoch}",
                    why=f"the log was truncated below offset {self._position}, which was already read",
                    remedy="find out what happened to the topic; nothing more is archived from it",
                )
            batch = batch.filter(pc.greater_equal(offsets, self._position))
            self.counts.dropped_duplicates += fetched.batch.num_rows - batch.num_rows
        if self._end_offset is not None and fetched.last_offset >= self._end_offset:
            batch = batch.filter(pc.less(batch.column("offset"), self._end_offset))
        return batch

    def _open_chunk(self) -> ChunkBuilder:
        if self._chunk is None:
            if self._chain_end is None:
                self._chain_end = self._position
            self._chunk = ChunkBuilder(
                record_format=self._settings.record_format,
                compressor=self._settings.compressor,
                block_bytes=self._settings.block_bytes,
                bad_records_are_skipped=self._settings.bad_records_are_skipped,
                buffer=self._buffer.new_file(),
                start_offset=self._chain_end,
                opened_at=self._clock(),
            )
        return self._chunk

    def _roll_when_due(self, now: float) -> None:
        if self._chunk is not None and self._chunk.facts.num_records:
            if roll_reason(self._chunk.facts, self._settings.limits, now):
                self._roll()
        elif now - self._progressed_at >= self._settings.limits.chunk_interval_seconds:
            self._progressed_at = now
            self._roll_or_progress()

    def _roll_or_progress(self) -> None:
        if self._chunk is not None and self._chunk.facts.num_records:
            self._roll()
            return
        with self._guard:
            busy = self._committing or self._pending
        if busy or (self.committed is not None and self._position <= self.committed):
            return
        position, gaps = self._position, self._chunk.gaps if self._chunk else ()
        moved = markers.advanced(self.held.marker, position, nonce="preview", leader_epoch=None, gaps=gaps)
        self._drop_open_chunk()
        self._chain_end = moved.chain_end
        self._queue(PendingCommit(None, lambda held: commit_progress(self._identity, held, position, gaps)))

    def _roll(self) -> None:
        assert self._chunk is not None
        finished = self._chunk.finish(self._position)
        self._chain_end = finished.next_offset
        self._queue(PendingCommit(self._chunk, lambda held: commit_chunk(self._identity, held, finished)))
        self._chunk = None

    def _queue(self, commit: "PendingCommit") -> None:
        with self._guard:
            self._pending.append(commit)
            if self._committing:
                return
            self._committing = True
        self._committers.submit(self._commit_all)

    def _commit_all(self) -> None:
        while self._commit_next():
            self._start_building()
        self._start_building()

    def _commit_next(self) -> bool:
        """Commit what has waited longest; False once nothing waits."""
        with self._guard:
            if self._closed or self.failure is not None:
                self._discard_pending()
            if not self._pending:
                self._committing = False
                if self._failing_with is not None and self.failure is None and not self._closed:
                    self.failure = self._failing_with
                return False
            commit = self._pending[0]
        try:
            held, begun = self.held, self._clock()
            swapped = self._driver.run(commit.protocol(held))
            self._resting = RestingMarker.of(swapped)
            self._count(held.marker, swapped.marker, self._clock() - begun)
        except BlockgzError as error:
            self.fail(error)
        except Exception as error:  # see _build
            self.fail(self._internal(error))
        else:
            with self._guard:
                self._pending.popleft()
            commit.discard()
        return True

    def _count(self, before: Marker, now: Marker, seconds: float) -> None:
        self.counts.commits += 1
        self.counts.commit_seconds += seconds
        if now.last_chunk_index != before.last_chunk_index and now.tail:
            chunk = now.tail[-1]
            self.counts.chunks += 1
            self.counts.records += chunk.num_records
            self.counts.stored_bytes += chunk.bytes
            log.info(
                LogEvent.COMMITTED,
                topic=str(self._identity.keys.folder),
                partition=self._identity.keys.partition,
                next_offset=now.next_offset,
                records=chunk.num_records,
                stored_bytes=chunk.bytes,
                seconds=round(seconds, 3),
            )

    def fail(self, error: BlockgzError) -> None:
        """Stop the partition: nothing more is taken or committed, what is open is given back."""
        with self._guard:
            if self.failure is None and not self._closed:
                self.failure = error

    def _internal(self, error: Exception) -> BlockgzError:
        failure = BlockgzError(f"{self._name}: internal error", why=repr(error))
        failure.__cause__ = error
        return failure

    def _drop_open_chunk(self) -> None:
        if self._chunk is not None:
            self._chunk.discard()
            self._chunk = None

    def _discard_pending(self) -> None:
        for commit in self._pending:
            commit.discard()
        self._pending.clear()

    @property
    def _is_over(self) -> bool:
        """Whether nothing more is taken; what is finished may still be committed."""
        return self._closed or self.failure is not None or self._failing_with is not None

    @property
    def _is_stalled(self) -> bool:
        """A chunk waits for the commit in flight, so that no more are built for now."""
        return len(self._pending) > 1

    @property
    def _name(self) -> str:
        return f"{self._identity.topic}:{self._identity.keys.partition}"


def _is_newer(epoch: int | None, known: int | None) -> bool:
    """Whether a leader wrote under a later epoch; records keep theirs, so an older one is a plain redelivery."""
    return epoch is not None and known is not None and epoch > known


class PendingCommit(NamedTuple):
    """What waits to be committed: a finished chunk's buffer, None for progress without records; and how."""

    chunk: ChunkBuilder | None
    protocol: Callable[[Held], Protocol[Held]]

    def discard(self) -> None:
        """Give the buffer back."""
        if self.chunk is not None:
            self.chunk.discard()
