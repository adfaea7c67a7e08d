"""The replayer's own coroutines as processes of the simulation: each request to the store is one step."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from archiver.commit.operations import Get
from blockgz.errors import ObjectMissing, ObjectTruncated
from blockgz.store.writer import StoredObject
from tests.support.simulator import Run

_LOOP = asyncio.new_event_loop()
"""Of all readers: only one moves at a time."""


@dataclass(frozen=True)
class GetRange:
    """Bytes [start, end) of an object. Answer: the bytes, as many as there are, or None where there is no object."""

    key: str
    start: int
    end: int


class AskingReader:
    """See blockgz.store.reader.ObjectReader: what a look-up asks of it waits in `asked`."""

    address = "memory:"

    def __init__(self) -> None:
        self.asked: deque[tuple[Get | GetRange, asyncio.Future[Any]]] = deque()
        self.read: list[str] = []
        """The keys of objects that were read whole."""

    async def get(self, key: str, max_bytes: int) -> bytes:
        self.read.append(key)
        found: StoredObject | None = await self._ask(Get(key))
        if found is None:
            raise ObjectMissing(key)
        assert len(found.body) <= max_bytes
        return found.body

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        found: bytes | None = await self._ask(GetRange(key, start, end))
        if found is None:
            raise ObjectMissing(key)
        if len(found) < end - start:
            raise ObjectTruncated(key, start, end)
        return found

    async def size(self, key: str) -> int:
        raise NotImplementedError(key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        raise NotImplementedError(prefix)
        yield after

    async def folders(self, prefix: str) -> tuple[str, ...]:
        raise NotImplementedError(prefix)

    async def _ask(self, request: Get | GetRange) -> Any:
        future: asyncio.Future[Any] = _LOOP.create_future()
        self.asked.append((request, future))
        return await future


def as_process(work: Callable[[AskingReader], Awaitable[Any]]) -> Run:
    """The coroutine as a protocol, its requests carried out one after another."""
    reader = AskingReader()
    task = _LOOP.create_task(work(reader))  # type: ignore[arg-type]
    try:
        while True:
            with patch("asyncio.to_thread", _at_once):
                while not task.done() and not reader.asked:
                    _LOOP.call_soon(_LOOP.stop)
                    _LOOP.run_forever()
            if task.done():
                return task.result()
            request, future = reader.asked.popleft()
            answer = yield request
            if not future.cancelled():
                future.set_result(answer)
    finally:
        task.cancel()
        _LOOP.run_until_complete(asyncio.gather(task, return_exceptions=True))


async def _at_once(work: Callable[..., Any], *arguments: Any) -> Any:
    return work(*arguments)
