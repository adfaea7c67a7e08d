"""The groups of a standby, set wherever they moved."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.archive.archive import Archive
from blockgz.kafka.groups import GroupOffset
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from replayer.errors import ReplayRefused
from replayer.groups.planning import GroupPlan, LaneTranslation, PlannedGroup
from replayer.replay.surroundings import Surroundings
from replayer.restore.consumers import FollowedGroups, PlannedGroups
from replayer.restore.document import RestoreGroups, RestorePlan
from tests.replayer.groups.fake_groups import FakeGroups
from tests.replayer.restore.test_turns import plan, topic


@dataclass
class Planning:
    """By topic the groups, and by group the position in partition 0; `doubts` make all inexact."""

    at: dict[str, dict[str, int]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    asked: list[str] = field(default_factory=list)
    error: Exception | None = None

    async def planned(self, wanted: RestorePlan, _: RestoreGroups, __: str, ___: Surroundings) -> PlannedGroups:
        (only,) = wanted.topics
        self.asked.append(only.target)
        if self.error is not None:
            raise self.error
        groups = tuple(
            PlannedGroup(name, name, (LaneTranslation(0, offset, doubts=self.doubts),), {})
            for name, offset in self.at.get(only.target, {}).items()
        )
        return [GroupPlan("job", only.target, None, groups)], []


@dataclass
class Standby:
    """Follows the groups of two topics."""

    planning: Planning
    cluster: FakeGroups
    around: Surroundings
    wanted: RestoreGroups = field(default_factory=RestoreGroups)

    def __post_init__(self) -> None:
        self.groups = FollowedGroups(self.wanted, "standby", self.cluster, self.planning.planned)

    def follow(self, slot: int, reached: Mapping[str, int] | None = None) -> tuple[str, ...]:
        """With tables of that time; `reached` says by source where partition 0 ends. The notes."""
        ends = {"bills~1": 1, "orders~1": 1} if reached is None else reached
        topics = tuple(replace(topic(each), groups_at=slot) for each in ends)
        places = {each: {0: end} for each, end in ends.items()}
        return asyncio.run(self.groups.follow(plan(*topics), places, self.around))

    def stands(self, group: str, name: str) -> int | None:
        found = self.cluster.positions(group, name, [0])
        return found[0].offset if found else None


@pytest.fixture
def standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Standby:
    monkeypatch.setattr("replayer.restore.consumers.REST", 0)
    archive = Archive(LocalReader(LocalAddress(str(tmp_path))))
    around = Surroundings(archive, {}, LocalStore(tmp_path / "jobs"))
    return Standby(Planning({"orders": {"a": 3, "b": 4}, "bills": {"a": 5}}), FakeGroups(), around)


def test_groups_are_set_where_they_moved(standby: Standby) -> None:
    assert standby.follow(1) == ()
    assert (standby.stands("a", "orders"), standby.stands("b", "orders"), standby.stands("a", "bills")) == (3, 4, 5)
    standby.planning.asked.clear()
    standby.follow(1)
    assert standby.planning.asked == [], "no table is newer, and nothing was copied"
    standby.cluster.stored["b"]["orders"][0] = GroupOffset(9)
    standby.planning.at["orders"]["a"] = 6
    standby.follow(2)
    assert (standby.stands("a", "orders"), standby.stands("b", "orders")) == (6, 9), "it did not move at the source"
    standby.planning.asked.clear()
    standby.follow(2, {"orders~1": 2})
    assert standby.planning.asked == ["orders"]


def test_groups_with_consumers_are_left_alone_until_they_have_none(standby: Standby) -> None:
    standby.cluster.active.add("a")
    notes = standby.follow(1)
    assert notes == (
        "group a is not set in bills: consumers are at work in it",
        "group a is not set in orders: consumers are at work in it",
    )
    assert (standby.stands("a", "orders"), standby.stands("b", "orders")) == (None, 4)
    standby.cluster.active.clear()
    assert standby.follow(1) == ()
    assert standby.stands("a", "orders") == 3


def test_what_is_not_exact_is_not_set_unless_that_was_asked_for(standby: Standby) -> None:
    standby.planning.doubts = ("who knows",)
    assert "group b is not set in orders: who knows" in standby.follow(1)
    assert standby.cluster.stored == {}
    standby.wanted = RestoreGroups(approximate=True)
    standby.__post_init__()
    assert standby.follow(1) == ()
    assert standby.stands("b", "orders") == 4


def test_an_error_of_a_topic_is_a_note(standby: Standby) -> None:
    standby.planning.error = ReplayRefused("the run map is damaged")
    assert standby.follow(1)[0] == "the groups of bills are not set: the run map is damaged"
    standby.planning.error = None
    assert standby.follow(1) == ()


def test_topics_without_a_table_are_not_asked(standby: Standby) -> None:
    topics = (topic("orders~1"),)
    assert asyncio.run(standby.groups.follow(plan(*topics), {"orders~1": {0: 1}}, standby.around)) == ()
    assert standby.planning.asked == []


def test_groups_rest_after_they_were_set(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.restore.consumers.REST", 1e9)
    standby.follow(1)
    standby.planning.at["orders"]["a"] = 6
    standby.follow(2)
    assert standby.stands("a", "orders") == 3
