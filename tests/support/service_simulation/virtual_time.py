"""Virtual time: tasks that take turns, and what stands in for threads, locks, futures and clocks meanwhile."""

import heapq
import random
import sys
import uuid
from collections import deque
from collections.abc import Callable
from typing import Any

import greenlet

CODE_SECONDS = 0.0005
"""What a task takes at the least between being woken and going on, so that others may come first."""


class Host:
    """What tasks run on: a process that can be killed or frozen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.frozen_until = self.was_frozen_until = 0.0
        self.tasks: dict[Task, None] = {}
        self.held: list[tuple[Task, int, Any]] = []
        """Wake-ups that came while it was frozen."""


class Task:
    __slots__ = ("body", "host", "locks", "thread", "ticket")

    def __init__(self, host: Host, body: greenlet.greenlet) -> None:
        self.host = host
        self.body = body
        self.ticket = 0
        """Of the newest wait: a wake-up of an older one is stale."""
        self.locks: list[Lock] = []
        self.thread: Any = None
        """What current_thread gives."""


class Hub:
    """Runs tasks and timed calls in the order of virtual time; equal times in an order drawn from the seed."""

    def __init__(self, rng: random.Random, preempt_rate: float = 0.01) -> None:
        """`preempt_rate`: how often a task that takes a lock lets others run first."""
        self.rng = rng
        self.now = 0.0
        self.steps = 0
        self.failures: list[BaseException] = []
        """What tasks raised and nobody caught."""
        self.locks_held: dict[str, int] = {}
        """Locks that were held over a request, by where they were made."""
        self.current: Task | None = None
        self._preempt_rate = preempt_rate
        self._heap: list[tuple[float, float, int, Task | None, int, Any]] = []
        self._count = 0
        self._main = greenlet.getcurrent()

    def spawn(self, host: Host, work: Callable[..., Any], *args: Any) -> Task:
        task = Task(host, greenlet.greenlet(lambda _: self._live(task, work, args), self._main))
        host.tasks[task] = None
        self._push(self.now + self.rng.random() * CODE_SECONDS, task, 0, None)
        return task

    def call_at(self, when: float, action: Callable[[], Any]) -> None:
        """Call outside of any task; `action` must not wait."""
        self._push(max(when, self.now), None, 0, action)

    def run(self, until: float) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until:
            when, _, _, task, ticket, value = heapq.heappop(heap)
            if task is None:
                self.now = when
                value()
            elif ticket == task.ticket and not task.host.is_dead:
                if task.host.frozen_until > when:
                    task.host.held.append((task, ticket, value))
                    continue
                self.now = when
                self._switch_to(task, value)
        self.now = max(self.now, until)

    def park(self, timeout: float | None) -> bool:
        """Wait until `wake`; False where `timeout` seconds passed first."""
        task = self.current
        assert task is not None, "outside of a task nothing may wait"
        if task.host.is_dead:
            raise greenlet.GreenletExit
        if timeout is not None:
            self._push(self.now + timeout, task, task.ticket, False)
        return bool(self._main.switch())

    def sleep(self, seconds: float) -> None:
        self.park(seconds)

    def wake(self, task: Task) -> None:
        self._push(self.now + self.rng.random() * CODE_SECONDS, task, task.ticket, True)

    def maybe_preempt(self) -> None:
        task = self.current
        if task is not None and not task.host.is_dead and self.rng.random() < self._preempt_rate:
            self.sleep(self.rng.choice((0.001, 0.02, 0.3)))

    def freeze(self, host: Host, seconds: float) -> None:
        host.frozen_until = max(host.frozen_until, self.now + seconds)
        host.was_frozen_until = host.frozen_until
        self.call_at(host.frozen_until, lambda: self.thaw(host))

    def thaw(self, host: Host, *, now: bool = False) -> None:
        """End a frost that is over; with `now` also one that is not."""
        if now or host.frozen_until <= self.now:
            host.frozen_until = 0.0
            held, host.held = host.held, []
            for task, ticket, value in held:
                self._push(self.now, task, ticket, value)

    def kill(self, host: Host) -> None:
        """End all tasks of a host where they stand; only from outside of tasks."""
        self.current = None
        host.is_dead = True
        for task in list(host.tasks):
            self.current = task
            task.body.throw(greenlet.GreenletExit)
        self.current = None
        host.tasks.clear()

    def note_request(self, what: str) -> None:
        """A task asks somebody who may be slow: it must hold no lock that others wait for."""
        task = self.current
        if task is not None:
            for lock in task.locks:
                where = f"{lock.made_at} over {what}"
                self.locks_held[where] = self.locks_held.get(where, 0) + 1

    def _switch_to(self, task: Task, value: Any) -> None:
        task.ticket += 1
        self.steps += 1
        self.current = task
        task.body.switch(value)
        self.current = None

    def _live(self, task: Task, work: Callable[..., Any], args: tuple[Any, ...]) -> None:
        try:
            work(*args)
        except greenlet.GreenletExit:
            pass
        except BaseException as error:
            self.failures.append(error)
        if not task.host.is_dead:
            task.host.tasks.pop(task, None)

    def _push(self, when: float, task: Task | None, ticket: int, value: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self.rng.random(), self._count, task, ticket, value))


class _Now:
    """The hub of the schedule that runs now."""

    hub: Hub
    world: Any


NOW = _Now()


def made_at() -> str:
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_code.co_qualname}"


class Lock:
    def __init__(self) -> None:
        self.made_at = made_at()
        self._holder: Task | None = None
        self._is_held = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        hub = NOW.hub
        hub.maybe_preempt()
        task = hub.current
        while self._is_held:
            if not blocking or (task is not None and task.host.is_dead):
                return False
            assert task is not None, f"the lock of {self.made_at} is held, and nobody may wait for it here"
            self._waiting.append(task)
            if not hub.park(None if timeout < 0 else timeout):
                return False
        self._is_held, self._holder = True, task
        if task is not None:
            task.locks.append(self)
        return True

    def release(self) -> None:
        self._is_held = False
        if self._holder is not None and self in self._holder.locks:
            self._holder.locks.remove(self)
        self._holder = None
        while self._waiting:
            task = self._waiting.popleft()
            if not task.host.is_dead:
                NOW.hub.wake(task)
                return

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    def __init__(self) -> None:
        super().__init__()
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_held and self._holder is NOW.hub.current:
            self._depth += 1
            return True
        return super().acquire(blocking, timeout)

    def release(self) -> None:
        if self._depth:
            self._depth -= 1
        else:
            super().release()


class Condition:
    def __init__(self, lock: Any = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[Task] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> Any:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        task = NOW.hub.current
        assert task is not None
        self._waiting.append(task)
        self._lock.release()
        woken = NOW.hub.park(timeout)
        if task in self._waiting:
            self._waiting.remove(task)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        until = None if timeout is None else NOW.hub.now + timeout
        while not (result := predicate()):
            left = None if until is None else until - NOW.hub.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for task in self._waiting[:n]:
            self._waiting.remove(task)
            NOW.hub.wake(task)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    def __init__(self) -> None:
        self._is_set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            NOW.hub.wake(task)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            task = NOW.hub.current
            assert task is not None
            self._waiting.append(task)
            if not NOW.hub.park(timeout) and task in self._waiting:
                self._waiting.remove(task)
        return self._is_set


class Thread:
    """Also a daemon: nothing outlives its host."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Any = (),
        kwargs: Any = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._work, self._args, self._named = target, args, kwargs or {}
        self._ended = Event()
        self._is_started = False

    def start(self) -> None:
        task = NOW.hub.current
        assert task is not None
        self._is_started = True
        NOW.hub.spawn(task.host, self._live).thread = self

    def run(self) -> None:
        if self._work is not None:
            self._work(*self._args, **self._named)

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def is_alive(self) -> bool:
        return self._is_started and not self._ended.is_set()

    def _live(self) -> None:
        try:
            self.run()
        finally:
            self._ended.set()


