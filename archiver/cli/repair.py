"""`archiver repair`."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
import orjson

from archiver.commit.archive import archive_info, layout_of
from archiver.importing import OldReader
from archiver.maintain.planned import Problem
from archiver.maintain.repair.chunk_indexes import plan_indexes
from archiver.maintain.repair.diverged import log_source, plan_diverged
from archiver.maintain.repair.inventory import plan_inventory
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.plan import (
    PlanOld,
    PlanOne,
    RepairPlan,
    RepairTarget,
    carry_out,
    not_for_old,
    plan_old_indexes,
    plan_old_markers,
    plan_repair,
)
from archiver.maintain.repair.salvage import plan_salvage
from blockgz.errors import PARTLY_FAILED, UsageError, exit_code
from blockgz.program.archive_options import (
    keys_option,
    max_block_option,
    old_format_option,
    store_options,
    writing_s3_options,
)
from blockgz.program.kafka_options import kafka_options
from blockgz.program.main import closing, confirm, print_problems
from blockgz.program.options import Decorator, F, plan_options, with_options
from blockgz.store.opening import open_existing_store
from blockgz.store.retry import bounded_backoff
from blockgz.store.s3_settings import S3Settings
from blockgz.store.writer import ToolStore
from index_format.old_objects import OldFormat


@click.group(
    "repair",
    epilog=closing(
        "archiver repair index orders:3 -a ./archive --dry-run", "archiver repair marker orders -a ./archive"
    ),
)
def repair() -> None:
    """Rebuild lost indexes, markers and inventories, and recover records.

    Markers and the inventory are the only objects ever changed. Each command shows its plan first.
    """


def _options(function: F) -> F:
    options: list[Decorator] = [
        store_options(writing_s3_options),
        old_format_option,
        max_block_option,
        plan_options,
    ]
    return with_options(function, options)


@repair.command(
    epilog=closing(
        "archiver repair index orders -a s3://backup/kafka --dry-run",
        "archiver repair index topic=orders/partition=00003/00000000000000000040.gz -a ./archive --yes",
        "archiver repair index 2016-02-24/orders-00003-000000000000.gz -a ./old --yes",
    )
)
@click.argument("places", nargs=-1, required=True, metavar="KEY|TOPIC[:P]...")
@_options
def index(**options: Any) -> int:
    """Rebuild the index of one chunk, or of all chunks in a topic that lack theirs, from the data.

    If the marker names the index, exactly the same bytes are stored, or nothing. Safe while archivers run. In an old
    archive, the index is rebuilt by counting records.
    """
    return _repair(plan_old_indexes, plan_indexes, **options)


@repair.command(
    epilog=closing(
        "archiver repair marker orders:3 -a s3://backup/kafka --dry-run", "archiver repair marker orders -a ./old --yes"
    )
)
@click.argument("places", nargs=-1, required=True, metavar="TOPIC[:P]...")
@click.option("--group-id", help="Consumer group that archives it from now on. The default is the archive's own.")
@keys_option
@_options
def marker(*, places: tuple[str, ...], group_id: str | None, keyring: str | None, **options: Any) -> int:
    """Rebuild a lost or damaged marker from the indexes of its partition.

    A marker that leads to chunks is left alone. An archiver that is still working on the partition is fenced: it claims
    the partition again and continues where the new marker ends.
    """
    _no_keys("a marker is a partition's", places)

    def plan_one(store: ToolStore, target: RepairTarget, max_block_bytes: int) -> RepairPlan:
        group = archive_info(store, target.keys.layout).group(group_id)
        return plan_marker(store, target, group, max_block_bytes, bounded_backoff(store.url), keyring)

    return _repair(plan_old_markers, plan_one, places=places, **options)


@repair.command(
    epilog=closing(
        "archiver repair salvage orders:3 -a s3://backup/kafka --dry-run", "archiver repair salvage orders -a ./archive"
    )
)
@click.argument("places", nargs=-1, required=True, metavar="TOPIC[:P]...")
@keys_option
@_options
def salvage(*, places: tuple[str, ...], keyring: str | None, **options: Any) -> int:
    """Recover records that a gap lists as lost, from objects that a dead writer left behind.

    Reads and checks every record. Stores new objects, cut to fit the gap, and claims the partition to commit them. An
    archiver that is working on the partition claims it again and continues where it was. Safe while gc runs.
    """
    _no_keys("a gap is a partition's", places)

    def plan_one(store: ToolStore, target: RepairTarget, max_block_bytes: int) -> RepairPlan:
        return plan_salvage(store, target, max_block_bytes, bounded_backoff(store.url), keyring)

    return _repair(not_for_old, plan_one, places=places, **options)


@repair.command(
    epilog=closing(
        "archiver repair diverged orders:3 -a s3://backup/kafka -b localhost:9092 --dry-run",
        "archiver repair diverged orders -a ./archive -b localhost:9092 --yes",
    )
)
@click.argument("places", nargs=-1, required=True, metavar="TOPIC[:P]...")
@kafka_options(required=True)
@keys_option
@_options
def diverged(*, places: tuple[str, ...], kafka: dict[str, str], keyring: str | None, **options: Any) -> int:
    """Let a partition continue whose log was truncated, as after an unclean leader election.

    The partition continues in the next folder of its topic, right after the newest chunk whose last record the log
    still holds. Readers see one partition. Records that the log has lost stay readable as TOPIC~N. Restart the
    archivers that stopped the partition.
    """
    _no_keys("a log is a partition's", places)

    def plan_one(store: ToolStore, target: RepairTarget, max_block_bytes: int) -> RepairPlan:
        return plan_diverged(store, target, source, max_block_bytes, bounded_backoff(store.url), keyring)

    with log_source(kafka) as source:
        return _repair(not_for_old, plan_one, places=places, follows=True, **options)


@repair.command(
    "inventory",
    epilog=closing(
        "archiver repair inventory -a s3://backup/kafka --dry-run", "archiver repair inventory -a ./archive --yes"
    ),
)
@store_options(writing_s3_options)
@plan_options
def inventory(*, archive: str, s3: S3Settings, **outcome: Any) -> int:
    """Rebuild the archive's inventory from a listing if it is missing or damaged, or complete it.

    An archive of an earlier release has no inventory. Once it has one, archivers add to it, and a lost partition is
    noticed. Partitions lost before that are not in it. Safe while archivers run.
    """
    store = open_existing_store(archive, s3)
    return finish(archive, plan_inventory(store, layout_of(store), bounded_backoff(store.url)), **outcome)


def _no_keys(what: str, places: Sequence[str]) -> None:
    if any("/" in place for place in places):
        raise UsageError(what, why="a key names one chunk", remedy="write TOPIC or TOPIC:PARTITION")


def _repair(
    plan_old: PlanOld,
    plan_one: PlanOne,
    *,
    places: tuple[str, ...],
    follows: bool = False,
    archive: str,
    s3: S3Settings,
    old_format: OldFormat,
    max_block_bytes: int,
    **outcome: Any,
) -> int:
    """Plan a repair, and finish it."""
    store = open_existing_store(archive, s3)
    old = OldReader(store, old_format, max_block_bytes)
    return finish(archive, plan_repair(old, places, plan_old, plan_one, follows=follows), **outcome)


def result_object(archive: str, plan: RepairPlan, failed: Mapping[int, Problem], *, dry_run: bool) -> dict[str, Any]:
    """Return the JSON contract of `archiver repair --json`; `failed` as `carry_out` returns it."""
    return {
        "archive": archive,
        "dry_run": dry_run,
        "steps": [
            {
                "partition": step.where,
                "what": step.what,
                "key": step.key,
                "detail": step.detail,
                "done": not dry_run and number not in failed,
            }
            for number, step in enumerate(plan.steps)
        ],
        "notes": plan.notes,
        "problems": [each.as_json for each in (*plan.problems, *failed.values())],
    }


def finish(
    archive: str,
    plan: RepairPlan,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    question: str = "Store {count:,} objects?",
) -> int:
    """Show the plan, carry it out if the user agrees, and return the exit code."""
    if not as_json:
        _print_plan(plan)
    failed: dict[int, Problem] = {}
    if plan.steps and not dry_run:
        confirm(question.format(count=len(plan.steps)), undone="nothing was changed", is_agreed=yes)
        failed = carry_out(plan)
    problems = (*plan.problems, *failed.values())
    if as_json:
        click.echo(orjson.dumps(result_object(archive, plan, failed, dry_run=dry_run)).decode())
    elif plan.steps and not dry_run:
        click.echo(f"stored {len(plan.steps) - len(failed):,} of {len(plan.steps):,}")
    print_problems(problems)
    if not problems:
        return 0
    return PARTLY_FAILED if len(failed) < len(plan.steps) else exit_code(problems[0].error)


def _print_plan(plan: RepairPlan) -> None:
    for note in plan.notes:
        click.echo(f"note: {note}", err=True)
    if not plan.steps:
        click.echo("nothing to store")
        return
    for step in plan.steps:
        click.echo(f"{step.where}  {step.what}  {step.key}  {step.detail}")
