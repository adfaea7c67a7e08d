"""Blocks as record batches, each encoded once for all consumers and kept within a budget of bytes."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence

from blockgz.archive.blocks import RANGE_BYTES, RangeRead, StoredBlock, decoded, fetch_range
from blockgz.archive.partition import ArchivedPartition, Chunk, Unreadable
from index_format.blocks import decode_parts
from replayer.broker.batches import RecordBatch, record_batches

# The data object, and the block's number in it.
_Key = tuple[str, int]
Encoded = Sequence[RecordBatch]
# What one consumer of a partition has read ahead, at most.
_MOST_AHEAD_BYTES = 8 * 1024 * 1024


class BlockCache:
    """Record batches of the blocks that were used last; concurrent readers of a block share one read of it."""

    def __init__(self, budget: int, codec: str | None) -> None:
        """`budget` bytes cover what is kept and what is being read."""
        self._budget = budget
        self._codec = codec
        self._kept: OrderedDict[_Key, Encoded] = OrderedDict()
        self._pending: dict[_Key, asyncio.Future[Encoded]] = {}
        self._reads: set[asyncio.Task[None]] = set()
        self._room = asyncio.Condition()
        # Consumers of partitions that read on: they share what is read ahead.
        self.readers = 0
        self.kept_bytes = self.pending_bytes = 0
        self.counts: Counter[str] = Counter()

    @property
    def ahead_bytes(self) -> int:
        """Return how many bytes each consumer may have read ahead."""
        return min(_MOST_AHEAD_BYTES, self._budget // (4 * max(1, self.readers)))

    async def block(self, partition: ArchivedPartition, chunk: Chunk, number: int, ahead: int) -> Encoded:
        """Return a block's record batches; read up to `ahead` more bytes behind it. Raise what reading it raises."""
        key = chunk.data_key, number
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            self.counts["hits"] += 1
        else:
            self.counts["misses"] += 1
            if key not in self._pending:
                self._begin(partition, chunk, number, ahead, is_needed=True)
            found = await asyncio.shield(self._pending[key])
        if ahead:
            self._read_ahead(partition, chunk, number + 1, ahead)
        return found

    def _read_ahead(self, partition: ArchivedPartition, chunk: Chunk, number: int, ahead: int) -> None:
        """Read the next range once half of what may be ahead is used up."""
        blocks, left = chunk.index.blocks, ahead // 2
        while number < len(blocks) and left > 0:
            if not self._is_known((chunk.data_key, number)):
                if self.pending_bytes < self._budget // 4:
                    self._begin(partition, chunk, number, ahead // 2, is_needed=False)
                return
            left -= _cost(chunk, number)
            number += 1

    def _is_known(self, key: _Key) -> bool:
        return key in self._kept or key in self._pending

    def _begin(self, partition: ArchivedPartition, chunk: Chunk, number: int, ahead: int, *, is_needed: bool) -> None:
        blocks, stop = chunk.index.blocks, number + 1
        cost = _cost(chunk, number)
        stored = blocks[number].byte_length
        while stop < len(blocks) and not self._is_known((chunk.data_key, stop)):
            more, stored = _cost(chunk, stop), stored + blocks[stop].byte_length
            if more > ahead or stored > RANGE_BYTES:
                break
            ahead -= more
            cost += more
            stop += 1
        numbers = range(number, stop)
        loop = asyncio.get_running_loop()
        self._pending |= {(chunk.data_key, each): loop.create_future() for each in numbers}
        task = asyncio.create_task(self._read(partition, RangeRead(chunk, numbers), cost, is_needed=is_needed))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _read(self, partition: ArchivedPartition, read: RangeRead, cost: int, *, is_needed: bool) -> None:
        if is_needed:
            async with self._room:
                await self._room.wait_for(
                    lambda: not self.pending_bytes or self.pending_bytes + cost <= self._budget // 2
                )
        self.pending_bytes += cost
        try:
            items = await fetch_range(partition, read)
            await asyncio.gather(*(self._encode(partition, read.chunk, item) for item in items))
        except BaseException as error:
            self._fail(read.chunk, read.numbers, error)
            if not isinstance(error, Exception):
                raise
        finally:
            self.pending_bytes -= cost
            async with self._room:
                self._room.notify_all()

    async def _encode(self, partition: ArchivedPartition, chunk: Chunk, item: StoredBlock | Unreadable) -> None:
        if isinstance(item, Unreadable):
            blocks = chunk.index.blocks
            inside = [n for n, block in enumerate(blocks) if item.start <= block.first_record_offset < item.end]
            self._fail(chunk, inside, item.error)
            return
        key = chunk.data_key, item.number
        try:
            found = await asyncio.to_thread(_encoded, item, partition.max_block_bytes, self._codec)
        except Exception as error:
            self._fail(chunk, [item.number], error)
            return
        self._kept[key] = found
        self.kept_bytes += _size(found)
        self._pending.pop(key).set_result(found)
        while self.kept_bytes > self._budget // 2 and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self.kept_bytes -= _size(dropped)

    def _fail(self, chunk: Chunk, numbers: Sequence[int], error: BaseException) -> None:
        for number in numbers:
            future = self._pending.pop((chunk.data_key, number), None)
            if future is not None and not future.done():
                future.set_exception(error)
                future.exception()  # perhaps nobody waits for it

    def drop(self, folder: str) -> None:
        """Forget the blocks of a partition's folder, of which an erase or a prune may have removed some."""
        for key in [key for key in self._kept if key[0].startswith(folder)]:
            self.kept_bytes -= _size(self._kept.pop(key))

    async def close(self) -> None:
        """End all reads."""
        for task in self._reads:
            task.cancel()
        await asyncio.gather(*self._reads, return_exceptions=True)


def _encoded(block: StoredBlock, max_bytes: int, codec: str | None) -> Encoded:
    return [batch for part in decoded(decode_parts, block, max_bytes) for batch in record_batches(part, codec)]


def _cost(chunk: Chunk, number: int) -> int:
    block = chunk.index.blocks[number]
    return block.byte_length_uncompressed + block.byte_length


def _size(encoded: Encoded) -> int:
    return sum(len(batch.data) for batch in encoded)
