"""Compacting beside a writer, encrypted too: fewer chunks, every record in its place, whatever dies in between."""

import dataclasses
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.errors import ContentsDiffer
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain import compact
from archiver.maintain.compact import (
    Compaction,
    Conversion,
    PartitionCompaction,
    PlannedCompaction,
    catalogs_in_question,
    planned_run,
)
from archiver.maintain.erase import Matching
from archiver.maintain.planned import RewriteResult
from archiver.maintain.rewrite import contents
from archiver.maintain.rewrite.chunks import OldChunk, RewriteKeys
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.rewrite.replace import OldCatalog
from archiver.maintain.rewrite.tree import RunLimits, first_run, read_chain
from blockgz.errors import KeyMissing, UsageError
from blockgz.record_filter import KeyIn
from index_format import marker as markers
from index_format import objects
from index_format.encryption import CIPHER
from index_format.keys import ENCRYPTED_SUFFIX, INDEX_SUFFIX
from index_format.marker import MAX_RETIRED, ChunkCatalog, Maintenance, Retired
from index_format.objects import ChunkIndex, Encryption, WrappedKey
from tests.archiver.maintain.contents.random_chunks import Partition, with_blocks
from tests.archiver.maintain.erase.test_running import reference, world_of
from tests.archiver.maintain.erase.world import KEYS, EraseWorld, encrypted_world, keys_in, ranges
from tests.archiver.maintain.repair.world import MAX, Died
from tests.support.sampling import seeded_random

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
        tools = RewriteTools(world.maintainer(), world.store, buffers, buffer_bytes, MAX)
        done = [compact.compact(each, compaction, tools) for each in plan.partitions]
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
    rng = seeded_random()
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
    before, whole = world.marker.catalogs, contents.merged

    def careless(*given: Any) -> Any:
        new = whole(*given)
        return with_blocks(new, new.index.blocks[:-1])

    monkeypatch.setattr(contents, "merged", careless)
    (ended,) = compacted(world, tmp_path)
    assert isinstance(ended.error, ContentsDiffer)
    assert world.marker.catalogs == before
    assert world.marker.maintenance and world.marker.maintenance.rewriting is None
    world.check()


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


PLANNED_MERGE = Compaction(MergeLimits(small_bytes=1 << 20, chunk_bytes=1 << 30))


@pytest.fixture
def partition(tmp_path: Any) -> Any:
    number = 0
    while True:
        made = Partition(random.Random(number), tmp_path / str(number)).grow(12)
        if made.format == "json":
            break
        made.buffers.close()
        number += 1
    yield made
    made.buffers.close()


def catalogs_of(chunks: list[OldChunk], size: int) -> list[OldCatalog]:
    catalogs = []
    for first in range(0, len(chunks), size):
        catalog = ChunkCatalog(level=1, entries=tuple(chunk.entry for chunk in chunks[first : first + size]))
        name = f"_catalog/1-{catalog.entries[0].start_offset:020d}.json"
        catalogs.append(OldCatalog(markers.reference_to(catalog, name, markers.encode(catalog)), catalog))
    return catalogs


def sized(chunks: list[OldChunk], *sizes: int) -> list[OldChunk]:
    return [OldChunk(replace(chunk.entry, bytes=size), chunk.index) for chunk, size in zip(chunks, sizes, strict=False)]


def test_only_catalogs_with_small_neighbours_are_in_question(partition: Partition) -> None:
    big = 1 << 21
    catalogs = catalogs_of(sized(partition.chunks, big, 5, big, big, big, 5, 5, big, big, big), 2)
    found = catalogs_in_question(catalogs, PLANNED_MERGE)
    assert found == {catalogs[2].reference, catalogs[3].reference}
    assert catalogs_in_question(catalogs[:2], PLANNED_MERGE) == set()
    assert len(catalogs_in_question(catalogs, Compaction(PLANNED_MERGE.limits, Conversion(100)))) == 5


def test_a_run_is_planned_without_catalogs_at_its_ends_that_stay(partition: Partition) -> None:
    big = 1 << 21
    chunks = sized(partition.chunks, big, 5, big, 7, 8, 9, big, 5, big, big)
    catalogs = catalogs_of(chunks, 2)
    run = planned_run(catalogs, chunks, PLANNED_MERGE)
    assert run is not None
    assert (run.start, run.end) == (chunks[2].entry.start_offset, chunks[5].entry.next_offset)
    assert (run.chunks, run.chunks_after, run.catalogs, run.moved_bytes) == (4, 2, 2, 24)
    assert run.catalogs_after == 1
    assert planned_run(catalogs[:1], chunks[:2], PLANNED_MERGE) is None


def test_encrypted_chunks_and_other_formats_are_not_planned(partition: Partition) -> None:
    chunks = partition.chunks[:2]
    sealed = [
        OldChunk(
            each.entry, replace(each.index, version=2, encryption=Encryption(CIPHER, WrappedKey("id", b"wrapped")))
        )
        for each in chunks
    ]
    assert planned_run(catalogs_of(sealed, 2), sealed, PLANNED_MERGE) is None
    assert (
        planned_run(catalogs_of(sealed, 2), sealed, Compaction(PLANNED_MERGE.limits, Conversion(100, "arrow"))) is None
    )
    with pytest.raises(UsageError, match="cannot be converted"):
        planned_run(catalogs_of(chunks, 2), chunks, Compaction(PLANNED_MERGE.limits, Conversion(100, "text")))


def test_runs_keep_their_limits(partition: Partition) -> None:
    references = tuple(each.reference for each in catalogs_of(sized(partition.chunks, *[10] * 12), 2))
    assert first_run(references, lambda _: True, RunLimits(bytes=45)) == references[:2]
    assert first_run(references, lambda _: True, RunLimits(chunks=6)) == references[:3]
    assert first_run(references, lambda _: True, RunLimits(bytes=1)) == references[:1]
    assert first_run(references, lambda each: each in references[1:3], RunLimits()) == references[1:3]
    assert first_run(references, lambda _: False, RunLimits()) == ()
