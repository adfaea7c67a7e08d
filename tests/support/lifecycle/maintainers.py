"""Maintainers of a simulated archive: the product's rewrites with simple contents, its prune and garbage collection."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.operations import Get, Protocol
from archiver.errors import RewriteOvertaken, RewriteRefused
from archiver.maintain import gc
from archiver.maintain.prune import prune
from archiver.maintain.rewrite.chunks import EmptiedRun, NewChunk, OldChunk, Replacement, RewrappedChunk, size_and_hash
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.rewrite.replace import Rewrite, rewrite
from archiver.maintain.rewrite.tree import CatalogRun as Neighbours
from archiver.maintain.rewrite.tree import level_1_lists
from blockgz.errors import BlockgzError, ObjectMissing, StoreFull
from index_format import objects
from index_format.marker import CatalogReference, Marker
from index_format.objects import DataObject, Erased, fields_of_blocks
from index_format.records import Record
from tests.support.chunks import finished_chunk
from tests.support.lifecycle.blocking import as_steps
from tests.support.lifecycle.monitor import records_of
from tests.support.lifecycle.world import GRACE, PATIENCE, Partition, World
from tests.support.simulator import Run

KINDS = ("merge", "convert", "erase", "prune", "rewrap")


@dataclass(frozen=True)
class Maintenance:
    """What a maintainer is about."""

    kind: str
    is_patient: bool = False
    """Whether it leaves a living one alone, takes as much as it can, and never changes its mind."""
    is_all: bool = False
    """Whether a prune takes all that is in catalogs."""


def maintainer(world: World, partition: Partition, what: Maintenance) -> Run:
    """One rewrite of random neighbours, or one prune; gives how it ended."""
    rng = world.rng
    lease = PATIENCE if what.is_patient else rng.choice((0.0, PATIENCE / 8, PATIENCE))
    lease_ms = round(lease * 1000)
    changes_mind = not what.is_patient and rng.random() < 1 / 12
    keys = partition.identity.keys
    try:
        make = partial(CONTENTS[what.kind], world, partition)
        check = partial(_check, changes_mind)
        how = Rewrite(what.kind, lambda old: iter(make(old)), check, is_repacked=what.kind == "merge")
        if what.kind == "prune":
            floor = yield from _some_floor(rng, partition, what)
            if floor is None:
                return RewriteOutcome.NOTHING._value_
            return (yield from prune(keys, floor, how, lease_ms=lease_ms))._value_
        choose = partial(_some_neighbours, rng, partition, what)
        return (yield from rewrite(keys, choose, how, lease_ms=lease_ms))._value_
    except StoreFull:
        return "aborted"
    except RewriteOvertaken:
        return "overtaken"
    except RewriteRefused:
        if partition.monitor.strict:
            raise
        return "refused"


def _check(changes_mind: bool, old: Sequence[OldChunk], new: NewChunk | EmptiedRun) -> None:
    """That the records are the same is the monitor's business."""
    if changes_mind:
        raise StoreFull("there is no space left")


def _some_floor(rng: random.Random, partition: Partition, what: Maintenance) -> Protocol[int | None]:
    """Where a catalog of level 1 ends, or a chunk or block of one begins, as the monitor saw the chain last."""
    yield Get(partition.identity.keys.marker)
    references = level_1_of(partition)
    ends = [each["next_offset"] for each in references]
    starts = [start for each in references for start in partition.monitor.starts_in(each)]
    above = [offset for offset in (*ends, *starts) if offset > partition.monitor.floor]
    if not above:
        return None
    return max(above) if what.is_all else rng.choice(above)


def level_1_of(partition: Partition) -> list[dict[str, int]]:
    """The references to catalogs of level 1, wherever in the tree."""
    marker = partition.monitor.marker
    return partition.monitor.level_1(marker) if marker is not None else []


def _some_neighbours(
    rng: random.Random, partition: Partition, what: Maintenance, marker: Marker
) -> Protocol[Neighbours | None]:
    assert marker.next_offset is not None
    lists = yield from level_1_lists(partition.identity.keys, marker, 0, marker.next_offset)
    if what.kind == "erase" and what.is_patient:
        lists = [each for each in lists if _holds_secrets(partition, each)]
    if not lists:
        return None
    references = rng.choice(lists)
    if what.is_patient or rng.random() < 0.3:
        return Neighbours(tuple(references))
    start = rng.randrange(len(references))
    return Neighbours(tuple(references[start : rng.randint(start + 1, len(references))]))


def _holds_secrets(partition: Partition, references: Sequence[CatalogReference]) -> bool:
    left = partition.monitor.secrets_left()
    return any(each.start_offset <= offset < each.next_offset for each in references for offset in left)


