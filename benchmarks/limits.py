"""What the parts could do without us: the walls that our figures are held against."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from isal import igzip, isal_zlib

from .data import PRODUCER, START_MS, send, values

SETTINGS = {
    "group.id": "benchmark",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 10,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 65536,
    "fetch.message.max.bytes": 8 * 1024**2,
}


def bare_consume(bootstrap: str, topic: str, partitions: int) -> None:
    """Every record of the topic as a message object, looked at by nobody."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **SETTINGS})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    open_partitions = partitions
    while open_partitions:
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                open_partitions -= 1
    consumer.close()


def bare_produce(bootstrap: str, topic: str, partitions: int, count: int, size: int) -> None:
    """Produce generated records of the same shape, idempotent, acks=all."""
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    for number, value in enumerate(values(count, size)):
        send(producer, topic, value, b"key", number % partitions, START_MS)
    producer.flush()


def deflate(raw: list[bytes]) -> None:
    """Compress blocks on two threads with nothing around it."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda block: igzip.compress(block, 1, mtime=0), raw))


def inflate(folder: Path) -> list[bytes]:
    """Inflate all chunks of an archive on two threads with nothing around it; gives the blocks' bytes."""

    def blocks(index_path: Path) -> list[bytes]:
        index = orjson.loads(index_path.read_bytes())
        data = memoryview(index_path.with_name(index["data"]["name"]).read_bytes())
        ranges = [(block["byte_offset"], block["byte_offset"] + block["byte_length"]) for block in index["chunks"]]
        return [isal_zlib.decompress(data[start:end], 31) for start, end in ranges]

    with ThreadPoolExecutor(2) as pool:
        return [block for chunk in pool.map(blocks, sorted(folder.rglob("*[0-9].index.json"))) for block in chunk]
