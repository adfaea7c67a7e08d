"""A verifiable producer: a program that writes down what it sends, what was acknowledged, and how transactions ended.

    python -m system_test.faults.kafka_producer plain|transactional --bootstrap B --ledger FILE --rate N --seed S

It reads commands from stdin, one JSON array a line, and answers each with the command's name on stdout:
`["open", TOPIC, TOPIC_ID, PARTITIONS, KEYS]` (KEYS: so many different keys; 0: random ones and PEOPLE others),
`["pause", TOPIC]` returns once all that was sent is acknowledged, `["quit"]` the same for all topics.

The ledger holds JSON arrays: `["s", topic id, partition, sequence, transaction, fingerprint, key hash, timestamp]`
before sending,
`["a", topic id, partition, sequence, offset]` when acknowledged (null: the broker had it already and tells no offset),
`["f", sequence, error]` when the client gave up,
`["e", transaction, "committed"|"aborted"|"unknown"]` at a transaction's end.
"""

import argparse
import json
import queue
import random
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from system_test.faults.fingerprint import fingerprint, key_hash

PEOPLE = 24
"""So many keys come again and again beside random ones."""
_ROUND_SECONDS = 0.05
_FLUSH_SECONDS = 60.0


@dataclass
class OpenTopic:
    """A topic that is being produced to."""

    name: str
    topic_id: str
    partitions: int
    keys: int
    producer: Producer | None


