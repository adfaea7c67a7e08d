"""One source partition of a replay as an executor does it, killed at every step."""

import asyncio
import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blockgz.archive.archive import ArchivePlace, opened
from blockgz.archive.partition import LostRange
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.errors import ObjectMissing, UsageError
from blockgz.errors import exit_code as exit_code_of
from blockgz.record_filter import KeyIn, Pattern, RecordFilter, ValueMatches, header_condition
from blockgz.store.address import LocalAddress
from index_format.errors import BlockgzError, FormatError
from index_format.old_objects import ANCESTORS_FORMAT
from replayer.errors import CommitLost, JobTakenOver, RecordUnfit
from replayer.replay.job import Job, LanePosition, SourceProgress, decode_position
from replayer.replay.pipeline import (
    AddProvenance,
    DropTombstones,
    Pipeline,
    Routing,
    StripHeaders,
    TransformStage,
    parse_header,
    parse_timestamps,
)
from replayer.spark import replay
from replayer.spark.lanes import LaneStore, source_lane
from replayer.transforms.chain import build_chain
from tests.support.archives import ArchiveWriter, PartitionWriter, records
from tests.support.replays import Crash, FakeSink, Topic

JOB = Job("j", "copy", "0" * 16)
SOURCE = 5


@pytest.fixture
def source(tmp_path: Path) -> PartitionWriter:
    writer = ArchiveWriter(tmp_path).partition("orders", SOURCE)
    for first in range(0, 60, 20):
        writer.commit(records(range(first, first + 20)), block_bytes=300)
    return writer


@pytest.fixture
def task(source: PartitionWriter, tmp_path: Path) -> replay.SourceTask:
    router = Routing("number", 2)
    work = replay.LaneWork(
        ArchivePlace(LocalAddress(str(tmp_path)), max_block_bytes=1 << 20, old_format=ANCESTORS_FORMAT),
        Pipeline((DropTombstones(),), router),
        RecordFilter(),
        skips_damage=False,
        transactional=True,
        properties={},
        max_message_bytes=None,
    )
    position = LanePosition("0" * 16, "0" * 16, 0, {SOURCE: SourceProgress(7, 7, 50)})
    return replay.SourceTask(work, "orders~1", source_lane(JOB, SOURCE, 2), position)


def kept(source: PartitionWriter, start: int, end: int) -> list[int]:
    """Offsets of the records that are no tombstones."""
    return [record.offset for record in source.records if start <= record.offset < end and record.value is not None]


