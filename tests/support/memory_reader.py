"""The replayer's store in memory: `objects` is its back door."""

from collections.abc import AsyncIterator

from blockgz.errors import ObjectMissing, ObjectTruncated
from index_format.errors import TooLarge


class MemoryReader:
    """See blockgz.store.reader.ObjectReader."""

    address = "memory:"

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    async def get(self, key: str, max_bytes: int) -> bytes:
        body = self._body(key)
        if len(body) > max_bytes:
            raise TooLarge(f"{key} has {len(body)} bytes")
        return body

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        body = self._body(key)
        if end > len(body):
            raise ObjectTruncated(key, start, end)
        return body[start:end]

    async def size(self, key: str) -> int:
        return len(self._body(key))

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and key > after:
                yield key

    async def folders(self, prefix: str) -> tuple[str, ...]:
        below = (key.removeprefix(prefix) for key in self.objects if key.startswith(prefix))
        return tuple(sorted({key.partition("/")[0] for key in below if "/" in key}))

    def _body(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise ObjectMissing(key) from None
