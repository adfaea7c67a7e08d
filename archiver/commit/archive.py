"""An archive as the archiver opens it: its identity, and that of its topics, settled once by put-if-absent."""

import uuid
from typing import TypeVar

from msgspec.structs import replace

from archiver.errors import Diverged
from blockgz.errors import FormatError, MalformedObject, NoArchiveThere, StoreBusy, StoreError, UsageError
from blockgz.store.customer_key import check_fingerprint
from blockgz.store.writer import Store, ToolStore
from index_format import keys as names
from index_format import objects
from index_format.objects import ArchiveInfo, Incarnation, Inventory, TopicInfo, parse_inventory, united

GROUP_PREFIX = "blockgz-"

T = TypeVar("T", ArchiveInfo, TopicInfo)


def open_archive(store: Store, *, layout: str, cluster_id: str | None, customer_key: str | None = None) -> ArchiveInfo:
    """Return the archive's identity, and create the archive if there is none.

    An archive has one cluster, layout and customer key. `customer_key` is a fingerprint. Raises UsageError if the
    archive has another layout, Diverged if it belongs to another cluster, AccessDenied if it has another key.
    """
    for other in names.LAYOUTS:
        if other != layout and store.head(names.archive_key(other)) is not None:
            raise UsageError(
                f"{store.url} is an archive with layout {other!r}",
                why=f"this run asks for layout {layout!r}",
                remedy=f"use --layout {other}, or another --archive",
            )
    key = names.archive_key(layout)
    archive_id = str(uuid.uuid4())
    # A group of its own: two archives of one cluster must not share the partitions of a topic.
    group = f"{GROUP_PREFIX}{archive_id[:8]}"
    fresh = ArchiveInfo(archive_id=archive_id, cluster_id=cluster_id, layout=layout, group_id=group, inventory=True)
    if customer_key is not None:
        fresh = replace(fresh, customer_key=customer_key)
    if store.head(key) is None:  # first, as the other one says that it is there
        store.put_if_absent(names.inventory_key(layout), objects.encode(Inventory()), str(uuid.uuid4()))
    info = _settle(store, key, objects.encode(fresh), ArchiveInfo)
    check_fingerprint(info, customer_key, store.url)
    if None not in (cluster_id, info.cluster_id) and cluster_id != info.cluster_id:
        raise Diverged(
            f"{store.url} holds topics of another cluster",
            why=f"its cluster id is {info.cluster_id}, this one's is {cluster_id}",
            remedy="give each cluster its own --archive, or correct -b",
        )
    return info


def layout_of(store: Store) -> str:
    """Return the layout of the archive at a store; raises NoArchiveThere."""
    for layout in names.LAYOUTS:
        if store.head(names.archive_key(layout)) is not None:
            return layout
    raise NoArchiveThere(
        f"there is no archive at {store.url}", why="it has no _archive.json", remedy="check -a/--archive"
    )


def archive_info(store: Store, layout: str) -> ArchiveInfo:
    """Return the identity that the archive stores; raises StoreError if it is missing."""
    found = store.get(names.archive_key(layout))
    if found is None:
        raise StoreError(f"{names.archive_key(layout)} is missing")
    return objects.decode(found.body, ArchiveInfo, names.archive_key(layout))


def listed_inventory(store: ToolStore, layout: str, at: int) -> Inventory:
    """Return the inventory as a listing shows it at a time, in ms: every partition that has a folder."""
    found = []
    for folder in names.topic_folders(store.folders(names.archive_home(layout))):
        home = names.topic_home(layout, folder)
        numbers = tuple(each.partition for each in names.partition_folders(layout, folder, store.folders(home)))
        if numbers:
            topic_id = archived_topic_id(store, layout, folder)
            found.append(Incarnation(*folder, topic_id, seen_from=at, seen_until=None, partitions=numbers))
    return united(Inventory(rebuilt_at=at), found)


