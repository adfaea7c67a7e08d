"""Erasing what was found in a partition: what stands in the tail is folded, then catalogs are rewritten, run by run."""

import uuid
from collections.abc import Iterator, Sequence

from archiver.commit.driver import Driver
from archiver.commit.operations import Protocol
from archiver.errors import RewriteOvertaken, RewriteRefused
from archiver.ingest.buffer import BufferFile, BufferFolder
from archiver.maintain.contents.chunks import ChangedItem, Item, NewChunk, OldChunk
from archiver.maintain.contents.comparison import check_without
from archiver.maintain.contents.data import ChunkFiles, data_in
from archiver.maintain.contents.erase import without
from archiver.maintain.contents.keys import NO_KEYS, RewriteKeys
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.rewrite.folding import fold_tail
from archiver.maintain.rewrite.intent import Outcome
from archiver.maintain.rewrite.replacing import Rewrite, rewrite
from archiver.maintain.rewrite.tree import References, Run, RunLimits, first_run, level_1_lists
from blockgz.store.writer import ToolStore
from index_format.keys import PartitionKeys
from index_format.marker import Marker

ATTEMPTS = 3
"""How often a rewrite is begun again that another maintainer took over."""


class ErasedContents:
    """What one rewrite puts in the place of chunks; its files are in the buffer until `discard`."""

    def __init__(
        self,
        store: ToolStore,
        keys: PartitionKeys,
        drop: OffsetRanges,
        buffers: BufferFolder,
        buffer_bytes: int,
        max_block_bytes: int,
        rewrite_keys: RewriteKeys,
    ) -> None:
        self._keys = keys
        self._data_of = data_in(store, keys, rewrite_keys.keyring)
        self._rewrite_keys = rewrite_keys
        self._drop = drop
        self._max_block_bytes = max_block_bytes
        self._files = ChunkFiles(buffers, buffer_bytes)
        self._run: Run | None = None
        self._left: list[range] = []
        """The offsets of chunks that stay as they are for want of room in the buffer."""

    @property
    def done(self) -> OffsetRanges:
        """The offsets at which no such record is left once this rewrite is committed; none where there was no run."""
        run = [range(self._run.start, self._run.end)] if self._run else []
        return OffsetRanges(run) - OffsetRanges(self._left)

    def choose(self, marker: Marker) -> Protocol[Run | None]:
        """What is to be rewritten."""
        self._run = yield from choose_run(self._keys, marker, self._drop)
        return self._run

    def contents(self, old: Sequence[OldChunk]) -> Iterator[Item]:
        """The chunks without the records; those that the buffer has no room for stay as they are until the next run."""
        for chunk in old:
            entry = chunk.entry
            is_meant = self._drop.meets(entry.start_offset, entry.next_offset)
            buffer = self._files.new_file(entry.bytes) if is_meant else None
            if is_meant and buffer is None:
                self._left.append(range(entry.start_offset, entry.next_offset))
            yield chunk if buffer is None else self._without(chunk, buffer)

    def _without(self, chunk: OldChunk, buffer: BufferFile) -> Item:
        seal = self._rewrite_keys.seal(chunk)
        new = without(chunk, self._drop, self._data_of, buffer, self._max_block_bytes, seal)
        is_same = isinstance(new, NewChunk) and new.num_records == chunk.index.num_records
        return chunk if is_same else new

    def check(self, old: Sequence[OldChunk], new: ChangedItem) -> None:
        """Raises ContentsDiffer unless the records to erase are missing, and nothing else."""
        (before,) = old
        assert not isinstance(new, OldChunk)
        data = self._rewrite_keys.data_of(new, before) if isinstance(new, NewChunk) else None
        check_without(before, new, self._drop, self._data_of, data, self._max_block_bytes)

    def discard(self) -> None:
        """Give the space in the buffer back."""
        self._files.discard()


def erase_in(
    store: ToolStore,
    keys: PartitionKeys,
    offsets: OffsetRanges,
    driver: Driver,
    buffers: BufferFolder,
    *,
    buffer_bytes: int,
    max_block_bytes: int,
    rewrite_keys: RewriteKeys = NO_KEYS,
) -> None:
    """Erase the records at these offsets of a partition's folder, however the chain changes meanwhile.

    A writer that is at work is fenced where records stand in the tail, and claims the partition again. Raises
    RewriteOvertaken or RewriteRefused where not all could be erased, KeyMissing for an encrypted chunk without its key,
    ContentsDiffer, a FormatError or a StoreError. What was erased until then stays erased.
    """
    driver.run(fold_tail(keys, offsets, str(uuid.uuid4())))
    pending, attempts = offsets, 0
    while len(pending):
        work = ErasedContents(store, keys, pending, buffers, buffer_bytes, max_block_bytes, rewrite_keys)
        try:
            outcome = driver.run(rewrite(keys, work.choose, Rewrite("erase", work.contents, work.check)))
        finally:
            work.discard()
        if outcome is Outcome.OVERTAKEN and (attempts := attempts + 1) < ATTEMPTS:
            continue
        if outcome not in (Outcome.COMMITTED, Outcome.NOTHING):
            raise _refused(keys, outcome)
        if not len(work.done):
            return  # no catalog has such an offset any more: pruned, or erased by another
        pending -= work.done


def choose_run(keys: PartitionKeys, marker: Marker, offsets: OffsetRanges) -> Protocol[Run | None]:
    """The first catalogs of level 1, neighbours in one list, that span such an offset; None where none does."""
    spans = list(offsets)
    for references in (yield from level_1_lists(keys, marker, spans[0].start, spans[-1].stop)):
        chosen = run_of(references, offsets)
        if chosen:
            return Run(chosen)
    return None


def run_of(references: References, offsets: OffsetRanges) -> References:
    """Neighbours that span such offsets, as many as one rewrite takes; empty where none does."""
    return first_run(references, lambda each: offsets.meets(each.start_offset, each.next_offset), RunLimits())


def _refused(keys: PartitionKeys, outcome: Outcome) -> RewriteRefused | RewriteOvertaken:
    where = f"{keys.folder}:{keys.partition}"
    if outcome is Outcome.FULL:
        return RewriteRefused(
            f"not all records of {where} could be erased yet",
            why="its marker lists as many replaced catalogs as it may",
            remedy="run archiver gc once their grace is over, then the same erase again",
        )
    return RewriteOvertaken(
        f"not all records of {where} could be erased yet",
        why="another maintainer is at work on the partition, or was stopped less than an hour ago",
        remedy="run the same erase again when that one has ended, or an hour later",
    )
