"""`archiver prune`."""

from typing import Any

import click

from archiver.cli.planned import carry_out
from archiver.commit.operations import Driver
from archiver.maintain.prune import Keep, PlannedPruning
from blockgz.config.model import parse_age, parse_bytes
from blockgz.errors import UsageError
from blockgz.program.archive_options import store_options, writing_s3_options
from blockgz.program.main import closing
from blockgz.program.options import Parsed, plan_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store
from blockgz.topic_patterns import TopicSelection

AGE, BYTES = Parsed("age", parse_age), Parsed("size", parse_bytes)


@click.command(
    epilog=closing(
        "archiver prune --keep 90d -a s3://backup/kafka --dry-run",
        "archiver prune 'clicks-*' --keep-bytes 500GB -a ./archive --yes",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options(writing_s3_options)
@click.option("--keep", type=AGE, help="Prune records with timestamps older than this.")
@click.option("--keep-bytes", type=BYTES, help="Prune the oldest records, of each partition, beyond this size of data.")
@plan_options
def prune(
    *, topics: tuple[str, ...], archive: str, s3: S3Settings, keep: float | None, keep_bytes: int | None, **outcome: Any
) -> int:
    """Take the oldest records out of the archive, while archivers run.

    Records are pruned in whole catalogs of up to 64 chunks, so some older records may stay. Chunks that are in no
    catalog yet always stay. `archiver gc` deletes the objects, a grace period after it first saw that they were pruned.
    Until then readers that began before are not disturbed. TOPIC is a name, a glob or ~regex; the default is the whole
    archive. Prints the plan and asks first.
    """
    if (keep is None) == (keep_bytes is None):
        raise UsageError(
            "it is not clear what is to stay",
            why="exactly one of --keep and --keep-bytes says that",
            remedy="give --keep 90d, or --keep-bytes 500GB",
        )
    store = open_existing_store(archive, s3)
    # By the store's clock: one of this machine that is wrong would prune what is new.
    kept = Keep(newest_bytes=keep_bytes) if keep is None else Keep(since_ms=round((store.clock() - keep) * 1000))
    driver = Driver(store)
    command = PlannedPruning(store, TopicSelection(topics) if topics else None, kept, driver)
    return carry_out(command, archive, **outcome)
