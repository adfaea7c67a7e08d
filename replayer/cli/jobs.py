"""`replayer jobs`."""

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from blockgz.errors import PARTLY_FAILED, UsageError
from blockgz.program.archive_options import s3_options
from blockgz.program.main import closing, confirm, print_failure
from blockgz.program.terminal import print_table
from blockgz.store.address import S3Settings
from blockgz.store.writer import ToolStore
from blockgz.units import time_text, wall_clock
from replayer.cli.options.options import jobs_option, json_option
from replayer.errors import ReplayRefused
from replayer.replay.jobs import control
from replayer.replay.jobs.folder import JobFolder, existing_jobs, job_names, jobs_with, this_process

COLUMNS = ("JOB", "SOURCE", "TARGET", "STATE", "BEGUN", "RUNS", "RECORDS", "TRANSACTIONAL", "COMPLETE")
DROPPABLE = ("TRANSACTIONAL", "RUNS", "BEGUN", "RECORDS", "SOURCE")
# The commands that a running job takes, and the state that each asks for; `rate` is another one.
STEERING: Mapping[str, control.WantedState] = {"pause": "pause", "resume": "run", "cancel": "cancel"}


@click.command(
    "jobs",
    epilog=closing(
        "replayer jobs",
        "replayer jobs pause restore-1",
        "replayer jobs rate restore-1 20MB/s",
        "replayer jobs rm restore-1 --yes",
        "replayer jobs --jobs s3://bucket/replay-jobs --json",
    ),
)
@click.argument("action", metavar="[pause|resume|cancel|rm NAME | rate NAME N/s|none]", nargs=-1)
@jobs_option
@click.option("--yes", is_flag=True, help="With rm: do not ask.")
@json_option
@s3_options
def command(action: tuple[str, ...], jobs: str | None, yes: bool, as_json: bool, s3: S3Settings) -> int:
    """List the folders of replay jobs, steer one, or remove one.

    A job that was started with replayer replay --control can be paused, resumed, cancelled and given another rate, as
    --rate takes it, or none. It does so within seconds. A cancelled job commits, then ends; --resume continues it.

    STATE is planning, running, paused, ending, complete, ended (before it was complete), failed, interrupted (it no
    longer runs, and did not say so) or undone (replayer undo deleted its topic). Without --control it is known only
    while the job runs on this machine.

    RECORDS counts the valid records in the job's run map. COMPLETE is - for a job with --transactional that no run of
    this version completed; replayer verify --job shows whether it is.

    What a removed job wrote stays in its target, but the job can no longer be resumed or proved. A job that is running
    on this machine is not removed.
    """
    if not action:
        return _list(existing_jobs(jobs, s3), as_json=as_json)
    if len(action) != (3 if action[0] == "rate" else 2) or action[0] not in ("rm", "rate", *STEERING):
        raise click.UsageError("jobs takes no arguments, rm|pause|resume|cancel and a job, or rate, a job and N/s|none")
    if as_json:
        raise click.UsageError("--json applies only to the list of jobs")
    store = jobs_with(action[1], jobs, s3)
    if action[0] == "rm":
        _remove(store, action[1], yes=yes)
    else:
        _steer(store, *action)
    return 0


def _list(store: ToolStore | None, *, as_json: bool) -> int:
    code = 0
    listed: list[dict[str, Any]] = []
    for name in job_names(store) if store else ():
        assert store is not None
        try:
            found = control.summary_of(JobFolder(store, name))
            state = control.job_state(
                control.job_signs(store, name, control.lock_folder()), this_process(), wall_clock()
            )
        except ReplayRefused as error:
            print_failure(error)
            code = PARTLY_FAILED
            continue
        if found is None:
            continue
        request = found.request
        is_settled = found.complete and state != "undone" and state not in control.ALIVE
        listed.append(
            {
                "job": request.job,
                "source": request.folder,
                "target": request.target,
                "state": "complete" if is_settled else state,
                "begun_at_ms": request.begun_at,
                "runs": found.attempts,
                "records": found.records,
                "transactional": request.transactional,
                "complete": found.complete,
            }
        )
    if as_json:
        click.echo(msgspec.json.encode({"jobs": listed}))
    else:
        words = {True: "yes", False: "no", None: "-"}
        shown: dict[str, Any] = {"begun_at_ms": time_text, "transactional": words.get, "complete": words.get}
        rows = [[shown.get(name, lambda it: it)(value) for name, value in each.items()] for each in listed]
        print_table(COLUMNS, rows, droppable=DROPPABLE)
    return code


def _remove(store: ToolStore, name: str, *, yes: bool) -> None:
    folder = JobFolder(store, name)
    confirm(f"Remove {folder.address}?", undone=f"{folder.address} was not removed", is_agreed=yes)
    with control.held(control.lock_folder(), name):
        folder.remove()
    click.echo(f"{folder.address} is removed", err=True)


def _steer(store: ToolStore, command: str, name: str, rate: str = "none") -> None:
    """Write down what the job's run is to do; raises UsageError if no run would do it."""
    signs = control.job_signs(store, name, control.lock_folder())
    state = control.job_state(signs, this_process(), wall_clock())
    if signs.reported is None:
        raise UsageError(
            f"job {name} takes no commands",
            why="its newest run was not started with --control",
            remedy="start it with replayer replay --control, and with --resume if it has begun",
        )
    if state not in control.ALIVE:
        raise UsageError(
            f"job {name} is not running",
            why=f"its newest run is {state}",
            remedy="unless it is complete, replayer replay --resume --control continues it",
        )
    if command == "rate":
        control.change_control(store, name, rate=None if rate == "none" else rate)
    else:
        control.change_control(store, name, state=STEERING[command])
    click.echo(f"job {name} will do so within seconds: see replayer jobs", err=True)
