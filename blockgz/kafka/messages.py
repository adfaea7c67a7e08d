"""Messages of librdkafka as Arrow batches."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, pairwise, repeat
from operator import is_
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import Message as KafkaMessage

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
