"""Positions committed in the cluster, and transactions: records and the position after them stand together or not."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from blockgz.errors import BlockgzError, BrokerUnreachable, UsageError
from blockgz.kafka.connection import (
    DENIED,
    NO_COORDINATOR_YET,
    ConnectionErrors,
    client_settings,
    kafka_failure,
    make_client,
)
from replayer.errors import CommitLost, DeliveryFailed, ProducerFenced
from replayer.kafka import CLIENT_ID
from replayer.replay.job import Job, Position
from replayer.replay.pipeline import Router
from replayer.replay.sinks.producer import (
    STOP_SECONDS,
    ReadBack,
    TopicProducer,
    at_once,
    producer_settings,
    read_back,
    routed,
)

P = TypeVar("P", bound=Position)

READ_SECONDS = 30.0
# A cluster that does not answer is waited for no longer as a client leaves.
CLOSE_SECONDS = 5.0
# How long a group may be without its coordinator, as it is while a broker starts.
COORDINATOR_SECONDS = 30.0
ASK_AGAIN_SECONDS = 0.2


class CommittedPositions(Generic[P]):
    """The positions of a job, as offsets committed in its consumer group.

    Uses clients that never join the group; used by one thread at a time.
    """

    def __init__(self, properties: Mapping[str, str], job: Job, decode: Callable[[int, str], P]) -> None:
        """`decode` makes a position of an offset and its metadata, or raises ReplayRefused. Raises UsageError."""
        self._target = job.target
        self._decode = decode
        self._connection_errors = ConnectionErrors()
        self._settings = {
            **client_settings(properties, CLIENT_ID),
            "group.id": job.group_id,
            "enable.auto.commit": False,
            "error_cb": self._connection_errors,
        }
        self._clients: dict[str, Consumer] = {}
        # Settings that are refused are refused here.
        self._client("read_uncommitted")

    def _client(self, isolation_level: str) -> Consumer:
        if isolation_level not in self._clients:
            settings = {**self._settings, "isolation.level": isolation_level}
            self._clients[isolation_level] = make_client(Consumer, settings)
        return self._clients[isolation_level]

    @property
    def group_metadata(self) -> Any:
        """The group metadata that a producer needs to commit."""
        return self._client("read_committed").consumer_group_metadata()

    def read(self, lanes: Iterable[int]) -> dict[int, P]:
        """Return what is committed now; an open transaction may still change it."""
        return self._read("read_uncommitted", lanes)

    def settled(self, lanes: Iterable[int]) -> dict[int, P]:
        """Return what is committed once no transaction is open for these lanes."""
        return self._read("read_committed", lanes)

    def write(self, positions: Mapping[int, P]) -> None:
        """Commit these positions, with no transaction about them; raises as `read` does."""
        wanted = [TopicPartition(self._target, lane, each.written, each.encoded()) for lane, each in positions.items()]
        if wanted:
            self._answers(
                lambda: self._client("read_uncommitted").commit(offsets=wanted, asynchronous=False), "written"
            )

    def close(self) -> None:
        """Close the clients; nothing can be read afterwards."""
        with suppress(NoAnswer):
            Calls().make(self._leave, CLOSE_SECONDS)

    def _leave(self) -> None:
        for client in self._clients.values():
            client.close()

    def _read(self, isolation_level: str, lanes: Iterable[int]) -> dict[int, P]:
        wanted = [TopicPartition(self._target, lane) for lane in lanes]
        if not wanted:
            return {}
        consumer = self._client(isolation_level)
        answers = self._answers(lambda: consumer.committed(wanted, timeout=READ_SECONDS), "read")
        # Only a position that this program wrote has metadata: another's offset is refused by its empty text.
        return {each.partition: self._decode(each.offset, each.metadata or "") for each in answers if each.offset >= 0}

    def _answers(self, call: Callable[[], list[TopicPartition] | None], done: str) -> list[TopicPartition]:
        def answers() -> list[TopicPartition]:
            told = call() or []
            for error in (each.error for each in told if each.error is not None):
                raise KafkaException(error)
            return told

        again = Retrying(
            retry=retry_if_exception(
                lambda error: isinstance(error, KafkaException) and error.args[0].code() in NO_COORDINATOR_YET
            ),
            wait=wait_fixed(ASK_AGAIN_SECONDS),
            stop=stop_after_delay(COORDINATOR_SECONDS),
            reraise=True,
        )
        try:
            return again(answers)
        except KafkaException as error:
            what = f"the job's positions in {self._target} cannot be {done}"
            raise kafka_failure(self._connection_errors.denied or error.args[0], what) from error


T = TypeVar("T")


class NoAnswer(Exception):
    """A call has not come back; it may do so later, or never, and what it works on is better left alone."""


class Calls:
    """Makes calls and waits for them, until `stop`; any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._waiting: set[Future[object]] = set()

    def make(self, call: Callable[[], T], seconds: float) -> T:
        """Return or raise what `call` does; raises NoAnswer after this many seconds, or at `stop`."""
        answer: Future[T] = Future()
        with self._lock:
            if self._stopped:
                raise NoAnswer
            self._waiting.add(answer)  # type: ignore[arg-type]
        try:
            # An abandoned thread keeps what it works on, and as a daemon does not keep the process from ending.
            threading.Thread(target=_settle, args=(call, answer), name="kafka-call", daemon=True).start()
            return answer.result(seconds)
        except TimeoutError:
            raise NoAnswer from None
        finally:
            with self._lock:
                self._waiting.discard(answer)

    def stop(self) -> None:
        """End all waiting: running calls count as not answered, and no more are made."""
        with self._lock:
            self._stopped = True
            for answer in self._waiting:
                with suppress(InvalidStateError):
                    answer.set_exception(NoAnswer())


