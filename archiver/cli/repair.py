"""`archiver repair`."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from archiver.cli.planned import carry_out
from archiver.commit.archive import archive_info, layout_of
from archiver.importing import OldReader
from archiver.maintain.repair import plan
from archiver.maintain.repair.chunk_indexes import plan_indexes
from archiver.maintain.repair.diverged import log_source, plan_diverged
from archiver.maintain.repair.inventory import plan_inventory
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.salvage import plan_salvage
from blockgz.errors import UsageError
from blockgz.program.archive_options import (
    keys_option,
    max_block_option,
    old_format_option,
    store_options,
    writing_s3_options,
)
from blockgz.program.main import closing
from blockgz.program.options import Decorator, F, kafka_options, plan_options, with_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store
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
    options: list[Decorator] = [store_options(writing_s3_options), old_format_option, max_block_option, plan_options]
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
    return _repair(plan.plan_old_indexes, plan_indexes, **options)


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

    def plan_one(target: plan.RepairTarget) -> plan.RepairPlan:
        return plan_marker(target, archive_info(target.store, target.keys.layout).group(group_id))

    return _repair(plan.plan_old_markers, plan_one, places=places, keyring=keyring, **options)


@repair.command(
    epilog=closing(
        "archiver repair salvage orders:3 -a s3://backup/kafka --dry-run", "archiver repair salvage orders -a ./archive"
    )
)
@click.argument("places", nargs=-1, required=True, metavar="TOPIC[:P]...")
@keys_option
@_options
def salvage(*, places: tuple[str, ...], **options: Any) -> int:
    """Recover records that a gap lists as lost, from objects that a dead writer left behind.

    Reads and checks every record. Stores new objects, cut to fit the gap, and claims the partition to commit them. An
    archiver that is working on the partition claims it again and continues where it was. Safe while gc runs.
    """
    _no_keys("a gap is a partition's", places)
    return _repair(plan.not_for_old, plan_salvage, places=places, **options)


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
def diverged(*, places: tuple[str, ...], kafka: dict[str, str], **options: Any) -> int:
    """Let a partition continue whose log was truncated, as after an unclean leader election.

    The partition continues in the next folder of its topic, right after the newest chunk whose last record the log
    still holds. Readers see one partition. Records that the log has lost stay readable as TOPIC~N. Restart the
    archivers that stopped the partition.
    """
    _no_keys("a log is a partition's", places)
    with log_source(kafka) as source:
        plan_one = partial(plan_diverged, source=source)
        return _repair(plan.not_for_old, plan_one, places=places, follows=True, **options)


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
    return carry_out(plan_inventory(store, layout_of(store)), archive, **outcome)


def _no_keys(what: str, places: Sequence[str]) -> None:
    if any("/" in place for place in places):
        raise UsageError(what, why="a key names one chunk", remedy="write TOPIC or TOPIC:PARTITION")


def _repair(
    plan_old: plan.PlanOld,
    plan_one: plan.PlanOne,
    *,
    places: tuple[str, ...],
    follows: bool = False,
    archive: str,
    s3: S3Settings,
    old_format: OldFormat,
    max_block_bytes: int,
    keyring: str | None = None,
    **outcome: Any,
) -> int:
    """Plan a repair, and carry it out."""
    old = OldReader(open_existing_store(archive, s3), old_format, max_block_bytes)
    return carry_out(plan.plan_repair(old, places, plan_old, plan_one, keyring, follows=follows), archive, **outcome)
