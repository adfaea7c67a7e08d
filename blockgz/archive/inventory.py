"""Topics and partitions as JSON values, and what is missing of those in the inventory."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from blockgz.archive.archive import ArchiveReader, SurveyedTopic
from blockgz.archive.partition import ArchivedPartition, Damage, Damaged, prefetched, streamed
from blockgz.errors import BlockgzError, NotInArchive, ObjectMissing
from blockgz.store.writer import Store
from index_format import objects
from index_format.keys import LAYOUTS, TopicFolder, archive_key, inventory_key, parse_topic_folder
from index_format.objects import ArchiveInfo, Inventory, parse_inventory, united

CONCURRENT_LISTINGS = 16
# Tries to mark an inventory that others change at the same time.
MARK_TRIES = 100

# A topic (`orders`, or `orders~2` for one incarnation) and its partitions; None for all of them.
Wanted = tuple[str, Sequence[int] | None]


class MissingPartition(NamedTuple):
    """A partition that was claimed once, and of which the archive holds nothing."""

    topic: str
    incarnation: int
    partition: int

    @property
    def folder(self) -> TopicFolder:
        return TopicFolder(self.topic, self.incarnation)

    def __str__(self) -> str:
        return f"{self.folder}:{self.partition}"

    @property
    def error(self) -> NotInArchive:
        """For people who look at the archive."""
        return NotInArchive(
            f"{self} is missing",
            why="the archive's inventory lists it, but all of it is gone",
            remedy=f"restore its folder; if it is gone for good: archiver forget {self}",
        )


@dataclass(frozen=True)
class Compared:
    """The difference between the inventory and the archive, and the state of the inventory itself."""

    inventory: Inventory | None
    """None if there is none to compare with."""
    is_expected: bool = False
    """True if the archive is of a kind that has an inventory, or may have one."""
    damage: Damage | None = None
    """The inventory is damaged, or missing though the archive declares it."""
    missing: tuple[MissingPartition, ...] = ()
    held: Mapping[TopicFolder, Collection[int]] = field(default_factory=dict)
    """The partitions that the archive holds, by listed folder."""

    @property
    def undone(self) -> list[MissingPartition]:
        """The missing partitions of copies whose replay or restore was undone."""
        known = self.inventory
        return [each for each in self.missing if known and (one := known.of(each.folder)) and one.undone]


def undone_text(count: int) -> str:
    """Return the line about partitions that are gone because their restore was undone."""
    return f"gone: {count} partitions of undone restores; archiver drop TOPIC removes what is left of one"


def undone_topics(store: Store) -> frozenset[str]:
    """Return the topics whose newest incarnation was deleted by undoing what made it."""
    stored = ((store.get(key), key) for key in map(inventory_key, LAYOUTS))
    known = next((parse_inventory(found.body, key) for found, key in stored if found is not None), Inventory())
    newest = {each.topic: each for each in known.incarnations}
    return frozenset(name for name, each in newest.items() if each.undone)


def mark_undone(store: Store, topics: Collection[tuple[str, str]], at: int) -> int:
    """Mark topics, each with its id, as deleted by undoing what made them; return the number of archived partitions."""
    for key in map(inventory_key, LAYOUTS):
        for _ in range(MARK_TRIES):
            if (found := store.get(key)) is None:
                break
            before = parse_inventory(found.body, key)
            meant = [each for each in before.incarnations if (each.topic, each.topic_id) in topics]
            after = united(before, [replace(each, undone=each.undone or at) for each in meant])
            if after == before or store.compare_and_swap(key, objects.encode(after), found.etag) is not None:
                return sum(len(each.partitions) for each in meant)
    return 0


def missing_partitions(
    inventory: Inventory, held: Mapping[TopicFolder, Collection[int]], wanted: Sequence[Wanted] = ()
) -> tuple[MissingPartition, ...]:
    """Return the claimed partitions that are not in `held`, in order; of everything if nothing is named."""
    everything = [each.folder for each in inventory.incarnations]
    asked: list[tuple[TopicFolder, Sequence[int] | None]] = [(each, None) for each in everything]
    if wanted:
        # A plain topic means its newest incarnation, and those right before it that hold the same topic.
        asked = [(each, numbers) for topic, numbers in wanted for each in _incarnations_of(inventory, held, topic)]
    found = set[MissingPartition]()
    for folder, numbers in asked:
        claimed = inventory.of(folder)
        for number in () if claimed is None else claimed.partitions:
            if number not in held.get(folder, ()) and (numbers is None or number in numbers):
                found.add(MissingPartition(*folder, number))
    return tuple(sorted(found))


def _incarnations_of(inventory: Inventory, held: Iterable[TopicFolder], topic: str) -> list[TopicFolder]:
    folder = parse_topic_folder(topic)
    if "~" in topic:
        return [folder]
    known = {each.folder for each in inventory.incarnations} | set(held)
    meant = sorted((each for each in known if each.topic == folder.topic), reverse=True)
    ids = [None if (claimed := inventory.of(each)) is None else claimed.topic_id for each in meant]
    same = 1
    while same < len(meant) and ids[0] is not None and ids[same] == ids[0]:
        same += 1
    return meant[:same]


async def compare(archive: ArchiveReader, wanted: Sequence[Wanted] = ()) -> Compared:
    """Read the inventory, and list the folders that it names; raises NoArchiveThere and the store's errors."""
    await archive.find()
    if archive.other is not None:
        return Compared(None)
    key = inventory_key(archive.layout)
    try:
        inventory = parse_inventory(await archive.reader.get(key, objects.MAX_OBJECT_BYTES), key)
    except ObjectMissing:
        info = await archive_info(archive)
        lost = Damage(key, "it is missing, so it is unknown what the archive held")
        return Compared(None, True, lost if info is not None and info.inventory is True else None)
    except Damaged as error:
        return Compared(None, True, Damage(key, error.reason))
    topics = {parse_topic_folder(topic).topic for topic, _ in wanted}
    meant = [each for each in await archive.find() if not wanted or each.topic in topics]
    listed = prefetched(streamed(meant), archive.partitions_in, cost=lambda _: 1, budget=CONCURRENT_LISTINGS)
    held = dict(zip(meant, [numbers async for numbers in listed], strict=True))
    return Compared(inventory, True, None, missing_partitions(inventory, held, wanted), held)


