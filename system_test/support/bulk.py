"""Many small records at once, by librdkafka: what is read back is judged by the foreign client."""

import logging
import random

from confluent_kafka import Producer

FIRST_MS = 1_700_000_000_000
_SECONDS = 60

_silent = logging.getLogger("system_test.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def produce_bulk(bootstrap: str, topic: str, count: int, *, partitions: int, value_bytes: int, seed: int) -> None:
    """Produce `count` records, number n to partition n modulo `partitions`: values are n and random printable text."""
    randomly = random.Random(seed)
    text = randomly.randbytes(64 * 1024).hex()
    settings = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50, "logger": _silent}
    producer = Producer(settings)
    for number in range(count):
        head = f"{number:010d} "
        start = randomly.randrange(len(text) - value_bytes)
        value = head + text[start : start + value_bytes - len(head)]
        while True:
            try:
                producer.produce(topic, value.encode(), partition=number % partitions, timestamp=FIRST_MS + number)
                break
            except BufferError:
                producer.poll(0.1)
    left = producer.flush(_SECONDS)
    if left:
        raise AssertionError(f"{left} of {count} records were not delivered within {_SECONDS} s")
