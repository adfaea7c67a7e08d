"""The partitions of an archive, for tools that work on some or all of them."""

from archiver.commit.archive import layout_of
from blockgz_runtime.errors import NotInArchive, UsageError
from blockgz_runtime.store.writer import ToolStore
from blockgz_runtime.topic_patterns import TopicSelection
from index_format.keys import (
    ARCHIVE_OBJECT,
    PartitionKeys,
    archive_key,
    partition_folders,
    topic_folders,
    topic_home,
)


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
        shown = ", ".join(sorted(topics)[:10]) + (" …" if len(topics) > 10 else "")
        raise NotInArchive(
            f"topic {missing[0]!r} is not in the archive",
            why=f"{url} holds {shown or 'no topics'}",
            remedy="choose one of these, or archive the topic first",
        )
