"""Records that cannot be archived reach their topic before they are left out; the broker is librdkafka's mock."""

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from archiver.errors import DeadLetterRefused, UnencodableRecord, UnreadableRecord
from archiver.ingest import dead_letters
from archiver.ingest.dead_letters import DeadLetters, DeadLetterTopic, context_headers
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied, BrokerUnreachable, ShuttingDown
from index_format.errors import BlockgzError
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records
from tests.index_format.builders import record
from tests.support.mock_cluster import PARTITIONS, MockCluster
from tests.support.partition_bench import FLUSH, PARTITION, Bench, fetched, unreadable, until

PRODUCE = 0
"""Kafka's number of the request."""
TOO_FEW_REPLICAS, DENIED, TOO_LARGE = 19, 29, 10
"""Kafka's numbers of the errors."""
ALL = 10**9
"""An offset above all."""
BAD = Record(7, 1_700_000_000_000, 0, b"k", b"two\nlines", (("h", b"1"), ("h", None)))


class ReadBack:
    """What the topic of dead letters holds."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "auto.offset.reset": "earliest"})
        self._consumer.assign([TopicPartition("dead", number, 0) for number in range(PARTITIONS)])
        self.messages: list[Any] = []

    def __call__(self, count: int) -> list[Any]:
        def arrived() -> bool:
            self.messages += self._consumer.consume(100, 0.05)
            return len(self.messages) >= count

        until(arrived, f"{count} records are in the topic")
        return self.messages

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def cluster() -> MockCluster:
    cluster = MockCluster()
    cluster.create_topic("dead")
    return cluster


@pytest.fixture
def topic(cluster: MockCluster) -> Iterator[DeadLetterTopic]:
    config = RunConfig(
        archive="./archive",
        bootstrap_servers=cluster.bootstrap_servers,
        topics=("orders",),
        on_bad_record="dlq",
        dlq_topic="dead",
        group_id="backup",
        kafka={"message.timeout.ms": "2000", "retry.backoff.ms": "20"},
    )
    topic = DeadLetterTopic(config)
    yield topic
    topic.close()
    gc.collect()  # a client that a traceback keeps must not be collected in a fork of another test


@pytest.fixture
def read_back(cluster: MockCluster) -> Iterator[ReadBack]:
    reader = ReadBack(cluster.bootstrap_servers)
    yield reader
    reader.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def letter(offset: int = 7) -> tuple[Record, BlockgzError]:
    return (BAD._replace(offset=offset), UnencodableRecord(offset, "a newline"))


def settle_at_last(letters: DeadLetters) -> None:
    """On a busy machine the first try may take longer than a record is waited for."""

    def settled() -> bool:
        with suppress(BlockgzError):
            letters.settle(ALL)
            return True
        return False

    until(settled, "the topic takes what was sent")


def offsets(messages: list[Any]) -> set[int]:
    return {int(dict(message.headers())["__connect.errors.offset"]) for message in messages}


def test_the_record_arrives_as_it_was_with_the_headers_of_connect(topic: DeadLetterTopic, read_back: ReadBack) -> None:
    letters = DeadLetters(topic, PARTITION)
    letters.send_objected(batch_from_records([record(6, b"fine"), BAD]), record_format("text"))
    settle_at_last(letters)
    message = read_back(1)[0]
    assert (message.key(), message.value(), message.timestamp()) == (b"k", b"two\nlines", (1, 1_700_000_000_000))
    assert message.headers()[:2] == [("h", b"1"), ("h", None)]
    context = {name.removeprefix("__connect.errors."): value.decode() for name, value in message.headers()[2:]}
    assert context.pop("exception.message").startswith("record at offset 7 cannot be archived: record format text")
    assert context == {
        "topic": "orders",
        "partition": "3",
        "offset": "7",
        "connector.name": "backup",
        "stage": "TASK_PUT",
        "class.name": "archiver.ingest.chunk_builder.ChunkBuilder",
        "exception.class.name": "archiver.errors.UnencodableRecord",
    }


def test_a_record_whose_headers_cannot_be_read_failed_in_the_header_converter() -> None:
    unreadable = (BAD._replace(headers=()), UnreadableRecord("it cannot be read", why="not UTF-8"))
    headers = dict(context_headers(PARTITION, "backup", *unreadable))
    assert headers["__connect.errors.stage"] == b"HEADER_CONVERTER"
    assert headers["__connect.errors.exception.message"] == b"it cannot be read: not UTF-8"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "failure"),
    [(TOO_FEW_REPLICAS, BrokerUnreachable), (DENIED, AccessDenied), (TOO_LARGE, DeadLetterRefused)],
)
def test_what_was_not_acknowledged_is_a_failure_and_is_sent_again(
    error: int, failure: type[Exception], cluster: MockCluster, topic: DeadLetterTopic, read_back: ReadBack
) -> None:
    letters = DeadLetters(topic, PARTITION)
    letters.send(*letter(1))
    settle_at_last(letters)
    cluster.refuse(PRODUCE, error, 1000)
    letters.send(*letter(2))
    with pytest.raises(failure, match="topic dead did not accept a record"):
        letters.settle(ALL)
    with pytest.raises(failure):
        letters.send(*letter(3))
    cluster.refuse_no_more(PRODUCE)
    settle_at_last(letters)
    assert offsets(read_back(2)) == {1, 2}


def test_the_end_of_the_run_is_waited_for_by_nobody(cluster: MockCluster, topic: DeadLetterTopic) -> None:
    cluster.refuse(PRODUCE, TOO_FEW_REPLICAS, 1000)
    letters = DeadLetters(topic, PARTITION)
    letters.send(*letter())
    topic.close()
    with pytest.raises(ShuttingDown):
        letters.settle(ALL)


class FailingClient:
    """Refuses its second record for good, as a client does after a fatal error; the others take all."""

    made = 0

    def __init__(self, *, reports: bool) -> None:
        FailingClient.made += 1
        self._fails = FailingClient.made == 1
        self._reports = reports
        self._waiting: list[Any] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def produce(self, *_: Any, on_delivery: Any, **__: Any) -> None:
        if self._fails and self._waiting:
            raise KafkaException(KafkaError(KafkaError._FATAL))
        self._waiting.append(on_delivery)

    def poll(self, _: float) -> None:
        while self._waiting and not self._fails:
            self._waiting.pop()(None, None)

    def purge(self) -> None:
        raise SystemError("left behind")

    def flush(self, _: float) -> None:
        while self._waiting and self._reports:
            self._waiting.pop()(KafkaError(KafkaError._PURGE_QUEUE), None)


@pytest.mark.parametrize("reports", [True, False])
def test_a_client_that_one_partition_drops_leaves_no_other_one_waiting(
    reports: bool, topic: DeadLetterTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FailingClient, "made", 0)
    monkeypatch.setattr(dead_letters, "make_client", lambda *_: FailingClient(reports=reports))
    waiting, failing = DeadLetters(topic, PARTITION), DeadLetters(topic, ("orders", 4))
    waiting.send(*letter(1))
    with pytest.raises(BrokerUnreachable):
        failing.send(*letter(2))
    settling = threading.Thread(target=waiting.settle, args=(ALL,), daemon=True)
    settling.start()
    settling.join(5)
    assert not settling.is_alive() and waiting.first_open(ALL) is None
    assert FailingClient.made == 2, "the letter was sent again"


class HeldBack(DeadLetters):
    """Acknowledges once `acknowledge` is set, or fails."""

    def __init__(self, failure: Exception | None = None, refuses_from: int | None = None) -> None:
        self.refuses_from = refuses_from
        self.acknowledge = threading.Event()
        self.failure = failure
        self.sent: list[int] = []
        self.settling = 0

    def send(self, record: Record, error: BlockgzError) -> None:
        if record.offset == self.refuses_from:
            raise BrokerUnreachable("topic dead did not accept a record")
        self.sent.append(record.offset)

    def settle(self, end: int) -> None:
        self.settling += 1
        assert self.acknowledge.wait(10)
        if self.failure is not None and self.first_open(end) is not None:
            raise self.failure

    def first_open(self, end: int) -> int | None:
        return next((offset for offset in self.sent if self.failure is not None and offset < end), None)


@pytest.mark.parametrize("with_others", [True, False])
def test_nothing_that_leaves_a_record_out_is_committed_before_its_topic_has_it(bench: Bench, with_others: bool) -> None:
    letters = HeldBack()
    archiver = bench.archiver(layout="seed", skip=True, dead_letters=letters)
    archiver.offer(fetched([record(0, b"a")] * with_others + [record(1, None)]))
    archiver.offer(unreadable(4))
    archiver.offer(FLUSH)
    until(lambda: letters.settling == 1, "a commit waits")
    assert letters.sent == [1, 4] and bench.chain() is None
    letters.acknowledge.set()
    bench.settle()
    chain = bench.chain()
    assert chain is not None and chain.next_offset == 5
    assert {1, 4} <= {offset for start, end in chain.gaps for offset in range(start, end)}


def test_what_lies_below_a_record_that_its_topic_did_not_take_is_committed(bench: Bench) -> None:
    letters = HeldBack(failure := BrokerUnreachable("topic dead did not accept a record"))
    letters.acknowledge.set()
    archiver = bench.archiver(layout="seed", skip=True, dead_letters=letters)
    bench.feed(archiver, fetched([record(0, b"a"), record(2, b"c"), record(3, None), record(4, b"e")]), FLUSH)
    assert archiver.state.failure is failure
    assert bench.spans() == [(0, 3, 2)] and bench.offsets() == [0, 2]
    assert bench.archiver(layout="seed").state.position == 3, "the next claim reads it again"


def test_a_first_record_that_its_topic_did_not_take(bench: Bench) -> None:
    letters = HeldBack(BrokerUnreachable("topic dead did not accept a record"))
    letters.acknowledge.set()
    archiver = bench.archiver(skip=True, dead_letters=letters)
    bench.feed(archiver, unreadable(0), FLUSH)
    assert bench.chain() is None and bench.archiver().state.position == 0


@pytest.mark.parametrize("is_readable", [True, False])
def test_what_lies_below_a_record_that_could_not_even_be_sent_is_committed(bench: Bench, is_readable: bool) -> None:
    letters = HeldBack(refuses_from=3)
    letters.acknowledge.set()
    archiver = bench.archiver(layout="seed", skip=True, dead_letters=letters)
    bench.feed(
        archiver,
        fetched([record(0, b"a"), record(1, None), record(2, b"c")]),
        fetched([record(3, None), record(4, b"e")]) if is_readable else unreadable(3),
    )
    assert isinstance(archiver.state.failure, BrokerUnreachable)
    assert bench.spans() == [(0, 3, 2)] and bench.archiver(layout="seed").state.position == 3
