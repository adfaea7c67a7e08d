"""What keeps a topic from being deleted, on a cluster of which only the topic's id is made up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from blockgz.errors import AccessDenied
from blockgz.kafka import LogBounds
from blockgz.kafka.admin import TopicIdAnswers
from blockgz.kafka.groups import KafkaGroups
from blockgz.store.local import LocalStore
from replayer.errors import ReplayRefused, TargetChanged
from replayer.kafka.admin import KafkaAdmin, TopicChanges
from replayer.kafka.topic_facts import TopicFacts
from replayer.replay.jobs.folder import JobFolder, JobUndone, LaneBegin, Segment
from replayer.replay.jobs.undo import UndoPlan, carry_out, plan_undo
from tests.replayer.replay.jobs.test_log import position, request
from tests.support.archives import records
from tests.support.mock_cluster import MockCluster

LANES = 4


class World:
    """A job that wrote ten records to partition 0 of the topic that it created."""

    def __init__(self, cluster: MockCluster, topic: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.topic, self.ids, self.deleted = topic, {topic: "id"}, list[str]()
        self.groups: tuple[tuple[str, ...], tuple[str, ...]] | AccessDenied = ((), ())
        self._cluster = cluster
        self.folder = JobFolder(LocalStore(root), "j")
        self.kept = request(target=topic, created=True, target_topic_id="id", transactional=False)
        self.folder.create(self.kept)
        self.write(0, 10)
        self.folder.add_segment(1, 0, Segment(attempt="a", lanes=dict.fromkeys(range(LANES), LaneBegin(0, 0))))
        self.folder.add_segment(1, 1, Segment(attempt="a", runs=((0, 0, 10, 0, 0, 10),)))
        self.folder.positions.write({0: position(10)})
        monkeypatch.setattr(KafkaAdmin, "topic", lambda _, name: TopicFacts(name, LANES, self.ids.get(name), None))
        monkeypatch.setattr(KafkaAdmin, "topic_ids", lambda *_: TopicIdAnswers(self.ids, frozenset()))
        monkeypatch.setattr(KafkaGroups, "in_topic", lambda *_: self._groups())
        monkeypatch.setattr(TopicChanges, "delete", lambda _, name, topic_id: self.deleted.append(f"{name} {topic_id}"))

    @property
    def properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self._cluster.bootstrap_servers}

    def write(self, lane: int, count: int) -> None:
        self._cluster.produce(self.topic, lane, records(range(count)))

    def planned(self) -> UndoPlan:
        return plan_undo(self.folder, self.kept, self.properties)

    def _groups(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if isinstance(self.groups, AccessDenied):
            raise self.groups
        return self.groups


@pytest.fixture(scope="module")
def cluster() -> Iterator[MockCluster]:
    yield MockCluster()


@pytest.fixture
def world(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> World:
    return World(cluster, request.node.name, tmp_path, monkeypatch)


def test_a_topic_with_nothing_but_the_jobs_records_is_deleted(world: World) -> None:
    plan = world.planned()
    assert (plan.records, plan.bounds[0], plan.bounds[1]) == (10, LogBounds(0, 10), LogBounds(0, 0))
    assert world.deleted == [], "a plan changes nothing"
    carry_out(plan, world.folder, world.properties, 5)
    assert world.deleted == [f"{world.topic} id"]
    undone = world.folder.get(JobUndone)
    assert undone is not None
    assert (undone.target, undone.target_topic_id, undone.records, undone.undone_at) == (world.topic, "id", 10, 5)


@pytest.mark.parametrize("lane", [0, 3])
def test_a_record_of_others_refuses(world: World, lane: int) -> None:
    world.write(lane, 2)
    with pytest.raises(ReplayRefused, match="not in the job's run map") as caught:
        world.planned()
    assert f"{world.topic}:{lane}:{10 if lane == 0 else 0}: others wrote it" in caught.value.why


def test_a_topic_that_lacks_records_of_the_job_refuses(world: World) -> None:
    world.folder.add_segment(1, 2, Segment(attempt="a", runs=((0, 10, 20, 0, 10, 10),)))
    with pytest.raises(TargetChanged, match="lacks records"):
        world.planned()


def test_what_happens_between_plan_and_deletion_refuses(world: World) -> None:
    plan = world.planned()
    world.write(2, 1)
    with pytest.raises(ReplayRefused, match="changed after the plan was made"):
        carry_out(plan, world.folder, world.properties, 5)
    for other, error in (("another", "is not the one"), (None, "cannot tell")):
        world.ids = {world.topic: other} if other else {}
        with pytest.raises(TargetChanged, match=error):
            carry_out(plan, world.folder, world.properties, 5)
    assert (world.deleted, world.folder.get(JobUndone)) == ([], None)


def test_groups_with_offsets_in_the_topic_are_named(world: World) -> None:
    assert world.planned().warnings == ()
    world.groups = (("blockgz-j", *(f"g{n}" for n in range(12))), ("slow",))
    warning, unknown = world.planned().warnings
    assert unknown.endswith("is not known, they gave no answer: slow")
    assert warning.endswith("g7, g8, g9 and 2 more"), "the job's own group is none of them"
    world.groups = AccessDenied("denied", why="no ACL")
    assert world.planned().warnings == ("whether consumer groups read the topic is not known: no ACL",)
