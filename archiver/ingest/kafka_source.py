"""The archiver's consumer: directly assigned partitions, as Arrow batches."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from archiver.commit.operations import LogBounds
from archiver.errors import MemberRefused, UnreadableRecord
from archiver.ingest.batching import MESSAGE_FOOTPRINT, Gathered, Gathering
from archiver.ingest.memory_plan import BATCH_FOOTPRINT
from blockgz_runtime.errors import AccessDenied, PartitionUnavailable
from blockgz_runtime.kafka.connection import BROKER_DEADLINE_SECONDS, kafka_failure
from blockgz_runtime.kafka.messages import Message, Readable, batch_of, consecutive, readable_runs, rising_runs
from blockgz_runtime.kafka.settings import make_client
from index_format.errors import BlockgzError
from index_format.records import Record, iter_records

FIRST_MESSAGES_A_POLL = 8
MOST_MESSAGES_A_POLL = 1000
BYTES_A_POLL = 2 * 1024**2
"""About so much is taken from librdkafka's queue at a time: the queue fills again meanwhile."""
POLL_SECONDS = 0.1
"""A poll that does not get as many messages as it asks for takes so long, whatever it gets."""
LEADERS_SECONDS = 2.0
"""So long the leaders are asked for, at most, before anything is fetched; librdkafka goes on asking by itself."""
SINGLE_READS = {
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1024,
    "fetch.message.max.bytes": 64 * 1024,
    "fetch.wait.max.ms": 10,
}
"""For KafkaLog: one record is wanted, and a fetch that waits at the end of one log would hold up the look-up in the
next."""
Partition = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class Fetched:
    """Consecutive records of a partition."""

    partition: Partition
    batch: pa.RecordBatch
    leader_epoch: int | None
    num_bytes: int
    """What the batch takes in memory."""

    @property
    def last_offset(self) -> int:
        """Of the records; there is at least one."""
        offset: int = self.batch.column("offset")[-1].as_py()
        return offset


@dataclass(frozen=True)
class EndReached:
    """The partition has no readable record at or above `position` for now; control records below it are passed."""

    partition: Partition
    position: int


@dataclass(frozen=True)
class Unreadable:
    """A record that the client cannot hand over."""

    partition: Partition
    offset: int
    error: UnreadableRecord


@dataclass(frozen=True)
class PartitionFailed:
    """The client gave up on a partition, such as when retention passed the position."""

    partition: Partition
    error: BlockgzError


Event = Fetched | EndReached | Unreadable | PartitionFailed


class GroupListener(Protocol):
    """What the consumer group does to this process's partitions; called inside `poll`."""

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """These partitions are this process's now; `KafkaSource.consume` starts them."""

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """These go to another process once this call returns."""

    def lost(self, partitions: Sequence[Partition]) -> None:
        """These are another process's already."""


