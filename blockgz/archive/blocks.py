"""The blocks of a run of offsets, in order, fetched ahead by merged ranges, with damage in its place.

Three stages, each a stream over the one before: the chunks that the marker leads to, their stored blocks, and the
result of a caller's work on each block.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import pyarrow as pa

from blockgz.archive.partition import ArchivedPartition, Chunk, Damaged, Unreadable, prefetched
from blockgz.encryption.keyring import opened_block
from blockgz.errors import BlockgzError, CorruptBlock, ObjectTruncated, TooLarge
from index_format.blocks import decode_block
from index_format.encryption import check_stored
from index_format.marker import ChunkEntry, TimeBounded, blocks_between, range_groups
from index_format.objects import BlockEntry, ChunkIndex, Stored

# Adjacent blocks are fetched together up to this size: a request costs milliseconds of CPU.
RANGE_BYTES = 8 * 1024 * 1024
# Bytes that a request counts at least, so that small ones do not occupy all connections.
FETCH_BYTES = 1024 * 1024
# Bytes that a block counts at least, so that many small ones do not cost more in tasks than in work.
DECODE_BYTES = 128 * 1024
INDEXES_AHEAD = 4
# Bytes by which a block may exceed its uncompressed bound: gzip adds a little to what it cannot shrink.
COMPRESSION_SLACK = 1024 * 1024

R = TypeVar("R")


class StoredBlock(NamedTuple):
    """One block as stored, and which one it is."""

    chunk: Chunk
    number: int
    member: memoryview

    @property
    def entry(self) -> BlockEntry:
        return self.chunk.index.blocks[self.number]


class ReadAhead(NamedTuple):
    """Bytes as stored, and uncompressed bytes decoded and waiting; a decoded record takes about as many again."""

    fetched: int
    decoded: int

    def shared(self, readers: int) -> "ReadAhead":
        return ReadAhead(self.fetched // readers, self.decoded // readers)


READ_AHEAD = ReadAhead(24 * 1024 * 1024, 16 * 1024 * 1024)


class RangeRead(NamedTuple):
    """Consecutive blocks of one chunk that one request fetches."""

    chunk: Chunk
    numbers: range

    @property
    def num_bytes(self) -> int:
        blocks = self.chunk.index.blocks
        return blocks[self.numbers.stop - 1].byte_end - blocks[self.numbers.start].byte_offset


async def readable_chunks(
    partition: ArchivedPartition, entries: AsyncIterator[ChunkEntry | Unreadable]
) -> AsyncGenerator[Chunk | Unreadable]:

    async def opened(entry: ChunkEntry | Unreadable) -> Chunk | Unreadable:
        if isinstance(entry, Unreadable):
            return entry
        try:
            return await partition.chunk(entry)
        except Damaged as error:
            return unreadable_chunk(entry, partition.index_key(entry), error)

    async for chunk in prefetched(entries, opened, cost=lambda _: 1, budget=INDEXES_AHEAD):
        yield chunk


async def stored_blocks(
    partition: ArchivedPartition,
    chunks: AsyncIterator[Chunk | Unreadable],
    start_offset: int,
    end_offset: int,
    wanted: Callable[[TimeBounded], bool] | None = None,
    ahead_bytes: int = READ_AHEAD.fetched,
    *,
    reads_closed: bool = False,
) -> AsyncGenerator[Chunk | StoredBlock | Unreadable]:
    """Yield each chunk, then its blocks that are `wanted` and may hold records of the offsets [start, end).

    Blocks whose key is missing are fetched only if the caller `reads_closed` ones.
    """

    async def fetched(item: Chunk | RangeRead | Unreadable) -> list[Chunk | StoredBlock | Unreadable]:
        return [*await fetch_range(partition, item)] if isinstance(item, RangeRead) else [item]

    # At most `ahead_bytes` are fetched before they are used.
    reads = _range_reads(chunks, start_offset, end_offset, wanted, reads_closed)
    async for items in prefetched(reads, fetched, cost=_fetching_cost, budget=ahead_bytes):
        for item in items:
            yield item


async def worked(
    blocks: AsyncIterator[Chunk | StoredBlock | Unreadable],
    work: Callable[[StoredBlock], R],
    ahead_bytes: int = READ_AHEAD.decoded,
) -> AsyncGenerator[Chunk | R | Unreadable]:
    """Yield the chunks, and the result of `work`, done in threads, for each block that is not damaged."""

    async def attempt(item: Chunk | StoredBlock | Unreadable) -> Chunk | R | Unreadable:
        if not isinstance(item, StoredBlock):
            return item
        try:
            return await asyncio.to_thread(work, item)
        except Damaged as error:
            return unreadable_blocks(item.chunk, range(item.number, item.number + 1), error)

    async for result in prefetched(blocks, attempt, cost=_decoding_cost, budget=ahead_bytes):
        yield result


async def fetch_blocks(partition: ArchivedPartition, chunk: Chunk, numbers: range) -> list[StoredBlock]:
    """Return consecutive blocks by one range read; raises TooLarge before reading, ObjectMissing or ObjectTruncated."""
    blocks = chunk.index.blocks[numbers.start : numbers.stop]
    bound = partition.max_block_bytes + COMPRESSION_SLACK
    for block in blocks:
        if block.byte_length > bound:
            what = f"a block of {chunk.data_key} has {block.byte_length} bytes"
            raise _too_large(what, f"this reader accepts at most {bound}")
    start = blocks[0].byte_offset
    body = memoryview(await partition.reader.get_range(chunk.data_key, start, blocks[-1].byte_end))
    return [
        StoredBlock(chunk, number, body[block.byte_offset - start : block.byte_end - start])
        for number, block in zip(numbers, blocks, strict=True)
    ]


async def read_block(partition: ArchivedPartition, chunk: Chunk, number: int) -> pa.RecordBatch:
    """Return the records of one block: one range read, decoded in a thread."""
    (block,) = await fetch_blocks(partition, chunk, range(number, number + 1))
    return await asyncio.to_thread(decoded, decode_block, block, partition.max_block_bytes)


def decoded(decode: Callable[[Stored, BlockEntry, ChunkIndex, int], R], block: StoredBlock, max_bytes: int) -> R:
    """Return what `decode_block`, `decode_parts` or their like make of a block; errors of the format name it."""
    with _located(block):
        return decode(*opened(block), block.chunk.index, max_bytes)


def check_unopened(block: StoredBlock) -> None:
    """Raise CorruptBlock unless the bytes of an encrypted block are those that its index describes; needs no key."""
    with _located(block):
        check_stored(block.member, block.entry)


def opened(block: StoredBlock) -> tuple[Stored, BlockEntry]:
    """Return the block's member or frame, decrypted if needed, and its entry; raises KeyMissing, CorruptBlock."""
    chunk = block.chunk
    return opened_block(block.member, block.number, chunk.index, chunk.data_key, chunk.keyring)


