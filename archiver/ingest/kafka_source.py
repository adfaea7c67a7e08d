"""The archiver's consumer: directly assigned partitions, as Arrow batches."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from archiver.errors import MemberRefused, UnreadableRecord
from blockgz_runtime.errors import AccessDenied, PartitionUnavailable
from blockgz_runtime.kafka.connection import kafka_failure, report
from blockgz_runtime.kafka.messages import (
    Message,
    Readable,
    batch_of,
    consecutive,
    readable_runs,
    record_without_headers,
    rising_runs,
)
from blockgz_runtime.kafka.settings import make_client
from index_format.errors import BlockgzError
from index_format.records import Record

SECONDS_A_PARTITION = 0.002
"""A batch takes about a tenth of that to be handed over and encoded, its records apart: a tenth of a core at most."""
MESSAGES_WORTH_A_BATCH = 250
BATCH_FOOTPRINT = 8192
"""Bytes that an Arrow batch takes beside its content, as measured: buffers are rounded up, objects stand around."""
MESSAGE_FOOTPRINT = 512
"""Bytes that a message takes beside its value, at the least."""

Partition = tuple[str, int]
"""Topic and partition."""


class Batched(NamedTuple):
    """What came for one partition."""

    messages: Sequence[Any]
    end: int | None
    """Where its log ended, if the broker told since the last time; messages may have come behind it."""


class Batching:
    """Messages by partition, held until they are worth a batch. All methods belong to the consumer thread."""

    def __init__(self, most_bytes: int, clock: Callable[[], float]) -> None:
        """`most_bytes`: no more than about so much is held; `clock` in monotonic seconds."""
        self._most_bytes = most_bytes
        self._clock = clock
        self._messages: defaultdict[Partition, list[Any]] = defaultdict(list)
        self._ends: dict[Partition, int] = {}
        self._num_messages = self._num_bytes = 0
        self._taken_at = clock()

    def add(self, partition: Partition, messages: Iterable[Any]) -> None:
        """Hold messages, which follow those held."""
        self._messages[partition].extend(messages)

    def count(self, messages: int, num_bytes: int) -> None:
        self._num_messages += messages
        self._num_bytes += num_bytes

    def end(self, partition: Partition, position: int) -> None:
        """Hold that the log ends at `position` for now."""
        self._ends[partition] = position

    def forget(self, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            self._messages.pop(partition, None)
            self._ends.pop(partition, None)

    @property
    def partitions(self) -> set[Partition]:
        """Those of which something is held."""
        return {*self._messages, *self._ends}

    def take(self, partition: Partition) -> Batched:
        return Batched(self._messages.pop(partition, ()), self._ends.pop(partition, None))

    def is_due(self, partitions: int) -> bool:
        """Whether all is to be taken, where so many partitions are consumed: with a few of them, nearly always."""
        if self._num_messages >= MESSAGES_WORTH_A_BATCH * len(self._messages) or self._num_bytes >= self._most_bytes:
            return True
        return self._clock() - self._taken_at >= partitions * SECONDS_A_PARTITION

    def take_all(self) -> dict[Partition, Batched]:
        """All that is held; nothing is held afterwards."""
        self._num_messages = self._num_bytes = 0
        self._taken_at = self._clock()
        return {partition: self.take(partition) for partition in self.partitions}


FIRST_MESSAGES_A_POLL = 8
MOST_MESSAGES_A_POLL = 1000
BYTES_A_POLL = 2 * 1024**2
"""About so much is taken from librdkafka's queue at a time: the queue fills again meanwhile."""
POLL_SECONDS = 0.1
"""A poll that does not get as many messages as it asks for takes so long, whatever it gets."""
LOGGED_ANYWAY = (KafkaError._AUTHENTICATION, KafkaError._RESOLVE, KafkaError._SSL, KafkaError._TRANSPORT)
"""Of these librdkafka logs a line itself."""
LEADERS_SECONDS = 2.0
"""So long the leaders are asked for, at most, before anything is fetched; librdkafka keeps asking by itself."""


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
    record: Record
    """Without its headers."""
    error: UnreadableRecord

    @property
    def offset(self) -> int:
        return self.record.offset


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
        batching_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        poll_seconds: float = POLL_SECONDS,
        metadata: str = "",
    ) -> None:
        """`batching_bytes` bounds what is batched into batches; `metadata` goes along with committed offsets.

        Raises UsageError for settings that are refused.
        """
        self._consumer: Consumer = make_client(Consumer, dict(settings))
        self._consuming: set[Partition] = set()
        self._paused: set[Partition] = set()
        """Also partitions that are not consumed: librdkafka keeps them paused when it is given them again."""
        self._batching = Batching(batching_bytes, clock)
        self._poll_seconds = poll_seconds
        self._metadata = metadata
        self._at_once = FIRST_MESSAGES_A_POLL
        self._refusal: BlockgzError | None = None
        """What the group said, until the next poll."""
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
        if not self._consuming:
            # A client that knows no leaders yet may notice for a second at the latest that it is to fetch.
            with suppress(KafkaException):
                self._consumer.list_topics(timeout=LEADERS_SECONDS)
        self._consumer.incremental_assign([TopicPartition(*partition, at) for partition, at in positions.items()])
        self._consuming.update(positions)
        self.resume(self._paused.intersection(positions))

    def release(self, partitions: Sequence[Partition]) -> None:
        """Consume these partitions no longer; they stay this process's in the group."""
        if self._consuming.intersection(partitions):
            self._forget(partitions)

    def pause(self, partitions: Collection[Partition]) -> None:
        """Fetch nothing of these until `resume`. What the client fetched already is dropped and fetched again then.

        Messages that wait here to become batches still come. A partition that is released and consumed again is not
        paused.
        """
        if pausing := self._consuming.intersection(partitions):
            self._paused |= pausing
            self._consumer.pause([TopicPartition(*partition) for partition in pausing])

    def resume(self, partitions: Collection[Partition]) -> None:
        """Fetch these from where they were paused."""
        if resuming := self._consuming.intersection(partitions):
            self._paused -= resuming
            self._consumer.resume([TopicPartition(*partition) for partition in resuming])

    def commit(self, positions: Mapping[Partition, int]) -> None:
        """Tell the group how far the archive is, for lag tools; advisory, not waited for."""
        with suppress(KafkaException):  # such as after a fatal error
            self._consumer.commit(
                offsets=[TopicPartition(*partition, at, self._metadata) for partition, at in positions.items()],
                asynchronous=True,
            )

    def batched(self, partitions: Iterable[Partition]) -> list[Event]:
        """What was polled of partitions and waits to be worth a batch: it waits no longer."""
        return [event for each in partitions for event in _fetched(each, self._batching.take(each))]

    def _forget(self, partitions: Sequence[Partition]) -> None:
        leaving = self._consuming.intersection(partitions)
        self._consumer.incremental_unassign([TopicPartition(*partition) for partition in leaving])
        self._consuming -= leaving
        self._batching.forget(leaving)

    def poll(self) -> list[Event]:
        """What arrived and was worth a batch, in offset order per partition; waits for at most `poll_seconds`.

        Raises MemberRefused where the group has no place for this consumer any more; only a new one may join again.
        Raises AccessDenied where the group may not be joined now; the client goes on asking. Both are told by the poll
        after the one that met them, so that what came with them is not lost.
        """
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal
        messages: list[Message] = self._consumer.consume(self._at_once, self._poll_seconds)
        num_bytes = sum(map(len, messages)) + (MESSAGE_FOOTPRINT + self._beside_value) * len(messages)
        self._batching.count(len(messages), num_bytes)
        events: list[Event] = []
        for partition, are_records, run in consecutive(messages):
            if are_records:
                self._batching.add(partition, run)
            else:
                for message in run:
                    events += self._told(message, message.error())
        # What a rebalance took away inside the call above may lie among the messages.
        self._batching.forget(self._batching.partitions - self._consuming)
        if self._batching.is_due(len(self._consuming)):
            for partition, batched in self._batching.take_all().items():
                events += _fetched(partition, batched)
        if batches := [event.batch for event in events if isinstance(event, Fetched)]:
            self._beside_value = beside_value(batches)
        self._at_once = messages_a_poll(len(messages), num_bytes, self._at_once)
        return events

    def _told(self, message: Message, error: KafkaError) -> Iterable[Event]:
        """What a message that is no record brings about, behind the records before it."""
        if error.code() == KafkaError._FATAL:
            self._refusal = MemberRefused(
                "the consumer group refuses this process",
                why=error.str(),
                remedy="give every process a --group-instance-id of its own",
            )
            return ()
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            self._refusal = AccessDenied(
                "the consumer group may not be joined",
                why=error.str(),
                remedy="grant Read on the group of --group-id to this user, or give another one",
            )
            return ()
        if message.topic() is None or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
            if error.code() not in LOGGED_ANYWAY:
                report(error)
            return ()
        partition = (message.topic(), message.partition())
        if error.code() == KafkaError._PARTITION_EOF:
            self._batching.end(partition, message.offset())
            return ()
        return (*_fetched(partition, self._batching.take(partition)), _failed(partition, error))

    def close(self) -> None:
        self._consumer.close()


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


