"""`archiver compact`."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from archiver.cli.planned import buffer_options, carry_out, rewrite_keys_options
from archiver.ingest.chunk_builder import BufferFolder
from archiver.maintain import compact as compacting
from archiver.maintain.compact import Compaction, Conversion, PartitionCompaction, PlannedCompaction
from archiver.maintain.planned import RewriteResult
from archiver.maintain.rewrite.chunks import RewriteKeys
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from archiver.maintain.throttle import paced
from blockgz.config.model import parse_age
from blockgz.errors import UsageError
from blockgz.program.archive_options import max_block_option, store_options, writing_s3_options
from blockgz.program.main import closing
from blockgz.program.options import SIZE, Option, OptionSet, Parsed, plan_options, spark_needed
from blockgz.store.address import S3Settings
from blockgz.store.opening import default_buffer_root, open_existing_store
from blockgz.topic_patterns import TopicSelection

BLOCK_BYTES = 1024**2


def _conversion(
    record_format: str | None,
    codec: str | None,
    block_bytes: int | None,
    gzip_level: int | None,
    zstd_level: int | None,
) -> Conversion | None:
    """Return the conversion that the options name; None without any. Raises UsageError for a level without effect."""
    _refuse_empty({"--block-bytes": block_bytes})
    for level, unused in ((gzip_level, "zstd"), (zstd_level, "gzip")):
        if level is not None and codec == unused:
            raise UsageError(
                f"a level of another codec than {codec} has no effect",
                why=f"--codec {codec} converts all chunks to {codec}",
                remedy=f"give --{codec}-level",
            )
    levels = [level for level in (gzip_level, zstd_level) if level is not None]
    if record_format is None and codec is None and block_bytes is None:
        if levels:
            raise UsageError(
                "a level alone converts nothing",
                why="chunks do not tell the level that they were compressed with",
                remedy="add what they are to become: --codec, --record-format or --block-bytes",
            )
        return None
    return Conversion(
        block_bytes or BLOCK_BYTES,
        record_format,
        codec,
        1 if gzip_level is None else gzip_level,
        2 if zstd_level is None else zstd_level,
    )


conversion_options = OptionSet(
    "conversion",
    _conversion,
    Option(
        "--record-format",
        allow_from_autoenv=False,
        type=click.Choice(["json", "arrow", "text"]),
        help="Convert chunks to this record format. The default is each chunk's own; text stays text.",
    ),
    Option(
        "--codec",
        allow_from_autoenv=False,
        type=click.Choice(["gzip", "zstd"]),
        help="Convert chunks to this compression of blocks.",
    ),
    Option(
        "--block-bytes",
        allow_from_autoenv=False,
        type=SIZE,
        help="Convert chunks to blocks of at most this size; 1 MiB if not given.",
    ),
    Option(
        "--gzip-level",
        allow_from_autoenv=False,
        type=click.IntRange(0, 9),
        help="Level of what is converted to gzip: 0 to 3 by ISA-L, higher by zlib; 1 if not given.",
    ),
    Option(
        "--zstd-level",
        allow_from_autoenv=False,
        type=click.IntRange(1, 19),
        help="Level of what is converted to zstd; 2 if not given.",
    ),
)


@click.command(
    epilog=closing(
        "archiver compact -a s3://backup/kafka --dry-run",
        "archiver compact 'clicks-*' --chunk-bytes 256MiB -a ./archive --yes",
        "archiver compact orders --codec zstd --zstd-level 9 -a ./archive",
        "archiver compact --rate 20MiB -a s3://backup/kafka --yes",
        "archiver compact --keys file:/etc/blockgz/keys -a s3://backup/kafka",
        "archiver compact --master yarn --buffer-dir /tmp/blockgz -a s3://backup/kafka --yes",
    )
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options(writing_s3_options)
@click.option(
    "--chunk-bytes", type=SIZE, default="128MiB", show_default=True, help="Merge chunks to at most this size of data."
)
@click.option("--small-bytes", type=SIZE, help="Merge only chunks below this size. The default is half of a chunk.")
@click.option(
    "--chunk-span",
    type=Parsed("age", parse_age),
    default="1d",
    show_default=True,
    # The archiver's variable is about the chunks that it writes.
    allow_from_autoenv=False,
    metavar="AGE",
    help="Merge chunks only if their timestamps span at most this together; `none` for any time.",
)
@conversion_options
@rewrite_keys_options
@max_block_option
@buffer_options
@click.option(
    "--rate",
    type=SIZE,
    envvar="BLOCKGZ_COMPACT_RATE",
    metavar="SIZE",
    help="Read and store at most this many bytes a second; with --master, in each task.",
)
@click.option("--master", metavar="URL", help="Compact in the tasks of a Spark job there, one per partition.")
@plan_options
def compact(
    *,
    topics: tuple[str, ...],
    archive: str,
    s3: S3Settings,
    chunk_bytes: int,
    small_bytes: int | None,
    chunk_span: float | None,
    conversion: Conversion | None,
    rewrite_keys: RewriteKeys,
    max_block_bytes: int,
    buffer_dir: Path | None,
    buffer_bytes: int,
    rate: int | None,
    master: str | None,
    **outcome: Any,
) -> int:
    """Merge small neighbouring chunks into large ones, and convert chunks, while archivers run.

    Merged blocks are copied byte for byte; converted ones are encoded again. Every new chunk is compared with the old
    ones before it takes their place. The newest chunks of a partition, which are in no catalog yet, stay as they are.
    Encrypted chunks are decrypted with --keys and encrypted again with the newest of these; with --encrypt, all that is
    stored again is encrypted. `archiver gc` deletes what was replaced, a grace period after it first saw that. TOPIC is
    a name, a glob or ~regex; the default is the whole archive. Prints the plan and asks first.

    With --master, such as local[4] or yarn, the plan is carried out by a Spark job; --buffer-dir is then on its
    machines. Requires pip install 'blockgz[spark]'.
    """
    if master is not None:
        if rewrite_keys.keyring is not None:
            raise UsageError(
                "--master cannot be used with keys",
                why="keys are not sent to other machines",
                remedy="compact encrypted chunks without --master",
            )
        with spark_needed("archiver compact --master"):
            from archiver.spark.job import CompactionTask, compact_on  # noqa: PLC0415
    _refuse_empty({"--chunk-bytes": chunk_bytes, "--buffer-bytes": buffer_bytes})
    small = chunk_bytes // 2 if small_bytes is None else small_bytes
    limits = MergeLimits(small, chunk_bytes, span_ms=None if chunk_span is None else round(chunk_span * 1000))
    compaction = Compaction(limits, conversion, rewrite_keys)
    store = open_existing_store(archive, s3)
    ranges, driver = paced(store, rate)

    def compact_each(plans: Sequence[PartitionCompaction]) -> Iterator[RewriteResult[PartitionCompaction]]:
        if master is not None:
            task = CompactionTask(store.url, s3, compaction, buffer_dir, buffer_bytes, max_block_bytes, rate)
            yield from compact_on(master, plans, task)
            return
        with contextlib.closing(BufferFolder(buffer_dir or default_buffer_root(archive))) as buffers:
            tools = RewriteTools(driver, ranges, buffers, buffer_bytes, max_block_bytes)
            yield from (compacting.compact(plan, compaction, tools) for plan in plans)

    selection = TopicSelection(topics) if topics else None
    command = PlannedCompaction(store, selection, compaction, driver, buffer_bytes, compact_each)
    return carry_out(command, archive, **outcome)


def _refuse_empty(sizes: Mapping[str, int | None]) -> None:
    """Raise UsageError for a size of 0; the sizes by option."""
    for option, size in sizes.items():
        if size == 0:
            raise UsageError(f"{option} must be more than 0", remedy="give a size such as 1MiB")
