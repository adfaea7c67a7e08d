"""Chunks before and after a rewrite: offsets, keys, blocks read by ranges and written into local files."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from archiver.ingest.chunk_builder import MAX_KEY_FILTERS, BufferFile
from blockgz.encryption import keyring as keyrings
from blockgz.errors import CorruptBlock
from blockgz.store.writer import Body, FileBody
from index_format.blocks import Compressor, RawBlock
from index_format.keys import PartitionKeys, data_suffix
from index_format.marker import ChunkEntry, block_at_or_after, merged_ranges
from index_format.objects import ERASED, BlockEntry, ChunkIndex, Erased, Stored, disjoint

Offsets = npt.NDArray[np.int64]


class OffsetRanges:
    """A set of offsets, as sorted ranges that do not touch."""

    def __init__(self, ranges: Iterable[range | Erased] = ()) -> None:
        """The ranges may overlap or touch, in any order."""
        spans = ((each.start, each.stop if isinstance(each, range) else each.end) for each in ranges)
        table = np.array(disjoint(span for span in spans if span[0] < span[1]), np.int64).reshape(-1, 2)
        self._starts, self._ends = table[:, 0], table[:, 1]

    @classmethod
    def of_offsets(cls, offsets: Offsets) -> "OffsetRanges":
        """Return the set of these offsets, in any order."""
        distinct = np.unique(offsets)
        breaks = np.flatnonzero(np.diff(distinct) != 1)
        ranges = cls()
        ranges._starts = distinct[np.concatenate(([0], breaks + 1))] if len(distinct) else distinct
        ranges._ends = distinct[np.concatenate((breaks, [len(distinct) - 1]))] + 1 if len(distinct) else distinct
        return ranges

    def __iter__(self) -> Iterator[range]:
        return map(range, self._starts.tolist(), self._ends.tolist())

    def __len__(self) -> int:
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRanges) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __or__(self, other: "OffsetRanges") -> "OffsetRanges":
        return OffsetRanges([*self, *other])

    def __sub__(self, other: "OffsetRanges") -> "OffsetRanges":
        left, taken = list[range](), list(other)
        place = 0
        for each in self:
            start = each.start
            while place < len(taken) and taken[place].stop <= start:
                place += 1
            at = place
            while at < len(taken) and taken[at].start < each.stop:
                left.append(range(start, taken[at].start))
                start = taken[at].stop
                at += 1
            left.append(range(start, each.stop))
        return OffsetRanges(left)

    @property
    def num_offsets(self) -> int:
        return int((self._ends - self._starts).sum())

    def mask(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Return for each offset whether it is in the set."""
        if not len(self._starts):
            return np.zeros(len(offsets), np.bool_)
        place = np.searchsorted(self._starts, offsets, side="right") - 1
        found: Any = (place >= 0) & (offsets < self._ends[np.maximum(place, 0)])
        return np.asarray(found, np.bool_)

    def meets(self, start: int, end: int) -> bool:
        """Return whether an offset of [start, end) is in the set."""
        place = int(np.searchsorted(self._ends, start, side="right"))
        return start < end and place < len(self._starts) and int(self._starts[place]) < end

    def erased(self) -> tuple[Erased, ...]:
        """Return the ranges as an index lists them."""
        return tuple(Erased(each.start, each.stop) for each in self)


NO_OFFSETS = OffsetRanges()


# The record format of values alone: only an index has timestamps.
TEXT = "text"


@dataclass(frozen=True)
class OldChunk:
    """A committed chunk: its entry in a catalog, and its index, checked against the entry."""

    entry: ChunkEntry
    index: ChunkIndex

    def from_offset(self, offset: int) -> "OldChunk":
        """Return what a prune leaves of the chunk, from the block on that begins at this offset."""
        blocks = [block for block in self.index.blocks if block.first_record_offset >= offset]
        num_records = sum(block.num_records for block in blocks)
        size = sum(block.byte_length for block in blocks)
        entry = replace(self.entry, start_offset=offset, first_offset=offset, num_records=num_records, bytes=size)
        return OldChunk(entry, self.index)

    @property
    def is_cut(self) -> bool:
        """True if the entry is that of a part of the chunk; see `from_offset`."""
        return self.entry.start_offset > self.index.start_offset

    @property
    def block_numbers(self) -> range:
        """Numbers of the blocks in the part of the chunk that the entry spans."""
        start = block_at_or_after(self.index.blocks, self.entry.start_offset) or 0
        return range(start, len(self.index.blocks))


