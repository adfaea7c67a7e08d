"""One partition on its way into the archive: its threads, its buffer and its store. See partition_state for decisions.

The consumer thread offers events and never waits. A worker thread encodes and compresses; another commits, while the
next chunk is being built.
"""

import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa

from archiver.commit.commit import FinishedChunk, Held, PartitionIdentity, RestingMarker, commit_chunk, commit_progress
from archiver.commit.operations import BackOff, Driver
from archiver.commit.recovery import Claimed, reclaim
from archiver.errors import Diverged, Fenced, Next, TopicChanged, UnencodableRecord, what_next
from archiver.ingest.chunk_builder import BufferFolder, ChunkBuilder, ChunkSettings, part_below, rows_that_fit
from archiver.ingest.dead_letters import NOT_TAKEN, DeadLetters
from archiver.ingest.kafka_source import EndReached, Fetched, Partition, PartitionFailed, RecordRefused
from archiver.ingest.partition_state import (
    ArchivingState,
    CommitProgress,
    Ending,
    Order,
    PartitionCounts,
    PartitionEvent,
    PendingCommit,
    Tick,
    counts_of_commit,
    due,
    epoch_fell,
    flushed,
    wanted,
)
from archiver.ingest.topics import is_same_topic
from archiver.logs import FailureLog, LogEvent, log
from blockgz.errors import BlockgzError, BufferFull, PartitionUnavailable, SyncFailed
from blockgz.store.retry import backoff_seconds
from index_format.keys import PartitionKeys

