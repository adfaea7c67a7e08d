"""Reading partitions of a topic from one offset to another as Arrow batches."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from blockgz.errors import BrokerUnreachable, PartitionUnavailable
from blockgz.kafka.connection import UNREACHABLE, ConnectionErrors, client_settings, kafka_failure, make_client
from blockgz.kafka.fetching import UnreadableMessage, batch_of, readable_runs
from replayer.kafka import CLIENT_ID

MESSAGES_A_POLL = 2000
POLL_SECONDS = 0.1
# How long nothing may arrive before the log is taken to be unreadable.
SILENCE_SECONDS = 30.0
FETCHING = {
    "fetch.queue.backoff.ms": 10,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 64 * 1024,
    "fetch.message.max.bytes": 8 * 1024 * 1024,
    "fetch.wait.max.ms": 10,
    "check.crcs": True,
}


class KafkaReader:
    """One consumer, without a group's offsets; all methods belong to one thread at a time."""

    def __init__(self, properties: Mapping[str, str], isolation_level: str = "read_committed") -> None:
        """Raise UsageError for settings that librdkafka refuses."""
        self._connection_errors = ConnectionErrors()
        settings = {
            **FETCHING,
            "group.id": "blockgz-replayer",
            **client_settings(properties, CLIENT_ID),
            "isolation.level": isolation_level,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "error_cb": self._connection_errors,
        }
        self._consumer: Consumer = make_client(Consumer, settings)

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the readable records of offsets [start, end), in order, as batches of `records.SCHEMA`, never empty.

        `end` is at most the log's end; its last offsets may hold no record. One partition at a time: iterate to the
        end, or close the iterator. Raises BrokerUnreachable, AccessDenied or PartitionUnavailable.
        """
        if start >= end:
            return
        self._consumer.assign([TopicPartition(topic, partition, start)])
        try:
            yield from self._batches(f"{topic}:{partition}", start, end)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """Leave the cluster; the consumer cannot be used afterwards."""
        self._consumer.close()

    def _batches(self, place: str, start: int, end: int) -> Iterator[pa.RecordBatch]:
        heard = time.monotonic()
        while True:
            # Request no more messages than exist: a poll that gets fewer than requested waits for its whole timeout.
            messages: list[Any] = self._consumer.consume(min(MESSAGES_A_POLL, end - start), POLL_SECONDS)
            records = [message for message in messages if message.error() is None]
            if records:
                inside = records if records[-1].offset() < end else [each for each in records if each.offset() < end]
                if inside:
                    yield from _readable(place, inside)
                if inside is not records or records[-1].offset() + 1 >= end:
                    return
                heard, start = time.monotonic(), records[-1].offset() + 1
            if len(records) < len(messages):
                errors = [message for message in messages if message.error() is not None]
                if any(_ends(place, message, end) for message in errors):
                    return
            if self._connection_errors.denied is not None:
                raise kafka_failure(self._connection_errors.denied, f"{place} cannot be read")
            if time.monotonic() - heard > SILENCE_SECONDS:
                failure = self._connection_errors.first
                raise BrokerUnreachable(
                    f"{place} cannot be read to its end",
                    why=failure.str() if failure else f"nothing arrived for {SILENCE_SECONDS:g} seconds",
                    remedy="check -b and that the broker is up",
                )


def _ends(place: str, message: Any, end: int) -> bool:
    """Return whether an event reports that the end is reached. Raises if it reports that it never will be."""
    error: KafkaError = message.error()
    if error.code() == KafkaError._PARTITION_EOF:
        # A lower end comes from a broker that has not heard of the newest records yet.
        return int(message.offset()) >= end
    # The client asks for its group's coordinator although no group is used: a refusal of that does not matter.
    if error.code() in UNREACHABLE or error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
        return False
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise PartitionUnavailable(
            f"{place} cannot be read from the wanted offset",
            why=error.str(),
            remedy="records were deleted in the meantime: run it again",
        )
    raise kafka_failure(error, f"{place} cannot be read")


def _readable(place: str, messages: Sequence[Any]) -> Iterator[pa.RecordBatch]:
    for run in readable_runs(messages):
        if isinstance(run, UnreadableMessage):
            raise PartitionUnavailable(
                f"the record at {place}:{run.record.offset} cannot be read by the Kafka client", why=run.why
            )
        yield batch_of(*run)
