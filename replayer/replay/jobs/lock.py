"""One run of a job at a time on this machine."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from blockgz.atomic_file import make_private_folder
from replayer.errors import JobTakenOver, ReplayRefused

PATIENCE_SECONDS = 1.0
"""So long a lock is waited for: who only looks whether a job runs holds it for an instant."""
PAUSE_SECONDS = 0.01
LOOKS = 3
"""A lock that so many looks in a row find taken is a run's, and not another look."""
_looking = threading.Lock()


@contextmanager
def held(folder: Path, job: str) -> Iterator[None]:
    """While this lasts no other run of the job writes; raises JobTakenOver where one does already."""
    path = folder / f".{job}.lock"
    with _locked(path, job, fcntl.LOCK_EX):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def shared(folder: Path, job: str) -> Iterator[None]:
    """While this lasts the job is not removed; other runs of it may take it over. Raises JobTakenOver as `held`.

    Where the folder cannot be written there is no lock: the cluster keeps runs apart.
    """
    path = folder / f".{job}.lock"
    with ExitStack() as stack:
        lock = None
        with suppress(ReplayRefused):
            lock = stack.enter_context(_locked(path, job, fcntl.LOCK_SH))
        try:
            yield
        finally:
            if lock is not None:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)


def is_running(folder: Path, job: str) -> bool:
    """Whether a process of this machine runs the job, or removes it; raises ReplayRefused where that cannot be told."""
    path = folder / f".{job}.lock"
    try:
        with _looking:
            return all(_is_taken(path, look) for look in range(LOOKS))
    except OSError as error:
        raise ReplayRefused(
            f"whether job {job} is running cannot be told", why=str(error), remedy=f"check the rights on {path}"
        ) from error


def _is_taken(path: Path, look: int) -> bool:
    if look:
        time.sleep(PAUSE_SECONDS)
    try:
        lock = path.open("r+b")
    except FileNotFoundError:
        return False
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _locked(path: Path, job: str, kind: int) -> BinaryIO:
    """The lock, held until it is closed."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    try:
        make_private_folder(path.parent)
        while True:
            lock = path.open("ab")
            try:
                if _takes(lock, kind, give_up) and _is_named(lock, path):
                    return lock
            except BaseException:
                lock.close()
                raise
            lock.close()
    except BlockingIOError as error:
        raise JobTakenOver(
            f"job {job} is already running",
            why=f"another process holds {path}",
            remedy="wait for it, or start another job with --job NAME",
        ) from error
    except OSError as error:
        raise ReplayRefused(
            f"job {job} cannot be limited to one run",
            why=str(error),
            remedy="make $XDG_STATE_HOME writable",
        ) from error


def _takes(lock: BinaryIO, kind: int, give_up: float) -> bool:
    """Whether the lock is taken now; after a pause where it is not. Raises BlockingIOError once it is time."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if time.monotonic() > give_up:
            raise
        time.sleep(PAUSE_SECONDS)
        return False
    return True


def _is_named(lock: BinaryIO, path: Path) -> bool:
    """Whether the lock is the file of that name still: a run that ended may just have taken it away."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False
