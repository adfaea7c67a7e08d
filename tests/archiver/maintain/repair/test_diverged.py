"""A log that was truncated and written again: where the partition goes on, and that readers see one partition."""

import asyncio
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.commit.archive import find_incarnation
from archiver.commit.commit import commit_chunk, commit_progress
from archiver.commit.operations import Driver, UnreadLog
from archiver.commit.recovery import last_folder, name_successors, take_over, take_over_last
from archiver.errors import Diverged, Fenced, FolderClosed, RewriteOvertaken, UnreadableRecord
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain.compact import Compaction, PartitionCompaction, PlannedCompaction, compact
from archiver.maintain.gc import plan_sweep
from archiver.maintain.planned import RewriteResult
from archiver.maintain.repair.diverged import LogSource, plan_diverged
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairPlan, RepairTarget, later_folders, targets
from archiver.maintain.repair.salvage import plan_salvage
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from archiver.maintain.rewrite.intent import RewriteOutcome, begin
from archiver.maintain.rewrite.tree import commit
from blockgz.archive.archive import ArchiveReader
from blockgz.archive.follow import Follower
from blockgz.archive.lookup import FoundRecord, look_up_all
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.selection import scan
from index_format import marker as markers
from index_format.keys import LAYOUTS, TopicFolder
from index_format.marker import Continues
from index_format.objects import Gap
from replayer.spark import stream
from replayer.spark.planning import parts_of
from replayer.verify.report import Depth
from replayer.verify.verifying import verify_partition
from tests.archiver.maintain.repair.world import LOG, MAX, Died, World
from tests.index_format.builders import record
from tests.support.archives import ARCHIVE_ID
from tests.support.chunks import GROUP, POLICY, identity_of
from tests.support.memory_reader import MemoryReader
from tests.support.memory_store import MemoryLog
from tests.support.repairs import carry_out
from tests.support.sampling import mostly_long, some_of

GRACE = 3600.0
DIRTY = "read_uncommitted"


def rewritten(start: int, end: int, low: int = 0, word: bytes = b"new") -> MemoryLog:
    """The log truncated to `start` and written again up to `end`."""
    rows = [*LOG.records[:start], *(record(n, b"%s-%d" % (word, n), timestamp=5000 + n) for n in range(start, end))]
    return MemoryLog([row for row in rows if row.offset >= low], low=low, high=end)


class Cluster(World):
    """With a topic object, and what a repair asks."""

    topic_id: str | None = "id-1"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.settle("id-1")

    def settle(self, topic_id: str | None) -> TopicFolder:
        """The folder of the topic with that id."""
        return find_incarnation(self.store, layout=self.keys.layout, topic="orders", topic_id=topic_id)

    def plan(self) -> RepairPlan:
        source = LogSource(lambda topic, partition, level: self.log, lambda topic: self.topic_id)
        return plan_diverged(RepairTarget(self.store, self.keys, MAX), source)

    def repaired(self) -> Continues:
        plan = self.plan()
        assert not plan.problems, [problem.error.why for problem in plan.problems]
        failed = list(carry_out(plan).values())
        assert not failed, failed
        continues = self.marker_at(self.last()).continues
        assert continues
        return continues

    def last(self) -> Any:
        return self.run(last_folder(self.keys))

    def marker_at(self, keys: Any) -> markers.Marker:
        return markers.decode_marker(self.store.bodies()[keys.marker])

    def go_on(self, rows: Sequence[int]) -> None:
        """An archiver takes the partition over where it goes on, and archives these offsets."""
        identity, claimed = self.run(take_over_last(self.identity, "again", POLICY))
        assert claimed.position == rows[0]
        self.run(commit_chunk(identity, claimed.held, self.chunk(rows)))

    def read(self, topic: str = "orders") -> "View":
        return asyncio.run(view(self, topic))


def no_wait(attempt: int, cause: object) -> None:
    raise AssertionError(cause)


