"""Checks of the data of chunks, in order; findings can be sent from one process to another and merged."""

import asyncio
import hashlib
import random
import struct
from array import array
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from blockgz.archive.blocks import (
    StoredBlock,
    check_unopened,
    decoded,
    readable_chunks,
    stored_blocks,
    unreadable_blocks,
    unreadable_chunk,
    worked,
)
from blockgz.archive.partition import ArchivedPartition, Chunk, Damage, LostRange, Unreadable, add_range, prefetched
from blockgz.archive.positions import OffsetRange
from blockgz.errors import CorruptBlock, ObjectMissing
from index_format.blocks import count_records, decode_parts
from index_format.key_filter import column_hashes, holds_all
from index_format.marker import ChunkEntry
from index_format.objects import Erased, Gap
from index_format.records import RecordsDigest, record_hash, record_view
from replayer.verify.report import Depth, Digests, Orphan


@dataclass(frozen=True)
class ChunkChoice:
    """The choice of chunks to check: `since` is in ms since the epoch, `share` is in (0, 1]."""

    since: int | None = None
    share: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"a share lies above 0 and is at most 1, not {self.share}")

    @property
    def takes_all(self) -> bool:
        return self.since is None and self.share == 1

    def considers(self, entry: ChunkEntry) -> bool:
        """Return whether the chunk may be chosen."""
        return self.since is None or entry.max_timestamp >= self.since

    def numbers(self, candidates: int, first: str) -> Sequence[int]:
        """Return the rising numbers of the chosen chunks among the candidates: at least one of any. `first` is the
        number of the first candidate.
        """
        count = min(candidates, max(1, round(self.share * candidates)))
        if count == candidates:
            return range(candidates)
        return sorted(random.Random(f"{self.seed}:{first}").sample(range(candidates), count))


EVERY_CHUNK = ChunkChoice()
SIZES_AT_ONCE = 8
END = 2**63 - 1


class ChainDigest:
    """A SHA-256 over the chunks of a partition; that of chunks once committed never changes (docs/verify.md)."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, entry: ChunkEntry) -> None:
        """Add a chunk, in the order of offsets; its entry's `next_offset` is left out, because it may still rise."""
        facts = struct.pack(">QQQ", entry.first_offset, entry.last_offset, entry.num_records)
        self._digest.update(facts + bytes.fromhex(entry.sha256))

    @property
    def sha256(self) -> str:
        """The digest of the chunks so far, as lower-case hex."""
        return self._digest.hexdigest()


@dataclass
class ChunkChain:
    """The chunks of a partition by its marker and catalogs, and the damage among these; 8 bytes a chunk are kept."""

    choice: ChunkChoice
    records: int = 0
    candidates: int = 0
    """Chunks among which `choice` takes its share."""
    first_candidate: str = ""
    first_offset: int | None = None
    last_is_candidate: bool = False
    checked: int = 0
    """Chunks that were chosen and could be read once more."""
    checked_offsets: list[OffsetRange] = field(default_factory=list)
    """The offsets of these, each from the end of the chunk before it: in order and apart."""
    unlisted: list[ChunkEntry] = field(default_factory=list)
    """Chunks that were not chosen, and of which a listing lacks the index or the data."""
    last_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    gaps: set[Gap] = field(default_factory=set)
    lost: list[LostRange] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    digest: ChainDigest = field(default_factory=ChainDigest)
    is_whole: bool = True
    """True if all catalogs could be read."""

    @property
    def chunks(self) -> int:
        return len(self.last_offsets)

    def add(self, entry: ChunkEntry) -> None:
        self.last_offsets.append(entry.last_offset)
        self.digest.add(entry)
        self.records += entry.num_records
        self.first_offset = entry.first_offset if self.first_offset is None else self.first_offset
        self.last_is_candidate = self.choice.considers(entry)
        if self.last_is_candidate:
            self.candidates += 1
            self.first_candidate = self.first_candidate or entry.name

    def check(self, start: int, end: int) -> None:
        """Note that all there is at offsets [start, end), at or above those before, is checked."""
        if self.checked_offsets and self.checked_offsets[-1].end == start:
            start = self.checked_offsets.pop().start
        if start < end:
            self.checked_offsets.append(OffsetRange(start, end))

    def lose(self, catalog: Unreadable) -> None:
        self.is_whole = False
        reason = f"{catalog.reason}; {catalog.error.remedy}"
        self.damage.append(Damage(catalog.key, reason))
        self.lost.append(LostRange(catalog.start, catalog.end, reason))

    @property
    def chosen(self) -> Sequence[int]:
        """The numbers of the chosen chunks among the candidates, rising."""
        return self.choice.numbers(self.candidates, self.first_candidate)


