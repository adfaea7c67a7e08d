"""`archiver prune`."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from archiver.cli.planned import carry_out, rewrite_keys_options
from archiver.commit.operations import Driver
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain import prune as pruning
from archiver.maintain.planned import RewriteResult, one_by_one
from archiver.maintain.prune import Keep, PartitionPruning, PlannedPruning
from archiver.maintain.rewrite.chunks import RewriteKeys
from archiver.maintain.rewrite.contents import RewriteTools
from blockgz.config.model import parse_age, parse_bytes
from blockgz.errors import UsageError
from blockgz.program.archive_options import max_block_option, store_options, writing_s3_options
from blockgz.program.main import closing
from blockgz.program.options import LocalPath, Parsed, plan_options
from blockgz.store.address import S3Settings
from blockgz.store.opening import default_buffer_root, open_existing_store
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
@rewrite_keys_options
@max_block_option
@click.option("--buffer-dir", type=LocalPath(path_type=Path), help="Folder for what stays of chunks that are cut.")
@plan_options
def prune(
    *,
    topics: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    keep: float | None,
    keep_bytes: int | None,
    rewrite_keys: RewriteKeys,
    max_block_bytes: int,
    buffer_dir: Path | None,
    **outcome: Any,
) -> int:
    """Take the oldest records out of the archive, while archivers run.

    Records are pruned in whole blocks, up to the first one that has to stay; the plan says how many older records stay,
    and why. What stays of a chunk is stored again, an encrypted one only with --keys. If the newest chunks go, which
    are in no catalog yet, the command claims the partition to change that, as `archiver erase` does. `archiver gc`
    deletes the objects, a grace period after it first saw that they were pruned. Until then readers that began before
    are not disturbed. TOPIC is a name, a glob or ~regex; the default is the whole archive. Prints the plan and asks
    first.
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

    def prune_each(plans: Sequence[PartitionPruning]) -> Iterator[RewriteResult[PartitionPruning]]:
        with contextlib.closing(BufferFolder(buffer_dir or default_buffer_root(archive))) as buffers:
            tools = RewriteTools(driver, store, buffers, 0, max_block_bytes)
            prune_one = partial(pruning.prune_partition, tools=tools, rewrite_keys=rewrite_keys)
            yield from one_by_one(prune_one)(plans)

    selection = TopicSelection(topics) if topics else None
    command = PlannedPruning(store, selection, kept, driver, prune_each, rewrite_keys)
    return carry_out(command, archive, **outcome)
