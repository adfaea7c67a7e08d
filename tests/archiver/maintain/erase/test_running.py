"""Erasing beside a writer: what is asked for is gone and called erased, all else stays, whatever dies in between."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.errors import ContentsDiffer, Fenced, RewriteOvertaken, RewriteRefused
from archiver.maintain import erase
from archiver.maintain.erase import run_of
from archiver.maintain.gc import read_chain
from archiver.maintain.rewrite.chunks import OffsetRanges
from archiver.maintain.rewrite.intent import fold_tail
from index_format import marker as markers
from index_format.marker import MAX_RETIRED, CatalogReference, Maintenance, Retired
from tests.archiver.maintain.erase.world import EraseWorld, log_of, ranges, some
from tests.archiver.maintain.repair.world import Died
from tests.index_format.builders import SHA256


def world_of(rng: random.Random, chunks: int, **fields: Any) -> EraseWorld:
    world = EraseWorld(log=log_of(rng, 700), **fields)
    world.archive(rng, chunks)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("run", range(2))
def test_random_erases_beside_a_writer(run: int, tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"run {run}, seed {seed}")
    rng = random.Random(seed)
    world = world_of(rng, rng.choice([3, 70, 140]))
    if rng.random() < 0.3:
        world.identity = dataclasses.replace(world.identity, record_format="arrow")
    for _ in range(3):
        world.archive(rng, rng.randrange(30))
        world.erase(some(rng, world), tmp_path, buffer_bytes=rng.choice([4000, 1 << 20]))
        world.check()
    world.archive(rng, 10)
    world.check()


@pytest.mark.slow
def test_all_records_of_many_catalogs_can_be_erased(tmp_path: Path) -> None:
    rng = random.Random(1)
    world = world_of(rng, 200)
    world.erase(OffsetRanges([range(0, 10_000)]), tmp_path)
    assert world.archived()[0] == {}
    world.check()
    world.archive(rng, 5)
    world.check()
    assert world.archived()[0]


@pytest.mark.slow
def test_records_deep_in_the_tree_are_erased(tmp_path: Path) -> None:
    rng = random.Random(11)
    world = world_of(rng, 1)
    for _ in range(70):  # a catalog of level 1 for each chunk, so that 64 of them fold into one of level 2
        world.archive(rng, 1)
        world.run(fold_tail(world.keys, OffsetRanges([range(0, 10_000)]), "folder"))
    assert len(world.marker.catalogs) == 2
    held = sorted(world.held_offsets())
    world.erase(ranges(held[0], held[len(held) // 2], held[-1]), tmp_path)
    world.check()
    assert len(world.marker.catalogs) == 2
    world.archive(rng, 3)
    world.erase(OffsetRanges([range(held[5], held[len(held) // 2])]), tmp_path)
    world.check()


def test_a_writer_at_work_claims_again_and_loses_nothing(tmp_path: Path) -> None:
    world = world_of(random.Random(2), 5)
    held = world.held
    assert held is not None and held.marker.tail
    offset = held.marker.tail[-1].first_offset
    world.erase(ranges(offset), tmp_path)
    next_rows = [each.offset for each in world.log.records if each.offset >= (world.marker.next_offset or 0)][:3]
    with pytest.raises(Fenced):
        world._append(next_rows)
    world.claim()
    world._append(next_rows)
    world.check()
    assert world.erased == {offset}


def test_who_writes_to_a_tail_that_is_not_meant_is_left_alone(tmp_path: Path) -> None:
    world = world_of(random.Random(3), 70)
    before = world.held
    world.erase(ranges(0), tmp_path)
    assert before is not None and world.marker.epoch == before.marker.epoch
    world.archive(random.Random(4), 3)  # rebased, not fenced
    assert world.marker.epoch == before.marker.epoch
    world.check()


def test_what_is_erased_already_or_never_was_there_changes_nothing(tmp_path: Path) -> None:
    world = world_of(random.Random(5), 70)
    world.erase(ranges(0), tmp_path)
    marker = world.marker
    world.erase(ranges(0), tmp_path)
    assert world.marker.catalogs == marker.catalogs
    holes = set(range(world.marker.next_offset or 0)) - world.held_offsets()
    world.erase(ranges(*sorted(holes)[:5]), tmp_path)
    assert not (set(holes) & world.archived()[1])
    world.check()


@pytest.mark.slow
@pytest.mark.parametrize("half", [0.0, 0.5])
def test_an_erase_that_dies_at_any_request_can_be_run_again(half: float, tmp_path: Path) -> None:
    start = world_of(random.Random(6), 5)
    start.erase(ranges(0), tmp_path)  # a catalog of few chunks
    start.archive(random.Random(7), 4)
    held = sorted(start.held_offsets())
    offsets = ranges(held[1], held[2], held[-6], start.marker.tail[-2].first_offset)
    first = random.randrange(1, 4)
    print(f"first {first}")
    for died in range(first, 200, 3):
        world = start.copy()
        world.store.dies_at = died + half
        try:
            world.erase(offsets, tmp_path)
        except Died:
            pass
        else:
            break
        world.store.dies_at = None
        world.archive(random.Random(died), 1)
        archived = world.archived()[0]
        assert world.held_offsets() - set(archived) <= {0, *(offset for each in offsets for offset in each)}
        world.erase(offsets, tmp_path)
        world.check()
    else:
        raise AssertionError("it never came to its end")
    assert died > 30


def test_no_second_maintainer_works_on_the_partition(tmp_path: Path) -> None:
    world = world_of(random.Random(8), 70)
    world.store.requests, world.store.dies_at = 0, 8
    with pytest.raises(Died):
        world.erase(ranges(0), tmp_path)
    world.store.dies_at = None
    assert world.marker.maintenance and world.marker.maintenance.rewriting
    world.hours -= 1.1
    with pytest.raises(RewriteOvertaken) as caught:
        world.erase(ranges(0), tmp_path)
    assert "another maintainer" in caught.value.why
    world.erase(ranges(0), tmp_path)
    world.check()


def reference(start: int, *, records: int = 10, chunks: int = 64) -> CatalogReference:
    return CatalogReference(
        name=f"_catalog/1-{start:020d}.json",
        start_offset=start,
        next_offset=start + 10,
        min_timestamp=0,
        max_timestamp=0,
        num_records=records,
        num_chunks=chunks,
        bytes=10,
        sha256=SHA256,
    )


def test_a_marker_that_retires_as_much_as_it_may_refuses_with_the_remedy(tmp_path: Path) -> None:
    world = world_of(random.Random(9), 70)
    full = Maintenance(retired=tuple(Retired(references=(reference(0),), token=str(n)) for n in range(MAX_RETIRED)))
    marker = replace(world.marker, version=2, maintenance=full)
    world.store.compare_and_swap(world.keys.marker, markers.encode(marker), world.store.get(world.keys.marker).etag)
    with pytest.raises(RewriteRefused) as caught:
        world.erase(ranges(0), tmp_path)
    assert "archiver gc" in caught.value.remedy


def test_a_run_takes_neighbours_from_the_first_to_the_last_that_is_meant() -> None:
    references = tuple(reference(10 * n) for n in range(30))
    assert run_of(references, ranges(25, 61)) == references[2:7]
    assert run_of(references, ranges(1000)) == ()
    assert run_of(references, ranges(0, 299)) == references[:1]  # a run has 16 catalogs of 64 chunks at most
    assert run_of(references, ranges(0, 155)) == references[:16]
    large = tuple(reference(10 * n, records=150_000_000) for n in range(3))
    assert run_of(large, ranges(5, 15)) == large[:1]


def test_a_chunk_that_lost_another_record_is_never_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(random.Random(10), 70)
    before = world.marker.catalogs
    whole = erase.without

    def careless(chunk: Any, drop: OffsetRanges, *args: Any) -> Any:
        return whole(chunk, drop | ranges(chunk.entry.first_offset), *args)

    monkeypatch.setattr(erase, "without", careless)
    last = next(each.last_offset for each in _entries(world) if each.num_records > 2)
    with pytest.raises(ContentsDiffer):
        world.erase(ranges(last), tmp_path)
    assert world.marker.catalogs == before
    assert world.marker.maintenance and world.marker.maintenance.rewriting is None
    world.erased.clear()
    world.check()


def _entries(world: EraseWorld) -> list[markers.ChunkEntry]:
    chain = read_chain(world.store, world.keys)
    assert chain is not None
    return [entry for entry in chain.entries if entry not in world.marker.tail]
