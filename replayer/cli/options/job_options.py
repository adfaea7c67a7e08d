"""Where the folders of replay jobs are."""

from blockgz.archive.place import ArchivePlace
from blockgz.errors import NoArchiveThere, UsageError
from blockgz.store.opening import open_existing_store, open_store
from blockgz.store.s3_settings import S3Settings
from blockgz.store.writer import Store, ToolStore
from replayer.replay.jobs.folder import job_names, jobs_place


def open_jobs(jobs: str | None, archive: ArchivePlace) -> Store:
    """The store at `jobs`, on S3 as the archive is."""
    return open_store(jobs_place(jobs), archive.s3)


def existing_jobs(jobs: str | None, s3: S3Settings) -> ToolStore | None:
    """The folder of jobs; None where the default one is not there yet. Raises UsageError for another that is not."""
    try:
        return open_existing_store(jobs_place(jobs), s3)
    except NoArchiveThere as error:
        if jobs is None:
            return None
        raise UsageError(f"there are no jobs at {jobs}", why=error.why, remedy="check --jobs") from error


def jobs_with(name: str, jobs: str | None, s3: S3Settings) -> ToolStore:
    """The folder of jobs, in which there is one of that name; raises UsageError."""
    store = existing_jobs(jobs, s3)
    if store is None or name not in job_names(store):
        raise UsageError(f"there is no job {name[:120]!r}", why="no folder has that name", remedy="see replayer jobs")
    return store
