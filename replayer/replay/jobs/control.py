"""Commands to a running replay and its progress, as objects in its job folder. docs/jobs.md specifies them.

`{job}/control.json` holds the commands to the run, `{job}/progress.json` its progress. Both are replaced by
compare-and-swap.
"""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from blockgz.errors import BlockgzError, FormatError, StoreBusy
from blockgz.store.writer import ContentTag, Store
from index_format.objects import Count, Sealed, Timestamp, decode, encode, stored
from replayer.errors import ReplayRefused
from replayer.replay.job import LanePosition
from replayer.replay.pace import parse_rate

T = TypeVar("T", bound=msgspec.Struct)

WantedState = Literal["run", "pause", "cancel"]
ReportedState = Literal["planning", "running", "paused", "ending", "complete", "ended", "failed"]
OVER: frozenset[ReportedState] = frozenset({"complete", "ended", "failed"})
"""The last words of a run."""
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
        """After a conflict: an answer was lost, the object is damaged or gone, or a newer run failed before it ran."""
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


class Steered(Protocol):
    """A run that is steered; called in the control thread."""

    def progress(self) -> JobProgress:
        """Progress of the run so far."""

    def follow(self, seen: JobControl, now: JobControl) -> None:
        """Carry out the command `now`, after `seen`."""

    def warn(self, text: str) -> None:
        """Tell people that the folder does not work; the replay continues."""


class ControlThread:
    """A thread that steers a run by the commands in its job's folder, from `start` to `end`.

    A store that fails or hangs delays this alone, never the replay.
    """

    def __init__(self, store: Store, job: str, run: str, rate: str | None, steered: Steered) -> None:
        """Prepare the thread; `run` is the id in its progress, `rate` the rate at which it begins."""
        self._store, self._job, self._rate, self._steered = store, job, rate, steered
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
            self._steered.warn("the end of the replay is not reported: the job's folder does not answer")

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
                self._steered.warn(f"{failure} for now ({why}); the replay continues")
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
            self._steered.follow(seen, now)

    def _report(self) -> None:
        progress = self._steered.progress()
        is_due = time.monotonic() >= self._told_at + REPORT_SECONDS
        if is_due or self._told is None or (progress.state, progress.rate) != (self._told.state, self._told.rate):
            self._file.write(progress)
            self._told, self._told_at = progress, time.monotonic()
