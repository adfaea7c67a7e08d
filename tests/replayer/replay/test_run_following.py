"""A job that follows its archive, turn by turn: whatever crashes or is lost, every record arrives once."""

import asyncio
from collections.abc import Iterable, Mapping

import pytest

from blockgz.archive.selection import Selection
from index_format.records import Record
from replayer.errors import ReplayRefused
from replayer.replay.job import LanePosition, continued, decode_position, followed, followed_positions
from replayer.replay.jobs.folder import FolderLog, JobFolder
from replayer.replay.pace import Slowest
from replayer.replay.pipeline import Pipeline
from replayer.replay.run import Keeping, ReplayWork, run_replay
from tests.replayer.replay.test_run_notes import SMALL, NoEnds, judge
from tests.support.archives import ArchiveWriter, records
from tests.support.memory_store import MemoryStore
from tests.support.replays import JOB, Crash, FakeSink, Impatient, Topic
from tests.support.sampling import some_of
from tests.support.selections import selections_of


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
    ranges = followed(selections, stood)
    first = followed_positions(JOB, ranges, Pipeline())
    work = ReplayWork(JOB, Pipeline(), ranges, first, follows=True)
    keeping = Keeping(log, NoEnds())
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
