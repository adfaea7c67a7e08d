"""A question that is asked now and then, in a thread."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class RegularQuestion(Generic[Answer]):
    """Asks so many seconds after the last answer, and waits for none."""

    def __init__(self, executor: Executor, every_seconds: float, answered_at: float | None = None) -> None:
        """`answered_at`: when the last answer came; None asks at once."""
        self._executor = executor
        self._every_seconds = every_seconds
        self._answered_at = answered_at
        self._asking: Future[Answer] | None = None

    def answer(self, now: float, ask: Callable[[], Answer]) -> Future[Answer] | None:
        """A new answer, or how it failed, each once; None while there is none. Asks when it is time."""
        if self._asking is None:
            if self._answered_at is None or now - self._answered_at >= self._every_seconds:
                self._asking = self._executor.submit(ask)
            return None
        if not self._asking.done():
            return None
        asking, self._asking, self._answered_at = self._asking, None, now
        return asking