@pytest.mark.slow
def test_killed_at_every_step_and_restarted(
    task: replay.SourceTask, source: PartitionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at = 0
    completed = False
    while not completed:
        crash_at += 1
        topic = Topic()
        sinks = iter([FakeSink(topic, crash_at=crash_at), FakeSink(topic)])
        monkeypatch.setattr(replay, "lane_sink", lambda *_, sinks=sinks, **__: nullcontext(next(sinks)))
        try:
            outcome = replay.run_lane(task)
            completed = True
        except Crash:
            outcome = replay.run_lane(task)
        assert outcome.failure is None
        assert [record.offset for record in topic.records[1]] == kept(source, 7, 50)
        assert decode_position(*topic.positions[1]).complete
    assert crash_at > 5


def test_an_error_is_an_outcome_that_says_what_went_before(
    task: replay.SourceTask, source: PartitionWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = sorted(tmp_path.rglob("*.gz"))[1]
    content = bytearray(chunk.read_bytes())
    content[560:570] = bytes(10)  # within one block: across two, each of them is a range that is skipped
    chunk.write_bytes(content)
    topic = Topic()
    monkeypatch.setattr(replay, "lane_sink", lambda *_, **__: nullcontext(FakeSink(topic)))
    failed = replay.run_lane(task)
    assert isinstance(failed.failure, FormatError)
    assert exit_code_of(failed.failure) == 3
    wanted = kept(source, 7, 50)
    done = [record.offset for record in topic.records[1]]
    assert 20 < done[-1] < 40
    assert done == [offset for offset in wanted if offset <= done[-1]]

    skipping = replay.run_lane(replace(task, work=replace(task.work, skips_damage=True)))
    assert skipping.failure is None
    ((start, end, _),) = skipping.skipped
    assert [record.offset for record in topic.records[1]] == [*kept(source, 7, start), *kept(source, end, 50)]


def test_a_task_reads_the_folder_that_its_partition_is_in(
    task: replay.SourceTask, source: PartitionWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sibling is in an older folder: the log of this one was truncated."""
    source.archive.partition("orders", 0).commit(records(range(60)))
    later = source.truncated(40)
    later.commit(records(range(40, 60), value_bytes=30))

    async def selected() -> list[Selection]:
        async with opened(task.work.place) as archive:
            return [Selection(each, OffsetRange(7, 50)) for each in await archive.open_topic("orders")]

    topics = replay.topics_of(asyncio.run(selected()))
    assert topics == {0: "orders~1", SOURCE: "orders~2"}
    work = replay.Replay({SOURCE: task.first}, {}, {SOURCE: task.lane}, cast(LaneStore, None), topics, task.work)
    topic = Topic()
    monkeypatch.setattr(replay, "lane_sink", lambda *_, **__: nullcontext(FakeSink(topic)))
    (made,) = work.tasks(work.before)
    assert replay.run_lane(made).failure is None
    values = {record.offset: record.value for record in [*source.records[:40], *later.records]}
    assert {record.offset: record.value for record in topic.records[1]} == {
        offset: value for offset, value in values.items() if 7 <= offset < 50 and value is not None
    }


END = 10
"""Records of every partition."""

Script = Callable[[int, LanePosition], tuple[int, BlockgzError | None]]
"""What becomes of a task: by source and position, the next offset that it reaches and how it fails."""


def first(source: int) -> LanePosition:
    return LanePosition("0" * 16, "0" * 16, 0, {source: SourceProgress(0, 0, END)})


class World:
    """Positions, and a Spark whose tasks follow a script."""

    def __init__(self, sources: Sequence[int], script: Script, **settings: str) -> None:
        self.positions: dict[int, LanePosition] = {}
        self.rounds: list[list[int]] = []
        self._script, self._settings = script, settings
        self.recorded: dict[int, LanePosition] = {}
        self.first = {source: first(source) for source in sources}
        self.shown = 0
        self.conf = SimpleNamespace(get=lambda name, default: self._settings.get(name.replace(".", "_"), default))
        self.sparkContext = SimpleNamespace(parallelize=lambda tasks, _: SimpleNamespace(map=self._mapped(tasks)))

    def read(self) -> dict[int, LanePosition]:
        return dict(self.positions)

    def begin(self, at: dict[int, LanePosition], *, transactional: bool) -> dict[int, LanePosition]:
        assert transactional
        self.positions = {**at, **self.positions}
        return self.read()

    def _mapped(self, tasks: list[replay.SourceTask]) -> Callable[[Any], SimpleNamespace]:
        return lambda _: SimpleNamespace(collect=lambda: self._run(tasks))

    def _run(self, tasks: list[replay.SourceTask]) -> list[replay.LaneOutcome]:
        self.rounds.append([task.lane.source for task in tasks])
        outcomes = []
        for task in pickle.loads(pickle.dumps(tasks)):
            source = task.lane.source
            at = self.positions[source]
            reached, failure = self._script(source, at)
            self.positions[source] = at.advanced(reached - at.sources[source].next, {source: reached})
            outcomes.append(replay.LaneOutcome(source, failure=failure))
        return pickle.loads(pickle.dumps(outcomes))  # type: ignore[no-any-return]


def replay_of(world: World) -> replay.Replay:
    lanes = {source: source_lane(JOB, source, 2) for source in world.first}
    return replay.Replay(world.first, world.recorded, lanes, world, dict.fromkeys(world.first, "orders~1"), WORK)  # type: ignore[arg-type]


def run(world: World) -> replay.LanesResult:
    def progress(records: int) -> None:
        world.shown += records

    return asyncio.run(replay.run_rounds(replay_of(world), world, progress))  # type: ignore[arg-type]


WORK = replay.LaneWork(
    ArchivePlace(LocalAddress("./archive"), max_block_bytes=1, old_format=ANCESTORS_FORMAT),
    Pipeline(),
    RecordFilter(),
    skips_damage=False,
    transactional=True,
    properties={"bootstrap.servers": "x"},
    max_message_bytes=None,
)
LOST = CommitLost("lost", why="the broker is away")


def test_every_partition_is_a_task_and_then_it_is_done() -> None:
    world = World([0, 3, 4], lambda _, __: (END, None))
    done = run(world)
    assert world.rounds == [[0, 3, 4]]
    assert done.complete
    assert [position.written for position in done.before.values()] == [0, 0, 0]
    assert world.shown == 3 * END


def test_what_is_complete_is_not_a_task() -> None:
    world = World([0, 1], lambda _, __: (END, None))
    world.recorded = {0: first(0).advanced(END, {0: END})}
    world.positions = dict(world.recorded)
    assert run(world).complete
    assert world.rounds == [[1]]
    world.recorded = world.read()
    assert replay_of(world).tasks(replay_of(world).before) == []


def test_what_may_pass_is_tried_again_as_long_as_something_moves() -> None:
    def step(source: int, at: LanePosition) -> tuple[int, BlockgzError | None]:
        reached = min(END, at.sources[source].next + 1 + 9 * source)
        return reached, None if reached == END else LOST

    world = World([0, 1], step)
    assert run(world).complete
    assert world.rounds == [[0, 1]] + [[0]] * (END - 1)


def test_what_does_not_pass_ends_it() -> None:
    world = World([0], lambda _, __: (0, LOST))
    with pytest.raises(CommitLost, match="lost"):
        run(world)
    assert len(world.rounds) == replay.ROUNDS_IN_VAIN


@pytest.mark.parametrize(
    ("failure", "exit_code"),
    [(JobTakenOver("taken"), 11), (ObjectMissing("a/b"), 3), (RecordUnfit(3, 17, "too odd", "leave it out"), 1)],
)
def test_what_another_round_would_meet_again_is_raised_as_it_was(failure: BlockgzError, exit_code: int) -> None:
    world = World([0, 1], lambda source, _: (END, None) if source else (4, failure))
    with pytest.raises(type(failure)) as caught:
        run(world)
    assert (caught.value.what, caught.value.exit_code) == (failure.what, exit_code)
    assert len(world.rounds) == 1
    assert world.positions[1].complete


def test_speculation_is_refused_before_anything_is_fenced() -> None:
    world = World([0], lambda _, __: (END, None), spark_speculation="true")
    with pytest.raises(UsageError, match="twice at the same time"):
        run(world)
    assert world.positions == {}


def test_a_task_travels_with_all_that_a_replay_can_be_asked_for() -> None:
    hoist = {"type": "org.apache.kafka.connect.transforms.HoistField$Value", "field": "f"}
    chain = build_chain({"transforms": "h", **{f"transforms.h.{name}": value for name, value in hoist.items()}})
    stages = (
        DropTombstones(),
        TransformStage(chain, "orders", "copy"),
        StripHeaders(("a",)),
        parse_header("a=b"),
        AddProvenance("orders"),
        parse_timestamps("shift=+1d"),
    )
    conditions = (KeyIn((b"k", None)), ValueMatches(Pattern("v+")), header_condition("a=b"))
    routers = (Routing(), Routing("number", 2), Routing("map", places=tuple({0: 1}.items())), Routing("by-key", 3))
    for router in routers:
        pipeline = Pipeline(stages, router)
        work = replace(WORK, pipeline=pipeline, record_filter=RecordFilter(1, 2, conditions))
        task = replay.SourceTask(work, "orders~1", source_lane(JOB, 5, 2), first(5))
        again: replay.SourceTask = pickle.loads(pickle.dumps(task))
        assert again.work.pipeline.fingerprint == pipeline.fingerprint
        assert str(again.work.record_filter) == str(work.record_filter)
        assert (again.lane, again.first) == (task.lane, task.first)
    outcome = replay.LaneOutcome(1, skipped=(LostRange(1, 2, "cut"),))
    assert pickle.loads(pickle.dumps(outcome)) == outcome
