"""Compacting beside a writer: fewer chunks and catalogs, every record in its place, whatever dies in between."""

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.errors import ContentsDiffer
from archiver.ingest.buffer import BufferFolder
from archiver.maintain import compact
from archiver.maintain.compact import Compaction, Compactor, Conversion, PartitionCompaction, PlannedCompaction
from archiver.maintain.gc import read_chain
from archiver.maintain.planned import RewriteResult
from archiver.maintain.rewrite.encode import MergeLimits
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.throttle import MaintenancePace
from index_format import marker as markers
from index_format.marker import MAX_RETIRED, Maintenance, Retired
from tests.archiver.maintain.erase.test_running import reference, world_of
from tests.archiver.maintain.erase.world import EraseWorld, ranges
from tests.archiver.maintain.repair.world import MAX, Died

MERGE = Compaction(MergeLimits(1 << 20, 2 << 20))
LARGE = 1 << 30


def planned(world: EraseWorld, compaction: Compaction = MERGE, buffer_bytes: int = LARGE) -> PlannedCompaction:
    return PlannedCompaction(world.store, None, compaction, world.maintainer(), buffer_bytes, lambda plans: ())


def compacted(
    world: EraseWorld, folder: Path, compaction: Compaction = MERGE, buffer_bytes: int = LARGE
) -> Sequence[RewriteResult[PartitionCompaction]]:
    """Plan and carry out; how it ended."""
    plan = planned(world, compaction, buffer_bytes)
    assert plan.problems == []
    buffers = BufferFolder(folder)
    try:
        compactor = Compactor(MaintenancePace(world.store, world.maintainer()), compaction, buffers, buffer_bytes, MAX)
        done = [compactor.compact(each) for each in plan.partitions]
        assert buffers.used_bytes == 0
    finally:
        buffers.close()
    return done


def entries(world: EraseWorld) -> list[markers.ChunkEntry]:
    """Of all catalogs."""
    chain = read_chain(world.store, world.keys)
    assert chain is not None
    return [entry for entry in chain.entries if entry not in world.marker.tail]


@pytest.mark.slow
@pytest.mark.parametrize("run", range(2))
def test_random_compactions_beside_a_writer(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng = random.Random(seed)
    world = world_of(rng, rng.choice([70, 140, 300]))
    for _ in range(3):
        world.archive(rng, rng.randrange(30))
        if rng.random() < 0.4:
            world.erase(ranges(*rng.sample(sorted(world.held_offsets()), 3)), tmp_path)
        limits = MergeLimits(rng.choice([700, LARGE]), rng.choice([1500, 6000, LARGE]))
        conversion = Conversion(rng.choice([300, 1 << 20]), rng.choice(["json", "arrow", None]))
        compaction = Compaction(limits, conversion if rng.random() < 0.3 else None)
        buffer_bytes = rng.choice([1, 5000, LARGE])
        plan = planned(world, compaction, buffer_bytes)
        before = world.marker
        done = compacted(world, tmp_path, compaction, buffer_bytes)
        assert all((each.outcome, each.error) == (RewriteOutcome.COMMITTED, None) for each in done)
        world.check()
        assert len(done) == len(plan.partitions)
        if not done:
            assert world.marker == before
        for each in plan.partitions:
            assert world.marker.num_chunks == each.chunks_after <= before.num_chunks
    world.archive(rng, 10)
    world.check()


@pytest.mark.slow
def test_what_was_planned_comes_true_and_is_not_planned_again(tmp_path: Path) -> None:
    world = world_of(random.Random(1), 200)
    world.archive(random.Random(2), 5)
    (plan,) = planned(world).partitions
    before = entries(world)
    assert (plan.moved_bytes, plan.chunks) == (sum(each.bytes for each in before), world.marker.num_chunks)
    (ended,) = compacted(world, tmp_path)
    done, outcome = ended.done, ended.outcome
    assert (done, outcome) == (plan.runs, RewriteOutcome.COMMITTED)
    assert world.marker.num_chunks == plan.chunks_after < 80
    assert sum(map(len, world.marker.catalogs)) == plan.catalogs_after == 1
    marker, requests = world.marker, len(world.store.versions[world.keys.marker])
    again = planned(world)
    assert (again.partitions, again.untouched) == ([], 1)
    assert compacted(world, tmp_path) == []
    assert (world.marker, len(world.store.versions[world.keys.marker])) == (marker, requests)
    world.check()


@pytest.mark.slow
def test_chunks_deep_in_the_tree_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 4)
    rng = random.Random(3)
    world = world_of(rng, 90)
    assert len(world.marker.catalogs) >= 2
    # Until there is nothing left: catalogs of one list alone become one.
    chunks = world.marker.num_chunks
    while compacted(world, tmp_path):
        world.check()
        assert world.marker.num_chunks < chunks
        chunks = world.marker.num_chunks
    world.archive(rng, 30)
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("buffer_bytes", [1, 900])
def test_a_small_buffer_takes_more_rewrites(buffer_bytes: int, tmp_path: Path) -> None:
    world = world_of(random.Random(4), 90)
    compaction = Compaction(MergeLimits(1500, 3000))
    (ended,) = compacted(world, tmp_path, compaction, buffer_bytes)
    plan, outcome = ended.plan, ended.outcome
    assert outcome is RewriteOutcome.COMMITTED
    assert world.marker.maintenance and len(world.marker.maintenance.retired) > len(plan.runs)
    assert world.marker.num_chunks == plan.chunks_after
    world.check()


