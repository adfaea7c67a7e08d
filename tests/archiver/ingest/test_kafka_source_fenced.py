"""A static member whose id another process took ends with an error, whatever it was about to do.

librdkafka 2.16 overflows its stack, which kills the process without a word, if an offset commit is answered with
FENCED_INSTANCE_ID while a member without partitions is being unassigned. So each case runs in a process of its own.
"""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from archiver.errors import MemberRefused
from archiver.ingest.assignment import GroupMember
from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import GroupListener, KafkaSource, Partition
from blockgz.config.model import RunConfig
from tests.support.mock_cluster import OFFSET_COMMIT, MockCluster

DEADLINE_SECONDS = 30
ANSWER_MS = 300
SESSION = {"session.timeout.ms": "2000", "heartbeat.interval.ms": "200"}
"""The mock waits for members in a rebalance for a second less than a session lasts."""


class Other:
    """A second member of the group, in a thread."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def assigned(self, partitions: Sequence[Partition]) -> None: ...
    def revoked(self, partitions: Sequence[Partition]) -> None: ...
    def lost(self, partitions: Sequence[Partition]) -> None: ...

    def _poll(self) -> None:
        self._source.subscribe(["orders"], self)
        while not self._ending.is_set():
            self._source.poll()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._source.close()


class Owned:
    """Stands for the partitions of the process; each is archived up to an offset that is news to the group."""

    def __init__(self) -> None:
        self.active: dict[Partition, Any] = {}
        self.gave_up = False
        self.on_give_up: Callable[[], None] = lambda: None

    def acquire(self, partition: Partition) -> None:
        self.active[partition] = SimpleNamespace(state=SimpleNamespace(committed=7))

    def give_up(self, *_: object) -> None:
        self.gave_up = True
        self.on_give_up()

    def lose(self, _: object) -> None: ...
    def offer(self, _: object) -> None: ...


def source_of(cluster: MockCluster, instance_id: str) -> tuple[RunConfig, KafkaSource]:
    config = RunConfig(
        archive="./archive",
        bootstrap_servers=cluster.bootstrap_servers,
        topics=("orders",),
        group_instance_id=instance_id,
        kafka=SESSION,
        takeover=True,
    )
    return config, KafkaSource(consumer_settings(config, queue_bytes=1), batching_bytes=1, poll_seconds=0.01)


@contextmanager
def first_member(cluster: MockCluster) -> Iterator[tuple[KafkaSource, GroupMember, Owned]]:
    """A member that has all partitions."""
    cluster.create_topic("orders")
    cluster.rebalance_at_once()
    config, source = source_of(cluster, "a")
    owned, nothing = Owned(), SimpleNamespace(topics=lambda _: None, look=lambda *_: set())
    fetching: Any = source
    ownership: Any = owned
    others: Any = nothing
    member = GroupMember(
        config, ownership, fetching, ["orders"], others, others, others, rest=lambda: None, wait=lambda _: False
    )
    try:
        member.start()
        for _ in within_deadline():
            if owned.active:
                break
            source.poll()
        yield source, member, owned
    finally:
        source.close()


def within_deadline() -> Iterator[None]:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        yield
    raise TimeoutError


def as_it_commits_in_a_rebalance() -> str:
    """The offsets of what it gives up must not be committed inside the callback."""
    return fenced_in_a_rebalance(is_in_flight=False)


def with_a_commit_in_flight() -> str:
    """The regular commit is on its way when the member gives partitions up."""
    return fenced_in_a_rebalance(is_in_flight=True)


def fenced_in_a_rebalance(*, is_in_flight: bool) -> str:
    cluster = MockCluster()
    with first_member(cluster) as (source, member, owned):
        cluster.answer_late(OFFSET_COMMIT, KafkaError.FENCED_INSTANCE_ID, ANSWER_MS)
        if is_in_flight:
            owned.on_give_up = lambda: source.commit(dict.fromkeys(owned.active, 7))
        other = Other(source_of(cluster, "b")[1])
        try:
            return refusal(source, member, owned)
        finally:
            other.close()


def refusal(source: KafkaSource, member: GroupMember, owned: Owned) -> str:
    try:
        for _ in within_deadline():
            source.poll()
            if owned.gave_up:
                member.tick(time.monotonic())
    except MemberRefused as refused:
        assert owned.gave_up
        return refused.why
    raise AssertionError


def before_it_was_told() -> str:
    """It joins again, subscribes, and commits after the fatal error and before the poll that reports it."""
    cluster = MockCluster()
    with first_member(cluster) as (source, member, owned):
        cluster.answer_late(OFFSET_COMMIT, KafkaError.FENCED_INSTANCE_ID, 0)
        partition = next(iter(owned.active))
        source.commit({partition: 8})
        source._await_commit()
        listener: GroupListener = member
        source.join_again(["orders"], listener)
        source.subscribe(["orders"], listener)
        source.consume({partition: 0})
        source.pause([partition])
        source.resume([partition])
        source.commit({partition: 9})
        source.release([partition])
        try:
            for _ in within_deadline():
                source.poll()
        except MemberRefused as refused:
            return refused.why
        raise AssertionError


def told(case: Any, sending: Connection) -> None:
    sending.send(case())


@pytest.mark.slow
@pytest.mark.parametrize("case", [as_it_commits_in_a_rebalance, with_a_commit_in_flight, before_it_was_told])
def test_a_fenced_member_is_refused_and_its_process_lives(case: Any) -> None:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=told, args=(case, sending))
    process.start()
    process.join(2 * DEADLINE_SECONDS)
    assert process.exitcode == 0, f"the process ended by signal {-(process.exitcode or 0)}"
    assert "fenced" in receiving.recv()
