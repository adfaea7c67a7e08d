"""Chunks before and after a rewrite: offsets, keys, blocks read by ranges and written into local files."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from archiver.ingest.buffer import BufferFile, BufferFolder
from archiver.ingest.chunk_builder import MAX_KEY_FILTERS
from blockgz.encryption.keyring import Keyring, joined_keys, keyring_of, required
from blockgz.encryption.opening import ChunkSeal, Opener, Sealing, opener_of, plain
from blockgz.store.writer import Body, FileBody
from index_format.blocks import Compressor, RawBlock, Stored
from index_format.chunk_index import BlockEntry, ChunkIndex, Encryption, Erased, Gap
from index_format.errors import CorruptBlock
from index_format.keys import PartitionKeys, data_suffix
from index_format.marker import ChunkEntry
from index_format.seek import merged_ranges

Offsets = npt.NDArray[np.int64]


class OffsetRanges:
    """A set of offsets, its ranges in order and apart from each other."""

    def __init__(self, ranges: Iterable[range | Erased] = ()) -> None:
        """From ranges in any order, which may overlap or touch."""
        spans = sorted((each.start, each.stop if isinstance(each, range) else each.end) for each in ranges)
        joined: list[list[int]] = []
        for start, end in spans:
            if start >= end:
                continue
            if joined and start <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        table = np.array(joined, np.int64).reshape(-1, 2)
        self._starts, self._ends = table[:, 0], table[:, 1]

    @classmethod
    def of_offsets(cls, offsets: Offsets) -> "OffsetRanges":
        """From single offsets in any order."""
        distinct = np.unique(offsets)
        breaks = np.flatnonzero(np.diff(distinct) != 1)
        ranges = cls()
        ranges._starts = distinct[np.concatenate(([0], breaks + 1))] if len(distinct) else distinct
        ranges._ends = distinct[np.concatenate((breaks, [len(distinct) - 1]))] + 1 if len(distinct) else distinct
        return ranges

    def __iter__(self) -> Iterator[range]:
        return map(range, self._starts.tolist(), self._ends.tolist())

    def __len__(self) -> int:
        """How many ranges."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRanges) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"OffsetRanges({list(self)})"

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
        """For each offset whether it is in the set."""
        if not len(self._starts):
            return np.zeros(len(offsets), np.bool_)
        place = np.searchsorted(self._starts, offsets, side="right") - 1
        found: Any = (place >= 0) & (offsets < self._ends[np.maximum(place, 0)])
        return np.asarray(found, np.bool_)

    def meets(self, start: int, end: int) -> bool:
        """Whether an offset of [start, end) is in the set."""
        place = int(np.searchsorted(self._ends, start, side="right"))
        return start < end and place < len(self._starts) and int(self._starts[place]) < end

    def erased(self) -> tuple[Erased, ...]:
        """As an index lists them."""
        return tuple(Erased(each.start, each.stop) for each in self)


TEXT = "text"
"""The record format that holds values alone; offsets are counted in its blocks, and only an index tells timestamps."""


@dataclass(frozen=True)
class OldChunk:
    """A committed chunk as it was read: its entry in a catalog, and its index, checked against that."""

    entry: ChunkEntry
    index: ChunkIndex


@dataclass(frozen=True)
class RewrappedChunk(OldChunk):
    """The chunk with an index that tells its key wrapped with another one; its data stays where it is."""


@dataclass(frozen=True)
class NewChunk:
    """What a rewrite stores in the place of neighbours, not named yet.

    It has what a chunk index needs beside names and hashes. All of its blocks lie in `body`, which the caller deletes
    if it is a file.
    """

    start_offset: int
    """Of the first entry that it replaces."""
    next_offset: int
    """Of the last entry that it replaces, which may be more than that one's index has. The new index has it too."""
    body: Body
    blocks: tuple[BlockEntry, ...]
    topic_id: str | None
    epoch: int
    """The highest of those replaced."""
    record_format: str
    codec: str
    isolation_level: str
    timestamp_type: str
    previous: str | None
    """As the first of those replaced has it."""
    gaps: tuple[Gap, ...] = ()
    erased: tuple[Erased, ...] = ()
    encryption: Encryption | UnsetType = UNSET
    """Of the new blocks; left out where they are plain."""

    def __post_init__(self) -> None:
        if not self.blocks:
            raise ValueError("a chunk without records has no index: it is an ErasedRun")
        first, last = self.blocks[0].first_record_offset, self.blocks[-1].last_record_offset
        if not self.start_offset <= first <= last < self.next_offset:
            raise ValueError(f"records at {first} to {last} lie outside [{self.start_offset}, {self.next_offset})")

    @property
    def num_records(self) -> int:
        return sum(block.num_records for block in self.blocks)


