"""Commits that do not extend a chain: a continuation in another folder, and a chunk in place of a gap.

If the log of a partition was truncated and rewritten, the partition continues in a new folder, whose marker is stored
first: until the old one names it as its successor, nobody looks for it. A crash before that leaves the old chain as it
was, and the next attempt replaces the new folder's marker.

A chunk that fills a gap is stored inside the gap, so that garbage collection spares it, and under a name of its own,
because plain names below the chain's end may be deleted late.
"""

from archiver.commit import commit
from archiver.commit.operations import NewToken, Protocol
from archiver.commit.recovery import TakeoverPolicy, close_folder, read_own, take_over
from archiver.errors import Diverged, Fenced, SalvageRefused
from index_format import marker as markers
from index_format.keys import PartitionKeys
from index_format.marker import Continues, Marker


def continue_in(
    new: commit.PartitionIdentity,
    old: PartitionKeys,
    held: commit.Held,
    start: int,
    next_offset: int,
    writer: str,
    copied: commit.FinishedChunk | None = None,
) -> Protocol[commit.Held]:
    """Begin the partition's chain in the folder of `new` and close the old one, whose marker must still be `held`.

    The older folder holds the records below `start`. `copied` is the part of its chunk around `start` that the log
    lost; the log is read from `next_offset` on, which is behind `copied` and behind holes. Raises Diverged if the
    folder holds a chain of its own, Fenced if the old marker changed in the meantime.
    """
    existing = yield from commit.read_marker(new.keys.marker)
    if existing is not None and (not existing.marker.continues or existing.marker.continues.folder != str(old.folder)):
        raise Diverged(
            f"{new.keys.marker} already exists",
            why="the folder holds a chain of this partition that does not continue this one",
            remedy="find out what wrote it; nothing was changed",
        )
    # Asked after `existing` was read: a process that closes the old folder in the meantime has replaced that before.
    now = yield from commit.read_marker(old.marker)
    if now is None or now.etag != held.etag:
        raise Fenced(
            f"another writer took over {old.marker}",
            why="it has changed since it was read: an archiver or another repair is running",
            remedy="run the command again; nothing was changed",
        )
    epoch = max(held.marker.epoch, existing.marker.epoch if existing else 0) + 1
    nonce: str = yield NewToken()
    marker = Marker(
        archive_id=new.archive_id,
        topic=new.topic,
        topic_id=new.topic_id,
        partition=new.keys.partition,
        group_id=held.marker.group_id,
        isolation_level=new.isolation_level,
        epoch=epoch,
        writer=writer,
        nonce=nonce,
        start_offset=start,
        next_offset=start,
        continues=Continues(str(old.folder), start),
    )
    if copied is not None:
        stored: commit.StoredChunk = yield from commit.store_data(new, copied, epoch, below_end=True)
        entry = yield from commit.store_index(new, marker, stored, names_are_shared=True)
        marker = markers.appended(marker, entry, copied.gaps, nonce=nonce, **copied.newest_record)
    if marker.next_offset != next_offset:
        marker = markers.advanced(marker, next_offset, nonce=nonce, leader_epoch=None)
    begun = yield from commit.swap_marker(new.keys.marker, marker, existing.etag if existing else None)
    yield from close_folder(old, held, str(new.keys.folder), writer)
    return begun


_POLICY = TakeoverPolicy(gaps_are_recorded=True, other_groups_are_replaced=False)


def insert_chunk(identity: commit.PartitionIdentity, chunk: commit.FinishedChunk, writer: str) -> Protocol[commit.Held]:
    """Claim the partition and add a chunk of records that a gap lists as lost.

    The current owner is fenced, and claims the partition again. Raises SalvageRefused if the chunk no longer fits into
    a gap, and what `take_over` raises.
    """
    before = yield from read_own(identity, _POLICY)
    check_gap(identity, before, chunk)
    stored = yield from commit.store_data(identity, chunk, before.marker.epoch + 1 if before else 1, below_end=True)
    return (yield from commit.until_swapped(lambda: _insert(identity, stored, writer)))


def _insert(identity: commit.PartitionIdentity, stored: commit.StoredChunk, writer: str) -> Protocol[commit.Held]:
    held, chunk = (yield from take_over(identity, writer, _POLICY)).held, stored.content
    check_gap(identity, held, chunk)
    keys, marker = identity.keys, held.marker
    below = markers.before_gap(marker, chunk.start.position)
    entry = yield from commit.store_index(identity, below, stored, names_are_shared=True)
    nonce: str = yield NewToken()
    tail_hash, tail_key = chunk.tail_hash, chunk.tail_key
    longer, pending = markers.inserted(marker, entry, chunk.gaps, nonce=nonce, tail_hash=tail_hash, tail_key=tail_key)
    longer = yield from commit.store_catalogs(keys, longer, pending, {})
    return (yield from commit.swap_marker(keys.marker, longer, held.etag))


def check_gap(identity: commit.PartitionIdentity, held: commit.Held | None, chunk: commit.FinishedChunk) -> None:
    """Raise SalvageRefused if no gap of the marker holds the chunk."""
    start, end = chunk.start.position, chunk.next_offset
    if held is None or markers.replaceable_gap(held.marker, start, end) is None:
        raise SalvageRefused(
            f"{identity}: no gap of the marker holds offsets [{start}..{end}) any longer",
            why="another process has changed the archive",
            remedy="run the command again to make a new plan",
        )
