"""What a list of jobs says of one."""

from typing import NamedTuple

from replayer.replay.jobs.folder import JobFolder, JobRequest, runs_in


class JobSummary(NamedTuple):
    """A job: how many runs it had, and how many records of its run map count; `complete` is None where that is open."""

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
    return JobSummary(request, attempts, records, None)
