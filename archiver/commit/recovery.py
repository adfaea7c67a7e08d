"""Taking a partition over: the only recovery there is. Nothing is listed, adopted or repaired.

Claims are added to the archive's inventory by one write for all of them, before the first chunk of any.
"""

import dataclasses
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from msgspec.structs import replace

from archiver import errors
from archiver.commit import commit, operations
from archiver.commit import operations as op
from archiver.commit.archive import listed_inventory
from archiver.logs import LogEvent, log
from blockgz.config.model import RunConfig
from blockgz.encryption.keyring import keyring_of, required
from blockgz.errors import BlockgzError, StoreError, StoreUnfit, UsageError
from blockgz.kafka import LogBounds
from blockgz.store.writer import ContentTag, StoredObject, ToolStore
from index_format import marker as markers
from index_format import objects
from index_format.keys import LAYOUTS, PartitionKeys, TopicFolder, inventory_key, parse_topic_folder
from index_format.marker import Marker
from index_format.records import Record, record_hash


@dataclass(frozen=True)
class TakeoverPolicy:
    """The operator's decisions for takeovers."""

    gaps_are_recorded: bool
    """False: stop where retention ate records that were never archived."""
    other_groups_are_replaced: bool
    """True: claim partitions that another deployment's group holds."""

    @classmethod
    def of(cls, config: RunConfig) -> "TakeoverPolicy":
        return cls(gaps_are_recorded=config.on_gap == "record", other_groups_are_replaced=config.takeover)


class Claimed(NamedTuple):
    """A partition that this writer may commit to."""

    held: commit.Held
    position: int
    """The offset to consume from."""
    gap: objects.Gap | None
    """The gap that this claim recorded."""
    tail_was_compacted: bool
    """The last archived record is gone from the log, so that it could not be compared."""


def take_over_last(
    identity: commit.PartitionIdentity, writer: str, policy: TakeoverPolicy
) -> operations.Protocol[tuple[commit.PartitionIdentity, Claimed]]:
    """Claim the partition in the folder in which it continues, and return the identity with that folder."""
    # Only a truncated log leads from one folder to the next: a topic that was created again has another id.
    while True:
        try:
            return identity, (yield from take_over(identity, writer, policy))
        except errors.FolderClosed:
            keys = yield from _next_folder(identity.keys)
            if keys is None:
                raise
            identity = dataclasses.replace(identity, keys=keys)


def last_folder(keys: PartitionKeys) -> operations.Protocol[PartitionKeys]:
    """Return the folder in which a partition continues whose log was truncated, or its own folder."""
    while True:
        following = yield from _next_folder(keys)
        if following is None:
            return keys
        keys = following


def _next_folder(keys: PartitionKeys) -> operations.Protocol[PartitionKeys | None]:
    held = yield from commit.read_marker(keys.marker)
    following = (yield from following_folder(keys, held.marker)) if held is not None else None
    return None if following is None else following[0]


def following_folder(keys: PartitionKeys, marker: Marker) -> operations.Protocol[tuple[PartitionKeys, int] | None]:
    """Return the folder in which a closed folder's partition continues because its log was truncated, and its start.

    None for other folders. The next folder holds that offset and all above.
    """
    if marker.successor is None:
        return None
    following = LAYOUTS[keys.layout](parse_topic_folder(marker.successor), keys.partition)
    found = yield from commit.read_marker(following.marker)
    continues = found.marker.continues if found is not None else None
    return (following, continues.offset) if continues and continues.folder == str(keys.folder) else None


def take_over(identity: commit.PartitionIdentity, writer: str, policy: TakeoverPolicy) -> operations.Protocol[Claimed]:
    """Claim the partition: read the marker, compare it with the log, raise the epoch by compare-and-swap.

    The log is read before the claim, so that a process that may not read it fences nobody. Raises Diverged,
    GapRefused, OwnedByAnother or UsageError, which claim nothing; BrokerUnreachable or PartitionUnavailable where only
    the topic's id would say whose log it is, and the cluster does not confirm it.
    """
    return (yield from commit.until_swapped(lambda: _take_over_once(identity, writer, policy)))


