"""What the parts can do without us: the limits that our figures are held against.

`python -m benchmarks.bare PART …` prints the cost of one part as JSON. Each is its own process and times the work
alone: its start-up and what it loads beforehand do not count, where ours do.
"""

import argparse
import contextlib
import hashlib
import itertools
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
import zstandard
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from isal import igzip, isal_zlib

from benchmarks.data import KEYS, PRODUCER, START_MS, STEP_MS, TopicShape, send, values
from benchmarks.measure import Cost

CONSUMER = {
    "group.id": "benchmark",
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 10,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 65536,
    "fetch.message.max.bytes": 8 * 1024**2,
}
THREADS = 2
_DISTINCT_VALUES = 20_000


def consume(bootstrap: str, topic: str, partitions: int) -> None:
    """Every record of the topic as a message object, looked at by nobody."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **CONSUMER})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    open_partitions = partitions
    while open_partitions:
        for message in consumer.consume(1000, 0.1):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                open_partitions -= 1
    consumer.close()


def produce(bootstrap: str, topic: str, shape: TopicShape, made: Sequence[bytes]) -> None:
    """Records of that shape with key and timestamp, idempotent, acks=all; the values lie ready."""
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    keys = [b"key-%d" % number for number in range(KEYS)]
    for number, value in zip(range(shape.records), itertools.cycle(made)):
        send(producer, topic, value, keys[number % KEYS], number % shape.partitions, START_MS + number * STEP_MS)
    producer.flush()


def compressor(codec: str, level: int) -> Callable[[bytes], bytes]:
    """What makes one block; releases the GIL."""
    if codec == "zstd":
        # A compressor is one thread's.
        own = threading.local()

        def compress(raw: bytes) -> bytes:
            if not hasattr(own, "compressor"):
                own.compressor = zstandard.ZstdCompressor(level, write_checksum=True)
            return bytes(own.compressor.compress(raw))

        return compress
    return lambda raw: igzip.compress(raw, level, mtime=0)


def compress_all(raw: Iterable[bytes], codec: str, level: int) -> None:
    """Compress blocks on two threads with nothing around it."""
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in pool.map(compressor(codec, level), raw):
            pass


def inflater(codec: str) -> Callable[[bytes], bytes]:
    if codec == "zstd":
        return lambda block: zstandard.ZstdDecompressor().decompress(block)
    return lambda block: isal_zlib.decompress(block, 31)


def stored_chunks(folder: Path) -> Iterator[tuple[Path, list[tuple[int, int]], str]]:
    """The data files of an archive with the byte ranges of their blocks and their codec, by the indexes alone."""
    for path in sorted(folder.rglob("*[0-9].index.json")):
        index = orjson.loads(path.read_bytes())
        ranges = [(block["byte_offset"], block["byte_offset"] + block["byte_length"]) for block in index["chunks"]]
        yield path.with_name(index["data"]["name"]), ranges, index["codec"]


def raw_blocks(folder: Path) -> list[bytes]:
    return [
        inflater(codec)(data[start:end])
        for path, ranges, codec in stored_chunks(folder)
        for data in [path.read_bytes()]
        for start, end in ranges
    ]


def inflate_and_hash(folder: Path) -> None:
    """Read the files of an archive, sha256 of their bytes as stored, and inflate every block; on two threads."""

    def one(chunk: tuple[Path, list[tuple[int, int]], str]) -> None:
        path, ranges, codec = chunk
        data = path.read_bytes()
        hashlib.sha256(data).digest()
        view = memoryview(data)
        read = inflater(codec)
        for start, end in ranges:
            read(view[start:end])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(one, stored_chunks(folder)))


def write_files(folder: Path, bodies: Sequence[bytes]) -> None:
    """The files of an archive written again and synced: what the disk takes."""
    for number, body in enumerate(bodies):
        with (folder / f"{number}").open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())


def both(bootstrap: str, shape: TopicShape, raw: Sequence[bytes], codec: str, level: int) -> None:
    """Consume the topic while the same bytes are compressed on two threads, neither waiting for the other.

    This is the limit of an archiver: "bare consume, and deflate on the cores left". What is left is not computed: the
    two run at once on the cores that there are, the broker beside them, and the slower one ends the clock. An archiver
    that cost nothing but fetching and compressing, with both fully overlapped, would take exactly this.
    """
    fetching = threading.Thread(target=consume, args=(bootstrap, shape.name, shape.partitions))
    fetching.start()
    compress_all(raw, codec, level)
    fetching.join()


@contextlib.contextmanager
def printed_cost() -> Iterator[None]:
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    yield
    seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    sys.stdout.buffer.write(orjson.dumps(asdict(Cost(seconds, cpu, after.ru_maxrss * 1024))))


def main(argv: Sequence[str] | None = None) -> None:
    """Load what the part needs, then measure it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bare")
    parts = "consume produce deflate verify write both"
    parser.add_argument("part", choices=parts.split())
    parser.add_argument("--bootstrap")
    parser.add_argument("--shape", type=lambda body: TopicShape(**orjson.loads(body)))
    parser.add_argument("--topic", help="where to produce")
    parser.add_argument("--archive", type=Path)
    parser.add_argument("--codec", default="gzip")
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args(argv)
    measured(given)


def measured(given: Any) -> None:
    """One part, its input loaded before the clock starts."""
    match given.part:
        case "consume":
            with printed_cost():
                consume(given.bootstrap, given.shape.name, given.shape.partitions)
        case "produce":
            made = list(itertools.islice(values(given.shape), _DISTINCT_VALUES))
            with printed_cost():
                produce(given.bootstrap, given.topic, given.shape, made)
        case "deflate":
            raw = raw_blocks(given.archive)
            with printed_cost():
                compress_all(raw, given.codec, given.level)
        case "verify":
            with printed_cost():
                inflate_and_hash(given.archive)
        case "write":
            bodies = [path.read_bytes() for path, _, _ in stored_chunks(given.archive)]
            with printed_cost():
                write_files(given.folder, bodies)
        case "both":
            raw = raw_blocks(given.archive)
            with printed_cost():
                both(given.bootstrap, given.shape, raw, given.codec, given.level)


if __name__ == "__main__":
    main()