class KafkaSource:
    """One consumer; all methods belong to one thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        gathering_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        """`gathering_bytes` bounds what is gathered into batches. Raises UsageError for settings that are refused."""
        self._consumer: Consumer = make_client(Consumer, dict(settings))
        self._consuming: set[Partition] = set()
        self._gathering = Gathering(gathering_bytes, clock)
        self._poll_seconds = poll_seconds
        self._at_once = FIRST_MESSAGES_A_POLL
        self._beside_value = 0
        """Bytes of a record beside its value, as measured last: a message tells the length of its value alone."""

    def subscribe(self, topics: Sequence[str], listener: GroupListener) -> None:
        """Share the topics' partitions with the other members of the group."""

        def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            # Taken note of only; each partition is consumed when its claim succeeded, from where the archive ends.
            consumer.incremental_assign([])
            listener.assigned(_plain(partitions))

        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            listener.revoked(_plain(partitions))
            self._forget(_plain(partitions))

        def lost(_: Consumer, partitions: list[TopicPartition]) -> None:
            listener.lost(_plain(partitions))
            self._forget(_plain(partitions))

        self._consumer.subscribe(list(topics), on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def consume(self, positions: Mapping[Partition, int]) -> None:
        """Consume these partitions too, each from its position."""
        if not self._consuming:
            # A client that knows no leaders yet may notice for a second at the latest that it is to fetch.
            with suppress(KafkaException):
                self._consumer.list_topics(timeout=LEADERS_SECONDS)
        self._consumer.incremental_assign([TopicPartition(*partition, at) for partition, at in positions.items()])
        self._consuming.update(positions)

    def release(self, partitions: Sequence[Partition]) -> None:
        """Consume these partitions no longer; they stay this process's in the group."""
        if self._consuming.intersection(partitions):
            self._forget(partitions)

    def pause(self) -> None:
        """Fetch nothing until `resume`; polling goes on."""
        self._consumer.pause([TopicPartition(*partition) for partition in self._consuming])

    def resume(self) -> None:
        """Fetch again."""
        self._consumer.resume([TopicPartition(*partition) for partition in self._consuming])

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Tell the group how far the archive is, for lag tools; advisory, not waited for."""
        self._consumer.commit(
            offsets=[TopicPartition(*partition, at) for partition, at in positions.items()], asynchronous=True
        )

    def _forget(self, partitions: Sequence[Partition]) -> None:
        leaving = self._consuming.intersection(partitions)
        self._consumer.incremental_unassign([TopicPartition(*partition) for partition in leaving])
        self._consuming -= leaving
        self._gathering.forget(leaving)

    def poll(self) -> list[Event]:
        """What arrived and was worth a batch, in offset order per partition; waits for at most `poll_seconds`.

        Raises MemberRefused where the group has no place for this consumer any more; only a new one may join again.
        Raises AccessDenied where the group may not be joined at all.
        """
        messages: list[Message] = self._consumer.consume(self._at_once, self._poll_seconds)
        num_bytes = sum(map(len, messages)) + (MESSAGE_FOOTPRINT + self._beside_value) * len(messages)
        self._gathering.count(len(messages), num_bytes)
        events: list[Event] = []
        for partition, are_records, run in consecutive(messages):
            if are_records:
                self._gathering.add(partition, run)
            else:
                for message in run:
                    events += self._told(message, message.error())
        # What a rebalance took away inside the call above may lie among the messages.
        self._gathering.forget(self._gathering.partitions - self._consuming)
        if self._gathering.is_due(len(self._consuming)):
            for partition, gathered in self._gathering.take_all().items():
                events += _fetched(partition, gathered)
        if batches := [event.batch for event in events if isinstance(event, Fetched)]:
            self._beside_value = beside_value(batches)
        self._at_once = messages_a_poll(len(messages), num_bytes, self._at_once)
        return events

    def _told(self, message: Message, error: KafkaError) -> Iterable[Event]:
        """What a message that is no record brings about, behind the records before it."""
        if error.code() == KafkaError._FATAL:
            raise MemberRefused(
                "the consumer group refuses this process",
                why=error.str(),
                remedy="give every process a --group-instance-id of its own",
            )
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise AccessDenied(
                "the consumer group may not be joined",
                why=error.str(),
                remedy="grant Read on the group of --group-id to this user, or give another one",
            )
        if message.topic() is None or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            return ()
        partition = (message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            self._gathering.end(partition, message.offset())
            return ()
        return (*_fetched(partition, self._gathering.take(partition)), _failed(partition, error))

    def close(self) -> None:
        """Leave; the consumer is gone afterwards."""
        self._consumer.close()


class KafkaLog:
    """Bounds and single records of logs, for recovery; many threads may ask, one question is answered at a time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises UsageError for settings that librdkafka refuses."""
        self._consumer: Consumer = make_client(Consumer, dict(settings))
        self._guard = threading.Lock()

    def bounds(self, partition: Partition) -> LogBounds:
        """The log's low watermark and its end: the last stable offset under read_committed."""
        try:
            with self._guard:
                low, high = self._consumer.get_watermark_offsets(
                    TopicPartition(*partition), timeout=BROKER_DEADLINE_SECONDS, cached=False
                )
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC):
                self._refresh(partition[0])
            raise kafka_failure(error.args[0], f"the bounds of {_name(partition)} cannot be read") from error
        return LogBounds(low, high)

    def record_at(self, partition: Partition, offset: int) -> Record | None:
        """The record at that offset, or None where the log holds none there any more."""
        with self._guard:
            self._consumer.assign([TopicPartition(*partition, offset)])
            try:
                return self._first_record(partition, offset)
            finally:
                self._consumer.unassign()

    def close(self) -> None:
        """Leave; the consumer is gone afterwards."""
        self._consumer.close()

    def _refresh(self, topic: str) -> None:
        """Have librdkafka look at the topic again: it was told of fewer partitions, or of none."""
        with suppress(KafkaException), self._guard:
            self._consumer.list_topics(topic, timeout=BROKER_DEADLINE_SECONDS)

    def _first_record(self, partition: Partition, offset: int) -> Record | None:
        what = f"the record at {_name(partition)}:{offset} cannot be read"
        while True:
            messages = self._consumer.consume(1, BROKER_DEADLINE_SECONDS)
            if not messages:
                raise kafka_failure(KafkaError(KafkaError._TIMED_OUT), what)
            error = messages[0].error()
            if error is None:
                batch = batch_of(Readable(messages, [messages[0].headers()]))
                return next(iter_records(batch)) if messages[0].offset() == offset else None
            if error.code() in (KafkaError._PARTITION_EOF, KafkaError._AUTO_OFFSET_RESET):
                return None
            if error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                raise kafka_failure(error, what)


