"""Commits of what a batch stored: chunks whose data other processes stored before, all at once and in order.

Nothing is committed unless the chain still ends where it ended when the chunks were cut: chunks are named by that end,
and records below it were left out.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from archiver.commit.commit import Held, PartitionIdentity, StoredChunk, commit_progress, commit_stored
from archiver.commit.operations import Head, NewToken, Protocol, retrying
from archiver.commit.recovery import TakeoverPolicy, read_own, take_over
from archiver.errors import Fenced, GapRefused
from blockgz.errors import StoreError
from blockgz.store.writer import ObjectHead
from index_format import marker as markers
from index_format.marker import Marker
from index_format.objects import UNVERIFIED, Gap


class ChainEnd(NamedTuple):
    """The end of a partition's archive when a batch was cut; both fields are None if nothing is archived yet."""

    next_offset: int | None
    position: int | None
    """The start offset of the next chunk."""

    @classmethod
    def of(cls, held: Held | None) -> "ChainEnd":
        return cls(held.marker.next_offset, held.marker.chain_end) if held else cls(None, None)

    def start_of(self, first_offset: int) -> int:
        """Return the start position of a chunk whose first record has this offset, not below `next_offset`."""
        # Only a record right at the archive's end continues it; other chunks start with their first record, behind the
        # chunk before them in the same batch or behind a gap.
        return self.position if self.position is not None and first_offset == self.next_offset else first_offset


class Committed(NamedTuple):
    next_offset: int
    records: int
    chunks: int
    gap: Gap | None
    passed: int
    """Records of chunks that were not committed, because another batch had archived their offsets in the meantime."""


def commit_batch(
    identity: PartitionIdentity,
    ends: Collection[ChainEnd],
    chunks: Sequence[StoredChunk],
    policy: TakeoverPolicy,
    reading: range | None = None,
) -> Protocol[Committed]:
    """Claim the partition and commit the batch's chunks, at least one, in the order given, with rising offsets.

    `ends` are the chain ends by which the chunks were cut. `reading` are the offsets that the batch read whole, if they
    are known: what none of its records has, the log lacks. Offsets between two chunks are holes of the log, and so are
    those between the archive's end and the first chunk if the batch read them too; otherwise they are a gap. Raises
    Fenced if the archive's end moved since, GapRefused, and what `take_over` and `commit_chunk` raise; what was
    committed before stays, and a repeated batch continues behind it.
    """
    start, last = chunks[0].content.first_offset, chunks[-1].content.last_offset
    if reading is not None and not (start in reading and last in reading):
        reading = None  # of another batch than this one
    records = sum(block.num_records for chunk in chunks for block in chunk.content.blocks)
    before = yield from read_own(identity, policy)
    if before is not None and before.marker.next_offset is not None and last < before.marker.next_offset:
        if reading is not None:
            yield from commit_reading(identity, reading, policy)
        return Committed(before.marker.next_offset, 0, 0, None, records)
    _check_end(identity, ends, before)
    gap = gap_before(before.marker, start, reading) if before is not None else None
    if gap is not None and not policy.gaps_are_recorded:
        raise GapRefused(
            f"{identity}: the archive ends at {gap.start}, the batch begins at {gap.end}",
            why="it is unknown whether the log held records between them",
            remedy="supply the records from there on, or record the gap with --on-gap record",
        )
    for chunk in chunks:
        yield from check_data(identity, ends, chunk, policy)
    held = (yield from take_over(identity, (yield NewToken()), policy)).held
    _check_end(identity, ends, held)
    if held.marker.next_offset is not None and held.marker.next_offset < start:
        held = yield from commit_progress(identity, held, start, (gap,) if gap else ())
    end = reading.stop if reading is not None else last + 1
    ends_of_chunks = [*(following.content.start.position for following in chunks[1:]), end]
    for chunk, next_offset in zip(chunks, ends_of_chunks, strict=True):
        held = yield from commit_stored(identity, held, chunk.with_content(next_offset=next_offset))
    return Committed(end, records, len(chunks), gap, 0)


def commit_reading(identity: PartitionIdentity, reading: range, policy: TakeoverPolicy) -> Protocol[None]:
    """Move the archive's end to that of what a batch read, which found no record the archive does not hold.

    Where the archive is not begun, or ends outside of what was read, nothing happens. Raises what `take_over` raises.
    """
    before = yield from read_own(identity, policy)
    if before is None or not _ends_within(before.marker, reading):
        return
    held = (yield from take_over(identity, (yield NewToken()), policy)).held
    if _ends_within(held.marker, reading):
        yield from commit_progress(identity, held, reading.stop)


def _ends_within(marker: Marker, reading: range) -> bool:
    # A range compares each of its numbers with None, which takes minutes for a large one.
    return marker.next_offset is not None and marker.next_offset in reading


def check_data(
    identity: PartitionIdentity, ends: Collection[ChainEnd], chunk: StoredChunk, policy: TakeoverPolicy
) -> Protocol[None]:
    """Raise StoreError if the process that stored the data used another store, or as `_check_end` does."""
    key = identity.keys.chunks + chunk.data.name
    head: ObjectHead | None = yield from retrying(Head(key))
    if head is None or head.size != chunk.data.bytes:
        # If the archive moved on in the meantime, what the batch stored is garbage, and may have been collected.
        _check_end(identity, ends, (yield from read_own(identity, policy)))
        found = "is not there" if head is None else f"has {head.size} bytes"
        raise StoreError(
            f"the object {key}, which a task stored with {chunk.data.bytes} bytes, {found}",
            why="the driver and the tasks use different stores, or somebody deleted the object",
            remedy="use s3://, or a folder that all of them share",
        )


def _check_end(identity: PartitionIdentity, ends: Collection[ChainEnd], held: Held | None) -> None:
    now = ChainEnd.of(held)
    if set(ends) != {now}:
        raise Fenced(
            f"{identity}: another writer archived up to {now.next_offset} during this batch",
            why=f"the batch was cut for an archive that ends at {' and '.join(str(end.next_offset) for end in ends)}",
            remedy="run the batch again; it skips what is already archived. Let only one query write a partition",
        )


def gap_before(marker: Marker, first_offset: int, reading: range | None) -> Gap | None:
    """Return the gap before a batch's first record, or None if the log has only a hole there."""
    # A hole is known if the batch read everything from the archive's end on. Behind a gap that ends the archive, no
    # chunk could cover the hole, and the next one would have to start at the gap's end: it counts as a gap all the
    # same.
    end = marker.next_offset
    if end is None or first_offset == end:
        return None
    if reading is not None and reading.start <= end:
        reached = markers.advanced(marker, first_offset, nonce=marker.nonce, leader_epoch=marker.leader_epoch)
        if reached.chain_end == first_offset:
            return None
    return Gap(end, first_offset, UNVERIFIED)
