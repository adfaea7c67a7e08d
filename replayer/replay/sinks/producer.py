"""Producers to one topic: batches of records in order, with their own timestamps; and the sink without transactions."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException

from blockgz.errors import AccessDenied, BlockgzError, UsageError
from blockgz.kafka.batch_producer import batch_producer
from blockgz.kafka.connection import DENIED, ConnectionErrors, client_settings
from index_format.records import iter_records, payload_bytes
from replayer.errors import DeliveryFailed, JobTakenOver
from replayer.kafka import CLIENT_ID
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.replay.job import LanePosition
from replayer.replay.pipeline import RoutedBatch, Router, ScannedBatch
from replayer.replay.request import DEFAULT, TYPE

NONE: Any = np.zeros(0, np.int64)
# The offsets of records of a partition, from an offset on: as many as the table has rows.
ReadBack = Callable[[int, int, pa.Table], list[int]]


class LaneReports:
    """The offsets that one partition's records got, as they become known."""

    def __init__(self, partition: int, end: int | None) -> None:
        """`end` is the log's end before the first record, if it is known."""
        self._partition = partition
        self._last = None if end is None else end - 1
        # Batches that are not settled, as they may have to be found in the log.
        self._sent: deque[pa.RecordBatch] = deque()
        self._told: Any = NONE
        self._settled: list[Any] = []

    def sent(self, batch: pa.RecordBatch) -> None:
        """Note that these records are handed over next."""
        self._sent.append(batch)

    def told(self, offsets: Any) -> None:
        """Note that the next records were acknowledged: int64 offsets, NO_OFFSET for one that was not reported."""
        self._told = np.concatenate([self._told, offsets])
        if self._told.min() >= 0:
            self._settle(self._told)

    def take(self, look: ReadBack, *, drained: bool) -> Any:
        """The offsets of what was acknowledged since the last call, in order, as an int64 array.

        Records without an offset wait for one behind them, unless all that was sent is acknowledged. Raises what
        `look` raises.
        """
        if len(self._told):
            self._settle(self._completed(self._told, look, drained=drained))
        settled, self._settled = self._settled, []
        return np.concatenate([NONE, *settled])

    def _settle(self, offsets: Any) -> None:
        """Settle the first reported offsets, and forget the records that were sent for them."""
        if len(offsets):
            self._told = self._told[len(offsets) :]
            self._last = int(offsets[-1])
            self._settled.append(offsets)
            _drop(self._sent, len(offsets))

    def _completed(self, told: Any, look: ReadBack, *, drained: bool) -> Any:
        known = np.flatnonzero(told >= 0)
        if not drained:
            told = told[: known[-1] + 1 if len(known) else 0]
        told = inferred(told, self._last)
        missing = np.flatnonzero(told < 0)
        if len(missing):
            first = int(missing[0])
            before = self._last if first == 0 else int(told[first - 1])
            rows = pa.Table.from_batches(self._sent).slice(first, len(told) - first)
            told[first:] = look(self._partition, 0 if before is None else before + 1, rows)
        return told


def inferred(told: Any, before: int | None) -> Any:
    """Fill in missing offsets between two known ones if exactly as many are missing as there are offsets between.

    `before` is the offset in front of the first one.
    """
    filled = told.copy()
    known = [(-1, before), *((int(at), int(told[at])) for at in np.flatnonzero(told >= 0))]
    for (left, low), (right, high) in pairwise(known):
        if low is not None and high is not None and right - left == high - low:
            filled[left + 1 : right] = np.arange(low + 1, high)
    return filled


def read_back(properties: Mapping[str, str], topic: str, partition: int, start: int, rows: pa.Table) -> list[int]:
    """Return the offsets, from `start` on, of `rows` in a topic's partition.

    Raises DeliveryFailed if they do not, or what KafkaReader raises.
    """
    end = KafkaAdmin(properties).watermarks(topic, [partition], "read_uncommitted")[partition].end
    with closing(KafkaReader(properties, "read_uncommitted")) as reader:
        offsets = found(rows, reader.read(topic, partition, start, end))
    if len(offsets) < rows.num_rows:
        raise DeliveryFailed(
            f"{rows.num_rows - len(offsets)} acknowledged records are not in {topic}:{partition}",
            why=f"the cluster accepted them without reporting their offsets, and they are not at [{start}..{end})",
            remedy="fix the cause and continue with --resume",
        )
    return offsets


