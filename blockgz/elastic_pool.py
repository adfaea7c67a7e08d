"""Threads for work that waits for a broker or a store, of which any piece may hang, and a regular question to one."""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# A task that takes longer waits for something that may never answer.
STALLED_SECONDS = 5.0
GROW_SECONDS = 1.0
MOST_THREADS = 512


_PoolTask = tuple[Future[Any], Callable[[], Any]]


def _carry_out(task: _PoolTask) -> None:
    future, call = task
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)


class ElasticPool(Executor):
    """A pool for `tasks_at_once` tasks and all that stall, up to MOST_THREADS: no task waits for those."""

    def __init__(self, tasks_at_once: int, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._tasks_at_once = tasks_at_once
        self._name = name
        self._clock = clock
        self._guard = threading.Lock()
        self._waiting: deque[_PoolTask] = deque()
        # When each thread began its task.
        self._begun: dict[threading.Thread, float] = {}
        self._growing: threading.Timer | None = None
        self._is_shut = False

    def submit(self, function: Callable[P, R], /, *args: P.args, **named: P.kwargs) -> Future[R]:
        future: Future[R] = Future()
        with self._guard:
            if self._is_shut:
                raise RuntimeError(f"the pool {self._name!r} is shut down")
            self._waiting.append((future, partial(function, *args, **named)))
        self.grow()
        return future

    def grow(self) -> None:
        """Begin tasks that wait, as far as they may begin now. The pool calls this itself, every GROW_SECONDS."""
        with self._guard:
            while self._waiting and self._may_begin():
                thread = threading.Thread(target=self._work, name=self._name, args=(self._waiting[0],))
                thread.daemon = True  # one that hangs forever does not keep the process
                self._begun[thread] = self._clock()
                try:
                    thread.start()
                except RuntimeError:  # no more threads now
                    del self._begun[thread]
                    break
                self._waiting.popleft()
            if self._waiting and (self._growing is None or not self._growing.is_alive()):
                self._growing = threading.Timer(GROW_SECONDS, self._grow_again)
                self._growing.daemon = True
                with suppress(RuntimeError):
                    self._growing.start()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; `wait` for those that were taken, except the cancelled."""
        with self._guard:
            self._is_shut = True
            if cancel_futures:
                while self._waiting:
                    self._waiting.popleft()[0].cancel()
        while wait and (threads := list(self._begun)):
            threads[0].join()

    def _grow_again(self) -> None:
        with self._guard:
            self._growing = None
        self.grow()

    def _may_begin(self) -> bool:
        stalled_since = self._clock() - STALLED_SECONDS
        moving = sum(begun > stalled_since for begun in self._begun.values())
        return moving < self._tasks_at_once and len(self._begun) < MOST_THREADS

    def _work(self, task: _PoolTask | None) -> None:
        thread = threading.current_thread()
        while task is not None:
            _carry_out(task)
            with self._guard:
                del self._begun[thread]
                task = self._waiting.popleft() if self._waiting and self._may_begin() else None
                if task is not None:
                    self._begun[thread] = self._clock()


Answer = TypeVar("Answer")


class RegularQuestion(Generic[Answer]):
    """A question to a broker or store, asked again `every_seconds` after its last answer, which nobody awaits."""

    def __init__(self, executor: Executor, every_seconds: float, answered_at: float | None = None) -> None:
        """`answered_at`: when the last answer came; None asks at once."""
        self._executor = executor
        self._every_seconds = every_seconds
        self._answered_at = answered_at
        self._asking: Future[Answer] | None = None

    def answer(self, now: float, ask: Callable[[], Answer]) -> Future[Answer] | None:
        """Return a new answer, or how it failed, each once; None while there is none. Asks when it is time."""
        if self._asking is None:
            if self._answered_at is None or now - self._answered_at >= self._every_seconds:
                self._asking = self._executor.submit(ask)
            return None
        if not self._asking.done():
            return None
        asking, self._asking, self._answered_at = self._asking, None, now
        return asking
