"""`replayer undo`, and what it shares with `replayer restore undo`."""

import sys
from collections.abc import Collection
from typing import NamedTuple

import click
import msgspec

from blockgz.archive.inventory import mark_undone
from blockgz.errors import BlockgzError
from blockgz.program.archive_options import archive_option, s3_options
from blockgz.program.main import closing, confirm
from blockgz.program.options import OptionSet, dry_run_option, kafka_options, yes_option
from blockgz.program.terminal import print_each, print_table, range_text
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_store
from blockgz.units import wall_clock
from replayer.cli.options.options import jobs_option, json_option
from replayer.replay.jobs.control import held, job_signs, lock_folder
from replayer.replay.jobs.folder import jobs_with
from replayer.replay.jobs.undo import carry_out, plan_undo, refuse_running, undo_document
from replayer.replay.recorded_job import kept_job


class UndoOptions(NamedTuple):
    """The options of undoing; `archive` holds copies of the topics that are deleted."""

    jobs: str | None
    dry_run: bool
    yes: bool
    as_json: bool
    kafka: dict[str, str]
    archive: str | None
    s3: S3Settings

    def mark_copies(self, topics: Collection[tuple[str, str]]) -> None:
        """Mark what the archive has of deleted topics, given with their ids, as undone; a failure is a warning."""
        try:
            store = open_store(self.archive, self.s3) if self.archive and topics else None
            count = mark_undone(store, topics, wall_clock()) if store else 0
        except BlockgzError as error:
            click.echo(f"warning: copies in {self.archive} are not marked as undone: {error.reason}", err=True)
            return
        if count:
            to_drop = f"archiver drop TOPIC -a {self.archive} deletes a copy"
            click.echo(f"note: {count} partitions in {self.archive} are marked as undone; {to_drop}", err=True)


undo_options = OptionSet(
    "undo",
    UndoOptions,
    jobs_option,
    dry_run_option,
    yes_option,
    json_option,
    kafka_options(required=True),
    archive_option(required=False),
    s3_options,
)


@click.command(
    "undo",
    epilog=closing(
        "replayer undo --job restore-1 --dry-run -b localhost:9092",
        "replayer undo --job restore-1 -b localhost:9092",
        "replayer undo --job restore-1 --jobs s3://bucket/replay-jobs --yes -b localhost:9092",
    ),
)
@click.option("--job", metavar="NAME", required=True, help="The job that created the topic.")
@undo_options
def command(job: str, undo: UndoOptions) -> int:
    """Delete the topic that a replay created.

    Refused if the topic existed before the job, was deleted and created again, or holds records that the job did not
    write, and while the job runs. Prints the plan, then asks for the topic's name. The job's folder is kept, and its
    state becomes `undone`. Copies of the topic in the archive of -a are marked: they are not missed once they are gone.
    """
    store, locks = jobs_with(job, undo.jobs, undo.s3), lock_folder()
    kept, folder = kept_job(job, store)
    refuse_running(job, job_signs(store, job, locks), wall_clock())
    with held(locks, job):
        plan = plan_undo(folder, kept, undo.kafka)
        topic = plan.request.target
        if not undo.as_json:
            title = f"topic {topic} (id {plan.topic_id}), created by job {job}: {plan.records} records"
            rows = [(lane, range_text(*bounds)) for lane, bounds in sorted(plan.bounds.items())]
            print_table(("PARTITION", "OFFSETS"), rows, title=title, file=sys.stderr)
            print_each("warning: ", plan.warnings, err=True)
        if not undo.dry_run:
            question = f"Delete topic {topic} with {plan.records} records?"
            confirm(question, undone=f"topic {topic} was not deleted", is_agreed=undo.yes, typed=topic)
            carry_out(plan, folder, undo.kafka, wall_clock())
            undo.mark_copies({(topic, plan.topic_id)})
    if undo.as_json:
        click.echo(msgspec.json.encode(undo_document(plan) | {"dry_run": undo.dry_run, "deleted": not undo.dry_run}))
    elif not undo.dry_run:
        click.echo(f"topic {topic} is deleted, job {job} is undone")
    return 0
