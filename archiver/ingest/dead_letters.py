"""Records that cannot be archived, produced to a topic with the headers of Kafka Connect's dead letter queues.

Names and formats of the headers: org.apache.kafka.connect.runtime.errors.DeadLetterQueueReporter.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from archiver.errors import DeadLetterRefused, UnencodableRecord
from archiver.ingest.kafka_source import Partition, dead_letter_settings
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied, BlockgzError, BrokerUnreachable, ShuttingDown
from blockgz.kafka.connection import DENIED, make_client
from index_format.record_formats import RecordFormat
from index_format.records import Record, record_at

Headers = list[tuple[str, bytes]]
PREFIX = "__connect.errors."
POLL_SECONDS = 0.1
CLOSE_SECONDS = 2.0
# Errors of a record that its topic did not take.
NOT_TAKEN = (AccessDenied, BrokerUnreachable, DeadLetterRefused)
TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)


def context_headers(
    partition: Partition, connector: str, record: Record, error: BlockgzError
) -> list[tuple[str, bytes]]:
    """Return the headers that Connect's sinks add to such a record, without a task's number and a stack trace."""
    # Names of classes are fixed text that consumers of dead letters may match; they do not follow our modules.
    of_format = isinstance(error, UnencodableRecord)
    values = {
        "topic": partition[0],
        "partition": partition[1],
        "offset": record.offset,
        "connector.name": connector,
        "stage": "TASK_PUT" if of_format else "HEADER_CONVERTER",
        "class.name": "archiver.ingest.chunk_builder.ChunkBuilder" if of_format else "confluent_kafka.Message",
        "exception.class.name": f"archiver.errors.{type(error).__qualname__}",
        "exception.message": error.reason,
    }
    return [(PREFIX + name, str(value).encode()) for name, value in values.items()]


class DeadLetterTopic:
    """The producer of a process, made when the first record comes. Safe for use by several threads."""

    def __init__(self, config: RunConfig) -> None:
        self._settings = dead_letter_settings(config)
        self.connector = config.group
        self.topic = str(config.dead_letter_topic)
        self._guard = threading.Lock()
        self._producer: Producer | None = None
        # Clients dropped so far. A record sent before the last drop, and not reported yet, will never be reported.
        self.clients_dropped = 0
        self._closed = threading.Event()

    def produce(self, record: Record, context: Headers, on_delivery: Callable[[Any, Any], None]) -> None:
        """Hand a record to the producer with more headers; wait for room in its queue. Raises as `DeadLetters.send`."""
        headers: list[Any] = [*record.headers, *context]
        timestamp = max(record.timestamp, 0)  # which means now; a record without one has -1
        while True:
            self.raise_if_closed()
            try:
                self._client().produce(
                    self.topic, record.value, record.key, on_delivery=on_delivery, timestamp=timestamp, headers=headers
                )
                return
            except BufferError as error:
                if len(self._client()) == 0:
                    raise DeadLetterRefused(
                        f"a record that cannot be archived does not fit in the queue for topic {self.topic}",
                        why="queue.buffering.max.kbytes is smaller",
                        remedy="raise it: -X queue.buffering.max.kbytes=1048576",
                    ) from error
                self.poll(POLL_SECONDS)
            except KafkaException as error:
                if error.args[0].code() in (KafkaError._FATAL, *DENIED):
                    self._drop_client()  # it would refuse for minutes what the broker takes by then
                raise self.failure(error.args[0]) from error

    def poll(self, seconds: float) -> None:
        """Serve delivery reports, those of other partitions as well."""
        producer = self._producer
        if producer is not None:
            producer.poll(seconds)

    def failure(self, error: KafkaError) -> BlockgzError:
        """Return the error of a partition whose record the topic did not take."""
        what = f"topic {self.topic} did not accept a record that cannot be archived"
        if error.code() in DENIED:
            return AccessDenied(what, why=error.str(), remedy=f"grant Write on topic {self.topic} to this user")
        if error.code() in TOO_LARGE:
            return DeadLetterRefused(what, why=error.str(), remedy=f"raise max.message.bytes of topic {self.topic}")
        return BrokerUnreachable(what, why=error.str(), remedy=f"check that topic {self.topic} can be written")

    def raise_if_closed(self) -> None:
        if self._closed.is_set():
            raise ShuttingDown(f"the run ended before topic {self.topic} accepted a record that cannot be archived")

    def close(self) -> None:
        """Close the producer without waiting: no chunk was committed that leaves unacknowledged records out."""
        self._closed.set()
        self._drop_client()

    def _client(self) -> Producer:
        with self._guard:
            if self._producer is None:
                self._producer = make_client(Producer, self._settings)
            return self._producer

    def _drop_client(self) -> None:
        with self._guard:
            producer, self._producer = self._producer, None
        if producer is not None:
            # After a fatal error the client leaves a Python exception behind in purge.
            with suppress(KafkaException, SystemError):
                producer.purge()
            with suppress(KafkaException, SystemError):
                producer.flush(CLOSE_SECONDS)  # serves the reports, those of other partitions as well
            with self._guard:
                self.clients_dropped += 1


class DeadLetters:
    """The records of one partition. `send` belongs to its builder's thread, the others to its committer's."""

    def __init__(self, topic: DeadLetterTopic, partition: Partition) -> None:
        self._topic = topic
        self._partition = partition
        # Records that the producer has and did not acknowledge, by offset, each with the clients dropped before.
        self._sent: dict[int, tuple[Record, BlockgzError, int]] = {}
        # Records that were not taken, by offset, and why; `settle` sends them again.
        self._refused: dict[int, tuple[Record, BlockgzError, KafkaError]] = {}
        # Why one of them was not taken, until `send` raises it: nothing piles up while the topic takes nothing.
        self._failure: KafkaError | None = None

    def send(self, record: Record, error: BlockgzError) -> None:
        """Produce a record that cannot be archived because of `error`, without waiting for its acknowledgement.

        It comes without its headers if the client cannot hand them over.

        Raises BrokerUnreachable, AccessDenied or DeadLetterRefused if the topic did not take it or one before it.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise self._topic.failure(failure)
        self._send(record, error)
        self._topic.poll(0)

    def send_objected(self, batch: pa.RecordBatch, record_format: RecordFormat) -> None:
        """Produce the records of a batch that the record format cannot hold. Raises as `send`."""
        for row, reason in record_format.objections(batch).items():
            record = record_at(batch, row)
            error = UnencodableRecord(record.offset, f"record format {record_format.name} {reason}")
            self.send(record, error)

    def settle(self, end: int) -> None:
        """Wait until all that was sent of offsets below `end` is acknowledged; what was not taken is sent again.

        Raises as `send`, and ShuttingDown when the run ends.
        """
        self._refuse_dropped()
        for offset in [offset for offset in list(self._refused) if offset < end]:
            refused = record, error, _ = self._refused.pop(offset)
            try:
                self._send(record, error)
            except BlockgzError:
                self._refused[offset] = refused
                raise
        while (first := self.first_open(end)) is not None:
            if first in self._refused:
                raise self._topic.failure(self._refused[first][2])
            self._refuse_dropped()
            self._topic.raise_if_closed()  # after it: the end of the run drops the client as well
            self._topic.poll(POLL_SECONDS)

    def first_open(self, end: int) -> int | None:
        """Return the lowest offset below `end` of a record that was sent and is not acknowledged."""
        return min((offset for offset in (*self._sent, *self._refused) if offset < end), default=None)

    def _refuse_dropped(self) -> None:
        """Take records as refused whose client was dropped before it reported: their fate is unknown."""
        for offset, (record, error, dropped) in list(self._sent.items()):
            if dropped < self._topic.clients_dropped:
                self._refused[offset] = record, error, KafkaError(KafkaError._PURGE_QUEUE)
                self._sent.pop(offset, None)

    def _send(self, record: Record, error: BlockgzError) -> None:
        offset = record.offset

        def on_delivery(failure: KafkaError | None, _: object) -> None:
            if failure is not None:
                self._refused[offset] = record, error, failure
                self._failure = failure
            self._sent.pop(offset, None)  # only now: at any time one of both has it

        self._sent[offset] = record, error, self._topic.clients_dropped
        try:
            context = context_headers(self._partition, self._topic.connector, record, error)
            self._topic.produce(record, context, on_delivery)
        except BlockgzError:
            self._sent.pop(offset, None)
            raise
