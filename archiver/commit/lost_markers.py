"""Partitions that lost their marker: nothing tells which records they hold, and a new marker would hide them all."""

from blockgz_runtime.store.writer import Store
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
    """Raises MalformedObject where the inventory names a partition that has no marker, and anything of it is stored.

    The inventory names what was claimed. A claim before the first chunk leaves nothing but the marker.
    """
    if keys.partition not in claimed_partitions(store, keys.layout).get(keys.folder, ()):
        return
    if store.head(keys.marker) is None and (keys.layout == "seed" or any(store.list(keys.home))):
        raise lost_marker(keys)
