"""Records that a gap lists as lost and an orphan holds: brought back whole, at any crash, beside whoever works."""

import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from archiver.cli import main as archiver_main
from archiver.commit.commit import commit_chunk, commit_progress
from archiver.commit.operations import CompareAndSwap
from archiver.commit.recovery import take_over
from archiver.errors import Fenced, SalvageRefused
from archiver.maintain.gc import plan_sweep
from archiver.maintain.repair.chunk_indexes import BEING_WRITTEN_SECONDS, plan_indexes
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import RepairTarget
from index_format import marker as markers
from index_format import objects
from index_format.objects import ChunkIndex, Gap
from replayer.cli import main as replayer_main
from tests.archiver.maintain.repair.world import LOG, MAX, Died, World
from tests.support.archives import ARCHIVE_ID
from tests.support.chunks import POLICY, identity_of
from tests.support.memory_store import MemoryLog
from tests.support.repairs import carry_out
from tests.support.simulator import Actor

GRACE = 3600.0


def usual(**settings: Any) -> World:
    """0 to 9, what a dead writer left of 10 to 39, a gap from 10 to 20, and 20 to 59."""
    world = World(**settings)
    world.commit(range(10))
    world.die_committing(range(10, 40))
    world.lose(20)
    world.commit(range(20, 60))
    return world


@pytest.mark.parametrize("form", ["json", "arrow", "text"])
@pytest.mark.parametrize("layout", ["topic", "seed"])
def test_what_an_orphan_holds_of_a_gap_comes_back(layout: str, form: str) -> None:
    if layout == "seed" and form != "text":
        pytest.skip("not a combination that is written")
    identity = dataclasses.replace(identity_of(layout, archive_id=ARCHIVE_ID), record_format=form)
    world = usual(identity=identity)
    before = world.marker
    assert before.gaps == (Gap(10, 20, "retention"),)
    (step,) = world.salvaged().steps
    assert "10 records at offsets [10..20), of the gap [10..20): retention" in step.detail
    after = world.marker
    assert not after.gaps and (after.start_offset, after.next_offset) == (0, 60)
    assert [(each.start_offset, each.next_offset, each.num_records) for each in after.tail] == [
        (0, 10, 10),
        (10, 20, 10),
        (20, 60, 40),
    ]
    assert (after.tail_hash, after.last_chunk_index) == (before.tail_hash, before.last_chunk_index)
    assert after.tail[1].min_timestamp == 1010
    if form != "arrow":
        assert world.offsets() == list(range(60))
    assert not world.plan().steps


def test_an_orphan_that_fills_a_part_of_the_gap_leaves_the_rest() -> None:
    holes = (*range(5, 12), 17, 30, 31, 36)
    world = World(log=MemoryLog([row for row in LOG.records if row.offset not in holes]))
    world.commit(range(5))
    world.held = world.run(commit_progress(world.identity, world.claim(), 10))
    world.die_committing(range(12, 17), start=10, end=18)
    world.lose(30)
    world.die_committing(range(32, 36), start=30, end=37)
    world.lose(50)
    world.commit(range(50, 60))
    assert world.marker.gaps == (Gap(10, 50, "retention"),)
    assert len(world.salvaged().steps) == 2
    assert world.marker.gaps == (Gap(18, 30, "retention"), Gap(37, 50, "retention"))
    assert world.offsets() == [*range(5), *range(12, 17), *range(32, 36), *range(50, 60)]


def test_a_gap_at_the_end_of_the_chain() -> None:
    world = World()
    world.commit(range(5))
    world.die_committing(range(5, 20))
    world.lose(30)
    world.salvaged()
    marker = world.marker
    assert marker.gaps == (Gap(20, 30, "retention"),) and marker.tail[-1].name == marker.last_chunk_index
    world.claim()
    world.commit(range(30, 40))
    assert world.offsets() == [*range(20), *range(30, 40)]


def test_the_newest_record_is_the_salvaged_one_where_the_log_still_has_it() -> None:
    """Records that one writer could not archive and another one did: the next claim compares the right one."""
    world = World()
    world.commit(range(5))
    world.die_committing(range(5, 20))
    held = world.claim()
    world.held = world.run(commit_progress(world.identity, held, 20, (Gap(5, 20, "skipped"),)))
    world.salvaged()
    world.claim()
    world.commit(range(20, 30))
    assert world.offsets() == list(range(30)) and not world.marker.gaps


def test_what_its_writer_skipped_stays_a_gap() -> None:
    world = World()
    world.commit(range(5))
    claimed = world.claim()
    chunk = world.chunk([5, 6, 8, 9])._replace(gaps=(Gap(7, 8, "skipped"),))
    dying = Actor("b", commit_chunk(world.identity, claimed, chunk), world.store, world.log, random.Random(1))
    while not isinstance(dying.operation, CompareAndSwap):
        dying.step()
    world.lose(10)
    world.commit(range(10, 20))
    world.salvaged()
    assert world.marker.gaps == (Gap(7, 8, "skipped"),)
    assert world.offsets() == [*range(7), *range(8, 20)]


