"""Producers and consumers at work, in a process that is killed, and what they note of it.

    python -m system_test.restore_story.traffic BOOTSTRAP_SERVER FILE

What is asked of the cluster is noted before, and again with the answer.
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata

from system_test.faults.fingerprint import fingerprint
from system_test.restore_story.notes import Moved, NoteBook, Stamped, Written
from system_test.support.consumer_groups import consuming
from system_test.support.topics import NewRecord, Record

BUSY = {"compacted": 2, "stamped": 1, "one": 1, "fifty": 50, "unicode": 3, "skewed": 1}
"""Topics and their partitions that plain producers write to; others write to DEALS in transactions."""
DEALS = {"deals": 2}
FOLLOWED = {"one": 1, "fifty": 50, "stamped": 1}
PAUSE_SECONDS = 0.02
AT_ONCE = 5


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def mark(record: NewRecord | Record) -> str:
    """A fingerprint of key, value and headers."""
    return fingerprint(record.key, record.value, record.headers, 0)


def stamped(record: Record) -> Stamped:
    """A record as it is compared."""
    return Stamped(mark(record), record.timestamp)


def note_log(book: NoteBook, topic: str, partition: int, records: Iterable[Record]) -> None:
    """Notes records that a foreign client read: what compaction left, and what the broker stamped."""
    book.add(*(Written(topic, partition, each.offset, each.timestamp, mark(each), "committed") for each in records))


class Producing:
    """A producer of small records for partitions in turn; of its transactions every third is aborted."""

    def __init__(
        self, bootstrap: str, book: NoteBook, partitions: Mapping[str, int], transactional_id: str | None = None
    ) -> None:
        self._book = book
        self._places = itertools.cycle((topic, each) for topic, count in partitions.items() for each in range(count))
        self._numbers = itertools.count()
        self._transactions = itertools.count()
        self._name = (transactional_id or "traffic").encode()
        settings = {} if transactional_id is None else {"transactional_id": transactional_id}
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap, acks="all", linger_ms=5, metrics_enabled=False, **settings
        )
        if transactional_id is not None:
            self._producer.init_transactions()

    def records(self) -> None:
        self._note(self._sent(), "committed")

    def transaction(self, seconds: float = 0) -> None:
        """A few records in a transaction that is open for so long."""
        self._producer.begin_transaction()
        sent = self._sent()
        time.sleep(seconds)
        if next(self._transactions) % 3 == 2:
            self._producer.abort_transaction()
            self._note(sent, "aborted")
        else:
            self._producer.commit_transaction()
            self._note(sent, "committed")

    def close(self) -> None:
        self._producer.close(10)

    def _sent(self) -> list[tuple[Written, Any]]:
        return [self._send(*next(self._places)) for _ in range(AT_ONCE)]

    def _send(self, topic: str, partition: int) -> tuple[Written, Any]:
        name = b"%s %d" % (self._name, next(self._numbers))
        record = NewRecord(name, name, partition, (("name", name),), now_ms())
        note = Written(topic, partition, None, record.timestamp or 0, mark(record), "unknown")
        self._book.add(note)
        future = self._producer.send(
            topic,
            value=record.value,
            key=record.key,
            headers=list(record.headers),
            partition=partition,
            timestamp_ms=record.timestamp,
        )
        return note, future

    def _note(self, sent: Iterable[tuple[Written, Any]], fate: str) -> None:
        for note, future in sent:
            answer = future.get(60)
            self._book.add(note._replace(offset=answer.offset, timestamp=answer.timestamp, fate=fate))


class Following:
    """A consumer that reads topics from their start, and commits what it has read."""

    def __init__(self, bootstrap: str, book: NoteBook, group: str, partitions: Mapping[str, int]) -> None:
        self._book, self._group = book, group
        self._places = [TopicPartition(topic, each) for topic, count in partitions.items() for each in range(count)]
        self._committed: dict[TopicPartition, int] = {}
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=20,
            metrics_enabled=False,
        )
        self._consumer.assign(self._places)

    def follow(self) -> None:
        self._consumer.poll(timeout_ms=50, max_records=500)
        reached = {place: self._consumer.position(place) for place in self._places}
        changed = {place: at for place, at in reached.items() if self._committed.get(place) != at}
        if changed:
            commit(self._consumer, self._book, self._group, changed)
            self._committed |= changed


def commit(consumer: KafkaConsumer, book: NoteBook, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    began = now_ms()
    notes = [Moved(group, place.topic, place.partition, at, began, None) for place, at in offsets.items()]
    book.add(*notes)
    consumer.commit({place: OffsetAndMetadata(at, "noted", -1) for place, at in offsets.items()})
    done = now_ms()
    book.add(*(note._replace(done=done) for note in notes))


def stand(bootstrap: str, book: NoteBook, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """A group whose consumer commits these offsets, and leaves."""
    with consuming(bootstrap, group) as consumer:
        consumer.assign(list(offsets))
        commit(consumer, book, group, offsets)


def main(bootstrap: str, file: str) -> None:
    book = NoteBook(Path(file))

    def repeated(step: Callable[[], None]) -> None:
        while True:
            step()
            time.sleep(PAUSE_SECONDS)

    steps = (
        Producing(bootstrap, book, BUSY).records,
        Producing(bootstrap, book, DEALS, "deals").transaction,
        Following(bootstrap, book, "following", FOLLOWED).follow,
    )
    threads = [threading.Thread(target=repeated, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
