"""The demo's records, its clusters and its producer."""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from zlib import crc32

import orjson
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from archiver.ingest.kafka_source import CLIENT_ID
from blockgz.errors import BrokerUnreachable
from blockgz.kafka import connection

SEED = 20_260
ITEMS = ("espresso beans", "paper filters", "Kännchen", "☕ mug", 'the "big" kettle', "grinder\nmanual", "scale")
CITIES = ("Lyon", "Zürich", "Kraków", "Porto", "東京", "São Paulo")
MEAN_SPACING_MS = 4000
# More than the spacing, so that timestamps go backwards now and then, as they do with many producers.
JITTER_MS = 9000


class DemoRecord(NamedTuple):
    """One record to produce; timestamp in ms."""

    partition: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]


def demo_records(count: int, num_partitions: int, start_ms: int) -> Iterator[DemoRecord]:
    """Yield `count` records from `start_ms` on; the same arguments give the same records."""
    chance = random.Random(SEED)
    for number in range(count):
        timestamp = start_ms + number * MEAN_SPACING_MS + chance.randrange(JITTER_MS)
        customer = chance.randrange(2000)
        key: bytes | None = b"customer-%d" % customer
        partition = crc32(b"customer-%d" % customer) % num_partitions
        headers: list[tuple[str, str | bytes | None]] = [("trace", b"%016x" % chance.getrandbits(64))]
        value: bytes | None = orjson.dumps(
            {
                "order": number,
                "customer": customer,
                "city": chance.choice(CITIES),
                "items": [
                    {"name": chance.choice(ITEMS), "pieces": chance.randint(1, 5), "cents": chance.randint(199, 89_900)}
                    for _ in range(chance.randint(1, 5))
                ],
                "note": " ".join(chance.choices(ITEMS, k=chance.randint(0, 6))),
                "paid": chance.random() < 0.9,
            }
        )
        match number % 100:
            case 7:
                value = None  # a tombstone
            case 23:
                key = None
            case 41:
                headers = [("hop", b"gateway"), ("hop", b"checkout"), ("hop", None), ("note", "größer".encode())]
            case 59:
                value = chance.randbytes(chance.randint(1, 700))
            case 73:
                value, headers = b"", []
        yield DemoRecord(partition, timestamp, key, value, headers)


# The number of partitions that the mock gives every topic.
PARTITIONS = 4
DELIVERY_SECONDS = 60.0


class DemoCluster(NamedTuple):
    """The topics of the demo, and how their cluster is reached."""

    properties: Mapping[str, str]
    """Settings of librdkafka that reach the cluster."""
    topic: str
    restored_topic: str
    spare_topic: str | None = None
    """An empty one for replays of the page, as the mock creates none for an administrator."""


@contextmanager
def mock_cluster() -> Iterator[DemoCluster]:
    """Provide a broker inside this process, for other processes as well. It creates topics on first use."""
    settings = connection.client_settings({"bootstrap.servers": "unused"}, CLIENT_ID) | {"test.mock.num.brokers": 1}
    client: Producer = connection.make_client(Producer, settings)
    broker = next(iter(client.list_topics(timeout=connection.BROKER_DEADLINE_SECONDS).brokers.values()))
    address = f"{broker.host}:{broker.port}"
    cluster = DemoCluster({"bootstrap.servers": address}, "orders", "orders-restored", spare := "orders-again")
    for topic in (cluster.topic, cluster.restored_topic, spare):
        client.list_topics(topic, timeout=connection.BROKER_DEADLINE_SECONDS)
    yield cluster


@contextmanager
def own_topics(properties: Mapping[str, str], token: str) -> Iterator[DemoCluster]:
    """Create two topics on a given cluster, and delete them at the end; `token` makes their names unique."""
    connection_errors = connection.ConnectionErrors()
    settings = {**connection.client_settings(properties, CLIENT_ID), "error_cb": connection_errors}
    admin: AdminClient = connection.make_client(AdminClient, settings)
    bootstrap = properties["bootstrap.servers"]
    cluster = DemoCluster(properties, f"blockgz-demo-{token}", f"blockgz-demo-{token}-restored")
    topics = [cluster.topic, cluster.restored_topic]
    config = {"retention.ms": "-1", "cleanup.policy": "delete"}
    connection.cluster_metadata(admin, connection_errors, bootstrap)
    created = admin.create_topics(
        [NewTopic(topic, PARTITIONS, config=config) for topic in topics],
        request_timeout=connection.BROKER_DEADLINE_SECONDS,
    )
    try:
        for topic, answer in created.items():
            _result(answer, f"topic {topic} cannot be created on {bootstrap}")
        yield cluster
    finally:
        deleted = admin.delete_topics(topics, request_timeout=connection.BROKER_DEADLINE_SECONDS)
        for answer in deleted.values():
            answer.exception()


def produce(properties: Mapping[str, str], topic: str, records: Iterable[DemoRecord]) -> dict[int, list[int]]:
    """Produce the records in order; return the offsets of each partition, in the order of its records."""
    settings = {"linger.ms": 20, "enable.idempotence": True, **connection.client_settings(properties, CLIENT_ID)}
    producer: Producer = connection.make_client(Producer, settings)
    offsets: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}
    failures: list[Any] = []

    def delivered(error: Any, message: Message) -> None:
        if error is not None:
            failures.append(error)
            return
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None:
            offsets[partition].append(offset)

    for record in records:
        producer.produce(
            topic,
            value=record.value,
            key=record.key,
            partition=record.partition,
            timestamp=record.timestamp,
            headers=record.headers,
            on_delivery=delivered,
        )
        producer.poll(0)
    if producer.flush(DELIVERY_SECONDS):
        raise BrokerUnreachable(f"the records of {topic} were not accepted within {DELIVERY_SECONDS:.0f} s")
    if failures:
        raise connection.kafka_failure(failures[0], f"the records of {topic} were not taken")
    return offsets


def _result(answer: Any, what: str) -> None:
    try:
        answer.result()
    except KafkaException as error:
        raise connection.kafka_failure(error.args[0], what) from error
