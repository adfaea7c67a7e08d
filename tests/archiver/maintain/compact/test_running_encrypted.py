"""Compacting and erasing beside a writer that encrypts: nothing becomes plain, and without keys nothing changes."""

import dataclasses
import random
from pathlib import Path

import pytest

from archiver.maintain.compact import Compaction, Conversion, PlannedCompaction
from archiver.maintain.erase import Matching
from archiver.maintain.rewrite.chunks import RewriteKeys
from archiver.maintain.rewrite.encode import MergeLimits
from archiver.maintain.rewrite.intent import RewriteOutcome
from blockgz.record_filter import KeyIn
from index_format import objects
from index_format.chunk_index import ChunkIndex
from index_format.errors import KeyMissing
from index_format.keys import ENCRYPTED_SUFFIX, INDEX_SUFFIX
from tests.archiver.maintain.compact.test_running import compacted
from tests.archiver.maintain.erase.test_running import world_of
from tests.archiver.maintain.erase.world import KEYS, EraseWorld, encrypted_world, keys_in, ranges

LARGE = 1 << 30
LIMITS = MergeLimits(1 << 20, 2 << 20)


def data_in(world: EraseWorld, *, since: int = 0) -> dict[str, bytes]:
    """The data of all chunks from an offset on."""
    names = {key: key.rpartition("/")[2] for key in world.store.bodies() if ".gz" in key or ".zst" in key}
    return {key: world.store.bodies()[key] for key, name in names.items() if int(name[:20]) >= since}


@pytest.mark.slow
@pytest.mark.parametrize("run", range(2))
def test_random_rewrites_of_chunks_that_are_encrypted_from_some_time_on(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng, keys = random.Random(seed), keys_in(tmp_path, 1, 2)
    world = world_of(rng, 70)
    world.rewrite_keys = RewriteKeys.of(keys, None)
    since = world.marker.next_offset or 0
    world.identity = dataclasses.replace(world.identity, encrypt=keys)
    for _ in range(2):
        world.archive(rng, 80)
        world.erase(ranges(*rng.sample(sorted(world.held_offsets()), 3)), tmp_path)
        world.check()
        conversion = rng.choice([None, Conversion(rng.choice([300, 1 << 20]), rng.choice(["json", "arrow"]))])
        compaction = Compaction(LIMITS, conversion, world.rewrite_keys)
        done = compacted(world, tmp_path, compaction, rng.choice([5000, LARGE]))
        assert [(each.outcome, each.error) for each in done] == [(RewriteOutcome.COMMITTED, None)]
        world.check()
    assert all(key.endswith(ENCRYPTED_SUFFIX) for key in data_in(world, since=since))
    assert any("~r" in key for key in data_in(world, since=since))
    assert not any(key.endswith(ENCRYPTED_SUFFIX) for key in set(data_in(world)) - set(data_in(world, since=since)))


def test_what_is_stored_again_is_encrypted_if_that_is_asked_for(tmp_path: Path) -> None:
    world, keys = world_of(random.Random(1), 90), keys_in(tmp_path, 1)
    world.rewrite_keys = RewriteKeys.of(None, keys)
    assert compacted(world, tmp_path, Compaction(LIMITS, keys=world.rewrite_keys))
    world.erase(ranges(*sorted(world.held_offsets())[:2]), tmp_path)
    assert all(key.endswith(ENCRYPTED_SUFFIX) for key in data_in(world) if "~r" in key)
    world.check()


def test_without_the_keys_encrypted_chunks_stay_and_are_a_problem(tmp_path: Path) -> None:
    rng, keys = random.Random(2), keys_in(tmp_path, 1)
    world = world_of(rng, 40)
    world.identity = dataclasses.replace(world.identity, encrypt=keys)
    world.archive(rng, 60)
    for given in (RewriteKeys(), RewriteKeys.of(keys_in(tmp_path, 3), None)):
        rules = Compaction(LIMITS, keys=given)
        plan = PlannedCompaction(world.store, None, rules, world.maintainer(), LARGE, lambda plans: ())
        (problem,) = plan.problems
        assert isinstance(problem.error, KeyMissing) and "--keys" in problem.error.remedy
        assert plan.encrypted > 10
        # The plain chunks before them are merged all the same.
        assert [each.chunks - each.chunks_after > 10 for each in plan.partitions] == [True]


def test_without_the_keys_nothing_is_erased(tmp_path: Path) -> None:
    world = encrypted_world(random.Random(3), 10, keys_in(tmp_path, 1))
    found, keys, before = world.found(Matching.all_of(KeyIn(KEYS[:2]))), world.rewrite_keys, world.store.bodies()
    assert found.records
    world.rewrite_keys = RewriteKeys()
    with pytest.raises(KeyMissing, match="is encrypted"):
        world.found(Matching.all_of(KeyIn(KEYS[:2])))
    assert world.store.bodies() == before
    with pytest.raises(KeyMissing):
        world.erase(found.ranges, tmp_path)
    assert world.marker.maintenance and world.marker.maintenance.rewriting is None
    assert not any("~r" in key and "_catalog" not in key for key in world.store.bodies())
    world.rewrite_keys = keys
    world.erased.clear()
    world.check()
    world.erase(found.ranges, tmp_path)
    world.check()
    indexes = [key for key in world.store.bodies() if key.endswith(INDEX_SUFFIX) and "~r" in key]
    keys_of = [objects.decode(world.store.bodies()[key], ChunkIndex, key).encryption for key in indexes]
    assert len({each.key.wrapped for each in keys_of if each}) == len(keys_of) > 0
