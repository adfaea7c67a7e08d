"""One partition: an immutable state, decisions over it, and its transitions.

Everything here is pure: no thread, no store, no clock. PartitionArchiver carries the decisions out. Its builder thread
alone changes position, chain and open chunk; its committer thread alone changes the marker; any thread adds events.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from archiver.commit.commit import FinishedChunk, RestingMarker
from archiver.errors import Diverged
from archiver.ingest.chunk_builder import ChunkBuilder, RollLimits, is_due
from archiver.ingest.kafka_source import EndReached, Fetched, PartitionFailed, RecordRefused, name_of
from blockgz.errors import BlockgzError, BufferFull
from index_format import marker as markers
from index_format.marker import Marker
from index_format.objects import Gap


@dataclass(frozen=True)
class Tick:
    """Time has passed: `now` in seconds of the service's monotonic clock."""

    now: float


class Order(Enum):
    """An order to a partition, or to its open chunk."""

    FLUSH = "flush"
    """End and commit all that is open."""
    END_BLOCK = "end block"
    """Move the open block out of memory, whatever its size."""
    WRITE_AGAIN = "write again"
    """Write the blocks that wait for space in the buffer."""
    END_CHUNK = "end chunk"
    """Finish the chunk and commit it."""


PartitionEvent = Fetched | EndReached | RecordRefused | PartitionFailed | Tick | Order


@dataclass(frozen=True)
class PartitionCounts:
    """Counts of what this process archived of the partition since it claimed it."""

    records: int = 0
    chunks: int = 0
    commits: int = 0
    """Swaps of the marker: of chunks, and of progress without records."""
    commit_seconds: float = 0.0
    """Time spent on commits, including uploads and retries."""
    stored_bytes: int = 0
    dropped_duplicates: int = 0
    skipped: int = 0
    dropped_unconfirmed: int = 0
    """Records that were fetched, and may be of another topic that was created under the name since."""

    def __add__(self, other: "PartitionCounts") -> "PartitionCounts":
        return PartitionCounts(*(getattr(self, name) + getattr(other, name) for name in self.__match_args__))


def counts_of_commit(before: Marker, now: Marker, seconds: float) -> PartitionCounts:
    if now.last_chunk_index == before.last_chunk_index or not now.tail:
        return PartitionCounts(commits=1, commit_seconds=seconds)
    chunk = now.tail[-1]
    return PartitionCounts(chunk.num_records, 1, 1, seconds, chunk.bytes)


class CommitProgress(NamedTuple):
    """Decision: commit that `next_offset` was reached, without a chunk."""

    next_offset: int
    gaps: tuple[Gap, ...]
    chain_end: int | None
    """The start of the next chunk after this commit."""


class PendingCommit(NamedTuple):
    """A commit that waits; `chunk` holds the buffer of a finished chunk until it is committed."""

    content: FinishedChunk | CommitProgress
    chunk: ChunkBuilder | None = None


# A commit of what is open; None for nothing.
Ending = Order | CommitProgress | None


