"""Room for what is under way: whether more may be fetched, and what ends early where memory or buffer get tight."""

from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from .buffer import BufferFolder
from .memory_plan import MemoryPlan
from .partition_archiver import EndBlock, Flush
from .roll_policy import RollReason, blocks_to_end, chunks_to_end


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
