"""A folder as a store: whole files appear by link(2), the marker changes by rename(2) under a lock of its own."""

import asyncio
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from blockgz import atomic_file
from blockgz.errors import (
    AccessDenied,
    ObjectMissing,
    ObjectTruncated,
    StoreError,
    StoreFull,
    StoreUnavailable,
    SyncFailed,
    TooLarge,
)
from blockgz.store import writer
from blockgz.store.address import LocalAddress

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Disks, mounts and this machine's own limits: what may have passed when it is tried again.
_PASSING = (
    *(errno.EIO, errno.ESTALE, errno.ENOLCK, errno.EAGAIN, errno.EBUSY, errno.EINTR),
    *(errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH),
    *(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM),
)
LOCK_DEADLINE_SECONDS = 10.0
ANYBODY_READS_OR_WRITES = 0o666
LOCK_PAUSE_SECONDS = 0.02


class LocalReader:
    """A reader of files, in threads."""

    def __init__(self, address: LocalAddress) -> None:
        """Raise UsageError for the home of an unknown user."""
        self._root = address.root()

    @property
    def address(self) -> str:
        return f"file://{self._root}"

    async def get(self, key: str, max_bytes: int) -> bytes:
        return await asyncio.to_thread(self._get, key, max_bytes)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        return await asyncio.to_thread(self._get_range, key, start, end)

    async def size(self, key: str) -> int:
        return await asyncio.to_thread(self._size, key)

    async def list(self, prefix: str, after: str = "") -> AsyncIterator[str]:
        for key in await asyncio.to_thread(self._list, prefix, after):
            yield key

    async def folders(self, prefix: str) -> tuple[str, ...]:
        return await asyncio.to_thread(self._folders, prefix)

    def _get(self, key: str, max_bytes: int) -> bytes:
        with self._reading(key), atomic_file.open_regular(self._root / key) as file:
            size = os.fstat(file.fileno()).st_size
            if size > max_bytes:
                raise TooLarge(f"{key} has {size} bytes", why=f"such objects have at most {max_bytes} bytes")
            return file.read(max_bytes)

    def _get_range(self, key: str, start: int, end: int) -> bytes:
        with self._reading(key), atomic_file.open_regular(self._root / key) as file:
            file.seek(start)
            body = file.read(end - start)
        if len(body) != end - start:
            raise ObjectTruncated(key, start, end)
        return body

    def _size(self, key: str) -> int:
        path = self._root / key
        with self._reading(key):
            if not path.is_file():
                raise ObjectMissing(key)
            return path.stat().st_size

    def _list(self, prefix: str, after: str) -> Sequence[str]:
        with self._reading(prefix):
            return sorted(key for key, _ in _files(self._root, prefix, after))

    def _folders(self, prefix: str) -> tuple[str, ...]:
        with self._reading(prefix):
            names = _folders(self._root, prefix)
            return tuple(name for name in names if any(_files(self._root, f"{prefix}{name}/")))

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with _file_errors(self._root / key, "read", StoreUnavailable):
            try:
                yield
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                raise ObjectMissing(key) from None


