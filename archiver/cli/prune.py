"""`archiver prune`."""

from collections.abc import Sequence
from typing import Any

import click
import orjson

from archiver.cli.rewrite_options import FREED
from archiver.maintain.partitions import Problem
from archiver.maintain.rewrite.intent import Outcome, not_done
from archiver.maintain.rewrite.planning import Pruned, PrunePlans, carry_out, plan_pruning
from archiver.maintain.rewrite.pruning import Keep
from blockgz.config.model import parse_age, parse_bytes
from blockgz.errors import UsageError
from blockgz.program.archive_options import store_options, writing_s3_options
from blockgz.program.main import closing, code_of_problems, confirm, print_problems
from blockgz.program.options import Parsed
from blockgz.program.plan_options import plan_options
from blockgz.program.tables import bytes_text, print_table
from blockgz.store.opening import open_existing_store
from blockgz.store.retry import bounded_backoff
from blockgz.store.s3_settings import S3Settings
from blockgz.topic_patterns import TopicSelection

AGE, BYTES = Parsed("age", parse_age), Parsed("size", parse_bytes)


@click.command(
    epilog=closing(
        "archiver prune --keep 90d -a s3://backup/kafka --dry-run",
        "archiver prune 'clicks-*' --keep-bytes 500GB -a ./archive --yes",
    ),
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options(writing_s3_options)
@click.option("--keep", type=AGE, help="Prune records with timestamps older than this.")
@click.option("--keep-bytes", type=BYTES, help="Prune the oldest records, of each partition, beyond this size of data.")
@plan_options
def prune(
    *,
    topics: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    keep: float | None,
    keep_bytes: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Take the oldest records out of the archive, while archivers run.

    Records are pruned in whole catalogs of up to 64 chunks, so some older records may stay. Chunks that are in no
    catalog yet always stay. `archiver gc` deletes the objects, a grace period after it first saw that they were pruned.
    Until then readers that began before are not disturbed. TOPIC is a name, a glob or ~regex; the default is the whole
    archive. Prints the plan and asks first.
    """
    _check_clear(keep, keep_bytes)
    store = open_existing_store(archive, s3)
    # By the store's clock: one of this machine that is wrong would prune what is new.
    kept = Keep(newest_bytes=keep_bytes) if keep is None else Keep(since_ms=round((store.clock() - keep) * 1000))
    wait = bounded_backoff(store.url)
    plan = plan_pruning(store, TopicSelection(topics) if topics else None, kept, wait)
    if not as_json:
        _print_plan(plan)
    done: list[Pruned] = []
    if plan.partitions and not dry_run:
        question = f"Prune {plan.num_chunks:,} chunks ({plan.num_bytes:,} bytes)?"
        confirm(question, undone="nothing was pruned", is_agreed=yes)
        carry_out(store, plan.partitions, wait, done.append)
        if not as_json:
            pruned = sum(each.outcome is Outcome.COMMITTED for each in done)
            click.echo(f"pruned {pruned:,} of {len(plan.partitions):,} partitions{FREED if pruned else ''}")
    problems = (*plan.problems, *_failed(done))
    print_problems(problems)
    if as_json:
        click.echo(orjson.dumps(result_object(archive, plan, done, problems, dry_run=dry_run)).decode())
    tried = len(plan.partitions) + len(plan.problems)
    return code_of_problems([each.error for each in problems], tried=None if dry_run else tried)


def _check_clear(age: float | None, size: int | None) -> None:
    if (age is None) == (size is None):
        raise UsageError(
            "it is not clear what is to stay",
            why="exactly one of --keep and --keep-bytes says that",
            remedy="give --keep 90d, or --keep-bytes 500GB",
        )


def _failed(done: Sequence[Pruned]) -> list[Problem]:
    problems = []
    for each in done:
        error = each.error
        if each.outcome is not None and each.outcome is not Outcome.COMMITTED:
            error = not_done(each.plan.name, "pruned", each.outcome)
        if error is not None:
            problems.append(Problem(each.plan.name, error))
    return problems


def result_object(
    archive: str, plan: PrunePlans, done: Sequence[Pruned], problems: Sequence[Problem], *, dry_run: bool
) -> dict[str, Any]:
    """The JSON contract of `archiver prune --json`."""
    outcomes = {each.plan.keys.home: each.outcome for each in done}
    partitions = [
        {
            "topic": str(each.keys.folder),
            "partition": each.keys.partition,
            "pruned_before": each.going.pruned_before,
            "records": each.going.num_records,
            "chunks": each.going.num_chunks,
            "bytes": each.going.num_bytes,
            "left_records": each.left_records,
            "left_chunks": each.left_chunks,
            "left_bytes": each.left_bytes,
            "next_offset": each.next_offset,
            "pruned": outcomes.get(each.keys.home) is Outcome.COMMITTED,
        }
        for each in plan.partitions
    ]
    return {
        "archive": archive,
        "dry_run": dry_run,
        "chunks": plan.num_chunks,
        "bytes": plan.num_bytes,
        "untouched": plan.untouched,
        "partitions": partitions,
        "problems": [each.as_json for each in problems],
    }


def _print_plan(plan: PrunePlans) -> None:
    if not plan.partitions:
        if not plan.problems:
            click.echo("nothing to prune")
        return
    rows = [
        (
            str(each.keys.folder),
            each.keys.partition,
            each.going.num_records,
            each.going.num_chunks,
            bytes_text(each.going.num_bytes),
            each.going.pruned_before,
            each.next_offset,
            bytes_text(each.left_bytes),
        )
        for each in plan.partitions
    ]
    columns = ("topic", "partition", "records", "chunks", "size", "readable from", "next offset", "stays")
    print_table(columns, rows, droppable=("next offset", "chunks", "stays"))
    if plan.untouched:
        click.echo(f"{plan.untouched:,} partitions stay as they are")