@dataclass(frozen=True)
class ArchivingState:
    """A partition that this process archives. Chunks that are no longer in the state give their buffer back."""

    marker: RestingMarker
    """The marker as this writer committed it last."""
    position: int
    """The offset up to which records were taken into chunks."""
    fetched: int
    """The offset up to which records were handed over, as the consumer came by them."""
    confirmed: int
    """Records fetched below this offset are of the claimed topic: the cluster reported the same id later."""
    end_offset: int | None
    """Nothing at or above it is archived; None follows the log."""
    leader_epoch: int | None
    chain_end: int | None
    """The start of the next chunk once all that is pending is committed; None before the first chunk."""
    progressed_at: float
    committed_at: float | None = None
    """When this writer swapped the marker last, except for the claim."""
    chunk: ChunkBuilder | None = None
    pending: tuple[PendingCommit, ...] = ()
    """The first one is being committed."""
    inbox: tuple[PartitionEvent, ...] = ()
    inbox_bytes: int = 0
    """Bytes that were offered and not yet taken into a chunk."""
    is_begun: bool = False
    """True once the consumer reported anything of the log: before, the position is only the planned start."""
    is_building: bool = False
    has_committer: bool = False
    is_closed: bool = False
    stops_with: BlockgzError | None = None
    """Becomes the failure once what is pending is committed."""
    failure: BlockgzError | None = None
    """Why the partition stopped; set once."""
    counts: PartitionCounts = PartitionCounts()

    def _with(self, **changes: Any) -> "ArchivingState":
        """Return a state with some fields changed."""
        # `dataclasses.replace` reads and sets every field by itself: several times a batch, that costs more than the
        # decisions.
        state: ArchivingState = object.__new__(ArchivingState)
        state.__dict__.update(self.__dict__)
        if not changes.keys() <= state.__dict__.keys():
            raise TypeError(f"no such fields: {changes.keys() - state.__dict__.keys()}")
        state.__dict__.update(changes)
        return state

    @property
    def committed(self) -> int | None:
        """Return the offset up to which the archive holds the partition; None before the first commit."""
        return self.marker.next_offset

    @property
    def open_chunk(self) -> ChunkBuilder | None:
        """Return the chunk that takes records now; None while it has none."""
        return self.chunk if self.chunk and self.chunk.num_records else None

    @property
    def open_bytes(self) -> int:
        return self.chunk.compressed_bytes if self.chunk else 0

    @property
    def buffered_bytes(self) -> int:
        """Return the bytes in the buffer: of the open chunk, and of those that wait to be committed."""
        return sum(chunk.compressed_bytes for chunk in self.chunks)

    @property
    def open_block_bytes(self) -> int:
        """Encoded bytes that wait in memory for their block to fill."""
        return self.chunk.open_block_bytes if self.chunk else 0

    @property
    def open_index_bytes(self) -> int:
        """Return the bytes in memory that describe the open chunk's finished blocks."""
        return self.chunk.open_index_bytes if self.chunk else 0

    @property
    def chunks(self) -> tuple[ChunkBuilder, ...]:
        """Return the chunks that hold a buffer, oldest first."""
        held = (*(commit.chunk for commit in self.pending), self.chunk)
        return tuple(chunk for chunk in held if chunk is not None)

    @property
    def num_uncommitted(self) -> int:
        """Return how many records are in chunks that the archive does not list yet."""
        return sum(chunk.num_records for chunk in self.chunks)

    @property
    def oldest_uncommitted_ms(self) -> int | None:
        """Return the timestamp of the first record that was taken into a chunk and is not committed."""
        return self.chunks[0].first_timestamp if self.chunks else None

    @property
    def taken_at(self) -> float | None:
        """Return when the first uncommitted record was taken into a chunk; None if there is none."""
        return next((chunk.opened_at for chunk in self.chunks if chunk.num_records), None)

    @property
    def is_idle(self) -> bool:
        """Return whether everything offered was handled and no commit runs; true after a failure."""
        return not (self.inbox or self.is_building or self.has_committer or self.pending)

    @property
    def is_committing(self) -> bool:
        """Return whether a chunk waits to be committed, or is to end."""
        return self.has_committer or bool(self.pending) or Order.FLUSH in self.inbox

    @property
    def is_drained(self) -> bool:
        """Return whether the partition was archived up to its end offset."""
        return self.end_offset is not None and self.position >= self.end_offset

    @property
    def is_over(self) -> bool:
        """Return whether nothing more is taken; what is finished may still be committed."""
        return self.is_closed or self.failure is not None or self.stops_with is not None

    @property
    def full(self) -> BufferFull | None:
        """Return why the open chunk waits for space in the buffer; None if it does not."""
        return self.chunk.full if self.chunk else None

    @property
    def is_blocked(self) -> bool:
        """Return whether events have to wait, for the commit in flight or for space in the buffer."""
        return len(self.pending) >= 2 or self.full is not None

    @property
    def can_build(self) -> bool:
        """Return whether an event waits that may be handled."""
        return bool(self.inbox) and (self.inbox[0] is Order.WRITE_AGAIN or self.is_over or not self.is_blocked)

    def offered(self, event: PartitionEvent) -> "ArchivingState":
        """Return a state with one more event; ticks and orders to end a block do not pile up during an outage."""
        if (
            self.is_over
            or (isinstance(event, Tick) and self.inbox)
            or (event is Order.END_BLOCK and event in self.inbox)
        ):
            return self
        if event is Order.WRITE_AGAIN:  # before all others, also before one that was postponed since
            return self._with(inbox=(event, *(each for each in self.inbox if each != event)))
        num_bytes = event.num_bytes if isinstance(event, Fetched) else 0
        end = _end_of(event)
        return self._with(
            inbox=(*self.inbox, event),
            inbox_bytes=self.inbox_bytes + num_bytes,
            fetched=max(self.fetched, end or 0),
            is_begun=self.is_begun or end is not None,
        )

    def building(self) -> "tuple[ArchivingState, bool]":
        """Return whether a builder has to start."""
        starts = self.can_build and not self.is_building
        return self._with(is_building=self.is_building or starts), starts

    def next_event(self) -> "tuple[ArchivingState, PartitionEvent | None]":
        """Return the event to handle next; None ends the builder. What is open after the end is dropped."""
        state = self._with(inbox=(), inbox_bytes=0, chunk=None) if self.is_over else self
        if not state.can_build:
            return state._with(is_building=False), None
        return state._with(inbox=state.inbox[1:]), state.inbox[0]

    def handled(self, event: PartitionEvent) -> "ArchivingState":
        num_bytes = event.num_bytes if isinstance(event, Fetched) else 0
        return self._with(inbox_bytes=max(0, self.inbox_bytes - num_bytes))

    def postponed(self, event: PartitionEvent) -> "ArchivingState":
        """Return a state that handles an event before all others, once that is possible again."""
        # Its bytes are counted again, because `handled` takes them off.
        num_bytes = event.num_bytes if isinstance(event, Fetched) else 0
        return self._with(inbox=(event, *self.inbox), inbox_bytes=self.inbox_bytes + num_bytes)

    def passed(self, position: int) -> "ArchivingState":
        """Return a state with the position raised, never beyond the end offset."""
        bounded = position if self.end_offset is None else min(position, self.end_offset)
        return self._with(position=max(self.position, bounded))

    def wants(self, offset: int) -> bool:
        """Return whether the record at this offset is still to be taken."""
        return self.position <= offset and (self.end_offset is None or offset < self.end_offset)

    def opened(self, chunk: ChunkBuilder, start_offset: int) -> "ArchivingState":
        return self._with(chunk=chunk, chain_end=start_offset)

    def added(self, position: int, skipped: int) -> "ArchivingState":
        """Return the state after records below `position` were added to the open chunk, except for `skipped` ones."""
        return self.passed(position).counted(PartitionCounts(skipped=skipped))

    def taken(self, fetched: Fetched) -> "ArchivingState":
        """Return the state after all wanted records of a batch were added to chunks."""
        state = self
        if self.end_offset is not None and fetched.last_offset >= self.end_offset:
            state = self.passed(self.end_offset)
        if fetched.leader_epoch is None:
            return state
        return state._with(leader_epoch=max(fetched.leader_epoch, state.leader_epoch or 0))

    def confirmed_to(self, position: int) -> "ArchivingState":
        return self._with(confirmed=max(self.confirmed, position))

    def counted(self, more: PartitionCounts) -> "ArchivingState":
        return self._with(counts=self.counts + more)

    def queued(
        self, commit: PendingCommit, chain_end: int | None, rest: ChunkBuilder | None = None
    ) -> "tuple[ArchivingState, bool]":
        """Return a state with one more commit that waits, and whether a committer has to start; `rest` is open then."""
        pending = (*self.pending, commit)
        state = self._with(chunk=rest, chain_end=chain_end, pending=pending, has_committer=True)
        return state, not self.has_committer

    def next_commit(self) -> "tuple[ArchivingState, PendingCommit | None]":
        """Return the commit that has waited longest; None ends the committer. After a failure nothing is committed."""
        state = self._with(pending=()) if self.is_closed or self.failure else self
        if state.pending:
            return state, state.pending[0]
        failure = state.failure or (None if state.is_closed else state.stops_with)
        return state._with(has_committer=False, failure=failure), None

    def swapped(self, marker: RestingMarker, counts: PartitionCounts, now: float) -> "ArchivingState":
        return self._with(marker=marker, pending=self.pending[1:], committed_at=now).counted(counts)

    def stopping(self, error: BlockgzError) -> "ArchivingState":
        """Return a state that fails once everything that waits is committed."""
        state = self._with(stops_with=error)
        return state if self.has_committer or self.pending else state.failed(error)

    def failed(self, error: BlockgzError) -> "ArchivingState":
        """Return a state that a failure stopped: nothing more is taken or committed. The first failure stays."""
        return self if self.failure is not None or self.is_closed else self._with(failure=error)

    def closed(self) -> "ArchivingState":
        """Return a closed state, without anything that no thread works on."""
        # Threads that still work drop theirs as they end.
        return self._with(
            is_closed=True,
            inbox=(),
            inbox_bytes=0,
            chunk=self.chunk if self.is_building else None,
            pending=self.pending if self.has_committer else (),
        )


