"""What a repair would do, and doing it."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.maintain.planned import Problem
from blockgz.errors import NotInArchive, StoreError, UsageError
from blockgz.store.writer import ContentTag, ListedObject, ToolStore
from index_format.errors import BlockgzError
from index_format.keys import (
    LAYOUTS,
    ObjectKey,
    PartitionKeys,
    parse_key,
    parse_topic_folder,
    partition_folders,
    topic_home,
)
from index_format.marker import Marker, decode_marker


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
    """One partition of a current archive; `key` where a single chunk of it is meant."""

    keys: PartitionKeys
    key: ObjectKey | None = None

    def __str__(self) -> str:
        return f"{self.keys.folder}:{self.keys.partition}"


def targets(store: ToolStore, layout: str, texts: Sequence[str]) -> list[RepairTarget]:
    """What `orders`, `orders:3`, `orders~2:0` or the key of a chunk's data means, each once.

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
    """Notes on folders that named partitions go on in, their logs having been truncated, and that are not named."""
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
    """Every chunk's object of a partition; catalogs are left out."""
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
    """One step: store an object where there is none, or in the place of version `expected` of a damaged one."""

    def store_it() -> None:
        if expected is None:
            stored = store.put_if_absent(key, body, str(uuid.uuid4()))
        else:
            stored = store.compare_and_swap(key, body, expected) is not None
        if not stored:
            raise StoreError(f"{key} has changed", why="another process wrote to it", remedy="run the repair again")

    state = "missing" if expected is None else "damaged"
    return RepairPlan((RepairStep(str(where), what, key, f"{state}; {detail}", store_it),))
