"""Both producers of batches: the C extension's, and the one of Python objects."""

import gc
import logging
import random
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from blockgz.errors import UsageError
from blockgz.kafka.batch_producer import NO_OFFSET, BatchProducer, ConfluentProducer, KernelProducer, batch_producer
from blockgz.kafka.fetching import KERNEL
from index_format.records import SCHEMA, Record, batch_from_records, iter_records
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from tests.support.archives import records
from tests.support.mock_cluster import MockCluster
from tests.support.sampling import seeded_random

SECONDS = 30.0
EVERY_BYTE = bytes(range(256))
ODDITIES = [
    Record(0, 1_760_000_000_000, 0, b"k", b"v", ()),
    Record(1, 1, 0, None, None, ()),
    Record(2, -1, 0, b"", b"", (("h", b"1"), ("h", b"2"), ("h", None), ("", b""))),
    Record(3, 5, 0, EVERY_BYTE, EVERY_BYTE, (("ü", EVERY_BYTE),)),
    Record(4, -1, 0, b"\xff", b"line\nbreak\0", ()),
    Record(5, 1, 0, b"tombstone", None, ()),
    Record(6, 7, 0, None, b"only a value", (("again", b""), ("again", None))),
]

silent = logging.getLogger("tests.batch_producer.silent")
silent.addHandler(logging.NullHandler())
silent.propagate = False

Made = Callable[..., BatchProducer]


@pytest.fixture(params=[KernelProducer, ConfluentProducer])
def kind(request: pytest.FixtureRequest) -> Any:
    if request.param is KernelProducer and not KERNEL:
        pytest.skip(KERNEL.why_not)
    return request.param


