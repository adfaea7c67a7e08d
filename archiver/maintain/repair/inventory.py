"""The inventory: made again from a listing, and freed of partitions that are gone for good."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from archiver.commit.archive import listed_inventory
from archiver.commit.claims import Change, change_inventory
from archiver.commit.driver import Driver, NoLog, Wait
from archiver.commit.operations import ListClaimed, Operation
from archiver.maintain.repair.plan import RepairPlan, RepairStep, parse_place
from blockgz.errors import NotInArchive, StoreError, UsageError
from blockgz.store.writer import StoredObject, ToolStore
from index_format import objects
from index_format.errors import FormatError
from index_format.identity import Inventory, parse_inventory, united, without
from index_format.keys import TopicFolder, inventory_key, parse_topic_folder


def plan_inventory(store: ToolStore, layout: str, wait: Wait) -> RepairPlan:
    """Make the inventory where it is missing or damaged, and add what a listing shows and it does not have."""
    key, listed = inventory_key(layout), _listed(store, layout)
    found = store.get(key)
    before, is_damaged = _read(found, key)
    after = united(before or listed, listed.incarnations)
    if after == before:
        return RepairPlan()

    def store_it() -> None:
        if found is not None and is_damaged and not store.compare_and_swap(key, objects.encode(after), found.etag):
            raise StoreError(f"{key} has changed", why="another process wrote to it", remedy="run it again")
        for _ in range(2):  # a writer that claimed a partition meanwhile may have found no inventory to add it to
            _change(store, layout, partial(_with, _listed(store, layout)), wait)

    state = "damaged" if is_damaged else "missing" if before is None else "incomplete"
    count = sum(len(each.partitions) for each in after.incarnations)
    step = RepairStep("archive", "inventory", key, f"{state}; {count} partitions", store_it)
    note = "it lists only what exists now, not what was lost before"
    return RepairPlan((step,), () if state == "incomplete" else (note,))


def plan_forgetting(store: ToolStore, layout: str, places: Sequence[str], wait: Wait) -> RepairPlan:
    """Take partitions out of the inventory of which the archive holds nothing any more.

    `orders` means every incarnation, `orders~2` one, `orders:3` one partition. Raises NotInArchive for a place of which
    nothing is missing, UsageError where there is no inventory.
    """
    key, listed = inventory_key(layout), _listed(store, layout)
    found = store.get(key)
    if found is None:
        raise UsageError(
            "the archive has no inventory",
            why="without one, no partition is missing",
            remedy="archiver repair inventory",
        )
    inventory, plan = parse_inventory(found.body, key), RepairPlan()
    for place in places:
        named = _named(inventory, place)
        if not named:
            raise NotInArchive(
                f"{place} is not in the inventory",
                why="nothing of that name was ever archived here",
                remedy="check the name and -a; replayer ls shows what is archived",
            )
        missing = {folder: gone for folder, numbers in named.items() if (gone := _gone(listed, folder, numbers))}
        if not missing:
            raise NotInArchive(
                f"nothing of {place} is missing",
                why="the archive holds all its partitions in the inventory",
                remedy="replayer verify shows what is missing; partitions that exist cannot be forgotten",
            )
        for folder, numbers in missing.items():
            forget = partial(_forget, store, layout, wait, folder, numbers)
            plan += RepairPlan((RepairStep(str(folder), "forget", key, f"partitions {_text(numbers)}", forget),))
    return plan


def _forget(store: ToolStore, layout: str, wait: Wait, folder: TopicFolder, numbers: Sequence[int]) -> None:
    _change(store, layout, lambda before: without(before, folder, numbers), wait)


def _with(listed: Inventory, inventory: Inventory) -> Inventory:
    return united(inventory, listed.incarnations)


def _named(inventory: Inventory, place: str) -> dict[TopicFolder, list[int]]:
    """What a place means of the inventory."""
    topic, partition = parse_place(place)
    folder, found = parse_topic_folder(topic), {}
    for each in inventory.incarnations:
        if each.topic != folder.topic or ("~" in topic and each.folder != folder):
            continue
        chosen = [number for number in each.partitions if partition in (None, number)]
        if chosen or partition is None:
            found[each.folder] = chosen
    return found


def _gone(listed: Inventory, folder: TopicFolder, numbers: Sequence[int]) -> list[int]:
    """Those that a listing does not show."""
    there = listed.of(folder)
    return [number for number in numbers if there is None or number not in there.partitions]


def _read(found: StoredObject | None, key: str) -> tuple[Inventory | None, bool]:
    """The inventory as it is, and whether there is one that is damaged."""
    try:
        return (None, False) if found is None else (parse_inventory(found.body, key), False)
    except FormatError:
        return None, True


def _change(store: ToolStore, layout: str, change: Change, wait: Wait) -> None:
    _Driver(store, layout, wait).run(change_inventory(inventory_key(layout), change, is_declared=True))


def _listed(store: ToolStore, layout: str) -> Inventory:
    return listed_inventory(store, layout, round(time.time() * 1000))


def _text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers[:20])) + (f",… ({len(numbers)})" if len(numbers) > 20 else "")


class _Driver(Driver):
    def __init__(self, store: ToolStore, layout: str, wait: Wait) -> None:
        super().__init__(store, NoLog(), wait, lambda: True)
        self._tool_store = store
        self._layout = layout

    def _carry_out(self, operation: Operation) -> Any:
        if isinstance(operation, ListClaimed):
            return _listed(self._tool_store, self._layout)
        return super()._carry_out(operation)
