"""The inventory: rebuilt from a listing, and freed of partitions that are lost."""

import time
from collections.abc import Sequence
from functools import partial

from archiver.commit.archive import listed_inventory
from archiver.commit.recovery import Change, InventoryDriver, change_inventory
from archiver.maintain.repair.plan import RepairPlan, RepairStep, parse_place
from blockgz.errors import FormatError, NotInArchive, StoreError, UsageError
from blockgz.store.retry import bounded_backoff
from blockgz.store.writer import StoredObject, ToolStore
from index_format import objects
from index_format.keys import TopicFolder, inventory_key, parse_topic_folder
from index_format.objects import Inventory, parse_inventory, united, without


def plan_inventory(store: ToolStore, layout: str) -> RepairPlan:
    """Plan to make the inventory if it is missing or damaged, and to add the partitions that only a listing shows."""
    key, listed = inventory_key(layout), _listed(store, layout)
    found = store.get(key)
    before, is_damaged = _read(found, key)
    after = united(before or listed, listed.incarnations)
    if after == before:
        return RepairPlan()

    def store_it() -> None:
        if found is not None and is_damaged and not store.compare_and_swap(key, objects.encode(after), found.etag):
            raise StoreError(f"{key} has changed", why="another process wrote to it", remedy="run it again")
        for _ in range(2):  # a writer that claimed one in the meantime may have found no inventory to add it to
            claims = _listed(store, layout).incarnations
            _change(store, layout, partial(united, claims=claims))

    state = "damaged" if is_damaged else "missing" if before is None else "incomplete"
    count = sum(len(each.partitions) for each in after.incarnations)
    step = RepairStep("archive", "inventory", key, f"{state}; {count} partitions", store_it)
    note = "it lists only what exists now, not what was lost before"
    return RepairPlan([step], [] if state == "incomplete" else [note])


def plan_forgetting(store: ToolStore, layout: str, places: Sequence[str]) -> RepairPlan:
    """Plan to take partitions out of the inventory of which the archive no longer holds anything.

    `orders` means every incarnation, `orders~2` one, `orders:3` one partition. Raises NotInArchive if nothing of a
    place is missing, UsageError if the archive has no inventory.
    """
    key, listed = inventory_key(layout), _listed(store, layout)
    found = store.get(key)
    if found is None:
        raise UsageError(
            "the archive has no inventory",
            why="without one, no partition is missing",
            remedy="archiver repair inventory",
        )
    inventory = parse_inventory(found.body, key)
    plan = RepairPlan(to_agree="Forget what is named in {count:,} incarnations?")
    held = {each.folder: each.partitions for each in listed.incarnations}
    for place in places:
        named = _match_place(inventory, place)
        if not named:
            raise NotInArchive(
                f"{place} is not in the inventory",
                why="nothing of that name was ever archived here",
                remedy="check the name and -a; replayer ls shows what is archived",
            )
        lost = {folder: sorted({*numbers} - {*held.get(folder, ())}) for folder, numbers in named.items()}
        missing = {folder: numbers for folder, numbers in lost.items() if numbers}
        if not missing:
            raise NotInArchive(
                f"nothing of {place} is missing",
                why="the archive holds all its partitions in the inventory",
                remedy="replayer verify shows what is missing; partitions that exist cannot be forgotten",
            )
        for folder, numbers in missing.items():
            change = partial(without, folder=folder, partitions=numbers)
            forget = partial(_change, store, layout, change)
            plan.steps.append(RepairStep(str(folder), "forget", key, f"partitions {_text(numbers)}", forget))
    return plan


def _match_place(inventory: Inventory, place: str) -> dict[TopicFolder, list[int]]:
    topic, partition = parse_place(place)
    folder, found = parse_topic_folder(topic), {}
    for each in inventory.incarnations:
        if each.topic != folder.topic or ("~" in topic and each.folder != folder):
            continue
        chosen = [number for number in each.partitions if partition in (None, number)]
        if chosen or partition is None:
            found[each.folder] = chosen
    return found


def _read(found: StoredObject | None, key: str) -> tuple[Inventory | None, bool]:
    try:
        return (None, False) if found is None else (parse_inventory(found.body, key), False)
    except FormatError:
        return None, True


def _change(store: ToolStore, layout: str, change: Change) -> None:
    driver = InventoryDriver(store, bounded_backoff(store.url), partial(_listed, store, layout))
    driver.run(change_inventory(inventory_key(layout), change, is_declared=True))


def _listed(store: ToolStore, layout: str) -> Inventory:
    return listed_inventory(store, layout, round(time.time() * 1000))


def _text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers[:20])) + (f",… ({len(numbers)})" if len(numbers) > 20 else "")
