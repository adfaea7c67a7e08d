"""`archiver gc`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import click
import orjson

from archiver.maintain.garbage import SHORTEST_GRACE_SECONDS
from archiver.maintain.partitions import Problem
from archiver.maintain.sweep import SweepPlan, SweepResult, plan_sweep, sweep
from blockgz.errors import PARTLY_FAILED, UsageError
from blockgz.program.archive_options import store_options
from blockgz.program.main import closing, confirm, print_problems
from blockgz.program.options import DURATION
from blockgz.program.plan_options import plan_options
from blockgz.program.tables import bytes_text, print_table
from blockgz.store.opening import open_existing_store
from blockgz.store.s3_settings import S3Settings


@click.command(
    epilog=closing(
        "archiver gc -a s3://backup/kafka --dry-run", "archiver gc orders 'eu-*' -a ./archive --grace 2d --yes"
    ),
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options()
@click.option(
    "--grace",
    type=DURATION,
    default="7d",
    show_default=True,
    envvar="BLOCKGZ_GC_GRACE",
    help="Keep anything younger, by the store's clock; at least 1h.",
)
@plan_options
def gc(
    *,
    topics: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    grace: float,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete what dead writers left behind: orphaned objects, temporary files and unfinished uploads.

    Also what prune, compact, erase and rewrap replaced, once the grace period is over. It starts at the first gc, other
    than with --dry-run, that sees the replacement. Thins tables of consumer groups: one an hour stays after a day, one
    a day after 30 days. After a prune, deletes tables and configurations older than the oldest record, except the
    newest of these. Safe at any time, even while archivers run. TOPIC is a name, a glob or ~regex; the default is the
    whole archive. Prints the plan and asks before it deletes.
    """
    if grace < SHORTEST_GRACE_SECONDS:
        raise UsageError(
            f"--grace of {grace:g} s is too short",
            why="listings may lag and readers may be active, so nothing younger than an hour is deleted",
            remedy="give 1h or more; the default is 7d",
        )
    store = open_existing_store(archive, s3)
    plan = plan_sweep(store, topics, grace, keeps_books=not dry_run)
    if not as_json:
        _print_plan(plan)
    result = None
    if plan.count and not dry_run:
        question = f"Delete {plan.count:,} objects ({plan.bytes:,} bytes)?"
        confirm(question, undone="nothing was deleted", is_agreed=yes)
        result = sweep(store, plan, lambda _: None)
        if not as_json:
            click.echo(f"deleted {result.deleted:,} of {plan.count:,}")
    problems = (*plan.problems, *(result.problems if result else ()))
    print_problems(problems)
    if as_json:
        click.echo(orjson.dumps(result_object(archive, plan, result, problems, dry_run=dry_run)).decode())
    return PARTLY_FAILED if problems else 0


def result_object(
    archive: str, plan: SweepPlan, result: SweepResult | None, problems: Sequence[Problem], *, dry_run: bool
) -> dict[str, Any]:
    """The JSON contract of `archiver gc --json`; bytes are null where the store does not tell."""
    garbage = [
        {
            "kind": found.name.kind.value,
            "topic": str(found.name.folder),
            "partition": found.name.partition,
            "key": found.name.key,
            "bytes": found.listed.size,
            "modified_ms": round(found.listed.modified * 1000),
        }
        for found in plan.garbage
    ]
    spared = [{"key": found.name.key, "bytes": found.listed.size} for found in plan.spared]
    leftovers = [
        {"kind": each.kind, "key": each.key, "bytes": each.size, "modified_ms": round(each.modified * 1000)}
        for each in plan.leftovers
    ]
    tables, configs = (
        [
            {
                "topic": str(each.folder),
                "key": each.listed.key,
                "bytes": each.listed.size,
                "modified_ms": round(each.listed.modified * 1000),
            }
            for each in dated
        ]
        for dated in (plan.tables, plan.configs)
    )
    floors = [{"key": each.key, "bytes": each.listed.size if each.listed else None} for each in plan.old_floors]
    return {
        "archive": archive,
        "dry_run": dry_run,
        "planned": plan.count,
        "bytes": plan.bytes,
        "deleted": result.deleted if result else 0,
        "garbage": garbage,
        "group_tables": tables,
        "topic_configs": configs,
        "floors": floors,
        "leftovers": leftovers,
        "spared": spared,
        "problems": [each.as_json for each in problems],
    }


def _print_plan(plan: SweepPlan) -> None:
    if plan.spared:
        partitions = sorted({f"{found.name.folder}:{found.name.partition}" for found in plan.spared})
        click.echo(
            f"note: {len(plan.spared):,} objects of dead writers are kept, because they may hold records that a gap "
            f"lists as lost; to recover them: archiver repair salvage {' '.join(partitions)}",
            err=True,
        )
    if not plan.count:
        click.echo("nothing to delete")
        return
    counts: Counter[tuple[str | None, int | None, str]] = Counter()
    sizes: Counter[tuple[str | None, int | None, str]] = Counter()
    for found in plan.garbage:
        kind = (str(found.name.folder), found.name.partition, found.name.kind.value)
        counts[kind] += 1
        sizes[kind] += found.listed.size
    for each, what in [(each, "group table") for each in plan.tables] + [(each, "config") for each in plan.configs]:
        counts[str(each.folder), None, what] += 1
        sizes[str(each.folder), None, what] += each.listed.size
    for floor in plan.old_floors:
        counts[str(floor.keys.folder), floor.keys.partition, "floor"] += 1
        sizes[str(floor.keys.folder), floor.keys.partition, "floor"] += floor.listed.size if floor.listed else 0
    for leftover in plan.leftovers:
        counts[None, None, leftover.kind] += 1
        sizes[None, None, leftover.kind] += leftover.size or 0
    rows = [(*kind, count, bytes_text(sizes[kind])) for kind, count in counts.items()]
    rows.append(("all", None, "", plan.count, bytes_text(plan.bytes)))
    print_table(("topic", "partition", "what", "count", "size"), rows, droppable=("size",))
