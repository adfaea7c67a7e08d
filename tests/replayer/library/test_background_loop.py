import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import CancelledError

import pytest

from replayer.library.background_loop import BackgroundLoop

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


def test_an_interrupt_cancels_the_work_and_the_loop_goes_on(loop: BackgroundLoop) -> None:
    endless, main = Endless(), threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        assert endless.begun.wait(SECONDS)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run(endless.work())
    thread.join()
    assert endless.cancelled.wait(SECONDS)
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