# Attempts of a bounded run to write into a full buffer.
FULL_TRIES_OF_ONCE = 5
P = ParamSpec("P")
R = TypeVar("R")


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
        topic_id_now: Callable[[], str | None],
        builders: Executor,
        committers: Executor,
        failures: FailureLog,
        clock: Callable[[], float],
        end_offset: int | None,
        dead_letters: DeadLetters | None = None,
        settle_claim: Callable[[BackOff], None] = lambda _: None,
    ) -> None:
        """`topic_id_now` asks the cluster, None if it does not tell; see TopicIds.

        `end_offset`: archive nothing at or above it; None follows the log. `dead_letters` take skipped records.
        `settle_claim` has the claim in the archive's inventory, as far as that is possible now; see ClaimList.
        """
        self._identity = identity
        self._settings = settings
        self._buffer = buffer
        self._driver = driver
        self._topic_id_now = topic_id_now
        self._builders = builders
        self._committers = committers
        self._failures = failures
        self._clock = clock
        self._dead_letters = dead_letters
        self._settle_claim = settle_claim
        # False once the partition was lost: the pending chunks are offered to the store, as long as nobody else claims.
        self.may_claim = True
        # Why the partition is to be taken over again, once its owner let the consumer go of it; set once.
        self.restart: BlockgzError | None = None
        self._is_told = False
        self._guard = threading.Lock()
        self._write_again_at = -math.inf
        self._full_tries = 0
        marker = claimed.held.marker
        self._state = ArchivingState(
            marker=RestingMarker.of(claimed.held),
            position=claimed.position,
            fetched=claimed.position,
            confirmed=claimed.position,
            end_offset=end_offset,
            leader_epoch=marker.leader_epoch,
            chain_end=marker.chain_end,
            progressed_at=clock(),
        )

    @property
    def keys(self) -> PartitionKeys:
        return self._identity.keys

    @property
    def state(self) -> ArchivingState:
        """Return the partition as it is now. Safe to ask from any thread."""
        return self._state

    @property
    def held(self) -> Held:
        """Return the marker as last committed by this writer; unpacked for each call."""
        return self._state.marker.unpack()

    def offer(self, event: PartitionEvent) -> None:
        """Hand over an event; never waits. Nothing is taken after a failure or `close`."""
        self._change(ArchivingState.offered, event)
        if self._state.full is not None and (event is Order.FLUSH or self._clock() >= self._write_again_at):
            self._change(ArchivingState.offered, Order.WRITE_AGAIN)
        self._start_building()

    def told(self, topic_id: str | None, fetched: int) -> None:
        """Take the topic's id, None if unknown, that was reported after records below `fetched` were handed over."""
        claimed = self._identity.topic_id
        if topic_id is not None and claimed is None:
            self._restart_with(
                PartitionUnavailable(
                    f"{self._identity} is claimed again", why="the topic's id was unknown when it was claimed"
                )
            )
        elif topic_id is not None and topic_id == claimed:
            self._change(ArchivingState.confirmed_to, fetched)
        elif topic_id is not None:
            self._restart_with(self._changed(f"its id is {topic_id} now, and was {claimed}"))

    def _restart_with(self, why: BlockgzError) -> None:
        if not self._is_told:
            self.restart, self._is_told = why, True

    def close(self) -> None:
        """Forget the partition: nothing more is written, the open chunk's buffer is given back."""
        self._change(ArchivingState.closed)

    def _step(
        self,
        transition: Callable[Concatenate[ArchivingState, P], tuple[ArchivingState, R]],
        *args: P.args,
        **named: P.kwargs,
    ) -> R:
        """Replace the state, and give back the buffers of chunks that the new one does not have."""
        with self._guard:
            before = self._state
            after, result = transition(before, *args, **named)
            if after.chunk is not before.chunk or after.pending is not before.pending:
                kept = after.chunks
                for chunk in before.chunks:
                    if chunk not in kept:
                        chunk.discard()
            self._state = after  # only now: who sees that it is idle finds the buffers given back
            return result

    def _change(
        self, transition: Callable[Concatenate[ArchivingState, P], ArchivingState], *args: P.args, **named: P.kwargs
    ) -> None:
        self._step(lambda state: (transition(state, *args, **named), None))

    def _start_building(self) -> None:
        if self._step(ArchivingState.building):
            self._builders.submit(self._build)

    def _build(self) -> None:
        """Handle an event, unless a second finished chunk would have to wait; then it is another partition's turn."""
        if (event := self._step(ArchivingState.next_event)) is not None:
            with self._failing():
                self._handle(event)
                self._make_room()
            self._change(ArchivingState.handled, event)
            self._builders.submit(self._build)

    def _handle(self, event: PartitionEvent) -> None:
        match event:
            case Fetched() | RecordRefused():
                self._take_or_stop(event)
            case EndReached(position=position):
                self._pass(position)
            case PartitionFailed(error=error):
                self._stop_at(self._state.position, error)
            case Tick(now=now):
                self._commit_later(self._step(due, self._settings.limits, now))
            case Order.FLUSH:
                self._commit_later(flushed(self._state))
                if self._state.full is not None:
                    self._change(ArchivingState.postponed, event)
            case Order.END_BLOCK if self._state.chunk is not None:
                self._state.chunk.end_block()
            case Order.WRITE_AGAIN if self._state.chunk is not None:
                self._state.chunk.write_again()

    def _pass(self, end: int) -> None:
        """Note that the log ends here for now. A log that was truncated below the end of a drain never reaches it."""
        self._change(ArchivingState.passed, end)
        if self._state.end_offset is not None and end < self._state.end_offset:
            cause = f"{self._identity} ends at offset {end} now, and at {self._state.end_offset} when the run began"
            # What was polled behind this is taken first: retention may have it by the time of the next claim.
            self._restart_with(PartitionUnavailable(cause, why="its log was truncated, or its leader is new"))

    def _take_or_stop(self, event: Fetched | RecordRefused) -> None:
        try:
            if isinstance(event, Fetched):
                self._take(event)
            else:
                self._skip(event)
        except UnencodableRecord as error:
            self._stop_at(error.offset, error)
        except (Diverged, TopicChanged, *NOT_TAKEN) as error:
            self._stop_at(self._state.position, error)

    def _take(self, fetched: Fetched) -> None:
        try:
            batch, dropped_duplicates = wanted(self._state, fetched)
        except Diverged as error:
            if self._is_same_topic() is False:
                raise self._changed(error.what) from error
            raise
        if batch.num_rows and epoch_fell(self._state, fetched):
            self._check_log(batch.num_rows, f"the leader epoch fell to {fetched.leader_epoch}")
        if dropped_duplicates:
            self._change(ArchivingState.counted, PartitionCounts(dropped_duplicates=dropped_duplicates))
        limits = self._settings.limits
        while batch.num_rows:
            chunk = self._open_chunk()
            timestamps = batch.column("timestamp").to_numpy()
            fitting = rows_that_fit(timestamps, chunk.num_records, chunk.first_timestamp, limits)
            if fitting:
                self._add(chunk, batch.slice(0, fitting), fetched.leader_epoch)
                batch = batch.slice(fitting)
            is_full = batch.num_rows and chunk.num_records
            self._commit_later(Order.END_CHUNK if is_full else self._step(due, limits, self._clock()))
            if self._state.full is not None and batch.num_rows:
                rest = replace(fetched, batch=batch, num_bytes=batch.nbytes)
                self._change(ArchivingState.postponed, rest)
                return
        self._change(ArchivingState.taken, fetched)

    def _check_log(self, num_rows: int, why: str) -> None:
        """Raise Diverged or TopicChanged unless the cluster reports that the topic is the one that was claimed."""
        # Epochs never fall in one log, so records of an older leader may be another topic's.
        if self._identity.topic_id is None:
            raise Diverged(
                f"{self._identity}: the log is not the one that was archived",
                why=f"{why}, and the cluster reported no topic id",
                remedy="find out what happened to the log; `archiver repair diverged` lets the partition continue",
            )
        if not self._is_same_topic():
            self._change(ArchivingState.counted, PartitionCounts(dropped_unconfirmed=num_rows))
            raise self._changed(why)

    def _add(self, chunk: ChunkBuilder, batch: pa.RecordBatch, leader_epoch: int | None) -> None:
        if self._dead_letters is not None:
            self._dead_letters.send_objected(batch, self._settings.record_format)
        skipped_before = chunk.skipped
        chunk.add(batch, leader_epoch, self._clock())
        position = batch.column("offset")[batch.num_rows - 1].as_py() + 1
        self._change(ArchivingState.added, position, chunk.skipped - skipped_before)

    def _skip(self, record: RecordRefused) -> None:
        """Pass a record that the client cannot hand over, if that is the policy."""
        if not self._state.wants(record.offset):
            self._change(ArchivingState.passed, record.offset)
        elif self._settings.bad_records_are_skipped:
            if self._dead_letters is not None:
                self._dead_letters.send(record.record, record.error)
            self._open_chunk().skip(record.offset)
            self._change(ArchivingState.added, record.offset + 1, 1)
        else:
            self._stop_at(record.offset, record.error)

    def _stop_at(self, offset: int, error: BlockgzError) -> None:
        """Commit the records below an offset, then fail."""
        self._change(ArchivingState.passed, offset)
        self._commit_later(flushed(self._state))
        if self._state.full is not None:
            self._change(ArchivingState.postponed, PartitionFailed(self._name, error))
        else:
            self._change(ArchivingState.stopping, error)

    def _open_chunk(self) -> ChunkBuilder:
        state = self._state
        if state.chunk is not None:
            return state.chunk
        start_offset = state.position if state.chain_end is None else state.chain_end
        sealing, now = self._identity.sealing, self._clock()
        chunk = ChunkBuilder(self._settings, self._buffer.new_file(), start_offset, opened_at=now, sealing=sealing)
        self._change(ArchivingState.opened, chunk, start_offset)
        return chunk

    def _commit_later(self, ending: Ending) -> None:
        """Hand what ended to the committer, if anything did; a chunk that waits for space in the buffer does not."""
        match ending:
            case Order.END_CHUNK:
                chunk = self._state.chunk
                assert chunk is not None
                with suppress(BufferFull):
                    finished = chunk.finish(self._state.position)
                    self._queue(PendingCommit(finished, chunk), finished.next_offset)
            case CommitProgress(chain_end=chain_end):
                self._queue(PendingCommit(ending), chain_end)

    def _make_room(self) -> None:
        """Commit the open chunk's blocks if the buffer takes no more, which frees that space."""
        state, chunk = self._state, self._state.chunk
        if chunk is None or chunk.full is None:
            self._full_tries = 0
            return
        self._full_tries += 1
        self._write_again_at = self._clock() + backoff_seconds(self._full_tries)
        full = chunk.full
        self._failures.note(self._name, self._full_tries, full)
        if state.end_offset is not None and self._full_tries > FULL_TRIES_OF_ONCE:
            raise full
        if len(state.pending) < 2 and (parts := chunk.cut(self._buffer.new_file())) is not None:
            finished, rest = parts
            self._queue(PendingCommit(finished, chunk), finished.next_offset, rest)

    def _queue(self, commit: PendingCommit, chain_end: int | None, rest: ChunkBuilder | None = None) -> None:
        if self._step(ArchivingState.queued, commit, chain_end, rest):
            self._committers.submit(self._commit_all)

    def _commit_all(self) -> None:
        while (commit := self._step(ArchivingState.next_commit)) is not None:
            with self._failing():
                self._commit(commit)
            if self._state.full is not None:  # the commit freed space
                self._change(ArchivingState.offered, Order.WRITE_AGAIN)
            self._start_building()
        self._start_building()

    def _commit(self, commit: PendingCommit) -> None:
        """Offer what waits to the store. The swap makes that safe; the cluster only says which topic it is of."""
        state, content = self._state, commit.content
        if content.next_offset > state.confirmed:
            match self._is_same_topic():
                case True:
                    self._change(ArchivingState.confirmed_to, state.fetched)  # before the question began
                case None:
                    log.warning(
                        LogEvent.UNCONFIRMED,
                        topic=str(self._identity.keys.folder),
                        partition=self._identity.keys.partition,
                        confirmed=state.confirmed,
                        next_offset=content.next_offset,
                    )
                case False:
                    self._commit_confirmed(commit)
                    raise self._changed("its id has changed")
        self._carry_out(content)

    def _commit_confirmed(self, commit: PendingCommit) -> None:
        """Commit what is known to be of the topic that was claimed, and count what is dropped."""
        in_hand = self._state.num_uncommitted
        dropped = in_hand - self._carry_out_below(self._state.confirmed, commit.content)
        if dropped:
            self._change(ArchivingState.counted, PartitionCounts(dropped_unconfirmed=dropped))
            log.warning(LogEvent.TOPIC_CHANGED, topic=self._name[0], partition=self._name[1], records=dropped)

    def _carry_out_below(self, offset: int, content: FinishedChunk | CommitProgress) -> int:
        """Commit the records below an offset; gives their number."""
        if isinstance(content, CommitProgress):
            return 0
        codec, sealing = self._identity.codec, self._identity.sealing
        part = part_below(offset, content, codec, self._settings, self._buffer.new_file(), sealing)
        if part is None:
            return 0
        builder, finished = part
        try:
            self._carry_out(finished)
        finally:
            builder.discard()
        return builder.num_records

    def _carry_out(self, content: FinishedChunk | CommitProgress) -> None:
        """Commit, but nothing above a record that is left out and that the topic of dead letters does not have."""
        if self._dead_letters is not None:
            try:
                self._dead_letters.settle(content.next_offset)
            except BlockgzError:
                self._carry_out_below(self._dead_letters.first_open(content.next_offset) or 0, content)
                raise
        self._settle_claim(self._driver.wait)
        held, begun = self.held, self._clock()
        swapped = self._swapped(held, content)
        counts = counts_of_commit(held.marker, swapped.marker, self._clock() - begun)
        self._change(ArchivingState.swapped, RestingMarker.of(swapped), counts, self._clock())
        if counts.chunks:
            log.info(
                LogEvent.COMMITTED,
                topic=str(self._identity.keys.folder),
                partition=self._identity.keys.partition,
                next_offset=swapped.marker.next_offset,
                records=counts.records,
                stored_bytes=counts.stored_bytes,
                seconds=round(counts.commit_seconds, 3),
            )

    def _swapped(self, held: Held, content: FinishedChunk | CommitProgress) -> Held:
        """Return the marker after the commit."""
        # A write that may not last costs the claim, not the chunk: it is offered again if the new claim is at its
        # start.
        begins_at, tries = held.marker.next_offset, 0
        while True:
            try:
                if tries:
                    held = self._driver.run(reclaim(self._identity, held.marker.writer))
                if held.marker.next_offset == content.next_offset:
                    return held
                if held.marker.next_offset != begins_at:
                    raise Fenced(f"{self._identity} was archived further by another writer")
                match content:
                    case FinishedChunk():
                        return self._driver.run(commit_chunk(self._identity, held, content))
                    case CommitProgress(next_offset, gaps):
                        return self._driver.run(commit_progress(self._identity, held, next_offset, gaps))
            except SyncFailed as error:
                if what_next(error, self._driver.situation()) is not Next.CLAIM or not self.may_claim:
                    raise
                tries += 1
                self._driver.wait(tries, error)

    @property
    def _name(self) -> Partition:
        return self._identity.topic, self._identity.keys.partition

    def _is_same_topic(self) -> bool | None:
        claimed = self._identity.topic_id
        return is_same_topic(claimed, None if claimed is None else self._topic_id_now())

    def _changed(self, why: str) -> TopicChanged:
        return TopicChanged(
            f"topic {self._identity.topic} is claimed again",
            why=why,
            remedy="nothing to do: what the cluster confirmed is archived; the current topic with that name is next",
        )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Stop the partition with the error raised; a fault of this program must not vanish in a thread."""
        try:
            yield
        except BlockgzError as error:
            self._change(ArchivingState.failed, error)
        except Exception as error:
            failure = BlockgzError(f"{self._identity}: internal error", why=repr(error))
            failure.__cause__ = error
            self._change(ArchivingState.failed, failure)
