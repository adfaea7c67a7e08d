"""An event loop in a thread of its own: async work for synchronous callers, those within a running loop among them."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

from blockgz.errors import UsageError

T = TypeVar("T")


class _Call:
    """Some work in the loop, for a caller who may give it up before it begins."""

    def __init__(self) -> None:
        self.given_up = False
        self.ended = threading.Event()
        self._task: asyncio.Task[Any] | None = None

    async def made(self, work: Coroutine[Any, Any, T]) -> T:
        if self.given_up:
            work.close()
            raise asyncio.CancelledError
        self._task = asyncio.current_task()
        try:
            return await work
        finally:
            self.ended.set()

    def cancel(self) -> None:
        """In the loop's thread."""
        if self._task is None:
            self.ended.set()
        else:
            self._task.cancel()


class BackgroundLoop:
    """Runs coroutines for callers in other threads; `close` cancels what is still at work."""

    def __init__(self) -> None:
        # With a factory, because else the caller's thread would be given this loop as its own.
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self.closed = False
        self._thread = threading.Thread(target=self._serve, name="replayer", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of some work; an interrupt of the caller cancels it. Raises UsageError after `close`."""
        if self.closed:
            work.close()
            raise UsageError(
                "the archive is closed", why="its `with` block ended, or close() was called", remedy="open it again"
            )
        call = _Call()
        try:
            return asyncio.run_coroutine_threadsafe(call.made(work), self._loop).result()
        except KeyboardInterrupt:
            # Not by the future: the interrupt may come before there is one here.
            call.given_up = True
            self._loop.call_soon_threadsafe(call.cancel)
            call.ended.wait()
            raise

    def iterate(self, items: AsyncGenerator[T]) -> Iterator[T]:
        """The items one after the other, each worked out when it is asked for, and what runs ahead in `items`."""
        try:
            while (following := self.run(_following(items))) is not None:
                yield following[0]
                del following
        finally:
            self._end(items)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _end(self, items: AsyncGenerator[Any]) -> None:
        """Ends a generator; closing the loop has ended those that were left, and nobody waits for its own thread."""
        if self.closed:
            return
        if threading.current_thread() is self._thread:
            self._loop.create_task(items.aclose())  # the collector of garbage came by here
        else:
            self.run(items.aclose())

    def _serve(self) -> None:
        with self._runner:
            self._loop.run_forever()


async def _following(items: AsyncGenerator[T]) -> tuple[T] | None:
    """The next item, None behind the last."""
    async for item in items:
        return (item,)
    return None
