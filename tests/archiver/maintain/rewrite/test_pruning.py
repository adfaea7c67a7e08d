"""What goes of a partition, and that it goes as planned."""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.commit.commit import try_swap
from archiver.commit.operations import CompareAndSwap, Driver, Protocol, UnreadLog
from archiver.errors import RewriteRefused
from archiver.maintain.prune import Keep, divided, prune
from archiver.maintain.rewrite.chunks import EmptiedRun, Item, NewChunk, OldChunk
from archiver.maintain.rewrite.intent import LEASE_MS, RewriteOutcome
from archiver.maintain.rewrite.replace import NewCatalog, OldCatalog, Rewrite, apart_from_gaps, new_catalogs, rewrite
from archiver.maintain.rewrite.tree import CatalogRun, find_run, level_1_lists
from index_format import marker as markers
from index_format.marker import (
    MAX_RETIRED,
    CatalogReference,
    ChunkCatalog,
    ChunkEntry,
    Maintenance,
    Marker,
    Retired,
    Rewriting,
    decode_catalog,
    decode_marker,
    encode,
    reference_to,
)
from index_format.objects import ERASED, Gap
from tests.archiver.maintain.contents.random_chunks import Partition
from tests.archiver.maintain.fourteen_chunks import KEYS, LOG, TOKENS, run
from tests.archiver.maintain.repair.world import MortalStore
from tests.support.chunks import identity_of
from tests.support.format_objects import chunk_entry
from tests.support.memory_store import MemoryStore
from tests.support.simulator import Actor, Fate

TOKEN = "0" * 32


def reference(start: int, end: int, *, newest: int, size: int = 100) -> CatalogReference:
    return CatalogReference(
        name=f"_catalog/1-{start:020d}.json",
        start_offset=start,
        next_offset=end,
        min_timestamp=0,
        max_timestamp=newest,
        num_records=end - start,
        num_chunks=2,
        bytes=size,
        sha256="0" * 64,
    )


THREE = [reference(0, 10, newest=5), reference(10, 20, newest=3), reference(20, 30, newest=9)]


@pytest.mark.parametrize(
    ("keep", "going"),
    [
        (Keep(since_ms=5), []),
        (Keep(since_ms=6), THREE[:2]),
        (Keep(since_ms=10), THREE),
        (Keep(newest_bytes=350), []),
        (Keep(newest_bytes=250), THREE[:1]),
        (Keep(newest_bytes=249), THREE[:1]),
        (Keep(newest_bytes=0), THREE),
    ],
)
def test_whole_catalogs_go_as_long_as_enough_stays(keep: Keep, going: list[CatalogReference]) -> None:
    assert divided(THREE, 350, keep) == (going, THREE[len(going) :])


def test_an_erased_catalog_goes_with_its_neighbours() -> None:
    erased = replace(reference(0, 10, newest=-1), num_records=0, num_chunks=0, bytes=0)
    assert divided([erased, *THREE[1:]], 250, Keep(since_ms=4)) == ([erased, THREE[1]], THREE[2:])


def test_what_has_no_timestamp_has_no_age() -> None:
    undated = reference(10, 20, newest=-1)
    assert divided([THREE[0], undated, THREE[2]], 350, Keep(since_ms=100))[0] == THREE[:1]
    assert divided([undated], 350, Keep(newest_bytes=100))[0] == [undated]


def test_one_of_time_and_size_says_what_stays() -> None:
    for wrong in ({}, {"since_ms": 1, "newest_bytes": 1}):
        with pytest.raises(ValueError, match="either"):
            Keep(**wrong)


def marker_in(store: MemoryStore) -> Marker:
    return decode_marker(store.bodies()[KEYS.marker])


def maintained(store: MemoryStore, **fields: Any) -> None:
    found = store.get(KEYS.marker)
    assert found is not None
    marker = decode_marker(found.body)
    body = replace(marker.maintenance or Maintenance(), **fields)
    run(store, try_swap(KEYS.marker, replace(marker, version=2, maintenance=body), found.etag))


def spans_of(store: MemoryStore) -> list[tuple[int, int]]:
    marker = marker_in(store)
    lists = run(store, level_1_lists(KEYS, marker, 0, 100))
    return [(each.start_offset, each.next_offset) for each in (each for list_ in lists for each in list_)]


