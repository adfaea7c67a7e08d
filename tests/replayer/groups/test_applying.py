"""Positions that are set, read back, and set back."""

from copy import deepcopy
from pathlib import Path

import pytest

from blockgz.errors import UsageError
from blockgz.kafka.groups import GroupOffset
from blockgz.store.local import LocalStore
from replayer.errors import ReplayRefused
from replayer.groups.applying import GroupChanges, NotReadBack
from replayer.groups.planning import GroupPlan, LaneTranslation, PlannedGroup
from tests.replayer.groups.fake_groups import FakeGroups


def planned(**offsets: int) -> GroupPlan:
    """By group, the offset in partition 0."""
    groups = [
        PlannedGroup(name, name, (LaneTranslation(0, offset), LaneTranslation(1, None)), {})
        for name, offset in offsets.items()
    ]
    return GroupPlan("job", "copy", "id-1", tuple(groups))


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
