"""The thread that reports a running replay's progress to its job's folder, and takes commands from there."""

import threading
import time
from collections.abc import Callable
from typing import Protocol

from blockgz.store.writer import Store
from index_format.errors import BlockgzError
from replayer.replay.jobs.control import JobControl, JobProgress, ProgressFile, read_control, reset_control

POLL_SECONDS = 1.0
REPORT_SECONDS = 2.0
LAST_WORDS_SECONDS = 5.0
"""So long the end of a run waits for a store that does not take its last report."""
RETRY_SECONDS = 0.2


class Steered(Protocol):
    """A run that is steered; called in the control thread."""

    def progress(self) -> JobProgress:
        """How far it is."""

    def follow(self, seen: JobControl, now: JobControl) -> None:
        """Does what it is told to do now, after it was told `seen`."""

    def warn(self, text: str) -> None:
        """Tells people that the folder does not work; the replay continues."""


class ControlThread:
    """Steers a run by its job's folder, from `start` to `end`.

    A store that fails or hangs delays this alone, never the replay.
    """

    def __init__(self, store: Store, job: str, run: str, rate: str | None, steered: Steered) -> None:
        """`run` is the id in its progress, `rate` the one that it begins with."""
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
        """Forgets what earlier runs were told, and reports for the first time, without waiting for either."""
        self._thread.start()

    def wake(self) -> None:
        """Reports soon: the state changed. May be called from any thread."""
        self._wake.set()

    def end(self, last: JobProgress) -> None:
        """Reports for the last time; waits for that, but not for ever."""
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
        while not self._carry_out("progress cannot be reported", self._report_last) and time.monotonic() < give_up:
            time.sleep(RETRY_SECONDS)

    def _carry_out(self, failure: str, step: Callable[[], None]) -> bool:
        """Whether the step was done; warns of the first of several failures in a row."""
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

    def _report_last(self) -> None:
        if self._last is not None:
            self._file.write(self._last)
