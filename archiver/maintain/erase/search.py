"""The records to erase: by what they hold, reading only blocks that may hold one of their keys, or by offset."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.commit.driver import Driver, NoLog
from archiver.maintain.contents.chunks import TEXT, OldChunk
from archiver.maintain.contents.data import data_in, opened_blocks
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.garbage import Chain
from archiver.maintain.rewrite.replacing import chunks_of, parts_of
from blockgz.encryption.keyring import Keyring
from blockgz.record_filter import Condition, RecordFilter, ValueMatches
from blockgz.store.retry import bounded_backoff
from blockgz.store.writer import ToolStore
from index_format.blocks import decode_parts
from index_format.canonical import RecordsDigest
from index_format.chunk_index import BlockEntry, ChunkIndex
from index_format.keys import PartitionKeys
from index_format.marker import ChunkEntry


class Wanted(Protocol):
    """Which records are to be erased."""

    def in_chunk(self, entry: ChunkEntry) -> bool:
        """Whether the chunk may hold one."""

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:
        """Whether the block may hold one."""

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """For each record whether it is one."""


@dataclass(frozen=True)
class Matching:
    """Records of which all conditions hold."""

    filter: RecordFilter

    @classmethod
    def all_of(cls, *conditions: Condition) -> "Matching":
        return cls(RecordFilter(conditions=conditions))

    def in_chunk(self, entry: ChunkEntry) -> bool:
        """See Wanted."""
        return self.filter.may_match(entry)

    def in_block(self, block: BlockEntry, index: ChunkIndex) -> bool:
        """See Wanted: not where the record format lacks what is asked for, or the block's filter knows no such key."""
        has_all = index.record_format != TEXT or all(isinstance(each, ValueMatches) for each in self.filter.conditions)
        return has_all and self.filter.may_match(block)

    def mask(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """See Wanted."""
        matching = self.filter.apply(batch).column("offset").to_numpy()
        return np.isin(batch.column("offset").to_numpy(), matching, assume_unique=True)


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


def find_records(
    store: ToolStore, chain: Chain, wanted: Wanted, max_block_bytes: int, keyring: Keyring | None = None
) -> FoundRecords:
    """Every such record that a chain holds; a block is in memory at a time, beside the indexes of a few chunks.

    Raises ObjectMissing or a FormatError where an index or a block is not what it must be, KeyMissing for an encrypted
    block without its key, and a StoreError.
    """
    keys, data_of = chain.keys, data_in(store, chain.keys, keyring)
    digest, found = RecordsDigest(), list[npt.NDArray[np.int64]]()
    num_chunks = num_bytes = blocks_read = blocks = 0
    entries = [entry for entry in chain.entries if wanted.in_chunk(entry)]
    for chunk in read_chunks(store, keys, sorted(entries, key=lambda entry: entry.start_offset)):
        index = chunk.index
        chosen = [number for number, block in enumerate(index.blocks) if wanted.in_block(block, index)]
        blocks, blocks_read = blocks + len(index.blocks), blocks_read + len(chosen)
        count = 0
        for entry, member in opened_blocks(data_of(index), index.blocks, chosen) if chosen else ():
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
    """The chunks of these entries, with their indexes. Raises ObjectMissing, a FormatError or a StoreError."""
    driver = Driver(store, NoLog(), bounded_backoff(store.url), lambda: True)
    for some in parts_of(entries):
        yield from driver.run(chunks_of(keys, some))
