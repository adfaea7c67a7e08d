"""Operations that a protocol may yield; the driver answers with the result or throws the store's error in."""

import time
import uuid
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar
from typing import Protocol as Interface

from archiver.commit.archive import refuse_lost_marker
from archiver.errors import Next, Situation, passing, what_next
from archiver.logs import LogEvent, log
from blockgz.errors import BlockgzError
from blockgz.kafka import LogBounds
from blockgz.store.retry import bounded_backoff
from blockgz.store.writer import Body, ContentTag, Store
from index_format.keys import PartitionKeys
from index_format.records import Record

R = TypeVar("R")
# A running protocol: yields operations, is sent their answers, returns R.
Protocol = Generator["Operation", Any, R]


@dataclass(frozen=True)
class Get:
    """Answer: StoredObject or None."""

    key: str


@dataclass(frozen=True)
class GetAll:
    """Answer: StoredObject or None for each key, in order."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Compute:
    """Do what takes long, and may read and write files and read the store; answer: what it gives."""

    work: Callable[[], Any]


@dataclass(frozen=True)
class Head:
    """Answer: ObjectHead or None."""

    key: str


@dataclass(frozen=True)
class PutIfAbsent:
    """Answer: True when stored, False when the key is taken."""

    key: str
    body: Body
    attempt: str


@dataclass(frozen=True)
class CompareAndSwap:
    """Answer: the new etag, or None when the object is another version."""

    key: str
    body: bytes
    expected: ContentTag | None


@dataclass(frozen=True)
class Wait:
    """Back off before another try; answer: None. `attempt` counts from 1. The driver may throw ShuttingDown in.

    `error` is what failed, if anything did; the driver throws it in if nobody should retry it now.
    """

    attempt: int
    cause: str
    error: BlockgzError | None = field(default=None, compare=False)


class NewToken:
    """Answer: a fresh random UUID as text."""


class Now:
    """Answer: the time, in ms since 1970."""


class StillAssigned:
    """Answer: whether the partition may be claimed, being still this process's."""


@dataclass(frozen=True)
class CourtesyFailed:
    """Report that something outside the archive was not done; answer: None."""

    key: str
    cause: str


# Above the end of any log: see ReadLogBounds.
NOW = 2**63 - 1


@dataclass(frozen=True)
class ReadLogBounds:
    """Answer: LogBounds of the partition; reread if the known ones end below `at_least`.

    With NOW they are always read.
    """

    at_least: int = 0


@dataclass(frozen=True)
class ConfirmTopic:
    """Answer: None, once the cluster names this id for the topic. BrokerUnreachable if it names none now."""

    topic_id: str


@dataclass(frozen=True)
class ReadLogRecord:
    """Answer: the Record at that offset, or None if the log no longer has one there."""

    offset: int


@dataclass(frozen=True)
class FindLogRecord:
    """Answer: the offset of the first record at or above that one, or None if the log ends before there is one."""

    offset: int


@dataclass(frozen=True)
class CheckUnclaimed:
    """Answer: None. MalformedObject where the partition was archived, and only its marker is missing."""

    keys: PartitionKeys


class ListClaimed:
    """Answer: an Inventory made from a listing of the archive."""


Operation = (
    Get
    | GetAll
    | Compute
    | Head
    | PutIfAbsent
    | CompareAndSwap
    | Wait
    | NewToken
    | Now
    | StillAssigned
    | CheckUnclaimed
    | CourtesyFailed
    | ReadLogBounds
    | ConfirmTopic
    | ReadLogRecord
    | ListClaimed
    | FindLogRecord
)


def retrying(operation: Operation) -> Protocol[Any]:
    """Retry what may pass (see archiver.errors) until the store or broker answers; only for operations that read."""
    attempt = 0
    while True:
        try:
            return (yield operation)
        except BlockgzError as failure:
            error = passing(failure)
        attempt += 1
        yield Wait(attempt, error.what, error)


REQUESTS_AT_ONCE = 8
# Waits before another try, by the number of the try and what failed; raises ShuttingDown to end a protocol.
BackOff = Callable[[int, BlockgzError | str], None]


