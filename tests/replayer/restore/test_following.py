"""A follower, slot by slot, over an archive that grows; what is copied is only noted here."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace

from blockgz.archive.archive import Archive
from blockgz.errors import BrokerUnreachable
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader, LocalStore
from index_format import objects
from index_format.identity import ended
from index_format.keys import TopicFolder, inventory_key
from replayer.errors import JobTakenOver, ReplayRefused
from replayer.replay.surroundings import Surroundings
from replayer.restore.document import RestorePlan, WantedTopics
from replayer.restore.folder import RestoreFolder, StandbyReport, SwitchOver, TopicStand
from replayer.restore.running import TopicOutcome
from replayer.restore.standby import StandbyRun
from tests.support.archives import ArchiveWriter, records

PLAN = RestorePlan(archive_id="archive-1", at=1, groups=None, follow=WantedTopics())


@dataclass
class Cluster:
    """What a follower asks of the target."""

    topics: set[str] = field(default_factory=set)
    num_brokers: int = 1

    def again(self) -> "Cluster":
        return self


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
        archive = Archive(LocalReader(LocalAddress(str(self.writer.root))))
        around = Surroundings(archive, {"bootstrap.servers": "127.0.0.1:1"}, LocalStore(self.root / "jobs"))
        vars(around)["admin"] = self.cluster
        return StandbyRun(PLAN, self.folder, around, self.copies, None, 2, 0.001, self.told.append)

    def slot(self) -> dict[str, str]:
        """By source the states after a slot."""
        report = asyncio.run(self.run.slot())
        assert report.error is None
        self.folder.report(report)
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
