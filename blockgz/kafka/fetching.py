"""Records of directly assigned partitions as Arrow batches, by a client of confluent-kafka or by the C extension."""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise, repeat
from operator import is_
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from index_format.kernel_choice import chosen
from index_format.records import Record, batch_from_columns

NO_TIMESTAMP = -1
Message = Any
"""confluent_kafka.Message, whose stubs allow None where a delivered message has none."""


class Consecutive(NamedTuple):
    """Messages that came one after the other, all of one partition and all records, or all not."""

    partition: tuple[str, int]
    are_records: bool
    messages: Sequence[Message]


class Readable(NamedTuple):
    """Consecutive messages of a partition, each with its headers as the client gave them."""

    messages: Sequence[Message]
    headers: Sequence[Any]


class Refused(NamedTuple):
    """A message whose headers the client refuses to hand over."""

    message: Message
    error: SystemError


class RisingRun(NamedTuple):
    """Rows [start, stop) of a batch whose offsets rise, written under one leader epoch; None where it is not known."""

    start: int
    stop: int
    leader_epoch: int | None


def consecutive(messages: Sequence[Message]) -> Iterator[Consecutive]:
    """The runs of messages, in order: librdkafka hands over hundreds of a partition before those of the next."""
    errors = map(KafkaMessage.error, messages)
    kinds: Iterable[tuple[Any, Any, bool]] = zip(
        map(KafkaMessage.topic, messages),
        map(KafkaMessage.partition, messages),
        map(is_, errors, repeat(None)),
        strict=True,
    )
    start = 0
    for (topic, partition, are_records), run in groupby(kinds):
        stop = start + len(list(run))
        yield Consecutive((topic, partition), are_records, messages[start:stop])
        start = stop


def readable_runs(messages: Sequence[Message]) -> Iterator[Readable | Refused]:
    """The runs between refused messages, and those, in order.

    A message is asked for its headers once: after it failed, the client answers with a list that crashes Python.
    """
    start = 0
    while start < len(messages):
        headers: list[Any] = []
        refusal = None
        try:
            headers.extend(map(KafkaMessage.headers, messages[start:]))
        except SystemError as error:  # those before it are in the list
            refusal = error
        stop = start + len(headers)
        if headers:
            yield Readable(messages[start:stop], headers)
        if refusal is not None:
            yield Refused(messages[stop], refusal)
        start = stop + 1


def batch_of(run: Readable) -> pa.RecordBatch:
    """The same as a batch of `records.SCHEMA`. Columns come from unbound methods by map: half the time of calls."""
    messages, count = run.messages, len(run.messages)
    timestamps = np.fromiter(chain.from_iterable(map(KafkaMessage.timestamp, messages)), np.int64, 2 * count)
    # librdkafka counts the types from 0, Kafka from -1.
    kinds, times = timestamps[::2], timestamps[1::2]
    return batch_from_columns(
        np.fromiter(map(KafkaMessage.offset, messages), np.int64, count),
        np.where(kinds, times, NO_TIMESTAMP),
        kinds - 1,
        list(map(KafkaMessage.key, messages)),
        list(map(KafkaMessage.value, messages)),
        run.headers,
    )


def record_without_headers(message: Message) -> Record:
    """A refused message as far as the client hands it over."""
    kind, timestamp = message.timestamp()
    return Record(
        message.offset(), timestamp if kind else NO_TIMESTAMP, kind - 1, message.key(), message.value(), headers=()
    )


def rising_runs(run: Readable, batch: pa.RecordBatch) -> Iterator[RisingRun]:
    """The batch of `run`, cut where offsets fall and where the leader epoch changes: nearly always one piece.

    Several fetches may hold an offset twice where the log was truncated and written again in between. The caller
    checks the first offset of each, and by its epoch who wrote it.
    """
    falls = np.flatnonzero(np.diff(batch.column("offset").to_numpy()) <= 0) + 1
    epochs = list(map(KafkaMessage.leader_epoch, run.messages))
    changes: list[int] = []
    if epochs.count(epochs[0]) < len(epochs):
        changes = [row for row, (before, after) in enumerate(pairwise(epochs), 1) if before != after]
    edges = sorted({0, *falls.tolist(), *changes, batch.num_rows})
    return (RisingRun(start, stop, epochs[start]) for start, stop in pairwise(edges))