def test_the_floor_rises_and_catalogs_across_it_are_copied(store: MemoryStore) -> None:
    before = marker_in(store)
    assert spans_of(store) == [(n, n + 2) for n in range(0, 12, 2)]
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.COMMITTED
    after = marker_in(store)
    assert spans_of(store) == [(6, 8), (8, 10), (10, 12)]
    assert (after.pruned_before, after.start_offset, after.next_offset, after.tail) == (6, 0, 14, before.tail)
    assert after.maintenance
    (retired,) = after.maintenance.retired
    assert (retired.at, after.maintenance.rewriting, after.maintenance.revision) == (None, None, 2)
    gone = [each for level in before.catalogs for each in level if each not in sum(after.catalogs, ())]
    assert list(retired.references) == gone
    assert all(f"~r{retired.token}-" in each.name for each in sum(after.catalogs, ()) if each.start_offset < 8)
    assert run(store, prune(KEYS, 12)) is RewriteOutcome.COMMITTED
    assert (marker_in(store).catalogs, marker_in(store).cover(1), marker_in(store).num_chunks) == ((), 12, 2)


@pytest.mark.parametrize("floor", range(1, 13))
def test_the_floor_may_be_in_a_catalog_on_any_level(floor: int, store: MemoryStore) -> None:
    before = marker_in(store)
    assert len(before.catalogs) == 2
    assert run(store, prune(KEYS, floor)) is RewriteOutcome.COMMITTED
    after = marker_in(store)
    first = [(floor, floor + 1)] if floor % 2 else []
    assert spans_of(store) == first + [(n, n + 2) for n in range(floor + floor % 2, 12, 2)]
    assert (after.pruned_before, after.start_offset, after.num_chunks, after.tail) == (
        floor,
        0,
        14 - floor,
        before.tail,
    )
    assert all(len(new) <= len(old) for new, old in zip(after.catalogs, before.catalogs, strict=False))
    gone = [each for level in before.catalogs for each in level if each not in sum(after.catalogs, ())]
    assert list(after.retired[0].references) == gone
    assert run(store, prune(KEYS, 12)) is (RewriteOutcome.COMMITTED if floor < 12 else RewriteOutcome.NOTHING)


def test_only_where_a_chunk_in_a_catalog_begins_or_ends_can_be_the_floor(store: MemoryStore) -> None:
    before = marker_in(store)
    assert [run(store, prune(KEYS, floor)) for floor in (13, 14, 100)] == [RewriteOutcome.NOTHING] * 3
    assert marker_in(store) == before
    run(store, prune(KEYS, 4))
    assert run(store, prune(KEYS, 4)) is RewriteOutcome.NOTHING


@pytest.mark.parametrize("fate", [Fate.ANSWER_LOST, Fate.NOT_APPLIED, Fate.LATE, Fate.REPEATED])
def test_it_is_done_once_whatever_becomes_of_its_swaps(fate: Fate, store: MemoryStore) -> None:
    actor, met = Actor("maintainer", prune(KEYS, 6), store, LOG, TOKENS), list[Any]()
    while actor.operation is not None:
        is_first = isinstance(actor.operation, CompareAndSwap) and actor.operation not in met
        met += [actor.operation] if is_first else []
        actor.step(fate if is_first else Fate.NORMAL)
        for request in list(actor.late):
            actor.deliver(request)
    assert (actor.failure, actor.result, marker_in(store).pruned_before) == (None, RewriteOutcome.COMMITTED, 6)
    assert len(marker_in(store).maintenance.retired) == 1  # type: ignore[union-attr]


def test_a_living_maintainer_is_left_alone(store: MemoryStore) -> None:
    other = Rewriting(token=TOKEN, kind="merge", level=1, start=0, end=2, since=0)
    maintained(store, rewriting=other)
    store.now = LEASE_MS / 1000 - 1
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.BUSY
    store.now += 1
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.COMMITTED


def test_one_whose_clock_was_far_ahead_keeps_nobody_away(store: MemoryStore) -> None:
    maintained(store, rewriting=Rewriting(token=TOKEN, kind="merge", level=1, start=0, end=2, since=2 * LEASE_MS))
    store.now = LEASE_MS / 1000 + 1
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.BUSY
    store.now = LEASE_MS / 1000
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.COMMITTED


