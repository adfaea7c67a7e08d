"""How much the consumer takes at a time, whichever client fetches, and what it may not do."""

import multiprocessing
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from archiver.errors import MemberRefused
from archiver.ingest import kafka_source
from archiver.ingest.assignment import GroupMember
from archiver.ingest.kafka_source import (
    BYTES_A_POLL,
    FIRST_MESSAGES_A_POLL,
    MESSAGES_WORTH_A_BATCH,
    SECONDS_A_PARTITION,
    Batching,
    EndReached,
    Event,
    Fetched,
    GroupListener,
    KafkaSource,
    Partition,
    PartitionFailed,
    RecordRefused,
    consumer_settings,
    messages_a_poll,
)
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied
from index_format.records import Record, iter_records
from tests.support.archives import records
from tests.support.fetch_clients import CLIENTS, fetch_with, needs_kernel
from tests.support.mock_cluster import FIND_COORDINATOR, OFFSET_COMMIT, MockCluster

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


A, B = ("orders", 0), ("orders", 1)
MANY = 1000
"""Partitions that are consumed."""


class Clock:
    """Seconds as the test sets them."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def batching(clock: Clock, most_bytes: int = 1_000_000) -> Batching:
    return Batching(most_bytes, clock)


def add(held: Batching, partition: tuple[str, int], count: int, size: int = 10) -> None:
    held.add(partition, range(count))
    held.count(count, count * size)


def test_a_record_of_one_of_many_partitions_waits_for_others(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 1)
    assert not held.is_due(MANY)
    clock.now += MANY * SECONDS_A_PARTITION
    assert held.is_due(MANY)
    assert held.take_all() == {A: ([0], None)}
    add(held, A, 1)
    assert not held.is_due(MANY), "the wait begins anew"


def test_with_few_partitions_nothing_waits_longer_than_a_poll(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 1)
    clock.now += 0.1
    assert held.is_due(40)


def test_batches_that_are_worth_it_wait_for_nothing(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, MESSAGES_WORTH_A_BATCH)
    assert held.is_due(MANY)
    add(held, B, 1)
    assert not held.is_due(MANY), "on the average they are not"
    add(held, B, MESSAGES_WORTH_A_BATCH)
    assert held.is_due(MANY)


def test_what_is_held_is_bounded(clock: Clock) -> None:
    held = batching(clock, most_bytes=1000)
    for number in range(9):
        add(held, ("orders", number), 1, size=100)
        assert not held.is_due(MANY)
    add(held, A, 1, size=100)
    assert held.is_due(MANY)
    assert len(held.take_all()) == 9
    add(held, A, 1, size=100)
    assert not held.is_due(MANY), "nothing of it is held any more"


def test_an_end_follows_the_messages_before_it(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 2)
    held.end(A, 2)
    held.end(B, 7)
    assert held.partitions == {A, B}
    assert held.take_all() == {A: ([0, 1], 2), B: ((), 7)}
    assert held.partitions == set()


def test_the_last_end_counts(clock: Clock) -> None:
    held = batching(clock)
    held.end(A, 5)
    add(held, A, 1)
    held.end(A, 6)
    assert held.take(A) == ([0], 6)


def test_what_left_is_forgotten(clock: Clock) -> None:
    held = batching(clock)
    add(held, A, 3)
    held.end(A, 3)
    add(held, B, 1)
    held.forget([A])
    assert held.take(A) == ((), None)
    assert held.take_all() == {B: ([0], None)}


DEADLINE_SECONDS = 30
LOGS: list[Partition] = [("orders", number) for number in range(4)]


def filled(cluster: MockCluster, source: random.Random) -> None:
    """Three logs with new leaders and unreadable records among many; the fourth is empty."""
    for topic, number in LOGS[:3]:
        for _ in range(6):
            value = source.randbytes(source.choice([0, 10, 3000]))
            headers = [("trace", b"t")] if source.random() < 0.3 else []
            count = source.randrange(1, 300)
            cluster.produce(topic, number, [Record(0, NOW, 0, source.choice([None, b"k"]), value, headers)] * count)
            if source.random() < 0.5:
                cluster.produce_raw_headers(topic, number, b"v", [b"\xff"])
            if source.random() < 0.5:
                cluster.elect(topic, number)


def told(source: KafkaSource, positions: dict[Partition, int]) -> dict[Partition, list[Any]]:
    """What came of each partition, record by record, until it ended or failed."""
    story: dict[Partition, list[Any]] = {partition: [] for partition in positions}
    over: set[Partition] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    source.consume(positions)
    while len(over) < len(positions):
        assert time.monotonic() < deadline, story
        for event in source.poll():
            story[event.partition] += parts(event)
            if isinstance(event, EndReached | PartitionFailed):
                over.add(event.partition)
    return story


def parts(event: Event) -> list[Any]:
    match event:
        case Fetched(batch=batch, leader_epoch=epoch):
            return [(record, epoch) for record in iter_records(batch)]
        case RecordRefused(record=record):
            # It is written by the clock of the producer.
            return ["unreadable", record._replace(timestamp=0), event.error.what, event.error.remedy]
        case EndReached(position=position):
            return ["end", position]
        case PartitionFailed(error=error):
            return ["failed", type(error), error.what, error.why]


@needs_kernel
def test_both_clients_tell_the_same_of_random_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = time.time_ns()
    print("seed", seed)
    chance = random.Random(seed)
    cluster = MockCluster()
    filled(cluster, chance)
    config = RunConfig(archive="./archive", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",), once=True)
    positions = {partition: chance.randrange(3) for partition in LOGS[:3]} | {LOGS[3]: chance.choice([0, 70])}
    stories = []
    for kind in ("kernel", "confluent"):
        with monkeypatch.context() as patch:
            fetch_with(kind, patch)
            batching_bytes = chance.choice([1, 10**9])
            source = KafkaSource(consumer_settings(config, queue_bytes=1), batching_bytes, poll_seconds=0.01)
        try:
            stories.append(told(source, positions))
        finally:
            source.close()
    assert stories[0] == stories[1]
    assert sum(map(len, stories[0].values())) > 18


RECORDS = 3000
SICK, OTHER = ("orders", 0), ("orders", 1)
PAUSE_SECONDS = 20


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    cluster = MockCluster()
    for _, number in (SICK, OTHER):
        cluster.produce("orders", number, records(range(RECORDS)))
    return cluster


@pytest.fixture(params=CLIENTS)
def source(
    request: pytest.FixtureRequest, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KafkaSource]:
    fetch_with(request.param, monkeypatch)
    config = RunConfig(archive="./archive", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    source = KafkaSource(consumer_settings(config, queue_bytes=2**20), batching_bytes=1, poll_seconds=0.01)
    source.consume({SICK: 0, OTHER: 0})
    yield source
    source.close()


class Reading:
    """The offsets that came of each partition, in order."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self.offsets: dict[Partition, list[int]] = {SICK: [], OTHER: []}

    def until(self, partition: Partition, count: int) -> None:
        """Poll until so many records of the partition came."""
        deadline = time.monotonic() + PAUSE_SECONDS
        while len(self.offsets[partition]) < count:
            assert time.monotonic() < deadline, f"{partition}: {len(self.offsets[partition])} records"
            for event in self._source.poll():
                if isinstance(event, Fetched):
                    self.offsets[event.partition] += event.batch.column("offset").to_pylist()