_INTERFACE = 1


def _load() -> Any:
    import blockgz.kafka._kernel as kernel  # type: ignore[import-not-found]  # noqa: PLC0415

    return kernel


KERNEL = chosen(_load, _INTERFACE)
"""In C: batches from and to librdkafka."""


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


PYTHONS_OWN = {"default.topic.config", "plugin.library.paths", "sasl.oauthbearer.metadata.authentication.type"}
"""Settings that confluent-kafka does not hand to librdkafka as they are."""
MOST_COLUMN_BYTES = 2**30
"""An Arrow column of the kind that records have holds 2 GiB."""
MOST_MESSAGES = 2000


def kernel_takes(settings: Mapping[str, Any]) -> bool:
    """Whether the kernel is in use, and its consumer can be made with these settings."""
    functions = (name for name, value in settings.items() if callable(value))
    return bool(KERNEL) and not (PYTHONS_OWN & settings.keys() or any(functions))


class KernelClient:
    """A FetchClient. To be made in the process that uses it, and by `make_client`."""

    most_messages = MOST_MESSAGES

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises ValueError for settings that librdkafka refuses."""
        self._logger: logging.Logger | None = settings.get("logger")
        texts = {name: _text(value) for name, value in settings.items() if name != "logger"}
        self._consumer = KERNEL.module.Consumer(texts)

    def assign(self, positions: Mapping[Partition, int]) -> None:
        _raise_failure(self._consumer.assign([(*partition, at) for partition, at in positions.items()]))

    def unassign(self, partitions: Iterable[Partition]) -> None:
        _raise_failure(self._consumer.unassign(list(partitions)))

    def pause(self, partitions: Iterable[Partition]) -> None:
        _raise_failure(self._consumer.pause(list(partitions)))

    def resume(self, partitions: Iterable[Partition]) -> None:
        _raise_failure(self._consumer.resume(list(partitions)))

    def ask_leaders(self, seconds: float) -> None:
        _raise_failure(self._consumer.ask_leaders(round(seconds * 1000)))

    def poll(self, most: int, seconds: float) -> Polled:
        found: list[Run | Told] = []
        num_messages = num_bytes = 0
        for entry in self._consumer.consume(most, round(seconds * 1000)):
            if isinstance(entry, tuple):
                topic, partition, offset, code, text = entry
                found.append(Told(None if topic is None else (topic, partition), offset, KafkaError(code, text)))
                num_messages += 1
            else:
                found.append(Run((entry.topic, entry.partition), [entry]))
                num_messages += len(entry)
                num_bytes += entry.num_bytes
        self._log()
        return Polled(found, num_messages, num_bytes)

    def pieces(self, messages: Sequence[Any]) -> Iterator[Rising | Unreadable]:
        for piece in self._consumer.columns(list(messages), MOST_COLUMN_BYTES):
            if len(piece) == 2:
                columns, leader_epoch = piece
                yield Rising(pa.record_batch(columns), leader_epoch)
            else:
                record = Record(*piece, headers=())  # type: ignore[misc]
                yield Unreadable(record, "a header key is not UTF-8")

    def uncounted(self, _: Collection[pa.RecordBatch]) -> int:
        """Nothing."""
        return 0

    def close(self) -> None:
        self._consumer.close()
        self._log()

    def _log(self) -> None:
        lines = self._consumer.log_lines()
        if self._logger is not None:
            for level, *line in lines:
                self._logger.log(level, "%s [%s] %s", *line)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _raise_failure(failure: tuple[int, str] | None) -> None:
    if failure is not None:
        raise KafkaException(KafkaError(*failure))
