"""Where the folders of replay jobs are."""

from blockgz_runtime.store.opening import open_store
from blockgz_runtime.store.writer import Store
from replayer.cli.options.archive_options import ArchiveOptions
from replayer.replay.target_topic import state_folder


def open_jobs(jobs: str | None, archive: ArchiveOptions) -> Store:
    """The store at `jobs`, on S3 as the archive's endpoint and region say; by default a folder of this machine."""
    place = jobs or str(state_folder() / "jobs")
    return open_store(place, endpoint_url=archive.endpoint_url, region=archive.region)
