"""Calls into librdkafka that may not come back: each in a thread of its own, for which nobody waits past a deadline.

`send_offsets_to_transaction` is known to ignore its timeout when the broker is killed meanwhile (librdkafka 2.16).
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """A call has not come back; it may do so later, or never, and what it works on is better left alone."""


class Calls:
    """Makes calls and waits for them, until `stop`; any number of threads may use it.

    A thread that is not waited for any more keeps what it works on, and does not keep the process from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._waiting: set[Future[object]] = set()

    def make(self, call: Callable[[], T], seconds: float) -> T:
        """What `call` returns or raises; raises NoAnswer after so many seconds, or at `stop`."""
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
        """Nobody waits any more: calls under way count as not answered, and none is made."""
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