@dataclass(frozen=True)
class RewrappedChunk(OldChunk):
    """A chunk whose new index has its key wrapped with another master key; its data stays."""


@dataclass(frozen=True)
class NewChunk:
    """A chunk that replaces neighbours: its index, which names data and predecessor once it is stored, and its data."""

    index: ChunkIndex
    body: Body
    """All blocks; if it is a file, the caller deletes it."""

    @property
    def start_offset(self) -> int:
        """Start offset of the first entry that it replaces."""
        return self.index.start_offset

    @property
    def next_offset(self) -> int:
        """Next offset of the last entry that it replaces, which may be beyond the one in that entry's index."""
        return self.index.next_offset


class EmptiedRun(NamedTuple):
    """Replaced entries without a record any longer: a gap in the catalog, with reason `erased` or `lost`.

    Gaps that the catalog lists between these offsets stay as they are, and so does what was erased before.
    """

    start_offset: int
    next_offset: int
    reason: str = ERASED


# An item that differs from the chunk that it replaces.
ChangedItem = NewChunk | EmptiedRun | RewrappedChunk
# The replacement of one or more chunks.
Item = OldChunk | NewChunk | EmptiedRun
# Items in the order of offsets that cover exactly what is replaced; an OldChunk stays as it is.
Replacement = Sequence[Item]


# Bytes of one range read, unless a single block is larger.
READ_BYTES = 4 * 1024 * 1024

# Return bytes [start, end) of one chunk's data; fewer at its end.
ReadRange = Callable[[int, int], bytes]


class ChunkData(NamedTuple):
    """A way to read the data of one chunk, and to decrypt its blocks."""

    read: ReadRange
    opened: keyrings.Opener


# Return the data of an index's chunk.
DataOf = Callable[[ChunkIndex], ChunkData]


# A decrypted block (a member or frame), and its entry as `decode_block` takes it.
Block = tuple[Stored, BlockEntry]


class RangeStore(Protocol):
    """A store that reads parts of objects; see ToolStore."""

    def get_range(self, key: str, start: int, end: int) -> bytes: ...


def data_in(store: RangeStore, keys: PartitionKeys, keyring: keyrings.Keyring | None = None) -> DataOf:
    """Return a function that opens the data of a partition's chunks.

    It raises MalformedObject for a name that is not derived, KeyMissing for an encrypted chunk without its key.
    """

    def data_of(index: ChunkIndex) -> ChunkData:
        suffix = data_suffix(index.record_format, index.codec, encrypted=bool(index.encryption))
        key = keys.chunks + keys.check_name(index.data.name, index.start_offset, suffix)
        return ChunkData(partial(store.get_range, key), keyrings.opener_of(index, key, keyring))

    return data_of


def data_of_body(body: Body, opened: keyrings.Opener = keyrings.plain) -> ChunkData:
    """Return the data of a chunk that is not stored yet."""
    if not isinstance(body, FileBody):
        return ChunkData(lambda start, end: body[start:end], opened)
    file = body

    def read(start: int, end: int) -> bytes:
        with file.reading(), file.path.open("rb") as source:
            source.seek(start)
            return source.read(end - start)

    return ChunkData(read, opened)


def size_and_hash(body: Body) -> tuple[int, str]:
    """Return the size of a body in bytes, and its SHA-256."""
    return (len(body), hashlib.sha256(body).hexdigest()) if isinstance(body, bytes) else (body.size, body.sha256)


def opened_blocks(
    data: ChunkData, blocks: Sequence[BlockEntry], numbers: Sequence[int] | None = None
) -> Iterator[Block]:
    """Yield the blocks of a chunk, or those with these numbers, in order.

    Reads neighbours together, a few MiB at a time. Raises CorruptBlock for a block that cannot be decrypted.
    """
    chosen = range(len(blocks)) if numbers is None else numbers
    entries = [blocks[number] for number in chosen]
    for group in merged_ranges(entries, READ_BYTES):
        start = entries[group.start].byte_offset
        piece = data.read(start, entries[group.stop - 1].byte_end)
        for place in group:
            entry = entries[place]
            stored = piece[entry.byte_offset - start : entry.byte_end - start]
            yield data.opened(chosen[place], stored, entry)


