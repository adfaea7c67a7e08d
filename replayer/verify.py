"""Checking a partition: every damage is found in one go, and each is told as the offsets that it costs."""

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from index_format import objects
from index_format.chunk_index import ChunkIndex, Gap
from index_format.digest import RecordsDigest
from index_format.errors import CorruptBlock
from index_format.keys import INDEX_SUFFIXES, PartitionKeys
from index_format.marker import ChunkEntry
from index_format.record_formats import record_format
from index_format.records import iter_records, record_hash

from .archive import Archive, ArchivedPartition, Chunk
from .block_reader import StoredBlock, decoded, inflated
from .block_stream import readable_chunks, stored_blocks, unreadable_chunk, worked
from .chunk_choice import EVERY_CHUNK, ChunkChoice
from .damage import Damaged, Unreadable
from .errors import ObjectMissing
from .findings import Damage, Digests, Lost, PartitionReport
from .identity import Identity
from .prefetch import prefetched

SIZES_AT_ONCE = 8
END = 2**63 - 1


class Depth(IntEnum):
    """How much is read: each level includes those before."""

    STRUCTURE = 0
    """Chain, catalogs, indexes, and the sizes of data objects."""
    BLOCKS = 1
    """All data: checksums of objects and blocks, counts of records."""
    RECORDS = 2
    """Every record is decoded."""


Progress = Callable[[int], None]
"""Told the bytes of data that each finished chunk accounts for."""


class CheckedBlock(NamedTuple):
    """A block that is what its index says, with its records where they were decoded."""

    block: StoredBlock
    batch: pa.RecordBatch | None


async def expected_bytes(archive: Archive, topic: str, partition: int) -> int:
    """The bytes of data that a verification of the partition will account for; 0 where its marker is damaged."""
    try:
        return (await archive.open_partition(topic, partition)).num_bytes
    except Damaged:
        return 0


async def verify_partition(
    archive: Archive,
    topic: str,
    partition: int,
    depth: Depth,
    progress: Progress,
    *,
    choice: ChunkChoice = EVERY_CHUNK,
    identity: Identity | None = None,
) -> PartitionReport:
    """Checks one partition: marker and catalogs, and the chosen chunks; raises only for what is not damage."""
    try:
        opened = await archive.open_partition(topic, partition)
    except Damaged as error:
        keys = await archive.partition_keys(topic, partition)
        lost = await _unreachable(archive, keys)
        return PartitionReport(topic, partition, lost=lost, damage=[Damage(keys.marker, error.reason)])
    report = await _Verification(opened, topic, depth, progress).run(choice)
    objections = () if identity is None else identity.objections(opened.keys.folder, opened.marker)
    report.damage += [*opened.damage, *(Damage(opened.keys.marker, reason) for reason in objections)]
    return report


