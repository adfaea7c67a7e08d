"""Plan a repair of an old archive or of partitions of a current one, and carry it out."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.commit.archive import layout_of
from archiver.importing import OldReader
from archiver.maintain.planned import Problem
from blockgz.errors import BlockgzError, MalformedObject, NoArchiveThere, NotInArchive, StoreError, UsageError
from blockgz.store.writer import ContentTag, ListedObject, ToolStore
from index_format.keys import (
    LAYOUTS,
    ObjectKey,
    PartitionKeys,
    SeedLayoutKeys,
    TopicFolder,
    parse_key,
    parse_topic_folder,
    partition_folders,
    topic_home,
)
from index_format.marker import Marker, decode_marker
from index_format.old_files import indexed_file, scan_file
from index_format.old_objects import (
    FoundData,
    FoundPartition,
    OldPlace,
    encode_old_index,
    group_by_partition,
    has_current_objects,
    marker_offset,
)


@dataclass(frozen=True)
class RepairStep:
    """One object that would be stored."""

    where: str
    """`orders:3`."""
    what: str
    """`index` or `marker`."""
    key: str
    detail: str
    carry_out: Callable[[], None]


@dataclass(frozen=True)
class RepairPlan:
    """Steps in the order in which they are taken; `problems` are what cannot be repaired."""

    steps: tuple[RepairStep, ...] = ()
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()

    def __add__(self, other: "RepairPlan") -> "RepairPlan":
        return RepairPlan(self.steps + other.steps, self.notes + other.notes, self.problems + other.problems)


@dataclass(frozen=True)
class RepairTarget:
    """One partition of a current archive, or a single chunk of it if `key` is set."""

    keys: PartitionKeys
    key: ObjectKey | None = None

    def __str__(self) -> str:
        return f"{self.keys.folder}:{self.keys.partition}"


def targets(store: ToolStore, layout: str, texts: Sequence[str]) -> list[RepairTarget]:
    """Return the partitions or chunks that `orders`, `orders:3`, `orders~2:0` or a key of data refers to, each once.

    Raises UsageError or NotInArchive.
    """
    found: list[RepairTarget] = []
    for text in texts:
        if "/" in text:
            key = parse_key(layout, text)
            if key is None or key.level:
                raise UsageError(
                    f"{text[:120]!r} is not the key of a chunk",
                    remedy="give its path below the archive's address",
                )
            found.append(RepairTarget(LAYOUTS[layout](key.folder, key.partition), key))
            continue
        topic, partition = parse_place(text)
        folder = parse_topic_folder(topic)
        here = partition_folders(layout, folder, store.folders(topic_home(layout, folder)))
        chosen = [keys for keys in here if partition in (None, keys.partition)]
        if not chosen:
            raise NotInArchive(
                f"{text} is not in the archive",
                why=f"{store.url} has no folder of it",
                remedy="replayer ls shows what is archived",
            )
        found += [RepairTarget(keys) for keys in chosen]
    return list({(str(each), each.key and each.key.key): each for each in found}.values())


def later_folders(store: ToolStore, named: Sequence[RepairTarget]) -> RepairPlan:
    """Return notes on folders in which named partitions continue after a truncation, if these are not named."""
    names = {str(each) for each in named}
    notes = []
    for target in named:
        later = None if target.key else _later_folder(store, target.keys)
        if later is not None and str(RepairTarget(later)) not in names:
            notes.append(f"{target}: the partition continues in {later.folder}: name {RepairTarget(later)} for that")
    return RepairPlan(notes=tuple(notes))


def _later_folder(store: ToolStore, keys: PartitionKeys) -> PartitionKeys | None:
    try:
        here = _marker(store, keys)
        if here is None or here.successor is None:
            return None
        later = LAYOUTS[keys.layout](parse_topic_folder(here.successor), keys.partition)
        there = _marker(store, later)
    except BlockgzError:
        return None  # a damaged marker is a matter of the repair itself
    return later if there and there.continues and there.continues.folder == str(keys.folder) else None


def _marker(store: ToolStore, keys: PartitionKeys) -> Marker | None:
    stored = store.get(keys.marker)
    return decode_marker(stored.body, keys.marker) if stored else None


def parse_place(text: str) -> tuple[str, int | None]:
    """Topic and partition of `orders` or `orders:3`; raises UsageError."""
    topic, separator, partition = text.partition(":")
    if separator and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
        raise UsageError(f"{text[:120]!r} names no partition", remedy="write TOPIC or TOPIC:PARTITION")
    return topic, int(partition) if separator else None


def objects_of(store: ToolStore, keys: PartitionKeys) -> list[tuple[ObjectKey, ListedObject]]:
    """Return the objects of all chunks of a partition, without catalogs."""
    seed = keys.layout == "seed"
    found = [(parse_key(keys.layout, listed.key), listed) for listed in store.list("" if seed else keys.home)]
    return [
        (key, listed)
        for key, listed in found
        if key is not None
        and not key.level
        and (key.folder.topic, key.partition) == (keys.folder.topic, keys.partition)
        and (seed or key.folder == keys.folder)
    ]


def carry_out(plan: RepairPlan) -> dict[int, Problem]:
    """Take every step; what fails is a problem, by the step's place in the plan, and the other steps are taken."""
    problems = {}
    for number, step in enumerate(plan.steps):
        try:
            step.carry_out()
        except BlockgzError as error:
            problems[number] = Problem(step.key, error)
    return problems