def found(rows: pa.Table, log: Iterable[pa.RecordBatch]) -> list[int]:
    """Return the offsets of `rows` in a log, in order; skip other records between them."""
    wanted = [(each.key, each.value) for batch in rows.to_batches() for each in iter_records(batch)]
    offsets: list[int] = []
    for record in (record for batch in log for record in iter_records(batch)):
        if len(offsets) == len(wanted):
            break
        if (record.key, record.value) == wanted[len(offsets)]:
            offsets.append(record.offset)
    return offsets


def _drop(batches: deque[pa.RecordBatch], rows: int) -> None:
    """Remove the first rows."""
    while rows:
        batch = batches.popleft()
        if batch.num_rows > rows:
            batches.appendleft(batch.slice(rows))
            return
        rows -= batch.num_rows


T = TypeVar("T")

POLL_SECONDS = 0.1
STOP_SECONDS = 2.0
DEFAULT_BATCH_BYTES = 1_000_000
# Order and completeness rest on these; nobody overrides them.
SAFETY = {
    "acks": "all",
    "enable.idempotence": True,
    "max.in.flight.requests.per.connection": 5,
    "enable.gapless.guarantee": True,
}
SPEED = {
    "batch.num.messages": 100_000,
    TYPE: DEFAULT,
    "linger.ms": 20,
    "queue.buffering.max.kbytes": 32 * 1024,
    "queue.buffering.max.messages": 50_000,
    # The broker decides what is too large for it; this only keeps librdkafka from deciding before.
    "message.max.bytes": 1_000_000_000,
}
# Enough for five requests on their way to each of three leaders. The queue is larger, so that larger records fit.
WINDOW_BYTES = 16 * 1024 * 1024
PRODUCERS_AT_ONCE = 8
# How long a commit waits for the first records of partitions.
HELD_SECONDS = 1.0
# Idle seconds after which a partition counts as new: brokers forget a producer that is silent for a day.
SILENT_SECONDS = 600.0
# Codes of records that were not sent because of another record's fatal error.
AFTER_FATAL = {KafkaError._FATAL, KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE}
TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE)

# A function from a partition and librdkafka's error to the error to raise.
Meaning = Callable[[int, KafkaError], BlockgzError]


