"""Wrapping the keys of partitions again as planned: one rewrite for each run of catalogs."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from archiver.commit.driver import Driver
from archiver.commit.operations import Protocol
from archiver.commit.recovery import claim_and_rewrap
from archiver.errors import ContentsDiffer
from archiver.maintain.contents.chunks import ChangedItem, OldChunk, RewrappedChunk
from archiver.maintain.rewrap.planning import PartitionPlan, partition_plan
from archiver.maintain.rewrite.folding import fold_tail
from archiver.maintain.rewrite.intent import Outcome
from archiver.maintain.rewrite.replacing import Rewrite, rewrite
from archiver.maintain.rewrite.tree import Run, find_run
from blockgz.encryption.keyring import Keyring
from index_format.chunk_index import ChunkIndex
from index_format.errors import BlockgzError
from index_format.marker import Marker


class Rewrapped(NamedTuple):
    """How a partition ended."""

    plan: PartitionPlan
    outcome: Outcome
    """COMMITTED where all of it was done."""
    error: BlockgzError | None = None


def carry_out(
    plans: Sequence[PartitionPlan], keyring: Keyring, driver: Driver, on_done: Callable[[Rewrapped], None]
) -> None:
    """Wrap the keys of each partition again; `on_done` gets how each ended. Trouble with one keeps no other back.

    Where the newest chunks are among them, or the key of `tail_hash`, the partition is claimed: a writer at work claims
    it again.
    """
    for plan in plans:
        try:
            on_done(Rewrapped(plan, _rewrap(plan, keyring, driver)))
        except BlockgzError as error:
            on_done(Rewrapped(plan, Outcome.NOTHING, error))


def _rewrap(plan: PartitionPlan, keyring: Keyring, driver: Driver) -> Outcome:
    keys, runs = plan.keys, plan.runs
    if len(plan.tail):
        driver.run(fold_tail(keys, plan.tail, str(uuid.uuid4())))
        runs = driver.run(partition_plan(keys, keyring)).runs
    if plan.has_old_tail_key:
        driver.run(claim_and_rewrap(keys, str(uuid.uuid4()), partial(keyring.rewrapped, what=plan.name)))
    for run in runs:
        outcome = driver.run(_rewritten(plan, run, keyring))
        if outcome is not Outcome.COMMITTED:
            return outcome
    return Outcome.COMMITTED


def _rewritten(plan: PartitionPlan, run: Run, keyring: Keyring) -> Protocol[Outcome]:
    def choose(marker: Marker) -> Protocol[Run | None]:
        return (yield from find_run(plan.keys, marker, run.start, run.end))

    what = Rewrite("rewrap", partial(rewrapped_contents, keyring), partial(check_rewrapped, keyring))
    return (yield from rewrite(plan.keys, choose, what))


def rewrapped_contents(keyring: Keyring, old: Sequence[OldChunk]) -> Iterator[OldChunk]:
    """The chunks; those get new indexes whose keys are wrapped with another master key than the newest.

    Raises KeyMissing, MalformedObject for a key that was changed, and what a key service raises.
    """
    return (_rewrapped(chunk, keyring) for chunk in old)


def _rewrapped(chunk: OldChunk, keyring: Keyring) -> OldChunk:
    encryption = chunk.index.encryption
    if not encryption or encryption.key.id == keyring.newest_id:
        return chunk
    key = keyring.rewrapped(encryption.key, chunk.entry.name)
    return RewrappedChunk(chunk.entry, replace(chunk.index, encryption=replace(encryption, key=key)))


def check_rewrapped(keyring: Keyring, old: Sequence[OldChunk], new: ChangedItem) -> None:
    """Raises ContentsDiffer unless the new index says what the old one does, and leads to the same key."""
    (before,) = old
    assert isinstance(new, RewrappedChunk)
    is_same = replace(new.index, encryption=before.index.encryption) == before.index
    if not is_same or _secret(new.index, keyring) != _secret(before.index, keyring):
        raise ContentsDiffer(
            f"the new index of {before.entry.name} does not hold what it is to replace",
            why="it tells another key, or another chunk",
            remedy="nothing was committed; run the command again",
        )


def _secret(index: ChunkIndex, keyring: Keyring) -> bytes | None:
    return keyring.unwrap(index.encryption.key, index.data.name) if index.encryption else None