class View:
    """What readers see of a partition."""

    records: dict[int, bytes | None]
    looked_up: dict[int, bytes | None]
    verified: Any
    gaps: tuple[Gap, ...]
    partition: ArchivedPartition


async def view(world: Cluster, topic: str) -> View:
    archive, found = ArchiveReader(MemoryReader(world.store.bodies())), View()
    partition = found.partition = await archive.open_partition(topic, 3)
    batches = [batch async for batch in scan(partition, 0, 2**63 - 1)]
    found.records = {
        offset: value
        for batch in batches
        for offset, value in zip(*(batch.column(name).to_pylist() for name in ("offset", "value")), strict=True)
    }
    outcomes = await look_up_all(partition, range(110))
    found.looked_up = {n: each.record.value for n, each in outcomes.items() if isinstance(each, FoundRecord)}
    found.verified = await verify_partition(archive, topic, 3, Depth.RECORDS, lambda *_: None)
    found.gaps = await partition.gaps()
    assert sorted(found.records) == list(found.records), "in order, each once"
    assert found.looked_up == found.records
    assert not found.verified.damage and not found.verified.lost, (found.verified.damage, found.verified.lost)
    assert partition.num_records == found.verified.records == len(found.records)
    assert await archive.partitions(topic) == (3,)
    return found


def values(log: MemoryLog, start: int = 0) -> dict[int, bytes | None]:
    return {row.offset: row.value for row in log.records if row.offset >= start}


def usual(**settings: Any) -> Cluster:
    """0 to 29 in three chunks; then everything from 15 on is another log, up to 49."""
    world = Cluster(**settings)
    for start in (0, 10, 20):
        world.commit(range(start, start + 10))
    world.log = rewritten(15, 50)
    with pytest.raises(Diverged):
        world.claim()
    return world


