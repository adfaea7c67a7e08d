"""Counting what a store is asked for."""

from collections.abc import AsyncIterator

from blockgz_runtime.store.reader import ObjectReader, StoredObject


class CountingReader:
    """Passes everything on and counts; a page of a listing is not told apart from the whole listing."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self.requests = 0
        self.bytes_fetched = 0
        """Bytes of bodies, those of ranges included."""
        self.data_bytes_fetched = 0
        """Bytes of ranges: that is what chunk data is read by."""

    @property
    def address(self) -> str:
        """See ObjectReader."""
        return self._reader.address

    async def get(self, key: str, max_bytes: int) -> StoredObject:
        """See ObjectReader."""
        self.requests += 1
        stored = await self._reader.get(key, max_bytes)
        self.bytes_fetched += len(stored.body)
        return stored

    async def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> bytes:
        """See ObjectReader."""
        self.requests += 1
        body = await self._reader.get_range(key, start, end, etag)
        self.bytes_fetched += len(body)
        self.data_bytes_fetched += len(body)
        return body

    async def size(self, key: str) -> int:
        """See ObjectReader."""
        self.requests += 1
        return await self._reader.size(key)

    async def list(self, prefix: str) -> AsyncIterator[str]:
        """See ObjectReader."""
        self.requests += 1
        async for key in self._reader.list(prefix):
            yield key

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """See ObjectReader."""
        self.requests += 1
        return await self._reader.folders(prefix)
