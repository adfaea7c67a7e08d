"""Drop a whole topic that Kafka no longer has: all objects of all incarnations, and its place in the inventory."""

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

from archiver.commit.archive import layout_of
from archiver.commit.operations import Driver
from archiver.commit.recovery import change_inventory
from archiver.errors import DropRefused
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.maintain.planned import Cell, PlannedCommand, Problem, try_each
from blockgz.errors import NotInArchive, UsageError
from blockgz.store.writer import ListedObject, ToolStore
from blockgz.units import bytes_text
from index_format.keys import (
    MARKER_OBJECT,
    TOPIC_OBJECT,
    TopicFolder,
    check_topic,
    inventory_key,
    topic_folders,
    topic_prefixes,
)
from index_format.objects import parse_inventory, without


class PlannedDrop(PlannedCommand):
    nothing = "nothing to delete"
    undone = "nothing was deleted"
    columns = ("topic", "partitions", "objects", "size")

    def __init__(
        self, store: ToolStore, archive: str, topic: str, idle_seconds: float, cluster: KafkaCluster | None = None
    ) -> None:
        """Plan a drop; raises DropRefused if an archiver may still write to the topic.

        That is if it was written to in the last `idle_seconds`, or if the cluster, if one is given, still has it.
        Raises NoArchiveThere, NotInArchive, BadName, UsageError for layout seed, and the store's errors.
        """
        self.archive, self.topic, self.typed = archive, check_topic(topic), topic
        self.problems = []
        self._store, self._cluster = store, cluster
        self._check_cluster()
        self._layout = layout_of(store)
        if self._layout == "seed":
            raise UsageError(
                f"a topic of the archive at {store.url} cannot be dropped",
                why="it is in layout seed, where chunks of several topics share folders",
                remedy="let a rule of the store delete what is old",
            )
        # Newest first: archivers look for incarnations from the first on, up to a missing one.
        self.folders = _folders(store, self._layout, topic)
        if not self.folders:
            raise NotInArchive(
                f"topic {topic!r} is not in the archive",
                why=f"{store.url} has no folder of it, and its inventory does not name it",
                remedy="replayer ls shows what is archived; patterns are not taken",
            )
        age = store.clock() - (self.written_at or 0.0)
        if age < idle_seconds:
            raise DropRefused(
                f"topic {topic!r} was not dropped",
                why=f"an object of it was written {max(0.0, age):.0f} s ago: an archiver may be running",
                remedy="exclude the topic from archiver run, or delete it in Kafka, then run this again; see --idle",
            )
        self.is_dropped = False

    def _check_cluster(self) -> None:
        if self._cluster is not None and self.topic in self._cluster.topics():
            raise DropRefused(
                f"topic {self.topic!r} was not dropped",
                why="the cluster has it, so archivers may continue to archive it",
                remedy="exclude it from archiver run and leave out -b, or delete the topic in Kafka first",
            )

    @property
    def num_objects(self) -> int:
        return sum(map(len, self.folders.values()))

    @property
    def num_bytes(self) -> int:
        return sum(map(_num_bytes, self.folders.values()))

    @property
    def written_at(self) -> float | None:
        """The time of the newest object, in seconds since 1970; None if no object is left."""
        return max((listed.modified for each in self.folders.values() for listed in each), default=None)

    @property
    def question(self) -> str | None:
        return f"Delete {self.num_objects:,} objects ({self.num_bytes:,} bytes)?"

    def rows(self) -> list[tuple[Cell, ...]]:
        return [
            (str(folder), _num_partitions(listed), len(listed), bytes_text(_num_bytes(listed)))
            for folder, listed in self.folders.items()
        ]

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        if self._cluster is not None:
            return ["the cluster does not list it"]
        return ["no brokers are given, so that nobody checked whether the cluster has it"]

    def carry_out(self) -> None:
        """Delete what was planned; after a failure, the same command deletes the rest.

        Raises DropRefused if the topic was written to since the plan.
        """
        self._check_cluster()  # the user may have thought about the question for a long time
        store = self._store
        if _folders(store, self._layout, self.topic) != self.folders:
            raise DropRefused(
                f"topic {self.topic!r} was not dropped",
                why="it has been written to since the plan was made",
                remedy="stop what writes to it, and run the command again",
            )
        for objects in self.folders.values():
            self.problems += _delete(store, objects)
            if self.problems:
                return  # an older incarnation stays as long as there is a newer one
        key = inventory_key(self._layout)
        Driver(store).run(change_inventory(key, lambda found: reduce(without, self.folders, found), is_declared=False))
        self.is_dropped = True

    def summary(self) -> str | None:
        return f"dropped {self.topic}" if self.is_dropped else None

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:  # noqa: ARG002
        return {
            "topic": self.topic,
            "objects": self.num_objects,
            "bytes": self.num_bytes,
            "written_ms": None if self.written_at is None else round(self.written_at * 1000),
            "incarnations": [
                {
                    "topic": str(folder),
                    "partitions": _num_partitions(listed),
                    "objects": len(listed),
                    "bytes": _num_bytes(listed),
                }
                for folder, listed in self.folders.items()
            ],
            "dropped": self.is_dropped,
        }


def _num_partitions(objects: Sequence[ListedObject]) -> int:
    return sum(listed.key.endswith(f"/{MARKER_OBJECT}") for listed in objects)


def _num_bytes(objects: Sequence[ListedObject]) -> int:
    return sum(listed.size for listed in objects)


def _folders(store: ToolStore, layout: str, topic: str) -> dict[TopicFolder, Sequence[ListedObject]]:
    """Return the incarnations of a topic, the newest first, each with its objects in the order of deletion."""
    stored, found = store.get(inventory_key(layout)), dict[TopicFolder, list[ListedObject]]()
    if stored is not None:
        inventory = parse_inventory(stored.body, inventory_key(layout))
        found = {each.folder: [] for each in inventory.incarnations if each.topic == topic}
    for prefix in topic_prefixes(topic):
        for listed in store.list(prefix):
            for folder in topic_folders([listed.key.partition("/")[0]]):
                if folder.topic == topic:
                    found.setdefault(folder, []).append(listed)
    return {folder: sorted(found[folder], key=_order) for folder in sorted(found, reverse=True)}


def _order(listed: ListedObject) -> tuple[int, str]:
    # Markers first, or readers would be led to what is gone; _topic.json last: it says that the folder is there.
    name = listed.key.rpartition("/")[2]
    return (0 if name == MARKER_OBJECT else 2 if name == TOPIC_OBJECT else 1), listed.key


def _delete(store: ToolStore, objects: Sequence[ListedObject]) -> list[Problem]:
    for rank in range(3):
        keys = [listed.key for listed in objects if _order(listed)[0] == rank]
        if problems := try_each(keys, [partial(store.delete, key) for key in keys]):
            return problems
    return []
