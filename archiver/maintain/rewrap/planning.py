"""Which keys of an archive are wrapped with another master key than the newest, shown before they are wrapped again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archiver.commit.driver import Driver
from archiver.commit.lost_markers import lost_marker
from archiver.commit.objects import read_marker
from archiver.commit.operations import Protocol
from archiver.maintain.contents.chunks import OldChunk
from archiver.maintain.contents.offset_ranges import OffsetRanges
from archiver.maintain.partitions import Problem, plan_each, rewritable_partitions
from archiver.maintain.rewrite.replacing import chunks_of, old_catalogs
from archiver.maintain.rewrite.tree import Run, RunLimits, first_run, level_1_lists
from blockgz.encryption.keyring import Keyring
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format.chunk_index import WrappedKey
from index_format.errors import KeyMissing
from index_format.keys import PartitionKeys
from index_format.marker import CatalogReference

RUN_CHUNKS = 4096
"""Of the catalogs that one rewrite takes: indexes alone are stored again."""


@dataclass(frozen=True)
class PartitionPlan:
    """What is wrapped again in one partition."""

    keys: PartitionKeys
    encrypted: int
    """Chunks."""
    old: int
    """Chunks of these whose key is wrapped with another master key."""
    ids: frozenset[str]
    """Of these other master keys."""
    runs: tuple[Run, ...]
    """Catalogs that hold such chunks."""
    tail: OffsetRanges
    """Offsets of such chunks in the tail."""
    has_old_tail_key: bool

    @property
    def name(self) -> str:
        return f"{self.keys.folder}:{self.keys.partition}"


class RewrapPlans(NamedTuple):
    """What is wrapped again in an archive."""

    partitions: tuple[PartitionPlan, ...]
    untouched: int
    """Partitions in which there is nothing to do."""
    problems: tuple[Problem, ...]

    @property
    def old(self) -> int:
        """Chunks, of all partitions."""
        return sum(each.old for each in self.partitions)


def plan_rewrapping(
    store: ToolStore, selection: TopicSelection | None, keyring: Keyring, driver: Driver
) -> RewrapPlans:
    """What is wrapped again in the selected topics, or in all; trouble with one partition is a problem.

    Reads all indexes. Raises NoArchiveThere, NotInArchive, UsageError for layout seed, and what keeps the archive from
    being listed.
    """
    partitions = rewritable_partitions(store, selection, "rewrapped", "leave it as it is: nothing in it is encrypted")

    def planned(keys: PartitionKeys) -> PartitionPlan | None:
        plan = driver.run(partition_plan(keys, keyring))
        return plan if plan.ids else None

    plans, problems = plan_each(partitions, planned)
    return RewrapPlans(tuple(plans), len(partitions) - len(plans) - len(problems), tuple(problems))


def partition_plan(keys: PartitionKeys, keyring: Keyring) -> Protocol[PartitionPlan]:
    """What is wrapped again in one partition; raises KeyMissing where that takes a key which is not at hand."""
    found = _Found(keys, keyring)
    held = yield from read_marker(keys.marker)
    if held is None:
        raise lost_marker(keys)
    if held.marker.next_offset is None:
        return found.plan((), OffsetRanges(), has_old_tail_key=False)
    runs = list[Run]()
    for references in (yield from level_1_lists(keys, held.marker, 0, held.marker.next_offset)):
        meant = set[CatalogReference]()
        for each in (yield from old_catalogs(keys, references)):
            chunks = yield from chunks_of(keys, each.catalog.entries)
            meant |= {each.reference} if list(found.old_of(chunks)) else set()
        rest = references
        while run := first_run(rest, meant.__contains__, RunLimits(RUN_CHUNKS)):
            rest = rest[rest.index(run[-1]) + 1 :]
            runs.append(Run(run))
    tail = found.old_of((yield from chunks_of(keys, held.marker.tail)))
    spans = OffsetRanges(range(each.entry.start_offset, each.entry.next_offset) for each in tail)
    tail_key = held.marker.tail_key
    return found.plan(tuple(runs), spans, has_old_tail_key=bool(tail_key and found.is_old(tail_key)))


class _Found:
    """What is found in one partition."""

    def __init__(self, keys: PartitionKeys, keyring: Keyring) -> None:
        self._keys, self._keyring = keys, keyring
        self._encrypted = self._old = 0
        self._ids = set[str]()

    def is_old(self, wrapped: WrappedKey) -> bool:
        """Whether a key is wrapped with another master key than the newest; raises KeyMissing."""
        if wrapped.id == self._keyring.newest_id:
            return False
        if not self._keyring.has(wrapped):
            raise KeyMissing(
                f"the keys of {self._keys.folder}:{self._keys.partition} cannot be wrapped again",
                why=f"some are wrapped with the key {wrapped.id}, which was not given",
                remedy="add the key to --keys, before the newest",
            )
        self._ids.add(wrapped.id)
        return True

    def old_of(self, chunks: Sequence[OldChunk]) -> Iterator[OldChunk]:
        """Those whose key is such a one."""
        for chunk in chunks:
            if chunk.index.encryption:
                self._encrypted += 1
                if self.is_old(chunk.index.encryption.key):
                    self._old += 1
                    yield chunk

    def plan(self, runs: tuple[Run, ...], tail: OffsetRanges, *, has_old_tail_key: bool) -> PartitionPlan:
        ids = frozenset(self._ids)
        return PartitionPlan(self._keys, self._encrypted, self._old, ids, runs, tail, has_old_tail_key)
