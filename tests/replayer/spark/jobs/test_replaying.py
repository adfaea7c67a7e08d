"""One source partition of a replay as an executor does it, killed at every step."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from blockgz.archive.archive import ArchivePlace, opened
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.errors import exit_code as exit_code_of
from blockgz.record_filter import RecordFilter
from blockgz.store.address import LocalAddress
from index_format.errors import FormatError
from index_format.old_objects import ANCESTORS_FORMAT
from replayer.replay.job import Job, LanePosition, SourceProgress, decode_position
from replayer.replay.pipeline import Pipeline, Routing
from replayer.replay.stages import DropTombstones
from replayer.spark import replay
from replayer.spark.lanes import LaneStore, LaneTarget, source_lane
from replayer.spark.replay import LaneWork, Replay, SourceTask, run_lane, topics_of
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
def task(source: PartitionWriter, tmp_path: Path) -> SourceTask:
    router = Routing("number", 2)
    work = LaneWork(
        ArchivePlace(LocalAddress(str(tmp_path)), max_block_bytes=1 << 20, old_format=ANCESTORS_FORMAT),
        Pipeline((DropTombstones(),), router),
        RecordFilter(),
        skips_damage=False,
        transactional=True,
        target=LaneTarget({}, router, None),
    )
    position = LanePosition("0" * 16, "0" * 16, 0, {SOURCE: SourceProgress(7, 7, 50)})
    return SourceTask(work, "orders~1", source_lane(JOB, SOURCE, 2), position)


def kept(source: PartitionWriter, start: int, end: int) -> list[int]:
    """Offsets of the records that are no tombstones."""
    return [record.offset for record in source.records if start <= record.offset < end and record.value is not None]


@pytest.mark.slow
def test_killed_at_every_step_and_restarted(
    task: SourceTask, source: PartitionWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_at = 0
    completed = False
    while not completed:
        crash_at += 1
        topic = Topic()
        sinks = iter([FakeSink(topic, crash_at=crash_at), FakeSink(topic)])
        monkeypatch.setattr(replay, "lane_sink", lambda *_, sinks=sinks, **__: nullcontext(next(sinks)))
        try:
            outcome = run_lane(task)
            completed = True
        except Crash:
            outcome = run_lane(task)
        assert outcome.failure is None
        assert [record.offset for record in topic.records[1]] == kept(source, 7, 50)
        assert decode_position(*topic.positions[1]).complete
    assert crash_at > 5


def test_an_error_is_an_outcome_that_says_what_went_before(
    task: SourceTask, source: PartitionWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = sorted(tmp_path.rglob("*.gz"))[1]
    content = bytearray(chunk.read_bytes())
    content[560:570] = bytes(10)  # within one block: across two, each of them is a range that is skipped
    chunk.write_bytes(content)
    topic = Topic()
    monkeypatch.setattr(replay, "lane_sink", lambda *_, **__: nullcontext(FakeSink(topic)))
    failed = run_lane(task)
    assert isinstance(failed.failure, FormatError)
    assert exit_code_of(failed.failure) == 3
    wanted = kept(source, 7, 50)
    done = [record.offset for record in topic.records[1]]
    assert 20 < done[-1] < 40
    assert done == [offset for offset in wanted if offset <= done[-1]]

    skipping = run_lane(replace(task, work=replace(task.work, skips_damage=True)))
    assert skipping.failure is None
    ((start, end, _),) = skipping.skipped
    assert [record.offset for record in topic.records[1]] == [*kept(source, 7, start), *kept(source, end, 50)]


def test_a_task_reads_the_folder_that_its_partition_is_in(
    task: SourceTask, source: PartitionWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sibling is in an older folder: the log of this one was truncated."""
    source.archive.partition("orders", 0).commit(records(range(60)))
    later = source.truncated(40)
    later.commit(records(range(40, 60), value_bytes=30))

    async def selected() -> list[Selection]:
        async with opened(task.work.place) as archive:
            return [Selection(each, OffsetRange(7, 50)) for each in await archive.open_topic("orders")]

    topics = topics_of(asyncio.run(selected()))
    assert topics == {0: "orders~1", SOURCE: "orders~2"}
    work = Replay({SOURCE: task.first}, {}, {SOURCE: task.lane}, cast(LaneStore, None), topics, task.work)
    topic = Topic()
    monkeypatch.setattr(replay, "lane_sink", lambda *_, **__: nullcontext(FakeSink(topic)))
    (made,) = work.tasks(work.before)
    assert run_lane(made).failure is None
    values = {record.offset: record.value for record in [*source.records[:40], *later.records]}
    assert {record.offset: record.value for record in topic.records[1]} == {
        offset: value for offset, value in values.items() if 7 <= offset < 50 and value is not None
    }
