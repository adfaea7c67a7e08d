"""Pages of records around a position, both ways, with the reason for every offset without a record.

A reason is a gap, a hole, damage, or that offsets were pruned or erased.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

from blockgz.archive.blocks import decoded_parts, fetch_blocks, unreadable_blocks
from blockgz.archive.damage import MOST_REWRITES, Damaged, Unreadable
from blockgz.archive.partition import END, ArchivedPartition, Chunk
from blockgz.archive.positions import BeforeEnd, Latest, OffsetRange, Position, resolve_position
from blockgz.archive.selection import trimmed
from index_format.chunk_index import EMPTY, ERASED, Gap
from index_format.marker import ChunkEntry, blocks_between
from index_format.records import Record, iter_records, payload_bytes

PAGE_BYTES = 8 * 1024 * 1024
"""A page ends after this many bytes of keys, values and headers."""
MOST_DAMAGED = 20
"""A page ends after this many damaged places."""
HOLE = "no record: compacted away, aborted, or a transaction marker"
ERASED_HERE = "no longer in the archive"

Piece: TypeAlias = pa.RecordBatch | Unreadable


class Missing(NamedTuple):
    """Offsets [start, end) without a record, and the reason."""

    start: int
    end: int
    kind: Literal["gap", "hole", "damage", "pruned", "erased"]
    reason: str


class Page(NamedTuple):
    """Everything that the archive knows of the offsets [start, end), in their order."""

    items: tuple[Record | Missing, ...]
    start: int
    end: int
    opened_bytes: int
    """Bytes of all data of the chunks that were read from."""
    has_before: bool
    has_after: bool

    @property
    def records(self) -> list[Record]:
        return [item for item in self.items if isinstance(item, Record)]


async def page_at(partition: ArchivedPartition, position: Position, count: int) -> Page:
    """Return the page that begins at a position; for `latest`, and `-N` if nothing follows, the one before the end."""
    if isinstance(position, Latest):
        return await page_before(partition, partition.next_offset, count)
    offset = await resolve_position(position, partition)
    page = await page_from(partition, offset, count)
    if not page.records and isinstance(position, BeforeEnd):
        return await page_before(partition, partition.next_offset, count)
    return page


async def page_from(partition: ArchivedPartition, offset: int, count: int) -> Page:
    """Return at most `count` records at and above an offset. Raises as opening a chunk does, unless that is damage."""
    return await _sound(partition, lambda newest: _page_from(newest, offset, count))


async def _page_from(partition: ArchivedPartition, offset: int, count: int) -> Page:
    start = min(max(offset, partition.start_offset), partition.next_offset)
    taken = _Taken(partition, count)
    async with aclosing(_upwards(partition, start, taken.chunks)) as pieces:
        async for piece in pieces:
            if taken.is_full:
                break
            taken.add(piece)
    end = taken.ends[-1] if taken.is_full else partition.next_offset
    return taken.page(OffsetRange(start, max(start, end)))


async def page_before(partition: ArchivedPartition, offset: int, count: int) -> Page:
    """Return at most `count` records below an offset. Raises as opening a chunk does, unless that is damage."""
    return await _sound(partition, lambda newest: _page_before(newest, offset, count))


async def _sound(partition: ArchivedPartition, make: Callable[[ArchivedPartition], Awaitable[Page]]) -> Page:
    page = await make(partition)
    for _ in range(MOST_REWRITES):
        damaged = [each for each in page.items if isinstance(each, Missing) and each.kind == "damage"]
        newer = await partition.newer(damaged[0].start) if damaged else None
        if newer is None:
            break
        partition = newer
        page = await make(partition)
    return page


async def _page_before(partition: ArchivedPartition, offset: int, count: int) -> Page:
    end = min(max(offset, partition.start_offset), partition.next_offset)
    taken = _Taken(partition, count)
    async with aclosing(_downwards(partition, end, taken.chunks)) as pieces:
        async for piece in pieces:
            if taken.is_full:
                break
            taken.add_below(piece)
    start = taken.starts[-1] if taken.is_full else partition.start_offset
    return taken.page(OffsetRange(min(start, end), end))


class _Taken:
    def __init__(self, partition: ArchivedPartition, count: int) -> None:
        self._partition = partition
        self._left, self._bytes_left = count, PAGE_BYTES
        self._pieces: list[Piece] = []
        self.chunks: dict[str, Chunk] = {}
        """The opened chunks, by name."""

    @property
    def is_full(self) -> bool:
        damaged = sum(isinstance(piece, Unreadable) for piece in self._pieces)
        return self._left <= 0 or self._bytes_left <= 0 or damaged >= MOST_DAMAGED

    @property
    def starts(self) -> list[int]:
        return [
            each.start if isinstance(each, Unreadable) else each.column("offset")[0].as_py() for each in self._pieces
        ]

    @property
    def ends(self) -> list[int]:
        return [
            each.end if isinstance(each, Unreadable) else each.column("offset")[-1].as_py() + 1 for each in self._pieces
        ]

    def add(self, piece: Piece) -> None:
        self._count(piece if isinstance(piece, Unreadable) else piece.slice(0, self._left))

    def add_below(self, piece: Piece) -> None:
        self._count(piece if isinstance(piece, Unreadable) else piece.slice(max(0, piece.num_rows - self._left)))

    def _count(self, piece: Piece) -> None:
        self._pieces.append(piece)
        if not isinstance(piece, Unreadable):
            self._left -= piece.num_rows
            self._bytes_left -= payload_bytes(piece)

    def page(self, offsets: OffsetRange) -> Page:
        partition, chunks = self._partition, self.chunks.values()
        gaps: Iterable[Gap] = {*partition.read_gaps, *(gap for chunk in chunks for gap in chunk.gaps)}
        known = [
            Missing(gap.start, gap.end, "erased", ERASED_HERE)
            if gap.reason == ERASED
            else Missing(gap.start, gap.end, "gap", gap.reason)
            for gap in gaps
            if gap.reason != EMPTY
        ]
        for chunk in chunks:
            known += [Missing(each.start, each.end, "erased", ERASED_HERE) for each in chunk.erased]
        floor = partition.floor
        if partition.began_at < floor == offsets.start:
            offsets = OffsetRange(partition.began_at, offsets.end)
            known.append(Missing(partition.began_at, floor, "pruned", f"nothing below offset {floor} is kept"))
        records: list[Record] = []
        for piece in self._pieces:
            if isinstance(piece, Unreadable):
                known.append(Missing(piece.start, piece.end, "damage", piece.reason))
            else:
                records += iter_records(piece)
        records.sort(key=lambda record: record.offset)
        return Page(
            tuple(_filled(offsets, records, sorted(known))),
            *offsets,
            opened_bytes=sum(chunk.index.data.bytes for chunk in chunks),
            has_before=offsets.start > partition.start_offset,
            has_after=offsets.end < partition.next_offset,
        )


def _filled(offsets: OffsetRange, records: Sequence[Record], known: Sequence[Missing]) -> Iterable[Record | Missing]:
    at = offsets.start
    for record in records:
        yield from missing_between(at, record.offset, known)
        yield record
        at = record.offset + 1
    yield from missing_between(at, offsets.end, known)


def missing_between(start: int, end: int, known: Sequence[Missing]) -> Iterable[Missing]:
    """Yield the reasons for offsets [start, end) without a record: those `known`, in order, and holes around them."""
    at = start
    for each in known:
        first, last = max(each.start, at), min(each.end, end)
        if first < last:
            if at < first:
                yield Missing(at, first, "hole", HOLE)
            yield each._replace(start=first, end=last)
            at = last
    if at < end:
        yield Missing(at, end, "hole", HOLE)


async def _upwards(partition: ArchivedPartition, at: int, opened: dict[str, Chunk]) -> AsyncGenerator[Piece]:
    while (entry := await _entry_from(partition, at)) is not None:
        if isinstance(entry, ChunkEntry):
            async for piece in _blocks(partition, entry, OffsetRange(at, END), opened, step=1):
                yield piece
            at = entry.next_offset
        else:
            yield entry
            at = entry.end


async def _downwards(partition: ArchivedPartition, end: int, opened: dict[str, Chunk]) -> AsyncGenerator[Piece]:
    if end > partition.start_offset:
        # A gap right below is recorded by the chunk behind it.
        above = await _entry_from(partition, end - 1)
        if isinstance(above, ChunkEntry) and above.start_offset < end <= above.first_offset:
            async for piece in _blocks(partition, above, OffsetRange(end, end), opened, step=-1):
                yield piece
            end = above.start_offset
    while end > partition.start_offset and (entry := await _entry_below(partition, end)) is not None:
        if isinstance(entry, ChunkEntry):
            async for piece in _blocks(partition, entry, OffsetRange(0, end), opened, step=-1):
                yield piece
            end = entry.start_offset
        else:
            yield entry
            end = entry.start


async def _entry_from(partition: ArchivedPartition, offset: int) -> ChunkEntry | Unreadable | None:
    try:
        return await partition.chunk_at_or_after(offset)
    except Damaged:
        return await anext(_only_entries(partition.walk(offset, END)), None)


async def _entry_below(partition: ArchivedPartition, offset: int) -> ChunkEntry | Unreadable | None:
    try:
        return await partition.chunk_before(offset)
    except Damaged:
        found = None
        async for each in _only_entries(partition.walk(0, offset)):
            found = each
        return found


async def _only_entries(opened: AsyncIterator[object]) -> AsyncIterator[ChunkEntry | Unreadable]:
    async for each in opened:
        if isinstance(each, ChunkEntry | Unreadable):
            yield each


async def _blocks(
    partition: ArchivedPartition, entry: ChunkEntry, offsets: OffsetRange, opened: dict[str, Chunk], *, step: int
) -> AsyncGenerator[Piece]:
    try:
        chunk = await partition.chunk(entry)
    except Damaged as error:
        yield Unreadable(entry.start_offset, entry.next_offset, entry.num_records, partition.index_key(entry), error)
        return
    opened[entry.name] = chunk
    for number in blocks_between(chunk.index.blocks, *offsets)[::step]:
        try:
            (block,) = await fetch_blocks(partition, chunk, range(number, number + 1))
            parts = await asyncio.to_thread(decoded_parts, block, partition.max_block_bytes)
        except Damaged as error:
            yield unreadable_blocks(chunk, range(number, number + 1), error)
            continue
        for part in parts[::step]:
            inside = trimmed(part, *offsets)
            if inside.num_rows:
                yield inside
