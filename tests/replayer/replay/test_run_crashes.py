"""Every moment at which a replay can die or lose an answer: every record arrives once, and the run map says where."""

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from blockgz.archive.selection import Selection
from blockgz.store.local import LocalStore
from index_format.records import Record, iter_records
from replayer.errors import CommitLost, DeliveryFailed, JobTakenOver, ProducerFenced, ReplayRefused, TargetChanged
from replayer.replay.job import LanePosition, Run, continued, decode_position, followed_positions, recorded_ranges
from replayer.replay.jobs.folder import FolderLog, JobFolder, runs_in
from replayer.replay.pace import Commands, Slowest
from replayer.replay.pipeline import Pipeline, RoutedBatch, Routing, ScannedBatch
from replayer.replay.run import NOTHING_KEPT, Cadence, Keeping, ReplayWork, run_replay
from tests.support.archives import ArchiveWriter, records
from tests.support.memory_store import MemoryStore
from tests.support.replays import JOB, Crash, FakeSink, Impatient, Topic, replay_into, work_of
from tests.support.sampling import seeded_random, some_of
from tests.support.selections import selections_of

SMALL = Cadence(records=4, bytes=2**40, seconds=1e9, rest=0)
LANES = 2

Held = dict[tuple[int, bytes], list[Record]]
"""By lane and source partition, the records in their order."""


