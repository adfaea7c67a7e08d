"""Records of directly assigned partitions as Arrow batches, by a client of confluent-kafka or by the C extension."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise, repeat
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from index_format.kernel_choice import chosen
from index_format.records import Record, batch_from_columns

NO_TIMESTAMP = -1
# confluent_kafka.Message, whose stubs allow None if a delivered message has none.
Message = Any


# Consecutive messages of a partition, each with its headers as the client gave them.
Readable = tuple[Sequence[Message], Sequence[Any]]


class UnreadableMessage(NamedTuple):
    """A record that the client cannot hand over, without its headers."""

    record: Record
    why: str


class Rising(NamedTuple):
    """Records whose offsets rise, written under one leader epoch; None if it is unknown."""

    batch: pa.RecordBatch
    leader_epoch: int | None


def readable_runs(messages: Sequence[Message]) -> Iterator[Readable | UnreadableMessage]:
    """Yield runs of readable messages and the refused messages between them, in order."""
    # The headers of a message are read once: after a failure the client returns a list that crashes Python.
    start = 0
    while start < len(messages):
        headers: list[Any] = []
        refusal: SystemError | None = None
        try:
            headers.extend(map(KafkaMessage.headers, messages[start:]))
        except SystemError as error:  # those before it are in the list
            refusal = error
        stop = start + len(headers)
        if headers:
            yield messages[start:stop], headers
        if refusal is not None:
            yield UnreadableMessage(_without_headers(messages[stop]), f"a header key is not UTF-8 ({refusal})")
        start = stop + 1


def batch_of(messages: Sequence[Message], headers: Sequence[Any]) -> pa.RecordBatch:
    """Return messages as a batch of `records.SCHEMA`, with their headers as the client gave them."""
    # Unbound methods and map take half the time of calls.
    count = len(messages)
    timestamps = np.fromiter(chain.from_iterable(map(KafkaMessage.timestamp, messages)), np.int64, 2 * count)
    # librdkafka counts the types from 0, Kafka from -1.
    kinds, times = timestamps[::2], timestamps[1::2]
    return batch_from_columns(
        np.fromiter(map(KafkaMessage.offset, messages), np.int64, count),
        np.where(kinds, times, NO_TIMESTAMP),
        kinds - 1,
        list(map(KafkaMessage.key, messages)),
        list(map(KafkaMessage.value, messages)),
        headers,
    )


def _without_headers(message: Message) -> Record:
    """Return a refused message without its headers, which the client does not hand over."""
    kind, timestamp = message.timestamp()
    return Record(
        message.offset(), timestamp if kind else NO_TIMESTAMP, kind - 1, message.key(), message.value(), headers=()
    )


def _rising(messages: Sequence[Message], headers: Sequence[Any]) -> Iterator[Rising]:
    """Yield the records of readable messages, cut where offsets fall and where the leader epoch changes."""
    # That is nearly always one piece. Several fetches may hold an offset twice, if the log was truncated and written
    # again in between. The caller checks the first offset of each, and finds by its epoch who wrote it.
    batch = batch_of(messages, headers)
    falls = np.flatnonzero(np.diff(batch.column("offset").to_numpy()) <= 0) + 1
    epochs = list(map(KafkaMessage.leader_epoch, messages))
    changes: list[int] = []
    if epochs.count(epochs[0]) < len(epochs):
        changes = [row for row, (before, after) in enumerate(pairwise(epochs), 1) if before != after]
    edges = sorted({0, *falls.tolist(), *changes, batch.num_rows})
    return (Rising(batch.slice(start, stop - start), epochs[start]) for start, stop in pairwise(edges))


_INTERFACE = 1


def _load() -> Any:
    import blockgz.kafka._kernel as kernel  # type: ignore[import-not-found]  # noqa: PLC0415

    return kernel


# In C: batches from and to librdkafka.
KERNEL = chosen(_load, _INTERFACE)


# Topic and partition.
Partition = tuple[str, int]


class MessageRun(NamedTuple):
    """Records of a partition that came one after the other."""

    partition: Partition
    messages: Sequence[Any]
    """For `pieces` of the same client, which takes those of several runs of a partition together."""


class Told(NamedTuple):
    """An event of a client that is not a record."""

    partition: Partition | None
    offset: int
    error: KafkaError


# The result of one poll in order, the number of messages, and bytes except those that a client's `uncounted` adds.
Polled = tuple[Sequence[MessageRun | Told], int, int]


class ConfluentClient:
    """A client that fetches records as objects of confluent-kafka. Its consumer may be a group's member as well.

    All methods but `pieces` belong to one thread.
    """

    most_messages = 1000
    """More of them in one poll cost more than they save."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def assign(self, positions: Mapping[Partition, int]) -> None:
        """Fetch these partitions too, each from its position. Raises KafkaException, as the next three do."""
        self._consumer.incremental_assign([TopicPartition(*partition, at) for partition, at in positions.items()])

    def unassign(self, partitions: Iterable[Partition]) -> None:
        """Fetch these no longer; nothing comes of them any longer."""
        self._consumer.incremental_unassign([TopicPartition(*partition) for partition in partitions])

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Fetch nothing of these for now, and drop what was fetched of them ahead."""
        self._consumer.pause([TopicPartition(*partition) for partition in partitions])

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Fetch these from the positions where fetching was paused."""
        self._consumer.resume([TopicPartition(*partition) for partition in partitions])

    def ask_leaders(self, seconds: float) -> None:
        """Have the client learn who leads partitions; it finds out by itself, but later."""
        self._consumer.list_topics(timeout=seconds)

    def poll(self, most: int, seconds: float) -> Polled:
        """Return at most `most` messages; wait up to `seconds` for more if there are fewer."""
        messages: list[Message] = self._consumer.consume(most, seconds)
        found: list[MessageRun | Told] = []
        # librdkafka hands over hundreds of messages of a partition before those of the next one.
        kinds: Iterable[tuple[Any, Any, bool]] = zip(
            map(KafkaMessage.topic, messages),
            map(KafkaMessage.partition, messages),
            map(is_, map(KafkaMessage.error, messages), repeat(None)),
            strict=True,
        )
        start = 0
        for (topic, partition, are_records), run in groupby(kinds):
            stop = start + len(list(run))
            if are_records:
                found.append(MessageRun((topic, partition), messages[start:stop]))
            else:
                found += map(_told, messages[start:stop])
            start = stop
        return found, len(messages), sum(map(len, messages))

    def pieces(self, messages: Sequence[Any]) -> Iterator[Rising | UnreadableMessage]:
        """Yield the records of messages of one partition, in order; they are used up. Any thread may call it."""
        for run in readable_runs(messages):
            if isinstance(run, UnreadableMessage):
                yield run
            else:
                yield from _rising(*run)

    def uncounted(self, batches: Collection[pa.RecordBatch]) -> int:
        """Return the bytes of a record that a poll does not count, on average: keys and headers."""
        average: int = sum(batch.nbytes - batch.column("value").nbytes for batch in batches) // sum(map(len, batches))
        return average

    def close(self) -> None:
        self._consumer.close()


