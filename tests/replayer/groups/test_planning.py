"""The plan for the groups of a job: names, metadata, and what is refused."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from blockgz.archive.archive import TopicPartitions
from blockgz.errors import UsageError
from blockgz.kafka import LogBounds
from blockgz.kafka.groups import GroupOffset
from replayer.errors import ReplayRefused
from replayer.groups import GroupMap, map_of
from replayer.groups.planning import GroupPlan, GroupPositions, group_plan_document, plan_groups
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.job import LanePosition, SourceProgress
from replayer.replay.jobs.folder import JobRequest
from replayer.replay.pipeline import Pipeline, Router, Routing
from replayer.replay.recorded_job import LaneMap, RecordedJob
from replayer.replay.request import ReplayRequest
from replayer.replay.run_map import Run
from tests.support.archives import ArchiveWriter, records
from tests.support.selections import selections_of

RECORDS = 20
UNCHANGED = map_of(())
WHOLE = {0: LogBounds(0, 40), 1: LogBounds(0, 40)}


def recorded(*runs: Run, router: Router | None = None) -> RecordedJob:
    request = JobRequest(
        job="job",
        selection="0" * 16,
        archive_id="archive-1",
        folder="orders",
        source_topic_id=None,
        target="copy",
        target_topic_id="id",
        transactional=True,
        producers=1,
        begun_at=0,
        ranges={0: (0, RECORDS), 1: (0, RECORDS)},
        asked={},
    )
    pipeline = Pipeline(router=router) if router else Pipeline()
    feeding: dict[int, list[int]] = {}
    for source in range(2):
        for lane in pipeline.targets(source):
            feeding.setdefault(lane, []).append(source)
    positions = {
        lane: LanePosition("0" * 16, "0" * 16, 0, {each: SourceProgress(0, RECORDS, RECORDS) for each in sources})
        for lane, sources in feeding.items()
    }
    maps = {lane: LaneMap(0) for lane in feeding}
    for run in runs:
        maps[run.lane].add(run)
    facts = TopicFacts("copy", 2, "id", None)
    return RecordedJob(
        request, facts, ReplayRequest(TopicPartitions("orders", None), "copy"), pipeline, feeding, positions, maps
    )


SIDE_BY_SIDE = (Run(0, 0, RECORDS, 0, 0, RECORDS), Run(1, 0, RECORDS, 1, 7, RECORDS))
FOLDED = (Run(0, 0, RECORDS, 0, 0, RECORDS), Run(1, 0, RECORDS, 0, RECORDS, RECORDS))


def plan(
    root: Path,
    job: RecordedJob,
    groups: GroupPositions,
    rename: GroupMap = UNCHANGED,
    bounds: dict[int, LogBounds] = WHOLE,
) -> GroupPlan:
    writer = ArchiveWriter(root)
    for partition in range(2):
        writer.partition("orders", partition).commit(records(range(RECORDS)))
    selections = {each.partition.partition: each for each in selections_of(root, "orders")}
    return asyncio.run(plan_groups(job, selections, groups, rename, bounds))


def test_each_group_gets_its_positions_and_metadata(tmp_path: Path) -> None:
    groups = {"a": {0: GroupOffset(3, "m"), 1: GroupOffset(5)}, "b": {1: GroupOffset(0)}, "c": {9: GroupOffset(1)}}
    found = plan(tmp_path, recorded(*SIDE_BY_SIDE), groups)
    assert {group.name: group.positions for group in found.groups} == {
        "a": {0: GroupOffset(3, "m"), 1: GroupOffset(12)},
        "b": {1: GroupOffset(7)},
    }
    found.refuse_inexact()


def test_groups_are_renamed_by_the_first_pattern_that_matches(tmp_path: Path) -> None:
    rename = map_of((("team-(.*)", r"drill-\1"), (".*", "rest")))
    groups = {"team-a": {0: GroupOffset(3)}, "xteam-b": {0: GroupOffset(4)}}
    found = plan(tmp_path, recorded(*SIDE_BY_SIDE), groups, rename)
    assert [(group.source, group.name) for group in found.groups] == [("team-a", "drill-a"), ("xteam-b", "rest")]


def test_two_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    rename = map_of(((".*", "one"),))
    with pytest.raises(UsageError, match="groups a and b would both be one"):
        plan(tmp_path, recorded(*SIDE_BY_SIDE), {"a": {0: GroupOffset(3)}, "b": {0: GroupOffset(4)}}, rename)


def test_a_position_that_is_not_exact_is_refused_and_told(tmp_path: Path) -> None:
    groups = {"a": {0: GroupOffset(3, "m"), 1: GroupOffset(5)}, "b": {0: GroupOffset(RECORDS), 1: GroupOffset(5)}}
    found = plan(tmp_path, recorded(*FOLDED, router=Routing("number", 1)), groups)
    with pytest.raises(ReplayRefused, match="1 of 2 groups have no exact position in copy: a"):
        found.refuse_inexact()
    a, b = group_plan_document(found)["groups"]
    assert (a["exact"], a["partitions"]) == (
        False,
        [{"partition": 0, "offset": 3, "exact": False, "read_again": 5, "skipped": 0}],
    )
    assert (b["exact"], b["partitions"][0]["offset"]) == (True, RECORDS + 5)
    assert found.groups[0].positions == {0: GroupOffset(3)}, "metadata of two partitions is of neither"


def test_records_that_the_target_deleted_are_told(tmp_path: Path) -> None:
    bounds = {0: LogBounds(10, 40), 1: LogBounds(0, 40)}
    (group,) = plan(tmp_path, recorded(*SIDE_BY_SIDE), {"a": {0: GroupOffset(3)}}, bounds=bounds).groups
    assert group.positions == {0: GroupOffset(10)}
    assert group.notes == ["target partition 0: its records below 10 are deleted already"]


def test_a_target_that_lost_records_is_refused(tmp_path: Path) -> None:
    bounds = {0: LogBounds(0, 2), 1: LogBounds(0, 40)}
    with pytest.raises(ReplayRefused, match="target partition 0 lacks records of the job"):
        plan(tmp_path, recorded(*SIDE_BY_SIDE), {"a": {0: GroupOffset(3)}}, bounds=bounds)


def test_a_job_whose_positions_nobody_knows_is_refused(tmp_path: Path) -> None:
    job = recorded(*SIDE_BY_SIDE)
    job = replace(job, positions={0: job.positions[0]})
    with pytest.raises(ReplayRefused, match="the positions of job job are not known"):
        plan(tmp_path, job, {"a": {0: GroupOffset(3)}})
