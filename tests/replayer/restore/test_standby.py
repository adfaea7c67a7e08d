"""Standbys and drills: followers over an archive that grows, turn by turn."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from blockgz.archive.archive import ArchiveReader
from blockgz.errors import BrokerUnreachable, NotInArchive, Verdict
from blockgz.kafka.groups import GroupOffset
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from index_format import objects
from index_format.keys import TopicFolder, inventory_key
from index_format.objects import ended
from replayer.errors import JobTakenOver, ReplayRefused
from replayer.groups.planning import GroupPlan, LaneTranslation, PlannedGroup
from replayer.kafka.topic_facts import NewTopic, TopicFacts
from replayer.replay.jobs.folder import JobFolder, JobRequest
from replayer.replay.request import Surroundings
from replayer.restore.consumers import FollowedGroups, PlannedGroups
from replayer.restore.document import (
    RestoreFolder,
    RestoreGroups,
    RestorePlan,
    StandbyReport,
    SwitchOver,
    TopicDone,
    TopicLeftOut,
    TopicStand,
    TopicToRestore,
    WantedTopics,
    topic_job,
)
from replayer.restore.drill import Drill, drill_document, sampled
from replayer.restore.planning import TRUNCATED
from replayer.restore.running import RestoreRun, TopicOutcome
from replayer.restore.standby import (
    StandbyRun,
    StandbyTurn,
    TopicLag,
    follows_elsewhere,
    gone,
    lag_of,
    standby_document,
    switched_plan,
    turns,
)
from tests.replayer.groups.fake_groups import FakeGroups
from tests.replayer.restore.test_planning import topic
from tests.support.archives import ArchiveWriter, records

REPORT = StandbyReport(
    state="following",
    host="here:1",
    slot_at=100_000,
    every=10.0,
    topics=(TopicStand("orders~1", "orders", "failing", "no", "wait", ("0 [1..2)",)),),
    group_notes=("a note",),
)


@pytest.fixture
def around(tmp_path: Path) -> Surroundings:
    """Two topics: 40 records in each of two partitions, and 10 in one."""
    writer = ArchiveWriter(tmp_path / "archive")
    for partition in (0, 2):
        writer.partition("orders", partition).commit(records(range(40), timestamps=range(1000, 1040)))
    writer.partition("bills", 0).commit(records(range(10)))
    archive = ArchiveReader(LocalReader(LocalAddress(str(writer.root))))
    return Surroundings(archive, {"bootstrap.servers": "127.0.0.1:1"}, LocalStore(tmp_path / "jobs"))


def switched(
    around: Surroundings, found: RestorePlan, turns: Sequence[StandbyTurn], followed: Sequence[str]
) -> RestorePlan:
    by_source = {each: topic(each) for each in followed}
    return asyncio.run(switched_plan(plan(), found, turns, by_source, around))


def test_a_switch_over_restores_what_is_followed_with_its_size(around: Surroundings) -> None:
    turns = [StandbyTurn(topic("bills~1")), StandbyTurn(topic("orders~1"))]
    whole = switched(around, replace(plan(), at=9), turns, ["bills~1"])
    bills, orders = whole.topics
    assert (orders.partitions, orders.numbers, orders.records) == (3, (0, 2), 80)
    assert (orders.oldest, orders.newest, orders.refused) == (1000, 1039, None)
    assert 0 < orders.largest < orders.bytes
    assert bills.records == 10
    assert whole.at == 9


def test_a_topic_that_stopped_is_restored_as_far_as_it_came(around: Surroundings) -> None:
    turns = [StandbyTurn(topic("orders~1"), "created again"), StandbyTurn(topic("bills~1"), "x exists")]
    orders, bills = switched(around, plan(), turns, ["orders~1"]).topics
    assert (orders.lacks, orders.records, orders.refused) == (("created again",), 80, None)
    assert (bills.refused, bills.records) == ("x exists", 0)


def test_what_is_gone_is_left_out_once(around: Surroundings) -> None:
    left_out = TopicLeftOut("deals", "deleted")
    turns = [StandbyTurn(topic("deals~1"), "deleted", is_gone=True)]
    assert switched(around, plan(left_out=(left_out,)), turns, ["deals~1"]).left_out == (left_out,)


def test_before_its_job_begins_a_topic_is_all_behind(around: Surroundings) -> None:
    lag = asyncio.run(lag_of(topic("orders~1"), "standby", around))
    assert lag == TopicLag(0, 80, 1000)
    assert (lag.seconds(3000), lag.seconds(500)) == (2.0, 0.0)
    assert asyncio.run(lag_of(topic("nobody~1"), "standby", around)).error is not None


def test_the_document_of_a_status() -> None:
    due = [
        StandbyTurn(topic("orders~1")),
        StandbyTurn(topic("bills~1"), "it was created again", "delete it"),
        StandbyTurn(topic("new~1")),
        StandbyTurn(topic("deals~1"), "deleted", is_gone=True),
    ]
    lags = {"orders~1": TopicLag(5, 3, 1000), "bills~1": TopicLag(9), "new~1": TopicLag(0, 2, 3000)}
    document = standby_document("standby", due, lags, REPORT, "following", 5000)
    told = {each["source"]: (each["state"], each["why"], each["behind_records"]) for each in document["topics"]}
    assert told == {
        "orders~1": ("failing", "no", 3),
        "bills~1": ("stopped", "it was created again", 0),
        "new~1": ("behind", None, 2),
        "deals~1": ("gone", "deleted", 0),
    }
    assert (document["behind_records"], document["behind_seconds"], document["slot_at"]) == (5, 4.0, 100_000)
    assert document["topics"][0]["skipped"] == ["0 [1..2)"]
    unknown = standby_document("standby", due, lags | {"new~1": TopicLag(error="e")}, None, "not running", 5000)
    assert [each["state"] for each in unknown["topics"]] == ["behind", "stopped", "failing", "gone"]


def test_who_follows_elsewhere_is_believed_for_a_while() -> None:
    assert not follows_elsewhere(None, "there:2", 0)
    assert not follows_elsewhere(REPORT, "here:2", 100_000)
    assert follows_elsewhere(REPORT, "there:2", 160_000)
    assert not follows_elsewhere(REPORT, "there:2", 170_001)
    assert not follows_elsewhere(replace(REPORT, state="ended"), "there:2", 100_000)


PLAN = RestorePlan(archive_id="archive-1", at=1, groups=None, follow=WantedTopics())


@dataclass
class Cluster:
    """What a follower asks of the target."""

    topics: set[str] = field(default_factory=set)
    num_brokers: int = 1

    def again(self) -> "Cluster":
        return self

    def why_uncreatable(self, _: NewTopic) -> None:
        """It creates whatever it is asked for."""

    def changeable_settings(self) -> None:
        """It does not say."""


@dataclass
class Copies:
    """Notes what is copied; by source an error, or whether all is there."""

    cluster: Cluster
    told: list[tuple[str, int]] = field(default_factory=list)
    answers: dict[str, bool | Exception] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    ending: bool = False

    def end(self) -> None:
        self.ending = True

    async def run(self, _plan: RestorePlan, outcome: TopicOutcome, _around: Surroundings) -> bool:
        self.told.append((outcome.job, outcome.topic.partitions))
        self.cluster.topics.add(outcome.topic.target)
        outcome.skipped = self.skipped
        answer = self.answers.get(outcome.topic.source, True)
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Standby:
    """One archive and who follows it."""

    root: Path
    told: list[TopicStand] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writer = ArchiveWriter(self.root / "archive")
        self.cluster = Cluster()
        self.folder = RestoreFolder(LocalStore(self.root / "jobs"), "standby")
        self.copies = Copies(self.cluster)
        self.run = self.resumed()

    def resumed(self) -> StandbyRun:
        """Another process."""
        archive = ArchiveReader(LocalReader(LocalAddress(str(self.writer.root))))
        around = Surroundings(archive, {"bootstrap.servers": "127.0.0.1:1"}, LocalStore(self.root / "jobs"))
        vars(around)["admin"] = self.cluster
        return StandbyRun(PLAN, self.folder, around, self.copies, None, 2, 0.001, self.told.append)

    def slot(self) -> dict[str, str]:
        """By source the states after a slot."""
        report = asyncio.run(self.run.slot())
        assert report.error is None
        self.folder.replace(report)
        return {each.source: each.state for each in report.topics}

    def copied(self) -> list[tuple[str, int]]:
        """What was copied since the last time, and the partitions of the target."""
        told, self.copies.told = sorted(self.copies.told), []
        return told


@pytest.fixture
def standby(tmp_path: Path) -> Standby:
    """`orders` of one partition and `bills` of another."""
    standby = Standby(tmp_path)
    standby.writer.partition("orders", 0).commit(records(range(10)))
    standby.writer.partition("bills", 0).commit(records(range(10)))
    return standby


def test_only_what_the_archive_gained_is_copied(standby: Standby) -> None:
    assert standby.slot() == {"bills~1": "following", "orders~1": "following"}
    assert standby.copied() == [("standby.bills-1", 1), ("standby.orders-1", 1)]
    standby.slot()
    assert standby.copied() == []
    standby.writer.partition("orders", 3).commit(records(range(5)))
    standby.writer.partition("deals", 0).commit(records(range(5)))
    assert set(standby.slot().values()) == {"following"}
    assert standby.copied() == [("standby.deals-1", 1), ("standby.orders-1", 4)]
    assert sorted(each.source for each in standby.told) == ["bills~1", "deals~1", "orders~1"], "each once"
    assert set(standby.folder.followed()) == {"bills~1", "orders~1", "deals~1"}
    standby.run = standby.resumed()
    standby.slot()
    assert len(standby.copied()) == 3, "who was killed may have copied a part"


def test_a_topic_that_is_created_again_stops_and_goes_on_once_its_copy_is_gone(standby: Standby) -> None:
    standby.slot()
    standby.writer.partition("orders", 0, incarnation=2).commit(records(range(50, 60)))
    standby.copied()
    for _ in range(2):
        assert standby.slot() == {"bills~1": "following", "orders~1": "stopped"}
        standby.run = standby.resumed()
    assert standby.copied() == [("standby.bills-1", 1)]
    assert standby.told[-1].do == "delete topic orders in the standby, and orders~2 is followed"
    standby.cluster.topics.remove("orders")
    assert standby.slot() == {"bills~1": "following", "orders~2": "following"}
    assert ("standby.orders-2", 1) in standby.copied()


def test_a_topic_without_new_records_commits_where_it_stands(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.restore.standby.REFRESH_SECONDS", 0)
    standby.slot()
    standby.copied()
    standby.slot()
    assert standby.copied() == [("standby.bills-1", 1), ("standby.orders-1", 1)]


def test_a_topic_that_is_gone_stays(standby: Standby) -> None:
    standby.slot()
    inventory = ended(standby.writer.inventory, TopicFolder("bills"), None, 5)
    standby.writer.put(inventory_key("topic"), objects.encode(inventory))
    assert standby.slot() == {"bills~1": "gone", "orders~1": "following"}


def test_an_error_of_one_topic_is_its_own_and_is_tried_again(standby: Standby) -> None:
    standby.copies.answers = {"orders~1": ReplayRefused("no", why="x", remedy="wait"), "bills~1": ValueError("bug")}
    assert standby.slot() == {"bills~1": "failing", "orders~1": "failing"}
    assert {(each.why, each.do) for each in standby.told} == {("ValueError: bug", "report this bug"), ("no: x", "wait")}
    standby.copies.answers = {"orders~1": False}
    assert standby.slot() == {"bills~1": "following", "orders~1": "behind"}
    standby.copies.answers = {}
    standby.copied()
    assert standby.slot() == {"bills~1": "following", "orders~1": "following"}
    assert standby.copied() == [("standby.orders-1", 1)]


def test_what_was_skipped_is_not_forgotten(standby: Standby) -> None:
    standby.copies.skipped = ["0 [1..2): it is damaged"]
    standby.slot()
    standby.copies.skipped = []
    standby.run = standby.resumed()
    standby.slot()
    last = standby.folder.get(StandbyReport)
    assert last is not None
    assert {each.skipped for each in last.topics} == {("0 [1..2): it is damaged",)}


def test_an_error_of_everything_is_reported(standby: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    standby.slot()

    def unreachable() -> Cluster:
        raise BrokerUnreachable("the cluster does not answer", why="down", remedy="wait")

    monkeypatch.setattr(standby.cluster, "again", unreachable)
    report = asyncio.run(standby.run.slot())
    assert report.error == "the cluster does not answer: down"
    assert [each.state for each in report.topics] == ["following", "following"]


def followed(standby: Standby) -> StandbyReport:
    asyncio.run(standby.run.follow())
    last = standby.folder.get(StandbyReport)
    assert last is not None
    return last


def end_when_copied(standby: Standby, end: Callable[[], object]) -> None:
    """The first topic that is copied ends it."""

    class Ending(Copies):
        async def run(self, plan: RestorePlan, outcome: TopicOutcome, around: Surroundings) -> bool:
            end()
            return await super().run(plan, outcome, around)

    standby.copies = Ending(standby.cluster)
    standby.run = standby.resumed()


def test_it_ends_after_a_commit(standby: Standby) -> None:
    end_when_copied(standby, lambda: standby.run.end())  # noqa: PLW0108  # the run is made anew
    assert followed(standby).state == "ended"
    assert standby.copies.ending


def test_a_switch_over_ends_it(standby: Standby) -> None:
    standby.folder.put(SwitchOver(host="there:1", at=5))
    assert followed(standby).state == "ended"


def test_another_follower_ends_it(standby: Standby) -> None:
    standby.copies.answers["bills~1"] = JobTakenOver("another run of the same job has started")
    with pytest.raises(JobTakenOver, match="another run"):
        followed(standby)


def test_who_switches_over_takes_the_jobs(standby: Standby) -> None:
    standby.copies.answers["bills~1"] = JobTakenOver("another run of the same job has started")
    standby.folder.put(SwitchOver(host="there:1", at=5))
    assert followed(standby).state == "ended"


def test_a_folder_that_cannot_be_read_is_asked_again(standby: Standby) -> None:
    standby.slot()
    file = standby.root / "jobs/standby/followed/standby.orders-1.json"
    body = file.read_bytes()
    file.write_bytes(b"{}")
    standby.run = standby.resumed()
    report = asyncio.run(standby.run.slot())
    assert report.error is not None and "cannot be read" in report.error
    file.write_bytes(body)
    assert standby.slot() == {"bills~1": "following", "orders~1": "following"}


def test_partitions_that_the_archive_lacks_stop_a_topic(standby: Standby) -> None:
    standby.slot()
    listed = tuple(
        replace(each, partitions=(*each.partitions, 7)) if each.topic == "orders" else each
        for each in standby.writer.inventory.incarnations
    )
    standby.writer.put(inventory_key("topic"), objects.encode(replace(standby.writer.inventory, incarnations=listed)))
    assert standby.slot() == {"bills~1": "following", "orders~1": "stopped"}
    assert standby.told[-1].why == "orders:7 is missing"


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
            PlannedGroup(name, name, (LaneTranslation(0, offset, doubts=self.doubts),))
            for name, offset in self.at.get(only.target, {}).items()
        )
        return [GroupPlan("job", only.target, None, groups)], []


@dataclass
class GroupStandby:
    """Follows the groups of two topics."""

    planning: Planning
    cluster: FakeGroups
    around: Surroundings
    wanted: RestoreGroups = field(default_factory=RestoreGroups)

    def __post_init__(self) -> None:
        self.groups = FollowedGroups(self.wanted, "standby", self.cluster)

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
def group_standby(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GroupStandby:
    monkeypatch.setattr("replayer.restore.consumers.REST", 0)
    archive = ArchiveReader(LocalReader(LocalAddress(str(tmp_path))))
    around = Surroundings(archive, {}, LocalStore(tmp_path / "jobs"))
    planning = Planning({"orders": {"a": 3, "b": 4}, "bills": {"a": 5}})
    monkeypatch.setattr("replayer.restore.consumers.plan_groups", planning.planned)
    return GroupStandby(planning, FakeGroups(), around)


def test_groups_are_set_where_they_moved(group_standby: GroupStandby) -> None:
    assert group_standby.follow(1) == ()
    assert (
        group_standby.stands("a", "orders"),
        group_standby.stands("b", "orders"),
        group_standby.stands("a", "bills"),
    ) == (3, 4, 5)
    group_standby.planning.asked.clear()
    group_standby.follow(1)
    assert group_standby.planning.asked == [], "no table is newer, and nothing was copied"
    group_standby.cluster.stored["b"]["orders"][0] = GroupOffset(9)
    group_standby.planning.at["orders"]["a"] = 6
    group_standby.follow(2)
    assert (group_standby.stands("a", "orders"), group_standby.stands("b", "orders")) == (6, 9), (
        "it did not move at the source"
    )
    group_standby.planning.asked.clear()
    group_standby.follow(2, {"orders~1": 2})
    assert group_standby.planning.asked == ["orders"]


def test_groups_with_consumers_are_left_alone_until_they_have_none(group_standby: GroupStandby) -> None:
    group_standby.cluster.active.add("a")
    notes = group_standby.follow(1)
    assert notes == (
        "group a is not set in bills: consumers are at work in it",
        "group a is not set in orders: consumers are at work in it",
    )
    assert (group_standby.stands("a", "orders"), group_standby.stands("b", "orders")) == (None, 4)
    group_standby.cluster.active.clear()
    assert group_standby.follow(1) == ()
    assert group_standby.stands("a", "orders") == 3


def test_what_is_not_exact_is_not_set_unless_that_was_asked_for(group_standby: GroupStandby) -> None:
    group_standby.planning.doubts = ("who knows",)
    assert "group b is not set in orders: who knows" in group_standby.follow(1)
    assert group_standby.cluster.stored == {}
    group_standby.wanted = RestoreGroups(approximate=True)
    group_standby.__post_init__()
    assert group_standby.follow(1) == ()
    assert group_standby.stands("b", "orders") == 4


def test_an_error_of_a_topic_is_a_note(group_standby: GroupStandby) -> None:
    group_standby.planning.error = ReplayRefused("the run map is damaged")
    assert group_standby.follow(1)[0] == "the groups of bills are not set: the run map is damaged"
    group_standby.planning.error = None
    assert group_standby.follow(1) == ()


def test_topics_without_a_table_are_not_asked(group_standby: GroupStandby) -> None:
    topics = (topic("orders~1"),)
    assert asyncio.run(group_standby.groups.follow(plan(*topics), {"orders~1": {0: 1}}, group_standby.around)) == ()
    assert group_standby.planning.asked == []


def test_groups_rest_after_they_were_set(group_standby: GroupStandby, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replayer.restore.consumers.REST", 1e9)
    group_standby.follow(1)
    group_standby.planning.at["orders"]["a"] = 6
    group_standby.follow(2)
    assert group_standby.stands("a", "orders") == 3


def topic_turns(source: str, target: str | None = None, lacks: tuple[str, ...] = ()) -> TopicToRestore:
    target = source.partition("~")[0] if target is None else target
    return TopicToRestore(source=source, target=target, partitions=1, numbers=(0,), settings={}, lacks=lacks)


def plan(*topics: TopicToRestore, partial: bool = False, left_out: tuple[TopicLeftOut, ...] = ()) -> RestorePlan:
    return RestorePlan(
        archive_id="a", at=5, partial=partial, follow=WantedTopics(("o*",), (("(.*)", r"x.\1"),)), topics=topics,
        left_out=left_out,
    )  # fmt: skip


def stopped(
    found: RestorePlan, followed: Sequence[TopicToRestore] = (), existing: Collection[str] = ()
) -> list[tuple[str, str | None]]:
    by_source = {each.source: each for each in followed}
    return [(each.topic.source, each.stopped) for each in turns(found, by_source, existing)]


def test_topics_that_are_there_and_new_ones_are_followed() -> None:
    found = plan(topic_turns("bills~1"), topic_turns("orders~1"))
    assert stopped(found) == [("bills~1", None), ("orders~1", None)]
    assert stopped(found, [topic_turns("orders~1")], {"orders"}) == [("bills~1", None), ("orders~1", None)]


def test_one_that_was_created_again_stops_while_its_copy_is_there() -> None:
    found, before = plan(topic_turns("orders~2")), [topic_turns("orders~1")]
    ((source, why),) = stopped(found, before, {"orders"})
    assert source == "orders~1"
    assert why == "orders was created again as orders~2: orders stays a copy of orders~1"
    assert stopped(found, before, set()) == [("orders~2", None)], "its copy was deleted"
    assert stopped(found, [*before, topic_turns("orders~2")], {"orders"}) == [("orders~2", None)]
    ((source, why),) = stopped(plan(topic_turns("orders~3")), [*before, topic_turns("orders~2")], {"orders"})
    assert (source, "as orders~3: orders stays a copy of orders~2" in str(why)) == ("orders~2", True)


def test_two_topics_of_one_name() -> None:
    one, other = topic_turns("a~1", "x"), topic_turns("b~1", "x")
    assert stopped(plan(one, other)) == [("a~1", None), ("b~1", "x is a copy of a~1")]
    assert stopped(plan(one, other), [other], {"x"}) == [("a~1", "x is a copy of b~1"), ("b~1", None)]


def test_what_cannot_be_followed() -> None:
    assert stopped(plan(topic_turns("lines"))) == [("lines", TRUNCATED)]
    assert stopped(plan(topic_turns("lines")), [topic_turns("lines~1")], {"lines"}) == [("lines~1", TRUNCATED)]
    lacking = topic_turns("orders~1", lacks=("orders:1 is missing",))
    assert stopped(plan(lacking)) == [("orders~1", "orders:1 is missing")]
    assert stopped(plan(lacking, partial=True)) == [("orders~1", None)]


def test_topics_that_are_gone_were_followed_before() -> None:
    found = plan(left_out=(TopicLeftOut("orders", "deleted"), TopicLeftOut("bills", "deleted")))
    followed = {
        each.source: each for each in (topic_turns("orders~1"), topic_turns("orders~2"), topic_turns("deals~1"))
    }
    assert [(each.topic.source, each.stopped) for each in gone(found, followed)] == [("orders~2", "deleted")]


@dataclass
class EmptyCluster:
    """A target with one topic at most."""

    topic_id: str | None
    num_brokers: int = 1

    def again(self) -> "Cluster":
        return self

    def topic(self, name: str) -> TopicFacts | None:
        return None if self.topic_id is None else TopicFacts(name, 2, self.topic_id, None)

    def replication_factor(self, _: str) -> int:
        return 1

    def own_config(self, _: str) -> dict[str, str]:
        return {}


def resumed(path: Path, topic_id: str | None) -> TopicOutcome:
    """What a run says of a topic of id "first" that an earlier one restored; the cluster has `topic_id` now."""
    ArchiveWriter(path / "archive").partition("orders", 0).commit(records(range(3)))
    jobs, restored = LocalStore(path / "jobs"), topic("orders~1", settings={})
    job = topic_job("night", restored.source)
    kept: dict[str, Any] = {"source_topic_id": None, "transactional": True, "producers": 1, "begun_at": 1}
    kept |= {"job": job, "selection": "s", "archive_id": "a", "folder": "orders~1", "ranges": {}, "asked": {}}
    JobFolder(jobs, job).create(JobRequest(target="orders", target_topic_id="first", **kept))
    folder = RestoreFolder(jobs, "night")
    folder.put(TopicDone(source=restored.source, target="orders", records=3, verdict="OK", at=1), job)
    around = Surroundings(ArchiveReader(LocalReader(LocalAddress(str(path / "archive")))), {}, jobs)
    vars(around).update(admin=EmptyCluster(topic_id), changes=EmptyCluster(topic_id))
    plan = RestorePlan(archive_id="a", at=1, topics=(restored,))
    run = RestoreRun(plan, folder, around, 1, lambda *_: None, lambda _: None)
    (outcome,) = asyncio.run(run.topics())
    return outcome


def test_a_restored_topic_is_still_there(tmp_path: Path) -> None:
    outcome = resumed(tmp_path, "first")
    assert (outcome.state, outcome.verdict, outcome.records) == ("restored", "OK", 3), outcome.error


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (None, "topic orders no longer exists in the target"),
        ("second", "topic orders is not the one that was restored"),
    ],
)
def test_a_restored_topic_that_is_gone_is_not_proved(tmp_path: Path, now: str | None, why: str) -> None:
    outcome = resumed(tmp_path, now)
    assert (outcome.state, outcome.verdict) == ("failed", None)
    assert why in str(outcome.error)
    assert "restore orders again in another restore" in str(outcome.do)


DRILL = Drill(1000, (), "drill.", 0.05, 7)


def topic_drill(name: str, partitions: int = 10, records: int = 100, **changes: object) -> TopicToRestore:
    fields = {"settings": {}, "bytes": 10 * records, **changes}
    return TopicToRestore(
        source=name,
        target=f"drill.{name}",
        partitions=partitions,
        numbers=tuple(range(partitions)),
        records=records,
        **fields,  # type: ignore[arg-type]
    )


def plan_drill(*topics: TopicToRestore) -> RestorePlan:
    return RestorePlan(archive_id="a", at=1000, topics=topics)


def chosen(found: RestorePlan) -> list[tuple[str, int]]:
    return [(each.source, number) for each in found.topics for number in each.numbers]


@pytest.mark.parametrize(("share", "expected"), [(0.0001, 1), (0.05, 1), (0.051, 2), (0.5, 10), (1.0, 20)])
def test_a_share_of_the_partitions_at_least_one(share: float, expected: int) -> None:
    whole = plan_drill(topic_drill("a"), topic_drill("b"))
    found = chosen(sampled(whole, share, 7))
    assert len(found) == len(set(found)) == expected
    assert set(found) <= set(chosen(whole))
    assert chosen(sampled(whole, share, 7)) == found


def test_every_seed_takes_others() -> None:
    whole = plan_drill(topic_drill("a", 100))
    assert len({tuple(chosen(sampled(whole, 0.05, seed))) for seed in range(20)}) > 15


def test_a_topic_is_made_no_wider_than_it_must_be() -> None:
    (found,) = sampled(plan_drill(topic_drill("a", 100)), 0.02, 7).topics
    assert found.partitions == found.numbers[-1] + 1


def test_what_is_refused_or_empty_is_not_taken() -> None:
    whole = plan_drill(topic_drill("a", refused="it exists"), topic_drill("b", records=0), topic_drill("c", 1))
    assert chosen(sampled(whole, 1.0, 7)) == [("c", 0)]
    with pytest.raises(NotInArchive, match="there is nothing to try a restore with"):
        sampled(plan_drill(topic_drill("a", refused="it exists")), 1.0, 7)


def outcome(state: str, **changes: object) -> TopicOutcome:
    fields = {"records": 100, "verdict": Verdict.OK, **changes}
    return TopicOutcome(topic_drill("a"), "drill.a-1", state, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "left", "whole", "verdict"),
    [
        (outcome("restored"), [], plan_drill(topic_drill("a")), "OK"),
        (outcome("restored"), [], plan_drill(topic_drill("a"), topic_drill("b")), "SAMPLED"),
        (outcome("restored", verdict=Verdict.WARNING), [], plan_drill(topic_drill("a"), topic_drill("b")), "WARNING"),
        (outcome("failed", error="no"), [], plan_drill(topic_drill("a")), "FAILURE"),
        (outcome("interrupted"), [], plan_drill(topic_drill("a")), "FAILURE"),
        (outcome("restored", skipped=["0 [3..5): damaged"]), [], plan_drill(topic_drill("a")), "FAILURE"),
        (outcome("restored"), ["drill.a: it changed"], plan_drill(topic_drill("a")), "FAILURE"),
        (outcome("restored"), [], plan_drill(topic_drill("a", lacks=("partition 3 is missing",))), "FAILURE"),
        (outcome("restored"), [], plan_drill(topic_drill("a"), topic_drill("b", refused="it exists")), "FAILURE"),
    ],
)
def test_ok_is_only_what_was_proved_and_removed(
    found: TopicOutcome, left: list[str], whole: RestorePlan, verdict: str
) -> None:
    assert drill_document(DRILL, whole, plan_drill(topic_drill("a")), [found], left, 2.0)["verdict"] == verdict


def test_recorded_gaps_are_a_warning() -> None:
    part = plan_drill(topic_drill("a", gaps=("partition 0 [3..5) (retention)",)))
    told = drill_document(DRILL, part, part, [outcome("restored")], [], 2.0)
    assert (told["verdict"], told["gaps"]) == ("WARNING", ["a: partition 0 [3..5) (retention)"])


def test_the_time_of_a_whole_restore_is_told_by_bytes() -> None:
    told = drill_document(
        DRILL, plan_drill(topic_drill("a"), topic_drill("b", records=300)), plan_drill(topic_drill("a")), [], [], 2.0
    )
    assert told["whole"] == {"topics": 2, "records": 400, "bytes": 4000, "seconds": 8.0}


def test_notes_are_told() -> None:
    found = TopicOutcome(
        topic_drill("a", notes=("pruned",)), "drill.a-1", "restored", 100, verdict="OK", notes=["retention"]
    )
    told = drill_document(DRILL, plan_drill(topic_drill("a")), plan_drill(topic_drill("a")), [found], [], 2.0)
    assert (told["verdict"], told["notes"]) == ("OK", ["drill.a: pruned", "drill.a: retention"])