# Gets the bytes of each chunk's data: those that were checked, and those of a chunk that was not chosen.
Progress = Callable[[int, int], None]


def unwatched(_checked: int, _passed: int) -> None:
    """Ignore progress."""


# A block that is what its index says, with its records if they were decoded.
CheckedBlock = tuple[StoredBlock, list[pa.RecordBatch] | None]


@dataclass
class ChunkFindings:
    """The findings in chunks of a partition, in their order."""

    lost: list[LostRange] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    erased: list[Erased] = field(default_factory=list)
    """The offsets of records that were erased out of chunks."""
    lost_records: int = 0
    recounted: int = 0
    """Records of the chunks beyond those in their entries, which are guesses in an old archive."""
    last_hash: str | None = None
    """The hash of the last record; None unless it was decoded from a lossless format."""
    digests: Digests | None = None
    """The digests of all records; None unless every one was decoded."""
    unopened: int = 0
    """Chunks whose contents should have been looked at, and are encrypted with keys that were not given."""
    closed: list[LostRange] = field(default_factory=list)
    """The offsets of these, which are not lost, and why."""
    orphans: list[Orphan] = field(default_factory=list)
    """Objects above the marker, which are not a fault."""


def joined(parts: Sequence[ChunkFindings]) -> ChunkFindings:
    """Join the findings in parts of a partition, in their order; digests exist only for one part."""
    if len(parts) == 1:
        return parts[0]
    return ChunkFindings(
        lost=[lost for part in parts for lost in part.lost],
        damage=[damage for part in parts for damage in part.damage],
        gaps=[gap for part in parts for gap in part.gaps],
        erased=[erased for part in parts for erased in part.erased],
        lost_records=sum(part.lost_records for part in parts),
        recounted=sum(part.recounted for part in parts),
        last_hash=parts[-1].last_hash if parts else None,
        unopened=sum(part.unopened for part in parts),
        closed=[closed for part in parts for closed in part.closed],
    )


async def check_chunks(
    partition: ArchivedPartition, entries: AsyncIterator[ChunkEntry], depth: Depth, progress: Progress
) -> ChunkFindings:
    """Check chunks of the partition, which need not be adjacent; raise only for errors other than damage."""
    return await _ChunkChecks(partition, depth, progress).run(entries)