def _take_over_once(
    identity: commit.PartitionIdentity, writer: str, policy: TakeoverPolicy
) -> operations.Protocol[Claimed]:
    held = yield from read_own(identity, policy)
    if held is None:
        yield from operations.retrying(op.CheckUnclaimed(identity.keys))
    archived = held.marker.next_offset if held else None
    bounds: LogBounds = yield from operations.retrying(op.ReadLogBounds(archived or 0))
    if archived is None and bounds.low > 0:  # where the archive begins: not by bounds that may be a former topic's
        bounds = yield from operations.retrying(op.ReadLogBounds(op.NOW))
    # The log is read before the claim: a process that may not read it must not fence anybody.
    newest = yield from _newest_archived(held.marker if held else None, bounds)
    yield from _check_assignment(identity)
    gap = None
    if held is not None:
        try:
            gap = gap_before(held.marker, bounds, identity)
            if gap is not None:  # recorded forever: not by bounds that may be a former topic's
                bounds = yield from operations.retrying(op.ReadLogBounds(op.NOW))
                gap = gap_before(held.marker, bounds, identity)
            _compare_tail(identity, held.marker, newest)
            yield from _check_holes(identity, held.marker, bounds)
        except errors.Diverged:  # unless the log is another topic's: then it says nothing about this archive
            yield from _confirm_topic(identity, held.marker)
            raise
    if not isinstance(newest, Record):  # no record says whose log it is
        yield from _confirm_topic(identity, held.marker if held else None)
    if gap is not None and not policy.gaps_are_recorded:
        raise errors.GapRefused(
            f"{identity}: records at offsets [{gap.start}..{gap.end}) were never archived",
            why="retention deleted them from the log first",
            remedy="run with --on-gap record to record the gap and archive the rest",
        )
    if gap is not None and held is not None:
        (gap,) = markers.recorded_at([gap], (yield from commit.recording_time(held.marker)))
    nonce: str = yield op.NewToken()
    claim = _claim(identity, held, writer, nonce, gap)
    claimed = yield from commit.swap_marker(identity.keys.marker, claim, held.etag if held else None)
    position = claim.next_offset if claim.next_offset is not None else bounds.low
    return Claimed(claimed, position, gap, isinstance(newest, Vanished))


def _check_assignment(identity: commit.PartitionIdentity) -> operations.Protocol[None]:
    """Raise AssignmentLost if the partition is another process's by now, or its topic another one."""
    mine: bool = yield from operations.retrying(op.StillAssigned())
    if not mine:
        raise errors.AssignmentLost(
            f"{identity} went to another process, or its topic was created again",
            why="the consumer group or the cluster has changed",
            remedy="nothing to do: the new owner archives what is not committed",
        )


def _confirm_topic(identity: commit.PartitionIdentity, marker: Marker | None) -> operations.Protocol[None]:
    # The cluster confirms the id after the log was read: until then, the log may have become another topic's.
    archived = marker.topic_id if marker else None
    known = identity.topic_id if archived is None else archived
    if known is not None:
        yield from operations.retrying(op.ConfirmTopic(known))


def reclaim(identity: commit.PartitionIdentity, writer: str) -> operations.Protocol[commit.Held]:
    """Claim a partition again that this writer holds, after a write that may not last.

    The current marker is rewritten under a higher epoch, without reading the log: nobody else wrote since. Raises
    Fenced if another writer claimed the partition.
    """
    held = yield from commit.read_marker(identity.keys.marker)
    if held is None or held.marker.writer != writer:
        raise errors.Fenced(f"another writer took over {identity.keys.marker}")
    nonce: str = yield op.NewToken()

    def claim(based_on: Marker) -> operations.Protocol[Marker]:
        yield from ()
        return _claimed_as_it_is(based_on, writer, nonce)

    return (yield from commit.swap_own_marker(identity.keys.marker, held, claim))


def claim_and_fold(keys: PartitionKeys, writer: str) -> operations.Protocol[commit.Held | None]:
    """Fold what a maintainer wants folded if no writer is running: claim the partition, in closed folders too.

    The log is not read. Returns None without a marker; raises Fenced if a writer is running after all: it folds then.
    """
    held = yield from _claim_unread(keys, writer, lambda marker: marker)
    return None if held is None else (yield from commit.commit_fold(keys, held))


