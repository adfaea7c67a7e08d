"""Write-once objects kept on this machine's disk, so that the next program need not fetch them again."""

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from blockgz.atomic_file import SCRATCH_NAME, make_private_folder, scratch_file, write_private

DEFAULT_MAX_BYTES = 256 * 1024 * 1024
# An object above this fraction of the bound is not kept.
SHARE_OF_ONE = 8
STALE_SECONDS = 3600


def default_folder() -> Path | None:
    """Return `$XDG_CACHE_HOME/blockgz/objects`, or the one below `~/.cache`; None without a home directory."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        home = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return home / "blockgz" / "objects"


class DiskCache:
    """Files in a folder, the least recently used removed first; safe for concurrent processes.

    A file counts only with the sha256 that the archive says, so a damaged or forged one is fetched again. A disk that
    cannot be read or written costs requests, never an answer.
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