@pytest.fixture
def made(kind: Any, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> Made:
    if kind is ConfluentProducer:
        monkeypatch.setattr("blockgz.kafka.batch_producer.kernel_takes", lambda _: False)

    def producer(topic: str, **settings: Any) -> BatchProducer:
        cluster.create_topic(topic)
        plain = {name.replace("_", "."): value for name, value in settings.items()}
        plain = {"bootstrap.servers": cluster.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1, **plain}
        plain["logger"] = silent
        found = batch_producer(plain, topic)
        assert type(found) is kind
        return found

    return producer


def never_full(size: int) -> None:
    raise AssertionError(f"no room for {size} bytes")


def held(cluster: MockCluster, topic: str, partition: int = 0) -> list[tuple[object, ...]]:
    properties = {"bootstrap.servers": cluster.bootstrap_servers}
    bounds = KafkaAdmin(properties).watermarks(topic, [partition])[partition]
    with closing(KafkaReader(properties)) as reader:
        batches = list(reader.read(topic, partition, *bounds))
    return [contents(record) for batch in batches for record in iter_records(batch)]


def contents(record: Record) -> tuple[object, ...]:
    return record.timestamp, record.key, record.value, tuple(record.headers)


def test_records_arrive_as_they_are(made: Made, kind: Any, cluster: MockCluster) -> None:
    topic = f"odd-{kind.__name__}"
    producer = made(topic)
    batch = batch_from_records(ODDITIES)
    producer.produce(0, batch, never_full)
    producer.produce(2, batch.slice(2, 3), never_full)
    producer.produce(0, batch.slice(5), never_full)
    producer.produce(0, batch.slice(7), never_full)
    assert producer.flush(SECONDS) == len(producer) == 0
    assert held(cluster, topic) == [contents(each) for each in [*ODDITIES, *ODDITIES[5:]]]
    assert held(cluster, topic, 2) == [contents(each) for each in ODDITIES[2:5]]
    assert {number: told.tolist() for number, told in producer.delivered().items()} == {
        0: list(range(9)),
        2: list(range(3)),
    }
    assert producer.delivered() == {}
    assert producer.failure is None


def test_slices_of_any_batch_arrive_as_they_are(made: Made, kind: Any, cluster: MockCluster) -> None:
    chance = seeded_random()
    topic = f"random-{kind.__name__}"
    producer = made(topic)
    sent: list[Record] = []
    for _ in range(30):
        some = [random_record(chance, offset) for offset in range(chance.randrange(1, 60))]
        batch = batch_from_records(some)
        if chance.random() < 0.3:
            keep = [chance.random() < 0.7 for _ in some]
            batch, some = batch.filter(pa.array(keep)), [each for each, kept in zip(some, keep, strict=True) if kept]
        for _ in range(2):
            start = chance.randrange(len(some) + 1)
            length = chance.randrange(len(some) + 1 - start)
            batch, some = batch.slice(start, length), some[start : start + length]
            producer.produce(1, batch, never_full)
            sent += some
    producer.flush(SECONDS)
    assert held(cluster, topic, 1) == [contents(each) for each in sent]


def random_record(chance: random.Random, offset: int) -> Record:
    def content() -> bytes | None:
        return chance.choice([None, b"", chance.randbytes(chance.randrange(40))])

    headers = [(chance.choice(["", "a", "é", "longer"]), content()) for _ in range(chance.choice([0, 0, 1, 3]))]
    return Record(offset, chance.choice([-1, 1, 1_760_000_000_000]), 0, content(), content(), tuple(headers))


def test_other_types_of_bytes_are_taken(made: Made, kind: Any, cluster: MockCluster) -> None:
    topic = f"large-{kind.__name__}"
    producer = made(topic)
    batch = batch_from_records(ODDITIES)
    value = SCHEMA.get_field_index("value")
    batch = batch.set_column(value, "value", batch.column("value").cast(pa.large_binary()))
    producer.produce(0, batch, never_full)
    producer.flush(SECONDS)
    assert held(cluster, topic) == [contents(each) for each in ODDITIES]


def test_a_large_record_arrives(made: Made, kind: Any, cluster: MockCluster) -> None:
    value = random.Random(1).randbytes(1 << 20) * 20
    topic = f"huge-{kind.__name__}"
    producer = made(topic, message_max_bytes=1_000_000_000)
    producer.produce(0, batch_from_records([Record(0, 1, 0, b"k", value, ())]), never_full)
    assert producer.flush(SECONDS) == 0
    assert producer.failure is None
    assert producer.delivered()[0].tolist() == [0]


def test_a_full_queue_is_told_of_and_waited_for(made: Made, kind: Any, cluster: MockCluster) -> None:
    topic = f"full-{kind.__name__}"
    producer = made(topic, queue_buffering_max_messages=20)
    some = records(range(300), value_bytes=10)
    told: list[int] = []

    def full(size: int) -> None:
        told.append(size)
        assert 0 < len(producer) <= 2 * 20, "librdkafka counts a record once more while its report waits"
        producer.poll(SECONDS)

    producer.produce(0, batch_from_records(some), full)
    producer.flush(SECONDS)
    assert told
    assert set(told) <= {len(each.key or b"") + len(each.value or b"") for each in some}
    assert held(cluster, topic) == [contents(each) for each in some]


def test_what_is_raised_where_there_is_no_room_ends_it(made: Made) -> None:
    producer = made("no-room", queue_buffering_max_messages=20, linger_ms=60_000)
    with pytest.raises(AssertionError, match="no room for"):
        producer.produce(0, batch_from_records(records(range(300))), never_full)
    assert len(producer) == 20
    producer.purge(in_flight=True)
    while len(producer):
        producer.poll(SECONDS)
    assert producer.failure is not None
    partition, error = producer.failure
    assert (partition, error.code()) == (0, KafkaError._PURGE_QUEUE)
    assert producer.delivered() == {}


def test_a_partition_that_is_not_there_is_reported(made: Made) -> None:
    producer = made("seventh")
    producer.produce(0, batch_from_records(ODDITIES), never_full)
    try:
        producer.produce(7, batch_from_records(ODDITIES), never_full)
    except KafkaException as error:
        found = error.args[0]
    else:
        producer.flush(SECONDS)
        assert producer.failure is not None
        partition, found = producer.failure
        assert partition == 7
    assert found.code() == KafkaError._UNKNOWN_PARTITION
    assert found.str().endswith("Local: Unknown partition")
    producer.flush(SECONDS)
    assert len(producer.delivered()[0]) == 7


def test_what_the_broker_refuses_is_reported(made: Made, cluster: MockCluster) -> None:
    topic_authorization_failed, produce_request = 29, 0
    producer = made("denied")
    cluster.refuse(produce_request, topic_authorization_failed, 5)
    producer.produce(3, batch_from_records(ODDITIES), never_full)
    producer.flush(SECONDS)
    cluster.refuse_no_more(produce_request)
    assert producer.failure is not None
    partition, error = producer.failure
    assert (partition, error.code()) == (3, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert error.str() == "Broker: Topic authorization failed"
    assert producer.delivered() == {}


def test_connections_that_fail_and_log_lines_are_reported(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    errors: list[KafkaError] = []
    logger = logging.getLogger("tests.batch_producer")
    producer = kind("t", {"bootstrap.servers": "127.0.0.1:1", "error_cb": errors.append, "logger": logger})
    deadline = time.monotonic() + SECONDS
    with caplog.at_level(logging.DEBUG, logger.name):
        while time.monotonic() < deadline and not (caplog.records and errors):
            producer.poll(0.1)
    assert errors[0].code() == KafkaError._TRANSPORT
    assert "Connect to ipv4#127.0.0.1:1 failed" in errors[0].str()
    assert not errors[0].fatal()
    assert caplog.messages[0].startswith("FAIL [rdkafka#producer-")
    assert caplog.records[0].levelno == logging.ERROR


def test_settings_that_are_refused_are_named(made: Made) -> None:
    with pytest.raises(UsageError) as unknown:
        made("t", no_such_thing="1")
    assert unknown.value.why == 'No such configuration property: "no.such.thing"'
    with pytest.raises(UsageError) as contradicting:
        made("t", transactional_id="x", acks="1")
    assert "`acks` must be set to `all`" in contradicting.value.why


@pytest.mark.parametrize(
    "setting",
    [
        {"stats_cb": lambda _: None},
        {"delivery.report.only.error": True},
        {"sasl.oauthbearer.metadata.authentication.type": "none"},
    ],
)
def test_some_settings_need_python(cluster: MockCluster, setting: dict[str, Any]) -> None:
    settings = {"bootstrap.servers": cluster.bootstrap_servers, **setting}
    assert type(batch_producer(settings, "t")) is ConfluentProducer


def group_metadata(cluster: MockCluster) -> bytes:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "logger": silent})
    try:
        return bytes(consumer.consumer_group_metadata())  # type: ignore[call-overload]
    finally:
        consumer.close()


def test_transactions_take_their_steps(made: Made, kind: Any, cluster: MockCluster) -> None:
    topic = f"transactions-{kind.__name__}"
    producer = made(topic, transactional_id=topic)
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce(0, batch_from_records(ODDITIES), never_full)
    places = [TopicPartition(topic, 0, 7, "position"), TopicPartition(topic, 1, 0)]
    producer.send_offsets_to_transaction(places, group_metadata(cluster), SECONDS)
    producer.commit_transaction(SECONDS)
    assert len(producer.delivered()[0]) == 7
    producer.begin_transaction()
    producer.produce(0, batch_from_records(ODDITIES), never_full)
    producer.abort_transaction(SECONDS)
    producer.begin_transaction()


def test_steps_out_of_turn_are_refused(made: Made, cluster: MockCluster) -> None:
    producer = made("turns", transactional_id="turns")
    refusals: list[tuple[object, ...]] = []
    steps: list[Callable[[], None]] = [
        producer.begin_transaction,
        lambda: producer.commit_transaction(SECONDS),
        lambda: producer.send_offsets_to_transaction([TopicPartition("t", 0, 1)], group_metadata(cluster), SECONDS),
        lambda: producer.send_offsets_to_transaction([TopicPartition("t", 0, 1)], b"nonsense", SECONDS),
    ]
    for step in steps:
        with pytest.raises(KafkaException) as caught:
            step()
        error = caught.value.args[0]
        refusals.append((error.code(), error.retriable(), error.fatal(), error.txn_requires_abort()))
        assert error.str()
    assert refusals[:3] == [(KafkaError._STATE, False, False, False)] * 3
    assert refusals[3] == (KafkaError._BAD_MSG, False, False, False)


def test_a_broker_that_is_away_can_be_asked_again(kind: Any) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "transactional.id": "x", "logger": silent}
    producer = kind("t", settings)
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(0.05)
    error = caught.value.args[0]
    assert (error.code(), error.retriable(), error.fatal()) == (KafkaError._TIMED_OUT, True, False)


def test_acknowledgements_without_an_offset_are_told_as_such(made: Made, cluster: MockCluster) -> None:
    producer = made("without-offsets", enable_idempotence=False, acks="0")
    producer.produce(0, batch_from_records(ODDITIES), never_full)
    producer.flush(SECONDS)
    told = producer.delivered()[0].tolist()
    assert len(told) == 7
    assert told[0] == NO_OFFSET


@pytest.mark.slow
def test_a_producer_that_nobody_keeps_goes_with_what_it_holds(kind: Any, cluster: MockCluster) -> None:
    for _ in range(5):
        producer = kind("gone", {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 60_000, "logger": silent})
        producer.produce(0, batch_from_records(ODDITIES), never_full)
        assert len(producer) == 7
        del producer
        gc.collect()