def _settle(call: Callable[[], T], answer: Future[T]) -> None:
    with suppress(InvalidStateError):
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)


TRANSACTION_TIMEOUT_MS = 60_000
# How long the cluster may take for each step; less than the time after which it aborts a transaction.
ANSWER_SECONDS = 15.0
ABORT_SECONDS = 5.0
# Seconds after its own timeout until a call of librdkafka is given up, with its producer.
HANG_SECONDS = 5.0
RESUME = "fix the cause and continue with --resume"
RESERVED = ("message.timeout.ms", "transaction.timeout.ms", "transactional.id")

FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}
# Errors that another attempt would meet again.
HOPELESS = {
    *DENIED,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.OFFSET_METADATA_TOO_LARGE,
    KafkaError.POLICY_VIOLATION,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
}


class TransactionalSink(Generic[P]):
    """A few producers share the lanes: each commits its lanes in one transaction, and fences the same one of earlier
    runs of the job.
    """

    rolls_back = True

    def __init__(
        self,
        properties: Mapping[str, str],
        job: Job,
        positions: CommittedPositions[P],
        max_message_bytes: int | None = None,
        router: Router | None = None,
        producers: int | None = None,
    ) -> None:
        """`max_message_bytes` is the topic's, if it is known. Raises UsageError.

        A lane is a target partition, unless a `router` says where its records go, taking the lane for their source.
        Without a number of `producers`, each lane has one of its own.
        """
        for name in sorted(set(RESERVED) & properties.keys()):
            raise UsageError(f"-X {name} cannot be set", why="--transactional sets it itself", remedy="remove it")
        settings = producer_settings(properties, max_message_bytes)
        self._settings = {**settings, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS}
        self._look = partial(read_back, properties, job.target)
        self._job = job
        self._positions = positions
        self._router = router
        self._number_of = producers
        self._calls = Calls()
        self._producers: dict[int, _SharedProducer[P]] = {}

    def begin(self, lanes: Iterable[int]) -> Mapping[int, P]:
        """Fence other runs, end the transactions that they left open, and read the positions committed then.

        Raises ProducerFenced, CommitLost, AccessDenied, or what CommittedPositions raises.
        """
        wanted = list(lanes)
        at_once(_SharedProducer.drop, self._producers.values())
        for producer in self._producers.values():
            producer.raise_if_fenced()
        numbers = range(self._number_of) if self._number_of else wanted
        self._producers = {
            number: _SharedProducer(self._settings, self._job, number, self._calls, self._look) for number in numbers
        }
        at_once(_SharedProducer.init, self._producers.values())
        return self._settled(wanted)

    def stand_at(self, ends: Mapping[int, int]) -> None:
        for producer in self._producers.values():
            producer.producer.ends = ends

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        """Send into a transaction, which begins with it; raises DeliveryFailed, CommitLost or ProducerFenced."""
        for target, records in routed(self._router, lane, batch):
            self._producers[self._number(lane)].send(target, records)

    def acknowledged(self, *, wait: bool) -> Mapping[int, Any] | None:  # noqa: ARG002  # only all of it can be committed
        """Wait for everything: a transaction cannot be cut."""
        at_once(_SharedProducer.flush, self._producers.values())
        taken = {lane: told for each in self._producers.values() for lane, told in each.acknowledged().items()}
        return None if self._router is not None else taken

    def commit(self, positions: Mapping[int, P]) -> None:
        """End the transactions of these lanes, several at a time; raises as `send` does."""
        metadata = self._positions.group_metadata
        shares: dict[int, dict[int, P]] = {}
        for lane, position in positions.items():
            shares.setdefault(self._number(lane), {})[lane] = position
        at_once(lambda number: self._producers[number].commit(shares[number], metadata), shares)

    def stop(self) -> None:
        """Abort what is open, if the cluster answers soon; the next run would do it as well."""
        self._calls.stop()
        at_once(_SharedProducer.drop, self._producers.values())

    def _number(self, lane: int) -> int:
        return lane % self._number_of if self._number_of else lane

    def _settled(self, lanes: list[int]) -> Mapping[int, P]:
        what = f"the job's position in {self._job.target} is unknown"
        try:
            return self._calls.make(lambda: self._positions.settled(lanes), READ_SECONDS + HANG_SECONDS)
        except NoAnswer:
            raise CommitLost(what, why="the cluster does not answer", remedy=RESUME) from None
        except BrokerUnreachable as error:
            raise CommitLost(what, why=error.why, remedy=RESUME) from error