class LocalStore:
    """An archive in a folder, where link, rename and flock are those of one machine.

    A root that it makes is its owner's alone. What it makes below a root may be read and written as the root's
    mode says, regardless of the umask.

    On a network file system, flock must hold between all machines (NFS 4 does), or one machine at a time may write.
    """

    prefix = ""

    def __init__(self, root: Path, *, lock_deadline_seconds: float = LOCK_DEADLINE_SECONDS) -> None:
        self._root = root
        self._lock_deadline = lock_deadline_seconds
        self._sync_failed = False
        self._mode = atomic_file.PRIVATE_FOLDER
        with _file_errors(root):
            self._make_folder(root)
            self._mode = stat.S_IMODE(root.stat().st_mode)

    @property
    def url(self) -> str:
        return self._root.as_uri()

    def get(self, key: str) -> writer.StoredObject | None:
        path = self._root / key
        with _file_errors(path, "read"), suppress(FileNotFoundError):
            with atomic_file.open_regular(path) as file:
                body = file.read()
            return writer.StoredObject(body, _content_tag(body))
        return None

    def head(self, key: str) -> writer.ObjectHead | None:
        """See Store; a folder keeps no attempt, and needs none: a link's answer cannot be lost."""
        path = self._root / key
        with _file_errors(path, "read"), suppress(FileNotFoundError):
            return writer.ObjectHead(path.stat().st_size, None)
        return None

    def put_if_absent(self, key: str, body: writer.Body, attempt: str) -> bool:  # noqa: ARG002
        path = self._root / key
        with _file_errors(path):
            self._make_folder(path.parent)
            with self._scratch(path, body) as scratch:
                try:
                    os.link(scratch, path)
                except FileExistsError:
                    return False
            self._sync_folder(path.parent)
        return True

    def compare_and_swap(self, key: str, body: bytes, expected: writer.ContentTag | None) -> writer.ContentTag | None:
        """See Store; waits for the lock up to a deadline, then raises StoreUnavailable."""
        path = self._root / key
        with _file_errors(path):
            self._make_folder(path.parent)
            with _lock(_lock_of(path), self._lock_deadline, self._mode), self._scratch(path, body) as scratch:
                current = self.get(key)
                if (current.etag if current else None) != expected:
                    return None
                scratch.rename(path)
                self._sync_folder(path.parent)
        return _content_tag(body)

    def list(self, prefix: str) -> Iterator[writer.ListedObject]:
        with _file_errors(self._root / prefix, "read"):
            for key, path in _files(self._root, prefix):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    yield writer.ListedObject(key, status.st_size, _last_touched(status))

    def delete(self, key: str) -> None:
        path = self._root / key
        with _file_errors(path):
            path.unlink(missing_ok=True)
            _lock_of(path).unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()

    def abandon_uploads(self) -> None:
        """See Store; a file appears in one go, so there is nothing to give up."""

    def get_range(self, key: str, start: int, end: int) -> bytes:
        path = self._root / key
        with _file_errors(path, "read"), atomic_file.open_regular(path) as file:
            file.seek(start)
            return file.read(end - start)

    def folders(self, prefix: str) -> Iterator[str]:
        """See ToolStore; empty folders too: a partition that lost its objects can be repaired."""
        with _file_errors(self._root / prefix, "read"):
            yield from _folders(self._root, prefix)

    def clock(self) -> float:
        """See ToolStore: the file system's, which may be another machine's; this one's if nothing may be written."""
        path = self._root / ".clock"
        with _file_errors(path):
            try:
                with self._scratch(path, b"") as scratch:
                    return scratch.stat().st_mtime
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES):
                    raise
        return time.time()

    def leftovers(self) -> Iterator[writer.Leftover]:
        """See ToolStore: temporary files, and objects of probes. The buffer's owners clean up after themselves."""
        for folder, subfolders, names in os.walk(self._root):
            subfolders[:] = [
                name for name in subfolders if not name.startswith(".") or writer.PROBE_FOLDER.fullmatch(name + "/")
            ]
            for name in names:
                path = Path(folder) / name
                with _file_errors(path, "read"), suppress(FileNotFoundError):
                    leftover = self._leftover(path)
                    if leftover:
                        yield leftover

    def _leftover(self, path: Path) -> writer.Leftover | None:
        folder = path.parent.relative_to(self._root)
        scratch, status = atomic_file.SCRATCH_NAME.fullmatch(path.name), path.stat()
        if scratch:
            key = (folder / scratch[1]).as_posix()
            return writer.Leftover("temporary file", key, status.st_size, _last_touched(status), path.name)
        if writer.PROBE_FOLDER.fullmatch(f"{folder.as_posix()}/") and not path.name.startswith("."):
            key = (folder / path.name).as_posix()
            return writer.Leftover("probe object", key, status.st_size, _last_touched(status), "")
        return None

    def discard(self, leftover: writer.Leftover) -> None:
        path = self._root / leftover.key
        if not leftover.token:
            self.delete(leftover.key)
            return
        with _file_errors(path):
            path.with_name(leftover.token).unlink(missing_ok=True)

    def restoring(self, key: str, sha256: str) -> str | None:  # noqa: ARG002
        """Return None: a folder keeps no older versions."""
        return None

    def expires_uploads(self) -> bool:
        """See ToolStore: there are none."""
        return True

    @contextmanager
    def _scratch(self, path: Path, body: writer.Body) -> Iterator[Path]:
        """Yield the body in a synced file on the target's file system, gone afterwards."""
        with atomic_file.scratch_file(path) as scratch:
            if isinstance(body, writer.FileBody):
                self._fill(scratch, body)
            else:
                atomic_file.write_private(scratch, body)
            _set_mode(scratch, self._mode & ANYBODY_READS_OR_WRITES)
            with self._syncing(scratch):
                atomic_file.sync_file(scratch)
            yield scratch

    def _fill(self, scratch: Path, body: writer.FileBody) -> None:
        body.check_size()
        if not self._sync_failed:
            _link_or_copy(body.path, scratch)
            return
        # A file whose fsync failed once may be synced with success ever after, although its bytes never reach the disk.
        with body.reading(), body.path.open("rb") as source, scratch.open("xb") as target:
            shutil.copyfileobj(source, target)
        with scratch.open("rb") as copied:
            body.check_content(hashlib.file_digest(copied, "sha256").hexdigest())

    def _make_folder(self, folder: Path) -> None:
        """Create the folder and its parents, each made durable in its own parent."""
        missing = []
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for child in reversed(missing):
            child.mkdir(atomic_file.PRIVATE_FOLDER, exist_ok=True)
            _set_mode(child, self._mode)
            try:
                self._sync_folder(child.parent)
            except SyncFailed:
                with suppress(OSError):
                    child.rmdir()  # made and synced again with the next try
                raise

    def _sync_folder(self, folder: Path) -> None:
        with self._syncing(folder):
            atomic_file.sync_folder(folder)

    @contextmanager
    def _syncing(self, path: Path) -> Iterator[None]:
        """Raise SyncFailed for what a failed fsync raises; files are copied and not linked from then on."""
        try:
            yield
        except OSError as error:
            self._sync_failed = True
            raise SyncFailed(
                f"{path} cannot be synced",
                why=error.strerror or str(error),
                remedy="check the disk; the archiver reads it again before it continues",
            ) from error


