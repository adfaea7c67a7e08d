"""An event loop in a thread of its own: async work for synchronous callers, those within a running loop among them."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

from blockgz_runtime.errors import UsageError

T = TypeVar("T")


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
                "the archive is closed", why="its `with` block or close() ended it", remedy="open it again"
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        finally:
            future.cancel()

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
