"""An asynchronous read behind a plain iterator: it goes on in a thread while Spark works on what it has."""

import asyncio
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TypeVar

from blockgz_runtime.allocators import share_heaps

T = TypeVar("T")

AHEAD = 2
"""Items that wait for the consumer, beside what the read itself fetches ahead."""
_PATIENCE_SECONDS = 0.1


def iterated(source: Callable[[], AsyncGenerator[T]]) -> Iterator[T]:
    """What `source` yields, in order, and its error; the read ends where the iteration is given up."""
    waiting: queue.Queue[T | _End] = queue.Queue(AHEAD)
    given_up = threading.Event()

    def offer(item: "T | _End") -> None:
        while not given_up.is_set():
            try:
                waiting.put(item, timeout=_PATIENCE_SECONDS)
                return
            except queue.Full:
                continue

    async def read() -> None:
        items = source()
        try:
            async for item in items:
                await asyncio.to_thread(offer, item)
                if given_up.is_set():
                    return
        finally:
            await items.aclose()

    def run() -> None:
        try:
            asyncio.run(read())
            offer(_End(None))
        except BaseException as error:  # raised where the items are consumed
            offer(_End(error))

    share_heaps()
    thread = threading.Thread(target=run, name="blockgz-read", daemon=True)
    thread.start()
    try:
        while True:
            item = waiting.get()
            if not isinstance(item, _End):
                yield item
                continue
            if item.error is not None:
                raise item.error
            return
    finally:
        given_up.set()
        thread.join()


class _End:
    """Nothing follows; the error that ended it, if one did."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error
