"""Tasks that hang beside tasks that do not."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait

import pytest

from blockgz import elastic_pool
from blockgz.elastic_pool import STALLED_SECONDS, ElasticPool

AT_ONCE = 4
SECONDS = 10


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Until it is set, whoever waits for it hangs."""
    event = threading.Event()
    yield event
    event.set()


def running(tasks: list[Future[bool]]) -> int:
    return sum(each.running() for each in tasks)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline


def test_as_many_at_once_as_it_says() -> None:
    with ElasticPool(AT_ONCE, "test") as pool:
        begun, most, guard = 0, 0, threading.Lock()

        def work(number: int) -> int:
            nonlocal begun, most
            with guard:
                begun += 1
                most = max(most, begun)
            with guard:
                begun -= 1
            return number

        answers = [pool.submit(work, number) for number in range(200)]
        assert [answer.result(SECONDS) for answer in answers] == list(range(200))
    assert 1 <= most <= AT_ONCE


def test_tasks_that_stall_hold_up_nobody(clock: Clock, hanging: threading.Event) -> None:
    with ElasticPool(AT_ONCE, "test", clock) as pool:
        sick = [pool.submit(hanging.wait) for _ in range(3 * AT_ONCE)]
        healthy = pool.submit(lambda: "done")
        pool.grow()
        until(lambda: running(sick) == AT_ONCE)
        assert not healthy.running(), "until they stall they count"
        for _ in range(3):
            clock.now += STALLED_SECONDS
            pool.grow()
        assert healthy.result(SECONDS) == "done"
        assert not any(each.done() for each in sick)
        hanging.set()


def test_it_grows_by_itself(monkeypatch: pytest.MonkeyPatch, hanging: threading.Event) -> None:
    monkeypatch.setattr(elastic_pool, "STALLED_SECONDS", 0.01)
    monkeypatch.setattr(elastic_pool, "GROW_SECONDS", 0.01)
    with ElasticPool(1, "test") as pool:
        for _ in range(3):
            pool.submit(hanging.wait)
        assert pool.submit(lambda: "done").result(SECONDS) == "done"
        hanging.set()


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch, clock: Clock, hanging: threading.Event) -> None:
    monkeypatch.setattr(elastic_pool, "MOST_THREADS", 6)
    with ElasticPool(AT_ONCE, "test", clock) as pool:
        sick = [pool.submit(hanging.wait) for _ in range(10)]
        for _ in range(5):
            clock.now += STALLED_SECONDS
            pool.grow()
        until(lambda: running(sick) == 6)
        hanging.set()
        wait(sick, SECONDS)


def test_an_error_is_the_futures() -> None:
    def fails() -> None:
        raise KeyError("x")

    with ElasticPool(AT_ONCE, "test") as pool:
        assert isinstance(pool.submit(fails).exception(SECONDS), KeyError)


def test_shut_down(hanging: threading.Event) -> None:
    pool = ElasticPool(1, "test")
    running: Future[bool] = pool.submit(hanging.wait)
    waiting = pool.submit(hanging.wait)
    pool.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled() and not running.done()
    with pytest.raises(RuntimeError):
        pool.submit(hanging.wait)
    hanging.set()
    pool.shutdown()
    assert running.result() is True