class Timer(Thread):
    def __init__(self, interval: float, function: Callable[..., Any], args: Any = (), kwargs: Any = None) -> None:
        super().__init__(target=function, args=args, kwargs=kwargs)
        self._interval = interval
        self._cancelled = Event()

    def cancel(self) -> None:
        self._cancelled.set()

    def run(self) -> None:
        if not self._cancelled.wait(self._interval):
            super().run()


def current_thread() -> Any:
    task = NOW.hub.current
    assert task is not None
    if task.thread is None:
        task.thread = Thread(name=task.host.name)
    return task.thread


class Future:
    """As concurrent.futures.Future; `cancel` succeeds where nobody runs it yet."""

    def __init__(self) -> None:
        self._done = Event()
        self._result: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Any], Any]] = []
        self._is_running = self._is_cancelled = False

    def done(self) -> bool:
        return self._done.is_set()

    def running(self) -> bool:
        return self._is_running and not self.done()

    def cancelled(self) -> bool:
        return self._is_cancelled

    def cancel(self) -> bool:
        if self._is_running or self.done():
            return self._is_cancelled
        self._is_cancelled = True
        self.set_exception(CancelledError())
        return True

    def set_running_or_notify_cancel(self) -> bool:
        self._is_running = not self._is_cancelled
        return self._is_running

    def set_result(self, result: Any) -> None:
        self._result = result
        self._finish()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._finish()

    def result(self, timeout: float | None = None) -> Any:
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done.wait(timeout):
            raise TimeoutError
        return self._error

    def add_done_callback(self, callback: Callable[[Any], Any]) -> None:
        if self.done():
            callback(self)
        else:
            self._callbacks.append(callback)

    def _finish(self) -> None:
        self._done.set()
        for callback in self._callbacks:
            callback(self)

    def __class_getitem__(cls, _: Any) -> Any:
        return cls


