"""What is measured on: records like those of an event log, and real text; the same on every run."""

import functools
import itertools
import logging
import random
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from confluent_kafka import Producer

from index_format.records import Record, batch_from_records
from system_test.support.topics import create_topic

SEED = 7
START_MS = 1_760_000_000_000
STEP_MS = 7
"""Milliseconds between records of a topic."""
KEYS = 9973
LARGE_RECORDS = {"max.message.bytes": str(32 << 20)}
"""The setting of every topic."""
_WORDS = 3_000_000

_silent = logging.getLogger("benchmarks.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


@dataclass(frozen=True)
class TopicShape:
    """What a topic holds. `corpus` is `generated` or `text`, the sources of Python's standard library."""

    records: int
    value_bytes: int
    partitions: int = 4
    compression: str = "lz4"
    keys: bool = True
    corpus: str = "generated"
    batch_records: int = 0
    """Records in a batch at most; 0 for as many as fit."""

    @property
    def name(self) -> str:
        """The topic's name."""
        plain = "" if self.keys else "-plain"
        plain += f"-{self.batch_records}b" if self.batch_records else ""
        kind = f"{self.corpus}-{self.value_bytes}B-{self.partitions}p-{self.compression}{plain}"
        return f"{kind}-{self.records}"

    @property
    def raw_bytes(self) -> int:
        return self.records * self.value_bytes


def values(shape: TopicShape) -> Iterator[bytes]:
    """The values of a topic in order, each of exactly `value_bytes`."""
    made = generated(shape.value_bytes) if shape.corpus == "generated" else text(shape.value_bytes)
    return itertools.islice(made, shape.records)


def generated(size: int) -> Iterator[bytes]:
    """JSON objects without end, compressible about 2.5 to 1."""
    chance = random.Random(SEED)
    words = _words()
    for number in itertools.count():
        head = b'{"id":%d,"body":"' % number
        room = size - len(head) - 2
        start = chance.randrange(len(words) - room)
        yield head + words[start : start + room] + b'"}'


def batches(count: int, size: int, value_bytes: int, repeats: int = 1) -> Iterator[pa.RecordBatch]:
    """`count` batches of `size` records with keys such as an order's number, each of them `repeats` times in a row."""
    made = generated(value_bytes)
    for start in range(0, count * size, size):
        offsets = range(start, start + size)
        keys = [b"order-%09d" % (offset // repeats) for offset in offsets]
        times = [START_MS + offset * STEP_MS for offset in offsets]
        rows = zip(offsets, times, itertools.repeat(0), keys, made, itertools.repeat(None), strict=False)
        yield batch_from_records([Record(*row) for row in rows])


@functools.cache
def _words() -> bytes:
    """Words by chance: so much that what is repeated lies further back than any compressor looks."""
    chance = random.Random(SEED)
    known = [f"{chance.getrandbits(28):07x}"[: chance.randint(3, 7)] for _ in range(4000)]
    return " ".join(chance.choices(known, k=_WORDS)).encode()


def text(size: int) -> Iterator[bytes]:
    """The sources of Python's standard library without line ends, cut into pieces, over and over."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(path for path in folder.rglob("*.py") if "site-packages" not in path.parts)
    while True:
        left = bytearray()
        for path in files:
            left += path.read_bytes().replace(b"\n", b" ").replace(b"\r", b" ")
            whole = len(left) // size * size
            yield from (bytes(left[start : start + size]) for start in range(0, whole, size))
            del left[:whole]


def fill(bootstrap: str, shape: TopicShape) -> None:
    """Make the topic and produce its records round robin, with keys (or none) and timestamps."""
    create_topic(bootstrap, shape.name, shape.partitions, LARGE_RECORDS)
    produce_all(bootstrap, shape)


def produce_all(bootstrap: str, shape: TopicShape) -> None:
    """The records of a topic that is there."""
    settings = {**PRODUCER, "compression.type": shape.compression}
    if shape.batch_records:  # each partition's batch waits until it is full
        settings |= {"batch.num.messages": shape.batch_records, "linger.ms": 1000}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for number, value in enumerate(values(shape)):
        key = b"key-%d" % (number % KEYS) if shape.keys else None
        send(producer, shape.name, value, key, number % shape.partitions, START_MS + number * STEP_MS)
    left = producer.flush(120)
    if left:
        raise SystemExit(f"{left} records of {shape.name} could not be produced")


def send(producer: Producer, topic: str, value: bytes, key: bytes | None, partition: int, timestamp: int) -> None:
    """Produce one record, waiting where the queue is full."""
    while True:
        try:
            producer.produce(topic, value, key, partition, None, None, timestamp)
            return
        except BufferError:
            producer.poll(0.1)


PRODUCER = {
    "logger": _silent,
    "enable.idempotence": True,
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "batch.num.messages": 100_000,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 100_000,
    "queue.buffering.max.kbytes": 64 * 1024,
    "message.max.bytes": 32 << 20,
}
