"""The archive's inventory: claims are added by one write for all of them, before the first chunk of any."""

import threading
import time
from collections.abc import Callable
from typing import Any

from archiver.commit import operations as op
from archiver.commit.archive import listed_inventory
from archiver.commit.driver import Driver, UnreadLog, Wait
from archiver.commit.operations import CompareAndSwap, Get, ListClaimed, Operation, Protocol
from archiver.errors import Next, Situation, what_next
from archiver.logs import LogEvent, log
from blockgz.errors import BlockgzError, StoreUnfit
from blockgz.store.writer import ContentTag, StoredObject, ToolStore
from index_format import objects
from index_format.identity import ArchiveInfo, Incarnation, Inventory, ended, parse_inventory, united, without
from index_format.keys import PartitionKeys, TopicFolder, inventory_key

# After this many refused swaps, the store is broken, or something else is.
MAX_REFUSALS = 100
Change = Callable[[Inventory], Inventory]


def change_inventory(key: str, change: Change, *, is_declared: bool) -> Protocol[bool]:
    """Apply a change to the inventory as it is now, and again if another writer was faster.

    A declared inventory that is missing is made from a listing. Returns False if none exists and none is declared: then
    nothing is added before `archiver repair inventory` made it. Raises FormatError if it is damaged, StoreUnfit if the
    store keeps refusing, and what a request raises.
    """
    tries = 0
    while True:
        found: StoredObject | None = yield Get(key)
        if found is None and not is_declared:
            return False
        before: Inventory = parse_inventory(found.body, key) if found else (yield ListClaimed())
        after = change(before)
        if found is not None and after == before:
            return True
        etag: ContentTag | None = yield CompareAndSwap(key, objects.encode(after), found.etag if found else None)
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

    def __init__(self, store: ToolStore, archive: ArchiveInfo, now_ms: Callable[[], int] = wall_ms) -> None:
        self._archive = archive
        self._now_ms = now_ms
        self._store = store
        # It does not wait for a faster writer: the next try adds what this one could not.
        self._driver = InventoryDriver(store, lambda _tries, _cause: None, self._rebuilt)
        self._guard = threading.Lock()
        self._writing = threading.Lock()
        # Claims that are not in the inventory, as far as is known.
        self._new = Inventory()
        # Newest incarnation that is over -> the topic's id by now, and when that was seen.
        self._ends: dict[TopicFolder, tuple[str | None, int]] = {}
        self._newest: dict[str, TopicFolder] = {}

    @property
    def is_behind(self) -> bool:
        """Return whether something is to be written."""
        return bool(self._new.incarnations or self._ends)

    def add(self, keys: PartitionKeys, topic_id: str | None) -> None:
        """Note that a partition was claimed: its marker is stored."""
        folder, now = keys.folder, self._now_ms()
        claim = Incarnation(*folder, topic_id, seen_from=now, seen_until=None, partitions=(keys.partition,))
        with self._guard:
            self._new = united(self._new, [claim])
            before = self._newest.get(folder.topic, folder)
            self._newest[folder.topic] = max(before, folder)
            if topic_id is not None and folder.incarnation > 1:
                self._ends[folder] = (topic_id, now)

    def gone(self, topic: str) -> None:
        """Note that the cluster reports a topic as deleted of which this process claimed partitions."""
        with self._guard:
            if topic in self._newest:
                self._ends[self._newest[topic]] = (None, self._now_ms())

    def settle(self, keys: PartitionKeys, wait: Wait) -> None:
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
            if tries >= MOST_TRIES or what_next(error, Situation.SERVING) is not Next.AGAIN:
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

            def change(inventory: Inventory) -> Inventory:
                after = united(inventory, new.incarnations)
                for newest, (topic_id, at) in ends.items():
                    after = ended(after, newest, topic_id, at)
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
                        self._new = without(self._new, each.folder)
                self._ends = {folder: end for folder, end in self._ends.items() if ends.get(folder) != end}
        return None

    def _rebuilt(self) -> Inventory:
        log.warning(LogEvent.INVENTORY_REBUILT, key=inventory_key(self._archive.layout))
        return listed_inventory(self._store, self._archive.layout, self._now_ms())


class InventoryDriver(Driver):
    """A driver of `change_inventory`, which may need an inventory made from a listing."""

    def __init__(self, store: ToolStore, wait: Wait, listed: Callable[[], Inventory]) -> None:
        super().__init__(store, UnreadLog(), wait, lambda: True)
        self._listed = listed

    def _carry_out(self, operation: Operation) -> Any:
        return self._listed() if isinstance(operation, ListClaimed) else super()._carry_out(operation)
