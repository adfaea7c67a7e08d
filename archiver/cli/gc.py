"""`archiver gc`."""

import click

from archiver.cli.planned import carry_out
from archiver.maintain.gc import plan_sweep
from blockgz.program.archive_options import store_options
from blockgz.program.main import closing
from blockgz.program.options import DURATION, plan_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store


@click.command(
    epilog=closing(
        "archiver gc -a s3://backup/kafka --dry-run", "archiver gc orders 'eu-*' -a ./archive --grace 2d --yes"
    )
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
    *, topics: tuple[str, ...], archive: str, s3: S3Settings, grace: float, dry_run: bool, yes: bool, as_json: bool
) -> int:
    """Delete what dead writers left behind: orphaned objects, temporary files and unfinished uploads.

    Also what prune, compact, erase and rewrap replaced, once the grace period is over. It starts at the first gc, other
    than with --dry-run, that sees the replacement. Thins tables of consumer groups: one an hour stays after a day, one
    a day after 30 days. After a prune, deletes tables and configurations older than the oldest record, except the
    newest of these. Safe at any time, even while archivers run. TOPIC is a name, a glob or ~regex; the default is the
    whole archive. Prints the plan and asks before it deletes.
    """
    command = plan_sweep(open_existing_store(archive, s3), topics, grace, keeps_books=not dry_run)
    return carry_out(command, archive, dry_run=dry_run, yes=yes, as_json=as_json)