def claim_and_rewrap(
    keys: PartitionKeys, writer: str, rewrapped: Callable[[objects.WrappedKey], objects.WrappedKey]
) -> operations.Protocol[commit.Held | None]:
    """Wrap the key of `tail_hash` again: claim the partition for that, in closed folders too.

    The log is not read. Returns None if the marker has no such key. Raises what `rewrapped` raises.
    """

    def change(marker: Marker) -> Marker | None:
        return replace(marker, tail_key=rewrapped(marker.tail_key)) if marker.tail_key else None

    return (yield from _claim_unread(keys, writer, change))


def _claim_unread(
    keys: PartitionKeys, writer: str, change: Callable[[Marker], Marker | None]
) -> operations.Protocol[commit.Held | None]:
    def claim() -> operations.Protocol[commit.Held | None]:
        held = yield from commit.read_marker(keys.marker)
        changed = None if held is None else change(held.marker)
        if held is None or changed is None:
            return None
        nonce: str = yield op.NewToken()
        return (yield from commit.swap_marker(keys.marker, _claimed_as_it_is(changed, writer, nonce), held.etag))

    return (yield from commit.until_swapped(claim))


def _claimed_as_it_is(marker: Marker, writer: str, nonce: str) -> Marker:
    group, level = marker.group_id, marker.isolation_level
    return markers.claimed(marker, writer=writer, nonce=nonce, group_id=group, isolation_level=level)


def read_own(identity: commit.PartitionIdentity, policy: TakeoverPolicy) -> operations.Protocol[commit.Held | None]:
    """Return the marker of a partition that this writer may claim, or None if there is none.

    Raises Diverged, OwnedByAnother or UsageError if it may not claim it, KeyMissing for an encrypted one without its
    keys: nobody adds plain chunks to encrypted ones by mistake.
    """
    held = yield from commit.read_marker(identity.keys.marker)
    if held is not None:
        _check_identity(identity, held.marker, policy)
        _tail_secret(identity, held.marker)
        yield from _check_isolation(identity, held.marker)
    return held


def why_diverged(identity: commit.PartitionIdentity, marker: Marker) -> operations.Protocol[errors.Diverged | None]:
    """Return the error that a claim would raise because the log is not the archived one; None without one."""
    bounds: LogBounds = yield from operations.retrying(op.ReadLogBounds(marker.next_offset or 0))
    try:
        newest = yield from _newest_archived(marker, bounds)
        gap_before(marker, bounds, identity)
        _compare_tail(identity, marker, newest)
        yield from _check_holes(identity, marker, bounds)
    except errors.UnreadableRecord:
        return _another_record(identity, marker.newest_offset or 0)
    except errors.Diverged as error:
        return error
    return None


def gap_before(marker: Marker, bounds: LogBounds, identity: commit.PartitionIdentity) -> objects.Gap | None:
    """Return the gap of records that retention deleted before they were archived.

    Raises Diverged if the log ends below the archive.
    """
    position = marker.next_offset
    if position is None:
        return None
    if bounds.end < position:
        raise errors.Diverged(
            f"{identity} ends at offset {bounds.end}, but the archive already holds it up to {position}",
            why="the log was truncated or replaced, or this is another cluster",
            remedy="find out what happened to the log; `archiver repair diverged` lets the partition continue",
        )
    return objects.Gap(position, bounds.low, "retention") if bounds.low > position else None


def _claim(
    identity: commit.PartitionIdentity, held: commit.Held | None, writer: str, nonce: str, gap: objects.Gap | None
) -> Marker:
    if held is None:
        return Marker(
            archive_id=identity.archive_id,
            topic=identity.topic,
            topic_id=identity.topic_id,
            partition=identity.keys.partition,
            group_id=identity.group_id,
            isolation_level=identity.isolation_level,
            epoch=1,
            writer=writer,
            nonce=nonce,
        )
    group, level = identity.group_id, identity.isolation_level
    known = held.marker if held.marker.topic_id is not None else replace(held.marker, topic_id=identity.topic_id)
    return markers.claimed(known, writer=writer, nonce=nonce, group_id=group, isolation_level=level, gap=gap)