def _records(world: World, partition: Partition, chunk: OldChunk) -> tuple[list[Record], list[int]]:
    """A chunk's records, and the offsets that were erased in it."""
    key = partition.identity.keys.chunks + chunk.index.data.name
    kept = world.store.objects.get(key)
    if kept is None:
        raise ObjectMissing(key)
    said = records_of(objects.encode(chunk.index), kept.body)
    log = {record.offset: record for record in partition.log.records}
    there = [log[offset] for offset, what in sorted(said.items()) if isinstance(what, bytes)]
    assert all(record.value == said[record.offset] for record in there)
    return there, [offset for offset, what in said.items() if what == "erased"]


def _new_chunk(old: Sequence[OldChunk], records: Sequence[Record], erased: Sequence[int]) -> NewChunk | EmptiedRun:
    start, end, first = old[0].entry.start_offset, old[-1].entry.next_offset, old[0].index
    if not records:
        return EmptiedRun(start, end)
    chunk = finished_chunk(first.record_format, tuple(records), start, end)
    index = replace(
        first,
        start_offset=start,
        next_offset=end,
        epoch=max(each.index.epoch for each in old),
        timestamp_type=chunk.timestamp_type,
        data=DataObject(first.data.name, *size_and_hash(chunk.body)),
        gaps=tuple(gap for each in old for gap in each.index.gaps if gap.start >= each.entry.start_offset),
        erased=tuple(_ranges(erased)) or UNSET,
        **fields_of_blocks(chunk.blocks),
    )
    return NewChunk(index, chunk.body)


def _ranges(offsets: Sequence[int]) -> Iterator[Erased]:
    cuts = [0, *(n for n, (a, b) in enumerate(pairwise(sorted(offsets)), 1) if b != a + 1), len(offsets)]
    for start, end in pairwise(cuts):
        if start < end:
            yield Erased(sorted(offsets)[start], sorted(offsets)[end - 1] + 1)


def _merged(world: World, partition: Partition, old: Sequence[OldChunk]) -> Replacement:
    """All neighbours between which there is no gap become one."""
    groups: list[list[OldChunk]] = []
    for chunk in old:
        if groups and groups[-1][-1].entry.next_offset == chunk.entry.start_offset:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return [group[0] if len(group) == 1 else _joined(world, partition, group) for group in groups]


def _joined(world: World, partition: Partition, old: Sequence[OldChunk]) -> NewChunk | EmptiedRun:
    parts = [_records(world, partition, chunk) for chunk in old]
    return _new_chunk(old, [each for records, _ in parts for each in records], [n for _, gone in parts for n in gone])


def _converted(world: World, partition: Partition, old: Sequence[OldChunk]) -> Replacement:
    return [_joined(world, partition, [chunk]) for chunk in old]


def _erased(world: World, partition: Partition, old: Sequence[OldChunk]) -> Replacement:
    """The secrets go; a chunk without any stays as it is."""
    secrets = partition.monitor.truth.secrets
    result: list[OldChunk | NewChunk | EmptiedRun] = []
    for chunk in old:
        records, gone = _records(world, partition, chunk)
        more = [record.offset for record in records if record.offset in secrets]
        left = [record for record in records if record.offset not in secrets]
        result.append(_new_chunk([chunk], left, [*gone, *more]) if more else chunk)
    return result


def _cut(world: World, partition: Partition, old: Sequence[OldChunk]) -> Replacement:
    """What a prune leaves of a chunk."""
    (chunk,) = old
    records, gone = _records(world, partition, chunk)
    start = chunk.entry.start_offset
    left = [record for record in records if record.offset >= start]
    return [_new_chunk(old, left, [offset for offset in gone if offset >= start])]


def _rewrapped(world: World, partition: Partition, old: Sequence[OldChunk]) -> Replacement:
    return [RewrappedChunk(chunk.entry, chunk.index) for chunk in old]


CONTENTS: dict[str, Callable[[World, Partition, Sequence[OldChunk]], Replacement]] = {
    "merge": _merged,
    "convert": _converted,
    "erase": _erased,
    "rewrap": _rewrapped,
    "prune": _cut,
}


def collector(world: World) -> Run:
    """`archiver gc`: what cannot be read or deleted is left for the next run."""

    def work(store: gc.ToolStore) -> str:
        try:
            plan = gc.plan_sweep(store, (), GRACE, wait=lambda *_: None)
        except BlockgzError:
            return "not answered"
        plan.carry_out()
        world.count_more("objects deleted", plan.deleted or 0)
        return "troubled" if plan.problems else "done"

    return (yield from as_steps(work))
