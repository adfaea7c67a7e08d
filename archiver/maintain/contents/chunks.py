"""Chunks before and after a rewrite: values that pass between what a rewrite puts in their place and who commits it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from blockgz.store.writer import Body
from index_format.chunk_index import BlockEntry, ChunkIndex, Encryption, Erased, Gap
from index_format.marker import ChunkEntry

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
