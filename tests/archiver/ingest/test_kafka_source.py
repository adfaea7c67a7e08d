"""How much the consumer takes at a time, and what it may not do."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from archiver.ingest import kafka_source
from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import (
    BYTES_A_POLL,
    FIRST_MESSAGES_A_POLL,
    EndReached,
    Event,
    Fetched,
    KafkaSource,
    Partition,
    messages_a_poll,
)
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied
from tests.support.archives import records
from tests.support.fetch_clients import CLIENTS, fetch_with
from tests.support.mock_cluster import FIND_COORDINATOR, MockCluster

NOW = 1_700_000_000_000


@pytest.mark.parametrize("record_bytes", [10, 500, 20_000, 1_000_000, 10 * BYTES_A_POLL])
def test_a_poll_takes_a_bounded_number_of_bytes(record_bytes: int) -> None:
    asked = FIRST_MESSAGES_A_POLL
    for _ in range(4):
        asked = messages_a_poll(asked, asked * record_bytes, asked, most=1000)
    assert asked == max(1, min(1000, BYTES_A_POLL // record_bytes))


def test_polls_grow_step_by_step_where_records_turn_small() -> None:
    assert [messages_a_poll(1, 10, 1, 1000), messages_a_poll(8, 80, 8, 1000)] == [8, 64]


def test_a_poll_without_records_changes_nothing() -> None:
    assert messages_a_poll(0, 0, 17, 1000) == 17


class Client:
    """A consumer that is given what it takes; notes how many were asked for."""

    def __init__(self, messages: Iterator[Message]) -> None:
        self._messages = messages
        self.asked: list[int] = []

    def consume(self, count: int, _: float) -> list[Message]:
        self.asked.append(count)
        return list(islice(self._messages, count))

    def incremental_assign(self, _: object) -> None:
        """Nothing to do."""

    def incremental_unassign(self, _: object) -> None:
        """Nothing to do."""

    def list_topics(self, timeout: float) -> None:
        """Nothing to tell."""


class RevokingClient(Client):
    """Takes a partition away in the call that gives its messages, as a rebalance does."""

    def subscribe(self, _: object, *, on_revoke: Callable[[Any, list[TopicPartition]], None], **__: object) -> None:
        self._on_revoke = on_revoke

    def consume(self, count: int, seconds: float) -> list[Message]:
        self._on_revoke(self, [TopicPartition("orders", 0)])
        return super().consume(count, seconds)


def offsets(events: Iterable[Event]) -> list[int]:
    return [
        offset for each in events if isinstance(each, Fetched) for offset in each.batch.column("offset").to_pylist()
    ]


def give(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """What confluent-kafka would make; there is no kernel."""
    monkeypatch.setattr(kafka_source, "kernel_takes", lambda _: False)
    monkeypatch.setattr(kafka_source, "make_client", lambda *_: client)


def source_of(client: Client, monkeypatch: pytest.MonkeyPatch) -> KafkaSource:
    give(client, monkeypatch)
    source = KafkaSource({}, batching_bytes=1)
    source.consume({("orders", 0): 0})
    return source


def message(offset: int, epoch: int = 0, **more: Any) -> Message:
    partition = more.pop("partition", 0)
    given = {"key": b"k", "value": b"v", "headers": [], "timestamp": (1, NOW), "leader_epoch": epoch} | more
    return Message("orders", partition, offset, **given)


@pytest.mark.parametrize("more", [{"key": b"k" * 200_000}, {"headers": [("trace", b"t" * 200_000)]}])
def test_keys_and_headers_count_as_values_do(monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]) -> None:
    client = Client(message(offset, **more) for offset in count())
    source = source_of(client, monkeypatch)
    for _ in range(3):
        assert source.poll()
    assert client.asked[-1] == BYTES_A_POLL // 200_000


def test_offsets_that_come_again_are_a_batch_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the partition's guard, which looks at a batch's first offset, sees them."""
    client = Client(iter([*(message(offset, 1) for offset in (5, 6, 8)), *(message(offset, 2) for offset in (6, 7))]))
    events = source_of(client, monkeypatch).poll()
    found = [
        (each.batch.column("offset").to_pylist(), each.leader_epoch) for each in events if isinstance(each, Fetched)
    ]
    assert found == [([5, 6, 8], 1), ([6, 7], 2)]


