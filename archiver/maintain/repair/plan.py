"""Plan a repair of an old archive or of partitions of a current one, and carry it out."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from archiver.commit.archive import layout_of
from archiver.importing import OldReader
from archiver.maintain.planned import Cell, PlannedCommand, Problem
from blockgz.errors import BlockgzError, MalformedObject, NoArchiveThere, NotInArchive, StoreError, UsageError
from blockgz.store.writer import ContentTag, ListedObject, StoredObject, ToolStore
from index_format.keys import (
    LAYOUTS,
    ObjectKey,
    PartitionKeys,
    SeedLayoutKeys,
    TopicFolder,
    TopicPartition,
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


@dataclass
class RepairPlan(PlannedCommand):
    """Steps in the order in which they are taken; `problems` are what cannot be repaired."""

    nothing = "nothing to store"
    columns = ()

    steps: list[RepairStep] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    failed: dict[int, Problem] = field(default_factory=dict)
    """What failed when it was carried out, by the step's place: several steps may be about one key."""
    to_agree: str = "Store {count:,} objects?"

    def __iadd__(self, other: "RepairPlan") -> "RepairPlan":
        self.steps += other.steps
        self.notes += other.notes
        self.problems += other.problems
        return self

    @property
    def question(self) -> str | None:
        return self.to_agree.format(count=len(self.steps)) if self.steps else None

    def rows(self) -> list[tuple[Cell, ...]]:
        return [(step.where, step.what, step.key, step.detail) for step in self.steps]

    def carry_out(self) -> None:
        for number, step in enumerate(self.steps):
            try:
                step.carry_out()
            except BlockgzError as error:
                self.failed[number] = Problem(step.key, error)
        self.problems += self.failed.values()

    def summary(self) -> str | None:
        return f"stored {len(self.steps) - len(self.failed):,} of {len(self.steps):,}" if self.steps else None

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        steps = [
            {
                "partition": step.where,
                "what": step.what,
                "key": step.key,
                "detail": step.detail,
                "done": not dry_run and number not in self.failed,
            }
            for number, step in enumerate(self.steps)
        ]
        return {"dry_run": dry_run, "steps": steps, "notes": self.notes}

    def num_tried(self, *, dry_run: bool) -> int | None:  # noqa: ARG002
        return len(self.problems) if len(self.failed) == len(self.steps) else None


@dataclass(frozen=True)
class RepairTarget:
    """One partition of a current archive, or a single chunk of it if `key` is set, and how its chunks are read."""

    store: ToolStore
    keys: PartitionKeys
    max_block_bytes: int
    encrypt: str | None = None
    """The setting that says where the keys of encrypted chunks are."""
    key: ObjectKey | None = None

    def __str__(self) -> str:
        return str(self.keys)

    def at(self, keys: PartitionKeys) -> "RepairTarget":
        """Return the same partition in another folder."""
        return RepairTarget(self.store, keys, self.max_block_bytes, self.encrypt)


def targets(
    store: ToolStore, layout: str, texts: Sequence[str], max_block_bytes: int, encrypt: str | None = None
) -> list[RepairTarget]:
    """Return the partitions or chunks that `orders`, `orders:3`, `orders~2:0` or a key of data refers to, each once."""
    found: list[RepairTarget] = []
    for text in texts:
        if "/" in text:
            key = parse_key(layout, text)
            if key is None or key.level:
                raise UsageError(
                    f"{text[:120]!r} is not the key of a chunk", remedy="give its path below the archive's address"
                )
            keys = LAYOUTS[layout](key.folder, key.partition)
            found.append(RepairTarget(store, keys, max_block_bytes, encrypt, key))
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
        found += [RepairTarget(store, keys, max_block_bytes, encrypt) for keys in chosen]
    return list({(str(each), each.key and each.key.key): each for each in found}.values())


def later_folders(named: Sequence[RepairTarget]) -> RepairPlan:
    """Return notes on folders in which named partitions continue after a truncation, if these are not named."""
    names = {str(each) for each in named}
    plan = RepairPlan()
    for target in named:
        later = None if target.key else _later_folder(target)
        if later is not None and str(later) not in names:
            plan.notes.append(f"{target}: the partition continues in {later.keys.folder}: name {later} for that")
    return plan


def _later_folder(target: RepairTarget) -> RepairTarget | None:
    keys = target.keys
    try:
        _, here = stored_marker(target.store, keys)
        if here is None or here.successor is None:
            return None
        later = LAYOUTS[keys.layout](parse_topic_folder(here.successor), keys.partition)
        _, there = stored_marker(target.store, later)
    except BlockgzError:
        return None  # whatever it is, it is a matter of the repair itself
    return target.at(later) if there and there.continues and there.continues.folder == str(keys.folder) else None


def stored_marker(store: ToolStore, keys: PartitionKeys) -> tuple[StoredObject | None, Marker | None]:
    """Return what is stored as the marker of a partition, and the marker itself unless it is damaged.

    Raises UnsupportedVersion for one that is not this release's to touch.
    """
    stored = store.get(keys.marker)
    try:
        return stored, decode_marker(stored.body, keys.marker) if stored else None
    except MalformedObject:
        return stored, None