class _Verification:
    """One partition under verification."""

    def __init__(self, partition: ArchivedPartition, topic: str, depth: Depth, progress: Progress) -> None:
        self._partition = partition
        self._depth = depth
        self._progress = progress
        marker = partition.marker
        self._report = PartitionReport(topic, partition.partition, next_offset=marker.next_offset)
        self._gaps: set[Gap] = set(marker.gaps)
        self._sizes: dict[str, int] = {}
        self._lost_records = 0
        self._recounted: dict[str, int] = {}
        """Records of chunks that were opened: before, those of an old archive are known by their indexes alone."""
        self._chunk: _ChunkUnderWay | None = None
        self._digest = RecordsDigest()
        self._last_hash: str | None = None

    async def run(self, choice: ChunkChoice) -> PartitionReport:
        report, marker = self._report, self._partition.marker
        entries = await self._chain()
        chosen = choice.of(entries)
        self._progress(sum(entry.bytes for entry in entries) - sum(entry.bytes for entry in chosen))
        async for item in self._checked(chosen):
            if isinstance(item, Chunk):
                self._end_chunk()
                self._begin(item)
            elif isinstance(item, Unreadable):
                self._lose(item)
            else:
                self._pass(item)
        self._end_chunk()
        hashes = {self._last_hash, marker.tail_hash}
        if chosen[-1:] == entries[-1:] and None not in hashes and len(hashes) > 1:
            report.damage.append(Damage(self._partition.keys.marker, "its tail_hash is not that of the last record"))
        if len(chosen) == len(entries) and not report.lost and self._depth is Depth.RECORDS:
            report.digests = Digests(self._digest.content, self._digest.positions)
        counts = {entry.name: entry.num_records for entry in entries} | self._recounted
        report.records = sum(counts.values()) - self._lost_records
        report.chunks, report.checked_chunks = len(entries), len(chosen)
        report.first_offset = entries[0].first_offset if entries else None
        report.gaps = sorted(self._gaps, key=lambda gap: gap.start)
        report.lost.sort(key=lambda lost: lost.start)
        return report

    async def _chain(self) -> list[ChunkEntry]:
        """The chunks of all catalogs that can be read; what the others held, and what no one names, is lost."""
        entries: list[ChunkEntry] = []
        spans: list[tuple[int, int, str]] = []
        async for opened in self._partition.walk(0, END):
            if isinstance(opened, ChunkEntry):
                entries.append(opened)
                spans.append((opened.start_offset, opened.next_offset, self._partition.keys.chunks + opened.name))
            elif isinstance(opened, Unreadable):
                self._report.damage.append(Damage(opened.key, opened.reason))
                self._report.lost.append(Lost(opened.start, opened.end, opened.reason))
                spans.append((opened.start, opened.end, opened.key))
            else:
                self._gaps.update(opened.gaps)
        self._check_chain(spans)
        return entries

    def _check_chain(self, spans: Sequence[tuple[int, int, str]]) -> None:
        """Each chunk starts where the one before ends, or at the end of a recorded gap."""
        gap_ends = {gap.end for gap in self._gaps}
        position = self._partition.start_offset
        for start, end, key in spans:
            if start != position and start not in gap_ends:
                reason = f"no chunk and no recorded gap: the chain breaks before {key}"
                self._report.damage.append(Damage(key, reason))
                if position < start:
                    self._report.lost.append(Lost(position, start, reason))
            position = end

    def _checked(self, entries: Sequence[ChunkEntry]) -> AsyncIterator[Chunk | CheckedBlock | Unreadable]:
        """Each chunk, followed by its blocks as far as the depth asks for them."""
        chunks = self._sized(readable_chunks(self._partition, _each(entries)))
        if self._depth is Depth.STRUCTURE:
            return self._cut_off(chunks)
        return worked(stored_blocks(self._partition, chunks, 0, END), self._check)

    async def _sized(self, chunks: AsyncIterator[Chunk | Unreadable]) -> AsyncGenerator[Chunk | Unreadable]:
        """The chunks whose data is there; its sizes are noted."""

        async def sized(chunk: Chunk | Unreadable) -> Chunk | Unreadable:
            if isinstance(chunk, Unreadable):
                return chunk
            try:
                self._sizes[chunk.data_key] = await self._partition.reader.size(chunk.data_key)
            except ObjectMissing as error:
                return unreadable_chunk(chunk.entry, chunk.data_key, error)
            return chunk

        async for chunk in prefetched(chunks, sized, cost=lambda _: 1, budget=SIZES_AT_ONCE):
            yield chunk

    async def _cut_off(self, chunks: AsyncIterator[Chunk | Unreadable]) -> AsyncGenerator[Chunk | Unreadable]:
        """The chunks, each followed by what lies behind the end of its data."""
        async for chunk in chunks:
            gone = self._behind_end(chunk) if isinstance(chunk, Chunk) else None
            yield chunk
            if gone is not None:
                yield gone

    def _behind_end(self, chunk: Chunk) -> Unreadable | None:
        size = self._sizes[chunk.data_key]
        gone = [block for block in chunk.index.blocks if block.byte_end > size]
        if not gone:
            return None
        error = CorruptBlock(f"{chunk.data_key} ends at byte {size}, before the end of the block")
        num_records = sum(block.num_records for block in gone)
        return Unreadable(
            gone[0].first_record_offset, gone[-1].last_record_offset + 1, num_records, chunk.data_key, error
        )

    def _begin(self, chunk: Chunk) -> None:
        self._gaps.update(chunk.index.gaps)
        self._recounted[chunk.entry.name] = chunk.entry.num_records
        self._chunk = _ChunkUnderWay(chunk)
        size = self._sizes.pop(chunk.data_key)
        if size != chunk.index.data.bytes:
            self._chunk.damage = f"it has {size} bytes, its index says {chunk.index.data.bytes}"

    def _end_chunk(self) -> None:
        under_way, self._chunk = self._chunk, None
        if under_way is None:
            return
        chunk = under_way.chunk
        if self._depth > Depth.STRUCTURE and under_way.digest.hexdigest() != chunk.index.data.sha256:
            under_way.damage = under_way.damage or "its sha256 is not the one in its index"
        if under_way.damage is not None:
            self._report.damage.append(Damage(chunk.data_key, under_way.damage))
        self._progress(chunk.entry.bytes)

    def _lose(self, found: Unreadable) -> None:
        """A block of the chunk under way, or a chunk."""
        self._lost_records += found.num_records
        self._report.lost.append(Lost(found.start, found.end, found.reason))
        self._last_hash = None
        if self._chunk is not None and found.key == self._chunk.chunk.data_key:
            self._chunk.damage = self._chunk.damage or "not all of its blocks can be read"
        else:
            self._report.damage.append(Damage(found.key, found.reason))

    def _pass(self, checked: CheckedBlock) -> None:
        assert self._chunk is not None
        block, batch = checked
        self._chunk.digest.update(block.member)
        if batch is None:
            return
        self._digest.update(batch)
        index = block.chunk.index
        lossless = index.record_format != "text"
        is_last = lossless and block.number == len(index.blocks) - 1
        self._last_hash = record_hash(next(iter_records(batch.slice(batch.num_rows - 1)))) if is_last else None

    def _check(self, block: StoredBlock) -> CheckedBlock:
        """Checks a block as deep as asked for."""
        limit = self._partition.max_block_bytes
        encoding = record_format(block.chunk.index.record_format)
        if self._depth < Depth.RECORDS:
            count = encoding.count(inflated(block, limit))
            if count != block.entry.num_records:
                raise CorruptBlock(
                    f"block {block.number} of {block.chunk.data_key} holds {count} records",
                    why=f"its index says {block.entry.num_records}",
                )
            return CheckedBlock(block, None)
        batch = decoded(block, limit)
        times = pc.min_max(batch.column("timestamp")).as_py()
        if encoding.name != "text" and times != {"min": block.entry.min_timestamp, "max": block.entry.max_timestamp}:
            raise CorruptBlock(
                f"block {block.number} of {block.chunk.data_key} has other timestamps than its index says",
                why="seeks by time would miss records",
            )
        return CheckedBlock(block, batch)


class _ChunkUnderWay:
    """A chunk whose blocks are coming in: the hash of its data so far, and the first thing wrong with it."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.digest = hashlib.sha256()
        self.damage: str | None = None


async def _unreachable(archive: Archive, keys: PartitionKeys) -> list[Lost]:
    """The offsets of a partition without a marker, as far as the indexes beside it tell."""
    lost = []
    suffix = INDEX_SUFFIXES[keys.layout]
    async for key in archive.reader.list(keys.chunks):
        if not key.endswith(suffix):
            continue
        try:
            index = objects.decode((await archive.reader.get(key, objects.MAX_OBJECT_BYTES)).body, ChunkIndex, key)
        except Damaged:
            continue
        if (index.topic, index.partition) == (keys.folder.topic, keys.partition):
            lost.append(Lost(index.first_offset, index.last_offset + 1, "no marker leads to its chunk"))
    return sorted(set(lost), key=lambda each: each.start)


async def _each(entries: Sequence[ChunkEntry]) -> AsyncIterator[ChunkEntry]:
    for entry in entries:
        yield entry
