"""Wrap the keys of encrypted chunks with a newer master key; only indexes are stored again."""

import uuid
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from archiver.commit.operations import Driver, Protocol
from archiver.commit.recovery import claim_and_rewrap
from archiver.errors import ContentsDiffer
from archiver.maintain.planned import Cell, PlannedRewrite, one_by_one, rewritable_partitions
from archiver.maintain.rewrite.chunks import ChangedItem, OffsetRanges, OldChunk, RewrappedChunk
from archiver.maintain.rewrite.intent import RewriteOutcome, fold_tail
from archiver.maintain.rewrite.replace import Rewrite, chunks_of, old_catalogs, rewrite
from archiver.maintain.rewrite.tree import CatalogRun, RunLimits, find_run, level_1_lists, read_known, runs_of
from blockgz.encryption.keyring import Keyring
from blockgz.errors import KeyMissing
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from index_format.keys import PartitionKeys
from index_format.marker import CatalogReference
from index_format.objects import ChunkIndex, WrappedKey

# Chunks that one rewrite takes at most: indexes alone are stored again.
RUN_CHUNKS = 4096


@dataclass(frozen=True)
class PartitionRewrapping:
    keys: PartitionKeys
    encrypted: int
    """Encrypted chunks."""
    old: int
    """Chunks whose key is wrapped with another master key than the newest."""
    ids: Set[str]
    """Ids of these other master keys."""
    runs: tuple[CatalogRun, ...]
    """Catalogs that hold such chunks."""
    tail: OffsetRanges
    """Offsets of such chunks in the tail."""
    has_old_tail_key: bool

    @property
    def cells(self) -> tuple[Cell, ...]:
        return self.encrypted, self.old, ", ".join(sorted(self.ids))

    @property
    def as_json(self) -> dict[str, Any]:
        return {"encrypted_chunks": self.encrypted, "chunks": self.old, "old_keys": sorted(self.ids)}


class PlannedRewrapping(PlannedRewrite[PartitionRewrapping]):
    """A rewrap of the keys of an archive."""

    participle = "rewrapped"
    whole = "rewrapped as a whole"
    nothing = "nothing to rewrap"
    columns = ("topic", "partition", "encrypted chunks", "to rewrap", "old keys")
    droppable = ("old keys",)

    def __init__(self, store: ToolStore, selection: TopicSelection | None, keyring: Keyring, driver: Driver) -> None:
        """Plan the selected topics, or all; reads all indexes."""

        def plan_of(keys: PartitionKeys) -> PartitionRewrapping | None:
            plan = driver.run(plan_partition(keys, keyring))
            return plan if plan.ids else None

        partitions = rewritable_partitions(
            store, selection, "rewrapped", "leave it as it is: nothing in it is encrypted"
        )
        super().__init__(partitions, plan_of, one_by_one(lambda plan: rewrap(plan, keyring, driver)))
        self._newest_id = keyring.newest_id

    @property
    def old(self) -> int:
        """Chunks, of all partitions."""
        return sum(plan.old for plan in self.partitions)

    @property
    def question(self) -> str | None:
        return f"Wrap the keys of {self.old:,} chunks with the key {self._newest_id}?" if self.partitions else None

    def summary(self) -> str | None:
        summary = super().summary()
        return summary and f"{summary}; keep the old keys until archiver gc has deleted the old indexes"

    def totals(self) -> dict[str, Any]:
        return {"key": self._newest_id, "chunks": self.old}

    def num_tried(self, *, dry_run: bool) -> int | None:  # noqa: ARG002
        return self._num_tried


