"""The store seam: what the replayer needs of the place where an archive's objects are, and decorators of it.

Keys are relative to the archive's root. Every implementation passes tests/contract/test_reader_store.py.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

SILENT_SECONDS = 5.0


class ObjectReader(Protocol):
    """A reader of objects, safe for many concurrent calls.

    Every method raises AccessDenied or StoreUnavailable if the store does.
    """

    @property
    def address(self) -> str:
        """The root's address for people: `s3://bucket/prefix` or `file:///dir`."""

    async def get(self, key: str, max_bytes: int) -> bytes:
        """Return the whole object.

        Raises ObjectMissing; TooLarge, before reading it, if it has more than `max_bytes`. Where the credentials
        may not list the bucket, S3 answers for a missing object as for a forbidden one: that is AccessDenied.
        """

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return exactly the bytes [start, end), end > start.

        Raises ObjectMissing, ObjectTruncated if the object ends before `end`, and ObjectChanged if it is replaced
        while it is read.
        """

    async def size(self, key: str) -> int:
        """Return the object's length in bytes; raises ObjectMissing."""

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        """Return the keys that begin with `prefix` and are greater than `after`, in lexical order."""

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """Return the folders below `prefix`, each once, in lexical order: the part of keys up to the next slash.

        `prefix` is empty or ends with a slash; `folders("topic=a/")` is `("partition=00000", ...)`.
        """


class PassingReader:
    """A reader that passes everything on: the base of decorators."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader

    @property
    def address(self) -> str:
        return self._reader.address

    async def get(self, key: str, max_bytes: int) -> bytes:
        return await self._reader.get(key, max_bytes)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await self._reader.get_range(key, start, end)

    async def size(self, key: str) -> int:
        return await self._reader.size(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        return self._reader.list(prefix, after)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        return await self._reader.folders(prefix)


class WatchedReader(PassingReader):
    """A reader that calls `tell`, once, when a small request has no answer for SILENT_SECONDS."""

    def __init__(self, reader: ObjectReader, tell: Callable[[str], object]) -> None:
        super().__init__(reader)
        self._tell = tell
        self._told = False

    async def get(self, key: str, max_bytes: int) -> bytes:
        with self._watched():
            return await super().get(key, max_bytes)

    async def size(self, key: str) -> int:
        with self._watched():
            return await super().size(key)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        with self._watched():
            return await super().folders(prefix)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        alarm = asyncio.get_running_loop().call_later(SILENT_SECONDS, self._say)
        try:
            yield
        finally:
            alarm.cancel()

    def _say(self) -> None:
        if not self._told:
            self._told = True
            self._tell(f"waiting for {self.address}: no answer for {SILENT_SECONDS:g} s")


class CountingReader(PassingReader):
    """A reader that counts requests and bytes; a listing counts once, regardless of its pages."""

    def __init__(self, reader: ObjectReader) -> None:
        super().__init__(reader)
        self.requests = 0
        # Bytes of bodies, those of ranges included.
        self.bytes_fetched = 0
        # Bytes of ranges: that is what chunk data is read by.
        self.data_bytes_fetched = 0

    def count(self, requests: int = 0, num_bytes: int = 0, data_bytes: int = 0) -> None:
        """Add requests, and bytes of their answers, to the counts."""
        self.requests += requests
        self.bytes_fetched += num_bytes
        self.data_bytes_fetched += data_bytes

    async def get(self, key: str, max_bytes: int) -> bytes:
        self.count(requests=1)
        body = await super().get(key, max_bytes)
        self.count(num_bytes=len(body))
        return body

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        self.count(requests=1)
        body = await super().get_range(key, start, end)
        self.count(num_bytes=len(body), data_bytes=len(body))
        return body

    async def size(self, key: str) -> int:
        self.count(requests=1)
        return await super().size(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        self.count(requests=1)
        return super().list(prefix, after)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        self.count(requests=1)
        return await super().folders(prefix)
