"""A replay with a job's folder: whatever crashes or is lost, the run map says where every record stands."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from blockgz.archive.selection import Selection
from blockgz.store.local import LocalStore
from index_format.records import Record, iter_records
from replayer.errors import CommitLost, DeliveryFailed, JobTakenOver, ProducerFenced, TargetChanged
from replayer.replay.job import LanePosition, decode_position
from replayer.replay.jobs.folder import FolderLog, JobFolder, runs_in
from replayer.replay.pipeline import Pipeline, Routing
from replayer.replay.run import NOTHING_KEPT, Cadence, Keeping, NoPin
from replayer.replay.run_map import Run
from tests.support.archives import ArchiveWriter, records
from tests.support.replays import Crash, FakeSink, Topic, replay_into
from tests.support.sampling import some_of
from tests.support.selections import selections_of

SMALL = Cadence(records=4, bytes=2**40, seconds=1e9, rest=0)
PIPELINES = [Pipeline(router=Routing()), Pipeline(router=Routing("number", 1))]


@pytest.fixture(scope="module")
def selections(tmp_path_factory: pytest.TempPathFactory) -> list[Selection]:
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
def test_at_any_step(selections: list[Selection], pipeline: Pipeline, how: str, tmp_path: Path) -> None:
    sink = FakeSink(Topic())
    replay_into(sink, selections, pipeline, SMALL)
    for step in some_of(range(1, sink.steps + 1)):
        topic, folder = Topic(), JobFolder(LocalStore(tmp_path), f"j{step}")
        bad = FakeSink(topic, crash_at=step) if how == "crash" else FakeSink(topic, lose_at=[step])
        with suppress(Crash):
            replay_into(bad, selections, pipeline, SMALL, keeping=Keeping(FolderLog(folder), NoEnds()))
        result = replay_into(FakeSink(topic), selections, pipeline, SMALL, keeping=Keeping(FolderLog(folder), NoEnds()))
        assert result.complete
        judge(folder, topic)


class NoEnds(NoPin):
    """A target that is as it should be; lanes end where they must."""

    def check(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        return dict(ends)


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
    selections: list[Selection], pipeline: Pipeline, tmp_path: Path
) -> None:
    folder, topic = JobFolder(LocalStore(tmp_path), "j"), Topic()
    sink = Slow(topic)
    cadence = SMALL._replace(records=2)
    result = replay_into(sink, selections, pipeline, cadence, keeping=Keeping(FolderLog(folder), NoEnds()))
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


def test_fenced_by_a_late_request_of_its_own(selections: list[Selection], tmp_path: Path) -> None:
    folder, topic = JobFolder(LocalStore(tmp_path), "j"), Topic()
    keeping = Keeping(FolderLog(folder), NoEnds())
    result = replay_into(FencedOnce(topic), selections, cadence=SMALL, keeping=keeping)
    assert (result.complete, result.lost_commits) == (True, 1)
    judge(folder, topic)


def test_fenced_by_another_run(selections: list[Selection], tmp_path: Path) -> None:
    folder = JobFolder(LocalStore(tmp_path), "j")
    other = FolderLog(folder)

    class Overtaken(FencedOnce):
        def commit(self, positions: Mapping[int, LanePosition]) -> None:
            if self.topic.positions:
                other.claim()
            super().commit(positions)

    with pytest.raises(JobTakenOver, match="fenced") as caught:
        replay_into(Overtaken(Topic()), selections, cadence=SMALL, keeping=Keeping(FolderLog(folder), NoEnds()))
    assert "another run of the same job has started" in caught.value.why
    with pytest.raises(JobTakenOver) as caught:
        replay_into(FencedOnce(Topic()), selections, cadence=SMALL, keeping=NOTHING_KEPT)
    assert "who knows" in caught.value.why, "without a folder nobody can tell"


class ChangesAt(NoEnds):
    """The target is another one from the call of that number on."""

    def __init__(self, number: int) -> None:
        self.left = number

    def check(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        self.left -= 1
        if self.left <= 0:
            raise TargetChanged("it is another one", why="")
        return super().check(ends)


def test_a_target_that_changed_ends_the_replay_at_any_check(selections: list[Selection]) -> None:
    whole = ChangesAt(2**30)
    replay_into(FakeSink(Topic()), selections, cadence=SMALL, keeping=NOTHING_KEPT._replace(pin=whole))
    checks = 2**30 - whole.left
    assert checks >= 4
    for number in range(1, checks):
        with pytest.raises(TargetChanged, match="another one"):
            replay_into(
                FakeSink(Topic()), selections, cadence=SMALL, keeping=NOTHING_KEPT._replace(pin=ChangesAt(number))
            )


def test_what_a_failure_hides_is_reported(selections: list[Selection]) -> None:
    """A broker that takes no record any more may do so because the topic is another one."""

    class Refusing(FakeSink):
        def send(self, lane: int, batch: pa.RecordBatch) -> None:
            raise CommitLost("not taken")

    keeping = Keeping(pin=ChangesAt(2), patience=0.0)
    with pytest.raises(TargetChanged, match="another one"):
        replay_into(Refusing(Topic()), selections, cadence=SMALL, keeping=keeping)


@pytest.mark.parametrize("pipeline", PIPELINES, ids=["kept", "folded"])
@pytest.mark.parametrize("sends", [1, 3])
def test_what_the_cluster_took_of_a_batch_that_failed_is_noted(
    selections: list[Selection], pipeline: Pipeline, sends: int, tmp_path: Path
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
        replay_into(Failing(topic), selections, pipeline, SMALL, keeping=Keeping(FolderLog(folder), NoEnds()))
    taken = sum(map(len, topic.records.values()))
    noted = sum(map(len, records_named(folder, topic).values()))
    assert 0 < noted <= taken, "the rest was not acknowledged"
