"""Producers that take whole batches: by the C extension if it is in use, otherwise by confluent-kafka's Producer.

Both hand over the same records and report the same about them. Any thread may use them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from blockgz.kafka.connection import make_client
from blockgz.kafka.fetching import KERNEL, kernel_takes, pass_log_on, raise_failure, setting_text
from index_format import arrow_functions as pc
from index_format.records import SCHEMA, Record, has_headers, header_rows, iter_records, payload_bytes

# The offset of a record that was acknowledged without one.
NO_OFFSET = -1
# Records that become Python objects at a time.
ROWS_AT_ONCE = 1000
# Settings that the wrapper calls, not librdkafka.
CALLED = {"error_cb", "logger"}
# With it, librdkafka would keep to itself what `delivered` has to tell.
ONLY_IN_PYTHON = {"delivery.report.only.error"}
PURGE_QUEUE, PURGE_IN_FLIGHT = 1, 2

# Called when the producer's queue has no room for a record of so many bytes; what it raises ends the handing over.
Full = Callable[[int], None]


class KernelProducer:
    """A producer to one topic in C, without the interpreter's lock. Times are in seconds.

    What librdkafka refuses is a KafkaException. Errors of connections and log lines go to the settings' `error_cb` and
    `logger`, in the threads that serve the client.
    """

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Raise ValueError for settings that librdkafka refuses."""
        plain = dict(settings)
        self._report: Callable[[KafkaError], None] = plain.pop("error_cb", lambda _: None)
        self._logger = plain.pop("logger", None)
        self._client = KERNEL.module.Producer({name: setting_text(value) for name, value in plain.items()}, topic)

    def produce(self, partition: int, batch: pa.RecordBatch, full: Full) -> None:
        """Hand over a batch of `records.SCHEMA`, in order; call `full` whenever there is no room."""
        if batch.schema != SCHEMA:
            batch = batch.select(SCHEMA.names).cast(SCHEMA)
        exported = batch.__arrow_c_array__()
        row = 0
        while row < batch.num_rows:
            taken, error = self._client.produce(partition, *exported, row)
            row += taken
            raise_failure(error)
            if row < batch.num_rows:
                full(payload_bytes(batch.slice(row, 1)))

    def delivered(self) -> dict[int, Any]:
        """Return by partition the offsets acknowledged since the last call, in order: int64 arrays."""
        return {number: np.frombuffer(told, np.int64) for number, told in self._client.delivered().items()}

    @property
    def failure(self) -> tuple[int, KafkaError] | None:
        """Return the first record that was not taken: its partition, and why."""
        told = self._client.failure()
        return None if told is None else (told[0], KafkaError(*told[1:]))

    def __len__(self) -> int:
        """Return how many records are not acknowledged yet."""
        return int(self._client.waiting())

    def poll(self, seconds: float) -> int:
        """Serve the client, for that long if there is nothing to serve."""
        return self._served(self._client.poll(_milliseconds(seconds)))

    def flush(self, seconds: float) -> int:
        """Serve the client until all is acknowledged; return how many records are not."""
        return self._served(self._client.flush(_milliseconds(seconds)))

    def purge(self, *, in_flight: bool) -> None:
        """Drop records that were not sent, and with `in_flight` those that were."""
        raise_failure(self._client.purge(PURGE_QUEUE | (PURGE_IN_FLIGHT if in_flight else 0)))

    def init_transactions(self, seconds: float) -> None:
        self._stepped(self._client.init_transactions(_milliseconds(seconds)))

    def begin_transaction(self) -> None:
        self._stepped(self._client.begin_transaction())

    def send_offsets_to_transaction(
        self, places: Sequence[TopicPartition], group_metadata: bytes, seconds: float
    ) -> None:
        plain = [(each.topic, each.partition, each.offset, each.metadata or "") for each in places]
        self._stepped(self._client.send_offsets_to_transaction(plain, group_metadata, _milliseconds(seconds)))

    def commit_transaction(self, seconds: float) -> None:
        self._stepped(self._client.commit_transaction(_milliseconds(seconds)))

    def abort_transaction(self, seconds: float) -> None:
        self._stepped(self._client.abort_transaction(_milliseconds(seconds)))

    def _stepped(self, error: tuple[Any, ...] | None) -> None:
        self._served(0)
        raise_failure(error)

    def _served(self, count: int) -> int:
        """Pass on log lines and errors that the client has collected."""
        pass_log_on(self._client, self._logger)
        for told in self._client.errors():
            self._report(KafkaError(*told))
        return count


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