class LogReader(Interface):
    """The partition's log, as recovery reads it."""

    def bounds(self, at_least: int) -> LogBounds:
        """Return the log's bounds, and ask for them again if the known ones end below `at_least`."""

    def record_at(self, offset: int) -> Record | None:
        """Return the record at that offset, or None if the log no longer has one there."""

    def first_record(self, offset: int) -> int | None:
        """Return the offset of the first record at or above that one, or None if there is none."""

    def confirm(self, topic_id: str) -> None:
        """Return once the cluster names this id for the topic; raise if it names none now, or another one."""


class UnreadLog:
    """A LogReader for tools that never compare the archive with Kafka."""

    def bounds(self, at_least: int) -> LogBounds:  # noqa: ARG002
        return LogBounds(0, 2**63 - 1)

    def record_at(self, offset: int) -> Record | None:  # noqa: ARG002
        return None

    def first_record(self, offset: int) -> int | None:  # noqa: ARG002
        return None

    def confirm(self, topic_id: str) -> None:
        """Return at once: the log is not compared."""


class Driver:
    """Carries out the operations of one partition's protocols."""

    def __init__(
        self,
        store: Store,
        log: LogReader | None = None,
        wait: BackOff | None = None,
        still_assigned: Callable[[], bool] = lambda: True,
        situation: Callable[[], Situation] = lambda: Situation.BOUNDED,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without a log, nothing is compared with Kafka; `wait` is by default that of a command.

        `situation` says whether failures are tried again now, `clock` the time, in seconds since 1970.
        """
        self._store = store
        self._log = log or UnreadLog()
        self._still_assigned = still_assigned
        self._clock = clock
        self.situation = situation
        self.wait = wait or bounded_backoff(store.url)

    def run(self, protocol: Protocol[R]) -> R:
        """Return the protocol's result, or raise what it raises."""
        try:
            operation = next(protocol)
            while True:
                try:
                    answer = self._carry_out(operation)
                # A protocol gets an interrupt as well, so that it can end between two operations.
                except (BlockgzError, KeyboardInterrupt) as error:
                    operation = protocol.throw(error)
                else:
                    operation = protocol.send(answer)
        except StopIteration as stop:
            result: R = stop.value
            return result

    def _carry_out(self, operation: Operation) -> Any:  # noqa: PLR0911
        match operation:
            case Compute(work):
                return work()
            case Get() | GetAll() | Head() | PutIfAbsent() | CompareAndSwap():
                return self._ask_store(operation)
            case Wait(attempt, cause, error):
                if error is not None and what_next(error, self.situation()) is not Next.AGAIN:
                    raise error
                return self.wait(attempt, error or cause)
            case NewToken():
                return str(uuid.uuid4())
            case Now():
                return round(self._clock() * 1000)
            case StillAssigned():
                return self._still_assigned()
            case CheckUnclaimed(keys):
                return refuse_lost_marker(self._store, keys)
            case CourtesyFailed(key, cause):
                return log.warning(LogEvent.COURTESY_FAILED, key=key, cause=cause)
            case ReadLogBounds() | ReadLogRecord() | FindLogRecord() | ConfirmTopic():
                return self._ask_log(operation)

    def _ask_store(self, operation: Get | GetAll | Head | PutIfAbsent | CompareAndSwap) -> Any:
        match operation:
            case Get(key):
                return self._store.get(key)
            case GetAll(keys):
                with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="get") as pool:
                    return list(pool.map(self._store.get, keys))
            case Head(key):
                return self._store.head(key)
            case PutIfAbsent(key, body, attempt):
                return self._store.put_if_absent(key, body, attempt)
            case CompareAndSwap(key, body, expected):
                return self._store.compare_and_swap(key, body, expected)

    def _ask_log(self, operation: ReadLogBounds | ReadLogRecord | FindLogRecord | ConfirmTopic) -> Any:
        match operation:
            case ReadLogBounds(at_least):
                return self._log.bounds(at_least)
            case ReadLogRecord(offset):
                return self._log.record_at(offset)
            case FindLogRecord(offset):
                return self._log.first_record(offset)
            case ConfirmTopic(topic_id):
                return self._log.confirm(topic_id)
