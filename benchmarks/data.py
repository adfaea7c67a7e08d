"""What is measured on: generated records like those of an event log, the same on every run."""

import random
from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

SEED = 7
START_MS = 1_760_000_000_000


def values(count: int, size: int) -> Iterator[bytes]:
    """`count` JSON objects of about `size` bytes, compressible about 3 to 1."""
    chance = random.Random(SEED)
    words = [f"{chance.getrandbits(28):07x}"[: chance.randint(3, 7)] for _ in range(4000)]
    bodies = [" ".join(chance.choices(words, k=size // 4)).encode() for _ in range(1000)]
    for number in range(count):
        head = b'{"id":%d,"body":"' % number
        yield head + bodies[chance.randrange(1000)][: max(0, size - len(head) - 2)] + b'"}'


def create_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """A topic that keeps old timestamps: benchmarks and replays need retention off."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for answer in admin.create_topics([NewTopic(topic, partitions, config={"retention.ms": "-1"})]).values():
        answer.result()


def fill(bootstrap: str, topic: str, partitions: int, count: int, size: int) -> None:
    """Produce the records round robin with keys and timestamps."""
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    for number, value in enumerate(values(count, size)):
        send(producer, topic, value, b"key-%d" % (number % 9973), number % partitions, START_MS + number * 7)
    producer.flush()


def send(producer: Producer, topic: str, value: bytes, key: bytes, partition: int, timestamp: int) -> None:
    """Produce one record, waiting where the queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, partition, timestamp=timestamp)
            return
        except BufferError:
            producer.poll(0.1)


PRODUCER = {
    "enable.idempotence": True,
    "linger.ms": 50,
    "batch.size": 1_000_000,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 500_000,
}
