"""Pages of records around a position, both ways, with the reason for every offset without a record.

A reason is a gap, a hole, damage, or that offsets were pruned or erased.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

from blockgz.archive.blocks import decoded, fetch_blocks, unreadable_blocks
from blockgz.archive.partition import END, MOST_REWRITES, ArchivedPartition, Chunk, Damaged, Unreadable
from blockgz.archive.positions import BeforeEnd, OffsetRange, Position, resolve_position
from blockgz.archive.selection import chosen_entries, trimmed
from index_format.blocks import decode_parts
from index_format.marker import ChunkEntry, blocks_between
from index_format.objects import EMPTY, ERASED, Gap
from index_format.records import Record, iter_records, payload_bytes

# A page ends after this many bytes of keys, values and headers.
PAGE_BYTES = 8 * 1024 * 1024
# A page ends after this many damaged places.
MOST_DAMAGED = 20
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
    page = await page_from(partition, await resolve_position(position, partition), count)
    if not page.records and isinstance(position, BeforeEnd):
        return await page_before(partition, partition.next_offset, count)
    return page


async def page_from(partition: ArchivedPartition, offset: int, count: int) -> Page:
    """Return at most `count` records at and above an offset. Raises as opening a chunk does, unless that is damage."""
    return await _sound_page(partition, offset, count, step=1)


async def page_before(partition: ArchivedPartition, offset: int, count: int) -> Page:
    """Return at most `count` records below an offset. Raises as opening a chunk does, unless that is damage."""
    return await _sound_page(partition, offset, count, step=-1)


async def _sound_page(partition: ArchivedPartition, offset: int, count: int, step: int) -> Page:
    page = await _PageMaker(partition, count, step).page(offset)
    for _ in range(MOST_REWRITES):
        damaged = [each for each in page.items if isinstance(each, Missing) and each.kind == "damage"]
        newer = await partition.newer(damaged[0].start) if damaged else None
        if newer is None:
            break
        partition = newer
        page = await _PageMaker(partition, count, step).page(offset)
    return page


class _PageMaker:
    """A walk from an offset upwards (`step` 1) or downwards (-1), until the page is full."""

    def __init__(self, partition: ArchivedPartition, count: int, step: int) -> None:
        self._partition = partition
        self._step = step
        self._left, self._bytes_left = count, PAGE_BYTES
        self._pieces: list[Piece] = []
        # The opened chunks, by name.
        self._chunks: dict[str, Chunk] = {}

    async def page(self, offset: int) -> Page:
        partition = self._partition
        at = min(max(offset, partition.start_offset), partition.next_offset)
        async with aclosing(self._walk(at)) as pieces:
            async for piece in pieces:
                if self._is_full:
                    break
                self._add(piece)
        edge = self._edge if self._is_full else partition.next_offset if self._step > 0 else partition.start_offset
        return self._page(OffsetRange(at, max(at, edge)) if self._step > 0 else OffsetRange(min(at, edge), at))

    async def _walk(self, at: int) -> AsyncGenerator[Piece]:
        partition, is_up = self._partition, self._step > 0
        if not is_up and at > partition.start_offset:
            # A gap right below is recorded by the chunk behind it.
            above = await self._entry(at - 1, is_up=True)
            if isinstance(above, ChunkEntry) and above.start_offset < at <= above.first_offset:
                async for piece in self._blocks(above, OffsetRange(at, at)):
                    yield piece
                at = above.start_offset
        while (is_up or at > partition.start_offset) and (entry := await self._entry(at, is_up=is_up)) is not None:
            if isinstance(entry, ChunkEntry):
                async for piece in self._blocks(entry, OffsetRange(at, END) if is_up else OffsetRange(0, at)):
                    yield piece
                at = entry.next_offset if is_up else entry.start_offset
            else:
                yield entry
                at = entry.end if is_up else entry.start

    async def _entry(self, offset: int, *, is_up: bool) -> ChunkEntry | Unreadable | None:
        partition = self._partition
        try:
            return await (partition.chunk_at_or_after(offset) if is_up else partition.chunk_before(offset))
        except Damaged:
            found = None
            async for each in chosen_entries(partition, *((offset, END) if is_up else (0, offset))):
                found = each
                if is_up:
                    break
            return found

    async def _blocks(self, entry: ChunkEntry, offsets: OffsetRange) -> AsyncGenerator[Piece]:
        partition = self._partition
        try:
            chunk = await partition.chunk(entry)
        except Damaged as error:
            yield Unreadable(
                entry.start_offset, entry.next_offset, entry.num_records, partition.index_key(entry), error
            )
            return
        self._chunks[entry.name] = chunk
        for number in blocks_between(chunk.index.blocks, *offsets)[:: self._step]:
            try:
                (block,) = await fetch_blocks(partition, chunk, range(number, number + 1))
                parts = await asyncio.to_thread(decoded, decode_parts, block, partition.max_block_bytes)
            except Damaged as error:
                yield unreadable_blocks(chunk, range(number, number + 1), error)
                continue
            for part in parts[:: self._step]:
                inside = trimmed(part, *offsets)
                if inside.num_rows:
                    yield inside

    @property
    def _is_full(self) -> bool:
        damaged = sum(isinstance(piece, Unreadable) for piece in self._pieces)
        return self._left <= 0 or self._bytes_left <= 0 or damaged >= MOST_DAMAGED

    @property
    def _edge(self) -> int:
        last, is_up = self._pieces[-1], self._step > 0
        if isinstance(last, Unreadable):
            return last.end if is_up else last.start
        offsets = last.column("offset")
        return int(offsets[-1].as_py()) + 1 if is_up else int(offsets[0].as_py())

    def _add(self, piece: Piece) -> None:
        if not isinstance(piece, Unreadable):
            piece = piece.slice(0, self._left) if self._step > 0 else piece.slice(max(0, piece.num_rows - self._left))
            self._left -= piece.num_rows
            self._bytes_left -= payload_bytes(piece)
        self._pieces.append(piece)

    def _page(self, offsets: OffsetRange) -> Page:
        partition, chunks = self._partition, self._chunks.values()
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
