"""Running a protocol against a real store and a real log."""

import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from archiver.commit import operations as op
from archiver.commit.archive import refuse_lost_marker
from archiver.errors import Next, Situation, what_next
from archiver.logs import LogEvent, log
from blockgz.errors import BlockgzError
from blockgz.kafka import LogBounds
from blockgz.store.retry import bounded_backoff
from blockgz.store.writer import Store
from index_format.records import Record

R = TypeVar("R")
REQUESTS_AT_ONCE = 8
# Backs off, by how often something failed and what did; raises ShuttingDown to end a protocol.
Wait = Callable[[int, BlockgzError | str], None]


class LogReader(Protocol):
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
        wait: Wait | None = None,
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

    def run(self, protocol: op.Protocol[R]) -> R:
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

    def _carry_out(self, operation: op.Operation) -> Any:  # noqa: PLR0911
        match operation:
            case op.Compute(work):
                return work()
            case op.Get() | op.GetAll() | op.Head() | op.PutIfAbsent() | op.CompareAndSwap():
                return self._ask_store(operation)
            case op.Wait(attempt, cause, error):
                if error is not None and what_next(error, self.situation()) is not Next.AGAIN:
                    raise error
                return self.wait(attempt, error or cause)
            case op.NewToken():
                return str(uuid.uuid4())
            case op.Now():
                return round(self._clock() * 1000)
            case op.StillAssigned():
                return self._still_assigned()
            case op.CheckUnclaimed(keys):
                return refuse_lost_marker(self._store, keys)
            case op.CourtesyFailed(key, cause):
                return log.warning(LogEvent.COURTESY_FAILED, key=key, cause=cause)
            case op.ReadLogBounds() | op.ReadLogRecord() | op.FindLogRecord() | op.ConfirmTopic():
                return self._ask_log(operation)

    def _ask_store(self, operation: op.Get | op.GetAll | op.Head | op.PutIfAbsent | op.CompareAndSwap) -> Any:
        match operation:
            case op.Get(key):
                return self._store.get(key)
            case op.GetAll(keys):
                with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="get") as pool:
                    return list(pool.map(self._store.get, keys))
            case op.Head(key):
                return self._store.head(key)
            case op.PutIfAbsent(key, body, attempt):
                return self._store.put_if_absent(key, body, attempt)
            case op.CompareAndSwap(key, body, expected):
                return self._store.compare_and_swap(key, body, expected)

    def _ask_log(self, operation: op.ReadLogBounds | op.ReadLogRecord | op.FindLogRecord | op.ConfirmTopic) -> Any:
        match operation:
            case op.ReadLogBounds(at_least):
                return self._log.bounds(at_least)
            case op.ReadLogRecord(offset):
                return self._log.record_at(offset)
            case op.FindLogRecord(offset):
                return self._log.first_record(offset)
            case op.ConfirmTopic(topic_id):
                return self._log.confirm(topic_id)