def _check_identity(identity: commit.PartitionIdentity, marker: Marker, policy: TakeoverPolicy) -> None:
    if marker.successor is not None:
        raise errors.FolderClosed(
            f"{identity} continues in {marker.successor}",
            why=f"the topic was created again, or its log was truncated; {identity.keys.folder} is closed",
            remedy="nothing to do: the next claim finds the folder. With --once, run it again",
        )
    if (marker.archive_id, marker.topic, marker.partition) != (
        identity.archive_id,
        identity.topic,
        identity.keys.partition,
    ):
        raise errors.Diverged(
            f"{identity.keys.marker} belongs to {marker.topic}:{marker.partition} of archive {marker.archive_id}",
            why=f"expected {identity} of archive {identity.archive_id}",
            remedy="objects of two archives are mixed up; restore the right ones",
        )
    if None not in (marker.topic_id, identity.topic_id) and marker.topic_id != identity.topic_id:
        raise errors.Diverged(
            f"topic {identity.topic} is not the one that was archived",
            why=f"its topic id is {identity.topic_id}, the archive's is {marker.topic_id}: "
            "it was deleted and created again",
            remedy="archive the new topic into another --archive",
        )
    if marker.group_id != identity.group_id and not policy.other_groups_are_replaced:
        raise errors.OwnedByAnother(
            f"{identity} is archived by consumer group {marker.group_id!r}",
            why=f"this process runs as group {identity.group_id!r}; two deployments would keep fencing each other",
            remedy=f"use --group-id {marker.group_id}, or --takeover once the other deployment is stopped",
        )


def _check_isolation(identity: commit.PartitionIdentity, marker: Marker) -> operations.Protocol[None]:
    # Checked before the log is read: under another level, its end and the record at an offset differ.
    level = yield from archived_level(identity.keys, marker)
    if level is not None and level != identity.isolation_level:
        raise UsageError(
            f"{identity} is archived with isolation level {level}",
            why=f"this run asks for {identity.isolation_level}, under which the archive would hold other records",
            remedy=f"use --isolation-level {level}, or another --archive",
        )


def archived_level(keys: PartitionKeys, marker: Marker) -> operations.Protocol[str | None]:
    """Return the marker's isolation level, or that of the newest index if an earlier writer left it out.

    None if nothing is archived.
    """
    if marker.isolation_level is not None or not marker.tail:
        return marker.isolation_level if marker.next_offset is not None else None
    return (yield from _newest_index(keys, marker)).isolation_level


def _newest_index(keys: PartitionKeys, marker: Marker) -> operations.Protocol[objects.ChunkIndex]:
    entry = marker.tail[-1]
    key = keys.index_key(entry)
    found: StoredObject | None = yield from operations.retrying(op.Get(key))
    if found is None:
        raise StoreError(
            f"the index {key} is missing",
            why="the marker names it as the index of its newest chunk",
            remedy=f"rebuild the index: archiver repair index {keys}",
        )
    return markers.decode_index(found.body, entry, marker.topic, marker.partition)


class Vanished:
    """The newest archived record is gone from the log, though the log still reaches below its offset."""


def _newest_archived(marker: Marker | None, bounds: LogBounds) -> operations.Protocol[Record | Vanished | None]:
    offset = marker.newest_offset if marker is not None else None
    if offset is None or marker is None or marker.tail_hash is None:
        return None
    if not bounds.low <= offset < bounds.end:
        return None
    record: Record | None = yield from operations.retrying(op.ReadLogRecord(offset))
    return Vanished() if record is None else record


def _compare_tail(identity: commit.PartitionIdentity, marker: Marker, newest: Record | Vanished | None) -> None:
    if isinstance(newest, Record) and record_hash(newest, _tail_secret(identity, marker)) != marker.tail_hash:
        raise _another_record(identity, newest.offset)


def _tail_secret(identity: commit.PartitionIdentity, marker: Marker) -> bytes | None:
    """Return the key of the marker's `tail_hash`, or None if it has none; raises KeyMissing without the master key."""
    if not marker.tail_key:
        return None
    return required(keyring_of(identity.encrypt), str(identity)).unwrap(marker.tail_key, str(identity))