@pytest.mark.slow
def test_a_writer_at_work_is_not_fenced(tmp_path: Path) -> None:
    world = world_of(random.Random(5), 90)
    before = world.held
    assert compacted(world, tmp_path)
    assert before is not None and world.marker.epoch == before.marker.epoch
    world.archive(random.Random(6), 3)
    assert world.marker.epoch == before.marker.epoch
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("first", [1, 2.5])
def test_a_compaction_that_dies_at_any_request_can_be_run_again(
    first: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 8)
    start = world_of(random.Random(7), 18)
    start.archive(random.Random(8), 4)
    compaction = Compaction(MergeLimits(1000, 2000))
    for died in range(0, 400, 7):
        world = start.copy()
        world.store.dies_at = first + died
        try:
            compacted(world, tmp_path, compaction)
        except Died:
            pass
        else:
            break
        world.store.dies_at = None
        world.check()
        world.archive(random.Random(died), 1)
        world.check()
        compacted(world, tmp_path, compaction)
        world.check()
        assert planned(world, compaction).partitions == []
    else:
        raise AssertionError("it never came to its end")
    assert died > 40


@pytest.mark.slow
def test_a_compaction_that_is_interrupted_leaves_no_intent_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 8)
    start = world_of(random.Random(7), 18)
    start.archive(random.Random(8), 4)
    compaction = Compaction(MergeLimits(1000, 2000))
    for request in itertools.count(1, 2):
        for at in (request, request + 0.5):
            world = start.copy()
            world.store.dies_at, world.store.death = at, KeyboardInterrupt
            try:
                compacted(world, tmp_path, compaction)
            except KeyboardInterrupt:
                maintenance = world.marker.maintenance
                assert not maintenance or maintenance.rewriting is None, f"interrupted at request {at}"
                world.check()
            else:
                assert request > 40
                return


def full(world: EraseWorld, maintenance: Maintenance) -> None:
    marker = replace(world.marker, version=2, maintenance=maintenance)
    stored: Any = world.store.get(world.keys.marker)
    world.store.compare_and_swap(world.keys.marker, markers.encode(marker), stored.etag)


def test_who_is_busy_or_full_is_told_apart(tmp_path: Path) -> None:
    world = world_of(random.Random(9), 90)
    twin = world.copy()
    compacted(twin, tmp_path)
    world.store.requests, world.store.dies_at = 0, twin.store.requests - 2
    with pytest.raises(Died):
        compacted(world, tmp_path)
    world.store.dies_at = None
    assert world.marker.maintenance and world.marker.maintenance.rewriting
    world.hours -= 2.2
    (busy,) = compacted(world, tmp_path)
    assert (busy.outcome, busy.done) == (RewriteOutcome.BUSY, ())
    retired = tuple(Retired(references=(reference(0),), token=str(n)) for n in range(MAX_RETIRED))
    full(world, Maintenance(retired=retired))
    (stuck,) = compacted(world, tmp_path)
    assert (stuck.outcome, stuck.done) == (RewriteOutcome.FULL, ())


def test_a_chunk_that_lost_a_record_is_never_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(random.Random(10), 90)
    before, whole = world.marker.catalogs, compact.merged

    def careless(*given: Any) -> Any:
        new = whole(*given)
        return dataclasses.replace(new, blocks=new.blocks[:-1])

    monkeypatch.setattr(compact, "merged", careless)
    (ended,) = compacted(world, tmp_path)
    assert isinstance(ended.error, ContentsDiffer)
    assert world.marker.catalogs == before
    assert world.marker.maintenance and world.marker.maintenance.rewriting is None
    world.check()
