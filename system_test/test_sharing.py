"""Several archivers share topics by a consumer group; members come, go, die and come back."""

import json
import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from system_test.support.kafka_broker import CONSUMER_SESSION_MS, KafkaBroker
from system_test.support.programs import Running, run, start
from system_test.support.topics import NewRecord, add_partitions, create_topic, produce, read
from system_test.support.waiting import wait_until

SESSION = ("-X", "session.timeout.ms=6000", "-X", "heartbeat.interval.ms=1500")
QUICK = ("--chunk-interval", "500ms", "-v", "--topic-refresh", "1s", "-X", "topic.metadata.refresh.interval.ms=1000")


class Team:
    """Archivers of one group on one archive, killed at the end of the test."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.members: list[Running] = []

    def join(self, *arguments: str, end_chunks: tuple[str, ...] = ()) -> Running:
        member = start("archiver", "run", *arguments, *QUICK, *end_chunks, "-b", self.bootstrap, "-a", str(self.folder))
        self.members.append(member)
        return member

    def marker(self, topic: str, partition: int) -> dict[str, Any]:
        path = self.folder / f"topic={topic}" / f"partition={partition:05d}" / "last_chunk_index.json"
        return json.loads(path.read_bytes()) if path.exists() else {"next_offset": None, "epoch": 0}

    def wait_for(self, topic: str, partition: int, next_offset: int, seconds: float = 30) -> None:
        wait_until(
            lambda: self.marker(topic, partition)["next_offset"] == next_offset,
            seconds,
            f"{topic}:{partition} archived up to {next_offset}",
        )

    def archived(self, topic: str, partition: int) -> list[dict[str, Any]]:
        done = run("replayer", "cat", f"{topic}:{partition}", "--json", "-a", str(self.folder))
        return [json.loads(line) for line in done.stdout.splitlines()]

    def assert_exact(self, topic: str, partitions: int) -> None:
        """The archive of the topic equals the topic, record by record, offset by offset."""
        for partition in range(partitions):
            source = read(self.bootstrap, topic, partition)
            lines = self.archived(topic, partition)
            assert [line["offset"] for line in lines] == [record.offset for record in source]
            assert [line["value"].encode() for line in lines] == [record.value for record in source]
        run("replayer", "verify", topic.partition("~")[0], "--deep", "--records", "-a", str(self.folder))


@pytest.fixture
def team(broker: KafkaBroker, tmp_path: Path) -> Iterator[Team]:
    team = Team(broker.bootstrap, tmp_path / "archive")
    yield team
    for member in team.members:
        if member.alive:
            member.kill()


def fill(bootstrap: str, topic: str, partitions: int, count: int, word: str = "v") -> None:
    produce(bootstrap, topic, [NewRecord(f"{word}{n}".encode(), partition=n % partitions) for n in range(count)])


def test_members_share_and_hand_over(team: Team, topic_name: str) -> None:
    create_topic(team.bootstrap, topic_name, 4)
    fill(team.bootstrap, topic_name, 4, 400)
    group = ("--group-id", topic_name)
    first = team.join(topic_name, *group, *SESSION)
    for partition in range(4):
        team.wait_for(topic_name, partition, 100)
    second = team.join(topic_name, *group, *SESSION)
    wait_until(lambda: "claimed" in second.stderr, 30, "the second member claims a partition")
    fill(team.bootstrap, topic_name, 4, 400, "w")
    for partition in range(4):
        team.wait_for(topic_name, partition, 200)
    assert first.terminate().exit_code == 0
    fill(team.bootstrap, topic_name, 4, 400, "x")
    for partition in range(4):
        team.wait_for(topic_name, partition, 300)
    assert second.terminate().exit_code == 0
    team.assert_exact(topic_name, 4)


@pytest.mark.parametrize("identity", [(), ("--group-instance-id", "archiver-1")], ids=["session", "static"])
def test_killed_archiver_continues_within_ten_seconds(team: Team, topic_name: str, identity: tuple[str, ...]) -> None:
    create_topic(team.bootstrap, topic_name, 2)
    fill(team.bootstrap, topic_name, 2, 200)
    arguments = (topic_name, "--group-id", topic_name, *SESSION, *identity)
    member = team.join(*arguments)
    team.wait_for(topic_name, 0, 100)
    team.wait_for(topic_name, 1, 100)
    member.kill()
    fill(team.bootstrap, topic_name, 2, 200, "w")
    team.join(*arguments)
    team.wait_for(topic_name, 0, 200, seconds=10)
    team.wait_for(topic_name, 1, 200, seconds=10)
    team.assert_exact(topic_name, 2)


def test_the_new_protocol(team: Team, topic_name: str) -> None:
    create_topic(team.bootstrap, topic_name, 2)
    fill(team.bootstrap, topic_name, 2, 200)
    arguments = (topic_name, "--group-id", topic_name, "--group-protocol", "consumer")
    first = team.join(*arguments)
    team.wait_for(topic_name, 0, 100)
    team.wait_for(topic_name, 1, 100)
    second = team.join(*arguments)
    wait_until(lambda: "claimed" in second.stderr, 30, "the second member claims a partition")
    fill(team.bootstrap, topic_name, 2, 200, "w")
    team.wait_for(topic_name, 0, 200)
    team.wait_for(topic_name, 1, 200)
    assert first.terminate().exit_code == second.terminate().exit_code == 0
    team.assert_exact(topic_name, 2)


NEW_SESSION_SECONDS = CONSUMER_SESSION_MS / 1000 + 10


def test_killed_archiver_of_the_new_protocol_continues_once_its_session_is_over(team: Team, topic_name: str) -> None:
    create_topic(team.bootstrap, topic_name, 2)
    fill(team.bootstrap, topic_name, 2, 200)
    arguments = (topic_name, "--group-id", topic_name, "--group-protocol", "consumer")
    member = team.join(*arguments)
    team.wait_for(topic_name, 0, 100)
    team.wait_for(topic_name, 1, 100)
    member.kill()
    fill(team.bootstrap, topic_name, 2, 200, "w")
    team.join(*arguments)
    give_up = time.monotonic() + NEW_SESSION_SECONDS
    for partition in range(2):
        team.wait_for(topic_name, partition, 200, seconds=give_up - time.monotonic())
    team.assert_exact(topic_name, 2)


def test_a_static_id_of_the_new_protocol_is_asked_for_until_it_is_free(team: Team, topic_name: str) -> None:
    create_topic(team.bootstrap, topic_name, 2)
    fill(team.bootstrap, topic_name, 2, 200)
    identity = ("--group-protocol", "consumer", "--group-instance-id", "archiver-1")
    first = team.join(topic_name, "--group-id", topic_name, *identity)
    team.wait_for(topic_name, 0, 100)
    team.wait_for(topic_name, 1, 100)
    second = team.join(topic_name, "--group-id", topic_name, *identity)
    second.wait_for(lambda: second.stderr.count("instance ID is still used") > 1, 60, "refused, and refused again")
    assert first.alive, "the one that has the id goes on"
    first.kill()
    fill(team.bootstrap, topic_name, 2, 200, "w")
    give_up = time.monotonic() + NEW_SESSION_SECONDS
    for partition in range(2):
        team.wait_for(topic_name, partition, 200, seconds=give_up - time.monotonic())
    assert second.terminate().exit_code == 0
    team.assert_exact(topic_name, 2)


def test_partitions_that_a_fenced_member_gave_up_get_an_owner(team: Team, topic_name: str) -> None:
    """It is fenced between giving them up and joining again, so that the group goes on without giving them out."""
    create_topic(team.bootstrap, topic_name, 4)
    fill(team.bootstrap, topic_name, 4, 400)
    group = ("--group-id", topic_name, *SESSION)
    has_all, gave_up, is_over = threading.Event(), threading.Event(), threading.Event()

    def take(consumer: Consumer, partitions: object) -> None:
        consumer.incremental_assign([])
        has_all.set()

    def give_up(consumer: Consumer, partitions: object) -> None:
        gave_up.set()
        is_over.wait(60)

    former = Consumer(
        {
            "bootstrap.servers": team.bootstrap,
            "group.id": topic_name,
            "group.instance.id": "first",
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": 6000,
            "logger": logging.getLogger("kafka"),
        }
    )
    former.subscribe([topic_name], on_assign=take, on_revoke=give_up)
    poll = threading.Thread(target=lambda: [former.consume(1, 0.1) for _ in iter(is_over.is_set, True)], daemon=True)
    poll.start()
    try:
        assert has_all.wait(30), "the first member has all partitions"
        other = team.join(topic_name, *group, "--group-instance-id", "second")
        assert gave_up.wait(30), "some are for the second member"
        restarted = team.join(topic_name, *group, "--group-instance-id", "first")
        for partition in range(4):
            team.wait_for(topic_name, partition, 100, 60)
    finally:
        is_over.set()
        poll.join()
        former.close()
    assert "unowned" in other.stderr + restarted.stderr
    assert other.terminate().exit_code == restarted.terminate().exit_code == 0
    team.assert_exact(topic_name, 4)


@contextmanager
def plain_member(bootstrap: str, topic: str, instance_id: str) -> Iterator[threading.Event]:
    """A member of the archivers' group that archives nothing; gives an event that is set once it has joined."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "group.instance.id": instance_id,
            "partition.assignment.strategy": "cooperative-sticky",
            "logger": logging.getLogger("kafka"),
        }
    )
    has_joined, is_over = threading.Event(), threading.Event()
    consumer.subscribe([topic], on_assign=lambda *_: has_joined.set())
    poll = threading.Thread(target=lambda: [consumer.consume(1, 0.1) for _ in iter(is_over.is_set, True)], daemon=True)
    poll.start()
    try:
        yield has_joined
    finally:
        is_over.set()
        poll.join()
        consumer.close()


