"""Reading a run of records in offset order: merged ranges, fetched ahead, decoded in threads, memory bounded."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from index_format.seek import blocks_between, merged_ranges

from .archive import ArchivedPartition, Chunk
from .block_reader import StoredBlock, decoded, fetch_blocks
from .prefetch import prefetched

RANGE_BYTES = 8 * 1024 * 1024
"""Adjacent blocks are fetched together up to this size: a request costs milliseconds of CPU."""
INDEXES_AHEAD = 4


class ReadAhead(NamedTuple):
    """Bytes as stored, and uncompressed bytes decoded and waiting; a decoded record takes about as many again."""

    fetched: int
    decoded: int

    def shared(self, readers: int) -> "ReadAhead":
        """What each of several readers may have of it."""
        return ReadAhead(self.fetched // readers, self.decoded // readers)


READ_AHEAD = ReadAhead(24 * 1024 * 1024, 16 * 1024 * 1024)


class RangeRead(NamedTuple):
    """Consecutive blocks of one chunk that one request fetches."""

    chunk: Chunk
    numbers: range

    @property
    def num_bytes(self) -> int:
        """Bytes as stored."""
        blocks = self.chunk.index.blocks
        return blocks[self.numbers.stop - 1].byte_end - blocks[self.numbers.start].byte_offset


async def scan(
    partition: ArchivedPartition, start_offset: int, end_offset: int, ahead: ReadAhead = READ_AHEAD
) -> AsyncGenerator[pa.RecordBatch]:
    """The archived records of offsets [start_offset, end_offset) as batches of `index_format.records.SCHEMA`, in order.

    Batches are never empty; each is (a part of) one block. Close the iterator (`aclosing`) when you stop early.
    Raises a FormatError or ObjectMissing at the first damaged block; what came before it is right.
    """

    async def fetch(read: RangeRead) -> list[StoredBlock]:
        return await fetch_blocks(partition, read.chunk, read.numbers)

    async def decode(block: StoredBlock) -> pa.RecordBatch:
        return await asyncio.to_thread(decoded, block, partition.max_block_bytes)

    entries = partition.entries(start_offset, end_offset)
    chunks = prefetched(entries, partition.chunk, cost=lambda _: 1, budget=INDEXES_AHEAD)
    reads = _range_reads(chunks, start_offset, end_offset)
    fetched = prefetched(reads, fetch, cost=lambda read: read.num_bytes, budget=ahead.fetched)
    batches = prefetched(
        _singly(fetched), decode, cost=lambda block: block.entry.byte_length_uncompressed, budget=ahead.decoded
    )
    async for batch in batches:
        part = trimmed(batch, start_offset, end_offset)
        if part.num_rows:
            yield part


def trimmed(batch: pa.RecordBatch, start_offset: int, end_offset: int) -> pa.RecordBatch:
    """The rows of a batch whose offsets lie in [start_offset, end_offset)."""
    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, [start_offset, end_offset])
    return batch.slice(int(first), int(last - first))


def payload_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of the keys and values of a batch."""
    return sum(pc.sum(pc.binary_length(batch.column(name))).as_py() or 0 for name in ("key", "value"))


async def _range_reads(chunks: AsyncIterator[Chunk], start_offset: int, end_offset: int) -> AsyncIterator[RangeRead]:
    async for chunk in chunks:
        blocks = chunk.index.blocks
        wanted = blocks_between(blocks, start_offset, end_offset)
        for group in merged_ranges(blocks[wanted.start : wanted.stop], RANGE_BYTES) if wanted else ():
            yield RangeRead(chunk, range(wanted.start + group.start, wanted.start + group.stop))


async def _singly(fetched: AsyncIterator[list[StoredBlock]]) -> AsyncIterator[StoredBlock]:
    async for blocks in fetched:
        for block in blocks:
            yield block
