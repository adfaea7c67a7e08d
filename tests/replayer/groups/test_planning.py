"""The plan for the groups of a job: names, metadata, and what is refused."""

import asyncio
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.errors import NotInArchive, UsageError
from blockgz.kafka import LogBounds
from blockgz.kafka.groups import GroupOffset
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from index_format.groups import ConsumerGroups, Group, GroupPosition, encode
from index_format.keys import TopicFolder, dated_key, groups_home
from replayer.errors import ReplayRefused
from replayer.groups import GroupMap, map_of, planning
from replayer.groups.applying import GroupChanges, NotReadBack
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.job import LanePosition, Run, SourceProgress
from replayer.replay.jobs.folder import JobRequest
from replayer.replay.pipeline import Pipeline, Router, Routing
from replayer.replay.recorded_job import LaneMap, RecordedJob
from replayer.replay.request import ReplayRequest
from tests.replayer.groups.fake_groups import FakeGroups
from tests.support.archives import ARCHIVE_ID, ArchiveWriter, records
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
    groups: planning.GroupPositions,
    rename: GroupMap = UNCHANGED,
    bounds: dict[int, LogBounds] = WHOLE,
) -> planning.GroupPlan:
    writer = ArchiveWriter(root)
    for partition in range(2):
        writer.partition("orders", partition).commit(records(range(RECORDS)))
    selections = {each.partition.partition: each for each in selections_of(root, "orders")}
    return asyncio.run(planning.plan_groups(job, selections, groups, rename, bounds))


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
    a, b = planning.group_plan_document(found)["groups"]
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


def planned(**offsets: int) -> planning.GroupPlan:
    """By group, the offset in partition 0."""
    groups = [
        planning.PlannedGroup(name, name, (planning.LaneTranslation(0, offset), planning.LaneTranslation(1, None)))
        for name, offset in offsets.items()
    ]
    return planning.GroupPlan("job", "copy", "id-1", tuple(groups))


@pytest.fixture
def changes(tmp_path: Path) -> GroupChanges:
    return GroupChanges(LocalStore(tmp_path), "job")


def roll_back(changes: GroupChanges, groups: FakeGroups, topic_id: str = "id-1") -> None:
    changes.roll_back(changes.rollback(groups, topic_id=topic_id), groups, topic_id=topic_id, now_ms=2)


def test_what_was_there_comes_back(changes: GroupChanges) -> None:
    groups = FakeGroups({"a": {"copy": {0: GroupOffset(5, "text")}, "other": {0: GroupOffset(1)}}})
    before = deepcopy(groups.stored["a"])
    changes.apply(planned(a=17), groups, 1)
    assert groups.stored["a"]["copy"] == {0: GroupOffset(17)}
    roll_back(changes, groups)
    assert groups.stored["a"] == before


def test_a_group_that_did_not_exist_is_deleted(changes: GroupChanges) -> None:
    groups = FakeGroups()
    changes.apply(planned(a=17), groups, 1)
    roll_back(changes, groups)
    assert groups.stored == {}


def test_a_group_with_positions_elsewhere_is_not_deleted_and_what_stays_is_named(changes: GroupChanges) -> None:
    groups = FakeGroups({"a": {"other": {0: GroupOffset(1)}}})
    changes.apply(planned(a=17), groups, 1)
    found = changes.rollback(groups, topic_id="id-1")
    assert (found.deleted, found.left) == ((), {"a": (0,)})
    changes.roll_back(found, groups, topic_id="id-1", now_ms=2)
    assert groups.stored["a"]["copy"] == {0: GroupOffset(17)}


def test_nothing_is_set_while_any_group_is_active(changes: GroupChanges) -> None:
    groups = FakeGroups(active={"b"})
    with pytest.raises(ReplayRefused, match="consumers are at work in group b"):
        changes.apply(planned(a=1, b=2), groups, 1)
    assert groups.stored == {}
    with pytest.raises(UsageError, match="has no group positions to set back"):
        changes.rollback(groups, topic_id="id-1")


def test_a_position_that_does_not_take_is_told(changes: GroupChanges) -> None:
    with pytest.raises(NotReadBack, match="group b does not stand where it was set in copy:0"):
        changes.apply(planned(a=1, b=2), FakeGroups(deaf={"b"}), 1)


def test_after_a_crash_between_two_groups_all_is_set_back(changes: GroupChanges) -> None:
    groups = FakeGroups({name: {"copy": {0: GroupOffset(5)}} for name in "ab"}, crash_before="b")
    before = deepcopy(groups.stored)
    with pytest.raises(RuntimeError):
        changes.apply(planned(a=17, b=18), groups, 1)
    groups.crash_before = None
    changes.apply(planned(a=19, b=20), groups, 2)
    assert groups.stored["b"] == {"copy": {0: GroupOffset(20)}}
    roll_back(changes, groups)
    assert groups.stored == before