class CancelledError(Exception):
    pass


class Pool:
    """As ThreadPoolExecutor."""

    def __init__(self, max_workers: int = 8, thread_name_prefix: str = "", **_: Any) -> None:
        self._most = max_workers
        self._workers = 0
        self._queue: deque[tuple[Future, Callable[..., Any], Any, Any]] = deque()
        self._is_closed = False
        self._idle = Event()

    def submit(self, work: Callable[..., Any], /, *args: Any, **named: Any) -> Future:
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future, task = Future(), NOW.hub.current
        assert task is not None
        self._queue.append((future, work, args, named))
        if self._workers < self._most:
            self._workers += 1
            self._idle.clear()
            NOW.hub.spawn(task.host, self._work)
        return future

    def map(self, work: Callable[..., Any], *columns: Any) -> Any:
        return (future.result() for future in [self.submit(work, *each) for each in zip(*columns, strict=False)])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._is_closed = True
        while cancel_futures and self._queue:
            self._queue.popleft()[0].cancel()
        if wait and self._workers:
            self._idle.wait()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _work(self) -> None:
        try:
            while self._queue:
                future, work, args, named = self._queue.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    future.set_result(work(*args, **named))
                except greenlet.GreenletExit:
                    raise
                except BaseException as error:
                    future.set_exception(error)
        finally:
            self._workers -= 1
            if not self._workers:
                self._idle.set()


class Shadow:
    """A module with some of its names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self._module = module
        vars(self).update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def monotonic() -> float:
    return NOW.hub.now


def wall() -> float:
    return 1_760_000_000.0 + NOW.hub.now


def sleep(seconds: float) -> None:
    NOW.hub.sleep(seconds)


def uniform(low: float, high: float) -> float:
    return NOW.hub.rng.uniform(low, high)


def seeded_uuid() -> uuid.UUID:
    return uuid.UUID(int=NOW.hub.rng.getrandbits(128), version=4)
