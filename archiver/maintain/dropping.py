"""Dropping a whole topic that Kafka no longer has: all objects of all incarnations, and its place in the inventory."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from archiver.commit.archive import layout_of
from archiver.commit.driver import Driver, NoLog, Wait
from archiver.commit.inventory import change_inventory
from archiver.errors import DropRefused
from archiver.maintain.partitions import REQUESTS_AT_ONCE, Problem
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.writer import ListedObject, ToolStore
from index_format.errors import BlockgzError
from index_format.inventory import Inventory, parse, without
from index_format.keys import MARKER_OBJECT, TOPIC_OBJECT, TopicFolder, check_topic, inventory_key, topic_folders


class DroppedFolder(NamedTuple):
    """One incarnation of the topic."""

    folder: TopicFolder
    objects: tuple[ListedObject, ...]
    """In the order in which they go: markers first, `_topic.json` last."""

    @property
    def num_partitions(self) -> int:
        return sum(listed.key.endswith(f"/{MARKER_OBJECT}") for listed in self.objects)

    @property
    def num_bytes(self) -> int:
        return sum(listed.size for listed in self.objects)


class DropPlan(NamedTuple):
    """What goes of an archive."""

    topic: str
    layout: str
    folders: tuple[DroppedFolder, ...]
    """The newest first: an archiver looks for incarnations from the first on, up to one that is not there."""

    @property
    def num_objects(self) -> int:
        return sum(len(each.objects) for each in self.folders)

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self.folders)

    @property
    def written_at(self) -> float | None:
        """When an object of the topic was last written, in seconds since 1970; None where none is left."""
        return max((listed.modified for each in self.folders for listed in each.objects), default=None)


def plan_drop(store: ToolStore, topic: str, idle_seconds: float) -> DropPlan:
    """What a drop deletes. Raises DropRefused for a topic that was written to in the last `idle_seconds`.

    Raises NoArchiveThere, NotInArchive, BadName, UsageError for layout seed, and the store's errors.
    """
    layout = layout_of(store)
    if layout == "seed":
        raise UsageError(
            f"a topic of the archive at {store.url} cannot be dropped",
            why="it is in layout seed, where chunks of several topics share folders",
            remedy="let a rule of the store delete what is old",
        )
    plan = DropPlan(check_topic(topic), layout, _folders(store, layout, topic))
    if not plan.folders:
        raise NotInArchive(
            f"topic {topic!r} is not in the archive",
            why=f"{store.url} has no folder of it, and its inventory does not name it",
            remedy="replayer ls shows what is archived; patterns are not taken",
        )
    age = store.clock() - (plan.written_at or 0.0)
    if age < idle_seconds:
        raise DropRefused(
            f"topic {topic!r} was not dropped",
            why=f"an object of it was written {max(0.0, age):.0f} s ago: an archiver or a maintainer may be at work",
            remedy="exclude the topic from archiver run, or delete it in Kafka, and run this again later; see --idle",
        )
    return plan


def _folders(store: ToolStore, layout: str, topic: str) -> tuple[DroppedFolder, ...]:
    found = {folder: list[ListedObject]() for folder in _claimed(store, layout, topic)}
    for prefix in (f"topic={topic}/", f"topic={topic}~"):
        for listed in store.list(prefix):
            for folder in topic_folders([listed.key.partition("/")[0]]):
                found.setdefault(folder, []).append(listed)
    return tuple(
        DroppedFolder(folder, tuple(sorted(found[folder], key=_order))) for folder in sorted(found, reverse=True)
    )


def _claimed(store: ToolStore, layout: str, topic: str) -> Iterator[TopicFolder]:
    stored = store.get(inventory_key(layout))
    if stored is not None:
        inventory = parse(stored.body, inventory_key(layout))
        yield from (each.folder for each in inventory.incarnations if each.topic == topic)


def _order(listed: ListedObject) -> tuple[int, str]:
    name = listed.key.rpartition("/")[2]
    return (0 if name == MARKER_OBJECT else 2 if name == TOPIC_OBJECT else 1), listed.key


def drop(store: ToolStore, plan: DropPlan, wait: Wait) -> list[Problem]:
    """Delete what was planned; what could not be deleted. What is left after a failure, the same command deletes later.

    Raises DropRefused where the topic is no longer what was planned.
    """
    if _folders(store, plan.layout, plan.topic) != plan.folders:
        raise DropRefused(
            f"topic {plan.topic!r} was not dropped",
            why="it has been written to since the plan was made",
            remedy="stop what writes to it, and run the command again",
        )
    for each in plan.folders:
        problems = _delete(store, each)
        if problems:
            return problems  # an older incarnation stays as long as there is a newer one
    folders = [each.folder for each in plan.folders]

    def forgotten(inventory: Inventory) -> Inventory:
        for folder in folders:
            inventory = without(inventory, folder)
        return inventory

    driver = Driver(store, NoLog(), wait, lambda: True)
    driver.run(change_inventory(inventory_key(plan.layout), forgotten, is_declared=False))
    return []


def _delete(store: ToolStore, dropped: DroppedFolder) -> list[Problem]:
    problems: list[Problem] = []

    def delete(listed: ListedObject) -> None:
        try:
            store.delete(listed.key)
        except BlockgzError as error:
            problems.append(Problem(listed.key, error))

    for rank in range(3):
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="delete") as pool:
            list(pool.map(delete, (listed for listed in dropped.objects if _order(listed)[0] == rank)))
        if problems:
            break
    return problems