def refusals(world: World) -> list[str]:
    plan = world.plan()
    assert not plan.steps and all(isinstance(problem.error, SalvageRefused) for problem in plan.problems)
    return [f"{problem.error.what}: {problem.error.why}" for problem in plan.problems]


def with_topic_id(world: World, topic_id: str | None) -> None:
    """Changes what the orphan's index says."""
    (key,) = [key for key in world.store.objects if key.endswith(f"{10:020d}.index.json")]
    index = objects.decode(world.store.bodies()[key], ChunkIndex, key)
    world.store.delete(key)
    world.store.put_if_absent(key, objects.encode(replace(index, topic_id=topic_id)), "-")


@pytest.mark.parametrize(("topic_id", "told"), [(None, "unknown"), ("id-9", "another topic")])
def test_an_orphan_of_another_or_an_unknown_topic_is_refused(topic_id: str | None, told: str) -> None:
    world = usual()
    with_topic_id(world, topic_id)
    assert told in refusals(world)[0]


def test_an_orphan_without_an_index_is_refused() -> None:
    world = usual()
    (key,) = [key for key in world.store.objects if key.endswith(f"{10:020d}.index.json")]
    world.store.delete(key)
    assert not refusals(world), "it may be being written"
    world.store.now += BEING_WRITTEN_SECONDS
    assert "no index" in refusals(world)[0]


def test_damage_in_the_orphan_is_found_before_anything_is_stored() -> None:
    world = usual()
    (key,) = [key for key in world.store.objects if key.endswith(f"{10:020d}.gz")]
    body = world.store.objects[key].body
    world.store.objects[key] = world.store.objects[key]._replace(body=body[:60] + b"\0\0" + body[62:])
    plan = world.plan()
    assert not plan.steps and plan.problems


def test_a_gap_that_a_catalog_covers_cannot_be_filled_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 3)
    world = usual()
    for start in (60, 70):
        world.commit(range(start, start + 10))
    assert world.marker.catalogs
    assert "cannot be filled yet" in refusals(world)[0]


@pytest.mark.parametrize("chunks_below", [1, 2, 3])
def test_a_full_tail_folds_below_the_gap(monkeypatch: pytest.MonkeyPatch, chunks_below: int) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 3)
    world = World()
    for start in range(0, 4 * chunks_below, 4):
        world.commit(range(start, start + 4))
    end = 4 * chunks_below
    world.die_committing(range(end, end + 8))
    world.lose(end + 4)
    for start in range(end + 4, end + 4 + 4 * (3 - chunks_below), 4):
        world.commit(range(start, start + 4))
    assert len(world.marker.tail) == 3
    world.salvaged()
    assert world.offsets() == list(range(max(16, end + 4))), world.marker
    world.claim()
    for start in range(16, 40, 4):
        world.commit(range(start, start + 4))
    assert world.offsets() == list(range(40))


def test_a_folder_that_names_a_successor_is_closed() -> None:
    world = usual()
    marker = replace(world.marker, successor="orders~2")
    world.store.delete(world.keys.marker)
    world.store.compare_and_swap(world.keys.marker, markers.encode(marker), None)
    assert "closed" in refusals(world)[0]


def test_an_archiver_that_works_on_is_fenced_and_continues_where_it_was() -> None:
    world = usual()
    held = world.held
    world.salvaged()
    with pytest.raises(Fenced):
        world.run(commit_chunk(world.identity, held, world.chunk(range(60, 70))))  # type: ignore[arg-type]
    claimed = world.run(take_over(world.identity, "again", POLICY))
    assert claimed.position == 60
    world.run(commit_chunk(world.identity, claimed.held, world.chunk(range(60, 70))))
    assert world.offsets() == list(range(70))


def test_an_archiver_that_claims_meanwhile_wins_and_the_repair_claims_again() -> None:
    world = usual()
    (step,) = world.plan().steps
    swaps = 0
    plain = world.store.compare_and_swap

    def interrupted(key: str, body: bytes, expected: Any) -> Any:
        nonlocal swaps
        swaps += 1
        if swaps == 2:  # the repair claimed, and is about to commit
            world.store.compare_and_swap = plain  # type: ignore[method-assign]
            world.claim()
            world.commit(range(60, 70))
        return plain(key, body, expected)

    world.store.compare_and_swap = interrupted  # type: ignore[method-assign]
    step.carry_out()
    assert swaps == 2 and world.offsets() == list(range(70))


def test_of_two_repairs_at_once_one_finds_nothing_left() -> None:
    world = usual()
    first, second = world.plan(), world.plan()
    assert not carry_out(first)
    (problem,) = carry_out(second).values()
    assert isinstance(problem.error, SalvageRefused)
    assert world.offsets() == list(range(60))


def deaths() -> Iterator[float]:
    world = usual()
    world.store.requests = 0
    world.salvaged()
    for number in range(1, world.store.requests + 1):
        yield from (number, number + 0.5)


def collect(world: World) -> set[str]:
    """Everything has come of age; gives what was deleted."""
    world.store.now += GRACE
    plan = plan_sweep(world.store, (), GRACE)
    assert not plan.problems
    plan.carry_out()
    return {found.name.key for found in plan.garbage}


