"""Pruning: what goes by a rule, whatever timestamps say, in catalogs, in the tail and in chunks; and what stays."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.commit.commit import commit_chunk
from archiver.commit.recovery import take_over
from archiver.errors import ContentsDiffer, Fenced
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain import prune as pruning
from archiver.maintain.compact import Compaction, compact
from archiver.maintain.compact import plan_partition as plan_compaction
from archiver.maintain.gc import plan_sweep
from archiver.maintain.prune import (
    Keep,
    OlderRecords,
    PartitionPruning,
    WhyOlder,
    divided,
    older_records,
    plan_partition,
    prune_partition,
)
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairTarget
from archiver.maintain.rewrite.chunks import NO_KEYS, NewChunk, OffsetRanges, RewriteKeys
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from archiver.maintain.rewrite.intent import RewriteOutcome, fold_tail, request_fold
from archiver.maintain.rewrite.tree import read_chain
from index_format import marker as markers
from index_format.marker import ChunkEntry, Maintenance
from index_format.objects import BlockEntry, Erased, Gap
from index_format.records import Record
from tests.archiver.maintain.erase.world import EraseWorld, encrypted_world, keys_in, log_of, ranges
from tests.archiver.maintain.repair.world import MAX, Died
from tests.index_format.builders import record
from tests.support.chunks import GROUP, POLICY
from tests.support.format_objects import chunk_entry
from tests.support.memory_store import MemoryLog
from tests.support.repairs import carry_out
from tests.support.sampling import mostly_long, seeded_random


def inside(chunk: ChunkEntry, share: float = 0.5) -> Keep:
    """Keep what is newer than about that share of a chunk."""
    return Keep(since_ms=round(chunk.min_timestamp + share * (chunk.max_timestamp - chunk.min_timestamp)))


@dataclass
class PruneWorld(EraseWorld):
    """The same, and what pruning it means."""

    def held_offsets(self) -> set[int]:
        """Offsets that were archived, at or above the floor."""
        return {offset for offset in self.stored if offset >= self.marker.pruned_before}

    @contextmanager
    def tools(self, folder: Path) -> Iterator[RewriteTools]:
        buffers = BufferFolder(folder)
        try:
            yield RewriteTools(self.maintainer(), self.store, buffers, 1 << 20, MAX)
            assert buffers.used_bytes == 0
        finally:
            buffers.close()

    def check(self) -> None:
        """See EraseWorld; below the floor nothing is called erased."""
        self.erased = {offset for offset in self.erased if offset >= self.marker.pruned_before}
        super().check()

    def pruning(self, keep: Keep, keys: RewriteKeys = NO_KEYS, *, is_thrifty: bool = False) -> PartitionPruning:
        plan = self.maintainer().run(plan_partition(self.keys, keep, keys, is_thrifty=is_thrifty))
        assert plan is not None
        return plan

    def prune(self, keep: Keep, folder: Path) -> PartitionPruning:
        """Prune as planned; what goes is the oldest, and nothing that is to stay."""
        plan, before = self.pruning(keep, self.rewrite_keys), self.archived()[0]
        if plan.floor is None:
            return plan
        with self.tools(folder) as tools:
            assert prune_partition(plan, tools, self.rewrite_keys) is RewriteOutcome.COMMITTED
        after = self.archived()[0]
        assert set(after) == {offset for offset in before if offset >= plan.floor}
        assert len(before) - len(after) == plan.num_records > 0
        if keep.since_ms is not None:
            assert all(before[offset].timestamp < keep.since_ms for offset in before.keys() - after.keys())
        self.check()
        return plan

    def compact(self, folder: Path) -> ChunkEntry:
        """Neighbours become one chunk of several blocks; gives the chunk with the most records."""
        merge = Compaction(MergeLimits(1 << 20, 2 << 20), keys=self.rewrite_keys)
        plan = self.maintainer().run(plan_compaction(self.keys, merge, 1 << 30))
        assert plan is not None
        with self.tools(folder) as tools:
            assert compact(plan, merge, tools).error is None
        return max(self.entries, key=lambda entry: entry.num_records)

    @property
    def entries(self) -> Sequence[ChunkEntry]:
        chain = read_chain(self.store, self.keys)
        assert chain is not None
        return chain.entries

    def collect(self) -> None:
        """Let graces pass: nothing but the archive is left."""
        for _ in range(3):
            self.store.now += 4000
            plan_sweep(self.store, (), 3600, wait=lambda *_: None).carry_out()


def world_of(rng: random.Random, chunks: int, log: MemoryLog | None = None) -> PruneWorld:
    world = PruneWorld(log=log or log_of(rng, 700))
    world.archive(rng, chunks)
    return world


def lying_log(rng: random.Random, count: int) -> MemoryLog:
    """Records whose timestamps mostly rise; some are late, of the far future, or missing, alone or many in a row."""
    rows, offset, undated = list[Record](), 0, 0
    for number in range(count):
        undated = max(0, undated - 1) or (rng.choice([1, 12]) if rng.random() < 0.02 else 0)
        timestamp = 1000 + 10 * number + rng.choice([0, 0, 0, -200, 30])
        timestamp = 10**9 if rng.random() < 0.004 else -1 if undated else max(0, timestamp)
        rows.append(record(offset, b"v%d" % offset, rng.choice([None, b"k"]), timestamp=timestamp))
        offset += rng.choice([1, 1, 1, 2, 6])
    return MemoryLog(rows)


@pytest.mark.slow
@pytest.mark.parametrize("run", mostly_long(range(8), 2))
def test_whatever_timestamps_say_nothing_goes_that_is_to_stay(run: int, tmp_path: Path) -> None:
    rng = seeded_random()
    world = world_of(rng, rng.choice([3, 70, 140]), lying_log(rng, 700))
    for _ in range(4):
        world.archive(rng, rng.randrange(20))
        if rng.random() < 0.5:
            world.compact(tmp_path)
        archived = world.archived()[0]
        keep = Keep(since_ms=rng.choice(sorted({each.timestamp for each in archived.values()})))
        world.prune(keep, tmp_path)
        plan = world.pruning(keep)
        assert plan.floor is None, "nothing is left for the next prune"
        older = sum(0 <= each.timestamp < (keep.since_ms or 0) for each in world.archived()[0].values())
        least, most = (plan.older.least, plan.older.most) if plan.older else (0, 0)
        assert least <= older <= most
        world.archive(rng, 3)
        world.check()
    if world.marker.maintenance:
        world.collect()
    world.check()


@pytest.mark.slow
def test_a_size_keeps_the_newest_bytes_to_a_block(tmp_path: Path) -> None:
    world = world_of(random.Random(1), 140)
    world.compact(tmp_path)
    size = world.marker.num_bytes // 3
    world.prune(Keep(newest_bytes=size), tmp_path)
    assert size <= world.marker.num_bytes < size + 2000
    world.prune(Keep(newest_bytes=1), tmp_path)
    assert len(world.marker.spans) == len(world.entries) == 1


def test_a_chunk_is_cut_at_a_block_and_its_old_data_goes(tmp_path: Path) -> None:
    world = world_of(random.Random(2), 70)
    merged = world.compact(tmp_path)
    keep = inside(merged)
    plan = world.prune(keep, tmp_path)
    assert isinstance(plan.going[-1], BlockEntry) and merged.start_offset < plan.pruned_before < merged.next_offset
    world.collect()
    world.check()
    data = [key for key in world.store.objects if key.endswith(".gz")]
    assert len(data) == world.marker.num_chunks
    assert min(each.timestamp for each in world.archived()[0].values()) > (keep.since_ms or 0) - 30


def test_a_silent_topic_is_pruned_as_a_whole_and_archived_further(tmp_path: Path) -> None:
    world = world_of(random.Random(3), 5)
    before = world.held
    plan = world.prune(Keep(since_ms=10**6), tmp_path)
    assert (plan.folds_before, plan.older) == (world.marker.pruned_before, None)
    marker = world.marker
    assert (marker.catalogs, marker.tail, marker.num_records) == ((), (), 0)
    assert marker.pruned_before == plan.pruned_before == marker.next_offset
    assert before is not None and marker.newest_offset == before.marker.tail[-1].last_offset
    assert marker.tail_hash == before.marker.tail_hash
    world.collect()
    assert [key for key in world.store.objects if key.endswith((".gz", ".index.json")) and "last_" not in key] == []
    assert world.maintainer().run(plan_partition(world.keys, Keep(since_ms=10**6))) is None
    world.claim()
    world.archive(random.Random(4), 70)
    world.check()
    assert world.marker.pruned_before == plan.pruned_before


def test_a_writer_at_work_claims_again_after_its_tail_was_pruned(tmp_path: Path) -> None:
    world = world_of(random.Random(5), 5)
    first = world.held.marker.tail[0] if world.held else None
    assert first is not None
    plan = world.prune(Keep(since_ms=first.max_timestamp + 1), tmp_path)
    assert plan.folds_before == first.next_offset
    assert len(world.marker.tail) == 4
    rows = [each.offset for each in world.log.records if each.offset >= (world.marker.next_offset or 0)][:3]
    with pytest.raises(Fenced):
        world._append(rows)
    world.claim()
    world._append(rows)
    world.check()


@pytest.mark.slow
def test_who_writes_where_only_catalogs_are_pruned_is_left_alone(tmp_path: Path) -> None:
    world = world_of(random.Random(6), 100)
    before = world.marker.epoch
    plan = world.prune(Keep(since_ms=1100), tmp_path)
    assert plan.folds_before is None
    world.archive(random.Random(7), 3)
    assert world.marker.epoch == before
    world.check()


def test_what_was_passed_over_behind_the_newest_record_needs_no_catalog(tmp_path: Path) -> None:
    world = PruneWorld(log=MemoryLog([record(offset, b"v", timestamp=1000) for offset in range(6)]))
    chunk = world.chunk([0, 1, 2, 3, 4], end=6)._replace(gaps=(Gap(5, 6, "skipped"),))
    world.held = world.run(commit_chunk(world.identity, world.claim(), chunk))
    world.stored |= set(range(5))
    plan = world.pruning(Keep(since_ms=2000))
    with world.tools(tmp_path) as tools:
        assert prune_partition(plan, tools) is RewriteOutcome.COMMITTED
    assert (world.marker.gaps, world.marker.newest_offset, world.marker.pruned_before) == ((), 4, 6)
    assert world.run(take_over(world.identity, "writer", POLICY)).position == 6


def test_a_gap_may_begin_where_the_newest_chunks_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 2)  # the tail is full, and folded as a whole
    world = PruneWorld(log=MemoryLog([record(offset, b"v", timestamp=1000 + offset) for offset in range(9)]))
    world._append([0, 1])
    world.log.low, world.held = 6, None
    world._append([6, 7, 8])
    plan = world.prune(Keep(since_ms=1002), tmp_path)
    assert (plan.folds_before, world.marker.pruned_before) == (2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("half", [0.0, 0.5])
@pytest.mark.parametrize("all_goes", [False, True])
def test_a_prune_that_dies_at_any_request_can_be_run_again(half: float, all_goes: bool, tmp_path: Path) -> None:
    start = world_of(random.Random(9), 2)
    start.maintainer().run(fold_tail(start.keys, OffsetRanges([range(10_000)]), "folder"))
    start.claim()
    start.archive(random.Random(8), 1)
    rows = [each.offset for each in start.log.records if each.offset >= (start.marker.next_offset or 0)]
    start._append(rows[:20])
    # Inside a chunk of the tail, or all that there is.
    keep = Keep(since_ms=10**6 if all_goes else start.marker.tail[-1].max_timestamp - 3)
    for died in range(1, 200):
        world = start.copy()
        world.store.requests, world.store.dies_at = 0, died + half
        try:
            world.prune(keep, tmp_path)
        except Died:
            pass
        else:
            break
        world.store.dies_at = None
        world.check()
        world.archive(random.Random(died), 1)
        world.check()
        world.prune(keep, tmp_path)
        world.check()
        assert all(each.timestamp >= (keep.since_ms or 0) - 10 for each in world.archived()[0].values()) or all_goes
    else:
        raise AssertionError("it never came to its end")
    assert died > 12


def test_a_marker_that_is_lost_after_a_cut_is_rebuilt_from_the_floor(tmp_path: Path) -> None:
    world = world_of(random.Random(10), 70)
    plan = world.prune(inside(world.compact(tmp_path)), tmp_path)
    assert isinstance(plan.going[-1], BlockEntry)
    for is_collected in (False, True):
        if is_collected:
            world.collect()
        twin = world.copy()
        del twin.store.objects[twin.keys.marker]
        repair = plan_marker(RepairTarget(twin.store, twin.keys, MAX), GROUP)
        assert not repair.problems, repair.problems
        carry_out(repair)
        archived = set(twin.archived()[0])
        assert {offset for offset in archived if offset >= plan.pruned_before} == world.held_offsets()
        assert not is_collected or twin.marker.pruned_before == plan.pruned_before


@pytest.mark.slow
def test_an_encrypted_chunk_is_cut_with_its_key_and_goes_as_a_whole_without(tmp_path: Path) -> None:
    keys = keys_in(tmp_path, 1)
    made = encrypted_world(random.Random(11), 140, keys)
    world = PruneWorld(made.identity, made.store, made.log, made.held, made.erased, made.stored, made.rewrite_keys)
    merged = world.compact(tmp_path)
    keep = inside(merged)
    locked = world.pruning(keep)
    assert locked.floor in (None, merged.start_offset) and locked.older is not None
    assert locked.older.why is WhyOlder.LOCKED and locked.older.most > 30
    pruned = world.prune(keep, tmp_path)
    assert isinstance(pruned.going[-1], BlockEntry)
    assert world.pruning(keep, world.rewrite_keys).floor is None


def test_a_rest_that_differs_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(random.Random(12), 70)
    keep, before = inside(world.compact(tmp_path)), world.marker.catalogs
    real = pruning.rest_of

    def another(*arguments: Any) -> NewChunk:
        new = real(*arguments)
        erased = Erased(new.start_offset, new.start_offset + 1)
        return NewChunk(replace(new.index, erased=(erased,)), new.body)

    monkeypatch.setattr(pruning, "rest_of", another)
    with pytest.raises(ContentsDiffer):
        world.prune(keep, tmp_path)
    assert world.marker.catalogs == before
    assert world.marker.maintenance and world.marker.maintenance.rewriting is None


def test_chunks_that_were_merged_since_the_plan_are_left_to_the_next_one(tmp_path: Path) -> None:
    world = world_of(random.Random(13), 70)
    keep = inside(world.compact(tmp_path))
    plan = world.pruning(keep)
    assert plan.floor is not None and isinstance(plan.going[-1], BlockEntry)
    world.erase(ranges(plan.floor), tmp_path)
    with world.tools(tmp_path) as tools:
        assert prune_partition(plan, tools) is RewriteOutcome.NOTHING
    world.check()
    world.prune(keep, tmp_path)


def test_a_thrifty_prune_cuts_a_chunk_only_if_half_of_it_goes(tmp_path: Path) -> None:
    world = world_of(random.Random(14), 70)
    merged = world.compact(tmp_path)
    for share, is_cut in ((0.3, False), (0.7, True)):
        keep = inside(merged, share)
        assert isinstance(world.pruning(keep).going[-1], BlockEntry)
        thrifty = world.pruning(keep, is_thrifty=True)
        assert any(isinstance(each, BlockEntry) for each in thrifty.going) is is_cut
        assert is_cut or (thrifty.older is not None and thrifty.older.most > 0)


def test_a_request_to_fold_is_made_once() -> None:
    world = world_of(random.Random(16), 5)
    end = world.marker.tail[1].next_offset
    for _ in range(2):
        world.maintainer().run(request_fold(world.keys, end))
        assert world.marker.maintenance == Maintenance(revision=1, fold_before=end)
    world.archive(random.Random(17), 1)
    assert [each.num_chunks for each in world.marker.catalogs[0]] == [2]
    assert world.held is not None and world.marker.epoch == world.held.marker.epoch == 1


def part(start: int, low: int, high: int) -> ChunkEntry:
    """A chunk of ten records with these bounds of timestamps."""
    return chunk_entry(start, start + 10, min_timestamp=low, max_timestamp=high)


@pytest.mark.parametrize(
    ("parts", "older"),
    [
        ([], None),
        ([part(0, 100, 200)], None),
        ([part(0, 50, 200)], OlderRecords(1, 9, 0, 200, WhyOlder.MIXED)),
        ([part(0, -1, 200)], OlderRecords(0, 9, 0, 200, WhyOlder.MIXED)),
        ([part(0, 100, 900), part(10, 1, 2)], OlderRecords(10, 10, 0, 900, WhyOlder.BEHIND)),
        ([part(0, 50, 900), part(10, 1, 2), part(20, 99, 100)], OlderRecords(12, 28, 0, 900, WhyOlder.BEHIND)),
        ([part(0, -1, -1), part(10, 1, 2)], OlderRecords(10, 10, 0, -1, WhyOlder.UNDATED)),
        ([part(0, -1, -1)], None),
        ([part(0, 100, 900), part(10, -1, 2)], OlderRecords(1, 10, 0, 900, WhyOlder.BEHIND)),
    ],
)
def test_the_older_records_that_stay_are_counted(parts: list[ChunkEntry], older: OlderRecords | None) -> None:
    assert older_records(parts, Keep(since_ms=100)) == older
    assert older_records(parts, Keep(newest_bytes=1)) is None


def test_nothing_goes_behind_what_stays() -> None:
    parts = [part(0, 1, 2), part(10, 5, 900), part(20, 1, 2)]
    assert divided(parts, 10**6, Keep(since_ms=100)) == (parts[:1], parts[1:])
