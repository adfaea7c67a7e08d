"""A directory as a store."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from blockgz_runtime.errors import (
    AccessDenied,
    ObjectChanged,
    ObjectMissing,
    ObjectTruncated,
    StoreUnavailable,
    UsageError,
)
from blockgz_runtime.store.address import LocalAddress
from blockgz_runtime.store.reader import StoredObject
from index_format.errors import TooLarge


class LocalReader:
    """Reads files in threads. The ETag is made of inode, modification time and size."""

    def __init__(self, address: LocalAddress) -> None:
        """Raises UsageError for the home of a user that there is not."""
        try:
            self._root = Path(address.path).expanduser().absolute()
        except RuntimeError as error:
            raise UsageError(
                f"{address.path!r} is in nobody's home", why=str(error), remedy="write the path"
            ) from error

    @property
    def address(self) -> str:
        """See ObjectReader."""
        return f"file://{self._root}"

    async def get(self, key: str, max_bytes: int) -> StoredObject:
        """See ObjectReader."""
        return await asyncio.to_thread(self._get, key, max_bytes)

    async def get_range(self, key: str, start: int, end: int, etag: str | None = None) -> bytes:
        """See ObjectReader."""
        return await asyncio.to_thread(self._get_range, key, start, end, etag)

    async def size(self, key: str) -> int:
        """See ObjectReader."""
        return await asyncio.to_thread(self._size, key)

    async def list(self, prefix: str) -> AsyncIterator[str]:
        """See ObjectReader."""
        for key in await asyncio.to_thread(self._list, prefix):
            yield key

    async def folders(self, prefix: str) -> tuple[str, ...]:
        """See ObjectReader."""
        return await asyncio.to_thread(self._folders, prefix)

    def _get(self, key: str, max_bytes: int) -> StoredObject:
        with _mapped(key, self._root / key), (self._root / key).open("rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_size > max_bytes:
                raise TooLarge(f"{key} has {stat.st_size} bytes", why=f"no such object may have over {max_bytes}")
            return StoredObject(file.read(max_bytes), _etag(stat))

    def _get_range(self, key: str, start: int, end: int, etag: str | None) -> bytes:
        with _mapped(key, self._root / key), (self._root / key).open("rb") as file:
            if etag is not None and _etag(os.fstat(file.fileno())) != etag:
                raise ObjectChanged(key)
            file.seek(start)
            body = file.read(end - start)
        if len(body) != end - start:
            raise ObjectTruncated(key, start, end)
        return body

    def _size(self, key: str) -> int:
        path = self._root / key
        with _mapped(key, path):
            if not path.is_file():
                raise ObjectMissing(key)
            return path.stat().st_size

    def _list(self, prefix: str) -> Sequence[str]:
        folder = self._root / prefix.rpartition("/")[0]
        with _mapped(prefix, folder):
            files = (path.relative_to(self._root).as_posix() for path in _files(folder))
            return sorted(key for key in files if key.startswith(prefix))

    def _folders(self, prefix: str) -> tuple[str, ...]:
        folder = self._root / prefix
        with _mapped(prefix, folder):
            if not folder.is_dir():
                return ()
            return tuple(sorted(path.name for path in folder.iterdir() if path.is_dir() and _holds_files(path)))


def _holds_files(folder: Path) -> bool:
    return any(True for _ in _files(folder))


def _files(folder: Path) -> Iterator[Path]:
    """All files below; a folder that cannot be read is an error, where `rglob` would leave it out silently."""
    for parent, _, names in os.walk(folder, onerror=_unless_gone):
        yield from (path for name in names if (path := Path(parent, name)).is_file())


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _etag(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


@contextmanager
def _mapped(key: str, path: Path) -> Iterator[None]:
    """Errors of the operating system as the seam's."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ObjectMissing(key) from None
    except AccessDenied:
        raise
    except PermissionError as error:
        raise AccessDenied(
            f"{error.filename or path} may not be read",
            why=error.strerror or str(error),
            remedy="check who owns it and its mode",
        ) from error
    except ConnectionError:
        raise
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be read", why=error.strerror or str(error), remedy="check the disk or the mount"
        ) from error