@pytest.mark.slow
@pytest.mark.parametrize("collects", [False, True])
def test_a_crash_at_any_request_leaves_a_whole_archive_and_the_repair_can_be_repeated(collects: bool) -> None:
    for death in deaths():
        world = usual()
        world.store.requests, world.store.dies_at = 0, death
        with pytest.raises(Died):
            world.salvaged()
        world.store.dies_at = None
        lacking = list(range(10, 20))
        assert [n for n in range(60) if n not in world.offsets()] in ([], lacking), death
        if collects:
            collect(world)
        assert not carry_out(world.plan()), death
        assert world.offsets() == list(range(60)), death
        collect(world)
        assert world.offsets() == list(range(60)), death
        referenced = {each.name for each in world.marker.tail}
        left = {key for key in world.store.objects if key.endswith(".index.json") and "last_" not in key}
        assert {key.rpartition("/")[2] for key in left} == referenced, "what was left over is collected"


def collected_around(number: int) -> World:
    """A repair, and a collector that lists before its n-th request and deletes after it; to it everything is old."""
    world = usual()
    plain, world.store.requests = world.store.dying, 0

    def dying(request: Callable[[], Any]) -> Any:
        if world.store.requests + 1 != number:
            return plain(request)
        world.store.dying = plain  # type: ignore[method-assign]
        world.store.now += GRACE
        plan = plan_sweep(world.store, (), GRACE)
        answer = request()
        plan.carry_out()
        return answer

    world.store.dying = dying  # type: ignore[method-assign]
    world.salvaged()
    assert world.store.dying is plain or world.store.requests < number
    return world


def test_a_collector_at_work_between_any_two_requests_takes_nothing_that_is_needed() -> None:
    for number in {int(death) for death in deaths()}:
        assert collected_around(number).offsets() == list(range(60)), number


class TestOtherRepairs:
    """The indexes behind a salvaged chunk still name the gap; the chunk counts."""

    def salvaged(self) -> World:
        world = World()
        world.commit(range(10))
        world.die_committing(range(12, 17), start=10)
        world.lose(20)
        world.commit(range(20, 30))
        world.salvaged()
        world.claim()
        world.commit(range(30, 35))
        return world

    def test_a_marker_is_rebuilt_with_it(self) -> None:
        world = self.salvaged()
        lost = world.marker
        world.store.delete(world.keys.marker)
        plan = plan_marker(RepairTarget(world.store, world.keys, MAX), "blockgz-archiver")
        assert not plan.problems and not carry_out(plan)
        assert (world.marker.tail, world.marker.gaps) == (lost.tail, lost.gaps)

    def test_even_where_the_chunk_after_it_is_the_last(self) -> None:
        world = usual()
        world.salvaged()
        lost = world.marker
        world.store.delete(world.keys.marker)
        plan = plan_marker(RepairTarget(world.store, world.keys, MAX), "blockgz-archiver")
        assert not plan.problems and not carry_out(plan)
        assert world.marker.tail == lost.tail and not world.marker.gaps

    def test_its_index_and_those_around_it_are_rebuilt_byte_for_byte(self) -> None:
        world = self.salvaged()
        indexes = {each.name for each in world.marker.tail}
        bodies = world.store.bodies()
        for name in indexes:
            world.store.delete(world.keys.chunks + name)
        plan = plan_indexes(RepairTarget(world.store, world.keys, MAX))
        assert not plan.problems, plan.problems
        assert not carry_out(plan)
        assert world.store.bodies() == bodies


def test_the_command_shows_its_plan_and_readers_find_the_records(tmp_path: Path) -> None:
    topic = b'{"format":"block-gzip-topic","version":1,"topic":"orders","topic_id":"id-1","incarnation":1}'
    for key, body in {**usual().store.bodies(), "topic=orders/_topic.json": topic}.items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(body)

    def call(main: Any, *arguments: str) -> Result:
        return CliRunner().invoke(main, [*arguments, "-a", str(tmp_path)])

    assert call(replayer_main, "get", "orders:3:15").exit_code == 4
    collected = call(archiver_main, "gc", "--dry-run")
    assert "nothing to delete" in collected.stdout
    dry = call(archiver_main, "repair", "salvage", "orders", "--dry-run")
    assert dry.exit_code == 0 and "10 records at offsets [10..20)" in dry.stdout
    assert "--yes" in call(archiver_main, "repair", "salvage", "orders").stderr
    assert call(replayer_main, "verify").exit_code == 0 and "retention" in call(replayer_main, "verify").stdout
    done = call(archiver_main, "repair", "salvage", "orders", "--yes")
    assert done.exit_code == 0 and "stored 1 of 1" in done.stdout
    assert call(replayer_main, "get", "orders:3:15").exit_code == 0
    assert call(archiver_main, "repair", "inventory", "--yes").exit_code == 0
    report = json.loads(call(replayer_main, "verify", "--records", "--json").stdout)
    assert report["verdict"] == "OK" and report["partitions"][0]["records"] == 60
    assert "nothing to store" in call(archiver_main, "repair", "salvage", "orders:3").stdout
