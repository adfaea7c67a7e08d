"""What a list of jobs says of one."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal, NamedTuple

from blockgz.store.writer import Store
from replayer.replay.jobs.control import JobProgress, ReportedState, read_progress
from replayer.replay.jobs.folder import Attempt, JobFolder, JobRequest, JobUndone, runs_in
from replayer.replay.jobs.lock import is_running

FRESH_MS = 60_000
"""A run on another machine that reported so lately is believed to run still."""

JobState = ReportedState | Literal["interrupted", "undone"]
ALIVE: Collection[JobState | None] = ("planning", "running", "paused", "ending")


class JobSummary(NamedTuple):
    """A job: how many runs it had, and how many records of its run map count; `complete` is None if it is not known."""

    request: JobRequest
    attempts: int
    records: int
    complete: bool | None


def summary_of(folder: JobFolder) -> JobSummary | None:
    """Of a job's folder; None where it holds no job. Raises ReplayRefused where it cannot be read."""
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
    return JobSummary(request, attempts, records, True if folder.complete() else None)


class JobSigns(NamedTuple):
    """What tells whether a job runs: its last report, its newest run, whether its lock is held on this machine.

    And whether it was taken back.
    """

    progress: JobProgress | None
    newest: Attempt | None
    is_running: bool
    undone: JobUndone | None = None

    @property
    def reported(self) -> JobProgress | None:
        """The last report, None where a later run reports nothing."""
        told, newest = self.progress, self.newest
        is_old = told and newest and newest.begun_at > told.updated_at and newest.host != told.attempt_host
        return None if is_old else told


def job_signs(store: Store, job: str, locks: Path) -> JobSigns:
    """Looks at a job's folder, and at its lock in the folder `locks`; raises ReplayRefused for what is damaged."""
    folder = JobFolder(store, job)
    newest = folder.attempt(folder.newest_attempt())
    # Before and after the report: a run that ends reports it before it gives up the lock, and one may just begin.
    was_running = is_running(locks, job)
    progress = read_progress(store, job)
    return JobSigns(progress, newest, was_running or is_running(locks, job), folder.undone())


def job_state(signs: JobSigns, process: str, now_ms: int) -> JobState | None:
    """What a job does, or did at last, seen from `process` (its host and number); None where nothing tells.

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
