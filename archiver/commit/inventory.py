"""Adding claims to the archive's inventory: read, unite, swap; nothing is written where nothing is new."""

from collections.abc import Callable

from archiver.commit.operations import CompareAndSwap, Get, ListClaimed, Protocol, Wait
from blockgz.errors import StoreUnfit
from blockgz.store.writer import ContentTag, StoredObject
from index_format import inventory as inventories
from index_format import objects
from index_format.inventory import Inventory

MAX_REFUSALS = 100
"""A store that so often says that somebody else was faster is broken, or somebody else is."""
Change = Callable[[Inventory], Inventory]


def change_inventory(key: str, change: Change, *, is_declared: bool) -> Protocol[bool]:
    """Apply a change to the inventory as it is now, again where another writer was faster.

    One that is declared and missing is made from a listing. False where there is none and none is declared: then
    nobody adds to it before `archiver repair inventory` made it. Raises FormatError for one that is damaged, StoreUnfit
    where the store keeps refusing; what a request raises is raised.
    """
    tries = 0
    while True:
        found: StoredObject | None = yield Get(key)
        if found is None and not is_declared:
            return False
        before: Inventory = inventories.parse(found.body, key) if found else (yield ListClaimed())
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
        yield Wait(tries, f"another writer changed {key}")
