"""Backpressure: budgets of memory and disk, and fetching inside them.

Out of budget, the consumer is left unpolled for a moment, then paused and polled, which keeps it in the group.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from archiver.ingest.buffer import BufferFolder
from archiver.ingest.kafka_source import Event, GroupListener, KafkaSource, Partition
from archiver.ingest.partition_state import ArchivingState, EndBlock, Flush
from archiver.ingest.roll_policy import RollReason, blocks_to_end, chunks_to_end
from archiver.logs import LogEvent, log


@dataclass(frozen=True)
class MemoryPlan:
    """The shares of a `--memory` of `budget_bytes`.

    The shares, a good third of it together, count what is held at rest. A record that is being worked on is there
    several times: as librdkafka's message, as Arrow, as text, encoded and compressed; fetches are added whole; and
    allocators keep some of what was given back. The rest of the budget is for that.
    """

    budget_bytes: int

    @property
    def queue_bytes(self) -> int:
        """For records that librdkafka fetched ahead."""
        return self.budget_bytes // 8

    @property
    def batching_bytes(self) -> int:
        """For messages that wait to become batches."""
        return self.budget_bytes // 24

    @property
    def waiting_bytes(self) -> int:
        """For batches that wait to be encoded."""
        return self.budget_bytes // 12

    @property
    def open_block_bytes(self) -> int:
        """For encoded records of blocks that are not full yet."""
        return self.budget_bytes // 12

    @property
    def index_bytes(self) -> int:
        """For what open chunks note of their finished blocks."""
        return self.budget_bytes // 24


class PartitionLoad(Protocol):
    """A partition that holds part of the budgets (see PartitionArchiver)."""

    @property
    def state(self) -> ArchivingState: ...
    def offer(self, event: Flush | EndBlock) -> None: ...


K = TypeVar("K")


class Budgets:
    """The budgets of one process, in bytes, and what its partitions hold of them."""

    def __init__(self, memory: MemoryPlan, buffer: BufferFolder, buffer_bytes: int) -> None:
        self._memory = memory
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self._taken_bytes = 0

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.used_bytes

    def have_capacity(self, loads: Iterable[PartitionLoad]) -> bool:
        """Whether more may be fetched: records that wait and the buffer are below their budgets."""
        waiting = sum(each.state.inbox_bytes for each in loads)
        return waiting < self._memory.waiting_bytes and self._buffer.used_bytes < self._buffer_bytes

    def taken(self, num_bytes: int, loads: Mapping[K, PartitionLoad]) -> None:
        """Count bytes handed to partitions: open blocks may exceed their share long before the next `relieve`."""
        self._taken_bytes += num_bytes
        if self._taken_bytes >= self._memory.open_block_bytes // 2:
            self._end_blocks(loads)

    def relieve(self, loads: Mapping[K, PartitionLoad]) -> None:
        """End the largest open chunks and blocks early: thousands of partitions with one each would fill both."""
        committing = {key: each.state.is_committing for key, each in loads.items()}
        open_bytes = {key: each.state.open_bytes for key, each in loads.items()}
        for key in chunks_to_end(open_bytes, committing, self._buffer_bytes):
            loads[key].offer(Flush(RollReason.BUFFER))
        index_bytes = {key: each.state.open_index_bytes for key, each in loads.items()}
        for key in chunks_to_end(index_bytes, committing, self._memory.index_bytes):
            loads[key].offer(Flush(RollReason.MEMORY))
        self._end_blocks(loads)

    def _end_blocks(self, loads: Mapping[K, PartitionLoad]) -> None:
        self._taken_bytes = 0
        open_bytes = {key: each.state.open_block_bytes for key, each in loads.items()}
        for key in blocks_to_end(open_bytes, self._memory.open_block_bytes):
            loads[key].offer(EndBlock())


STALL_SECONDS = 10.0
"""The consumer is not polled for so long without capacity; then its partitions are paused and polling resumes."""


class FetchMode(Enum):
    """What one step does with the consumer."""

    FETCH = "fetch"
    WAIT = "wait"
    """Not polled: what it fetched already stays in its own queue."""
    POLL_PAUSED = "poll paused"
    """Polled, so that the group keeps this member, but nothing is fetched."""


def mode_after(mode: FetchMode, has_capacity: bool, stalled_seconds: float) -> FetchMode:
    """The next mode; `stalled_seconds` since there was capacity."""
    if has_capacity:
        return FetchMode.FETCH
    if mode is FetchMode.POLL_PAUSED or stalled_seconds >= STALL_SECONDS:
        return FetchMode.POLL_PAUSED
    return FetchMode.WAIT


class Fetching:
    """The consumer of this process, polled as the budgets allow. All methods belong to the consumer thread."""

    def __init__(
        self, connect: Callable[[], KafkaSource], budgets: Budgets, clock: Callable[[], float], rest: Callable[[], None]
    ) -> None:
        """`rest` waits for a moment."""
        self._connect = connect
        self._budgets = budgets
        self._clock = clock
        self._rest = rest
        self._source = connect()
        self._mode = FetchMode.FETCH
        self._had_capacity_at = clock()

    @property
    def is_paused(self) -> bool:
        """Whether nothing is fetched because the budgets are used up. Safe to ask from any thread."""
        return self._mode is FetchMode.POLL_PAUSED

    def subscribe(self, topics: Sequence[str], listener: GroupListener) -> None:
        self._source.subscribe(topics, listener)

    def consume(self, positions: Mapping[Partition, int]) -> None:
        """Consume these partitions too, each from its position; they are paused where the others are."""
        self._source.consume(positions)
        if self.is_paused:
            self._source.pause()

    def release(self, partitions: Sequence[Partition]) -> None:
        self._source.release(partitions)

    def batched(self, partitions: Iterable[Partition]) -> list[Event]:
        return self._source.batched(partitions)

    def commit(self, positions: Mapping[Partition, int]) -> None:
        self._source.commit(positions)

    def poll(self, loads: Iterable[PartitionLoad]) -> list[Event]:
        """What arrived within a moment; `loads` are the active partitions. Raises MemberRefused."""
        now = self._clock()
        has_capacity = self._budgets.have_capacity(loads)
        if has_capacity:
            self._had_capacity_at = now
        before, self._mode = self._mode, mode_after(self._mode, has_capacity, now - self._had_capacity_at)
        if self._mode is FetchMode.WAIT:
            self._rest()
            return []
        if self._mode is FetchMode.POLL_PAUSED and before is not FetchMode.POLL_PAUSED:
            log.warning(LogEvent.PAUSED, buffer_bytes=self._budgets.buffered_bytes)
            self._source.pause()
        elif self._mode is FetchMode.FETCH and before is FetchMode.POLL_PAUSED:
            self._source.resume()
            log.info(LogEvent.RESUMED)
        return self._source.poll()

    def reconnect(self) -> None:
        """Replace a consumer that the group refused by a new one, which consumes nothing yet."""
        self._source = self._connect()
        self._mode = FetchMode.FETCH

    def close(self) -> None:
        """Leave the group; nothing is consumed any more."""
        self._source.close()
