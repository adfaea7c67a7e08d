"""Load: a program that produces at a steady rate, or as fast as it can, until it is done or its stdin ends.

    python -m system_test.soak.kafka_load --bootstrap B --topics a:10,b:10 [--rate N] [--records N]

It prints how many records were acknowledged when it ends. Values are JSON of 500 bytes that compresses well.
"""

import argparse
import itertools
import json
import random
import sys
import threading
import time
from collections.abc import Iterator

from confluent_kafka import Producer

_SLICE_SECONDS = 0.05
_WORDS = ["order", "payment", "shipment", "invoice", "customer", "warehouse", "cancelled", "confirmed", "priority"]


def values(chance: random.Random) -> list[bytes]:
    """A few hundred different values, each of about 500 bytes."""
    return [json.dumps({"id": n, "text": " ".join(chance.choices(_WORDS, k=54))}).encode() for n in range(499)]


class Load:
    """Records spread evenly over all partitions."""

    def __init__(self, bootstrap: str, topics: dict[str, int]) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 200, "compression.type": "lz4", "log_level": 0}
        settings |= {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 500_000}
        self._producer = Producer(settings)
        self._partitions: Iterator[tuple[str, int]] = itertools.cycle(
            [(topic, partition) for topic, count in topics.items() for partition in range(count)]
        )
        self._values = itertools.cycle(values(random.Random(1)))
        self._failed = 0
        self.sent = 0

    def send(self, records: int) -> None:
        produce, partitions, contents = self._producer.produce, self._partitions, self._values
        for _ in range(records):
            topic, partition = next(partitions)
            while True:
                try:
                    produce(topic, next(contents), None, partition, self._delivered)
                except BufferError:
                    self._producer.poll(0.05)
                else:
                    break
        self.sent += records
        self._producer.poll(0)

    def finish(self) -> int:
        """Wait for the last acknowledgement; gives the number of records in the log."""
        while self._producer.flush(1.0):
            pass
        return self.sent - self._failed

    def _delivered(self, error: object, _: object) -> None:
        self._failed += error is not None


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topics", required=True)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--records", type=int)
    options = parser.parse_args()
    topics = {name: int(count) for name, count in (item.split(":") for item in options.topics.split(","))}
    load = Load(options.bootstrap, topics)
    if options.records is not None:
        load.send(options.records)
    else:
        ended = threading.Event()
        threading.Thread(target=_wait_for_end, args=[ended], daemon=True).start()
        started = time.monotonic()
        while not ended.wait(_SLICE_SECONDS):
            load.send(round((time.monotonic() - started) * options.rate) - load.sent)
    print(load.finish(), flush=True)


if __name__ == "__main__":
    main()
