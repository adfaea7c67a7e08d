"""Fetching while there is room: the consumer is left alone for a moment, then paused, never left without polls."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from archiver.ingest.buffer import BufferFolder
from archiver.ingest.kafka_source import Event, GroupListener, KafkaSource, Partition
from archiver.ingest.memory_plan import MemoryPlan
from archiver.ingest.partition_archiver import EndBlock, Flush
from archiver.ingest.roll_policy import RollReason, blocks_to_end, chunks_to_end
from archiver.logs import LogEvent, log


class Work(Protocol):
    """A partition under way, as far as room goes (see PartitionArchiver)."""

    @property
    def inbox_bytes(self) -> int: ...
    @property
    def open_bytes(self) -> int: ...
    @property
    def open_block_bytes(self) -> int: ...
    @property
    def open_index_bytes(self) -> int: ...
    @property
    def is_committing(self) -> bool: ...
    def offer(self, event: Flush | EndBlock) -> None: ...


K = TypeVar("K")


class Room:
    """The budgets of one process, in bytes, and what its partitions hold of them."""

    def __init__(self, memory: MemoryPlan, buffer: BufferFolder, buffer_bytes: int) -> None:
        self._memory = memory
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self._taken_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        """What chunks hold of the buffer."""
        return self._buffer.used_bytes

    def is_left(self, work: Iterable[Work]) -> bool:
        """Whether more may be fetched: what was handed over and what is buffered lie inside their budgets."""
        waiting = sum(each.inbox_bytes for each in work)
        return waiting < self._memory.waiting_bytes and self._buffer.used_bytes < self._buffer_bytes

    def taken(self, num_bytes: int, work: Mapping[K, Work]) -> None:
        """So much was handed over: open blocks may outgrow their share long before the next `relieve`."""
        self._taken_bytes += num_bytes
        if self._taken_bytes >= self._memory.open_block_bytes // 2:
            self._end_blocks(work)

    def relieve(self, work: Mapping[K, Work]) -> None:
        """End the largest open chunks and blocks early: thousands of partitions with one each would fill both."""
        open_bytes = {key: each.open_bytes for key, each in work.items()}
        index_bytes = {key: each.open_index_bytes for key, each in work.items()}
        committing = {key: each.is_committing for key, each in work.items()}
        for key in chunks_to_end(open_bytes, committing, self._buffer_bytes):
            work[key].offer(Flush(RollReason.BUFFER))
        for key in chunks_to_end(index_bytes, committing, self._memory.index_bytes):
            work[key].offer(Flush(RollReason.MEMORY))
        self._end_blocks(work)

    def _end_blocks(self, work: Mapping[K, Work]) -> None:
        self._taken_bytes = 0
        open_bytes = {key: each.open_block_bytes for key, each in work.items()}
        for key in blocks_to_end(open_bytes, self._memory.open_block_bytes):
            work[key].offer(EndBlock())


STALL_SECONDS = 10.0
"""So long the consumer is left alone for want of room; then its partitions are paused and polling goes on."""


class Flow(Enum):
    """What becomes of the consumer in one step."""

    FETCH = "fetch"
    WAIT = "wait"
    """Not polled: what it fetched already stays in its own queue."""
    POLL_PAUSED = "poll paused"
    """Polled, so that the group keeps this member, but nothing is fetched."""


def flow_after(flow: Flow, has_room: bool, stalled_seconds: float) -> Flow:
    """What comes next; `stalled_seconds` since there was room."""
    if has_room:
        return Flow.FETCH
    if flow is Flow.POLL_PAUSED or stalled_seconds >= STALL_SECONDS:
        return Flow.POLL_PAUSED
    return Flow.WAIT


class Fetching:
    """The consumer of this process, polled as room allows. All methods belong to the consumer thread."""

    def __init__(
        self, connect: Callable[[], KafkaSource], room: Room, clock: Callable[[], float], rest: Callable[[], None]
    ) -> None:
        """`rest` waits for a moment."""
        self._connect = connect
        self._room = room
        self._clock = clock
        self._rest = rest
        self._source = connect()
        self._flow = Flow.FETCH
        self._had_room_at = clock()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is fetched for want of room. Safe to ask from any thread."""
        return self._flow is Flow.POLL_PAUSED

    def subscribe(self, topics: Sequence[str], listener: GroupListener) -> None:
        """See KafkaSource."""
        self._source.subscribe(topics, listener)

    def consume(self, positions: Mapping[Partition, int]) -> None:
        """Consume these partitions too, each from its position; they are paused where the others are."""
        self._source.consume(positions)
        if self.is_paused:
            self._source.pause()

    def release(self, partitions: Sequence[Partition]) -> None:
        """See KafkaSource."""
        self._source.release(partitions)

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """See KafkaSource."""
        self._source.commit(positions)

    def poll(self, work: Iterable[Work]) -> list[Event]:
        """What arrived within a moment; `work` are the partitions under way. Raises MemberRefused."""
        now = self._clock()
        has_room = self._room.is_left(work)
        if has_room:
            self._had_room_at = now
        before, self._flow = self._flow, flow_after(self._flow, has_room, now - self._had_room_at)
        if self._flow is Flow.WAIT:
            self._rest()
            return []
        if self._flow is Flow.POLL_PAUSED and before is not Flow.POLL_PAUSED:
            log.warning(LogEvent.PAUSED, buffer_bytes=self._room.buffered_bytes)
            self._source.pause()
        elif self._flow is Flow.FETCH and before is Flow.POLL_PAUSED:
            self._source.resume()
            log.info(LogEvent.RESUMED)
        return self._source.poll()

    def connect_anew(self) -> None:
        """Another consumer in place of one that may not go on; it consumes nothing yet."""
        self._source = self._connect()
        self._flow = Flow.FETCH

    def close(self) -> None:
        """Leave the group; nothing is consumed any more."""
        self._source.close()