def plan_partition(keys: PartitionKeys, keyring: Keyring) -> Protocol[PartitionRewrapping]:
    """Return what is rewrapped in one partition; raises KeyMissing if a key for that was not given."""
    encrypted, ids = 0, list[str]()

    def is_old(wrapped: WrappedKey) -> bool:
        if wrapped.id == keyring.newest_id:
            return False
        if not keyring.has(wrapped):
            raise KeyMissing(
                f"the keys of {keys} cannot be rewrapped",
                why=f"some are wrapped with the key {wrapped.id}, which was not given",
                remedy="add the key to --keys, before the newest",
            )
        return True

    def old_of(chunks: Sequence[OldChunk]) -> list[OldChunk]:
        nonlocal encrypted
        wrapped = [(chunk, chunk.index.encryption.key) for chunk in chunks if chunk.index.encryption]
        encrypted += len(wrapped)
        old = [(chunk, key.id) for chunk, key in wrapped if is_old(key)]
        ids.extend(key_id for _, key_id in old)
        return [chunk for chunk, _ in old]

    marker = (yield from read_known(keys)).marker
    if marker.next_offset is None:
        return PartitionRewrapping(keys, 0, 0, set(), (), OffsetRanges(), has_old_tail_key=False)
    runs = list[CatalogRun]()
    for references in (yield from level_1_lists(keys, marker, 0, marker.next_offset)):
        meant = set[CatalogReference]()
        for each in (yield from old_catalogs(keys, references)):
            chunks = yield from chunks_of(keys, each.catalog.entries)
            meant |= {each.reference} if old_of(chunks) else set()
        runs += map(CatalogRun, runs_of(references, meant.__contains__, RunLimits(RUN_CHUNKS)))
    tail = old_of((yield from chunks_of(keys, marker.tail)))
    spans = OffsetRanges(range(each.entry.start_offset, each.entry.next_offset) for each in tail)
    tail_ids = {marker.tail_key.id} if marker.tail_key and is_old(marker.tail_key) else set[str]()
    return PartitionRewrapping(keys, encrypted, len(ids), tail_ids.union(ids), tuple(runs), spans, bool(tail_ids))


def rewrap(plan: PartitionRewrapping, keyring: Keyring, driver: Driver) -> RewriteOutcome:
    """Wrap the keys of a partition again, one rewrite for each run of catalogs."""
    keys, runs = plan.keys, plan.runs
    # A running writer is fenced by the claim, and claims the partition again.
    if len(plan.tail):
        driver.run(fold_tail(keys, plan.tail, str(uuid.uuid4())))
        runs = driver.run(plan_partition(keys, keyring)).runs
    if plan.has_old_tail_key:
        driver.run(claim_and_rewrap(keys, str(uuid.uuid4()), partial(keyring.rewrapped, what=str(keys))))
    what = Rewrite("rewrap", partial(rewrapped_contents, keyring), partial(check_rewrapped, keyring))
    for run in runs:
        outcome = driver.run(rewrite(keys, partial(find_run, keys, start=run.start, end=run.stop), what))
        if outcome is not RewriteOutcome.COMMITTED:
            return outcome
    return RewriteOutcome.COMMITTED


def rewrapped_contents(keyring: Keyring, old: Sequence[OldChunk]) -> Iterator[OldChunk]:
    """Yield the chunks, those with an old master key with new indexes whose keys are wrapped with the newest."""
    for chunk in old:
        encryption = chunk.index.encryption
        if not encryption or encryption.key.id == keyring.newest_id:
            yield chunk
            continue
        key = keyring.rewrapped(encryption.key, chunk.entry.name)
        yield RewrappedChunk(chunk.entry, replace(chunk.index, encryption=replace(encryption, key=key)))


def check_rewrapped(keyring: Keyring, old: Sequence[OldChunk], new: ChangedItem) -> None:
    """Raise ContentsDiffer unless the new index says what the old one does, and leads to the same key."""
    (before,) = old
    assert isinstance(new, RewrappedChunk)
    is_same = replace(new.index, encryption=before.index.encryption) == before.index
    if not is_same or _secret(new.index, keyring) != _secret(before.index, keyring):
        raise ContentsDiffer(
            f"the new index of {before.entry.name} does not hold what it is to replace",
            why="it names another key, or another chunk",
            remedy="nothing was committed; run the command again",
        )


def _secret(index: ChunkIndex, keyring: Keyring) -> bytes | None:
    return keyring.unwrap(index.encryption.key, index.data.name) if index.encryption else None
