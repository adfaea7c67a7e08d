"""The data of chunks: read by ranges and opened block by block, and written block by block into a local file."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from archiver.commit.sealing import ChunkSeal
from archiver.ingest.buffer import BufferFile, BufferFolder
from archiver.ingest.chunk_builder import MAX_KEY_FILTERS
from blockgz.encryption.keyring import Keyring
from blockgz.encryption.opening import Opener, opener_of, plain
from blockgz.store.writer import Body, FileBody
from index_format.blocks import Compressor, RawBlock, Stored
from index_format.chunk_index import BlockEntry, ChunkIndex, Encryption
from index_format.errors import CorruptBlock
from index_format.keys import PartitionKeys, data_suffix
from index_format.seek import merged_ranges

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
