"""Partitions that lost their marker: nothing tells which records they hold, and a new marker would hide them all."""

from blockgz.store.writer import Store
from index_format.errors import FormatError, MalformedObject
from index_format.inventory import parse
from index_format.keys import PartitionKeys, TopicFolder, inventory_key


def claimed_partitions(store: Store, layout: str) -> dict[TopicFolder, tuple[int, ...]]:
    """What the inventory names; nothing where there is none, or one that `replayer verify` calls damaged."""
    key = inventory_key(layout)
    found = store.get(key)
    try:
        return {each.folder: each.partitions for each in parse(found.body, key).incarnations} if found else {}
    except FormatError:
        return {}


def lost_marker(keys: PartitionKeys) -> MalformedObject:
    """The error about a partition that was archived and has no marker."""
    return MalformedObject(
        f"{keys.marker} is missing",
        why="the partition was archived; without its marker, nothing tells which records it holds",
        remedy=f"rebuild the marker: archiver repair marker {keys.folder}:{keys.partition}",
    )


def refuse_lost_marker(store: Store, keys: PartitionKeys) -> None:
    """Raises MalformedObject for a partition without a marker that the inventory names.

    It names what was claimed, and a claim stores the marker first.
    """
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
        f"archiver forget {keys.folder}:{keys.partition}",
    )