class ByOffset:
    """Spreads every source over all lanes, as a router by key or number does."""

    fingerprint = "by offset"

    def targets(self, partition: int) -> Sequence[int]:
        return range(LANES)

    def route(self, batch: ScannedBatch) -> Sequence[RoutedBatch]:
        lanes = (batch.records.column("offset").to_numpy() // 2 + batch.partition) % LANES
        return [RoutedBatch(lane, batch.records.filter(pa.array(lanes == lane))) for lane in range(LANES)]


class WithoutNulls:
    """Drops records without a value."""

    fingerprint = "without nulls"

    def __call__(self, batch: ScannedBatch) -> ScannedBatch:
        return batch._replace(records=batch.records.filter(pc.is_valid(batch.records.column("value"))))


@pytest.fixture(scope="module")
def selections(tmp_path_factory: pytest.TempPathFactory) -> list[Selection]:
    root = tmp_path_factory.mktemp("crashes")
    archive = ArchiveWriter(root)
    for partition, offsets in enumerate((range(5, 11), [*range(4), *range(40, 44)])):
        made = [record._replace(key=b"%d" % partition) for record in records(offsets)]
        archive.partition("orders", partition).commit(made, block_bytes=300)
    return selections_of(root, "orders")


@pytest.fixture(
    scope="module",
    params=[Pipeline(), Pipeline((WithoutNulls(),), ByOffset())],
    ids=["as it is", "filtered and spread"],
)
def pipeline(request: pytest.FixtureRequest) -> Pipeline:
    made: Pipeline = request.param
    return made


def held(topic: Topic) -> Held:
    found: Held = {}
    for lane, written in topic.records.items():
        for record in written:
            assert record.key is not None
            found.setdefault((lane, record.key), []).append(record)
    return found


def undisturbed(selections: list[Selection], pipeline: Pipeline) -> tuple[Held, int]:
    """What belongs into the target, and how many steps the replay takes."""
    topic = Topic()
    sink = FakeSink(topic)
    result = replay_into(sink, selections, pipeline, SMALL)
    assert (result.complete, result.records) == (True, sum(map(len, topic.records.values())))
    return held(topic), sink.steps


def test_the_undisturbed_replay_is_the_archive(selections: list[Selection]) -> None:
    found, _ = undisturbed(selections, Pipeline())
    assert {place: [record.offset for record in some] for place, some in found.items()} == {
        (0, b"0"): [*range(5, 11)],
        (1, b"1"): [*range(4), *range(40, 44)],
    }


@pytest.mark.slow
def test_a_crash_at_any_step_and_a_resume(selections: list[Selection], pipeline: Pipeline) -> None:
    wanted, steps = undisturbed(selections, pipeline)
    for step in some_of(range(1, steps + 1)):
        topic = Topic()
        # Sources are read side by side: another run may take a step or two less.
        with suppress(Crash):
            replay_into(FakeSink(topic, crash_at=step), selections, pipeline, SMALL)
        result = replay_into(FakeSink(topic), selections, pipeline, SMALL)
        assert held(topic) == wanted, f"crash at step {step}"
        assert result.complete
        assert result.records + result.records_before == sum(map(len, topic.records.values()))


@pytest.mark.slow
def test_many_crashes_with_other_cadences(selections: list[Selection], pipeline: Pipeline) -> None:
    randomly = seeded_random()
    wanted, steps = undisturbed(selections, pipeline)
    for _ in range(5):
        topic = Topic()
        for _ in range(4):
            sink = FakeSink(topic, crash_at=randomly.randrange(1, steps))
            cadence = SMALL._replace(records=randomly.randrange(1, 9))
            try:
                replay_into(sink, selections, pipeline, cadence)
            except Crash:
                continue
        replay_into(FakeSink(topic), selections, pipeline, SMALL)
        assert held(topic) == wanted


@pytest.mark.slow
def test_an_answer_lost_at_any_step_is_made_good(selections: list[Selection], pipeline: Pipeline) -> None:
    wanted, steps = undisturbed(selections, pipeline)
    for step in some_of(range(1, steps + 1)):
        topic = Topic()
        result = replay_into(FakeSink(topic, lose_at=[step]), selections, pipeline, SMALL)
        assert held(topic) == wanted, f"answer lost at step {step}"
        assert result.complete
        assert result.lost_commits <= 1
        assert result.records == sum(map(len, topic.records.values()))


def test_answers_that_are_always_lost_end_the_replay(selections: list[Selection]) -> None:
    sink = FakeSink(Topic(), lose_at=range(1, 100_000))
    with pytest.raises(CommitLost, match="no answer") as caught:
        replay_into(sink, selections, keeping=NOTHING_KEPT._replace(patience=0.05))
    assert sink.stopped
    assert 1 < sink.steps < 100_000
    assert "nothing was written" in caught.value.why


class Stuck(FakeSink):
    """Its commits do not come back before it is stopped; the operator has lost patience meanwhile."""

    def __init__(self, commands: Commands) -> None:
        super().__init__(Topic())
        self._commands = commands
        self._released = threading.Event()

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        self._commands.ending = True
        assert self._released.wait(60)
        raise CommitLost("stopped")

    def stop(self) -> None:
        super().stop()
        self._released.set()


def test_the_word_to_end_stops_a_sink_that_does_not_come_back(
    selections: list[Selection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("replayer.replay.run.ENDING_SECONDS", 0.0)
    monkeypatch.setattr("replayer.replay.run.LISTEN_SECONDS", 0.01)

    async def replayed() -> None:
        commands = Impatient()
        work = await work_of(selections, Pipeline())
        await run_replay(work, Stuck(commands), Slowest(), commands, lambda *_: None)

    with pytest.raises(CommitLost, match="stopped"):
        asyncio.run(replayed())


def test_the_digest_is_the_same_however_often_it_was_rolled_back(selections: list[Selection]) -> None:
    plain = replay_into(FakeSink(Topic()), selections)
    bumpy = replay_into(FakeSink(Topic(), lose_at=[4, 9, 12]), selections, cadence=SMALL)
    assert bumpy.lost_commits == 3
    assert bumpy.targets == plain.targets


as_ever: Callable[[Mapping[int, int]], Mapping[int, int]] = dict
"""The check of a target that is as it should be; lanes end where they must."""
PIPELINES = [Pipeline(router=Routing()), Pipeline(router=Routing("number", 1))]


@pytest.fixture(scope="module")
def noted_selections(tmp_path_factory: pytest.TempPathFactory) -> list[Selection]:
    root = tmp_path_factory.mktemp("notes")
    archive = ArchiveWriter(root)
    for partition, offsets in enumerate((range(5, 11), [*range(4), *range(40, 44)])):
        made = [record._replace(key=b"%d" % partition) for record in records(offsets)]
        archive.partition("orders", partition).commit(made, block_bytes=300)
    return selections_of(root, "orders")


def counted(folder: JobFolder) -> list[Run]:
    """The runs that count: those that no later begin made void."""
    by_lane: dict[int, list[Run]] = {}
    for _, segment in folder.segments():
        for lane in by_lane if segment.lanes is not None else ():
            left = segment.lanes[lane].written if segment.lanes and lane in segment.lanes else 0
            kept = []
            for run in by_lane[lane]:
                if left >= run.records:
                    kept.append(run)
                    left -= run.records
            assert left == 0, "a begin cuts between runs"
            by_lane[lane] = kept
        for run in runs_in(segment):
            by_lane.setdefault(run.lane, []).append(run)
    return [run for lane in by_lane.values() for run in lane]


def records_named(folder: JobFolder, topic: Topic) -> dict[int, list[tuple[int, Record]]]:
    """By lane, the places and records of the target that the map names, each of them rightly."""
    named: dict[int, list[tuple[int, Record]]] = {}
    for run in counted(folder):
        place = range(run.target_start, run.target_end)
        found = [topic.records[run.lane][at] for at in place]
        assert {each.key for each in found} == {b"%d" % run.source}
        assert (found[0].offset, found[-1].offset + 1) == (run.start, run.end)
        named.setdefault(run.lane, []).extend(zip(place, found, strict=True))
    return named


def judge(folder: JobFolder, topic: Topic) -> None:
    """The map names each record of the target, and its place, once and rightly."""
    named = records_named(folder, topic)
    assert {lane: [at for at, _ in sorted(each)] for lane, each in named.items()} == {
        lane: list(range(len(held))) for lane, held in topic.records.items() if held
    }


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", PIPELINES, ids=["kept", "folded"])
@pytest.mark.parametrize("how", ["crash", "lost"])
def test_at_any_step(noted_selections: list[Selection], pipeline: Pipeline, how: str, tmp_path: Path) -> None:
    sink = FakeSink(Topic())
    replay_into(sink, noted_selections, pipeline, SMALL)
    for step in some_of(range(1, sink.steps + 1)):
        topic, folder = Topic(), JobFolder(LocalStore(tmp_path), f"j{step}")
        bad = FakeSink(topic, crash_at=step) if how == "crash" else FakeSink(topic, lose_at=[step])
        with suppress(Crash):
            replay_into(bad, noted_selections, pipeline, SMALL, keeping=Keeping(FolderLog(folder), as_ever))
        result = replay_into(
            FakeSink(topic), noted_selections, pipeline, SMALL, keeping=Keeping(FolderLog(folder), as_ever)
        )
        assert result.complete
        judge(folder, topic)


class Slow:
    """Without transactions: records stand at once, and the cluster says so only later, some at a time."""

    rolls_back = False

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.drained = 0
        self._untold: dict[int, list[int]] = {}

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        return {lane: decode_position(*self.topic.positions[lane]) for lane in lanes if lane in self.topic.positions}

    def stand_at(self, ends: Mapping[int, int]) -> None: ...

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        held = self.topic.records.setdefault(lane, [])
        for record in iter_records(batch):
            self._untold.setdefault(lane, []).append(len(held))
            held.append(record)

    def acknowledged(self, *, wait: bool) -> dict[int, Any]:
        self.drained += wait
        told = {}
        for lane, untold in self._untold.items():
            count = len(untold) if wait else min(3, len(untold))
            told[lane] = np.array(untold[:count], np.int64)
            del untold[:count]
        return told

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        for lane, position in positions.items():
            told = len(self.topic.records.get(lane, ())) - len(self._untold.get(lane, ()))
            assert position.written <= told, "a position covers only what was acknowledged"
            self.topic.positions[lane] = (position.written, position.encoded())

    def stop(self) -> None: ...


@pytest.mark.parametrize("pipeline", PIPELINES, ids=["kept", "folded"])
def test_a_checkpoint_covers_what_is_acknowledged_and_waits_for_nothing(
    noted_selections: list[Selection], pipeline: Pipeline, tmp_path: Path
) -> None:
    folder, topic = JobFolder(LocalStore(tmp_path), "j"), Topic()
    sink = Slow(topic)
    cadence = SMALL._replace(records=2)
    result = replay_into(sink, noted_selections, pipeline, cadence, keeping=Keeping(FolderLog(folder), as_ever))
    assert (result.complete, result.records) == (True, 14)
    assert sink.drained == 1, "only at the end"
    judge(folder, topic)


class FencedOnce(FakeSink):
    """The cluster fences it at its second commit."""

    fences = 1

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        if self.fences and self.topic.positions:
            self.fences -= 1
            raise ProducerFenced("fenced", why="who knows")
        super().commit(positions)


def test_fenced_by_a_late_request_of_its_own(noted_selections: list[Selection], tmp_path: Path) -> None:
    folder, topic = JobFolder(LocalStore(tmp_path), "j"), Topic()
    keeping = Keeping(FolderLog(folder), as_ever)
    result = replay_into(FencedOnce(topic), noted_selections, cadence=SMALL, keeping=keeping)
    assert (result.complete, result.lost_commits) == (True, 1)
    judge(folder, topic)


def test_fenced_by_another_run(noted_selections: list[Selection], tmp_path: Path) -> None:
    folder = JobFolder(LocalStore(tmp_path), "j")
    other = FolderLog(folder)

    class Overtaken(FencedOnce):
        def commit(self, positions: Mapping[int, LanePosition]) -> None:
            if self.topic.positions:
                other.claim()
            super().commit(positions)

    with pytest.raises(JobTakenOver, match="fenced") as caught:
        replay_into(Overtaken(Topic()), noted_selections, cadence=SMALL, keeping=Keeping(FolderLog(folder), as_ever))
    assert "another run of the same job has started" in caught.value.why
    with pytest.raises(JobTakenOver) as caught:
        replay_into(FencedOnce(Topic()), noted_selections, cadence=SMALL, keeping=NOTHING_KEPT)
    assert "who knows" in caught.value.why, "without a folder nobody can tell"


class ChangesAt:
    """The target is another one from the call of that number on."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        self.left -= 1
        if self.left <= 0:
            raise TargetChanged("it is another one", why="")
        return as_ever(ends)


def test_a_target_that_changed_ends_the_replay_at_any_check(noted_selections: list[Selection]) -> None:
    whole = ChangesAt(2**30)
    replay_into(FakeSink(Topic()), noted_selections, cadence=SMALL, keeping=NOTHING_KEPT._replace(check=whole))
    checks = 2**30 - whole.left
    assert checks >= 4
    for number in range(1, checks):
        with pytest.raises(TargetChanged, match="another one"):
            replay_into(
                FakeSink(Topic()),
                noted_selections,
                cadence=SMALL,
                keeping=NOTHING_KEPT._replace(check=ChangesAt(number)),
            )


def test_what_a_failure_hides_is_reported(noted_selections: list[Selection]) -> None:
    """A broker that takes no record any more may do so because the topic is another one."""

    class Refusing(FakeSink):
        def send(self, lane: int, batch: pa.RecordBatch) -> None:
            raise CommitLost("not taken")

    keeping = Keeping(check=ChangesAt(2), patience=0.0)
    with pytest.raises(TargetChanged, match="another one"):
        replay_into(Refusing(Topic()), noted_selections, cadence=SMALL, keeping=keeping)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=["kept", "folded"])
@pytest.mark.parametrize("sends", [1, 3])
def test_what_the_cluster_took_of_a_batch_that_failed_is_noted(
    noted_selections: list[Selection], pipeline: Pipeline, sends: int, tmp_path: Path
) -> None:
    """A batch fails in the middle, or because of another lane's record, when some of it is acknowledged."""

    class Failing(Slow):
        left = sends

        def send(self, lane: int, batch: pa.RecordBatch) -> None:
            self.left -= 1
            super().send(lane, batch.slice(0, 2) if self.left == 0 else batch)
            if self.left == 0:
                raise DeliveryFailed("not taken", why="it is too large")

    folder, topic = JobFolder(LocalStore(tmp_path), "j"), Topic()
    with pytest.raises(DeliveryFailed, match="not taken"):
        replay_into(Failing(topic), noted_selections, pipeline, SMALL, keeping=Keeping(FolderLog(folder), as_ever))
    taken = sum(map(len, topic.records.values()))
    noted = sum(map(len, records_named(folder, topic).values()))
    assert 0 < noted <= taken, "the rest was not acknowledged"


def made(partition: int, offsets: Iterable[int]) -> list[Record]:
    """Records whose keys tell their partition."""
    return [record._replace(key=b"%d" % partition) for record in records(offsets)]


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> list[list[Selection]]:
    """The archive at four times: it grows, has nothing new in one partition, and gets another one."""
    root = tmp_path_factory.mktemp("following")
    archive = ArchiveWriter(root)
    first, second = archive.partition("orders", 0), archive.partition("orders", 1)
    found = []
    first.commit(made(0, range(5, 11)), block_bytes=300)
    found.append(selections_of(root, "orders"))
    first.commit(made(0, [*range(11, 14), *range(40, 43)]), block_bytes=300)
    second.commit(made(1, range(3)))
    found.append(selections_of(root, "orders"))
    second.lose(10)
    found.append(selections_of(root, "orders"))
    second.commit(made(1, range(10, 15)))
    archive.partition("orders", 2).commit(made(2, range(7, 9)))
    found.append(selections_of(root, "orders"))
    return found


def turn(folder: JobFolder, log: FolderLog, sink: FakeSink, selections: list[Selection]) -> None:
    """As one process goes on to what it sees now."""
    stood = {lane: decode_position(*position) for lane, position in sink.topic.positions.items()}
    ranges = recorded_ranges(selections, stood, follows=True)
    first = followed_positions(JOB, ranges, Pipeline())
    work = ReplayWork(JOB, Pipeline(), ranges, first, follows=True)
    keeping = Keeping(log, as_ever)
    asyncio.run(run_replay(work, sink, Slowest(), Impatient(), lambda *_: None, keeping, SMALL))
    judge(folder, sink.topic)


def steps_of(turns: list[list[Selection]]) -> int:
    sink, folder = FakeSink(Topic()), JobFolder(MemoryStore(), "job")
    log = FolderLog(folder)
    for each in turns:
        turn(folder, log, sink, each)
    return sink.steps


def expected() -> dict[int, list[int]]:
    return {0: [*range(5, 14), *range(40, 43)], 1: [*range(3), *range(10, 15)], 2: [7, 8]}


@pytest.mark.slow
def test_whatever_crashes_each_record_arrives_once(turns: list[list[Selection]]) -> None:
    steps = steps_of(turns)
    assert steps > 40
    for crash_at in some_of(range(1, steps + 1)):
        topic, folder = Topic(), JobFolder(MemoryStore(), "job")
        sink, log = FakeSink(topic, crash_at=crash_at), FolderLog(folder)
        for selections in turns:
            try:
                turn(folder, log, sink, selections)
            except Crash:
                # What comes after reads the archive as it is then, with what was committed meanwhile.
                sink, log = FakeSink(topic), FolderLog(folder)
        turn(folder, FolderLog(folder), FakeSink(topic), turns[-1])
        assert {lane: [record.timestamp for record in held] for lane, held in topic.records.items()} == {
            lane: [record.timestamp for record in records(offsets)] for lane, offsets in expected().items()
        }


@pytest.mark.slow
def test_lost_answers(turns: list[list[Selection]]) -> None:
    for lost in range(2, steps_of(turns), 3):
        topic, folder = Topic(), JobFolder(MemoryStore(), "job")
        sink, log = FakeSink(topic, lose_at=[lost, lost + 9]), FolderLog(folder)
        for selections in turns:
            turn(folder, log, sink, selections)
        assert {lane: len(held) for lane, held in topic.records.items()} == {
            lane: len(offsets) for lane, offsets in expected().items()
        }


def test_an_archive_that_went_back_is_refused(turns: list[list[Selection]]) -> None:
    folder, topic = JobFolder(MemoryStore(), "job"), Topic()
    log = FolderLog(folder)
    turn(folder, log, FakeSink(topic), turns[1])
    with pytest.raises(ReplayRefused, match="the archive is not the one"):
        turn(folder, log, FakeSink(topic), turns[0])


def test_positions_reach_up_to_the_new_ends(turns: list[list[Selection]]) -> None:
    before = followed_positions(JOB, turns[0], Pipeline())
    first = followed_positions(JOB, turns[1], Pipeline())
    position: LanePosition = continued(before, first)[0]
    assert position == first[0]
    assert (before[0].sources[0].end, position.sources[0].end) == (11, 43)


def test_positions_are_committed_again_where_nothing_came(turns: list[list[Selection]]) -> None:
    folder, topic = JobFolder(MemoryStore(), "job"), Topic()
    turn(folder, FolderLog(folder), FakeSink(topic), turns[1])
    before, topic.positions = dict(topic.positions), dict(topic.positions)
    committed: list[int] = []

    class Noting(FakeSink):
        def commit(self, positions: Mapping[int, LanePosition]) -> None:
            committed.extend(positions)
            super().commit(positions)

    turn(folder, FolderLog(folder), Noting(topic), turns[1])
    assert (sorted(committed), topic.positions) == ([0, 1], before)
