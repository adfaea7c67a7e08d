"""`replayer jobs`."""

from typing import Any

import click
import msgspec

from blockgz_runtime.errors import PARTLY_FAILED, NoArchiveThere, UsageError
from blockgz_runtime.program.archive_options import s3_options
from blockgz_runtime.program.main import closing, confirm, print_failure
from blockgz_runtime.program.tables import print_table, time_text
from blockgz_runtime.store.opening import open_existing_store
from blockgz_runtime.store.s3_settings import S3Settings
from blockgz_runtime.store.writer import ToolStore
from replayer.cli.options.options import jobs_option, json_option
from replayer.errors import ReplayRefused
from replayer.replay.jobs.folder import JobFolder, job_names, jobs_place
from replayer.replay.jobs.lock import held
from replayer.replay.jobs.summary import JobSummary, summary_of
from replayer.replay.target_topic import state_folder

COLUMNS = ("JOB", "SOURCE", "TARGET", "BEGUN", "RUNS", "RECORDS", "TRANSACTIONAL", "COMPLETE")
DROPPABLE = ("TRANSACTIONAL", "RUNS", "BEGUN", "RECORDS", "SOURCE")


@click.command(
    "jobs",
    epilog=closing(
        "replayer jobs", "replayer jobs rm restore-1 --yes", "replayer jobs --jobs s3://bucket/replay-jobs --json"
    ),
)
@click.argument("action", metavar="[rm NAME]", nargs=-1)
@jobs_option
@click.option("--yes", is_flag=True, help="With rm: do not ask.")
@json_option
@s3_options
def command(action: tuple[str, ...], jobs: str | None, yes: bool, as_json: bool, s3: S3Settings) -> int:
    """List the folders of replay jobs, or remove one.

    RECORDS counts the valid records in the job's run map. Whether a job with --transactional is complete is known only
    to the cluster; replayer verify --job shows it.

    What a removed job wrote stays in its target, but the job can no longer be resumed or proved. A job that is running
    on this machine is not removed.
    """
    if not action:
        return _list(_opened(jobs, s3), as_json=as_json)
    if action[0] != "rm" or len(action) != 2:
        raise click.UsageError("jobs takes no arguments, or rm and the name of a job")
    if as_json:
        raise click.UsageError("--json applies only to the list of jobs")
    _remove(_opened(jobs, s3), action[1], yes=yes)
    return 0


def _opened(jobs: str | None, s3: S3Settings) -> ToolStore | None:
    """The folder of jobs; None where the default one is not there yet."""
    try:
        return open_existing_store(jobs_place(jobs), s3)
    except NoArchiveThere as error:
        if jobs is None:
            return None
        raise UsageError(f"there are no jobs at {jobs}", why=error.why, remedy="check --jobs") from error


def _list(store: ToolStore | None, *, as_json: bool) -> int:
    code = 0
    listed: list[JobSummary] = []
    for folder in [JobFolder(store, name) for name in job_names(store)] if store else ():
        try:
            found = summary_of(folder)
        except ReplayRefused as error:
            print_failure(error)
            code = PARTLY_FAILED
            continue
        if found is not None:
            listed.append(found)
    if as_json:
        click.echo(msgspec.json.encode({"jobs": [_json(each) for each in listed]}))
    else:
        print_table(COLUMNS, [_row(each) for each in listed], droppable=DROPPABLE)
    return code


def _json(job: JobSummary) -> dict[str, Any]:
    return {
        "job": job.request.job,
        "source": job.request.folder,
        "target": job.request.target,
        "begun_at_ms": job.request.begun_at,
        "runs": job.attempts,
        "records": job.records,
        "transactional": job.request.transactional,
        "complete": job.complete,
    }


def _row(job: JobSummary) -> tuple[str | int, ...]:
    words = {True: "yes", False: "no", None: "-"}
    request = job.request
    names = (request.job, request.folder, request.target, time_text(request.begun_at))
    return (*names, job.attempts, job.records, words[request.transactional], words[job.complete])


def _remove(store: ToolStore | None, name: str, *, yes: bool) -> None:
    if store is None or name not in job_names(store):
        raise UsageError(f"there is no job {name[:120]!r}", why="no folder has that name", remedy="see replayer jobs")
    folder = JobFolder(store, name)
    confirm(f"Remove {folder.address}?", undone=f"{folder.address} was not removed", is_agreed=yes)
    with held(state_folder() / "jobs", name):
        folder.remove()
    click.echo(f"{folder.address} is removed", err=True)
