"""What a compaction would do in each partition of an archive, shown before it is carried out."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from archiver.commit.continuation import turn_of
from archiver.commit.driver import Driver
from archiver.commit.lost_markers import lost_marker
from archiver.commit.objects import read_marker
from archiver.commit.operations import Protocol
from archiver.maintain.contents.chunks import OldChunk
from archiver.maintain.contents.compact import Compaction
from archiver.maintain.contents.convert import check_convertible
from archiver.maintain.contents.merge import may_be_merged
from archiver.maintain.partitions import Problem, plan_each, rewritable_partitions
from archiver.maintain.rewrite.layout import OldCatalog, num_catalogs
from archiver.maintain.rewrite.replacing import old_catalogs, old_chunks
from archiver.maintain.rewrite.tree import References, RunLimits, first_run, level_1_lists
from blockgz.encryption.keyring import REMEDY
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format.errors import KeyMissing
from index_format.keys import PartitionKeys
from index_format.marker import CatalogReference, Marker

RUN_CHUNKS = 4096
"""Of the catalogs that one rewrite takes: small chunks have small indexes."""
IsDue = Callable[[Marker, Sequence[CatalogReference]], bool]
"""Whether a partition is worth a closer look, by its marker and its references to catalogs of level 1."""


class PlannedRun(NamedTuple):
    """Neighbouring catalogs that one rewrite replaces."""

    start: int
    end: int
    chunks: int
    chunks_after: int
    catalogs: int
    catalogs_after: int
    moved_bytes: int
    """Of the chunks that are stored again."""


class PartitionPlan(NamedTuple):
    """What is done in one partition."""

    keys: PartitionKeys
    runs: tuple[PlannedRun, ...]
    chunks: int
    """That the partition has, in catalogs and in the tail."""
    catalogs: int
    """Of level 1."""
    encrypted: int
    """Chunks that would be stored again if their keys were at hand."""

    @property
    def name(self) -> str:
        return f"{self.keys.folder}:{self.keys.partition}"

    @property
    def chunks_after(self) -> int:
        return self.chunks - sum(run.chunks - run.chunks_after for run in self.runs)

    @property
    def catalogs_after(self) -> int:
        return self.catalogs - sum(run.catalogs - run.catalogs_after for run in self.runs)

    @property
    def moved_bytes(self) -> int:
        return sum(run.moved_bytes for run in self.runs)


@dataclass(frozen=True)
class CompactPlans:
    """What is done in an archive."""

    partitions: tuple[PartitionPlan, ...]
    untouched: int
    """Partitions in which there is nothing to do."""
    encrypted: int
    """Chunks, of all partitions, that stay as they are because their keys are missing; problems name the partitions."""
    problems: tuple[Problem, ...]

    @property
    def chunks(self) -> int:
        """Of these partitions."""
        return sum(each.chunks for each in self.partitions)

    @property
    def chunks_after(self) -> int:
        return sum(each.chunks_after for each in self.partitions)

    @property
    def moved_bytes(self) -> int:
        return sum(each.moved_bytes for each in self.partitions)


def plan_compaction(
    store: ToolStore, selection: TopicSelection | None, compaction: Compaction, driver: Driver, buffer_bytes: int
) -> CompactPlans:
    """What is done in the selected topics, or in all, as the markers are now; trouble with one partition is a problem.

    Reads catalogs, and indexes where there may be something to do. Raises NoArchiveThere, NotInArchive, UsageError for
    layout seed, and what keeps the archive from being listed.
    """
    partitions = rewritable_partitions(store, selection, "compacted", "leave it as it is")

    def planned(keys: PartitionKeys) -> PartitionPlan | None:
        return driver.run(partition_plan(keys, compaction, buffer_bytes))

    plans, problems = plan_each(partitions, planned)
    meant = tuple(plan for plan in plans if plan.runs)
    encrypted = sum(plan.encrypted for plan in plans)
    untouched = len(partitions) - len(meant) - len(problems)
    problems += [Problem(plan.name, key_missing(plan)) for plan in plans if plan.encrypted]
    return CompactPlans(meant, untouched, encrypted, tuple(problems))


def key_missing(plan: PartitionPlan) -> KeyMissing:
    """The error about chunks that stay as they are for want of keys."""
    return KeyMissing(
        f"{plan.encrypted:,} chunks of {plan.name} stay as they are",
        why="they are encrypted, and not all of their keys were given",
        remedy=REMEDY,
    )


def partition_plan(
    keys: PartitionKeys, compaction: Compaction, buffer_bytes: int, is_due: IsDue = lambda *_: True
) -> Protocol[PartitionPlan | None]:
    """What is done in one partition as its marker is now; None without chunks, and where it is not due.

    Raises what keeps it from being read, and UsageError where a record format cannot be changed.
    """
    limits = RunLimits(RUN_CHUNKS, bytes=buffer_bytes)
    held = yield from read_marker(keys.marker)
    if held is None:
        raise lost_marker(keys)
    if held.marker.next_offset is None:
        return None
    lists = yield from level_1_lists(keys, held.marker, 0, held.marker.next_offset)
    if not is_due(held.marker, [reference for each in lists for reference in each]):
        return None
    turn = yield from turn_of(keys, held.marker)
    runs, encrypted = list[PlannedRun](), 0
    for references in lists:
        catalogs = yield from old_catalogs(keys, references)
        meant = catalogs_in_question(catalogs, compaction)
        for some in _split(catalogs, meant, limits):
            old = yield from old_chunks(keys, some, _nothing)
            run = planned_run(some, old, compaction, turn)
            runs += [run] if run is not None else []
            groups = [group for group in compaction.groups(old) if compaction.is_due(group)]
            encrypted += sum(len(group) for group in groups if not compaction.is_meant(group))
    num_references = sum(len(references) for references in lists)
    return PartitionPlan(keys, tuple(runs), held.marker.num_chunks, num_references, encrypted)


def _nothing() -> Protocol[None]:
    yield from ()


def _split(
    catalogs: Sequence[OldCatalog], meant: Collection[CatalogReference], limits: RunLimits
) -> Iterator[list[OldCatalog]]:
    """The catalogs of one rewrite after another."""
    rest: References = tuple(each.reference for each in catalogs)
    while run := first_run(rest, meant.__contains__, limits):
        rest = rest[rest.index(run[-1]) + 1 :]
        yield [each for each in catalogs if each.reference in run]


def catalogs_in_question(catalogs: Sequence[OldCatalog], compaction: Compaction) -> set[CatalogReference]:
    """Those of one list in which there may be something to do, as far as catalogs tell."""
    if compaction.conversion is not None:
        return {each.reference for each in catalogs}
    places = [(each.reference, entry) for each in catalogs for entry in each.catalog.entries]
    found = set[CatalogReference]()
    for (first, before), (second, after) in pairwise(places):
        if may_be_merged(before, after, compaction.limits):
            found |= {first, second}
    return found


def planned_run(
    catalogs: Sequence[OldCatalog], old: Sequence[OldChunk], compaction: Compaction, turn: int | None = None
) -> PlannedRun | None:
    """What is done with these catalogs, of which `old` are all chunks; those at either end that stay are left out.

    None where nothing is to be done. Raises UsageError where a record format cannot be changed.
    """
    meant = [group for group in compaction.groups(old, turn) if compaction.is_meant(group)]
    if not meant:
        return None
    if compaction.conversion is not None:
        for chunk in (chunk for group in meant for chunk in group):
            check_convertible(chunk.index, compaction.conversion.settings_of(chunk.index))
    first, last = meant[0][0].entry.start_offset, meant[-1][-1].entry.start_offset
    chosen = [each.reference for each in catalogs if first < each.reference.next_offset]
    chosen = [each for each in chosen if each.start_offset <= last]
    start, end = chosen[0].start_offset, chosen[-1].next_offset
    chunks = sum(start <= chunk.entry.start_offset < end for chunk in old)
    chunks_after = chunks - sum(len(group) - 1 for group in meant)
    moved = sum(chunk.entry.bytes for group in meant for chunk in group)
    return PlannedRun(start, end, chunks, chunks_after, len(chosen), num_catalogs(chunks_after), moved)