def parse_place(text: str) -> tuple[str, int | None]:
    """Return topic and partition of `orders` or `orders:3`; raises UsageError."""
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


def storing(
    store: ToolStore, where: object, what: str, key: str, body: bytes, expected: ContentTag | None, detail: str
) -> RepairStep:
    """Return the step that stores an object if there is none, or in place of version `expected` of a damaged one."""

    def store_it() -> None:
        if expected is None:
            stored = store.put_if_absent(key, body, str(uuid.uuid4()))
        else:
            stored = store.compare_and_swap(key, body, expected) is not None
        if not stored:
            raise StoreError(f"{key} has changed", why="another process wrote to it", remedy="run the repair again")

    state = "missing" if expected is None else "damaged"
    return RepairStep(str(where), what, key, f"{state}; {detail}", store_it)


PlanOld = Callable[[OldReader, Sequence[str]], RepairPlan]
PlanOne = Callable[[RepairTarget], RepairPlan]


def plan_repair(
    reader: OldReader,
    places: Sequence[str],
    plan_old: PlanOld,
    plan_one: PlanOne,
    encrypt: str | None = None,
    *,
    follows: bool = False,
) -> RepairPlan:
    """Plan an old archive by `plan_old`, or each partition of a current one that the places name by `plan_one`.

    `follows`: the plan of a partition is for the folder that it is in now. Raises NoArchiveThere, or UsageError.
    """
    layout = _layout(reader.store)
    if layout is None:
        return plan_old(reader, places)
    named = targets(reader.store, layout, places, reader.max_block_bytes, encrypt)
    plan = RepairPlan() if follows else later_folders(named)
    for target in named:
        plan += plan_one(target)
    return plan


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
                _plan_index(reader, place, data, sizes[data.key], plan)
    _check_found(texts, found, reader)
    return plan


def plan_old_markers(reader: OldReader, texts: Sequence[str]) -> RepairPlan:
    """Plan markers of the named partitions if they have none or it names no file."""
    found, plan = group_by_partition(listed.key for listed in reader.store.list("")), RepairPlan()
    matches = _matcher(texts)
    for place, partition in found.items():
        if matches(place, ""):
            _plan_marker(reader, place, partition, plan)
    _check_found(texts, found, reader)
    return plan


def _plan_index(reader: OldReader, place: TopicPartition, data: FoundData, size: int, plan: RepairPlan) -> None:
    bodies = {key: stored for key in data.index_keys if (stored := reader.store.get(key)) is not None}
    known = indexed_file(data, size, {key: stored.body for key, stored in bodies.items()})
    if known is not None and known.is_indexed:
        return
    file = reader.run(scan_file(data, size, reader.old_format, reader.max_block_bytes))
    if file.damage is not None or not file.blocks:
        why = "; ".join(file.notes) if file.blocks else "it has no complete member"
        plan.problems.append(Problem(data.key, MalformedObject(f"{data.key} cannot be indexed completely", why=why)))
        return
    old = bodies.get(data.own_index_key)
    detail = f"offsets [{file.first_offset}..{file.next_offset}), counted"
    body, etag = encode_old_index(file.blocks), old.etag if old else None
    plan.steps.append(storing(reader.store, place, "index", data.own_index_key, body, etag, detail))


def _plan_marker(reader: OldReader, place: TopicPartition, partition: FoundPartition, plan: RepairPlan) -> None:
    indexed = [data for data in partition.data if data.index_keys]
    if not indexed:
        error = MalformedObject(
            f"{place} has no index for a marker to name", remedy=f"rebuild them first: archiver repair index {place}"
        )
        plan.problems.append(Problem(str(place), error))
        return
    newest = indexed[-1]
    key = partition.marker_key or SeedLayoutKeys(TopicFolder(place.topic), place.partition).ancestor_marker
    stored = reader.store.get(key)
    named = marker_offset(stored.body) if stored is not None else None
    if named is not None and any(data.first_offset == named for data in partition.data):
        plan.notes.append(f"{key} names a chunk that exists; nothing to repair")
        return
    body = (reader.store.prefix + newest.index_keys[0]).encode()
    etag = stored.etag if stored else None
    plan.steps.append(storing(reader.store, place, "marker", key, body, etag, f"names {newest.index_keys[0]}"))


def _matcher(texts: Sequence[str]) -> Callable[[TopicPartition, str], bool]:
    keys = {text for text in texts if "/" in text}
    places = [parse_place(text) for text in texts if text not in keys]

    def matches(place: TopicPartition, key: str) -> bool:
        return key in keys or any(
            place.topic == topic and number in (None, place.partition) for topic, number in places
        )

    return matches


def _check_found(texts: Sequence[str], found: dict[TopicPartition, FoundPartition], reader: OldReader) -> None:
    for text in texts:
        matches = _matcher([text])
        if not any(matches(place, data.key) for place, each in found.items() for data in each.data):
            raise NotInArchive(f"{text} is not in {reader.store.url}", why="no file has this name")