@contextmanager
def _located(block: StoredBlock) -> Iterator[None]:
    entry = block.entry
    try:
        yield
    except CorruptBlock as error:
        raise CorruptBlock(
            f"block {block.number} of {block.chunk.data_key} is damaged: offsets "
            f"[{entry.first_record_offset}..{entry.last_record_offset + 1}) cannot be read",
            why=error.reason,
            remedy="run `replayer verify --deep` to see all that is lost",
        ) from error
    except TooLarge as error:
        raise _too_large(
            f"block {block.number} of {block.chunk.data_key} is too large: {error.what}", error.why
        ) from error


def _too_large(what: str, why: str) -> TooLarge:
    return TooLarge(what, why=why, remedy="raise --max-block-bytes if you trust the archive and expect such records")


def unreadable_chunk(entry: ChunkEntry, key: str, error: BlockgzError) -> Unreadable:
    """Return a whole chunk as damaged, because its index or data object `key` is missing or wrong."""
    return Unreadable(entry.first_offset, entry.last_offset + 1, entry.num_records, key, error)


def unreadable_blocks(chunk: Chunk, numbers: range, error: BlockgzError) -> Unreadable:
    blocks = chunk.index.blocks[numbers.start : numbers.stop]
    num_records = sum(block.num_records for block in blocks)
    return Unreadable(
        blocks[0].first_record_offset, blocks[-1].last_record_offset + 1, num_records, chunk.data_key, error
    )


async def _range_reads(
    chunks: AsyncIterator[Chunk | Unreadable],
    start_offset: int,
    end_offset: int,
    wanted: Callable[[TimeBounded], bool] | None,
    reads_closed: bool,
) -> AsyncIterator[Chunk | RangeRead | Unreadable]:
    async for chunk in chunks:
        yield chunk
        if isinstance(chunk, Unreadable):
            continue
        blocks = chunk.index.blocks
        inside = blocks_between(blocks, start_offset, end_offset)
        closed = None if reads_closed else chunk.missing_key
        for numbers in range_groups(blocks, [n for n in inside if wanted is None or wanted(blocks[n])], RANGE_BYTES):
            yield unreadable_blocks(chunk, numbers, closed) if closed else RangeRead(chunk, numbers)


async def fetch_range(partition: ArchivedPartition, read: RangeRead) -> list[StoredBlock | Unreadable]:
    """Return the blocks of a range; if the object ends inside it, find those before its end by ever smaller halves."""
    chunk, numbers = read
    try:
        return [*await fetch_blocks(partition, chunk, numbers)]
    except Damaged as error:
        if len(numbers) == 1 or not isinstance(error, ObjectTruncated | TooLarge):
            return [unreadable_blocks(chunk, numbers, error)]
    # An error of a range does not say where the object ends.
    middle = numbers.start + len(numbers) // 2
    before = await fetch_range(partition, RangeRead(chunk, range(numbers.start, middle)))
    behind = await fetch_range(partition, RangeRead(chunk, range(middle, numbers.stop)))
    return [*before[:-1], *_as_one(before[-1], behind[0]), *behind[1:]]


def _as_one(left: StoredBlock | Unreadable, right: StoredBlock | Unreadable) -> list[StoredBlock | Unreadable]:
    if not (isinstance(left, Unreadable) and isinstance(right, Unreadable) and type(left.error) is type(right.error)):
        return [left, right]
    return [left._replace(end=right.end, num_records=left.num_records + right.num_records)]


def _fetching_cost(item: Chunk | RangeRead | Unreadable) -> int:
    return max(item.num_bytes, FETCH_BYTES) if isinstance(item, RangeRead) else FETCH_BYTES


def _decoding_cost(item: Chunk | StoredBlock | Unreadable) -> int:
    return max(item.entry.byte_length_uncompressed, DECODE_BYTES) if isinstance(item, StoredBlock) else DECODE_BYTES
