"""The state of a job for lists, and the lock that keeps a job to one run on this machine."""

import fcntl
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

from blockgz.atomic_file import make_private_folder
from blockgz.store.writer import Store
from replayer.errors import JobTakenOver, ReplayRefused
from replayer.replay.jobs.control import JobProgress, ReportedState, read_progress
from replayer.replay.jobs.folder import Attempt, JobComplete, JobFolder, JobRequest, JobUndone, runs_in
from replayer.replay.target_topic import state_folder


def lock_folder() -> Path:
    """Return the folder of this machine with the locks of jobs that run."""
    return state_folder() / "jobs"


# A run on another machine that reported so lately is believed to run still.
FRESH_MS = 60_000

JobState = ReportedState | Literal["interrupted", "undone"]
ALIVE: Collection[JobState | None] = ("planning", "running", "paused", "ending")


class JobSummary(NamedTuple):
    """A job: how many runs it had, and how many records of its run map count; `complete` is None if it is not known."""

    request: JobRequest
    attempts: int
    records: int
    complete: bool | None


def summary_of(folder: JobFolder) -> JobSummary | None:
    """Return the summary of a job, None if the folder holds no job; raises ReplayRefused if it cannot be read."""
    request = folder.request()
    if request is None:
        return None
    attempts = folder.newest_attempt()
    if not request.transactional:
        positions = folder.positions.read()
        complete = bool(positions) and all(position.complete for position in positions.values())
        return JobSummary(request, attempts, sum(each.written for each in positions.values()), complete)
    records = 0
    for _, segment in folder.segments():
        if segment.lanes is not None:
            records = sum(lane.written for lane in segment.lanes.values())
        records += sum(run.records for run in runs_in(segment))
    return JobSummary(request, attempts, records, True if folder.get(JobComplete) else None)


class JobSigns(NamedTuple):
    """The signs of whether a job runs: its last report, its newest run, and whether this machine holds its lock.

    And whether it was taken back.
    """

    progress: JobProgress | None
    newest: Attempt | None
    is_running: bool
    undone: JobUndone | None = None

    @property
    def reported(self) -> JobProgress | None:
        """The last report, None if a later run reports nothing."""
        told, newest = self.progress, self.newest
        is_old = told and newest and newest.begun_at > told.updated_at and newest.host != told.attempt_host
        return None if is_old else told


def job_signs(store: Store, job: str, locks: Path) -> JobSigns:
    """Look at a job's folder, and at its lock in the folder `locks`; raises ReplayRefused for what is damaged."""
    folder = JobFolder(store, job)
    newest = folder.attempt(folder.newest_attempt())
    # Before and after the report: a run that ends reports it before it gives up the lock, and one may just begin.
    was_running = is_running(locks, job)
    progress = read_progress(store, job)
    return JobSigns(progress, newest, was_running or is_running(locks, job), folder.get(JobUndone))


def job_state(signs: JobSigns, process: str, now_ms: int) -> JobState | None:
    """Return what a job does or did last, seen from `process` (host and number); None if nothing shows it.

    `interrupted` is a run that never reported its end, and runs no more; `undone` a job whose target was deleted.
    """
    if signs.undone is not None:
        return "undone"
    told = signs.reported
    if told is None:
        return "running" if signs.is_running else None
    if told.is_over or signs.is_running:
        return told.state
    is_elsewhere = told.attempt_host.rpartition(":")[0] != process.rpartition(":")[0]
    return told.state if is_elsewhere and told.updated_at > now_ms - FRESH_MS else "interrupted"


# Seconds to wait for a lock: a process that only checks whether a job runs holds it for an instant.
PATIENCE_SECONDS = 1.0
PAUSE_SECONDS = 0.01
# Looks in a row that find a lock taken before it counts as a run's, and not as another look's.
LOOKS = 3
_looking = threading.Lock()


@contextmanager
def held(folder: Path, job: str) -> Iterator[None]:
    """Keep other runs of the job from writing until the block ends; raises JobTakenOver if one writes already."""
    path = folder / f".{job}.lock"
    with _locked(path, job, fcntl.LOCK_EX):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


@contextmanager
def shared(folder: Path, job: str) -> Iterator[None]:
    """Keep the job from being removed until the block ends; other runs of it may take it over. Raises JobTakenOver as
    `held` does.

    If the folder is not writable, nothing is locked: the cluster keeps runs apart.
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
    """Return whether a process of this machine runs or removes the job; raises ReplayRefused if that is unknown."""
    path = folder / f".{job}.lock"
    try:
        with _looking:
            return all(_is_taken(path, look) for look in range(LOOKS))
    except OSError as error:
        raise ReplayRefused(
            f"cannot tell whether job {job} is running", why=str(error), remedy=f"check the rights on {path}"
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
    """Return the lock, held until it is closed."""
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
    """Try to take the lock, and pause if it is taken; raises BlockingIOError after `give_up`."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        if time.monotonic() > give_up:
            raise
        time.sleep(PAUSE_SECONDS)
        return False
    return True


def _is_named(lock: BinaryIO, path: Path) -> bool:
    """Return whether the lock is still the file of that name: a run that ended may just have deleted it."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), path.stat())
    except FileNotFoundError:
        return False
