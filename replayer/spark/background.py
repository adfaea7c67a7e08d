"""Items that a thread makes ahead, for a consumer that waits with a deadline or works on what it has."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Generic, TypeVar

from blockgz.process import share_heaps

T = TypeVar("T")

# Items that wait for the consumer of `iterated`, in addition to those that the read itself fetches ahead.
AHEAD = 2
_POLL_SECONDS = 0.1


class Background(Generic[T]):
    """A thread that runs `produce` and does not keep the process from ending."""

    def __init__(self, produce: Callable[[Callable[[T], bool]], object], ahead: int) -> None:
        """`produce` hands each item to the function that it gets, and returns once that says False."""
        self._produce = produce
        self._waiting: queue.Queue[T | _End] = queue.Queue(ahead)
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="blockgz-background", daemon=True)
        self._thread.start()

    def next(self, seconds: float | None = None) -> T | None:
        """Return the next item, None after the last; raises TimeoutError after so long, or what `produce` raised."""
        try:
            item = self._waiting.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        if not isinstance(item, _End):
            return item
        if item.error is not None:
            raise item.error
        return None

    def close(self) -> None:
        """Take no more items, and wait for the thread."""
        self._given_up.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._produce(self._offer)
            self._offer(_End(None))
        except BaseException as error:  # raised where the items are consumed
            self._offer(_End(error))

    def _offer(self, item: "T | _End") -> bool:
        while not self._given_up.is_set():
            try:
                self._waiting.put(item, timeout=_POLL_SECONDS)
                return True
            except queue.Full:
                continue
        return False


class _End:
    """The mark behind the last item, with the error that ended the thread, if any."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def iterated(source: Callable[[], AsyncGenerator[T]]) -> Iterator[T]:
    """Yield what `source` yields, in order, and raise its error; the read ends if the iteration is given up."""

    async def read(offer: Callable[[T], bool]) -> None:
        async with aclosing(source()) as items:
            async for item in items:
                if not await asyncio.to_thread(offer, item):
                    return

    share_heaps()
    items = Background[T](lambda offer: asyncio.run(read(offer)), AHEAD)
    try:
        while (item := items.next()) is not None:
            yield item
    finally:
        items.close()
