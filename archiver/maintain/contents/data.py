"""The data of chunks: read by ranges, block by block, and written block by block into a local file."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from archiver.errors import RewriteRefused
from archiver.ingest.buffer import BufferFile, BufferFolder
from archiver.ingest.chunk_builder import MAX_KEY_FILTERS
from blockgz_runtime.store.writer import Body, FileBody
from index_format.blocks import Compressor, RawBlock
from index_format.chunk_index import BlockEntry, ChunkIndex
from index_format.errors import CorruptBlock
from index_format.keys import PartitionKeys, data_suffix
from index_format.seek import merged_ranges

READ_BYTES = 4 * 1024 * 1024
"""What one range read asks for, unless a single block is larger."""

ReadRange = Callable[[int, int], bytes]
"""Bytes [start, end) of one chunk's data; fewer where it ends before."""
DataOf = Callable[[ChunkIndex], ReadRange]
"""How to read the data that an index names."""


class StoredBlock(NamedTuple):
    """A block as stored, and its entry."""

    entry: BlockEntry
    member: bytes


class RangeStore(Protocol):
    """Reads parts of objects; see ToolStore."""

    def get_range(self, key: str, start: int, end: int) -> bytes: ...


def data_in(store: RangeStore, keys: PartitionKeys) -> DataOf:
    """The data of a partition's chunks in the store.

    Raises MalformedObject for a name that is not derived, RewriteRefused for an encrypted chunk.
    """

    def data_of(index: ChunkIndex) -> ReadRange:
        if index.encryption:
            raise RewriteRefused(
                f"{keys.chunks}{index.data.name} is encrypted",
                why="rewriting encrypted chunks is not supported",
                remedy="leave its topic out; prune takes encrypted chunks out as a whole",
            )
        suffix = data_suffix(index.record_format, index.codec)
        name = keys.check_name(index.data.name, index.start_offset, suffix)
        return partial(store.get_range, keys.chunks + name)

    return data_of


def data_of_body(body: Body) -> ReadRange:
    """The data of a chunk that is not stored yet."""
    if not isinstance(body, FileBody):
        return lambda start, end: body[start:end]
    file = body

    def read(start: int, end: int) -> bytes:
        with file.reading(), file.path.open("rb") as opened:
            opened.seek(start)
            return opened.read(end - start)

    return read


def stored_blocks(read: ReadRange, blocks: Sequence[BlockEntry]) -> Iterator[StoredBlock]:
    """Those blocks in order; neighbours are read together, a few MiB at a time."""
    for group in merged_ranges(blocks, READ_BYTES):
        start = blocks[group.start].byte_offset
        piece = read(start, blocks[group.stop - 1].byte_end)
        for entry in blocks[group.start : group.stop]:
            yield StoredBlock(entry, piece[entry.byte_offset - start : entry.byte_end - start])


def whole_data(read: ReadRange, index: ChunkIndex) -> Iterator[StoredBlock]:
    """All blocks of a chunk; raises CorruptBlock behind the last one where the data is not what the index says."""
    digest = hashlib.sha256()
    for block in stored_blocks(read, index.blocks):
        digest.update(block.member)
        yield block
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

    def __init__(self, buffer: BufferFile) -> None:
        self._buffer = buffer
        self._filter_bytes = 0
        self._has_filters = True
        self.blocks: list[BlockEntry] = []

    def copy(self, block: StoredBlock) -> None:
        """Add a block as it is; raises BufferFull."""
        entry = replace(block.entry, byte_offset=self._buffer.size, key_filter=self._kept(block.entry.key_filter))
        self._buffer.append(block.member)
        self.blocks.append(entry)

    def encode(self, raw: RawBlock, compressor: Compressor, bounds: BlockEntry | None = None) -> None:
        """Add a block of records; `bounds` has the bounds of its timestamps where its bytes do not tell them."""
        member = compressor.compress(raw.raw)
        entry = raw.entry(0, len(member))
        if bounds is not None:
            entry = replace(entry, min_timestamp=bounds.min_timestamp, max_timestamp=bounds.max_timestamp)
        self.copy(StoredBlock(entry, member))

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
