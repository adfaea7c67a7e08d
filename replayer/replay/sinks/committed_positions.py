"""The positions that jobs have committed in the cluster."""

import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from blockgz.kafka.connection import NO_COORDINATOR_YET, ConnectionErrors, kafka_failure
from blockgz.kafka.settings import client_settings, make_client
from replayer.kafka import CLIENT_ID
from replayer.replay.job import Job, Position

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
        """Return what is committed now; an open transaction may still change it.

        Raises ReplayRefused, AccessDenied or BrokerUnreachable.
        """
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
            retry=retry_if_exception(_has_no_coordinator_yet),
            wait=wait_fixed(ASK_AGAIN_SECONDS),
            stop=stop_after_delay(COORDINATOR_SECONDS),
            reraise=True,
        )
        try:
            return again(answers)
        except KafkaException as error:
            what = f"the job's positions in {self._target} cannot be {done}"
            raise kafka_failure(self._connection_errors.denied or error.args[0], what) from error


def _has_no_coordinator_yet(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in NO_COORDINATOR_YET


T = TypeVar("T")


class NoAnswer(Exception):
    """A call has not come back; it may do so later, or never, and what it works on is better left alone."""


class Calls:
    """Makes calls and waits for them, until `stop`; any number of threads may use it.

    An abandoned thread keeps what it works on, and does not keep the process from ending.
    """

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