class Ledger:
    """What was sent, and what became of it."""

    def __init__(self, path: Path, seed: str) -> None:
        self._file = path.open("a")
        self._name = path.stem
        self._rng = random.Random(f"producer:{seed}:{self._name}")
        self.sequence = 0

    def note(self, *entry: object) -> None:
        """Add a line; `flush` makes it durable against the end of this process."""
        self._file.write(json.dumps(entry, separators=(",", ":")) + "\n")

    def flush(self) -> None:
        """Write through to the operating system."""
        self._file.flush()

    def send(self, producer: Producer, topic: OpenTopic, partition: int, transaction: str | None) -> None:
        self.sequence += 1
        sequence, rng = self.sequence, self._rng
        key = self._key(topic.keys)
        value = f"{self._name}:{sequence}:".encode() + self._payload()
        headers: list[tuple[str, str | bytes | None]] = [
            (f"h{n}", rng.choice([b"", b"text", rng.randbytes(6)])) for n in range(rng.choice([0, 0, 1, 3]))
        ]
        timestamp = int(time.time() * 1000) - rng.randrange(0, 2000)
        if rng.random() < 0.04:  # a clock that is ahead, or a record that comes late
            timestamp += rng.choice([1, -200]) * rng.randrange(18_000)
        mark = fingerprint(key, value, headers, timestamp)
        self.note("s", topic.topic_id, partition, sequence, transaction, mark, key_hash(key), timestamp)

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                self.note("a", topic.topic_id, partition, sequence, message.offset())
            else:
                self.note("f", sequence, error.str())

        deadline = time.monotonic() + _FLUSH_SECONDS
        while True:
            try:
                producer.produce(
                    topic.name, value, key, partition, on_delivery=delivered, timestamp=timestamp, headers=headers
                )
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                # A partition that was just added, and that this client's metadata does not have yet.
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION or time.monotonic() > deadline:
                    raise
                producer.poll(0.1)
            else:
                return

    def _key(self, keys: int) -> bytes | None:
        if keys:
            return f"key-{self._rng.randrange(keys)}".encode()
        person = f"person-{self._rng.randrange(PEOPLE)}".encode()
        return self._rng.choice([None, b"", person, f"k{self._rng.random()}".encode(), self._rng.randbytes(8)])

    def _payload(self) -> bytes:
        length = self._rng.randrange(0, 300)
        if self._rng.random() < 0.2:
            return self._rng.randbytes(length)
        return ("päyload\t" * (length // 8)).encode() + self._rng.randbytes(length // 8).hex().encode()


class Commands:
    """Lines of stdin, read in a thread."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(json.loads(line))
        self._lines.put(["quit"])

    def take(self) -> list[Any] | None:
        """The next command, or None."""
        try:
            return self._lines.get_nowait()
        except queue.Empty:
            return None


def answer(command: str) -> None:
    """Tell the campaign that a command is carried out."""
    print(command, flush=True)


def _opened(command: list[Any], producer: Producer | None) -> OpenTopic:
    _, name, topic_id, partitions, keys = command
    return OpenTopic(name, topic_id, partitions, keys, producer)


def _client(bootstrap: str, **settings: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "message.timeout.ms": 300_000,
            "topic.metadata.refresh.interval.ms": 5_000,
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,
            **settings,
        }
    )


def _drain(producer: Producer) -> None:
    while producer.flush(1.0):
        pass


def produce_plain(bootstrap: str, ledger: Ledger, rate: float, rng: random.Random) -> None:
    """Spread records over the open topics until told to quit."""
    topics: dict[str, OpenTopic] = {}
    commands = Commands()
    while True:
        while (command := commands.take()) is not None:
            if command[0] == "open":
                topics[command[1]] = _opened(command, _client(bootstrap))
            elif command[0] == "pause":
                paused = topics.pop(command[1])
                assert paused.producer is not None
                _drain(paused.producer)
            else:
                for topic in topics.values():
                    assert topic.producer is not None
                    _drain(topic.producer)
            ledger.flush()
            answer(command[0])
            if command[0] == "quit":
                return
        spots = [(topic, partition) for topic in topics.values() for partition in range(topic.partitions)]
        if spots:
            for _ in range(max(1, round(rate * _ROUND_SECONDS * rng.uniform(0, 2)))):
                topic, partition = rng.choice(spots)
                assert topic.producer is not None
                ledger.send(topic.producer, topic, partition, None)
        for topic in topics.values():
            assert topic.producer is not None
            topic.producer.poll(0)
        ledger.flush()
        time.sleep(_ROUND_SECONDS)


class Transactor:
    """Transactions one after the other, some aborted, some long."""

    def __init__(self, bootstrap: str, ledger: Ledger, rng: random.Random) -> None:
        self._bootstrap = bootstrap
        self._ledger = ledger
        self._rng = rng
        self._number = 0
        self._producer: Producer | None = None

    def transaction(self, topics: list[OpenTopic], records: int) -> None:
        self._number += 1
        name = f"{self._number}"
        try:
            producer = self._ready()
            producer.begin_transaction()
            for _ in range(records):
                topic = self._rng.choice(topics)
                self._ledger.send(producer, topic, self._rng.randrange(topic.partitions), name)
                producer.poll(0)
            if self._rng.random() < 0.1:
                producer.flush(5.0)
                time.sleep(self._rng.uniform(0.2, 1.5))
        except KafkaException as error:
            self._give_up(name, error)
            return
        self._end(producer, name, committed=self._rng.random() < 0.7)

    def _end(self, producer: Producer, name: str, *, committed: bool) -> None:
        while True:
            try:
                if committed:
                    producer.commit_transaction(_FLUSH_SECONDS)
                else:
                    producer.abort_transaction(_FLUSH_SECONDS)
            except KafkaException as error:
                reason = error.args[0]
                if reason.txn_requires_abort():
                    committed = False
                elif not reason.retriable():
                    self._give_up(name, error)
                    return
            else:
                self._ledger.note("e", name, "committed" if committed else "aborted")
                return

    def _ready(self) -> Producer:
        if self._producer is None:
            self._producer = _client(
                self._bootstrap,
                **{
                    "transactional.id": "faults-transactional",
                    "transaction.timeout.ms": 20_000,
                    "message.timeout.ms": 20_000,
                },
            )
            while True:
                try:
                    self._producer.init_transactions(_FLUSH_SECONDS)
                except KafkaException as error:
                    if not error.args[0].retriable():
                        raise
                else:
                    break
        return self._producer

    def _give_up(self, name: str, error: KafkaException) -> None:
        """Whether it was committed is unknown; the next producer of the same id settles it in the log."""
        self._ledger.note("e", name, "unknown", error.args[0].str())
        self._producer = None


def produce_transactions(bootstrap: str, ledger: Ledger, rate: float, rng: random.Random) -> None:
    """Transactions over the open topics until told to quit."""
    topics: dict[str, OpenTopic] = {}
    commands, transactor = Commands(), Transactor(bootstrap, ledger, rng)
    while True:
        while (command := commands.take()) is not None:
            if command[0] == "open":
                topics[command[1]] = _opened(command, None)
            answer(command[0])
            if command[0] == "quit":
                ledger.flush()
                return
        records = rng.randrange(1, 40)
        if topics:
            transactor.transaction(list(topics.values()), records)
        ledger.flush()
        time.sleep(records / rate)


def main() -> None:
    """Produce until told to quit, or until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=["plain", "transactional"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seed", required=True)
    options = parser.parse_args()
    ledger = Ledger(options.ledger, options.seed)
    rng = random.Random(f"{options.mode}:{options.seed}")
    run = produce_plain if options.mode == "plain" else produce_transactions
    run(options.bootstrap, ledger, options.rate, rng)


if __name__ == "__main__":
    main()
