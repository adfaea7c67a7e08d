"""`replayer undo`."""

import sys

import click
import msgspec

from blockgz.program.archive_options import s3_options
from blockgz.program.main import closing, confirm
from blockgz.program.options import dry_run_option, kafka_options, yes_option
from blockgz.program.terminal import print_each, print_table, range_text
from blockgz.store.address import S3Settings
from blockgz.units import wall_clock
from replayer.cli.options.options import jobs_option, json_option
from replayer.replay.jobs.control import held, job_signs, lock_folder
from replayer.replay.jobs.folder import jobs_with
from replayer.replay.jobs.undo import UndoPlan, carry_out, plan_undo, refuse_running, undo_document
from replayer.replay.recorded_job import kept_job


@click.command(
    "undo",
    epilog=closing(
        "replayer undo --job restore-1 --dry-run -b localhost:9092",
        "replayer undo --job restore-1 -b localhost:9092",
        "replayer undo --job restore-1 --jobs s3://bucket/replay-jobs --yes -b localhost:9092",
    ),
)
@click.option("--job", metavar="NAME", required=True, help="The job that created the topic.")
@jobs_option
@dry_run_option
@yes_option
@json_option
@kafka_options(required=True)
@s3_options
def command(
    job: str, jobs: str | None, dry_run: bool, yes: bool, as_json: bool, kafka: dict[str, str], s3: S3Settings
) -> int:
    """Delete the topic that a replay created.

    Refused if the topic existed before the job, was deleted and created again, or holds records that the job did not
    write, and while the job runs. Prints the plan, then asks for the topic's name. The job's folder is kept, and its
    state becomes `undone`.
    """
    store, locks = jobs_with(job, jobs, s3), lock_folder()
    kept, folder = kept_job(job, store)
    refuse_running(job, job_signs(store, job, locks), wall_clock())
    with held(locks, job):
        plan = plan_undo(folder, kept, kafka)
        if not as_json:
            _print_plan(plan)
        if not dry_run:
            topic = plan.request.target
            question = f"Delete topic {topic} with {plan.records} records?"
            confirm(question, undone=f"topic {topic} was not deleted", is_agreed=yes, typed=topic)
            carry_out(plan, folder, kafka, wall_clock())
    if as_json:
        click.echo(msgspec.json.encode(undo_document(plan) | {"dry_run": dry_run, "deleted": not dry_run}))
    elif not dry_run:
        click.echo(f"topic {plan.request.target} is deleted, job {job} is undone")
    return 0


def _print_plan(plan: UndoPlan) -> None:
    title = (
        f"topic {plan.request.target} (id {plan.topic_id}), created by job {plan.request.job}: {plan.records} records"
    )
    rows = [(lane, range_text(*bounds)) for lane, bounds in sorted(plan.bounds.items())]
    print_table(("PARTITION", "OFFSETS"), rows, title=title, file=sys.stderr)
    print_each("warning: ", plan.warnings, err=True)
