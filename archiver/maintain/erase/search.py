"""The records to erase: by key, reading only blocks that may hold one of the keys, or by offset."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from archiver.errors import RewriteRefused
from archiver.maintain.contents.chunks import TEXT, OldChunk
from archiver.maintain.contents.data import data_in, stored_blocks
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.garbage import Chain
from blockgz_runtime.errors import ObjectMissing
from blockgz_runtime.store.writer import ToolStore
from index_format import marker as markers
from index_format.blocks import decode_parts
from index_format.canonical import RecordsDigest
from index_format.chunk_index import BlockEntry, ChunkIndex
from index_format.key_filter import Hashes, hashes_of, may_hold
from index_format.keys import INDEX_SUFFIX, PartitionKeys
from index_format.marker import ChunkEntry

REQUESTS_AT_ONCE = 8
INDEXES_AT_ONCE = 64


class Wanted(Protocol):
    """Which records are to be erased."""

    def in_chunk(self, entry: ChunkEntry) -> bool:
        """Whether the chunk may hold one."""

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:
        """Whether the block may hold one."""

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """For each record whether it is one."""


@dataclass(frozen=True)
class WithKeys:
    """Records with one of these keys."""

    keys: frozenset[bytes]

    def in_chunk(self, entry: ChunkEntry) -> bool:  # noqa: ARG002
        """See Wanted."""
        return True

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:
        """See Wanted: not where the record format holds no keys, or the block's filter knows none of these."""
        if index.record_format == TEXT:
            return False
        return not isinstance(block.key_filter, bytes) or may_hold(block.key_filter, self._hashes)

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """See Wanted."""
        found: Any = pc.is_in(batch.column("key"), pa.array(sorted(self.keys), pa.binary()))
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)

    @cached_property
    def _hashes(self) -> Hashes:
        return hashes_of(self.keys)


@dataclass(frozen=True)
class AtOffsets:
    """Records at these offsets."""

    offsets: OffsetRanges

    def in_chunk(self, entry: ChunkEntry) -> bool:
        """See Wanted."""
        return self.offsets.meets(entry.first_offset, entry.last_offset + 1)

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:  # noqa: ARG002
        """See Wanted."""
        return self.offsets.meets(block.first_record_offset, block.last_record_offset + 1)

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """See Wanted."""
        return self.offsets.mask(batch.column("offset").to_numpy())


@dataclass(frozen=True)
class FoundRecords:
    """What there is to erase in one partition, as its marker was when it was read."""

    keys: PartitionKeys
    offsets: OffsetRanges
    content: str
    """SHA-256 of the records (FORMAT.md, "Digest")."""
    positions: str
    """The same of their places."""
    num_chunks: int
    """Chunks that hold such a record: they are rewritten."""
    num_bytes: int
    """Of these chunks' data, as stored."""
    blocks_read: int
    blocks: int
    """How many blocks there are in all."""

    @property
    def num_records(self) -> int:
        return self.offsets.num_offsets

    def __str__(self) -> str:
        return f"{self.keys.folder}:{self.keys.partition}"


def find_records(store: ToolStore, chain: Chain, wanted: Wanted, max_block_bytes: int) -> FoundRecords:
    """Every such record that a chain holds; a block is in memory at a time, beside the indexes of a few chunks.

    Raises ObjectMissing or a FormatError where an index or a block is not what it must be, and a StoreError.
    """
    keys, data_of = chain.keys, data_in(store, chain.keys)
    digest, found = RecordsDigest(), list[npt.NDArray[np.int64]]()
    num_chunks = num_bytes = blocks_read = blocks = 0
    entries = [entry for entry in chain.entries if wanted.in_chunk(entry)]
    for chunk in read_chunks(store, keys, sorted(entries, key=lambda entry: entry.start_offset)):
        index = chunk.index
        chosen = [block for block in index.blocks if wanted.in_block(block, index)]
        blocks, blocks_read = blocks + len(index.blocks), blocks_read + len(chosen)
        count = 0
        for entry, member in stored_blocks(data_of(index), chosen):
            for batch in decode_parts(member, entry, index, max_block_bytes):
                mask = wanted.mask(batch)
                if mask.any():
                    digest.update(batch.filter(pa.array(mask)))
                    found.append(batch.column("offset").to_numpy()[mask])
                    count += int(mask.sum())
        num_chunks, num_bytes = num_chunks + bool(count), num_bytes + (chunk.entry.bytes if count else 0)
    offsets = OffsetRanges.of_offsets(np.concatenate(found) if found else np.array([], np.int64))
    return FoundRecords(keys, offsets, digest.content, digest.positions, num_chunks, num_bytes, blocks_read, blocks)


def read_chunks(store: ToolStore, keys: PartitionKeys, entries: Sequence[ChunkEntry]) -> Iterator[OldChunk]:
    """The chunks of these entries, with their indexes.

    Raises ObjectMissing or a FormatError, and RewriteRefused for a chunk that is encrypted.
    """

    def read(entry: ChunkEntry) -> OldChunk:
        key = keys.chunks + keys.check_name(entry.name, entry.start_offset, INDEX_SUFFIX)
        stored = store.get(key)
        if stored is None:
            raise ObjectMissing(key)
        index = markers.decode_index(stored.body, entry, keys.folder.topic, keys.partition)
        if index.encryption:
            raise RewriteRefused(
                f"chunk {key.removesuffix(INDEX_SUFFIX)} is encrypted",
                why="erasing records from encrypted chunks is not supported",
                remedy="prune them with archiver prune, or destroy the key of the chunks",
            )
        return OldChunk(entry, index)

    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="index") as pool:
        for first in range(0, len(entries), INDEXES_AT_ONCE):
            yield from pool.map(read, entries[first : first + INDEXES_AT_ONCE])