def _end_of(event: PartitionEvent) -> int | None:
    """Return the offset after what the event reports of the log; None if it reports nothing."""
    match event:
        case Fetched():
            return event.last_offset + 1
        case EndReached(position=position):
            return position
        case RecordRefused(offset=offset):
            return offset + 1
        case _:
            return None


def epoch_fell(state: ArchivingState, fetched: Fetched) -> bool:
    """Return whether new records come from an older leader than those before: in one log, epochs never fall."""
    epoch, known = fetched.leader_epoch, state.leader_epoch
    return epoch is not None and known is not None and epoch < known


def wanted(state: ArchivingState, fetched: Fetched) -> tuple[pa.RecordBatch, int]:
    """Return the records at or above the position and below the end offset, and how many others were taken before.

    See the guard in docs/commit.md.

    Raises Diverged if an offset comes again under a later leader epoch. Records keep the epoch of the leader that
    wrote them, so that an older one is a plain redelivery.
    """
    batch, offsets, duplicates = fetched.batch, fetched.batch.column("offset"), 0
    epoch, known = fetched.leader_epoch, state.leader_epoch
    if offsets[0].as_py() < state.position:
        if epoch is not None and known is not None and epoch > known:
            raise Diverged(
                f"{name_of(fetched.partition)}: offset {offsets[0].as_py()} came again under leader epoch {epoch}",
                why=f"the log was truncated below offset {state.position}, which was already read",
                remedy="run it again; if it stops again, `archiver repair diverged` lets the partition continue",
            )
        duplicates = int(np.searchsorted(offsets.to_numpy(), state.position))
        batch = batch.slice(duplicates)
    if state.end_offset is not None and fetched.last_offset >= state.end_offset:
        batch = batch.slice(0, int(np.searchsorted(batch.column("offset").to_numpy(), state.end_offset)))
    return batch, duplicates


def flushed(state: ArchivingState) -> Ending:
    """Return what to commit if all that is open is to end."""
    if state.open_chunk is not None:
        return Order.END_CHUNK
    if state.committed is None:
        is_new = state.is_begun or state.is_drained
    else:
        is_new = state.position > state.committed
    if state.has_committer or state.pending or not is_new:
        return None
    gaps = state.chunk.gaps if state.chunk else ()
    marker = state.marker.unpack().marker
    moved = markers.advanced(marker, state.position, nonce="preview", leader_epoch=None, gaps=gaps)
    return CommitProgress(state.position, gaps, moved.chain_end)


def due(state: ArchivingState, limits: RollLimits, now: float) -> tuple[ArchivingState, Ending]:
    """Return what to commit now, by the limits of a chunk; progress without records is due once an interval."""
    if state.open_chunk is not None:
        return state, Order.END_CHUNK if is_due(state.open_chunk, limits, now) else None
    if now - state.progressed_at < limits.chunk_interval_seconds:
        return state, None
    return state._with(progressed_at=now), flushed(state)
