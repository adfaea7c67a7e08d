"""Putting a chunk in the place of a gap: the one commit that does not extend the chain.

What is stored before the swap lies inside the gap, so that garbage collection spares it, and under names of its own,
because plain names below the chain's end may be deleted late.
"""

from archiver.commit.commit import FinishedChunk, PartitionIdentity, StoredChunk, index_of, store_catalogs, store_data
from archiver.commit.objects import Held, store_once, swap_marker, until_swapped
from archiver.commit.operations import NewToken, Protocol
from archiver.commit.recovery import TakeoverPolicy, read_own, take_over
from archiver.errors import SalvageRefused
from index_format import marker as markers
from index_format import objects

_POLICY = TakeoverPolicy(gaps_are_recorded=True, other_groups_are_replaced=False)


def insert_chunk(identity: PartitionIdentity, chunk: FinishedChunk, writer: str) -> Protocol[Held]:
    """Claim the partition and make a chunk of records that a gap lists as lost part of the archive.

    Whoever works on the partition is fenced, and claims it again. Raises SalvageRefused where the chunk fits into no
    gap by now, and what `take_over` raises.
    """
    before = yield from read_own(identity, _POLICY)
    check_gap(identity, before, chunk)
    stored = yield from store_data(identity, chunk, before.marker.epoch + 1 if before else 1, below_end=True)
    return (yield from until_swapped(lambda: _insert(identity, stored, writer)))


def _insert(identity: PartitionIdentity, chunk: StoredChunk, writer: str) -> Protocol[Held]:
    held = (yield from take_over(identity, writer, _POLICY)).held
    check_gap(identity, held, chunk)
    keys, marker = identity.keys, held.marker
    index = index_of(identity, markers.before_gap(marker, chunk.start.position), chunk)
    body = objects.encode(index)
    conflict = yield from store_once(
        [(lambda conflict: keys.chunks + keys.index_name(chunk.start, conflict), body)],
        marker.epoch,
        names_are_shared=True,
    )
    entry = markers.entry_of(index, keys.index_name(chunk.start, conflict), body)
    nonce: str = yield NewToken()
    tail_hash, tail_key = chunk.tail_hash, chunk.tail_key
    longer, pending = markers.inserted(marker, entry, chunk.gaps, nonce=nonce, tail_hash=tail_hash, tail_key=tail_key)
    longer = yield from store_catalogs(keys, longer, pending, {})
    return (yield from swap_marker(keys.marker, longer, held.etag))


def check_gap(identity: PartitionIdentity, held: Held | None, chunk: FinishedChunk | StoredChunk) -> None:
    """Raises SalvageRefused."""
    start, end = chunk.start.position, chunk.next_offset
    if held is None or markers.replaceable_gap(held.marker, start, end) is None:
        raise SalvageRefused(
            f"{identity}: no gap of the marker holds offsets [{start}..{end}) any longer",
            why="another process has changed the archive",
            remedy="run the command again to make a new plan",
        )
