"""Every moment at which a replay can die or lose an answer: what the target holds in the end is the archive, once."""

import asyncio
import random
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from blockgz.archive.selection import Selection
from index_format.records import Record
from replayer.errors import CommitLost
from replayer.replay.job import LanePosition
from replayer.replay.pace import Commands, Slowest
from replayer.replay.pipeline import Pipeline, RoutedBatch, ScannedBatch
from replayer.replay.run import NOTHING_KEPT, Cadence, run_replay
from tests.support.archives import ArchiveWriter, records
from tests.support.replays import Crash, FakeSink, Impatient, Topic, replay_into, work_of
from tests.support.sampling import some_of
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
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    randomly = random.Random(seed)
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
