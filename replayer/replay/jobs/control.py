"""Commands to a running replay, its progress, its state for lists, and the lock that keeps it to one run here.

docs/jobs.md specifies the objects in its folder: `{job}/control.json` holds the commands to the run,
`{job}/progress.json` its progress. Both are replaced by compare-and-swap.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar

import msgspec

from blockgz.atomic_file import make_private_folder
from blockgz.errors import BlockgzError, FormatError, StoreBusy
from blockgz.store.writer import ContentTag, Store
from index_format.objects import Count, Sealed, Timestamp, decode, encode, stored
from replayer.errors import JobTakenOver, ReplayRefused
from replayer.replay.job import LanePosition
from replayer.replay.jobs.folder import Attempt, JobComplete, JobFolder, JobRequest, JobUndone, runs_in
from replayer.replay.pace import parse_rate
from replayer.replay.target_topic import state_folder

T = TypeVar("T", bound=msgspec.Struct)

WantedState = Literal["run", "pause", "cancel"]
ReportedState = Literal["planning", "running", "paused", "ending", "complete", "ended", "failed"]
# The last words of a run.
OVER: frozenset[ReportedState] = frozenset({"complete", "ended", "failed"})
TRIES = 10


@stored
class JobControl(Sealed, frozen=True, kw_only=True):
    """The command to a run; `rate` as `--rate` takes it, None for no limit.

    `changes` grows with every change, so that a run notices one that asks for the same again.
    """

    format: str = "blockgz-replay-control"
    version: int = 1
    state: WantedState = "run"
    rate: str | None = None
    changes: Count = 0


class LaneProgress(msgspec.Struct, frozen=True, array_like=True):
    """A target partition: the job's committed records there, and the offsets of its sources, done and at all."""

    lane: Count
    written: Count
    done: Count
    all: Count


class JobFailure(msgspec.Struct, frozen=True):
    """The error that ended a run, in three lines, and its exit code."""

    error: str
    why: str
    do: str
    code: int


@stored
class JobProgress(Sealed, frozen=True, kw_only=True):
    """The progress of a run.

    `records` and `bytes` (of keys and values) are those that this run read and sent so far, of `total` records that
    were left to do when it began; `records_before` were written by earlier runs. `seconds` leave pauses out. `lanes`
    say what is committed. `run` is this run's id, `attempt_host` its host and process.
    """

    format: str = "blockgz-replay-progress"
    version: int = 1
    run: str
    state: ReportedState
    records: int
    total: int | None
    bytes: int
    seconds: float
    rate: str | None
    records_before: int
    lanes: tuple[LaneProgress, ...] = ()
    updated_at: Timestamp
    attempt_host: str
    failure: JobFailure | None = None

    @property
    def is_over(self) -> bool:
        """True if the run itself reported its end."""
        return self.state in OVER


def lanes_progress(positions: Mapping[int, LanePosition]) -> tuple[LaneProgress, ...]:
    """Return committed positions as the progress of their lanes."""
    return tuple(
        LaneProgress(
            lane,
            position.written,
            sum(source.next - source.start for source in position.sources.values()),
            sum(source.end - source.start for source in position.sources.values()),
        )
        for lane, position in sorted(positions.items())
    )


def read_control(store: Store, job: str) -> JobControl | None:
    """Return the command to the job's run, None if there is none; raises ReplayRefused for a damaged object."""
    return _read(store, _control_key(job), JobControl)[0]


def read_progress(store: Store, job: str) -> JobProgress | None:
    """Return what the newest run with --control reported, None before the first; raises ReplayRefused for damage."""
    return _read(store, _progress_key(job), JobProgress)[0]


def change_control(store: Store, job: str, **changes: Any) -> JobControl:
    """Change `state` or `rate`, and leave the other as it is; return what is to be done now.

    Raises UsageError for a rate that is none. A missing or damaged object is replaced, at the rate of the run.
    """
    if changes.get("rate") is not None:
        parse_rate(changes["rate"])

    def changed(found: JobControl | None) -> JobControl:
        if found is None:
            progress = read_progress(store, job)
            found = JobControl(rate=progress.rate if progress else None)
        return msgspec.structs.replace(found, **changes, changes=found.changes + 1)

    return _replace(store, job, changed)


def reset_control(store: Store, job: str, rate: str | None) -> JobControl:
    """Replace earlier commands by the one that a run begins with: run, at `rate`."""
    return _replace(store, job, lambda _: JobControl(rate=rate))


def _replace(store: Store, job: str, make: Callable[[JobControl | None], JobControl]) -> JobControl:
    key = _control_key(job)
    for _ in range(TRIES):
        found, tag = _read_if_sound(store, key, JobControl)
        wanted = make(found)
        if store.compare_and_swap(key, encode(wanted), tag) is not None:
            return wanted
    raise _too_busy(key)