def find_incarnation(store: Store, *, layout: str, topic: str, topic_id: str | None) -> names.TopicFolder:
    """Return the folder of the topic with that id: the one settled for it before, or the first free one."""
    # An unknown id never differs: it means the newest incarnation. If later folders have the same id, the log of some
    # partitions was truncated: the markers of those partitions lead there.
    folder = first = names.TopicFolder(topic)
    newest_id = topic_id
    while True:
        fresh = TopicInfo(topic=topic, topic_id=topic_id, incarnation=folder.incarnation)
        info = _settle(store, names.topic_home(layout, folder) + names.TOPIC_OBJECT, objects.encode(fresh), TopicInfo)
        following = folder._replace(incarnation=folder.incarnation + 1)
        if topic_id is None:
            if info.topic_id != newest_id:
                first, newest_id = folder, info.topic_id
            if store.head(names.topic_home(layout, following) + names.TOPIC_OBJECT) is None:
                return first
        elif info.topic_id in (None, topic_id):
            return folder
        folder = following


def archived_topic_id(store: Store, layout: str, folder: names.TopicFolder) -> str | None:
    """Return the id of the topic that lives in a folder; None if it was not known as the folder was made."""
    key = names.topic_home(layout, folder) + names.TOPIC_OBJECT
    found = store.get(key)
    return None if found is None else objects.decode(found.body, TopicInfo, key).topic_id


def adopt_topic_id(store: Store, layout: str, folder: names.TopicFolder, topic_id: str) -> None:
    """Name the topic of a folder that was made before its id was known; one that is named stays."""
    key = names.topic_home(layout, folder) + names.TOPIC_OBJECT
    found = store.get(key)
    if found is not None:
        info = objects.decode(found.body, TopicInfo, key)
        if info.topic_id is None:
            store.compare_and_swap(key, objects.encode(replace(info, topic_id=topic_id)), found.etag)


def settle_same_topic(store: Store, layout: str, folder: names.TopicFolder, topic_id: str | None) -> None:
    """Have a folder say that the topic of that id lives in it; raises Diverged if another one does."""
    key = names.topic_home(layout, folder) + names.TOPIC_OBJECT
    fresh = TopicInfo(topic=folder.topic, topic_id=topic_id, incarnation=folder.incarnation)
    info = _settle(store, key, objects.encode(fresh), TopicInfo)
    if info.topic_id != topic_id:
        raise Diverged(
            f"{folder} holds another topic with that name",
            why=f"its topic id is {info.topic_id}, not {topic_id}: the topic was created again",
            remedy="nothing to repair: the archiver continues in the folder of the current topic",
        )


def _settle(store: Store, key: str, fresh: bytes, kind: type[T]) -> T:
    """Return what is stored under the key, stored now if there was nothing; raises StoreError."""
    found = store.get(key)
    if found is None:
        store.put_if_absent(key, fresh, str(uuid.uuid4()))
        found = store.get(key)
    if found is None:
        raise StoreBusy(f"{key} could not be stored", why="the store refused it as present, and holds nothing there")
    return objects.decode(found.body, kind, key)


def claimed_partitions(store: Store, layout: str) -> dict[names.TopicFolder, tuple[int, ...]]:
    """Return the partitions that the inventory names.

    None if it is missing or damaged, which `replayer verify` reports.
    """
    key = names.inventory_key(layout)
    found = store.get(key)
    try:
        return {each.folder: each.partitions for each in parse_inventory(found.body, key).incarnations} if found else {}
    except FormatError:
        return {}


def lost_marker(keys: names.PartitionKeys) -> MalformedObject:
    """Return the error about a partition that was archived and has no marker."""
    return MalformedObject(
        f"{keys.marker} is missing",
        why="the partition was archived; without its marker, it is unknown which records it holds",
        remedy=f"rebuild the marker: archiver repair marker {keys}",
    )


def refuse_lost_marker(store: Store, keys: names.PartitionKeys) -> None:
    """Raise MalformedObject if the inventory names the partition and its marker is missing."""
    # A claim stores the marker before it is added to the inventory.
    if keys.partition not in claimed_partitions(store, keys.layout).get(keys.folder, ()):
        return
    if store.head(keys.marker) is not None:
        return
    if keys.layout == "seed" or any(store.list(keys.home)):
        raise lost_marker(keys)
    raise MalformedObject(
        f"{keys.home} is empty",
        why="the partition was archived, and its folder is lost",
        remedy="restore the folder from a copy; if there is none, take the partition out of the inventory: "
        f"archiver forget {keys}",
    )
