"""`archiver rewrap`."""

from typing import Any

import click

from archiver.cli.planned import carry_out
from archiver.commit.operations import Driver
from archiver.maintain.rewrap import PlannedRewrapping
from blockgz.encryption.keyring import FORMS, load_keyring
from blockgz.errors import UsageError
from blockgz.program.archive_options import keys_option, store_options, writing_s3_options
from blockgz.program.main import closing
from blockgz.program.options import plan_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import open_existing_store
from blockgz.topic_patterns import TopicSelection


@click.command(
    epilog=closing(
        "archiver rewrap --keys file:/etc/blockgz/keys -a s3://backup/kafka --dry-run",
        "archiver rewrap orders --keys file:/etc/blockgz/old,file:/etc/blockgz/new -a ./archive --yes",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options(writing_s3_options)
@keys_option
@plan_options
def rewrap(*, topics: tuple[str, ...], archive: str, s3: S3Settings, keyring: str | None, **outcome: Any) -> int:
    """Wrap the keys of encrypted chunks with the newest master key, while archivers run.

    The last of --keys wraps, all of them unwrap. Only indexes are stored again, never data. Give archivers the newest
    key first: a running one claims its partitions again, and needs it then. The old key is needed until `archiver gc`
    has deleted the old indexes, a grace period after it first saw them replaced. TOPIC is a name, a glob or ~regex; the
    default is the whole archive. Prints the plan and asks first.
    """
    if keyring is None:
        raise UsageError(
            "no keys were given",
            why="the old key unwraps, and the newest one wraps again",
            remedy=f"add --keys KEYS: {FORMS}",
        )
    masters = load_keyring(keyring)
    store = open_existing_store(archive, s3)
    driver = Driver(store)
    command = PlannedRewrapping(store, TopicSelection(topics) if topics else None, masters, driver)
    return carry_out(command, archive, **outcome)