def test_a_change_that_never_came_about_is_set_back_too(changes: GroupChanges) -> None:
    groups = FakeGroups({"a": {"copy": {0: GroupOffset(5)}}}, crash_before="a")
    with pytest.raises(RuntimeError):
        changes.apply(planned(a=17), groups, 1)
    groups.crash_before = None
    roll_back(changes, groups)
    assert groups.stored["a"] == {"copy": {0: GroupOffset(5)}}


def test_a_group_that_moved_since_is_left_alone(changes: GroupChanges) -> None:
    groups = FakeGroups()
    changes.apply(planned(a=17), groups, 1)
    groups.set_positions("a", "copy", {0: GroupOffset(30)})
    with pytest.raises(ReplayRefused, match="group a has moved in copy:0"):
        changes.rollback(groups, topic_id="id-1")


def test_another_topic_of_the_name_is_not_touched(changes: GroupChanges) -> None:
    groups = FakeGroups()
    changes.apply(planned(a=17), groups, 1)
    with pytest.raises(ReplayRefused, match="topic copy is not the one"):
        changes.rollback(groups, topic_id="id-2")


def test_what_is_set_back_is_not_set_back_again(changes: GroupChanges) -> None:
    groups = FakeGroups()
    changes.apply(planned(a=17), groups, 1)
    roll_back(changes, groups)
    with pytest.raises(UsageError, match="has no group positions to set back"):
        changes.rollback(groups, topic_id="id-1")
    changes.apply(planned(a=18), groups, 3)
    roll_back(changes, groups)
    assert groups.stored == {}


def test_a_damaged_record_of_a_change_is_named(changes: GroupChanges, tmp_path: Path) -> None:
    groups = FakeGroups()
    changes.apply(planned(a=17), groups, 1)
    path = tmp_path / "job" / "groups" / "000001.json"
    path.write_bytes(path.read_bytes().replace(b"17", b"18"))
    with pytest.raises(ReplayRefused, match="the folder of job job cannot be read"):
        changes.rollback(groups, topic_id="id-1")


def test_the_table_of_a_time(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    writer.partition("orders", 0).commit(records(range(3)))
    folder = TopicFolder("orders")
    for slot, offset in ((60_000, 1), (120_000, 2)):
        group = Group("team-a", slot - 5, (GroupPosition(0, offset, "m"),))
        table = ConsumerGroups(archive_id=ARCHIVE_ID, topic="orders", topic_id=None, interval=60_000, groups=(group,))
        writer.put(dated_key(groups_home("topic", folder), slot), encode(table))
    archive = ArchiveReader(LocalReader(LocalAddress(str(tmp_path))))

    def offsets(at_ms: int | None) -> object:
        return planning.positions_of(asyncio.run(planning.archived_groups(archive, folder, at_ms)))

    assert offsets(None) == {"team-a": {0: GroupOffset(2, "m")}}
    assert offsets(119_999) == {"team-a": {0: GroupOffset(1, "m")}}
    with pytest.raises(NotInArchive, match="the archive does not say where consumer groups stood on orders"):
        offsets(59_999)


def test_a_name_that_is_no_group_is_refused() -> None:
    positions = {"billing": {0: GroupOffset(1)}, "search": {0: GroupOffset(2)}}
    assert planning.meant_groups(positions, (), "orders") == positions
    assert set(planning.meant_groups(positions, ("bil*",), "orders")) == {"billing"}
    with pytest.raises(NotInArchive, match="no consumer group is 'bilings' in orders") as caught:
        planning.meant_groups(positions, ("search", "bilings"), "orders")
    assert caught.value.why == "groups there are billing, search"
    assert planning.meant_groups({}, (), "orders") == {}


def test_csv_of_several_groups() -> None:
    text = 'group,topic,partition,offset\n"a",orders,0,17\na,orders,1,0\nb,orders,0,3\na,other,0,9\n\n'
    assert planning.positions_in_csv(text, "orders") == {
        "a": {0: GroupOffset(17), 1: GroupOffset(0)},
        "b": {0: GroupOffset(3)},
    }
    assert planning.meant_groups(planning.positions_in_csv(text, "orders"), ["b*"], "a file") == {
        "b": {0: GroupOffset(3)}
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("orders,0,17\n", "line 1 of the positions file is not a position"),
        ("a,orders,0,17\na,orders,0,-1\n", "line 2 of the positions file is not a position"),
        ("a,orders,0,17\na,orders,0,18\n", "line 2 of the positions file names a partition again"),
        ("a,orders,0,9999999999999999999\n", "line 1 of the positions file is not a position"),
    ],
)
def test_csv_that_is_not_understood(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        planning.positions_in_csv(text, "orders")