def test_a_new_leader_epoch_begins_a_batch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one batch had both, its first offsets would be judged by an epoch that did not write them."""
    epochs = {5: 1, 6: 1, 7: 3, 8: 3, 9: None, 10: 3}
    client = Client(message(offset, -1 if epoch is None else epoch) for offset, epoch in epochs.items())
    events = source_of(client, monkeypatch).poll()
    found = [
        (each.batch.column("offset").to_pylist(), each.leader_epoch) for each in events if isinstance(each, Fetched)
    ]
    assert found == [([5, 6], 1), ([7, 8], 3), ([9], None), ([10], 3)]


def test_partitions_may_take_turns_and_their_ends_stand_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    end = {"key": None, "value": None, "error": KafkaError(KafkaError._PARTITION_EOF), "leader_epoch": -1}
    given = [(0, 5), (0, 6), (1, 3), (0, 7, end), (1, 4), (1, 5, end), (0, 7), (2, 0, end)]
    messages = [message(offset, partition=number, **(more[0] if more else {})) for number, offset, *more in given]
    source = source_of(Client(iter(messages)), monkeypatch)
    source.consume({("orders", number): 0 for number in range(3)})
    events = source.poll()
    found = {each.partition[1]: each.batch.column("offset").to_pylist() for each in events if isinstance(each, Fetched)}
    assert found == {0: [5, 6, 7], 1: [3, 4]}
    ends = {each.partition[1]: each.position for each in events if isinstance(each, EndReached)}
    assert ends == {0: 7, 1: 5, 2: 0}


def test_messages_of_a_partition_that_left_in_the_same_call_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    given = [message(5), message(6), message(3, partition=1)]
    source = source_of(RevokingClient(iter(given)), monkeypatch)
    source.consume({("orders", 1): 3})
    listener: Any = SimpleNamespace(revoked=lambda _: None)
    source.subscribe(["orders"], listener)
    assert offsets(source.poll()) == [3]


def test_what_was_batched_before_a_partition_left_does_not_come_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Offsets above the position that it is consumed from would pass for holes."""
    client = Client(iter([message(offset) for offset in (5, 6, 7, 8, 9, 10, 11, 12, 2, 3)]))
    give(client, monkeypatch)
    now = 0.0
    source = KafkaSource({}, batching_bytes=10**9, clock=lambda: now)
    source.consume({("orders", 0): 5})
    assert source.poll() == [], "eight messages are not worth a batch yet"
    source.release([("orders", 0)])
    source.consume({("orders", 0): 2})
    now = 60.0
    assert offsets(source.poll()) == [2, 3]


class Member:
    """Consumes what it is assigned."""

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.given: list[Partition] = []

    def assigned(self, partitions: Sequence[Partition]) -> None:
        self.given += partitions

    def revoked(self, partitions: Sequence[Partition]) -> None: ...
    def lost(self, partitions: Sequence[Partition]) -> None: ...


