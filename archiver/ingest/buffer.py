"""The local buffer: where the blocks of open chunks wait, one file a chunk, inside a budget.

The folder is disposable. No recovery reads it; each process has a locked sub-folder of its own, and removes only
those whose owner is dead.
"""

import fcntl
import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from archiver.logs import LogEvent, log
from blockgz.atomic_file import PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder
from blockgz.errors import BufferFailed, BufferFull
from blockgz.store.writer import FileBody
from blockgz.units import time_text

LOCK = ".lock"
# Prefix of the sub-folders. Nothing else in the folder, which the operator chose, is ever touched.
PREFIX = "blockgz-buffer-"


class BufferFile:
    """The bytes of one open chunk, appended block by block."""

    def __init__(self, path: Path, folder: "BufferFolder") -> None:
        self._path = path
        self._folder = folder
        self._hash = hashlib.sha256()
        self._is_torn = False
        self.size = 0

    def append(self, block: bytes | memoryview) -> None:
        """Add one block; raises BufferFull where the disk does not take it, after which the same may be tried again."""
        with buffer_errors(self._path, BufferFull):
            self._cut()
            try:
                # Opened for each block: thousands of open chunks would need as many file descriptors.
                with self._path.open("ab") as file:
                    file.write(block)
            except OSError:
                self._is_torn = True
                with suppress(OSError):
                    self._cut()
                raise
        self._hash.update(block)
        self.size += len(block)
        self._folder.account(len(block))

    def _cut(self) -> None:
        """Take away what was written of a block that did not fit."""
        if self._is_torn and self._path.exists():
            os.truncate(self._path, self.size)
        self._is_torn = False

    def finish(self) -> FileBody:
        """Return the whole file, written through to the operating system. Raises BufferFailed if bytes are missing."""
        with buffer_errors(self._path):
            self._cut()
            stored = self._path.stat().st_size
        if stored != self.size:
            raise BufferFailed(f"the buffer file {self._path} has {stored} bytes", why=f"{self.size} were written")
        return FileBody(self._path, self.size, self._hash.hexdigest())

    def discard(self) -> None:
        """Give the space back; safe to call twice."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
        self._folder.account(-self.size)
        self.size = 0


class BufferFolder:
    def __init__(self, root: Path) -> None:
        """Create a locked sub-folder of `root`; log and remove those of dead processes. Raises BufferFailed."""
        self._bytes = 0
        self._is_closed = False
        self._guard = threading.Lock()
        with buffer_errors(root):
            make_private_folder(root)
            with _locked(root / LOCK):
                _remove_dead(root)
                self._folder = root / f"{PREFIX}{uuid.uuid4().hex}"
                self._folder.mkdir(PRIVATE_FOLDER)
                self._lock = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with suppress(OSError):  # a full disk is reported by the first block, and waited for
                    os.write(self._lock, b"%d" % os.getpid())

    @property
    def used_bytes(self) -> int:
        with self._guard:
            return self._bytes

    def new_file(self) -> BufferFile:
        return BufferFile(self._folder / f"{uuid.uuid4().hex}.chunk", self)

    def account(self, num_bytes: int) -> None:
        """Note bytes written, or given back when negative."""
        with self._guard:
            self._bytes += num_bytes

    def mark_alive(self) -> None:
        """Note that the process lives, for the process that finds the folder after its death."""
        with suppress(OSError):
            os.utime(self._lock)

    def close(self) -> None:
        """Remove the sub-folder with all that is left in it; safe to call twice."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
        shutil.rmtree(self._folder, ignore_errors=True)
        os.close(self._lock)


def _remove_dead(root: Path) -> None:
    """Remove the sub-folders of dead processes. The caller holds the root's lock, under which new ones get theirs."""
    for folder in root.glob(f"{PREFIX}*"):
        try:
            lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            with suppress(OSError):
                _log_death(folder, lock)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _log_death(folder: Path, lock: int) -> None:
    """Log that the folder's process ended without closing it: after a fault in librdkafka nothing else says so."""
    files = [file.stat() for file in folder.glob("*.chunk")]
    seen = max(os.fstat(lock).st_mtime, *(file.st_mtime for file in files), 0.0)
    log.warning(
        LogEvent.PROCESS_DIED,
        pid=os.read(lock, 20).decode("ascii", "replace") or None,
        last_seen=time_text(int(seen) * 1000),
        bytes=sum(file.st_size for file in files),
        folder=str(folder),
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def buffer_errors(path: Path, kind: type[BufferFailed] = BufferFailed) -> Iterator[None]:
    """Raise errors of a file system as one of ours."""
    try:
        yield
    except OSError as error:
        raise kind(
            f"the buffer file {path} cannot be written",
            why=error.strerror or str(error),
            remedy="free space, or set another --buffer-dir",
        ) from error