def continued_from_20(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """0 to 59 in six chunks, most in catalogs of two; then everything from 25 on is another log."""
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    world = Cluster()
    for start in range(0, 60, 10):
        world.commit(range(start, start + 10))
    world.log = rewritten(25, 70)
    return world


@pytest.mark.slow
def test_no_chunk_becomes_one_with_another_on_the_other_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = continued_from_20(monkeypatch)
    assert world.repaired() == Continues("orders", 20)
    world.go_on(range(20, 70))
    compaction = Compaction(MergeLimits(1 << 20, 1 << 21))
    driver, buffers, done = (
        Driver(world.store, UnreadLog(), no_wait, lambda: True),
        BufferFolder(tmp_path),
        list[RewriteResult[PartitionCompaction]](),
    )
    tools = RewriteTools(driver, world.store, buffers, MAX, MAX)
    while plans := PlannedCompaction(world.store, None, compaction, driver, MAX, lambda plans: ()).partitions:
        done += [compact(each, compaction, tools) for each in plans]
    buffers.close()
    assert done and all(each.outcome is RewriteOutcome.COMMITTED for each in done)
    assert world.read().records == {n: LOG.records[n].value for n in range(20)} | values(world.log, 20)
    assert world.read("orders~1").partition.num_chunks == 4


def test_a_rewrite_that_began_before_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = continued_from_20(monkeypatch)

    def choose(marker: markers.Marker) -> Any:
        yield from ()
        return range(40)

    attempt, _ = world.run(begin(world.keys, "merge", choose))
    world.repaired()
    with pytest.raises(RewriteOvertaken) as caught:
        world.run(commit(attempt, ()))
    assert "has continued in orders~2 since this merge began" in caught.value.why


def test_in_layout_seed_the_other_log_is_not_mixed_in() -> None:
    """Folders share the names of chunks there: a gap in the next one is not filled from the older one."""
    world = Cluster(identity=identity_of("seed", archive_id=ARCHIVE_ID))
    world.commit(range(10))
    world.commit(range(10, 20))
    world.log = rewritten(5, 40, low=0)
    world.repaired()
    world.log = rewritten(5, 40, low=15)
    world.go_on(range(15, 40))
    before = world.read().records
    assert min(before) == 15
    target = RepairTarget(world.store, world.last(), MAX)
    assert plan_salvage(target).steps == []
    del world.store.objects[target.keys.marker]
    plan = plan_marker(target, GROUP)
    assert (plan.problems, carry_out(plan)) == ([], {})
    assert world.read().records == before


@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_it_continues_after_the_newest_chunk_whose_last_record_the_log_holds(layout: str) -> None:
    world = usual(identity=identity_of(layout, archive_id=ARCHIVE_ID))
    (step,) = world.plan().steps
    assert "continues in orders~2 from offset 10; 20 records" in step.detail and "orders~1:3" in step.detail
    assert world.repaired() == Continues("orders", 10)
    assert values(rewritten(10, 10)) == world.read().records
    world.go_on(range(10, 50))
    seen = world.read()
    assert seen.records == {n: LOG.records[n].value for n in range(10)} | values(world.log, 10)
    assert (seen.partition.start_offset, seen.partition.next_offset) == (0, 50)
    assert {n: LOG.records[n].value for n in range(30)} == world.read("orders~1").records
    assert not world.plan().steps


def test_from_the_last_record_and_never_from_the_end_of_a_chunk() -> None:
    """Holes at the end of the chunk: in the log that is now, records stand there."""
    world = Cluster()
    world.commit(range(10), end=20)
    world.held = world.run(commit_progress(world.identity, world.held, 40))
    world.log = rewritten(10, 30)
    assert world.repaired() == Continues("orders", 10)
    world.go_on(range(10, 30))
    assert world.read().records == values(world.log)


@pytest.mark.parametrize("low", [25, 20, 29, 23])
def test_from_the_logs_start_where_no_chunk_agrees(low: int) -> None:
    """What a chunk around it holds below is copied, so that no chunk is cut for readers."""
    world = usual()
    world.log = rewritten(0, 50, low)
    world.repaired()
    world.go_on(range(low, 50))
    assert world.read().records == {n: LOG.records[n].value for n in range(low)} | values(world.log)


def test_the_logs_start_in_a_hole_at_the_beginning_of_a_chunk() -> None:
    world = Cluster()
    world.commit(range(10))
    world.commit(range(17, 30), start=10)
    world.log = rewritten(0, 50, 13)
    assert world.repaired() == Continues("orders", 10)
    identity, claimed = world.run(take_over_last(world.identity, "again", POLICY))
    assert (claimed.position, claimed.gap, claimed.held.marker.chain_end) == (13, None, 10)
    world.run(commit_chunk(identity, claimed.held, world.chunk(range(13, 50), start=10)))
    assert world.read().records == {n: LOG.records[n].value for n in range(10)} | values(world.log)


def test_from_zero_where_the_log_was_emptied() -> None:
    world = usual()
    world.log = MemoryLog([], low=0, high=0)
    assert world.repaired() == Continues("orders", 0)
    world.log = rewritten(0, 5)
    world.go_on(range(5))
    assert world.read().records == values(world.log)
    assert len(world.read("orders~1").records) == 30


@pytest.mark.parametrize("start", mostly_long(range(0, 40, 4), 4))
def test_folded_chunks_on_both_sides(monkeypatch: pytest.MonkeyPatch, start: int) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    world = Cluster()
    for chunk in range(0, 40, 2):
        world.commit([chunk, chunk + 1])
    world.log = rewritten(start + 1, 60)
    assert world.repaired().offset == start
    identity, claimed = world.run(take_over_last(world.identity, "again", POLICY))
    for chunk in range(start, 60, 2):
        claimed = claimed._replace(
            held=world.run(commit_chunk(identity, claimed.held, world.chunk([chunk, chunk + 1])))
        )
    assert world.read().records == {n: LOG.records[n].value for n in range(start)} | values(world.log, start)


def test_gaps_of_the_older_folder_end_where_it_does() -> None:
    world = Cluster()
    world.commit(range(5))
    world.held = world.run(commit_progress(world.identity, world.claim(), 8, (Gap(5, 8, "skipped"),)))
    world.commit(range(8, 12))
    world.held = world.run(commit_progress(world.identity, world.claim(), 20, (Gap(12, 20, "skipped"),)))
    world.log = rewritten(12, 18)
    assert world.repaired() == Continues("orders", 12)
    world.go_on(range(12, 18))
    seen = world.read()
    assert seen.gaps == (Gap(5, 8, "skipped"),) and list(seen.records) == [*range(5), *range(8, 18)]


def test_holes_right_after_the_turn_do_not_lead_to_the_older_folder() -> None:
    world = usual()
    world.repaired()
    identity, claimed = world.run(take_over_last(world.identity, "again", POLICY))
    held = world.run(commit_progress(identity, claimed.held, 15))
    world.run(commit_chunk(identity, held, world.chunk(range(15, 50), start=held.marker.chain_end)))
    assert world.marker_at(world.last()).tail[0].start_offset == 10
    assert world.read().records == {n: LOG.records[n].value for n in range(10)} | values(world.log, 15)


def went_on_without_records() -> Cluster:
    """The partition goes on at 10; up to 12 there were no records."""
    world = usual()
    world.repaired()
    identity, claimed = world.run(take_over_last(world.identity, "again", POLICY))
    world.run(commit_progress(identity, claimed.held, 12))
    return world


def test_holes_right_after_the_turn_are_not_lost() -> None:
    world = went_on_without_records()
    assert list(world.read().records) == list(range(10))
    world.log = rewritten(15, 60, 45)
    world.go_on(range(45, 60))
    seen = world.read()
    assert list(seen.records) == [*range(10), *range(45, 60)] and seen.gaps == (Gap(12, 45, "retention"),)


def test_a_lost_first_chunk_after_the_turn_is_not_a_hole() -> None:
    world = usual()
    world.repaired()
    world.go_on(range(10, 20))
    world.go_on(range(20, 50))
    keys = world.last()
    held = world.store.get(keys.marker)
    marker = world.marker_at(keys)
    world.store.compare_and_swap(keys.marker, markers.encode(replace(marker, tail=marker.tail[1:])), held.etag)
    with pytest.raises(AssertionError, match="the chain breaks before"):
        world.read()


def test_it_may_diverge_again() -> None:
    world = usual()
    world.repaired()
    world.go_on(range(10, 20))
    world.go_on(range(20, 40))
    world.log = MemoryLog([*world.log.records[:25], *(record(n, b"third-%d" % n) for n in range(25, 60))])
    assert world.repaired() == Continues("orders~2", 20)
    world.go_on(range(20, 60))
    seen = world.read()
    assert seen.records == {n: LOG.records[n].value for n in range(10)} | values(world.log, 10)
    assert [str(keys.folder) for keys, _ in seen.partition.folders] == ["orders", "orders~2", "orders~3"]


def test_nothing_to_do_where_log_and_archive_agree() -> None:
    world = Cluster()
    world.commit(range(10))
    plan = world.plan()
    assert not plan.steps and not plan.problems and "agrees" in plan.notes[0]


def test_a_marker_without_isolation_level_has_that_of_its_newest_chunk() -> None:
    world = Cluster(identity=dataclasses.replace(identity_of("topic", archive_id=ARCHIVE_ID), isolation_level=DIRTY))
    world.commit(range(10))
    world.commit(range(10, 20))
    held = world.store.get(world.keys.marker)
    body = markers.encode(replace(world.marker, isolation_level=None))
    assert held and world.store.compare_and_swap(world.keys.marker, body, held.etag)
    asked = []

    def log_of(topic: str, partition: int, level: str) -> MemoryLog:
        asked.append(level)
        return world.log

    def plan() -> RepairPlan:
        source = LogSource(log_of, lambda topic: "id-1")
        return plan_diverged(RepairTarget(world.store, world.keys, MAX), source)

    assert not plan().steps
    world.log = rewritten(15, 50)
    assert not carry_out(plan())
    assert asked == [DIRTY, DIRTY] and world.marker_at(world.last()).isolation_level == DIRTY


def test_a_log_that_was_written_again_in_holes_after_the_newest_record() -> None:
    """All that is archived stands in the log, and records that the archive passes over."""
    world = Cluster()
    world.commit(range(10), end=14)
    world.log = rewritten(10, 50)
    with pytest.raises(Diverged, match="offset 10 "):
        world.claim()
    assert world.repaired() == Continues("orders", 10)
    world.go_on(range(10, 50))
    assert world.read().records == values(world.log)


def test_a_record_that_cannot_be_read_is_not_the_archived_one() -> None:
    class Failing(MemoryLog):
        def record_at(self, offset: int) -> Any:
            if offset in (19, 29):
                raise UnreadableRecord("it cannot be read", why="its headers are damaged")
            return super().record_at(offset)

    world = usual()
    world.log = Failing(LOG.records)
    assert world.repaired() == Continues("orders", 10)


class Nameless(Cluster):
    """The topic's id was not known as it was begun."""

    def __post_init__(self) -> None:
        World.__post_init__(self)
        self.settle(None)


def nameless() -> Nameless:
    world = Nameless(identity=dataclasses.replace(identity_of("topic", archive_id=ARCHIVE_ID), topic_id=None))
    for start in (0, 10, 20):
        world.commit(range(start, start + 10))
    world.log = rewritten(15, 50)
    return world


def test_a_crash_never_leaves_two_topics_for_who_does_not_know_the_id() -> None:
    for death in deaths(nameless):
        world = nameless()
        world.store.requests, world.store.dies_at = 0, death
        with pytest.raises(Died):
            world.repaired()
        world.store.dies_at = None
        assert str(world.settle(None)) == "orders", death


@pytest.mark.parametrize(("topic_id", "told"), [("id-2", "created again"), (None, "is unknown")])
def test_a_topic_that_may_be_another_one_is_refused(topic_id: str | None, told: str) -> None:
    world = usual()
    world.topic_id = topic_id
    plan = world.plan()
    assert not plan.steps and told in plan.problems[0].error.what


def test_a_folder_of_another_topic_is_not_taken() -> None:
    world = usual()
    world.settle("id-2")
    (problem,) = carry_out(world.plan()).values()
    assert "another topic" in problem.error.what
    assert world.marker.successor is None


def test_a_writer_that_works_on_is_fenced_and_finds_the_new_folder() -> None:
    world = usual()
    held = world.held
    assert held is not None
    world.repaired()
    with pytest.raises(Fenced):
        world.run(commit_chunk(world.identity, held, world.chunk(range(30, 40))))
    with pytest.raises(FolderClosed):
        world.run(take_over(world.identity, "stale", POLICY))
    identity, claimed = world.run(take_over_last(world.identity, "stale", POLICY))
    assert (str(identity.keys.folder), claimed.position) == ("orders~2", 10)


def test_a_commit_between_plan_and_repair_wins() -> None:
    world = usual()
    plan, held, now = world.plan(), world.held, world.log
    assert held is not None
    world.log = MemoryLog(LOG.records)  # fetched before
    world.run(commit_chunk(world.identity, held, world.chunk(range(30, 40))))
    world.log = now
    (problem,) = carry_out(plan).values()
    assert isinstance(problem.error, Fenced) and world.marker.successor is None
    assert list(world.read().records) == list(range(40)), "readers see the old chain"
    world.repaired()
    world.go_on(range(10, 50))
    assert len(world.read().records) == 50


def test_a_second_repair_that_comes_late_changes_nothing() -> None:
    world = usual()
    late = world.plan()
    world.repaired()
    world.go_on(range(10, 50))
    before = world.marker_at(world.last())
    (problem,) = carry_out(late).values()
    assert isinstance(problem.error, Fenced)
    assert world.marker_at(world.last()) == before
    assert world.read().records == {n: LOG.records[n].value for n in range(10)} | values(world.log, 10)


def test_a_partition_that_is_named_twice_is_one_target() -> None:
    world = usual()
    (target,) = targets(world.store, "topic", ["orders", "orders:3"], MAX)
    assert str(target) == "orders:3"


def test_a_repair_of_the_older_folder_says_where_the_partition_continues() -> None:
    world = usual()
    assert later_folders(targets(world.store, "topic", ["orders"], MAX)).notes == []
    world.repaired()
    (note,) = later_folders(targets(world.store, "topic", ["orders"], MAX)).notes
    assert note == "orders:3: the partition continues in orders~2: name orders~2:3 for that"
    both = targets(world.store, "topic", ["orders", "orders~2"], MAX)
    assert len(both) == 2 and later_folders(both).notes == []


def test_a_topic_that_is_created_again_names_the_next_folder_that_holds_the_partition() -> None:
    world = usual()
    world.repaired()
    other = LAYOUTS["topic"](TopicFolder("orders"), 0)
    world.run(take_over(identity_of("topic", archive_id=ARCHIVE_ID, partition=0), "w", POLICY))
    newest = world.settle("id-2")
    assert str(newest) == "orders~3"
    for partition in (0, 3):
        world.run(name_successors(LAYOUTS["topic"](newest, partition), "w"))
    assert world.marker_at(other).successor == "orders~3"
    assert world.marker.successor == "orders~2"
    assert world.marker_at(LAYOUTS["topic"](TopicFolder("orders", 2), 3)).successor == "orders~3"
    with pytest.raises(FolderClosed):
        world.run(take_over_last(world.identity, "stale", POLICY))


def test_the_other_partitions_stay_in_their_folder_even_where_the_cluster_tells_no_id() -> None:
    world = usual()
    world.repaired()
    assert (str(world.settle("id-1")), str(world.settle(None))) == ("orders", "orders")
    identity = identity_of("topic", archive_id=ARCHIVE_ID, partition=0)
    zero, claimed = world.run(take_over_last(identity, "w", POLICY))
    assert zero.keys.folder == TopicFolder("orders")
    world.run(commit_chunk(zero, claimed.held, world.chunk([0, 1])))

    async def numbers() -> tuple[int, ...]:
        archive = ArchiveReader(MemoryReader(world.store.bodies()))
        assert [str(each) for each in await archive.open_topic("orders")] == ["orders:0", "orders~2:3"]
        return await archive.partitions("orders")

    assert asyncio.run(numbers()) == (0, 3)


async def test_a_stream_reads_each_folder_for_its_own_part() -> None:
    world = usual()
    world.repaired()
    world.go_on(range(10, 50))
    archive = ArchiveReader(MemoryReader(world.store.bodies()))
    whole = await archive.open_partition("orders", 3)
    assert stream._offsets([(whole, 0)]) == {"orders~1": {"3": 0}, "orders~2": {"3": 10}}
    assert stream._offsets([(whole, 30)]) == {"orders~1": {"3": 10}, "orders~2": {"3": 30}}
    apart = [await archive.open_partition(name, 3) for name in ("orders~1", "orders~2")]
    assert [(part.log, part.start, part.end) for part in parts_of(apart)] == [(0, 0, 10), (0, 10, 50)]


@pytest.mark.parametrize(("position", "expected"), [(5, range(5, 50)), (30, range(10, 50))])
def test_who_follows_continues_where_the_log_was_truncated(position: int, expected: range) -> None:
    world = usual()
    stored = world.store.bodies()
    told: list[str] = []

    async def follow() -> list[int]:
        archive = ArchiveReader(MemoryReader(stored))
        known = await archive.open_partition("orders", 3)
        follower = Follower(archive, "orders", [(known, position)], told.append, watch_for_partitions=False)
        world.repaired()
        world.go_on(range(10, 50))
        stored.update(world.store.bodies())
        (news,) = await follower.poll()
        batches = [batch async for batch in scan(news.partition, *news.offsets)]
        assert await follower.poll() == []
        return [offset for batch in batches for offset in batch.column("offset").to_pylist()]

    assert asyncio.run(follow()) == list(expected)
    assert "truncated" in told[0]


def deaths(make: Callable[[], Cluster]) -> list[float]:
    world = make()
    world.store.requests = 0
    world.repaired()
    return [number + applied for number in range(1, world.store.requests + 1) for applied in (0, 0.5)]


def cut() -> Cluster:
    """The log's start lies inside a chunk."""
    world = usual()
    world.log = rewritten(0, 50, 25)
    return world


@pytest.mark.slow
@pytest.mark.parametrize("make", [usual, cut])
@pytest.mark.parametrize("collects", mostly_long([True, False]))
def test_a_crash_at_any_request_leaves_a_readable_archive_and_the_repair_can_be_repeated(
    make: Callable[[], Cluster], collects: bool
) -> None:
    old = {n: LOG.records[n].value for n in range(30)}
    for death in some_of(deaths(make)):
        world = make()
        start = world.log.low or 10
        world.store.requests, world.store.dies_at = 0, death
        with pytest.raises(Died):
            world.repaired()
        world.store.dies_at = None
        below = {n: value for n, value in old.items() if n < start}
        assert world.read().records in (old, below), death
        if collects:
            collect(world)
        if world.read().records == old:
            with pytest.raises(Diverged):
                world.run(take_over_last(world.identity, "again", POLICY))
            world.repaired()
        world.go_on(range(start, 50))
        assert world.read().records == below | values(world.log, start), death
        collect(world)
        assert world.read().records == below | values(world.log, start), death


def collect(world: Cluster) -> None:
    """Everything has come of age."""
    world.store.now += GRACE
    plan = plan_sweep(world.store, (), GRACE)
    assert not plan.problems
    plan.carry_out()


@pytest.mark.parametrize("make", [usual, cut])
def test_a_lost_marker_is_rebuilt_with_the_folder_that_it_continues(make: Callable[[], Cluster]) -> None:
    world = make()
    continues = world.repaired()
    world.go_on(range(world.log.low or 10, 50))
    before = world.read().records
    for folder in (1, 2):
        keys = LAYOUTS["topic"](TopicFolder("orders", folder), 3)
        lost = world.marker_at(keys)
        world.store.delete(keys.marker)
        plan = plan_marker(RepairTarget(world.store, keys, MAX), "blockgz-archiver")
        assert not plan.problems and not carry_out(plan)
        again = world.marker_at(keys)
        assert (again.tail, again.successor, again.continues) == (lost.tail, lost.successor, lost.continues)
    assert world.marker_at(world.last()).continues == continues
    assert world.read().records == before


def test_a_marker_rebuilt_after_holes_cuts_no_older_chunk() -> None:
    world = went_on_without_records()
    world.log = rewritten(15, 60, 45)
    world.go_on(range(45, 60))
    before, keys = world.read().records, world.last()
    world.store.delete(keys.marker)
    plan = plan_marker(RepairTarget(world.store, keys, MAX), "blockgz-archiver")
    assert not plan.problems and not carry_out(plan)
    assert world.marker_at(keys).continues == Continues("orders", 10)
    assert world.read().records == before


def test_a_folder_that_a_repair_began_and_did_not_end_is_not_a_successor() -> None:
    for death in deaths(usual):
        world = usual()
        world.store.requests, world.store.dies_at = 0, death
        with pytest.raises(Died):
            world.repaired()
        world.store.dies_at = None
        begun = LAYOUTS["topic"](TopicFolder("orders", 2), 3).marker in world.store.bodies()
        if begun and world.marker.successor is None:
            break
    world.store.delete(world.keys.marker)
    plan = plan_marker(RepairTarget(world.store, world.keys, MAX), "blockgz-archiver")
    assert "orders~2 continues it but is empty" in plan.notes[-1]
    assert not carry_out(plan) and world.marker.successor is None
    assert list(world.read().records) == list(range(30))
    assert world.repaired() == Continues("orders", 10)


def test_markers_without_it_do_not_have_the_field() -> None:
    world = Cluster()
    world.commit(range(3))
    assert "continues" not in json.loads(world.store.bodies()[world.keys.marker])