def test_who_lost_the_intent_commits_nothing(store: MemoryStore) -> None:
    actor = Actor("maintainer", prune(KEYS, 6), store, LOG, TOKENS)
    while not (isinstance(actor.operation, CompareAndSwap) and marker_in(store).maintenance):
        actor.step()
    other = Rewriting(token=TOKEN, kind="merge", level=1, start=0, end=2, since=0)
    maintained(store, rewriting=other)
    actor.run_to_end()
    assert (actor.failure, actor.result) == (None, RewriteOutcome.OVERTAKEN)
    assert (marker_in(store).pruned_before, marker_in(store).maintenance.rewriting) == (0, other)  # type: ignore[union-attr]


def test_a_prune_that_is_interrupted_leaves_no_intent_behind(store: MemoryStore) -> None:
    for half_requests in range(2, 100):
        mortal = MortalStore()
        mortal.objects = dict(store.objects)
        mortal.dies_at, mortal.death = half_requests / 2, KeyboardInterrupt
        driver = Driver(mortal, UnreadLog(), lambda *_: None, lambda: True)
        try:
            assert driver.run(prune(KEYS, 8)) is RewriteOutcome.COMMITTED
        except KeyboardInterrupt:
            maintenance = marker_in(mortal).maintenance
            assert not maintenance or maintenance.rewriting is None, f"interrupted at request {half_requests / 2}"
        else:
            assert half_requests > 8
            return
    raise AssertionError("it never came to its end")


def test_garbage_collection_comes_before_the_65th(store: MemoryStore) -> None:
    retired = Retired(references=(reference(0, 1, newest=0),), token=TOKEN)
    maintained(store, retired=(retired,) * MAX_RETIRED)
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.FULL


def test_layout_seed_is_refused(store: MemoryStore) -> None:
    with pytest.raises(RewriteRefused):
        run(store, prune(identity_of("seed").keys, 6))


def test_a_run_is_found_in_one_list_alone(store: MemoryStore) -> None:
    marker = marker_in(store)
    for start, end, there in ((8, 10, True), (8, 12, True), (0, 2, True), (0, 12, False), (2, 3, False)):
        found = run(store, find_run(KEYS, marker, start, end))
        assert (found is not None) is there, (start, end)


def test_the_intent_is_kept_while_chunks_are_made_and_checked(store: MemoryStore) -> None:
    others = list[RewriteOutcome]()

    def work() -> None:
        store.now += LEASE_MS / 1000 / 2
        others.append(run(store, prune(KEYS, 6)))

    def contents(old: Sequence[OldChunk]) -> Iterator[Item]:
        for chunk in old:
            work()
            yield EmptiedRun(chunk.entry.start_offset, chunk.entry.next_offset)

    def check(old: Sequence[OldChunk], new: NewChunk | EmptiedRun) -> None:
        assert [(each.entry.start_offset, each.entry.next_offset) for each in old] == [new[:2]]
        work()

    def choose(marker: Marker) -> Protocol[CatalogRun | None]:
        return find_run(KEYS, marker, 8, 12)

    assert run(store, rewrite(KEYS, choose, Rewrite("erase", contents, check))) is RewriteOutcome.COMMITTED
    assert others == [RewriteOutcome.BUSY] * 8


SEEDS = range(300)
WIDTH = 3


def entry(start: int, end: int, *, name: str = "old") -> ChunkEntry:
    return chunk_entry(start, end, name=f"{start:020d}-{name}.index.json", last_offset=start, num_records=1)


def catalogs(rng: random.Random) -> list[OldCatalog]:
    """Neighbours as folds make them; some with gaps in front of entries, some without entries."""
    made, start = list[OldCatalog](), rng.randrange(5)
    for _ in range(rng.randint(1, 4)):
        entries, gaps, at = list[ChunkEntry](), list[Gap](), start
        for _ in range(rng.randint(1, WIDTH)):
            if rng.random() < 0.3:
                gaps.append(Gap(at, at := at + rng.randint(1, 3), "retention"))
            if rng.random() < 0.2:
                gaps.append(Gap(at, at := at + rng.randint(1, 3), ERASED))
            else:
                entries.append(entry(at, at := at + rng.randint(1, 4)))
        catalog = ChunkCatalog(level=1, entries=tuple(entries), gaps=tuple(gaps))
        made.append(OldCatalog(reference_to(catalog, "name", encode(catalog), (start, at)), catalog))
        start = at
    return made


