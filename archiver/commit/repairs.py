"""Going on in another folder of the archive, where the log of a partition was truncated and written again.

The new folder's marker comes first: until the old one names it as its successor, nobody looks for it. A crash before
that leaves the old chain as it was, and the next attempt replaces the new folder's marker.
"""

from typing import NamedTuple

from archiver.commit.commit import (
    FinishedChunk,
    PartitionIdentity,
    StoredChunk,
    index_of,
    newest_record,
    store_catalogs,
    store_data,
)
from archiver.commit.objects import Held, read_marker, store_once, swap_marker, until_swapped
from archiver.commit.operations import NewToken, Protocol
from archiver.commit.recovery import TakeoverPolicy, close_folder, read_own, take_over
from archiver.errors import Diverged, Fenced, SalvageRefused
from index_format import marker as markers
from index_format import objects
from index_format.keys import LAYOUTS, PartitionKeys, parse_topic_folder
from index_format.marker import Continues, Marker


class Turn(NamedTuple):
    """Where a partition goes on."""

    offset: int
    """Below it, the older folder holds the records."""
    next_offset: int
    """The log is read from here: behind `copied`, and behind holes."""
    copied: FinishedChunk | None
    """The beginning of an older chunk, from `offset` on: as far as the log lost it."""


def continue_in(new: PartitionIdentity, old: PartitionKeys, held: Held, turn: Turn, writer: str) -> Protocol[Held]:
    """Begin the partition's chain in the folder of `new` and close the old one, whose marker must still be `held`.

    Raises Diverged where the folder holds a chain of its own, Fenced where the old marker changed meanwhile.
    """
    existing = yield from read_marker(new.keys.marker)
    if existing is not None and (not existing.marker.continues or existing.marker.continues.folder != str(old.folder)):
        raise Diverged(
            f"{new.keys.marker} already exists",
            why="the folder holds a chain of this partition that does not continue this one",
            remedy="find out where it came from; nothing was changed",
        )
    # Asked after `existing` was read: whoever closes the old folder meanwhile has replaced that before.
    now = yield from read_marker(old.marker)
    if now is None or now.etag != held.etag:
        raise Fenced(
            f"another writer took over {old.marker}",
            why="it has changed since it was read: an archiver or another repair is running",
            remedy="run the command again; nothing was changed",
        )
    epoch = max(held.marker.epoch, existing.marker.epoch if existing else 0) + 1
    marker = yield from _begun(new, old, held.marker, turn, writer, epoch)
    begun = yield from swap_marker(new.keys.marker, marker, existing.etag if existing else None)
    yield from close_folder(old, held, str(new.keys.folder), writer)
    return begun


def turn_of(keys: PartitionKeys, marker: Marker) -> Protocol[int | None]:
    """Where the partition of a closed folder continues in the next one, its log having been truncated; None elsewhere.

    The next folder holds what is at that offset or above.
    """
    if marker.successor is None:
        return None
    found = yield from read_marker(LAYOUTS[keys.layout](parse_topic_folder(marker.successor), keys.partition).marker)
    continues = found.marker.continues if found is not None else None
    return continues.offset if continues and continues.folder == str(keys.folder) else None


def _begun(
    new: PartitionIdentity, old: PartitionKeys, before: Marker, turn: Turn, writer: str, epoch: int
) -> Protocol[Marker]:
    nonce: str = yield NewToken()
    marker = Marker(
        archive_id=new.archive_id,
        topic=new.topic,
        topic_id=new.topic_id,
        partition=new.keys.partition,
        group_id=before.group_id,
        isolation_level=new.isolation_level,
        epoch=epoch,
        writer=writer,
        nonce=nonce,
        start_offset=turn.offset,
        next_offset=turn.offset,
        continues=Continues(str(old.folder), turn.offset),
    )
    if turn.copied is not None:
        stored: StoredChunk = yield from store_data(new, turn.copied, epoch, below_end=True)
        index = index_of(new, marker, stored)
        body, keys = objects.encode(index), new.keys
        conflict = yield from store_once(
            [(lambda conflict: keys.chunks + keys.index_name(stored.start, conflict), body)],
            epoch,
            names_are_shared=True,
        )
        entry = markers.entry_of(index, keys.index_name(stored.start, conflict), body)
        marker = markers.appended(marker, entry, stored.gaps, nonce=nonce, **newest_record(stored))
    if marker.next_offset != turn.next_offset:
        marker = markers.advanced(marker, turn.next_offset, nonce=nonce, leader_epoch=None)
    return marker


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
