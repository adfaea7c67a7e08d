"""Producing to one topic: batches of records in order, as they are, with their own timestamps."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Producer

from index_format.errors import BlockgzError
from index_format.records import has_headers, header_rows

from .errors import AccessDenied, DeliveryFailed, UsageError
from .kafka_settings import DENIED, Troubles, client_settings, make_client
from .republish import Delivered

ROOM_SECONDS = 0.1
STOP_SECONDS = 2.0
DEFAULT_BATCH_BYTES = 1_000_000
SAFETY = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 5,
    "enable.gapless.guarantee": True,
}
"""Order and completeness rest on these; nobody overrides them."""
SPEED = {
    "batch.num.messages": 100_000,
    "compression.type": "lz4",
    "linger.ms": 20,
    "message.timeout.ms": 120_000,
    "queue.buffering.max.kbytes": 64 * 1024,
    "queue.buffering.max.messages": 500_000,
    # The broker decides what is too large for it; this only keeps librdkafka from deciding before.
    "message.max.bytes": 1_000_000_000,
}
SEND_INSTEAD_OF_ZERO = 1
"""librdkafka takes timestamp 0 for "now", so such a record gets the next millisecond."""


class _Lane:
    """What is known of one target partition; its callbacks run while the producer is polled."""

    def __init__(self, sink: "KafkaSink", partition: int) -> None:
        self._sink = sink
        self.partition = partition
        self.records = 0
        self.zero_timestamps = 0
        self.first: Any = None
        self.newest: Any = None
        """The delivery reports of the first and of the newest record."""

    def on_first(self, error: KafkaError | None, message: Any) -> None:
        self.first = message
        self.on_delivery(error, message)

    def on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.newest = message
        else:
            self._sink.fail(self, error)

    @property
    def delivered(self) -> Delivered:
        if self.newest is None:
            return Delivered(self.records, None, None, self.zero_timestamps)
        return Delivered(self.records, self.first.offset(), self.newest.offset(), self.zero_timestamps)


class KafkaSink:
    """An idempotent producer to one topic; `send` and `flush` belong to one thread at a time, `stop` to any."""

    def __init__(self, properties: Mapping[str, str], topic: str, max_message_bytes: int | None = None) -> None:
        """`max_message_bytes` is the topic's, where it is known. Raises UsageError."""
        for name in sorted(SAFETY.keys() & properties.keys()):
            raise UsageError(f"-X {name} cannot be set", why="order and completeness rest on it", remedy="leave it out")
        batch_bytes = min(DEFAULT_BATCH_BYTES, max_message_bytes or DEFAULT_BATCH_BYTES)
        self._troubles = Troubles()
        settings = {"batch.size": batch_bytes, **SPEED, **client_settings(properties), **SAFETY}
        self._producer: Producer = make_client(Producer, {**settings, "error_cb": self._troubles})
        self._topic = topic
        self._lanes: dict[int, _Lane] = {}
        self._failure: BlockgzError | None = None
        self._stopped = threading.Event()

    def send(self, partition: int, batch: pa.RecordBatch) -> None:
        """Hands over a batch of `records.SCHEMA`; waits for room in the producer's queue.

        Raises DeliveryFailed or AccessDenied as soon as it is known that a record was not taken.
        """
        lane = self._lanes.setdefault(partition, _Lane(self, partition))
        timestamps = batch.column("timestamp").to_numpy()
        zeros = int(np.count_nonzero(timestamps == 0))
        if zeros:
            timestamps = np.where(timestamps == 0, SEND_INSTEAD_OF_ZERO, timestamps)
        rows = zip(
            batch.column("value").to_pylist(),
            batch.column("key").to_pylist(),
            timestamps.tolist(),
            map(list, header_rows(batch)) if has_headers(batch) else repeat(None),
            strict=False,
        )
        topic, callback = self._topic, lane.on_delivery
        produce: Callable[..., None] = self._producer.produce
        if lane.records == 0:
            self._produce(next(rows), partition, lane.on_first)
        try:
            for row in rows:
                value, key, timestamp, headers = row
                try:
                    produce(topic, value, key, partition, callback, None, timestamp, headers)
                except BufferError:
                    self._produce(row, partition, callback)
        except KafkaException as error:
            self._raise_failure()
            raise self._not_taken(lane, error.args[0]) from error
        lane.records += batch.num_rows
        lane.zero_timestamps += zeros
        self._producer.poll(0)
        self._raise_failure()

    def flush(self) -> dict[int, Delivered]:
        """Waits until the cluster has taken everything; what was written, by partition. Raises as `send` does."""
        while self._producer.flush(ROOM_SECONDS):
            self._raise_failure()
            self._raise_if_stopped()
        self._raise_failure()
        return self.delivered()

    def delivered(self) -> dict[int, Delivered]:
        """What is known to be written by now."""
        return {partition: lane.delivered for partition, lane in self._lanes.items()}

    def stop(self) -> None:
        """Drops what was not sent yet, and waits a little for the rest; `send` and `flush` raise from now on."""
        self._stopped.set()
        with suppress(KafkaException):
            self._producer.purge(in_flight=False)
            self._producer.flush(STOP_SECONDS)

    def fail(self, lane: _Lane, error: KafkaError) -> None:
        """Remembers the first failure and drops what comes after it, so that no record overtakes it."""
        if self._failure is None and not self._stopped.is_set():
            self._failure = self._not_taken(lane, error)
            with suppress(KafkaException):
                self._producer.purge(in_flight=False)

    def _produce(self, row: tuple[Any, Any, int, Any], partition: int, callback: Any) -> None:
        value, key, timestamp, headers = row
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, callback, None, timestamp, headers)
                return
            except BufferError as error:
                if len(self._producer) == 0:
                    raise DeliveryFailed(
                        f"a record of {len(value or b'') + len(key or b'')} bytes does not fit in the producer's queue",
                        why="queue.buffering.max.kbytes is smaller",
                        remedy="raise it: -X queue.buffering.max.kbytes=1048576",
                    ) from error
                self._producer.poll(ROOM_SECONDS)
            self._raise_failure()
            self._raise_if_stopped()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _raise_if_stopped(self) -> None:
        if self._stopped.is_set():
            raise DeliveryFailed("the replay was stopped")

    def _not_taken(self, lane: _Lane, error: KafkaError) -> BlockgzError:
        what = f"the cluster did not take a record for {self._topic}:{lane.partition}"
        trouble = self._troubles.denied or self._troubles.first
        reason = error.str() if trouble is None else f"{error.str()} ({trouble.str()})"
        if error.code() in DENIED or self._troubles.denied is not None:
            return AccessDenied(
                what, why=reason, remedy="check the SASL settings (-X) and the ACLs: Write on the topic"
            )
        if error.code() in (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE):
            return DeliveryFailed(what, why=reason, remedy=f"raise max.message.bytes of topic {self._topic}")
        return DeliveryFailed(what, why=reason, remedy="repair the cause and replay the rest with --from")
