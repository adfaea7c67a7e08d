"""Backpressure: budgets of memory and disk, and fetching inside them.

A partition that takes more than its share because its commit does not end is paused alone. Out of budget altogether,
the consumer is left unpolled for a moment, then paused and polled, which keeps it in the group.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from enum import Enum
from functools import cached_property

from archiver.ingest.chunk_builder import BUFFER_SHARE_OF_OPEN_CHUNKS, BufferFolder, largest
from archiver.ingest.kafka_source import EndReached, Event, Fetched, GroupListener, KafkaSource, Partition
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.partition_state import ArchivingState, Order
from archiver.logs import LogEvent, log

# The parts of --memory, each one in N: a good third of it together, for records at rest. The rest is for
# records that are being worked on: each is there several times, as librdkafka's message, as Arrow, as text, encoded and
# compressed; fetches are added whole; and allocators keep some of what was given back.
# For records that librdkafka fetched ahead.
QUEUE = 8
# For messages that wait until they are worth an Arrow batch.
BATCHING = 24
# For batches that wait to be encoded.
WAITING = 12
# For encoded records of blocks that are not full yet.
OPEN_BLOCKS = 12
# For what open chunks note of their finished blocks.
INDEXES = 24
# The least share of a partition, in bytes: a pause costs a fetch, and is not worth less.
LEAST_SHARE_BYTES = 64 * 1024


def share_of(budget: int, partitions: int) -> int:
    """Return the bytes that each of so many partitions may hold while its commit does not end."""
    # A single one may have everything: it holds up no other. Many take a quarter at most, unless there are very many.
    return max(LEAST_SHARE_BYTES, budget // (1 if partitions <= 1 else 4 * partitions))


def exceeds(state: ArchivingState, waiting_bytes: int, buffer_bytes: int | None) -> bool:
    """Return whether a partition holds more than its share of what others need, and only the store can change that.

    Its shares are of the batches that wait to be encoded, and of the buffer; None while the buffer is not tight.
    """
    if state.is_blocked and state.inbox_bytes > waiting_bytes:
        return True
    return buffer_bytes is not None and bool(state.pending) and state.buffered_bytes > buffer_bytes


# Parts of the buffer: above the first one a partition may not take more than its share, below the second any may.
TIGHT = 1 / 2
RELAXED = 3 / 8
# A partition that waits for nothing but processor time may hold one Nth of the memory for waiting batches
# that those paused alone leave; then nothing is polled until it holds less. It may be blocked at any time.
LARGEST_PART = 4


class Budgets:
    """The budgets of one process, in bytes, and what its partitions hold of them.

    Nothing here looks at all partitions often: there may be thousands, and a poll takes milliseconds.
    """

    def __init__(self, memory: int, buffer: BufferFolder, buffer_bytes: int) -> None:
        self._memory = memory
        self._buffer = buffer
        self._buffer_bytes = buffer_bytes
        self._taken_bytes = 0
        # No more can wait: what waited when it was added up last, and all that was taken since.
        self._waiting_at_most = 0
        # Partitions that took batches since the last `turns`, or held too much of the memory then.
        self._grown: set[Partition] = set()
        self._is_uneven = False

    @property
    def buffered_bytes(self) -> int:
        return self._buffer.used_bytes

    def have_capacity(self, loads: Mapping[Partition, PartitionArchiver]) -> bool:
        """Return whether more may be fetched: records that wait and the buffer are below their budgets."""
        if self._waiting_at_most >= self._memory // WAITING:
            self._waiting_at_most = _waiting(loads.values())
        waits = self._is_uneven or self._waiting_at_most >= self._memory // WAITING
        return not waits and self._buffer.used_bytes < self._buffer_bytes

    def taken(self, partition: Partition, num_bytes: int, loads: Mapping[Partition, PartitionArchiver]) -> None:
        """Count bytes handed to a partition: open blocks may exceed their share long before the next `relieve`."""
        self._grown.add(partition)
        self._waiting_at_most += num_bytes
        self._taken_bytes += num_bytes
        if self._taken_bytes >= self._memory // OPEN_BLOCKS // 2:
            self._end_blocks(loads)

    def turns(
        self, loads: Mapping[Partition, PartitionArchiver], paused: Set[Partition]
    ) -> tuple[set[Partition], set[Partition]]:
        """Return which partitions to pause alone, and which of the `paused` ones to resume."""
        # Looks only at those that took batches and those that are `paused`.
        if not (self._grown or paused):
            return set(), set()
        waiting, buffer = (share_of(each, len(loads)) for each in (self._memory // WAITING, self._buffer_bytes))
        used, alone = self._buffer.used_bytes, {each: loads[each] for each in paused if each in loads}
        is_tight, is_relaxed = used > TIGHT * self._buffer_bytes, used <= RELAXED * self._buffer_bytes
        resume = {
            partition
            for partition, load in alone.items()
            if not exceeds(load.state, waiting // 2, None if is_relaxed else buffer // 2)
        }
        left = self._memory // WAITING - _waiting(alone.values())
        most = left // LARGEST_PART if len(loads) - len(alone) > 1 else left
        states = {each: loads[each].state for each in self._grown if each in loads and each not in paused}
        pause = {each for each, state in states.items() if exceeds(state, waiting, buffer if is_tight else None)}
        most = max(LEAST_SHARE_BYTES, most)
        self._grown = {each for each, state in states.items() if state.inbox_bytes > most and not state.is_blocked}
        self._is_uneven = bool(self._grown)
        return pause, resume

    def relieve(self, loads: Mapping[Partition, PartitionArchiver], paused: Set[Partition] = frozenset()) -> None:
        """End the largest open chunks and blocks early: thousands of partitions with one each would fill both."""
        # What those that are `paused` alone hold of the buffer, the others do not have.
        committing = {key for key, each in loads.items() if each.state.is_committing}
        open_bytes = {key: each.state.open_bytes for key, each in loads.items() if key not in paused}
        left = self._buffer_bytes - sum(loads[each].state.buffered_bytes for each in paused & loads.keys())
        for key in largest(open_bytes, left * BUFFER_SHARE_OF_OPEN_CHUNKS, committing):
            loads[key].offer(Order.FLUSH)
        index_bytes = {key: each.state.open_index_bytes for key, each in loads.items()}
        for key in largest(index_bytes, self._memory // INDEXES * BUFFER_SHARE_OF_OPEN_CHUNKS, committing):
            loads[key].offer(Order.FLUSH)
        self._end_blocks(loads)

    def _end_blocks(self, loads: Mapping[Partition, PartitionArchiver]) -> None:
        self._taken_bytes = 0
        open_bytes = {key: each.state.open_block_bytes for key, each in loads.items()}
        for key in largest(open_bytes, self._memory // OPEN_BLOCKS):
            loads[key].offer(Order.END_BLOCK)


def _waiting(loads: Iterable[PartitionArchiver]) -> int:
    return sum(each.state.inbox_bytes for each in loads)


# The consumer is not polled for these seconds without capacity; then its partitions are paused and polling resumes.
# A partition that is paused alone for that time is reported.
STALL_SECONDS = 10.0


class FetchMode(Enum):
    """An action of one step on the consumer."""

    FETCH = "fetch"
    WAIT = "wait"
    """Not polled: what it fetched already stays in its own queue."""
    POLL_PAUSED = "poll paused"
    """Polled, so that the group keeps this member, but nothing is fetched."""


def mode_after(mode: FetchMode, has_capacity: bool, stalled_seconds: float) -> FetchMode:
    """Return the next mode; `stalled_seconds` since there was capacity."""
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
        self._mode = FetchMode.FETCH
        self._had_capacity_at = clock()
        # Partitions that are paused alone.
        self._paused_at: dict[Partition, float] = {}
        # Partitions paused alone that the log has reported: a short pause is not worth a line.
        self._logged: set[Partition] = set()
        self._fetched_at: dict[Partition, float] = {}

    @cached_property
    def _source(self) -> KafkaSource:
        """Connected when it is first used: the group is known once the archive was opened."""
        return self._connect()

    @property
    def is_paused(self) -> bool:
        """Return whether nothing is fetched because the budgets are used up. Safe to ask from any thread."""
        return self._mode is FetchMode.POLL_PAUSED

    @property
    def paused(self) -> Set[Partition]:
        """Return the partitions that are paused alone."""
        return self._paused_at.keys()

    def ages(self, partition: Partition, now: float) -> tuple[float | None, float | None]:
        """Return the seconds since a partition was fetched, and since it was paused alone. Safe for any thread."""
        # It is fetched when records come, or the answer that there are none, or when it is consumed for the first time.
        fetched_at, paused_at = self._fetched_at.get(partition), self._paused_at.get(partition)
        return None if fetched_at is None else now - fetched_at, None if paused_at is None else now - paused_at

    def subscribe(self, topics: Sequence[str], listener: GroupListener) -> None:
        self._source.subscribe(topics, listener)

    def join_again(self, topics: Sequence[str], listener: GroupListener) -> None:
        self._source.join_again(topics, listener)

    def consume(self, positions: Mapping[Partition, int]) -> None:
        """Consume these partitions too, each from its position. They are paused if all others are."""
        self._forget(positions)
        self._fetched_at |= dict.fromkeys(positions, self._clock())
        self._source.consume(positions)
        if self.is_paused:
            self._source.pause(positions)

    def release(self, partitions: Sequence[Partition]) -> None:
        self._forget(partitions)
        self._source.release(partitions)

    def batched(self, partitions: Iterable[Partition]) -> list[Event]:
        return self._source.batched(partitions)

    def commit(self, positions: Mapping[Partition, int]) -> None:
        self._source.commit(positions)

    def poll(self, loads: Mapping[Partition, PartitionArchiver]) -> list[Event]:
        """Return what arrived within a moment; `loads` are the active partitions. Raises MemberRefused."""
        now = self._clock()
        self._take_turns(loads, now)
        has_capacity = self._budgets.have_capacity(loads)
        if has_capacity:
            self._had_capacity_at = now
        before, self._mode = self._mode, mode_after(self._mode, has_capacity, now - self._had_capacity_at)
        if self._mode is FetchMode.WAIT:
            self._rest()
            return []
        if self._mode is FetchMode.POLL_PAUSED and before is not FetchMode.POLL_PAUSED:
            log.warning(LogEvent.PAUSED, buffer_bytes=self._budgets.buffered_bytes or None)
            self._source.pause(loads)
        elif self._mode is FetchMode.FETCH and before is FetchMode.POLL_PAUSED:
            self._source.resume(loads.keys() - self.paused)
            log.info(LogEvent.RESUMED)
        events = self._source.poll()
        self._fetched_at |= {each.partition: now for each in events if isinstance(each, Fetched | EndReached)}
        return events

    def reconnect(self) -> None:
        """Replace a consumer that the group refused by a new one, which consumes nothing yet."""
        self._source = self._connect()
        self._mode = FetchMode.FETCH
        self._forget(list(self._paused_at))
        self._fetched_at = {}

    def close(self) -> None:
        """Leave the group; nothing is consumed any longer."""
        if "_source" in vars(self):
            self._source.close()

    def _take_turns(self, loads: Mapping[Partition, PartitionArchiver], now: float) -> None:
        """Pause partitions alone that hold more than their share; resume those that no longer do."""
        self._forget([each for each in self.paused if each not in loads])
        pause, resume = self._budgets.turns(loads, self.paused)
        self._forget(resume)
        self._paused_at |= dict.fromkeys(pause, now)
        if not self.is_paused:
            self._source.pause(pause)
            self._source.resume(resume)
        for partition, paused_at in self._paused_at.items():
            if now - paused_at >= STALL_SECONDS and partition not in self._logged:
                self._logged.add(partition)
                log.warning(LogEvent.PARTITION_PAUSED, topic=partition[0], partition=partition[1])

    def _forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._paused_at.pop(partition, None)
            if partition in self._logged:
                self._logged.discard(partition)
                log.info(LogEvent.PARTITION_RESUMED, topic=partition[0], partition=partition[1])
