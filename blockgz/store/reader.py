"""The interface of stores for readers of archives, decorators of it, and the cache of objects on this machine's disk.

Keys are relative to the archive's root. Every implementation passes tests/contract/test_reader_store.py.
"""

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from blockgz.atomic_file import SCRATCH_NAME, make_private_folder, scratch_file, write_private

SILENT_SECONDS = 5.0
DEFAULT_MAX_BYTES = 256 * 1024 * 1024
# An object above this fraction of the bound is not kept.
SHARE_OF_ONE = 8
STALE_SECONDS = 3600


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
    """A reader that passes everything on: the base of decorators, which may wrap each `_request`."""

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader

    @property
    def address(self) -> str:
        return self._reader.address

    @asynccontextmanager
    async def _request(self, *, is_range: bool = False) -> AsyncIterator[None]:  # noqa: ARG002
        yield

    async def get(self, key: str, max_bytes: int) -> bytes:
        async with self._request():
            return await self._reader.get(key, max_bytes)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        async with self._request(is_range=True):
            return await self._reader.get_range(key, start, end)

    async def size(self, key: str) -> int:
        async with self._request():
            return await self._reader.size(key)

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        return self._reader.list(prefix, after)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        async with self._request():
            return await self._reader.folders(prefix)


class WatchedReader(PassingReader):
    """A reader that calls `tell`, once, when a small request has no answer for SILENT_SECONDS."""

    def __init__(self, reader: ObjectReader, tell: Callable[[str], object]) -> None:
        super().__init__(reader)
        self._tell = tell
        self._told = False

    @asynccontextmanager
    async def _request(self, *, is_range: bool = False) -> AsyncIterator[None]:
        if is_range:
            yield
            return
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

    @asynccontextmanager
    async def _request(self, *, is_range: bool = False) -> AsyncIterator[None]:  # noqa: ARG002
        self.count(requests=1)
        yield

    async def get(self, key: str, max_bytes: int) -> bytes:
        body = await super().get(key, max_bytes)
        self.count(num_bytes=len(body))
        return body

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        body = await super().get_range(key, start, end)
        self.count(num_bytes=len(body), data_bytes=len(body))
        return body

    def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        self.count(requests=1)
        return super().list(prefix, after)


def default_folder() -> Path | None:
    """Return `$XDG_CACHE_HOME/blockgz/objects`, or the one below `~/.cache`; None without a home directory."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return home / "blockgz" / "objects"


class DiskCache:
    """Write-once objects as files in a folder, for the next program that needs them; safe for concurrent processes.

    The least recently used is removed first. A file counts only with the sha256 that the archive says, so a damaged or
    forged one is fetched again. A disk that cannot be read or written costs requests, never an answer.
    """

    def __init__(self, folder: Path, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._held: int | None = None
        self.hits = 0
        self.bytes_found = 0

    async def through(self, archive_id: str, key: str, sha256: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the object's bytes: those kept, or what `fetch` gives, which are kept if they have that sha256."""
        path = self._folder / hashlib.sha256("\0".join((archive_id, key, sha256)).encode()).hexdigest()
        found = await asyncio.to_thread(_read, path, sha256)
        if found is not None:
            self.hits += 1
            self.bytes_found += len(found)
            return found
        body = await fetch()
        await asyncio.to_thread(self._keep, path, body, sha256)
        return body

    def _keep(self, path: Path, body: bytes, sha256: str) -> None:
        if len(body) * SHARE_OF_ONE > self._max_bytes or hashlib.sha256(body).hexdigest() != sha256:
            return
        try:
            make_private_folder(self._folder)
            with scratch_file(path) as scratch:
                write_private(scratch, body)
                scratch.replace(path)
            self._held = sum(size for _, size, _ in self._files()) if self._held is None else self._held + len(body)
            if self._held > self._max_bytes:
                self._make_room()
        except OSError:
            return

    def _make_room(self) -> None:
        """Remove the files that were unused longest until an eighth of the bound is free."""
        files = sorted(self._files())
        held = sum(size for _, size, _ in files)
        for used, size, path in files:
            stale = SCRATCH_NAME.fullmatch(path.name) and used < time.time() - STALE_SECONDS
            if held > self._max_bytes - self._max_bytes // SHARE_OF_ONE or stale:
                path.unlink(missing_ok=True)
                held -= size
        self._held = held

    def _files(self) -> list[tuple[float, int, Path]]:
        found = []
        for entry in os.scandir(self._folder):
            try:
                stat = entry.stat()
            except FileNotFoundError:
                continue
            found.append((stat.st_mtime, stat.st_size, Path(entry.path)))
        return found


def _read(path: Path, sha256: str) -> bytes | None:
    try:
        body = path.read_bytes()
        if hashlib.sha256(body).hexdigest() != sha256:
            path.unlink(missing_ok=True)
            return None
        os.utime(path)
    except OSError:
        return None
    return body