def _check_holes(identity: commit.PartitionIdentity, marker: Marker, bounds: LogBounds) -> operations.Protocol[None]:
    """Raise Diverged if the log holds a record that the archive passed over behind its newest one."""
    # A log that lost only offsets without a record, and was rewritten since, agrees with all that is archived.
    end, newest = marker.next_offset, marker.newest_offset
    if end is None or newest is None:
        return
    # If the tail was folded whole, the catalog has the gaps inside the newest chunk, or had them before it was pruned.
    ends = [marker.pruned_before, *(span.next_offset for span in marker.spans)]
    passed = newest + 1 if marker.tail else max([newest + 1, *ends])
    start = max(passed, bounds.low, *(gap.end for gap in marker.gaps))
    if start >= end:
        return
    found: int | None = yield from operations.retrying(op.FindLogRecord(start))
    while found is not None and found < end:
        if not (yield from _is_erased(identity.keys, marker, found)):
            raise _another_record(identity, found)
        found = yield from operations.retrying(op.FindLogRecord(found + 1))


def _is_erased(keys: PartitionKeys, marker: Marker, offset: int) -> operations.Protocol[bool]:
    # After a repair, the chunk of an erased record behind the newest one is in the tail.
    if not (marker.maintenance and marker.tail):
        return False
    index = yield from _newest_index(keys, marker)
    return any(offset in each for each in index.erased or ())


def _another_record(identity: commit.PartitionIdentity, offset: int) -> errors.Diverged:
    return errors.Diverged(
        f"{identity}: the record at offset {offset} is not the one that was archived",
        why="the log was truncated and rewritten, or this is another cluster",
        remedy="find out what happened to the log; `archiver repair diverged` lets the partition continue",
    )


def _name_successor_once(old: PartitionKeys, successor: str, writer: str) -> operations.Protocol[bool]:
    held = yield from commit.read_marker(old.marker)
    if held is None or held.marker.successor is not None:
        return False
    yield from close_folder(old, held, successor, writer)
    return True


def close_folder(old: PartitionKeys, held: commit.Held, successor: str, writer: str) -> operations.Protocol[None]:
    """Swap that version of the marker for the last time, to name its successor; raises Fenced if it has changed."""
    nonce: str = yield op.NewToken()
    claim = _claimed_as_it_is(held.marker, writer, nonce)
    yield from commit.swap_marker(old.marker, replace(claim, successor=successor), held.etag)


def name_successors(newest: PartitionKeys, writer: str) -> operations.Protocol[tuple[str, ...]]:
    """Swap the marker of every older incarnation for the last time, to name its successor; gives those newly named."""
    # That is the next folder with a marker of the partition, or the newest one: where the log of some partitions was
    # truncated, only those have one in the folder behind. The swap raises the epoch, so that a writer that still holds
    # the old chain is fenced. Readers follow the name.
    topic, named = newest.folder.topic, list[str]()
    successor = str(newest.folder)
    for incarnation in range(newest.folder.incarnation - 1, 0, -1):
        old = LAYOUTS[newest.layout](TopicFolder(topic, incarnation), newest.partition)
        if (yield from commit.read_marker(old.marker)) is None:
            continue
        if (yield from commit.until_swapped(partial(_name_successor_once, old, successor, writer))):
            named.insert(0, successor)
        successor = str(old.folder)
    return tuple(named)


# After this many refused swaps, the store is broken, or something else is.
MAX_REFUSALS = 100
Change = Callable[[objects.Inventory], objects.Inventory]


def change_inventory(key: str, change: Change, *, is_declared: bool) -> operations.Protocol[bool]:
    """Apply a change to the inventory as it is now, and again if another writer was faster.

    A declared inventory that is missing is made from a listing. Returns False if none exists and none is declared: then
    nothing is added before `archiver repair inventory` made it. Raises FormatError if it is damaged, StoreUnfit if the
    store keeps refusing, and what a request raises.
    """
    tries = 0
    while True:
        found: StoredObject | None = yield operations.Get(key)
        if found is None and not is_declared:
            return False
        before: objects.Inventory = (
            objects.parse_inventory(found.body, key) if found else (yield operations.ListClaimed())
        )
        after = change(before)
        if found is not None and after == before:
            return True
        etag: ContentTag | None = yield operations.CompareAndSwap(
            key, objects.encode(after), found.etag if found else None
        )
        if etag is not None:
            return True
        tries += 1
        if tries >= MAX_REFUSALS:
            raise StoreUnfit(
                f"the store refused {tries} swaps of {key}",
                why="each named the version that the store had just returned",
                remedy="use a store with working conditional writes",
            )
        yield op.Wait(tries, f"another writer changed {key}")


