"""Reading a run of records in offset order: fetched ahead, decoded in threads, memory bounded."""

from collections.abc import AsyncGenerator, Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index_format.marker import ChunkEntry
from index_format.seek import TimeBounded
from replayer.read.block_reader import StoredBlock, decoded
from replayer.read.block_stream import READ_AHEAD, ReadAhead, readable_chunks, stored_blocks, worked
from replayer.read.damage import STOP, DamagePolicy, Unreadable
from replayer.read.partition import ArchivedPartition


async def scan(
    partition: ArchivedPartition,
    start_offset: int,
    end_offset: int,
    wanted: Callable[[TimeBounded], bool] | None = None,
    *,
    on_damage: DamagePolicy = STOP,
    ahead: ReadAhead = READ_AHEAD,
) -> AsyncGenerator[pa.RecordBatch]:
    """The archived records of offsets [start_offset, end_offset) as batches of `index_format.records.SCHEMA`, in order.

    Batches are never empty; each is (a part of) one block. Close the iterator (`aclosing`) when you stop early.
    `wanted` is asked of catalogs, chunks and blocks: what it refuses is not read, nor is anything below it.
    `on_damage` hears of each damaged block, chunk or catalog in its place, with the offsets that it costs within the
    wanted ones; unless told otherwise the scan ends there with a FormatError or ObjectMissing. What came
    before is right.
    """

    def decode(block: StoredBlock) -> pa.RecordBatch:
        return decoded(block, partition.max_block_bytes)

    chunks = readable_chunks(partition, chosen_entries(partition, start_offset, end_offset, wanted))
    blocks = stored_blocks(partition, chunks, start_offset, end_offset, wanted, ahead.fetched)
    async for item in worked(blocks, decode, ahead.decoded):
        if isinstance(item, Unreadable):
            start, end = max(item.start, start_offset), min(item.end, end_offset)
            if start < end:
                on_damage.meet(item._replace(start=start, end=end))
        elif isinstance(item, pa.RecordBatch):
            part = trimmed(item, start_offset, end_offset)
            if part.num_rows:
                yield part


def trimmed(batch: pa.RecordBatch, start_offset: int, end_offset: int) -> pa.RecordBatch:
    """The rows of a batch whose offsets lie in [start_offset, end_offset)."""
    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, [start_offset, end_offset])
    return batch.slice(int(first), int(last - first))


def payload_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of the keys and values of a batch."""
    return sum(_content_bytes(batch.column(name)) for name in ("key", "value"))


def _content_bytes(column: pa.BinaryArray) -> int:
    if column.null_count or not len(column):
        return pc.sum(pc.binary_length(column)).as_py() or 0
    # Asked several times for every batch of a replay, and a tenth of what Arrow's functions take.
    ends = np.frombuffer(column.buffers()[1], np.int32)
    return int(ends[column.offset + len(column)] - ends[column.offset])


async def chosen_entries(
    partition: ArchivedPartition, start: int, end: int, wanted: Callable[[TimeBounded], bool] | None = None
) -> AsyncGenerator[ChunkEntry | Unreadable]:
    """The chunks that may hold records of offsets [start, end), in order, and catalogs that cannot be read."""
    async for opened in partition.walk(start, end, wanted):
        if isinstance(opened, ChunkEntry | Unreadable):
            yield opened
