"""Several archivers share topics by a consumer group; members come, go, die and come back."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from confluent_kafka import Consumer

from system_test.support.archiving import Site
from system_test.support.kafka_broker import CONSUMER_SESSION_MS
from system_test.support.programs import Running
from system_test.support.topics import NewRecord, add_partitions, create_topic, fill_topic, produce
from system_test.support.waiting import wait_until

SESSION = ("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=1500")
NEW = ("--group-protocol", "consumer")
NEW_SESSION_SECONDS = CONSUMER_SESSION_MS / 1000 + 10
QUICK = ("--chunk-interval", "500ms", "-v", "--topic-refresh", "1s", "-X", "topic.metadata.refresh.interval.ms=1000")


class Team:
    """Archivers of a topic in one group, killed at the end of the test."""

    def __init__(self, site: Site, topic: str) -> None:
        self.site, self.topic = site, topic
        self.members: list[Running] = []
        self.partitions = self.records = 0
        """`records` are in each partition."""

    def begin(self, partitions: int) -> None:
        create_topic(self.site.bootstrap, self.topic, partitions)
        self.partitions = partitions
        self.fill()

    def fill(self) -> None:
        rows = [NewRecord(b"v%d" % n, partition=n % self.partitions) for n in range(100 * self.partitions)]
        produce(self.site.bootstrap, self.topic, rows)
        self.records += 100

    def join(self, *arguments: str, topics: tuple[str, ...] = ()) -> Running:
        member = self.site.start(*(topics or (self.topic,)), "--group-id", self.topic, *QUICK, *arguments)
        self.members.append(member)
        return member

    def wait(self, seconds: float = 30) -> None:
        """Until all that is in the topic is archived."""
        for partition in range(self.partitions):
            self.wait_for(self.topic, partition, self.records, seconds)

    def wait_for(self, topic: str, partition: int, next_offset: int, seconds: float = 30) -> None:
        def is_there() -> bool:
            path = Path(self.site.address) / f"topic={topic}" / f"partition={partition:05d}" / "last_chunk_index.json"
            return path.exists() and self.site.marker(topic, partition)["next_offset"] == next_offset

        wait_until(is_there, seconds, f"{topic}:{partition} archived up to {next_offset}")

    def end(self, *members: Running) -> None:
        """They end in good order, and the archive equals the topic."""
        for member in members:
            assert member.terminate().exit_code == 0
        for partition in range(self.partitions):
            self.site.exact(self.topic, partition)
        self.site.replayer("verify", self.topic, "--deep", "--records")


@pytest.fixture
def team(site: Site, topic_name: str) -> Iterator[Team]:
    team = Team(site, topic_name)
    yield team
    for member in team.members:
        if member.alive:
            member.kill()


def test_members_share_and_hand_over(team: Team) -> None:
    team.begin(4)
    first = team.join(*SESSION)
    team.wait()
    second = team.join(*SESSION)
    wait_until(lambda: "claimed" in second.stderr, 30, "the second member claims a partition")
    team.fill()
    team.wait()
    assert first.terminate().exit_code == 0
    team.fill()
    team.wait()
    team.end(second)


def test_the_new_protocol(team: Team) -> None:
    team.begin(2)
    first = team.join(*NEW)
    team.wait()
    second = team.join(*NEW)
    wait_until(lambda: "claimed" in second.stderr, 30, "the second member claims a partition")
    team.fill()
    team.wait()
    team.end(first, second)


@pytest.mark.parametrize(
    ("identity", "seconds"),
    [(SESSION, 10), ((*SESSION, "--group-instance-id", "archiver-1"), 10), (NEW, NEW_SESSION_SECONDS)],
    ids=["session", "static", "new protocol"],
)
def test_a_killed_archiver_continues_once_its_session_is_over(
    team: Team, identity: tuple[str, ...], seconds: float
) -> None:
    team.begin(2)
    member = team.join(*identity)
    team.wait()
    member.kill()
    team.fill()
    team.join(*identity)
    team.wait(seconds)
    team.end()


def test_a_static_id_of_the_new_protocol_is_asked_for_until_it_is_free(team: Team) -> None:
    team.begin(2)
    identity = (*NEW, "--group-instance-id", "archiver-1")
    first = team.join(*identity)
    team.wait()
    second = team.join(*identity)
    second.wait_for(lambda: second.stderr.count("instance ID is still used") > 1, 60, "refused, and refused again")
    assert first.alive, "the one that has the id goes on"
    first.kill()
    team.fill()
    team.wait(NEW_SESSION_SECONDS)
    team.end(second)


@contextmanager
def plain_member(team: Team, instance_id: str, is_over: Event, **callbacks: Any) -> Iterator[None]:
    """A member of the archivers' group that archives nothing."""
    settings = {"bootstrap.servers": team.site.bootstrap, "group.id": team.topic, "group.instance.id": instance_id}
    settings |= {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": "6000"}
    consumer = Consumer({**settings, "logger": logging.getLogger("kafka")})
    consumer.subscribe([team.topic], **callbacks)
    poll = Thread(target=lambda: [consumer.consume(1, 0.1) for _ in iter(is_over.is_set, True)], daemon=True)
    poll.start()
    try:
        yield
    finally:
        is_over.set()
        poll.join()
        consumer.close()


def test_partitions_that_a_fenced_member_gave_up_get_an_owner(team: Team) -> None:
    """It is fenced between giving them up and joining again, so that the group goes on without giving them out."""
    team.begin(4)
    has_all, gave_up, is_over = Event(), Event(), Event()

    def take(consumer: Consumer, partitions: object) -> None:
        consumer.incremental_assign([])
        has_all.set()

    def give_up(consumer: Consumer, partitions: object) -> None:
        gave_up.set()
        is_over.wait(60)

    with plain_member(team, "first", is_over, on_assign=take, on_revoke=give_up):
        assert has_all.wait(30), "the first member has all partitions"
        other = team.join(*SESSION, "--group-instance-id", "second")
        assert gave_up.wait(30), "some are for the second member"
        restarted = team.join(*SESSION, "--group-instance-id", "first")
        team.wait(60)
    assert "unowned" in other.stderr + restarted.stderr
    team.end(other, restarted)


def test_a_member_whose_id_is_taken_while_it_gives_partitions_up_ends_with_an_error(team: Team) -> None:
    """As in a rolling update of a StatefulSet. It is stopped in between, and hears of both at once."""
    team.begin(4)
    first = team.join("--group-instance-id", "first", "--chunk-interval", "10m")
    first.wait_for(lambda: first.stderr.count(" claimed ") == 4, 30, "the first member has all partitions")
    has_joined = Event()
    with plain_member(team, "second", Event()):
        first.wait_for(lambda: " revoked " in first.stderr, 30, "some are for the second member")
        first.signal(signal.SIGSTOP)
        with plain_member(team, "first", Event(), on_assign=lambda *_: has_joined.set()):
            assert has_joined.wait(30), "another process takes the first one's place"
            first.signal(signal.SIGCONT)
            assert first.wait(30).exit_code == 11


def test_new_topics_and_partitions_are_picked_up(team: Team) -> None:
    kafka, first, second, left_out = team.site.bootstrap, *(f"{team.topic}-{name}" for name in ("a", "b", "secret"))
    fill_topic(kafka, first, [NewRecord(b"v")] * 10)
    team.join("--exclude", "*-secret", *SESSION, topics=(f"{team.topic}-*",))
    team.wait_for(first, 0, 10)
    for topic in (second, left_out):
        fill_topic(kafka, topic, [NewRecord(b"v")] * 20)
    add_partitions(kafka, first, 2)
    produce(kafka, first, [NewRecord(b"new", partition=1)])
    team.wait_for(second, 0, 20)
    team.wait_for(first, 1, 1)
    assert not (Path(team.site.address) / f"topic={left_out}").exists()


def test_workers_share_one_machine(team: Team) -> None:
    team.begin(4)
    parent = team.join("--workers", "2", *SESSION)
    team.wait()
    team.end(parent)