def rewritten(rng: random.Random, old: list[OldCatalog]) -> list[ChunkEntry | EmptiedRun]:
    """Some entries as they are, some new, some joined, some erased."""
    items = list[ChunkEntry | EmptiedRun]()
    for each in (each for one in old for each in one.catalog.entries):
        last, what = items[-1] if items else None, rng.random()
        if what < 0.3 and isinstance(last, ChunkEntry) and last.next_offset == each.start_offset:
            items[-1] = entry(last.start_offset, each.next_offset, name="new")
        elif what < 0.5:
            items.append(EmptiedRun(each.start_offset, each.next_offset))
        else:
            items.append(each if what < 0.8 else entry(each.start_offset, each.next_offset, name="new"))
    return items


@pytest.mark.parametrize("is_repacked", [False, True])
def test_new_catalogs_stand_for_the_same_offsets(*, is_repacked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", WIDTH)
    for seed in SEEDS:
        rng = random.Random(seed)
        old = catalogs(rng)
        items = rewritten(rng, old)
        new = new_catalogs(old, items, at=7, is_repacked=is_repacked)
        bodies = [each.catalog for each in new]
        assert len(new) <= len(old), seed
        spans = [(e.start, e.end) if isinstance(e, NewCatalog) else span_of(e) for e in new]
        assert (spans[0][0], spans[-1][1]) == (span_of(old[0])[0], span_of(old[-1])[1]), seed
        assert all(a[1] <= b[0] for a, b in pairwise(spans)), seed
        assert [e for body in bodies for e in body.entries] == [i for i in items if isinstance(i, ChunkEntry)], seed
        gaps = [gap for one in old for gap in one.catalog.gaps]
        gaps += [Gap(i.start_offset, i.next_offset, ERASED, at=7) for i in items if isinstance(i, EmptiedRun)]
        assert sorted((g for b in bodies for g in b.gaps), key=lambda g: g.start) == sorted(gaps, key=lambda g: g.start)
        for each in new:
            if isinstance(each, NewCatalog):
                body = encode(each.catalog)
                reference = reference_to(each.catalog, "name", body, (each.start, each.end))
                assert decode_catalog(body, reference, 1) == each.catalog, seed


def span_of(old: OldCatalog) -> tuple[int, int]:
    return old.reference.start_offset, old.reference.next_offset


def test_what_does_not_change_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", WIDTH)
    for seed in SEEDS:
        old = catalogs(random.Random(seed))
        same = [each for one in old for each in one.catalog.entries]
        assert new_catalogs(old, same, at=7, is_repacked=False) == old


def old_chunk(folder: Path, *gaps: Gap) -> OldChunk:
    """A chunk over [100, 200) with those gaps in its index."""
    partition = Partition(random.Random(1), folder).grow(1)
    partition.buffers.close()
    entry, index = partition.chunks[0].entry, partition.chunks[0].index
    span = {"start_offset": 100, "next_offset": 200, "first_offset": 100, "last_offset": 199}
    block = replace(index.blocks[0], first_record_offset=100, last_record_offset=199, byte_length=index.data.bytes)
    whole = replace(
        index,
        **span,
        gaps=gaps,
        erased=(),
        blocks=(block,),
        num_records=block.num_records,
        min_timestamp=block.min_timestamp,
        max_timestamp=block.max_timestamp,
    )
    return OldChunk(replace(entry, **span, num_records=block.num_records), whole)


def test_a_run_is_cut_at_gaps(tmp_path: Path) -> None:
    run = EmptiedRun(100, 200)
    assert apart_from_gaps(run, [old_chunk(tmp_path)]) == [run]
    before = Gap(90, 100, "retention")
    inside = (Gap(120, 130, "skipped"), Gap(130, 131, "unverified"), Gap(190, 200, "skipped"))
    pieces = [EmptiedRun(100, 120), EmptiedRun(131, 190)]
    assert apart_from_gaps(run, [old_chunk(tmp_path, before, *inside)]) == pieces
    assert apart_from_gaps(run, [old_chunk(tmp_path, Gap(100, 110, "skipped"))]) == [EmptiedRun(110, 200)]