class ErasedRun(NamedTuple):
    """Replaced entries of which every record was erased: a gap with reason `erased` in the catalog.

    Gaps that the catalog lists between these offsets stay as they are.
    """

    start_offset: int
    next_offset: int


ChangedItem = NewChunk | ErasedRun | RewrappedChunk
"""What is not as it was."""
Item = OldChunk | NewChunk | ErasedRun
"""What stands in the place of one or more chunks."""
Replacement = Sequence[Item]
"""In order, covering exactly what is replaced; an OldChunk is kept as it is."""


READ_BYTES = 4 * 1024 * 1024
"""What one range read asks for, unless a single block is larger."""

ReadRange = Callable[[int, int], bytes]
"""Bytes [start, end) of one chunk's data; fewer where it ends before."""


class ChunkData(NamedTuple):
    """How to read the data of one chunk, and what opens its blocks."""

    read: ReadRange
    opened: Opener


DataOf = Callable[[ChunkIndex], ChunkData]
"""The data that an index names."""


class OpenedBlock(NamedTuple):
    """A block's member or frame, decrypted where it is stored encrypted, and its entry as `decode_block` takes it."""

    entry: BlockEntry
    member: Stored


class RangeStore(Protocol):
    """Reads parts of objects; see ToolStore."""

    def get_range(self, key: str, start: int, end: int) -> bytes: ...


def data_in(store: RangeStore, keys: PartitionKeys, keyring: Keyring | None = None) -> DataOf:
    """The data of a partition's chunks in the store.

    Raises MalformedObject for a name that is not derived, KeyMissing for an encrypted chunk without its key.
    """

    def data_of(index: ChunkIndex) -> ChunkData:
        suffix = data_suffix(index.record_format, index.codec, encrypted=bool(index.encryption))
        key = keys.chunks + keys.check_name(index.data.name, index.start_offset, suffix)
        return ChunkData(partial(store.get_range, key), opener_of(index, key, keyring))

    return data_of


def data_of_body(body: Body, opened: Opener = plain) -> ChunkData:
    """The data of a chunk that is not stored yet."""
    if not isinstance(body, FileBody):
        return ChunkData(lambda start, end: body[start:end], opened)
    file = body

    def read(start: int, end: int) -> bytes:
        with file.reading(), file.path.open("rb") as source:
            source.seek(start)
            return source.read(end - start)

    return ChunkData(read, opened)


def opened_blocks(
    data: ChunkData, blocks: Sequence[BlockEntry], numbers: Sequence[int] | None = None
) -> Iterator[OpenedBlock]:
    """The blocks of a chunk, or those of some numbers, in order; neighbours are read together, a few MiB at a time.

    Raises CorruptBlock for one that cannot be decrypted.
    """
    chosen = range(len(blocks)) if numbers is None else numbers
    entries = [blocks[number] for number in chosen]
    for group in merged_ranges(entries, READ_BYTES):
        start = entries[group.start].byte_offset
        piece = data.read(start, entries[group.stop - 1].byte_end)
        for place in group:
            entry = entries[place]
            stored = piece[entry.byte_offset - start : entry.byte_end - start]
            member, entry = data.opened(chosen[place], stored, entry)
            yield OpenedBlock(entry, member)


def whole_data(data: ChunkData, index: ChunkIndex) -> Iterator[OpenedBlock]:
    """All blocks of a chunk; raises CorruptBlock behind the last one where the data is not what the index says."""
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


class ChunkFiles:
    """The local files of one rewrite's new chunks, within a budget."""

    def __init__(self, buffers: BufferFolder, budget: int) -> None:
        """`budget` in bytes of old chunks, which the new ones take about."""
        self._buffers = buffers
        self._budget = budget
        self._files: list[BufferFile] = []
        self._used = 0

    def new_file(self, num_bytes: int) -> BufferFile | None:
        """A file for the data in the place of so many bytes; None where there is no room, unless it is the first."""
        if self._files and self._used + num_bytes > self._budget:
            return None
        self._used += num_bytes
        self._files.append(self._buffers.new_file())
        return self._files[-1]

    def discard(self) -> None:
        """Give the space back."""
        for file in self._files:
            file.discard()
        self._files, self._used = [], 0