# Tries for which a commit waits; then it continues, and the claim is added later.
MOST_TRIES = 3


def wall_ms() -> int:
    return round(time.time() * 1000)


class ClaimList:
    """Adds claims to the inventory; safe for use by many threads, which share each write."""

    def __init__(self, store: ToolStore, archive: objects.ArchiveInfo, now_ms: Callable[[], int] = wall_ms) -> None:
        self._archive = archive
        self._now_ms = now_ms
        self._store = store
        # It does not wait for a faster writer: the next try adds what this one could not.
        self._driver = InventoryDriver(store, lambda _tries, _cause: None, self._rebuilt)
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        # Claims that are not in the inventory, as far as is known.
        self._new = objects.Inventory()
        # Newest incarnation that is over -> the topic's id by now, and when that was seen.
        self._ends: dict[TopicFolder, tuple[str | None, int]] = {}
        self._newest: dict[str, TopicFolder] = {}

    @property
    def is_behind(self) -> bool:
        return bool(self._new.incarnations or self._ends)

    def add(self, keys: PartitionKeys, topic_id: str | None) -> None:
        """Note that a partition was claimed: its marker is stored."""
        folder, now = keys.folder, self._now_ms()
        claim = objects.Incarnation(*folder, topic_id, seen_from=now, seen_until=None, partitions=(keys.partition,))
        with self._guard:
            self._new = objects.united(self._new, [claim])
            before = self._newest.get(folder.topic, folder)
            self._newest[folder.topic] = max(before, folder)
            if topic_id is not None and folder.incarnation > 1:
                self._ends[folder] = (topic_id, now)

    def gone(self, topic: str) -> None:
        """Note that the cluster reports a topic as deleted of which this process claimed partitions."""
        with self._guard:
            if topic in self._newest:
                self._ends[self._newest[topic]] = (None, self._now_ms())

    def settle(self, keys: PartitionKeys, wait: operations.BackOff) -> None:
        """Return once the inventory has the claim, or cannot get it now, which is logged.

        `wait` backs off before another try. What the archive holds does not depend on the inventory, so that no commit
        waits for it for good.
        """
        tries = 0
        while (claim := self._new.of(keys.folder)) is not None and keys.partition in claim.partitions:
            error = self.write()
            if error is None:
                continue
            tries += 1
            if tries >= MOST_TRIES or errors.what_next(error, errors.Situation.SERVING) is not errors.Next.AGAIN:
                return
            wait(tries, error)

    def write(self) -> BlockgzError | None:
        """Add what is new, all at once; gives what failed, which is logged."""
        # One thread writes for all; the others may add claims while it does.
        with self._writing:
            with self._guard:
                new, ends = self._new, dict(self._ends)
            if not (new.incarnations or ends):
                return None

            def change(inventory: objects.Inventory) -> objects.Inventory:
                after = objects.united(inventory, new.incarnations)
                for newest, (topic_id, at) in ends.items():
                    after = objects.ended(after, newest, topic_id, at)
                return after

            is_declared = self._archive.inventory is True
            key = inventory_key(self._archive.layout)
            try:
                self._driver.run(change_inventory(key, change, is_declared=is_declared))
            except BlockgzError as error:
                log.warning(LogEvent.INVENTORY_BEHIND, cause=error.what, why=error.why)
                return error
            with self._guard:
                for each in new.incarnations:
                    if self._new.of(each.folder) == each:
                        self._new = objects.without(self._new, each.folder)
                self._ends = {folder: end for folder, end in self._ends.items() if ends.get(folder) != end}
        return None

    def _rebuilt(self) -> objects.Inventory:
        log.warning(LogEvent.INVENTORY_REBUILT, key=inventory_key(self._archive.layout))
        return listed_inventory(self._store, self._archive.layout, self._now_ms())


class InventoryDriver(operations.Driver):
    """A driver of `change_inventory`, which may need an inventory made from a listing."""

    def __init__(self, store: ToolStore, wait: operations.BackOff, listed: Callable[[], objects.Inventory]) -> None:
        super().__init__(store, operations.UnreadLog(), wait, lambda: True)
        self._listed = listed

    def _carry_out(self, operation: operations.Operation) -> Any:
        return self._listed() if isinstance(operation, operations.ListClaimed) else super()._carry_out(operation)