def whole_data(data: ChunkData, index: ChunkIndex) -> Iterator[Block]:
    """Yield all blocks of a chunk; raises CorruptBlock after the last one if the data does not match its index."""
    digest = hashlib.sha256()

    def read(start: int, end: int) -> bytes:
        piece = data.read(start, end)
        digest.update(piece)
        return piece

    yield from opened_blocks(ChunkData(read, data.opened), index.blocks)
    if digest.hexdigest() != index.data.sha256:
        raise CorruptBlock(
            f"the data {index.data.name} is damaged",
            why="its sha256 is not the one in its index",
            remedy="run `replayer verify --deep` to see what is lost; the chunk is not rewritten",
        )


class BlockWriter:
    """A writer of the data of one chunk into a local file, which the caller discards."""

    def __init__(self, buffer: BufferFile, seal: keyrings.ChunkSeal | None = None) -> None:
        """`seal` encrypts the blocks."""
        self._buffer = buffer
        self.seal = seal
        self._filter_bytes = 0
        self._has_filters = True
        self.blocks: list[BlockEntry] = []

    def copy(self, member: Stored, entry: BlockEntry) -> None:
        """Add a block as it is, or encrypted if the chunk is encrypted; raises BufferFull."""
        if self.seal is not None:
            member, entry = self.seal.sealed(len(self.blocks), member, entry)
        entry = replace(entry, byte_offset=self._buffer.size, key_filter=self._limited(entry.key_filter))
        self._buffer.append(member)
        self.blocks.append(entry)

    def encode(self, raw: RawBlock, compressor: Compressor, bounds: BlockEntry | None = None) -> None:
        """Add a block of records; `bounds` has the bounds of its timestamps if its bytes do not show them."""
        member = compressor.compress(raw.raw)
        entry = raw.entry(0, len(member))
        if bounds is not None:
            entry = replace(entry, min_timestamp=bounds.min_timestamp, max_timestamp=bounds.max_timestamp)
        self.copy(member, entry)

    def finish(self) -> FileBody:
        """Return the whole file; raises BufferFailed."""
        return self._buffer.finish()

    def _limited(self, key_filter: bytes | UnsetType) -> bytes | UnsetType:
        """Return the filter if the chunk has room for it: as in archived chunks, only its first blocks have filters."""
        if key_filter is UNSET or not self._has_filters:
            return UNSET
        self._has_filters = self._filter_bytes + len(key_filter) <= MAX_KEY_FILTERS
        self._filter_bytes += len(key_filter) if self._has_filters else 0
        return key_filter if self._has_filters else UNSET


@dataclass(frozen=True)
class RewriteKeys:
    """The keys of a rewrite; without any, only plain chunks are rewritten."""

    keyring: keyrings.Keyring | None = None
    """Keys that decrypt old chunks; the newest of them encrypts new ones."""
    encrypts_all: bool = False
    """True if new chunks that replace plain ones are encrypted too."""

    @classmethod
    def of(cls, keyring: str | None, encrypt: str | None) -> "RewriteKeys":
        """Return the keys of two settings; raises UsageError if they cannot be used.

        The keys of `encrypt` are the newer ones, and encrypt everything that is stored again.
        """
        return cls(keyrings.keyring_of(keyrings.joined_keys(keyring, encrypt)), encrypts_all=encrypt is not None)

    def opens(self, index: ChunkIndex) -> bool:
        """Return whether a chunk is plain, or its key was given, by the key's id."""
        return not index.encryption or (self.keyring is not None and self.keyring.has(index.encryption.key))

    def seal(self, old: OldChunk) -> keyrings.ChunkSeal | None:
        """Return the seal of a chunk that replaces `old` and chunks behind it; None if it is to be plain."""
        if not old.index.encryption and not self.encrypts_all:
            return None
        return self._sealing(old.index).of_chunk(old.entry.start_offset)

    def data_of(self, new: NewChunk | EmptiedRun, old: OldChunk) -> ChunkData | None:
        """Return the data of a chunk that is not stored yet, if it has any; `old` is the first that it replaces."""
        if isinstance(new, EmptiedRun):
            return None
        if not new.index.encryption:
            return data_of_body(new.body)
        return data_of_body(new.body, self._sealing(old.index).opener(new.start_offset, new.index.encryption))

    def _sealing(self, index: ChunkIndex) -> keyrings.Sealing:
        keyring = keyrings.required(self.keyring, f"{index.topic}:{index.partition}")
        return keyrings.Sealing(keyring, index.archive_id, index.topic, index.partition)


NO_KEYS = RewriteKeys()