class ConfluentProducer:
    """A producer by confluent-kafka, with the methods of KernelProducer: every record becomes Python objects."""

    def __init__(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Raise what confluent-kafka raises for settings that are refused."""
        self._topic = topic
        self._client = client = Producer(dict(settings))
        self._delivered: dict[int, list[int]] = {}
        self.failure: tuple[int, KafkaError] | None = None
        self._report: Callable[[KafkaError], None] = settings.get("error_cb", lambda _: None)
        self.init_transactions, self.begin_transaction = client.init_transactions, client.begin_transaction
        self.send_offsets_to_transaction = client.send_offsets_to_transaction
        self.commit_transaction, self.abort_transaction = client.commit_transaction, client.abort_transaction

    def produce(self, partition: int, batch: pa.RecordBatch, full: Full) -> None:
        offsets = self._delivered.setdefault(partition, [])
        on_delivery = partial(self._on_delivery, partition, offsets.append)
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            self._produce(partition, batch.slice(start, ROWS_AT_ONCE), on_delivery, full)
            self.poll(0)
            if self.failure is not None:
                break

    def delivered(self) -> dict[int, Any]:
        told = {number: offsets[:] for number, offsets in list(self._delivered.items()) if offsets}
        for number, taken in told.items():
            del self._delivered[number][: len(taken)]
        return {number: np.array(taken, np.int64) for number, taken in told.items()}

    def __len__(self) -> int:
        return len(self._client)

    def poll(self, seconds: float) -> int:
        return self._served(self._client.poll, seconds)

    def flush(self, seconds: float) -> int:
        return self._served(self._client.flush, seconds)

    def _served(self, serve: Callable[[float], int], seconds: float) -> int:
        """Serve the client; its wrapper raises a fatal error in place of calling `error_cb`."""
        try:
            return serve(seconds)
        except KafkaException as error:
            self._report(error.args[0])
            return len(self._client)

    def purge(self, *, in_flight: bool) -> None:
        self._client.purge(in_flight=in_flight)

    def _on_delivery(
        self, partition: int, append: Callable[[int], None], error: KafkaError | None, message: Any
    ) -> None:
        if error is None:
            offset = message.offset()
            append(NO_OFFSET if offset is None else offset)
        elif self.failure is None:
            self.failure = (partition, error)

    def _produce(self, partition: int, batch: pa.RecordBatch, on_delivery: Callable[..., None], full: Full) -> None:
        rows = zip(
            batch.column("value").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("timestamp").to_pylist(),
            map(list, header_rows(batch)) if has_headers(batch) else repeat(None),
            strict=False,
        )
        topic = self._topic
        produce: Callable[..., None] = self._client.produce
        for value, key, timestamp, headers in rows:
            while True:
                try:
                    produce(topic, value, key, partition, on_delivery, None, timestamp, headers)
                    break
                except BufferError:
                    full(len(value or b"") + len(key or b""))


# Bytes of a batch in front of its first record.
BATCH_BYTES = 61
# More than lengths and counts of a record without headers take.
ROOM = 128
# Compressed sizes differ between libraries: one so little above the limit is left to the broker.
MARGIN = 1.05


def sizes_above(batch: pa.RecordBatch, limit: int, codec: str) -> Iterator[tuple[int, int]]:
    """Yield offset and size of the records that are larger than `limit` in a batch of their own, even compressed."""
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("key", "value")]
    most = pc.add(lengths[0].cast(pa.int64()), lengths[1].cast(pa.int64()))
    # All headers of the batch are more than those of one record: few batches have any.
    candidates = batch.filter(pc.greater(most, limit - ROOM - batch.column("headers").nbytes))
    for record in iter_records(candidates):
        content = _encoded(record)
        size = BATCH_BYTES + len(content)
        if size <= limit:
            continue
        if codec == "none" or (size := BATCH_BYTES + len(pa.compress(content, codec=codec))) > limit * MARGIN:
            yield record.offset, size


def _encoded(record: Record) -> bytes:
    """Return a record as the first of a batch."""
    parts = [b"\0\0\0", _sized(record.key), _sized(record.value), _varint(len(record.headers))]
    for key, value in record.headers:
        parts += [_sized(key.encode()), _sized(value)]
    content = b"".join(parts)
    return _varint(len(content)) + content


def _sized(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    rest, digits = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        digits.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*digits, rest])


BatchProducer = KernelProducer | ConfluentProducer


def batch_producer(settings: dict[str, Any], topic: str) -> BatchProducer:
    """Return a producer to `topic`, in C if it can be; raises as `make_client`."""
    plain = {name: value for name, value in settings.items() if name not in CALLED}
    in_c = kernel_takes(plain) and not ONLY_IN_PYTHON & plain.keys()
    kind = KernelProducer if in_c else ConfluentProducer
    producer: BatchProducer = make_client(partial(kind, topic), settings)
    return producer
