"""The partitions of an archive, for tools that work on some or all of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from archiver.commit.archive import layout_of
from blockgz_runtime.errors import NotInArchive, UsageError, listed
from blockgz_runtime.store.writer import ToolStore
from blockgz_runtime.topic_patterns import TopicSelection
from index_format.errors import BlockgzError, FormatError, MalformedObject
from index_format.inventory import parse
from index_format.keys import (
    ARCHIVE_OBJECT,
    PartitionKeys,
    TopicFolder,
    archive_key,
    inventory_key,
    partition_folders,
    topic_folders,
    topic_home,
)

P = TypeVar("P")

REQUESTS_AT_ONCE = 8


class Problem(NamedTuple):
    """Something that could not be read or deleted; the rest is done without it."""

    where: str
    error: BlockgzError

    @classmethod
    def of(cls, keys: PartitionKeys, error: BlockgzError) -> "Problem":
        """One of a partition."""
        return cls(f"{keys.folder}:{keys.partition}", error)

    @property
    def as_json(self) -> dict[str, str]:
        """As commands print it with --json."""
        return {"where": self.where, "error": self.error.what, "why": self.error.why, "do": self.error.remedy}


def claimed_partitions(store: ToolStore, layout: str) -> dict[TopicFolder, tuple[int, ...]]:
    """What the inventory names; nothing where there is none, or one that `replayer verify` calls damaged."""
    key = inventory_key(layout)
    found = store.get(key)
    try:
        return {each.folder: each.partitions for each in parse(found.body, key).incarnations} if found else {}
    except FormatError:
        return {}


def check_claimed(store: ToolStore, keys: PartitionKeys) -> None:
    """Raises MalformedObject for a partition without a marker that was archived once, by the inventory."""
    _refuse_lost(keys, claimed_partitions(store, keys.layout))


def _refuse_lost(keys: PartitionKeys, claimed: Mapping[TopicFolder, Sequence[int]]) -> None:
    if keys.partition in claimed.get(keys.folder, ()):
        raise MalformedObject(
            f"{keys.marker} is missing",
            why="the partition was archived; without its marker, nothing tells which records it holds",
            remedy=f"rebuild the marker: archiver repair marker {keys.folder}:{keys.partition}",
        )


def plan_each(
    store: ToolStore, partitions: Iterable[PartitionKeys], plan_of: Callable[[PartitionKeys], P | None]
) -> tuple[list[P], list[Problem]]:
    """The plans of those partitions in which there is anything to do, and what keeps others from being planned.

    `plan_of` gives None where there is nothing to do, and raises a BlockgzError. A lost marker is a problem too.
    """
    plans, problems, idle = list[P](), list[Problem](), list[PartitionKeys]()
    for keys in partitions:
        try:
            plan = plan_of(keys)
        except BlockgzError as error:
            problems.append(Problem.of(keys, error))
            continue
        if plan is None:
            idle.append(keys)
        else:
            plans.append(plan)
    claimed = claimed_partitions(store, idle[0].layout) if idle else {}

    def problem_of(keys: PartitionKeys) -> Problem | None:
        try:
            if store.head(keys.marker) is None:
                _refuse_lost(keys, claimed)
        except BlockgzError as error:
            return Problem.of(keys, error)
        return None

    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="marker") as pool:
        problems += filter(None, pool.map(problem_of, idle))
    return plans, problems


def archived_partitions(store: ToolStore, selection: TopicSelection | None) -> list[PartitionKeys]:
    """The selected topics' partitions, or all, in order, former incarnations included.

    Raises NoArchiveThere, NotInArchive for a topic that is named in full and missing, and the store's errors.
    """
    layout = layout_of(store)
    folders = topic_folders(store.folders(archive_key(layout).removesuffix(ARCHIVE_OBJECT)))
    if selection is not None:
        topics = {folder.topic for folder in folders}
        check_names(selection, topics, store.url)
        selected = set(selection(topics))
        folders = [folder for folder in folders if folder.topic in selected]
    return [
        keys
        for folder in folders
        for keys in partition_folders(layout, folder, store.folders(topic_home(layout, folder)))
    ]


def rewritable_partitions(
    store: ToolStore, selection: TopicSelection | None, what: str, other: str
) -> list[PartitionKeys]:
    """The same of an archive that can be rewritten; raises UsageError for one in layout seed.

    `what` is to be done with it, such as `pruned`, and `other` is what can be done about it there.
    """
    partitions = archived_partitions(store, selection)
    if any(keys.layout == "seed" for keys in partitions):
        raise UsageError(
            f"the archive at {store.url} cannot be {what}",
            why="it is in layout seed, which tools of its own read beside ours",
            remedy=f"archive into layout topic, or {other}",
        )
    return partitions


def check_names(selection: TopicSelection, topics: set[str], url: str) -> None:
    """Raises NotInArchive where a topic is named in full that is not among those."""
    missing = sorted(selection.names - topics)
    if missing:
        raise NotInArchive(
            f"topic {missing[0]!r} is not in the archive",
            why=f"{url} holds {listed(sorted(topics), 'no topics')}",
            remedy="choose one of these, or archive the topic first",
        )