def _fetched(partition: Partition, batched: Batched) -> list[Event]:
    events: list[Event] = []
    for run in readable_runs(batched.messages):
        if isinstance(run, Readable):
            batch = batch_of(run)
            for start, stop, epoch in rising_runs(run, batch):
                part = batch.slice(start, stop - start)
                events.append(Fetched(partition, part, epoch, part.nbytes + BATCH_FOOTPRINT))
        else:
            record = record_without_headers(run.message)
            error = UnreadableRecord(
                f"the record at {name_of(partition)}:{record.offset} cannot be read by the Kafka client",
                why=f"a header key is not UTF-8 ({run.error})",
                remedy="--on-bad-record skip archives the others and records a gap",
            )
            events.append(Unreadable(partition, record, error))
    if batched.end is not None:
        events.append(EndReached(partition, batched.end))
    return events


def _failed(partition: Partition, error: KafkaError) -> Event:
    failure = kafka_failure(error, f"{name_of(partition)} cannot be read")
    if isinstance(failure, AccessDenied):
        return PartitionFailed(partition, failure)
    # Taking the partition over again finds out what happened to it: retention, truncation, another leader, a new topic.
    return PartitionFailed(partition, PartitionUnavailable(failure.what, why=failure.why))


def _plain(partitions: Sequence[TopicPartition]) -> list[Partition]:
    return [(partition.topic, partition.partition) for partition in partitions]


def name_of(partition: Partition) -> str:
    """`orders:3`."""
    return f"{partition[0]}:{partition[1]}"
