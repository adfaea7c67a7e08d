"""The replayer's store in memory: `objects` is its back door."""

import hashlib
from collections.abc import AsyncIterator

from blockgz_runtime.errors import ObjectChanged, ObjectMissing, ObjectTruncated
from blockgz_runtime.store.reader import FetchedObject
from index_format.errors import TooLarge


class MemoryReader:
    """See blockgz_runtime.store.reader.ObjectReader."""

    address = "memory:"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    async def get(self, key: str, max_bytes: int) -> FetchedObject:
        body = self._body(key)
        if len(body) > max_bytes:
            raise TooLarge(f"{key} has {len(body)} bytes")
        return FetchedObject(body, self._etag(body))

    async def get_range(self, key: str, start: int, end: int, version: str | None = None) -> bytes:
        body = self._body(key)
        if version is not None and version != self._etag(body):
            raise ObjectChanged(key)
        if end > len(body):
            raise ObjectTruncated(key, start, end)
        return body[start:end]

    async def size(self, key: str) -> int:
        return len(self._body(key))

    async def list(self, prefix: str) -> AsyncIterator[str]:
        for key in sorted(self.objects):
            if key.startswith(prefix):
                yield key

    async def folders(self, prefix: str) -> tuple[str, ...]:
        below = (key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))
        return tuple(sorted({key.partition("/")[0] for key in below if "/" in key}))

    def _body(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectMissing(key) from None

    def _etag(self, body: bytes) -> str:
        return hashlib.md5(body, usedforsecurity=False).hexdigest()
