"""Both producers of batches on a real broker: what they leave there is the same."""

import logging
import random
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as Place

from blockgz.kafka.batch_producer import BatchProducer, ConfluentProducer, KernelProducer, sizes_above
from blockgz.kafka.fetching import KERNEL
from index_format.records import Record, batch_from_records, iter_records
from replayer.errors import DeliveryFailed
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.replay.sinks.producer import TopicProducer, producer_settings, read_back
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import create_topic
from tests.support.archives import records

SECONDS = 30.0
silent = logging.getLogger("system_test.batch_producers")
silent.addHandler(logging.NullHandler())
silent.propagate = False


@pytest.fixture(params=[KernelProducer, ConfluentProducer])
def made(request: pytest.FixtureRequest, broker: KafkaBroker, topic_name: str) -> Callable[[], BatchProducer]:
    """A transactional producer; each call fences the one before it."""
    if request.param is KernelProducer and not KERNEL:
        pytest.skip(KERNEL.why_not)
    create_topic(broker.bootstrap, topic_name, 2, {"retention.ms": "-1"})
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic_name, "logger": silent, "linger.ms": 1}
    return partial(request.param, topic_name, settings)


def wait(_: int) -> None:
    raise AssertionError("the queue is large enough")


def group_metadata(kafka: str, group: str) -> bytes:
    with closing(Consumer({"bootstrap.servers": kafka, "group.id": group, "logger": silent})) as consumer:
        return bytes(consumer.consumer_group_metadata())  # type: ignore[call-overload]


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_what_is_committed_stands_and_what_is_aborted_does_not(
    made: Callable[[], BatchProducer], broker: KafkaBroker, topic_name: str, isolation: Any
) -> None:
    kafka = broker.bootstrap
    kept, dropped = records(range(300)), records(range(300, 500))
    producer = made()
    producer.init_transactions(SECONDS)
    for some, end in ((kept, producer.commit_transaction), (dropped, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(1, batch_from_records(some), wait)
        assert producer.flush(SECONDS) == 0
        end(SECONDS)
    assert producer.delivered()[1].tolist() == [*range(300), *range(301, 501)]
    assert producer.failure is None
    bounds = KafkaAdmin({"bootstrap.servers": kafka}).watermarks(topic_name, [1])[1]
    with closing(KafkaReader({"bootstrap.servers": kafka}, isolation)) as reader:
        found = [each.value for batch in reader.read(topic_name, 1, *bounds) for each in iter_records(batch)]
    wanted = kept if isolation == "read_committed" else [*kept, *dropped]
    assert found == [each.value for each in wanted]


def test_positions_are_stored_alike_and_read_back_whole(
    made: Callable[[], BatchProducer], broker: KafkaBroker, topic_name: str
) -> None:
    """The client that reads them back stops at a NUL: without one it reads on, and finds what lies there."""
    kafka = broker.bootstrap
    producer = made()
    producer.init_transactions(SECONDS)
    metadata = group_metadata(kafka, topic_name)
    with (
        closing(Consumer({"bootstrap.servers": kafka, "group.id": topic_name, "logger": silent})) as consumer,
        closing(KafkaConsumer(bootstrap_servers=kafka, group_id=topic_name, enable_auto_commit=False)) as foreign,
    ):
        for size in (5, 97, 98, 103, 1000):
            text = "p" * size
            producer.begin_transaction()
            producer.send_offsets_to_transaction([TopicPartition(topic_name, 1, size, text)], metadata, SECONDS)
            producer.commit_transaction(SECONDS)
            (place,) = consumer.committed([TopicPartition(topic_name, 1)], timeout=SECONDS)
            assert (place.offset, place.metadata) == (size, text)
            assert foreign.committed(Place(topic_name, 1), metadata=True).metadata == f"{text}\0"


def test_whoever_is_fenced_is_told(made: Callable[[], BatchProducer]) -> None:
    first = made()
    first.init_transactions(SECONDS)
    first.begin_transaction()
    first.produce(0, batch_from_records(records(range(3))), wait)
    made().init_transactions(SECONDS)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(SECONDS)
    error = caught.value.args[0]
    assert (error.code(), error.fatal(), error.retriable()) == (KafkaError._FENCED, True, False)
    with pytest.raises(KafkaException):
        first.produce(0, batch_from_records(records(range(3))), wait)


def test_records_are_as_large_as_a_broker_finds_them(broker: KafkaBroker, topic_name: str) -> None:
    """To the byte, if they are not compressed."""
    properties = {"bootstrap.servers": broker.bootstrap, "compression.type": "none"}
    headers = (("header", b"x" * 200), ("none", None))
    row = Record(7, 1_760_000_000_000, 0, b"key", b"v" * 20_000, headers)
    ((offset, size),) = sizes_above(batch_from_records([row]), 1, "none")
    assert offset == 7
    create_topic(broker.bootstrap, topic_name, 2, {"max.message.bytes": str(size)})
    larger = row._replace(value=row.value + b"v")
    assert list(sizes_above(batch_from_records([row, larger]), size, "none")) == [(7, size + 1)]
    assert not list(sizes_above(batch_from_records([row, larger]), size, "lz4"))
    look = partial(read_back, properties, topic_name)
    producer = TopicProducer(producer_settings(properties, size), topic_name, look)
    producer.send(0, batch_from_records([row]))
    producer.flush()
    producer.send(1, batch_from_records([larger]))
    with pytest.raises(DeliveryFailed):
        producer.flush()
    producer.stop()


@pytest.mark.parametrize("kind", [KernelProducer, ConfluentProducer])
@pytest.mark.parametrize("refused", [0, 1, 700])
def test_nothing_behind_a_refused_record_is_delivered(
    kind: Any, refused: int, broker: KafkaBroker, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each partition, wherever the record is that is larger than the topic allows."""
    if kind is KernelProducer and not KERNEL:
        pytest.skip(KERNEL.why_not)
    if kind is ConfluentProducer:
        monkeypatch.setattr("blockgz.kafka.batch_producer.kernel_takes", lambda _: False)
    create_topic(broker.bootstrap, topic_name, 3, {"max.message.bytes": "1000"})
    properties = {"bootstrap.servers": broker.bootstrap}
    noise = random.Random(refused)
    rows = [Record(n, 1, 0, str(n).encode(), noise.randbytes(3000 if n == refused else 100), ()) for n in range(1000)]
    producer = TopicProducer(
        producer_settings(properties, 1000), topic_name, partial(read_back, properties, topic_name)
    )
    with pytest.raises(DeliveryFailed) as caught:
        for start in range(0, len(rows), 250):
            for partition in range(3):
                producer.send(partition, batch_from_records(rows[start : start + 250]))
        producer.flush()
    producer.stop()
    assert "Message size too large" in caught.value.why
    assert caught.value.remedy == f"raise max.message.bytes of topic {topic_name}"
    bounds = KafkaAdmin(properties).watermarks(topic_name, range(3))
    acknowledged = {number: len(offsets) for number, offsets in producer.acknowledged().items()}
    assert acknowledged == {number: bound.end for number, bound in bounds.items() if bound.end}
    with closing(KafkaReader(properties, "read_uncommitted")) as reader:
        for partition, bound in bounds.items():
            found = [each.key for batch in reader.read(topic_name, partition, *bound) for each in iter_records(batch)]
            assert found == [str(number).encode() for number in range(min(refused, len(found)))]