class ProgressFile:
    """The progress file of one run; used by one thread. Calls raise what a store raises."""

    def __init__(self, store: Store, job: str, run: str) -> None:
        self._store, self._key, self._run = store, _progress_key(job), run
        self._tag: ContentTag | None = None
        self._is_begun = False

    def write(self, progress: JobProgress) -> bool:
        """Replace what is there; False, and nothing is changed, where a newer run reports."""
        body = encode(progress)
        for _ in range(TRIES):
            if not self._is_begun:
                _, self._tag = _read_if_sound(self._store, self._key, JobProgress)
            tag = self._store.compare_and_swap(self._key, body, self._tag)
            if tag is not None:
                self._tag, self._is_begun = tag, True
                return True
            if self._is_begun and not self._may_replace(progress):
                return False
        raise _too_busy(self._key)

    def _may_replace(self, progress: JobProgress) -> bool:
        # After a conflict: an answer was lost, the object is damaged or gone, or a newer run failed before it ran.
        found, self._tag = _read_if_sound(self._store, self._key, JobProgress)
        return found is None or found.run == self._run or (found.state == "failed" and not progress.is_over)


def _control_key(job: str) -> str:
    return f"{job}/control.json"


def _progress_key(job: str) -> str:
    return f"{job}/progress.json"


def _read(store: Store, key: str, kind: type[T]) -> tuple[T | None, ContentTag | None]:
    found = store.get(key)
    if found is None:
        return None, None
    try:
        return decode(found.body, kind, key), found.etag
    except FormatError as error:
        raise ReplayRefused(error.what, why=error.why, remedy="remove it: it is written again") from error


def _read_if_sound(store: Store, key: str, kind: type[T]) -> tuple[T | None, ContentTag | None]:
    """Read as `_read` does; a damaged object is as good as none, and is replaced by its tag."""
    try:
        return _read(store, key, kind)
    except ReplayRefused:
        found = store.get(key)
        return None, found.etag if found else None


def _too_busy(key: str) -> StoreBusy:
    return StoreBusy(f"{key} cannot be changed", why=f"others changed it {TRIES} times meanwhile", remedy="try again")


POLL_SECONDS = 1.0
REPORT_SECONDS = 2.0
# Seconds that the end of a run waits for a store that does not take its last report.
LAST_WORDS_SECONDS = 5.0
RETRY_SECONDS = 0.2


class ControlThread:
    """A thread that steers a run by the commands in its job's folder, from `start` to `end`.

    A store that fails or hangs delays this alone, never the replay.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        run: str,
        rate: str | None,
        progress: Callable[[], JobProgress],
        follow: Callable[[JobControl, JobControl], None],
        warn: Callable[[str], None],
    ) -> None:
        """Prepare the thread; `run` is the id in its progress, `rate` the rate at which it begins.

        In the thread, `follow` carries out a command after the one before it, and `warn` tells people that the folder
        does not work.
        """
        self._store, self._job, self._rate = store, job, rate
        self._progress, self._follow, self._warn = progress, follow, warn
        self._file = ProgressFile(store, job, run)
        self._seen: JobControl | None = None
        self._told: JobProgress | None = None
        self._told_at = 0.0
        self._last: JobProgress | None = None
        self._failing: set[str] = set()
        self._is_left = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._work, name="control", daemon=True)

    def start(self) -> None:
        """Forget commands to earlier runs, and report for the first time, without waiting for either."""
        self._thread.start()

    def wake(self) -> None:
        """Report soon: the state changed. May be called from any thread."""
        self._wake.set()

    def end(self, last: JobProgress) -> None:
        """Report for the last time; wait for that, but only for some seconds."""
        self._last = last
        self._wake.set()
        self._thread.join(LAST_WORDS_SECONDS + 2 * RETRY_SECONDS)
        if self._thread.is_alive():
            self._is_left = True
            self._warn("the end of the replay is not reported: the job's folder does not answer")

    def _work(self) -> None:
        while self._last is None:
            self._carry_out("commands cannot be read", self._listen)
            self._carry_out("progress cannot be reported", self._report)
            self._wake.wait(POLL_SECONDS)
            self._wake.clear()
        give_up = time.monotonic() + LAST_WORDS_SECONDS
        report_last = partial(self._file.write, self._last)
        while not self._carry_out("progress cannot be reported", report_last) and time.monotonic() < give_up:
            time.sleep(RETRY_SECONDS)

    def _carry_out(self, failure: str, step: Callable[[], object]) -> bool:
        """Return whether the step succeeded; warn of the first of several failures in a row."""
        try:
            step()
        except Exception as error:
            if failure not in self._failing and not self._is_left:
                self._failing.add(failure)
                why = f"{error.what}: {error.why}" if isinstance(error, BlockgzError) else repr(error)
                self._warn(f"{failure} for now ({why}); the replay continues")
            return False
        self._failing.discard(failure)
        return True

    def _listen(self) -> None:
        if self._seen is None:
            self._seen = reset_control(self._store, self._job, self._rate)
            return
        now = read_control(self._store, self._job)
        if now is not None and now != self._seen:
            seen, self._seen = self._seen, now
            self._follow(seen, now)

    def _report(self) -> None:
        progress = self._progress()
        is_due = time.monotonic() >= self._told_at + REPORT_SECONDS
        if is_due or self._told is None or (progress.state, progress.rate) != (self._told.state, self._told.rate):
            self._file.write(progress)
            self._told, self._told_at = progress, time.monotonic()


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
            f"job {job} cannot be limited to one run", why=str(error), remedy="make $XDG_STATE_HOME writable"
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
