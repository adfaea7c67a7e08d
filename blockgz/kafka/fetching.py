"""Fetching records of directly assigned partitions, by a client of confluent-kafka or by the kernel's own."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from blockgz.kafka.messages import (
    Message,
    Readable,
    batch_of,
    consecutive,
    readable_runs,
    record_without_headers,
    rising_runs,
)
from index_format.records import Record

Partition = tuple[str, int]
"""Topic and partition."""


class Run(NamedTuple):
    """Records of a partition that came one after the other."""

    partition: Partition
    messages: Sequence[Any]
    """For `pieces` of the same client, which takes those of several runs of a partition together."""


class Told(NamedTuple):
    """What a client tells that is no record."""

    partition: Partition | None
    offset: int
    error: KafkaError


class Polled(NamedTuple):
    """What came, in order."""

    found: Sequence[Run | Told]
    num_messages: int
    num_bytes: int
    """Of the records, but for what `FetchClient.uncounted` says."""


class Rising(NamedTuple):
    """Records whose offsets rise, written under one leader epoch; None where it is not known."""

    batch: pa.RecordBatch
    leader_epoch: int | None


class Unreadable(NamedTuple):
    """A record that the client cannot hand over, without its headers."""

    record: Record
    why: str


class FetchClient(Protocol):
    """A consumer as far as it fetches. All methods but `pieces` belong to one thread."""

    most_messages: int
    """More of them in one poll cost more than they save."""

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Fetch these partitions too, each from its position. Raises KafkaException, as the next three do."""

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Fetch these no longer; nothing comes of them any more."""

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Fetch nothing of these for now, and drop what was fetched of them ahead."""

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Fetch these from where they were paused."""

    def ask_leaders(self, seconds: float) -> None:
        """Have the client know who leads partitions, which it finds out by itself, but later."""

    def poll(self, most: int, seconds: float) -> Polled:
        """At most so many messages; with fewer it waits for more, for so many seconds."""

    def pieces(self, messages: Sequence[Any]) -> Iterator[Rising | Unreadable]:
        """Messages of one partition in order; they are used up."""

    def uncounted(self, batches: Collection[pa.RecordBatch]) -> int:
        """Bytes of a record that a poll does not count, on the average of these."""

    def close(self) -> None: ...


class ConfluentClient:
    """Records as objects of confluent-kafka, whose consumer may be a group's member as well."""

    most_messages = 1000

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def assign(self, positions: Mapping[Partition, int]) -> None:
        self._consumer.incremental_assign([TopicPartition(*partition, at) for partition, at in positions.items()])

    def unassign(self, partitions: Iterable[Partition]) -> None:
        self._consumer.incremental_unassign([TopicPartition(*partition) for partition in partitions])

    def pause(self, partitions: Iterable[Partition]) -> None:
        self._consumer.pause([TopicPartition(*partition) for partition in partitions])

    def resume(self, partitions: Iterable[Partition]) -> None:
        self._consumer.resume([TopicPartition(*partition) for partition in partitions])

    def ask_leaders(self, seconds: float) -> None:
        self._consumer.list_topics(timeout=seconds)

    def poll(self, most: int, seconds: float) -> Polled:
        messages: list[Message] = self._consumer.consume(most, seconds)
        found: list[Run | Told] = []
        for partition, are_records, run in consecutive(messages):
            if are_records:
                found.append(Run(partition, run))
            else:
                found += map(_told, run)
        return Polled(found, len(messages), sum(map(len, messages)))

    def pieces(self, messages: Sequence[Any]) -> Iterator[Rising | Unreadable]:
        for run in readable_runs(messages):
            if isinstance(run, Readable):
                batch = batch_of(run)
                for start, stop, epoch in rising_runs(run, batch):
                    yield Rising(batch.slice(start, stop - start), epoch)
            else:
                yield Unreadable(record_without_headers(run.message), f"a header key is not UTF-8 ({run.error})")

    def uncounted(self, batches: Collection[pa.RecordBatch]) -> int:
        """Keys and headers: a message tells the length of its value alone."""
        average: int = sum(batch.nbytes - batch.column("value").nbytes for batch in batches) // sum(map(len, batches))
        return average

    def close(self) -> None:
        self._consumer.close()


def _told(message: Message) -> Told:
    topic = message.topic()
    return Told(None if topic is None else (topic, message.partition()), message.offset(), message.error())