@pytest.mark.slow
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_group_that_may_be_joined_again_continues(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_with(kind, monkeypatch)
    cluster = MockCluster()
    cluster.produce("orders", 0, records(range(3)))
    cluster.refuse(FIND_COORDINATOR, KafkaError.GROUP_AUTHORIZATION_FAILED, times=1000)
    config = RunConfig(archive="./archive", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    source = KafkaSource(consumer_settings(config, queue_bytes=1), batching_bytes=1)
    member, denials, events, deadline = Member(source), 0, list[Any](), time.monotonic() + 30
    try:
        source.subscribe(["orders"], member)
        while not any(isinstance(event, Fetched) for event in events):
            assert time.monotonic() < deadline
            try:
                events += source.poll()
            except AccessDenied:
                denials += 1
                cluster.refuse_no_more(FIND_COORDINATOR)
            if member.given:
                source.consume(dict.fromkeys(member.given, 0))
                member.given = []
    finally:
        source.close()
    assert denials == 1


def test_a_refusal_does_not_take_the_records_along_that_came_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    denied = {"key": None, "value": None, "error": KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)}
    given = [message(0), message(0, **denied), message(1)]
    source = source_of(Client(iter(given)), monkeypatch)
    source.consume({("orders", 0): 0})
    (event,) = source.poll()
    assert isinstance(event, Fetched) and event.batch.num_rows == 2
    with pytest.raises(AccessDenied):
        source.poll()
    assert source.poll() == []


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_group_that_may_not_be_joined_is_no_silence(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch_with(kind, monkeypatch)
    cluster = MockCluster()
    cluster.create_topic("orders")
    cluster.refuse(FIND_COORDINATOR, KafkaError.GROUP_AUTHORIZATION_FAILED, times=100)
    config = RunConfig(archive="./archive", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    source = KafkaSource(consumer_settings(config, queue_bytes=1), batching_bytes=1)
    listener: Any = None
    try:
        source.subscribe(["orders"], listener)
        deadline = time.monotonic() + 20
        with pytest.raises(AccessDenied, match="group"):
            while time.monotonic() < deadline:
                source.poll()
    finally:
        source.close()


class CommittingClient(Client):
    """A group's member; tests answer what it commits."""

    def __init__(self) -> None:
        super().__init__(iter(()))
        self.committed_offsets: list[list[TopicPartition]] = []
        self.asked_for_offsets = 0

    def subscribe(
        self, _: object, *, on_assign: Callable[..., None], on_revoke: Callable[..., None], **__: Any
    ) -> None:
        self.assign, self.revoke = on_assign, on_revoke

    def commit(self, *, offsets: list[TopicPartition], asynchronous: bool) -> None:
        assert asynchronous
        self.committed_offsets.append(offsets)

    def committed(self, _: object, timeout: float) -> None:
        assert 0 < timeout <= 5
        self.asked_for_offsets += 1

    def close(self) -> None:
        self.revoke(self, [TopicPartition("orders", 0)])


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> tuple[CommittingClient, KafkaSource, Callable[..., None]]:
    """A member of a group, its source, and what answers the oldest commit."""
    client, settings = CommittingClient(), dict[str, Any]()
    monkeypatch.setattr(kafka_source, "kernel_takes", lambda _: False)
    monkeypatch.setattr(kafka_source, "make_client", lambda _, given: settings.update(given) or client)
    source = KafkaSource({}, batching_bytes=1)
    nobody: Any = SimpleNamespace(assigned=lambda _: None, revoked=lambda _: None)
    source.subscribe(["orders"], nobody)
    return client, source, settings["on_commit"]


Joined = tuple[CommittingClient, KafkaSource, Callable[..., None]]


def test_an_offset_is_committed_until_the_group_confirms_it(member: Joined) -> None:
    client, source, answer = member
    refused = KafkaError(KafkaError.REBALANCE_IN_PROGRESS)
    for reply in ((refused, []), (None, [TopicPartition("orders", 0, 7)])):
        source.commit({("orders", 0): 7})
        answer(*reply)
    source.commit({("orders", 0): 7})
    assert len(client.committed_offsets) == 2, "the third one is not news"
    client.assign(client, [TopicPartition("orders", 0)])
    source.commit({("orders", 0): 7})
    assert len(client.committed_offsets) == 3, "another member may have committed in between"


def test_partitions_are_given_up_once_all_commits_are_answered(member: Joined) -> None:
    client, source, answer = member
    gone = [TopicPartition("orders", 0)]
    for offset in (7, 8):
        source.commit({("orders", 0): offset})
    client.revoke(client, gone)
    assert client.asked_for_offsets == 1
    for _ in range(2):
        answer(None, [])
    client.revoke(client, gone)
    assert client.asked_for_offsets == 1, "there is nothing to wait for"
    source.commit({("orders", 0): 9})
    source.close()
    assert client.asked_for_offsets == 1, "a client that leaves its group does not answer"
