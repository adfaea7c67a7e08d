"""What recovery asks of logs: bounds that were asked for in a batch, and single records."""

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from archiver.commit.operations import LogBounds
from archiver.errors import UnreadableRecord
from archiver.ingest.kafka_source import Partition, name_of
from blockgz.errors import PartitionUnavailable, ShuttingDown
from blockgz.kafka.connection import BROKER_DEADLINE_SECONDS, DENIED, kafka_failure
from blockgz.kafka.messages import Message, Readable, batch_of
from blockgz.kafka.settings import make_client
from index_format.errors import BlockgzError
from index_format.records import Record, iter_records

SINGLE_READS = {
    "queued.min.messages": 10_000,
    "queued.max.messages.kbytes": 16 * 1024,
    "fetch.message.max.bytes": 64 * 1024,
    "fetch.wait.max.ms": 10,
}
"""One record of each log is wanted. librdkafka counts the queue of all partitions: one that is full of the first ones'
records, or a fetch that waits at the end of a log, would hold up the others."""
POLL_SECONDS = 0.01
"""So long a partition waits that is asked for while nothing comes of the others."""
SERVE_SECONDS, MOST_ERRORS = 10.0, 10_000
"""So often the client is polled while nothing is wanted, and for so much: while no broker answers, its lines and errors
would pile up, forty a second."""
NOTHING_THERE = (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET)


class _Wanted(NamedTuple):
    offset: int
    found: Future[Message | None]
    """The first message at or above that offset; None at the log's end."""


class RecordReader:
    """Reads single records of many logs with one consumer; a log that does not answer holds up only who asks for it.

    One thread makes all calls of the consumer: the client lets no call begin while another thread polls.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises UsageError for settings that librdkafka refuses."""
        self._consumer: Consumer = make_client(Consumer, {**settings, **SINGLE_READS})
        self._guard = threading.Lock()
        self._wanted: dict[Partition, _Wanted] = {}
        self._assigned: dict[Partition, _Wanted] = {}
        self._asked = threading.Event()
        self._is_closed = False
        self._thread = threading.Thread(target=self._read, name="records", daemon=True)
        self._thread.start()

    def record_at(
        self, partition: Partition, offset: int, deadline_seconds: float = BROKER_DEADLINE_SECONDS
    ) -> Record | None:
        """The record at that offset, or None where the log holds none there any more. Safe to call from any thread.

        Raises UnreadableRecord where the client cannot hand it over, and what `first_record` raises.
        """
        found = self._first(partition, offset, deadline_seconds)
        if found is None or found.offset() != offset:
            return None
        try:
            return next(iter_records(batch_of(Readable([found], [found.headers()]))))
        except SystemError as refusal:  # its headers cannot be handed over
            raise UnreadableRecord(_failing(partition, offset), why=str(refusal)) from None

    def first_record(self, partition: Partition, offset: int) -> int | None:
        """The offset of the first record at or above that one, or None at the log's end. Safe to call from any thread.

        Raises BrokerUnreachable after the deadline, PartitionUnavailable where another thread reads of the partition,
        ShuttingDown after `close`, and what the broker says of the partition.
        """
        found = self._first(partition, offset, BROKER_DEADLINE_SECONDS)
        return None if found is None else found.offset()

    def _first(self, partition: Partition, offset: int, deadline_seconds: float) -> Message | None:
        wanted = _Wanted(offset, Future())
        with self._guard:
            if self._is_closed:
                raise ShuttingDown("the program is ending")
            if partition in self._wanted:
                raise PartitionUnavailable(f"another record of {name_of(partition)} is being read")
            self._wanted[partition] = wanted
        self._asked.set()
        try:
            return wanted.found.result(deadline_seconds)
        except TimeoutError:
            raise kafka_failure(KafkaError(KafkaError._TIMED_OUT), _failing(partition, offset)) from None
        finally:
            self._forget(partition, wanted)

    def close(self) -> None:
        """End; whoever waits for a record gets ShuttingDown."""
        with self._guard:
            self._is_closed = True
            for wanted in self._wanted.values():
                if not wanted.found.done():
                    wanted.found.set_exception(ShuttingDown("the program is ending"))
        self._asked.set()
        self._thread.join()
        self._consumer.close()

    def _forget(self, partition: Partition, wanted: _Wanted) -> None:
        with self._guard:
            if self._wanted.get(partition) is wanted:
                del self._wanted[partition]

    def _read(self) -> None:
        while not self._is_closed:
            if not self._asked.wait(SERVE_SECONDS):
                self._consumer.consume(MOST_ERRORS, 0)
                continue
            self._asked.clear()
            while (self._wanted or self._assigned) and not self._is_closed:
                self._assign()
                message = self._consumer.poll(POLL_SECONDS)
                if message is not None:
                    self._take(message)

    def _assign(self) -> None:
        """Have the consumer fetch what is wanted now, and nothing else."""
        with self._guard:
            wanted = {partition: each for partition, each in self._wanted.items() if not each.found.done()}
        gone = [TopicPartition(*each) for each in self._assigned if wanted.get(each) is not self._assigned[each]]
        new = [
            TopicPartition(*partition, each.offset)
            for partition, each in wanted.items()
            if self._assigned.get(partition) is not each
        ]
        if gone:
            self._consumer.incremental_unassign(gone)
        if new:
            self._consumer.incremental_assign(new)
        self._assigned = wanted

    def _take(self, message: Message) -> None:
        """Answer who waits for it; what else comes is nobody's."""
        error = message.error()
        if error is None or message.topic() is not None:
            answered = [(message.topic(), message.partition())]
        elif error.code() in DENIED:
            answered = list(self._assigned)
        else:  # of a connection: the partitions that it matters to meet their deadlines
            answered = []
        for partition in answered:
            wanted = self._assigned.get(partition)
            with self._guard:
                if wanted is not None and not wanted.found.done():
                    _answer(wanted, partition, message)


def _answer(wanted: _Wanted, partition: Partition, message: Message) -> None:
    error = message.error()
    if error is not None and error.code() not in NOTHING_THERE:
        wanted.found.set_exception(kafka_failure(error, _failing(partition, wanted.offset)))
    else:
        wanted.found.set_result(None if error is not None else message)


def _failing(partition: Partition, offset: int) -> str:
    return f"the record at {name_of(partition)}:{offset} cannot be read"


BoundsOrFailure = LogBounds | BlockgzError
AskBounds = Callable[[Collection[Partition]], Mapping[Partition, BoundsOrFailure]]
"""Answers for each partition; raises nothing."""


@dataclass(frozen=True)
class PartitionLog:
    """One partition's log for the protocols; a LogReader."""

    partition: Partition
    known: LogBounds
    """As they were asked for before, together with others'."""
    ask: AskBounds
    records: RecordReader
    confirm: Callable[[str], None]
    """See LogReader."""

    def bounds(self, at_least: int) -> LogBounds:
        """Those that are known, unless they end below `at_least`: the log may have grown since."""
        if self.known.high >= at_least:
            return self.known
        answer = self.ask([self.partition])[self.partition]
        if isinstance(answer, BlockgzError):
            raise answer
        return answer

    def record_at(self, offset: int) -> Record | None:
        return self.records.record_at(self.partition, offset)

    def first_record(self, offset: int) -> int | None:
        return self.records.first_record(self.partition, offset)