def storing(
    store: ToolStore, where: object, what: str, key: str, body: bytes, expected: ContentTag | None, detail: str
) -> RepairPlan:
    """Plan one step: store an object if there is none, or in place of version `expected` of a damaged one."""

    def store_it() -> None:
        if expected is None:
            stored = store.put_if_absent(key, body, str(uuid.uuid4()))
        else:
            stored = store.compare_and_swap(key, body, expected) is not None
        if not stored:
            raise StoreError(f"{key} has changed", why="another process wrote to it", remedy="run the repair again")

    state = "missing" if expected is None else "damaged"
    return RepairPlan((RepairStep(str(where), what, key, f"{state}; {detail}", store_it),))


PlanOld = Callable[[OldReader, Sequence[str]], RepairPlan]
PlanOne = Callable[[ToolStore, RepairTarget, int], RepairPlan]
"""Plans one partition, given the bytes of a block at most."""


def plan_repair(
    reader: OldReader, places: Sequence[str], plan_old: PlanOld, plan_one: PlanOne, *, follows: bool = False
) -> RepairPlan:
    """Plan an old archive by `plan_old`, or each partition of a current one that the places name by `plan_one`.

    `follows`: the plan of a partition is for the folder that it is in now. Raises NoArchiveThere, or UsageError.
    """
    store = reader.store
    layout = _layout(store)
    if layout is None:
        return plan_old(reader, places)
    named = targets(store, layout, places)
    plans = (plan_one(store, target, reader.max_block_bytes) for target in named)
    return sum(plans, RepairPlan() if follows else later_folders(store, named))


def not_for_old(reader: OldReader, places: Sequence[str]) -> RepairPlan:  # noqa: ARG001
    """Raise UsageError for an old archive."""
    raise UsageError(
        "this is an archive of kafka-connect-s3",
        why="it records no gaps and has no writer",
        remedy="set -a to an archive of this program",
    )


def _layout(store: ToolStore) -> str | None:
    try:
        return layout_of(store)
    except NoArchiveThere as error:
        if has_current_objects(f"{folder}/" for folder in store.folders("")):
            raise NoArchiveThere(
                error.what,
                why="it has the folders of an archive, but no _archive.json",
                remedy="restore _archive.json: the archive_id in it is the one in every index",
            ) from error
        return None


def plan_old_indexes(reader: OldReader, texts: Sequence[str]) -> RepairPlan:
    """Plan indexes for the named files or partitions that have none that can be used."""
    sizes = {listed.key: listed.size for listed in reader.store.list("")}
    found, plan = group_by_partition(sizes), RepairPlan()
    matches = _matcher(texts)
    for place, partition in found.items():
        for data in partition.data:
            if matches(place, data.key):
                plan += _index(reader, place, data, sizes[data.key])
    _check_found(texts, found, reader)
    return plan


def plan_old_markers(reader: OldReader, texts: Sequence[str]) -> RepairPlan:
    """Plan markers of the named partitions if they have none or it names no file."""
    found, plan = group_by_partition(listed.key for listed in reader.store.list("")), RepairPlan()
    matches = _matcher(texts)
    for place, partition in found.items():
        if matches(place, ""):
            plan += _old_marker(reader, place, partition)
    _check_found(texts, found, reader)
    return plan


def _index(reader: OldReader, place: OldPlace, data: FoundData, size: int) -> RepairPlan:
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


def _old_marker(reader: OldReader, place: OldPlace, partition: FoundPartition) -> RepairPlan:
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


def _matcher(texts: Sequence[str]) -> Callable[[OldPlace, str], bool]:
    keys = {text for text in texts if "/" in text}
    places = [parse_place(text) for text in texts if text not in keys]

    def matches(place: OldPlace, key: str) -> bool:
        return key in keys or any(
            place.topic == topic and number in (None, place.partition) for topic, number in places
        )

    return matches


def _check_found(texts: Sequence[str], found: dict[OldPlace, FoundPartition], reader: OldReader) -> None:
    for text in texts:
        matches = _matcher([text])
        if not any(matches(place, data.key) for place, each in found.items() for data in each.data):
            raise NotInArchive(f"{text} is not in {reader.store.url}", why="no file has this name")
