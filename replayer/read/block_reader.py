"""Blocks of a chunk: fetched by range, decoded with their place in the archive named in every error."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from index_format.blocks import decode_block, decode_block_near, inflate_block
from index_format.chunk_index import BlockEntry
from index_format.errors import CorruptBlock, TooLarge
from replayer.read.partition import ArchivedPartition, Chunk

COMPRESSION_SLACK = 1024 * 1024
"""Bytes by which a block may exceed its uncompressed bound: gzip adds a little to what it cannot shrink."""


class StoredBlock(NamedTuple):
    """One block as stored, and which one it is."""

    chunk: Chunk
    number: int
    member: memoryview

    @property
    def entry(self) -> BlockEntry:
        """What the index says of it."""
        return self.chunk.index.blocks[self.number]


async def fetch_blocks(partition: ArchivedPartition, chunk: Chunk, numbers: range) -> list[StoredBlock]:
    """Consecutive blocks by one range read; raises TooLarge before reading, ObjectMissing or ObjectTruncated."""
    blocks = chunk.index.blocks[numbers.start : numbers.stop]
    bound = partition.max_block_bytes + COMPRESSION_SLACK
    for block in blocks:
        if block.byte_length > bound:
            raise TooLarge(
                f"a block of {chunk.data_key} has {block.byte_length} bytes",
                why=f"this reader accepts at most {bound}",
                remedy="raise --max-block-bytes if the archive is yours and such records are expected",
            )
    start = blocks[0].byte_offset
    body = memoryview(await partition.reader.get_range(chunk.data_key, start, blocks[-1].byte_end))
    return [
        StoredBlock(chunk, number, body[block.byte_offset - start : block.byte_end - start])
        for number, block in zip(numbers, blocks, strict=True)
    ]


async def read_block(partition: ArchivedPartition, chunk: Chunk, number: int) -> pa.RecordBatch:
    """The records of one block: one range read, decoded in a thread."""
    (block,) = await fetch_blocks(partition, chunk, range(number, number + 1))
    return await asyncio.to_thread(decoded, block, partition.max_block_bytes)


def decoded(block: StoredBlock, max_bytes: int) -> pa.RecordBatch:
    """The records of a block; raises TooLarge, CorruptBlock or UnsupportedVersion."""
    try:
        return decode_block(block.member, block.entry, block.chunk.index, max_bytes)
    except CorruptBlock as error:
        raise _located(error, block) from error


def decoded_near(block: StoredBlock, offsets: Sequence[int], max_bytes: int) -> pa.RecordBatch:
    """Of those the ones at some offsets within the block, or the nearest on both sides; raises as `decoded` does."""
    try:
        return decode_block_near(block.member, block.entry, block.chunk.index, max_bytes, offsets)
    except CorruptBlock as error:
        raise _located(error, block) from error


def inflated(block: StoredBlock, max_bytes: int) -> bytes:
    """The uncompressed bytes of a block; raises as `decoded` does."""
    try:
        return inflate_block(block.member, block.entry, block.chunk.index, max_bytes)
    except CorruptBlock as error:
        raise _located(error, block) from error


def _located(error: CorruptBlock, block: StoredBlock) -> CorruptBlock:
    entry = block.entry
    return CorruptBlock(
        f"block {block.number} of {block.chunk.data_key} is damaged: offsets {entry.first_record_offset} to "
        f"{entry.last_record_offset} cannot be read",
        why=f"{error.what}: {error.why}",
        remedy="run `replayer verify --deep` to see all that is lost",
    )
