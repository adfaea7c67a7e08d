"""Where the folders of replay jobs are."""

from blockgz_runtime.store.opening import open_store
from blockgz_runtime.store.writer import Store
from replayer.place import ArchivePlace
from replayer.replay.jobs.folder import jobs_place


def open_jobs(jobs: str | None, archive: ArchivePlace) -> Store:
    """The store at `jobs`, on S3 as the archive is."""
    return open_store(jobs_place(jobs), archive.s3)