def _told(message: Message) -> Told:
    topic = message.topic()
    return Told(None if topic is None else (topic, message.partition()), message.offset(), message.error())


# Settings that confluent-kafka does not hand to librdkafka as they are.
PYTHONS_OWN = {"default.topic.config", "plugin.library.paths", "sasl.oauthbearer.metadata.authentication.type"}
# An Arrow column of the kind that records have holds 2 GiB.
MOST_COLUMN_BYTES = 2**30
MOST_MESSAGES = 2000


def kernel_takes(settings: Mapping[str, Any]) -> bool:
    """Return whether the kernel is in use, and its consumer can be made with these settings."""
    functions = (name for name, value in settings.items() if callable(value))
    return bool(KERNEL) and not (PYTHONS_OWN & settings.keys() or any(functions))


class KernelClient:
    """A client that fetches without an object for each record, in C; with the methods of ConfluentClient.

    It is made in the process that uses it, by `make_client`. See kernel/README.md.
    """

    most_messages = MOST_MESSAGES

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError for settings that librdkafka refuses."""
        self._logger: logging.Logger | None = settings.get("logger")
        texts = {name: setting_text(value) for name, value in settings.items() if name != "logger"}
        self._consumer = KERNEL.module.Consumer(texts)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        raise_failure(self._consumer.assign([(*partition, at) for partition, at in positions.items()]))

    def unassign(self, partitions: Iterable[Partition]) -> None:
        raise_failure(self._consumer.unassign(list(partitions)))

    def pause(self, partitions: Iterable[Partition]) -> None:
        raise_failure(self._consumer.pause(list(partitions)))

    def resume(self, partitions: Iterable[Partition]) -> None:
        raise_failure(self._consumer.resume(list(partitions)))

    def ask_leaders(self, seconds: float) -> None:
        raise_failure(self._consumer.ask_leaders(round(seconds * 1000)))

    def poll(self, most: int, seconds: float) -> Polled:
        found: list[MessageRun | Told] = []
        num_messages = num_bytes = 0
        for entry in self._consumer.consume(most, round(seconds * 1000)):
            if isinstance(entry, tuple):
                topic, partition, offset, code, text = entry
                found.append(Told(None if topic is None else (topic, partition), offset, KafkaError(code, text)))
                num_messages += 1
            else:
                found.append(MessageRun((entry.topic, entry.partition), [entry]))
                num_messages += len(entry)
                num_bytes += entry.num_bytes
        pass_log_on(self._consumer, self._logger)
        return found, num_messages, num_bytes

    def pieces(self, messages: Sequence[Any]) -> Iterator[Rising | UnreadableMessage]:
        for piece in self._consumer.columns(list(messages), MOST_COLUMN_BYTES):
            if len(piece) == 2:
                columns, leader_epoch = piece
                yield Rising(pa.record_batch(columns), leader_epoch)
            else:
                record = Record(*piece, headers=())  # type: ignore[misc]
                yield UnreadableMessage(record, "a header key is not UTF-8")

    def uncounted(self, _: Collection[pa.RecordBatch]) -> int:
        """Nothing."""
        return 0

    def close(self) -> None:
        self._consumer.close()
        pass_log_on(self._consumer, self._logger)


def setting_text(value: Any) -> str:
    """Return the value of a setting as librdkafka reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def raise_failure(error: tuple[Any, ...] | None) -> None:
    """Raise KafkaException if there is an error: the arguments of a KafkaError."""
    if error is not None:
        raise KafkaException(KafkaError(*error))


def pass_log_on(client: Any, logger: logging.Logger | None) -> None:
    """Log the lines that a client of the kernel has collected."""
    for level, *line in client.log_lines():
        if logger is not None:
            logger.log(level, "%s [%s] %s", *line)


FetchClient = ConfluentClient | KernelClient