class TopicProducer:
    """A producer and what it reports; `send` and `flush` belong to one thread at a time, `stop` to any."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        look: ReadBack,
        meaning: Meaning | None = None,
        window: int = WINDOW_BYTES,
    ) -> None:
        """`settings` as `producer_settings` makes them; `meaning` instead of `not_taken`; `window`: bytes that it is
        handed before they are acknowledged. Raises UsageError.

        `look` reads back where records stand that were acknowledged without an offset.
        """
        self._look = look
        self._meaning = meaning or self.not_taken
        self._window = window
        self.connection_errors = ConnectionErrors()
        self.client = batch_producer({**settings, "error_cb": self.connection_errors}, topic)
        self.topic = topic
        # The ends of partitions before the first record, if they are known.
        self.ends: Mapping[int, int] = {}
        self._lanes: dict[int, LaneReports] = {}
        self._begins_alone = "transactional.id" not in settings
        self._last_sent: dict[int, float] = {}
        # Records by partition that wait until the one before them is acknowledged.
        self._held: dict[int, pa.RecordBatch] = {}
        self._answered: set[int] = set()
        self._failure: BlockgzError | None = None
        self._stopped = threading.Event()

    def send(self, partition: int, batch: pa.RecordBatch) -> None:
        """Hand over a batch of `records.SCHEMA`, no timestamp of it 0; wait for room in the producer's queue.

        Raises DeliveryFailed or AccessDenied as soon as it is known that a record was not taken.
        """
        if partition not in self._lanes:
            self._lanes[partition] = LaneReports(partition, self.ends.get(partition))
        while partition in self._held:
            self._serve(POLL_SECONDS)
        # No more records than make a window may be unanswered, if they are as large as these are.
        most = self._window * batch.num_rows // max(1, payload_bytes(batch))
        while len(self.client) + sum(held.num_rows for held in self._held.values()) > most:
            self._serve(POLL_SECONDS)
        now = time.monotonic()
        # Without transactions, the first record for a partition goes alone. A broker takes any sequence number from a
        # producer that it does not know in a partition: had it refused the first batch, it would take the next ones,
        # which were on their way. Once it has acknowledged one record, it refuses what follows a batch it refused.
        if self._begins_alone and now - self._last_sent.get(partition, -SILENT_SECONDS) >= SILENT_SECONDS:
            self._answered.discard(partition)
            self._held[partition], batch = batch.slice(1), batch.slice(0, 1)
        self._last_sent[partition] = now
        self._hand_over(partition, batch)
        self._serve(0)

    def _hand_over(self, partition: int, batch: pa.RecordBatch) -> None:
        self._lanes[partition].sent(batch)
        try:
            self.client.produce(partition, batch, self._wait_for_room)
        except KafkaException as error:
            # After a fatal error the report that says why may still be on its way.
            self.client.poll(POLL_SECONDS)
            self.raise_failure()
            raise self._meaning(partition, error.args[0]) from error

    def _release(self) -> None:
        """Hand over batches that waited for records which are acknowledged by now."""
        for partition in self._held.keys() & self._answered:
            # Waiting for room releases other batches.
            if (batch := self._held.pop(partition, None)) is not None and batch.num_rows:
                self._hand_over(partition, batch)

    def acknowledged(self) -> dict[int, Any]:
        """Return by partition the offsets of records that the cluster took since the last call: int64 arrays, in order.

        Also after a failure, which `send` and `flush` raise. Raises what reading back an offset raises.
        """
        with suppress(BlockgzError):
            # Nothing else may be sent for long, so what waits behind a first record is handed over here.
            deadline = time.monotonic() + HELD_SECONDS
            while self._held and time.monotonic() < deadline:
                self._serve(POLL_SECONDS)
        self.client.poll(0)
        drained = len(self.client) == 0
        self._collect()
        taken = {number: lane.take(self._look, drained=drained) for number, lane in self._lanes.items()}
        return {number: offsets for number, offsets in taken.items() if len(offsets)}

    def _collect(self) -> None:
        """Collect the reported offsets, and forget the records that they settle."""
        for number, offsets in self.client.delivered().items():
            self._lanes[number].told(offsets)
            self._answered.add(number)

    def flush(self) -> None:
        """Wait until the cluster has taken everything, which has a deadline of its own; raises as `send` does."""
        while self.client.flush(POLL_SECONDS) or self._held:
            self._collect()
            self.raise_failure()
            self.raise_if_stopped()
            self._release()
        self.raise_failure()
        # An empty queue means nothing once `stop` has emptied it.
        self.raise_if_stopped()

    def stop(self) -> None:
        """Drop unsent records, and wait a little for the rest; `send` and `flush` raise from now on."""
        self._remember_failure()
        self._stopped.set()
        # After a fatal error the client leaves a Python exception behind in purge, and the next callback trips over it.
        with suppress(KafkaException, SystemError):
            self.client.purge(in_flight=False)
            self.client.flush(STOP_SECONDS)

    def raise_failure(self) -> None:
        """Raise the first failure that was reported, and drop what comes after it: no record overtakes it."""
        self._remember_failure()
        if self._failure is not None:
            with suppress(KafkaException):
                self.client.purge(in_flight=False)
            raise self._failure

    def raise_if_stopped(self) -> None:
        """Raise DeliveryFailed after `stop`."""
        if self._stopped.is_set():
            raise DeliveryFailed(
                f"the records for {self.topic} were not delivered",
                why="the replay ended before the cluster answered",
                remedy="repeat the command with --resume",
            )

    def not_taken(self, partition: int | None, error: KafkaError) -> BlockgzError:
        """Return one of our errors for a record that was not taken; of which partition, if that is known."""
        if error.code() in AFTER_FATAL and self.connection_errors.fatal is not None:
            partition, error = None, self.connection_errors.fatal
        place = self.topic if partition is None else f"{self.topic}:{partition}"
        what = f"the cluster did not accept a record for {place}"
        failure = self.connection_errors.denied or self.connection_errors.first
        reason = error.str() if failure is None else f"{error.str()} ({failure.str()})"
        if error.code() in DENIED or self.connection_errors.denied is not None:
            remedy = "check the SASL settings (-X) and the ACLs: Write on the topic"
            return AccessDenied(what, why=reason, remedy=remedy)
        if any(KafkaError(code).str() in error.str() for code in TOO_LARGE):
            return DeliveryFailed(what, why=reason, remedy=f"raise max.message.bytes of topic {self.topic}")
        return DeliveryFailed(what, why=reason, remedy="fix the cause and continue with --resume")

    def _remember_failure(self) -> None:
        """Keep the first failure; records that `stop` drops are not failures."""
        if self._failure is None and not self._stopped.is_set() and (first := self.client.failure) is not None:
            self._failure = self._meaning(*first)

    def _serve(self, seconds: float) -> None:
        self.client.poll(seconds)
        self._collect()
        self.raise_failure()
        self.raise_if_stopped()
        self._release()

    def _wait_for_room(self, record_bytes: int) -> None:
        if len(self.client) == 0:
            raise DeliveryFailed(
                f"a record of {record_bytes} bytes does not fit in the producer's queue",
                why="queue.buffering.max.kbytes is smaller",
                remedy="raise it: -X queue.buffering.max.kbytes=1048576",
            )
        self._serve(POLL_SECONDS)


def producer_settings(properties: Mapping[str, str], max_message_bytes: int | None) -> dict[str, Any]:
    """Return the settings of a producer; `max_message_bytes` is the topic's, if it is known. Raises UsageError."""
    for name in sorted(SAFETY.keys() & properties.keys()):
        raise UsageError(f"-X {name} cannot be set", why="order and completeness depend on it", remedy="remove it")
    batch_bytes = min(DEFAULT_BATCH_BYTES, max_message_bytes or DEFAULT_BATCH_BYTES)
    return {"batch.size": batch_bytes, **SPEED, **client_settings(properties, CLIENT_ID), **SAFETY}