class _SharedProducer(Generic[P]):
    """The transactional producer of some lanes; a call that does not come back is the end of it."""

    def __init__(self, settings: Mapping[str, Any], job: Job, number: int, calls: Calls, look: ReadBack) -> None:
        settings = {**settings, "transactional.id": job.transactional_id(number)}
        self._number = number
        self.producer = TopicProducer(settings, job.target, look, self._meaning)
        self.acknowledged = self.producer.acknowledged
        self._client = self.producer.client
        self._calls = calls
        self._open = False
        self._dropped = False
        # True if it reported already that it is fenced.
        self._told = False
        self._last_word: KafkaError | None = None

    def init(self) -> None:
        """Fence the earlier owner of the transactional id, and end its open transaction."""
        self._do(lambda: self._client.init_transactions(ANSWER_SECONDS))

    def send(self, partition: int, batch: pa.RecordBatch) -> None:
        self._begin()
        self.producer.send(partition, batch)

    def flush(self) -> None:
        if self._open:
            self.producer.flush()

    def commit(self, positions: Mapping[int, P], group_metadata: Any) -> None:
        self._begin()
        topic = self.producer.topic
        places = [TopicPartition(topic, lane, each.written, each.encoded()) for lane, each in positions.items()]
        self._do(lambda: self._client.send_offsets_to_transaction(places, group_metadata, ANSWER_SECONDS))
        self._do(lambda: self._client.commit_transaction(ANSWER_SECONDS))
        self._open = False

    def drop(self) -> None:
        """Drop this producer; its open transaction is aborted, unless the cluster does not answer."""
        if self._dropped:
            return
        self._dropped = True
        calls = Calls()
        with suppress(NoAnswer):
            if self._open:
                calls.make(self._abort, ABORT_SECONDS + HANG_SECONDS)
            calls.make(self.producer.stop, STOP_SECONDS + HANG_SECONDS)

    def _abort(self) -> None:
        try:
            self._client.abort_transaction(ABORT_SECONDS)
        except KafkaException as error:
            self._last_word = error.args[0]

    def raise_if_fenced(self) -> None:
        """After `drop`: raise ProducerFenced, once, if another run may write; otherwise this run would take it back."""
        word = None if self._told else self.producer.connection_errors.fatal or self._last_word
        if word is not None and word.code() in FENCED:
            raise self._fenced(word)

    def _begin(self) -> None:
        if not self._open:
            self._do(self._client.begin_transaction)
            self._open = True

    def _do(self, step: Callable[[], None]) -> None:
        """Take a step, again while librdkafka says that this is safe; raises what its failure means."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return self._calls.make(step, ANSWER_SECONDS + HANG_SECONDS)
            except NoAnswer:
                # The producer is left to the call: its thread keeps it, and a new one's epoch fences it.
                self._dropped = True
                raise self._lost("the Kafka client did not return in time", RESUME) from None
            except KafkaException as error:
                failure: KafkaError = error.args[0]
                if not failure.retriable() or time.monotonic() >= deadline:
                    self.producer.raise_failure()
                    raise self._meaning(None, failure) from error

    def _meaning(self, partition: int | None, error: KafkaError) -> BlockgzError:
        """`partition` is None for what concerns all of them."""
        cause = self.producer.connection_errors.fatal or error
        if cause.code() in FENCED:
            return self._fenced(cause)
        failure = self.producer.not_taken(partition, cause)
        if cause.code() in HOPELESS or not isinstance(failure, DeliveryFailed):
            return failure
        return self._lost(failure.why, failure.remedy)

    def _fenced(self, cause: KafkaError) -> ProducerFenced:
        self._told = True
        return ProducerFenced(
            f"the cluster accepts no more records from this run for {self.producer.topic}",
            why=f"another run of the same job started, or this one hung for too long ({cause.str()})",
            remedy="let the other run finish; if there is none, run this again with --resume",
        )

    def _lost(self, why: str, remedy: str) -> CommitLost:
        return CommitLost(
            f"a transaction for {self.producer.topic} was not committed",
            why=f"{why} (producer {self._number})",
            remedy=remedy,
        )