class BlockWriter:
    """Writes the data of one chunk into a local file; the caller owns the file, and discards it."""

    def __init__(self, buffer: BufferFile, seal: ChunkSeal | None = None) -> None:
        """`seal` encrypts the blocks."""
        self._buffer = buffer
        self._seal = seal
        self._filter_bytes = 0
        self._has_filters = True
        self.blocks: list[BlockEntry] = []

    @property
    def encryption(self) -> Encryption | msgspec.UnsetType:
        return self._seal.encryption if self._seal else msgspec.UNSET

    def copy(self, block: OpenedBlock) -> None:
        """Add a block as it is, but encrypted where the chunk is; raises BufferFull."""
        entry, member = block
        if self._seal is not None:
            member, entry = self._seal.sealed(len(self.blocks), member, entry)
        entry = replace(entry, byte_offset=self._buffer.size, key_filter=self._kept(entry.key_filter))
        self._buffer.append(member)
        self.blocks.append(entry)

    def encode(self, raw: RawBlock, compressor: Compressor, bounds: BlockEntry | None = None) -> None:
        """Add a block of records; `bounds` has the bounds of its timestamps where its bytes do not tell them."""
        member = compressor.compress(raw.raw)
        entry = raw.entry(0, len(member))
        if bounds is not None:
            entry = replace(entry, min_timestamp=bounds.min_timestamp, max_timestamp=bounds.max_timestamp)
        self.copy(OpenedBlock(entry, member))

    def finish(self) -> FileBody:
        """The whole file; raises BufferFailed."""
        return self._buffer.finish()

    def _kept(self, key_filter: bytes | msgspec.UnsetType) -> bytes | msgspec.UnsetType:
        """As in chunks that are archived, the first blocks alone have filters where those would take too much."""
        if key_filter is msgspec.UNSET or not self._has_filters:
            return msgspec.UNSET
        self._has_filters = self._filter_bytes + len(key_filter) <= MAX_KEY_FILTERS
        self._filter_bytes += len(key_filter) if self._has_filters else 0
        return key_filter if self._has_filters else msgspec.UNSET


@dataclass(frozen=True)
class RewriteKeys:
    """The keys of a rewrite; without any, only plain chunks are rewritten."""

    keyring: Keyring | None = None
    """Opens old chunks; its newest key encrypts new ones."""
    encrypts_all: bool = False
    """Whether what stands in the place of plain chunks is encrypted, too."""

    @classmethod
    def of(cls, keyring: str | None, encrypt: str | None) -> "RewriteKeys":
        """Of the settings that say where the keys are; raises UsageError where these cannot be had.

        Those of `encrypt` are the newer ones, and encrypt all that is stored again.
        """
        return cls(keyring_of(joined_keys(keyring, encrypt)), encrypts_all=encrypt is not None)

    def opens(self, index: ChunkIndex) -> bool:
        """Whether a chunk is plain, or its key is at hand, as far as names tell."""
        return not index.encryption or (self.keyring is not None and self.keyring.has(index.encryption.key))

    def seal(self, old: OldChunk) -> ChunkSeal | None:
        """What encrypts the chunk in the place of that one and those behind it; None where it is plain.

        Raises KeyMissing, and what a key service raises.
        """
        if not old.index.encryption and not self.encrypts_all:
            return None
        return self._sealing(old.index).of_chunk(old.entry.start_offset)

    def data_of(self, new: NewChunk, old: OldChunk) -> ChunkData:
        """The data of a chunk that is not stored yet; `old` is the first that it replaces."""
        if not new.encryption:
            return data_of_body(new.body)
        return data_of_body(new.body, self._sealing(old.index).opener(new.start_offset, new.encryption))

    def _sealing(self, index: ChunkIndex) -> Sealing:
        keyring = required(self.keyring, f"{index.topic}:{index.partition}")
        return Sealing(keyring, index.archive_id, index.topic, index.partition)


NO_KEYS = RewriteKeys()
