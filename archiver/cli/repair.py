"""`archiver repair`."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Literal

import click

from archiver.cli.planned import buffer_options, carry_out, rewrite_keys_options
from archiver.commit.archive import archive_info, layout_of
from archiver.importing import OldReader
from archiver.maintain.erase import NO_REPORT, ReportFile
from archiver.maintain.repair import plan
from archiver.maintain.repair.catalogs import plan_catalogs
from archiver.maintain.repair.chunk_indexes import plan_indexes
from archiver.maintain.repair.diverged import log_source, plan_diverged
from archiver.maintain.repair.inventory import plan_inventory
from archiver.maintain.repair.losses import PlannedLossRepair, check_swaps, loss_target
from archiver.maintain.repair.markers import plan_marker
from archiver.maintain.repair.refetch import RefetchSource, refetch_source
from archiver.maintain.repair.salvage import plan_salvage
from archiver.maintain.rewrite.chunks import RewriteKeys
from blockgz.errors import UsageError
from blockgz.program.archive_options import (
    keys_option,
    max_block_option,
    old_format_option,
    store_options,
    writing_s3_options,
)
from blockgz.program.main import closing
from blockgz.program.options import Decorator, F, LocalPath, kafka_options, plan_options, sign_key_option, with_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import default_buffer_root, open_existing_store
from index_format.old_objects import OldFormat


@click.group(
    "repair",
    epilog=closing(
        "archiver repair index orders:3 -a ./archive --dry-run", "archiver repair marker orders -a ./archive"
    ),
)
def repair() -> None:
    """Rebuild lost indexes, catalogs, markers and inventories; recover records, or accept that they are lost.

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


@repair.command(epilog=closing("archiver repair catalog orders:3 -a s3://backup/kafka --dry-run"))
@click.argument("places", nargs=-1, required=True, metavar="TOPIC[:P]...")
@_options
def catalog(*, places: tuple[str, ...], **options: Any) -> int:
    """Rebuild lost or damaged catalogs, the lists of older chunks, from the indexes.

    The marker names each catalog with its hash: exactly the same bytes are stored, or nothing. Safe while archivers
    run.
    """
    _no_keys("a catalog is a partition's", places)
    return _repair(plan.not_for_old, plan_catalogs, places=places, **options)


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

    A marker whose chain can be read, or rebuilt by repair catalog, is left alone. An archiver that is still working on
    the partition is fenced: it claims the partition again and continues where the new marker ends.
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


def _loss_options(function: F) -> F:
    options: list[Decorator] = [store_options(writing_s3_options), rewrite_keys_options, max_block_option]
    return with_options(function, [*options, buffer_options, plan_options])


@repair.command(epilog=closing("archiver repair refetch orders:3 -a s3://backup/kafka -b localhost:9092 --dry-run"))
@click.argument("place", metavar="TOPIC:P")
@kafka_options(required=True)
@_loss_options
def refetch(*, place: str, kafka: dict[str, str], **options: Any) -> int:
    """Read records from Kafka again that the archive has lost, and store them in their place.

    A block comes back if Kafka has exactly its records, by number, offsets, timestamps and checksum. Every other block
    of its chunk is kept; what does not come back becomes a gap with reason "lost" if the partition's name is typed, and
    is refused with --yes. Give -b of the cluster that was archived. Safe while archivers run.
    """
    with refetch_source(kafka) as source:
        return _repair_losses("refetch", (place,), source, NO_REPORT, **options)


@repair.command(
    "accept-loss",
    epilog=closing(
        "archiver repair accept-loss orders:3 -a s3://backup/kafka -b localhost:9092 --dry-run",
        "archiver repair accept-loss orders:3:400-470 -a ./archive --report lost.json --yes",
    ),
)
@click.argument("places", nargs=-1, required=True, metavar="TOPIC:P[:FROM-TO]...")
@kafka_options()
@click.option("--report", type=LocalPath(path_type=Path), help="Write what was lost to this new file, as JSON.")
@sign_key_option
@_loss_options
def accept_loss(
    *, places: tuple[str, ...], kafka: dict[str, str], report: Path | None, sign_key: Path | None, **options: Any
) -> int:
    """Record that objects of a partition are lost for good, so that the archive is sound without them.

    Every block that can be read is kept; the offsets of the others become a gap with reason "lost". With -b, nothing is
    accepted that Kafka still has. The partition's name has to be typed; --yes needs the ranges of offsets, whose ends
    are not in them. Safe while archivers run.
    """
    if options["yes"] and not all(place.count(":") > 1 for place in places):
        raise UsageError(
            "--yes needs the ranges that are accepted as lost",
            why="more may be lost by now than when they were looked at",
            remedy="name them as --dry-run shows them: archiver repair accept-loss orders:3:400-470 --yes",
        )
    file = ReportFile(report, sign_key)
    with refetch_source(kafka) if "bootstrap.servers" in kafka else nullcontext() as source:
        return _repair_losses("accept-loss", places, source, file, **options)


def _repair_losses(
    kind: Literal["refetch", "accept-loss"],
    places: Sequence[str],
    source: RefetchSource | None,
    file: ReportFile,
    *,
    archive: str,
    s3: S3Settings,
    rewrite_keys: RewriteKeys,
    max_block_bytes: int,
    buffer_dir: Path | None,
    buffer_bytes: int,
    **outcome: Any,
) -> int:
    store = open_existing_store(archive, s3)
    target, ranges = loss_target(store, places, max_block_bytes)
    command = PlannedLossRepair(
        target,
        archive,
        buffer_dir or default_buffer_root(archive),
        kind=kind,
        within=ranges if len(ranges) else None,
        source=source,
        rewrite_keys=rewrite_keys,
        buffer_bytes=buffer_bytes,
        file=file,
    )
    if kind == "refetch" and outcome["yes"] and not outcome["dry_run"]:
        command.check_unattended()
    if outcome["dry_run"] or command.question is None:
        command.write_report(dry_run=outcome["dry_run"])
    else:
        check_swaps(store)
    return carry_out(command, archive, **outcome)


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