def _files(root: Path, prefix: str, after: str = "") -> Iterator[tuple[str, Path]]:
    """Files by key, those above `after`; temporary, lock and buffer files, which start with a dot, are left out."""
    # A folder that cannot be read is an error, where `rglob` would leave it out silently.
    for folder, subfolders, names in os.walk(root / prefix.rpartition("/")[0], onerror=_raise_unless_gone):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        home = Path(folder)
        above = "" if home == root else f"{home.relative_to(root).as_posix()}/"
        for name in sorted(names):
            key = above + name
            if key.startswith(prefix) and key > after and not name.startswith(".") and (home / name).is_file():
                yield key, home / name


def _folders(root: Path, prefix: str) -> list[str]:
    """Names of the folders directly below, in order."""
    folder = root / prefix
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return [name for name in sorted(names) if not name.startswith(".")]


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _content_tag(body: bytes) -> writer.ContentTag:
    return writer.ContentTag(hashlib.sha256(body).hexdigest())


def _last_touched(status: os.stat_result) -> float:
    # A linked file keeps the mtime of the buffer that it was made from; its ctime is that of the link.
    return max(status.st_mtime, status.st_ctime)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copyfile(source, target)


def _lock_of(path: Path) -> Path:
    # A file of its own: a rename would swap the marker's inode under the lock's holder.
    return path.with_name(f".{path.name}.lock")


def _set_mode(path: Path, mode: int) -> None:
    """Set the mode if the file system has modes, and the file is not another user's."""
    with suppress(OSError):
        path.chmod(mode)


@contextmanager
def _lock(path: Path, deadline_seconds: float, mode: int) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, atomic_file.PRIVATE_FILE)
    try:
        _set_mode(path, mode & ANYBODY_READS_OR_WRITES)
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
def _file_errors(path: Path, done: str = "written", failure: type[StoreError] = StoreError) -> Iterator[None]:
    """Raise the operating system's errors as those of a store; `failure` is that of errors that do not pass."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in _DENIED:
            raise AccessDenied(
                f"{error.filename or path} may not be {done}",
                why=why,
                remedy="check its owner and mode, or choose another --archive",
            ) from error
        kind = StoreFull if error.errno in _FULL else StoreUnavailable if error.errno in _PASSING else failure
        remedy = "check the disk or the mount, and free space on it"
        if error.errno == errno.ENAMETOOLONG:
            remedy = "use an archive on S3 or a shorter path: most file systems allow 255 bytes in a name"
        raise kind(f"{path} cannot be {done}", why=why, remedy=remedy) from error