def test_what_was_fetched_ahead_comes_again_after_a_pause(source: KafkaSource) -> None:
    reading = Reading(source)
    for wanted in range(100, RECORDS, 400):
        reading.until(SICK, wanted)
        source.pause([SICK])
        so_far = len(reading.offsets[SICK])
        reading.until(OTHER, min(RECORDS, len(reading.offsets[OTHER]) + 100))
        assert len(reading.offsets[SICK]) == so_far, "nothing comes of a paused partition"
        source.resume([SICK])
    for partition, offsets in reading.offsets.items():
        reading.until(partition, RECORDS)
        assert offsets == list(range(RECORDS)), "nothing is lost, nothing comes twice"


def test_the_others_are_read_to_their_end_meanwhile(source: KafkaSource) -> None:
    reading = Reading(source)
    reading.until(SICK, 1)
    source.pause([SICK])
    so_far = len(reading.offsets[SICK])
    reading.until(OTHER, RECORDS)
    assert len(reading.offsets[SICK]) == so_far


def test_a_partition_that_is_consumed_again_is_not_paused(source: KafkaSource) -> None:
    """The client itself would keep it paused."""
    reading = Reading(source)
    reading.until(SICK, 1)
    source.pause([SICK])
    source.release([SICK])
    source.resume([SICK])  # of what is not consumed there is nothing to resume
    reading.offsets[SICK].clear()
    source.consume({SICK: 40})
    reading.until(SICK, RECORDS - 40)
    assert reading.offsets[SICK] == list(range(40, RECORDS))


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


def fenced_source(cluster: MockCluster, instance_id: str) -> tuple[RunConfig, KafkaSource]:
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
    config, source = fenced_source(cluster, "a")
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
        other = Other(fenced_source(cluster, "b")[1])
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


def told_by_member(case: Any, sending: Connection) -> None:
    sending.send(case())


@pytest.mark.slow
@pytest.mark.parametrize("case", [as_it_commits_in_a_rebalance, with_a_commit_in_flight, before_it_was_told])
def test_a_fenced_member_is_refused_and_its_process_lives(case: Any) -> None:
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=told_by_member, args=(case, sending))
    process.start()
    process.join(2 * DEADLINE_SECONDS)
    assert process.exitcode == 0, f"the process ended by signal {-(process.exitcode or 0)}"
    assert "fenced" in receiving.recv()