def routed(router: Router | None, lane: int, batch: pa.RecordBatch) -> Iterable[RoutedBatch]:
    """Return the batch by target partition: the lane itself, unless a router takes the lane for the source."""
    return [RoutedBatch(lane, batch)] if router is None else router.route(ScannedBatch(lane, batch))


def at_once(step: Callable[[T], None], of: Iterable[T]) -> None:
    """Take a step for all items, several at a time; raises the first failure in their order."""
    with ThreadPoolExecutor(PRODUCERS_AT_ONCE) as pool:
        for _ in pool.map(step, of):
            pass


MESSAGE_TIMEOUT_MS = 120_000
# Attempts to take over positions that another run still writes.
TRIES = 5


class PositionStore(Protocol):
    """A store of the positions of a job's lanes."""

    def read(self, lanes: Sequence[int], /) -> Mapping[int, LanePosition]:
        """Return the positions that were written last, by lane."""

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        """Replace the positions of these lanes, if any.

        Raises JobTakenOver if somebody else wrote since `read`, and the store can tell.
        """


class KafkaSink:
    """A sink whose lanes share a few producers. What the cluster took stays; its positions are noted afterwards."""

    rolls_back = False

    def __init__(
        self,
        properties: Mapping[str, str],
        topic: str,
        store: PositionStore,
        max_message_bytes: int | None = None,
        router: Router | None = None,
        timeout_ms: int = MESSAGE_TIMEOUT_MS,
        producers: int = 1,
    ) -> None:
        """Make a sink; `max_message_bytes` and `router` as for TransactionalSink. Raises UsageError."""
        settings = {"message.timeout.ms": timeout_ms, **producer_settings(properties, max_message_bytes)}
        look = partial(read_back, properties, topic)
        window = WINDOW_BYTES // producers
        # Each producer has its own requests in flight, which helps if the cluster is far away.
        self._producers = [TopicProducer(settings, topic, look, window=window) for _ in range(producers)]
        self._store = store
        self._router = router

    def begin(self, lanes: Iterable[int]) -> Mapping[int, LanePosition]:
        """Return the positions, once no earlier reader can write them."""
        lanes = tuple(lanes)
        for left in reversed(range(TRIES)):
            recorded = self._store.read(lanes)
            try:
                self._store.write({})
                break
            except JobTakenOver:
                if not left:
                    raise
        return {lane: recorded[lane] for lane in lanes if lane in recorded}

    def stand_at(self, ends: Mapping[int, int]) -> None:
        for producer in self._producers:
            producer.ends = ends

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        for target, records in routed(self._router, lane, batch):
            self._producers[target % len(self._producers)].send(target, records)

    def acknowledged(self, *, wait: bool) -> Mapping[int, Any] | None:
        if wait or self._router is not None:
            at_once(TopicProducer.flush, self._producers)
        taken = {lane: told for each in self._producers for lane, told in each.acknowledged().items()}
        return None if self._router is not None else taken

    def commit(self, positions: Mapping[int, LanePosition]) -> None:
        """Note the positions; raises what the store raises."""
        self._store.write(positions)

    def stop(self) -> None:
        at_once(TopicProducer.stop, self._producers)