async def archive_info(archive: ArchiveReader) -> ArchiveInfo | None:
    """Return the archive's identity, or None if it is missing or damaged, which `replayer verify` reports."""
    key = archive_key(archive.layout)
    try:
        return objects.decode(await archive.reader.get(key, objects.MAX_OBJECT_BYTES), ArchiveInfo, key)
    except Damaged:
        return None


def topic_document(name: str, survey: SurveyedTopic) -> dict[str, Any]:
    """Return one topic's partitions, and the sums and bounds over them; no request."""
    partitions = [figures(each) for each in survey.partitions]
    return {
        "topic": name,
        "records": sum(each.num_records for each in survey.partitions),
        "chunks": sum(each.num_chunks for each in survey.partitions),
        "bytes": sum(each.num_bytes for each in survey.partitions),
        "min_timestamp_ms": known(min, [each["min_timestamp_ms"] for each in partitions]),
        "max_timestamp_ms": known(max, [each["max_timestamp_ms"] for each in partitions]),
        "partitions": partitions,
        "damaged": damaged_document(survey.damaged),
    }


def known(bound: Any, numbers: Sequence[int | None]) -> int | None:
    """Return the `min` or `max` of the numbers that are not None, or None without any."""
    found: int | None = bound((each for each in numbers if each is not None), default=None)
    return found


def damaged_document(damaged: Mapping[int, BlockgzError]) -> list[dict[str, Any]]:
    """Return the partitions that cannot be opened, and why."""
    return [{"partition": number, "error": error.reason} for number, error in damaged.items()]


def figures(partition: ArchivedPartition) -> dict[str, Any]:
    """Return sums of a partition, and bounds in ms of the timestamps that there are, as JSON; no request."""
    timed = [span for span in partition.spans if span.max_timestamp >= 0]
    is_begun = partition.marker.next_offset is not None
    return {
        "partition": partition.partition,
        "records": partition.num_records,
        "chunks": partition.num_chunks,
        "bytes": partition.num_bytes,
        "start_offset": partition.start_offset if is_begun else None,
        "next_offset": partition.marker.next_offset,
        "min_timestamp_ms": min((max(span.min_timestamp, 0) for span in timed), default=None),
        "max_timestamp_ms": max((span.max_timestamp for span in timed), default=None),
        "pruned_before": partition.floor or None,
    }


async def partition_document(partition: ArchivedPartition) -> dict[str, Any]:
    """Return the facts about a partition; reads all catalogs, which hold its older gaps. Raises as `gaps` does."""
    marker = partition.marker
    return figures(partition) | {
        "gaps": msgspec.to_builtins(await partition.gaps()),
        "layout": partition.keys.layout,
        "folder": str(partition.keys.folder),
        "marker": partition.keys.marker,
        "last_chunk_index": marker.last_chunk_index,
        "catalogs": [len(level) for level in marker.catalogs],
        "archive_id": marker.archive_id,
        "topic_id": marker.topic_id,
        "group_id": marker.group_id,
        "epoch": marker.epoch,
        "writer": marker.writer,
        "leader_epoch": marker.leader_epoch,
        "successor": marker.successor,
        "continues": msgspec.to_builtins(marker.continues) if marker.continues else None,
    }