def test_a_member_whose_id_is_taken_while_it_gives_partitions_up_ends_with_an_error(
    team: Team, topic_name: str
) -> None:
    """As in a rolling update of a StatefulSet. It is stopped in between, and hears of both at once."""
    create_topic(team.bootstrap, topic_name, 4)
    fill(team.bootstrap, topic_name, 4, 400)
    chunks = ("--chunk-interval", "10m")
    first = team.join(topic_name, "--group-id", topic_name, "--group-instance-id", "first", end_chunks=chunks)
    first.wait_for(lambda: first.stderr.count(" claimed ") == 4, 30, "the first member has all partitions")
    with plain_member(team.bootstrap, topic_name, "second"):
        first.wait_for(lambda: " revoked " in first.stderr, 30, "some are for the second member")
        first.signal(signal.SIGSTOP)
        with plain_member(team.bootstrap, topic_name, "first") as has_joined:
            assert has_joined.wait(30), "another process takes the first one's place"
            first.signal(signal.SIGCONT)
            assert first.wait(30).exit_code == 11


def test_new_topics_and_partitions_are_picked_up(team: Team, broker: KafkaBroker, topic_name: str) -> None:
    first, second, left_out = f"{topic_name}-a", f"{topic_name}-b", f"{topic_name}-secret"
    create_topic(team.bootstrap, first, 1)
    fill(team.bootstrap, first, 1, 10)
    team.join(f"{topic_name}-*", "--exclude", "*-secret", "--group-id", topic_name, *SESSION)
    team.wait_for(first, 0, 10)
    for topic in (second, left_out):
        create_topic(team.bootstrap, topic, 1)
        fill(team.bootstrap, topic, 1, 20)
    add_partitions(team.bootstrap, first, 2)
    produce(team.bootstrap, first, [NewRecord(b"new", partition=1)])
    team.wait_for(second, 0, 20)
    team.wait_for(first, 1, 1)
    assert not (team.folder / f"topic={left_out}").exists()


def test_workers_share_one_machine(team: Team, topic_name: str) -> None:
    create_topic(team.bootstrap, topic_name, 4)
    fill(team.bootstrap, topic_name, 4, 400)
    parent = team.join(topic_name, "--workers", "2", "--group-id", topic_name, *SESSION)
    for partition in range(4):
        team.wait_for(topic_name, partition, 100)
    writers = {team.marker(topic_name, partition)["writer"] for partition in range(4)}
    assert parent.terminate().exit_code == 0
    assert writers
    team.assert_exact(topic_name, 4)