@dataclass(frozen=True)
class PartitionLog:
    """One partition's log for the protocols."""

    log: KafkaLog
    partition: Partition

    def bounds(self) -> LogBounds:
        """See KafkaLog."""
        return self.log.bounds(self.partition)

    def record_at(self, offset: int) -> Record | None:
        """See KafkaLog."""
        return self.log.record_at(self.partition, offset)


def beside_value(batches: Sequence[pa.RecordBatch]) -> int:
    """Bytes that a record of these takes beside its value, on the average: keys and headers."""
    average: int = sum(batch.nbytes - batch.column("value").nbytes for batch in batches) // sum(map(len, batches))
    return average


def messages_a_poll(records: int, num_bytes: int, asked: int) -> int:
    """How many messages to ask for next, as the last poll asked for `asked` and gave records of `num_bytes`.

    About BYTES_A_POLL; no more than eight times as many as before, as larger ones may follow.
    """
    fitting = BYTES_A_POLL * records // num_bytes if records else asked
    return max(1, min(MOST_MESSAGES_A_POLL, 8 * asked, fitting))


def _fetched(partition: Partition, gathered: Gathered) -> list[Event]:
    events: list[Event] = []
    for run in readable_runs(gathered.messages):
        if isinstance(run, Readable):
            batch = batch_of(run)
            for start, stop, epoch in rising_runs(run, batch):
                part = batch.slice(start, stop - start)
                events.append(Fetched(partition, part, epoch, part.nbytes + BATCH_FOOTPRINT))
        else:
            events.append(_unreadable(partition, run.message.offset(), run.error))
    if gathered.end is not None:
        events.append(EndReached(partition, gathered.end))
    return events


def _unreadable(partition: Partition, offset: int, error: SystemError) -> Unreadable:
    return Unreadable(
        partition,
        offset,
        UnreadableRecord(
            f"the record at {_name(partition)}:{offset} cannot be read by the Kafka client",
            why=f"a header key is not UTF-8 ({error})",
            remedy="--on-bad-record skip archives the others and records a gap",
        ),
    )


def _failed(partition: Partition, error: KafkaError) -> Event:
    failure = kafka_failure(error, f"{_name(partition)} cannot be read")
    if isinstance(failure, AccessDenied):
        return PartitionFailed(partition, failure)
    # Taking the partition over again finds out what happened to it: retention, truncation, another leader, a new topic.
    return PartitionFailed(partition, PartitionUnavailable(failure.what, why=failure.why))


def _plain(partitions: Sequence[TopicPartition]) -> list[Partition]:
    return [(partition.topic, partition.partition) for partition in partitions]


def _name(partition: Partition) -> str:
    return f"{partition[0]}:{partition[1]}"


__all__ = [
    "EndReached",
    "Event",
    "Fetched",
    "KafkaLog",
    "KafkaSource",
    "Partition",
    "PartitionFailed",
    "PartitionLog",
    "Unreadable",
]