class _ChunkChecks:
    def __init__(self, partition: ArchivedPartition, depth: Depth, progress: Progress) -> None:
        self._partition = partition
        self._depth = depth
        self._progress = progress
        self._found = ChunkFindings()
        self._sizes: dict[str, int] = {}
        # The chunk whose blocks are coming in.
        self._chunk: Chunk | None = None
        # Of its data so far.
        self._bytes_digest = hashlib.sha256()
        # The first thing that is wrong with it.
        self._wrong: str | None = None
        self._digest = RecordsDigest()
        self._tail_secret: bytes | None = None

    async def run(self, entries: AsyncIterator[ChunkEntry]) -> ChunkFindings:
        found = self._found
        if self._depth is Depth.RECORDS:
            self._tail_secret = await asyncio.to_thread(self._partition.tail_secret)
        async for item in self._checked(entries):
            if isinstance(item, Chunk):
                self._end_chunk()
                self._begin(item)
            elif isinstance(item, Unreadable):
                self._lose(item)
            else:
                self._pass(item)
        self._end_chunk()
        if self._depth is Depth.RECORDS and not (found.lost or found.unopened):
            found.digests = Digests(self._digest.content, self._digest.positions)
        return found

    def _checked(self, entries: AsyncIterator[ChunkEntry]) -> AsyncIterator[Chunk | CheckedBlock | Unreadable]:
        """Yield each chunk, followed by its blocks if the depth includes them."""
        chunks = self._sized(readable_chunks(self._partition, self._counted(entries)))
        if self._depth is Depth.STRUCTURE:
            return self._cut_off(chunks)
        return worked(stored_blocks(self._partition, chunks, 0, END, reads_closed=True), self._check)

    async def _counted(self, entries: AsyncIterator[ChunkEntry]) -> AsyncGenerator[ChunkEntry]:
        async for entry in entries:
            self._found.recounted -= entry.num_records
            yield entry

    async def _sized(self, chunks: AsyncIterator[Chunk | Unreadable]) -> AsyncGenerator[Chunk | Unreadable]:
        """Yield every chunk, or an Unreadable in place of one whose data is missing, and note the size of its data."""

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
        """Yield the chunks, each followed by the bytes after the end of its data."""
        async for chunk in chunks:
            gone = self._behind_end(chunk) if isinstance(chunk, Chunk) else None
            yield chunk
            if gone is not None:
                yield gone

    def _behind_end(self, chunk: Chunk) -> Unreadable | None:
        size, blocks = self._sizes[chunk.data_key], chunk.index.blocks
        first = next((number for number, block in enumerate(blocks) if block.byte_end > size), len(blocks))
        if first == len(blocks):
            return None
        error = CorruptBlock(f"{chunk.data_key} ends at byte {size}, before the end of the block")
        return unreadable_blocks(chunk, range(first, len(blocks)), error)

    def _begin(self, chunk: Chunk) -> None:
        self._found.gaps += chunk.gaps
        self._found.erased += chunk.erased
        self._found.recounted += chunk.entry.num_records
        self._chunk, self._bytes_digest, self._wrong = chunk, hashlib.sha256(), None
        missing = chunk.missing_key if self._depth > Depth.STRUCTURE else None
        if missing is not None:
            self._found.unopened += 1
            add_range(self._found.closed, LostRange(chunk.entry.start_offset, chunk.entry.next_offset, missing.why))
        size = self._sizes.pop(chunk.data_key)
        if size != chunk.index.data.bytes:
            self._wrong = f"it has {size} bytes, its index says {chunk.index.data.bytes}"

    def _end_chunk(self) -> None:
        chunk, self._chunk = self._chunk, None
        if chunk is None:
            return
        if self._depth > Depth.STRUCTURE and self._bytes_digest.hexdigest() != chunk.index.data.sha256:
            self._wrong = self._wrong or "its sha256 is not the one in its index"
        if self._wrong is not None:
            at = chunk.entry.start_offset, chunk.entry.next_offset
            self._found.damage.append(Damage(chunk.data_key, self._wrong, *at))
        self._progress(chunk.entry.bytes, 0)

    def _lose(self, found: Unreadable) -> None:
        """Note the loss of a block of the current chunk, or of a chunk."""
        self._found.lost_records += found.num_records
        self._found.lost.append(LostRange(found.start, found.end, found.reason))
        self._found.last_hash = None
        if self._chunk is not None and found.key == self._chunk.data_key:
            self._wrong = self._wrong or "not all of its blocks can be read"
        else:
            self._end_chunk()
            self._found.recounted += found.num_records
            self._found.damage.append(Damage(found.key, found.reason, found.start, found.end))

    def _pass(self, checked: CheckedBlock) -> None:
        block, parts = checked
        self._bytes_digest.update(block.member)
        if parts is None:
            self._found.last_hash = None
            return
        is_last = block.chunk.index.record_format != "text" and block.number == len(block.chunk.index.blocks) - 1
        while parts:
            batch = parts.pop(0)
            self._digest.update(batch)
        last = record_view(batch, batch.num_rows - 1)
        is_compared = is_last and (self._tail_secret is not None or not self._partition.marker.tail_key)
        self._found.last_hash = record_hash(last, self._tail_secret) if is_compared else None

    def _check(self, block: StoredBlock) -> CheckedBlock:
        limit = self._partition.max_block_bytes
        if block.chunk.missing_key is not None:
            check_unopened(block)
            return block, None
        if self._depth < Depth.RECORDS:
            count = decoded(count_records, block, limit)
            if count != block.entry.num_records:
                raise CorruptBlock(
                    f"block {block.number} of {block.chunk.data_key} holds {count} records",
                    why=f"its index says {block.entry.num_records}",
                )
            return block, None
        parts = decoded(decode_parts, block, limit)
        times = pc.min_max(pa.chunked_array([part.column("timestamp") for part in parts])).as_py()
        known = {"min": block.entry.min_timestamp, "max": block.entry.max_timestamp}
        if block.chunk.index.record_format != "text" and times != known:
            raise CorruptBlock(
                f"block {block.number} of {block.chunk.data_key} has other timestamps than its index says",
                why="seeks by time would miss records",
            )
        if any(_holds_any(part, block.chunk.index.erased or ()) for part in parts):
            raise CorruptBlock(
                f"block {block.number} of {block.chunk.data_key} holds a record that was erased",
                why="its index says that nothing is left at this offset",
            )
        keys = block.entry.key_filter
        if isinstance(keys, bytes) and not all(holds_all(keys, column_hashes(part.column("key"))) for part in parts):
            raise CorruptBlock(
                f"block {block.number} of {block.chunk.data_key} holds keys that its filter does not have",
                why="searches by key would miss records",
            )
        return block, parts


def _holds_any(batch: pa.RecordBatch, erased: Sequence[Erased]) -> bool:
    """Return whether a record is at an erased offset."""
    offsets = batch.column("offset").to_numpy()
    return any(np.searchsorted(offsets, each.start) < np.searchsorted(offsets, each.end) for each in erased)
