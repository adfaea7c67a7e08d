"""`archiver forget`."""

from typing import Any

import click

from archiver.cli.planned import carry_out
from archiver.commit.archive import layout_of
from archiver.maintain.repair.inventory import plan_forgetting
from blockgz.program.archive_options import store_options, writing_s3_options
from blockgz.program.main import closing
from blockgz.program.options import plan_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store


@click.command(
    "forget",
    epilog=closing(
        "archiver forget orders:3 -a s3://backup/kafka --dry-run", "archiver forget orders~1 -a ./archive --yes"
    ),
)
@click.argument("places", nargs=-1, required=True, metavar="TOPIC[~N][:P]...")
@store_options(writing_s3_options)
@plan_options
def forget(*, places: tuple[str, ...], archive: str, s3: S3Settings, **outcome: Any) -> int:
    """Remove partitions that are gone for good from the archive's inventory.

    They are no longer reported as missing. A partition that the archive still holds stays in the inventory, and no
    records are deleted. A plain TOPIC means all its incarnations.
    """
    store = open_existing_store(archive, s3)
    plan = plan_forgetting(store, layout_of(store), places)
    return carry_out(plan, archive, **outcome)
