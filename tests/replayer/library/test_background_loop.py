import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from replayer.library import BackgroundLoop

SECONDS = 10


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    loop = BackgroundLoop()
    yield loop
    loop.close()


class Endless:
    """Work that ends by being cancelled alone."""

    def __init__(self) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Endless:
    """Work at which its caller is interrupted, as by Ctrl-C."""
    endless = Endless()
    schedule = asyncio.run_coroutine_threadsafe

    class Interrupted:
        def __init__(self, future: Future[Any]) -> None:
            self._future = future

        def result(self) -> Any:
            while not endless.cancelled.is_set() and not self._future.done():
                if endless.begun.wait(0.01):
                    raise KeyboardInterrupt
            return self._future.result()

    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda *work: Interrupted(schedule(*work)))
    return endless


def test_an_interrupt_cancels_the_work_and_the_loop_continues(loop: BackgroundLoop, interrupted: Endless) -> None:
    with pytest.raises(KeyboardInterrupt):
        loop.run(interrupted.work())
    assert interrupted.cancelled.is_set()
    assert loop.run(asyncio.sleep(0, "next")) == "next"


def test_an_interrupt_ends_a_generator_that_is_at_work(loop: BackgroundLoop, interrupted: Endless) -> None:
    ended = threading.Event()

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
            await interrupted.work()
        finally:
            await asyncio.sleep(0)
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        list(loop.iterate(numbers()))
    assert ended.is_set()


def test_an_interrupt_before_the_work_begins(loop: BackgroundLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = Endless()

    def interrupt(made: Coroutine[Any, Any, Any], _: object) -> None:
        made.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(asyncio, "run_coroutine_threadsafe", interrupt)
        work = endless.work()
        with pytest.raises(KeyboardInterrupt):
            loop.run(work)
        work.close()
    assert not endless.begun.is_set()
    assert loop.run(asyncio.sleep(0, "next")) == "next"


def test_close_ends_what_other_threads_wait_for(loop: BackgroundLoop) -> None:
    endless = Endless()
    ended = threading.Event()

    def waits() -> None:
        with pytest.raises(CancelledError):
            loop.run(endless.work())
        ended.set()

    thread = threading.Thread(target=waits)
    thread.start()
    assert endless.begun.wait(SECONDS)
    loop.close()
    thread.join()
    assert ended.is_set()


def test_a_generator_that_is_left_is_ended(loop: BackgroundLoop) -> None:
    ended = threading.Event()

    async def numbers() -> AsyncGenerator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            ended.set()

    for number in loop.iterate(numbers()):
        if number == 3:
            break
    assert ended.is_set()
    assert list(loop.iterate(numbers())) == list(range(10))


def test_the_thread_that_makes_a_loop_has_none_of_its_own() -> None:
    BackgroundLoop().close()
    assert asyncio.run(asyncio.sleep(0, "mine")) == "mine"
