"""A folder as a store: whole files appear by link(2), the marker changes by rename(2) under a lock of its own."""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blockgz_runtime.errors import AccessDenied, StoreError, StoreUnavailable
from blockgz_runtime.store.writer import PROBE_FOLDER, Body, FileBody, Leftover, ListedObject, ObjectHead, StoredObject

LOCK_DEADLINE_SECONDS = 10.0
LOCK_PAUSE_SECONDS = 0.02
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")


class LocalStore:
    """An archive in a folder of a local or POSIX-conforming network file system."""

    prefix = ""

    def __init__(self, root: Path, *, lock_deadline_seconds: float = LOCK_DEADLINE_SECONDS) -> None:
        self._root = root
        self._lock_deadline = lock_deadline_seconds
        with _file_errors(root):
            self._make_folder(root)

    @property
    def url(self) -> str:
        """See Store."""
        return self._root.as_uri()

    def get(self, key: str) -> StoredObject | None:
        """See Store; the etag is the body's SHA-256."""
        path = self._root / key
        with _file_errors(path):
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                return None
        return StoredObject(body, hashlib.sha256(body).hexdigest())

    def head(self, key: str) -> ObjectHead | None:
        """See Store; a folder keeps no attempt, and needs none: a link's answer cannot be lost."""
        path = self._root / key
        with _file_errors(path):
            try:
                return ObjectHead(path.stat().st_size, None)
            except FileNotFoundError:
                return None

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:  # noqa: ARG002
        """See Store."""
        path = self._root / key
        with _file_errors(path):
            self._make_folder(path.parent)
            with self._temporary(path, body) as temporary:
                try:
                    os.link(temporary, path)
                except FileExistsError:
                    return False
            _sync_folder(path.parent)
        return True

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        """See Store; waits for the lock up to a deadline, then raises StoreUnavailable."""
        path = self._root / key
        with _file_errors(path):
            self._make_folder(path.parent)
            with _lock(_lock_of(path), self._lock_deadline), self._temporary(path, body) as temporary:
                current = self.get(key)
                if (current.etag if current else None) != expected:
                    return None
                temporary.rename(path)
                _sync_folder(path.parent)
        return hashlib.sha256(body).hexdigest()

    def list(self, prefix: str) -> Iterator[ListedObject]:
        """See Store; temporary, lock and buffer files, which start with a dot, are left out."""
        for folder, subfolders, names in os.walk(self._root / prefix.rpartition("/")[0]):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            for name in sorted(names):
                path = Path(folder) / name
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix) and not name.startswith("."):
                    with _file_errors(path), suppress(FileNotFoundError):
                        status = path.stat()
                        yield ListedObject(key, status.st_size, _last_touched(status))

    def delete(self, key: str) -> None:
        """See Store."""
        path = self._root / key
        with _file_errors(path):
            path.unlink(missing_ok=True)
            _lock_of(path).unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()

    def abandon_uploads(self) -> None:
        """See Store; a file appears in one go, so there is nothing to give up."""

    def get_range(self, key: str, start: int, end: int) -> bytes:
        """See ToolStore."""
        path = self._root / key
        with _file_errors(path), path.open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def folders(self, prefix: str) -> Iterator[str]:
        """See ToolStore."""
        path = self._root / prefix
        with _file_errors(path):
            if path.is_dir():
                yield from sorted(
                    each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")
                )

    def clock(self) -> float:
        """See ToolStore: that of the file system, which may be another machine's."""
        path = self._root / ".clock"
        with _file_errors(path), self._temporary(path, b"") as temporary:
            return temporary.stat().st_mtime

    def leftovers(self) -> Iterator[Leftover]:
        """See ToolStore: temporary files, and what is left of probes. The buffer's owners clean up after themselves."""
        for folder, subfolders, names in os.walk(self._root):
            subfolders[:] = [
                name for name in subfolders if not name.startswith(".") or PROBE_FOLDER.fullmatch(name + "/")
            ]
            for name in names:
                path = Path(folder) / name
                with _file_errors(path), suppress(FileNotFoundError):
                    leftover = self._leftover(path)
                    if leftover:
                        yield leftover

    def _leftover(self, path: Path) -> Leftover | None:
        folder = path.parent.relative_to(self._root)
        temporary, status = _TEMPORARY.fullmatch(path.name), path.stat()
        if temporary:
            key = (folder / temporary[1]).as_posix()
            return Leftover("temporary file", key, status.st_size, _last_touched(status), path.name)
        if PROBE_FOLDER.fullmatch(f"{folder.as_posix()}/") and not path.name.startswith("."):
            key = (folder / path.name).as_posix()
            return Leftover("probe object", key, status.st_size, _last_touched(status), "")
        return None

    def discard(self, leftover: Leftover) -> None:
        """See ToolStore."""
        path = self._root / leftover.key
        if not leftover.token:
            self.delete(leftover.key)
            return
        with _file_errors(path):
            path.with_name(leftover.token).unlink(missing_ok=True)

    def expires_uploads(self) -> bool:
        """See ToolStore: there are none."""
        return True

    @contextmanager
    def _temporary(self, path: Path, body: Body) -> Iterator[Path]:
        """The body in a synced file on the target's file system, gone afterwards."""
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            if isinstance(body, FileBody):
                body.check_size()
                _link_or_copy(body.path, temporary)
            else:
                temporary.write_bytes(body)
            _sync_file(temporary)
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _make_folder(self, folder: Path) -> None:
        """Create the folder and its parents, each made durable in its own parent."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for child in reversed(missing):
            child.mkdir(exist_ok=True)
            _sync_folder(child.parent)


def _last_touched(status: os.stat_result) -> float:
    """A linked file keeps the mtime of the buffer that it was made from; its ctime is that of the link."""
    return max(status.st_mtime, status.st_ctime)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def _sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_sync_folder = _sync_file


def _lock_of(path: Path) -> Path:
    """The marker's lock is a file of its own: a rename would swap the marker's inode under its holder."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def _lock(path: Path, deadline_seconds: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        give_up = time.monotonic() + deadline_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise StoreUnavailable(
                        f"{path} stays locked",
                        why=f"another process has held it for {deadline_seconds:g} s; it may be stopped",
                        remedy=f"find it with `fuser {path}` and end it",
                    ) from None
                time.sleep(LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        raise AccessDenied(
            f"{path} may not be written",
            why=f"{error.strerror}: {error.filename or path}",
            remedy="let the user of this process write there, or choose another --archive",
        ) from error
    except OSError as error:
        raise StoreError(
            f"{path} could not be written or read",
            why=f"{error.strerror or error}",
            remedy="free space or repair the disk; archiving goes on from the last commit",
        ) from error
