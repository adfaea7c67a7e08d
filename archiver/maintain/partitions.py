"""The partitions of an archive, for tools that work on some or all of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from archiver.commit.archive import layout_of
from archiver.commit.lost_markers import claimed_partitions
from blockgz.errors import NotInArchive, UsageError, listed
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection, nothing_matches
from index_format.errors import BlockgzError
from index_format.keys import (
    ARCHIVE_OBJECT,
    LAYOUTS,
    PartitionKeys,
    TopicFolder,
    archive_key,
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


def plan_each(
    partitions: Iterable[PartitionKeys], plan_of: Callable[[PartitionKeys], P | None]
) -> tuple[list[P], list[Problem]]:
    """The plans of those partitions in which there is anything to do, and what keeps others from being planned.

    `plan_of` gives None where there is nothing to do, and raises a BlockgzError.
    """
    plans, problems = list[P](), list[Problem]()
    for keys in partitions:
        try:
            plan = plan_of(keys)
        except BlockgzError as error:
            problems.append(Problem.of(keys, error))
        else:
            plans += [] if plan is None else [plan]
    return plans, problems


def archived_partitions(store: ToolStore, selection: TopicSelection | None) -> list[PartitionKeys]:
    """The selected topics' partitions, or all, in order, former incarnations included.

    Those that have a folder, and those that the inventory names. Raises NoArchiveThere, NotInArchive for a topic that
    is named in full and missing, and the store's errors.
    """
    layout = layout_of(store)
    claimed = claimed_partitions(store, layout)
    found = topic_folders(store.folders(archive_key(layout).removesuffix(ARCHIVE_OBJECT)))
    folders = sorted({*found, *claimed})
    if selection is not None:
        topics = {folder.topic for folder in folders}
        check_names(selection, topics, store.url)
        selected = set(selection(topics))
        folders = [folder for folder in folders if folder.topic in selected]
    return [keys for folder in folders for keys in partitions_of(store, layout, folder, claimed.get(folder, ()))]


def partitions_of(store: ToolStore, layout: str, folder: TopicFolder, claimed: Sequence[int]) -> list[PartitionKeys]:
    """The partitions in a topic's folder, and those that were claimed there, in order."""
    stored = {keys.partition for keys in partition_folders(layout, folder, store.folders(topic_home(layout, folder)))}
    return [LAYOUTS[layout](folder, number) for number in sorted({*stored, *claimed})]


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
    """Raises NotInArchive where a topic is named in full that is not among those, or patterns mean none of them."""
    missing = sorted(selection.names - topics)
    if missing:
        raise NotInArchive(
            f"topic {missing[0]!r} is not in the archive",
            why=f"{url} holds {listed(sorted(topics), 'no topics')}",
            remedy="choose one of these, or archive the topic first",
        )
    if not selection(topics):
        raise nothing_matches(selection.patterns, sorted(topics))
