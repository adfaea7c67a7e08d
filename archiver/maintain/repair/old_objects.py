"""Indexes and markers of old archives, made again as the ancestor wrote them."""

from collections.abc import Callable, Sequence

from archiver.maintain.planned import Problem
from archiver.maintain.repair.plan import RepairPlan, parse_place, storing
from archiver.old_archives.old_archive import OldReader
from blockgz.errors import NotInArchive
from index_format.ancestor.files import indexed_file, scan_file
from index_format.ancestor.index import encode_old_index
from index_format.ancestor.keys import FoundData, FoundPartition, Place, found_partitions, marker_offset
from index_format.errors import MalformedObject
from index_format.keys import SeedLayoutKeys, TopicFolder


def plan_old_indexes(reader: OldReader, texts: Sequence[str]) -> RepairPlan:
    """Indexes for the files, of the partitions or with the keys that are named, that have none that can be used."""
    sizes = {listed.key: listed.size for listed in reader.store.list("")}
    found, plan = found_partitions(sizes), RepairPlan()
    wanted = _wanted(texts)
    for place, partition in found.items():
        for data in partition.data:
            if wanted(place, data.key):
                plan += _index(reader, place, data, sizes[data.key])
    _check_found(texts, found, reader)
    return plan


def plan_old_markers(reader: OldReader, texts: Sequence[str]) -> RepairPlan:
    """Markers of the partitions that are named, where there is none or it names no file."""
    found, plan = found_partitions(listed.key for listed in reader.store.list("")), RepairPlan()
    wanted = _wanted(texts)
    for place, partition in found.items():
        if wanted(place, ""):
            plan += _marker(reader, place, partition)
    _check_found(texts, found, reader)
    return plan


def _index(reader: OldReader, place: Place, data: FoundData, size: int) -> RepairPlan:
    bodies = {key: stored for key in data.index_keys if (stored := reader.store.get(key)) is not None}
    known = indexed_file(data, size, {key: stored.body for key, stored in bodies.items()})
    if known is not None and known.is_indexed:
        return RepairPlan()
    file = reader.run(scan_file(data, size, reader.old_format, reader.max_block_bytes))
    if file.damage is not None or not file.blocks:
        why = "; ".join(file.notes) if file.blocks else "it has no complete member"
        error = MalformedObject(f"{data.key} cannot be indexed completely", why=why)
        return RepairPlan(problems=(Problem(data.key, error),))
    old = bodies.get(data.own_index_key)
    detail = f"offsets [{file.first_offset}..{file.next_offset}), counted"
    body, etag = encode_old_index(file.blocks), old.etag if old else None
    return storing(reader.store, place, "index", data.own_index_key, body, etag, detail)


def _marker(reader: OldReader, place: Place, partition: FoundPartition) -> RepairPlan:
    indexed = [data for data in partition.data if data.index_keys]
    if not indexed:
        error = MalformedObject(
            f"{place} has no index for a marker to name", remedy=f"rebuild them first: archiver repair index {place}"
        )
        return RepairPlan(problems=(Problem(str(place), error),))
    newest = indexed[-1]
    key = partition.marker_key or SeedLayoutKeys(TopicFolder(place.topic), place.partition).ancestor_marker
    stored = reader.store.get(key)
    named = marker_offset(stored.body) if stored is not None else None
    if named is not None and any(data.first_offset == named for data in partition.data):
        return RepairPlan(notes=(f"{key} names a chunk that exists; nothing to repair",))
    body = (reader.store.prefix + newest.index_keys[0]).encode()
    etag = stored.etag if stored else None
    return storing(reader.store, place, "marker", key, body, etag, f"names {newest.index_keys[0]}")


def _wanted(texts: Sequence[str]) -> Callable[[Place, str], bool]:
    keys = {text for text in texts if "/" in text}
    places = [parse_place(text) for text in texts if text not in keys]

    def wanted(place: Place, key: str) -> bool:
        return key in keys or any(
            place.topic == topic and number in (None, place.partition) for topic, number in places
        )

    return wanted


def _check_found(texts: Sequence[str], found: dict[Place, FoundPartition], reader: OldReader) -> None:
    for text in texts:
        wanted = _wanted([text])
        if not any(wanted(place, data.key) for place, each in found.items() for data in each.data):
            raise NotInArchive(f"{text} is not in {reader.store.url}", why="no file has this name")
