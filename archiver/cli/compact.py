"""`archiver compact`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import orjson

from archiver.cli.rewrite_options import FREED, buffer_options, rewrite_keys_options
from archiver.maintain.compact.planning import CompactPlans, plan_compaction
from archiver.maintain.compact.running import Compacted, carry_out, room_of
from archiver.maintain.contents.compact import Compaction, Conversion
from archiver.maintain.contents.keys import RewriteKeys
from archiver.maintain.contents.merge import MergeLimits
from archiver.maintain.partitions import Problem
from archiver.maintain.rewrite.intent import Outcome, not_done
from archiver.maintain.throttle import Pace
from blockgz.errors import UsageError
from blockgz.program.archive_options import max_block_option, store_options, writing_s3_options
from blockgz.program.main import closing, code_of_problems, confirm, print_problems
from blockgz.program.options import SIZE, OptionSet
from blockgz.program.options import Option as Single
from blockgz.program.plan_options import plan_options
from blockgz.program.spark_extra import spark_needed
from blockgz.program.tables import bytes_text, print_table
from blockgz.store.opening import open_existing_store
from blockgz.store.s3_settings import S3Settings
from blockgz.topic_patterns import TopicSelection

BLOCK_BYTES = 1024**2


def _conversion(
    record_format: str | None,
    codec: str | None,
    block_bytes: int | None,
    gzip_level: int | None,
    zstd_level: int | None,
) -> Conversion | None:
    """What the options ask for; None without any. Raises UsageError for a level of which nothing is encoded."""
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
    Single(
        "--record-format",
        allow_from_autoenv=False,
        type=click.Choice(["json", "arrow", "text"]),
        help="Convert chunks to this record format. The default is each chunk's own; text stays text.",
    ),
    Single(
        "--codec",
        allow_from_autoenv=False,
        type=click.Choice(["gzip", "zstd"]),
        help="Convert chunks to this compression of blocks.",
    ),
    Single(
        "--block-bytes",
        allow_from_autoenv=False,
        type=SIZE,
        help="Convert chunks to blocks of at most this size; 1 MiB if not given.",
    ),
    Single(
        "--gzip-level",
        allow_from_autoenv=False,
        type=click.IntRange(0, 9),
        help="Level of what is converted to gzip: 0 to 3 by ISA-L, higher by zlib; 1 if not given.",
    ),
    Single(
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
    ),
)
@click.argument("topics", nargs=-1, metavar="[TOPIC...]")
@store_options(writing_s3_options)
@click.option(
    "--chunk-bytes", type=SIZE, default="128MiB", show_default=True, help="Merge chunks to at most this size of data."
)
@click.option("--small-bytes", type=SIZE, help="Merge only chunks below this size. The default is half of a chunk.")
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
    conversion: Conversion | None,
    rewrite_keys: RewriteKeys,
    max_block_bytes: int,
    buffer_dir: Path | None,
    buffer_bytes: int,
    rate: int | None,
    master: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
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
        _check_plain(rewrite_keys)
        with spark_needed("archiver compact --master"):
            from archiver.spark.compacting import CompactionTask, compact_on  # noqa: PLC0415
    _refuse_empty({"--chunk-bytes": chunk_bytes, "--buffer-bytes": buffer_bytes})
    small = chunk_bytes // 2 if small_bytes is None else small_bytes
    compaction = Compaction(MergeLimits(small, chunk_bytes), conversion, rewrite_keys)
    store = open_existing_store(archive, s3)
    pace = Pace.of(store, rate)
    selection = TopicSelection(topics) if topics else None
    plan = plan_compaction(store, selection, compaction, pace.driver, buffer_bytes)
    if not as_json:
        _print_plan(plan)
    done: list[Compacted] = []
    if plan.partitions and not dry_run:
        question = f"Store {plan.moved_bytes:,} bytes again ({plan.chunks:,} chunks become {plan.chunks_after:,})?"
        confirm(question, undone="nothing was changed", is_agreed=yes)
        if master is not None:
            task = CompactionTask(store.url, s3, compaction, buffer_dir, buffer_bytes, max_block_bytes, rate)
            done = compact_on(master, plan.partitions, task)
        else:
            with room_of(archive, buffer_dir, buffer_bytes, max_block_bytes) as room:
                carry_out(pace.ranges, plan.partitions, compaction, pace.driver, room, done.append)
        if not as_json:
            compacted = sum(not _is_left(each) for each in done)
            click.echo(f"compacted {compacted:,} of {len(plan.partitions):,} partitions{FREED if compacted else ''}")
    problems = (*plan.problems, *_failed(done))
    print_problems(problems)
    if as_json:
        click.echo(orjson.dumps(result_object(archive, plan, done, problems, dry_run=dry_run)).decode())
    return code_of_problems([each.error for each in problems])


def _refuse_empty(sizes: Mapping[str, int | None]) -> None:
    """Raises UsageError for a size of 0; by option."""
    for option, size in sizes.items():
        if size == 0:
            raise UsageError(f"{option} must be more than 0", remedy="give a size such as 1MiB")


def _check_plain(rewrite_keys: RewriteKeys) -> None:
    if rewrite_keys.keyring is not None:
        raise UsageError(
            "--master cannot be used with keys",
            why="keys are not sent to other machines",
            remedy="compact encrypted chunks without --master",
        )


def _is_left(each: Compacted) -> bool:
    return each.error is not None or each.outcome is not Outcome.COMMITTED


def _failed(done: Sequence[Compacted]) -> list[Problem]:
    problems = []
    for each in done:
        if _is_left(each):
            what = "compacted as a whole" if each.done else "compacted"
            problems.append(Problem(each.plan.name, each.error or not_done(each.plan.name, what, each.outcome)))
    return problems


def result_object(
    archive: str, plan: CompactPlans, done: Sequence[Compacted], problems: Sequence[Problem], *, dry_run: bool
) -> dict[str, Any]:
    """The JSON contract of `archiver compact --json`."""
    by_home = {each.plan.keys.home: each for each in done}
    partitions = []
    for each in plan.partitions:
        ended = by_home.get(each.keys.home)
        partitions.append(
            {
                "topic": str(each.keys.folder),
                "partition": each.keys.partition,
                "chunks": each.chunks,
                "chunks_after": each.chunks_after,
                "catalogs": each.catalogs,
                "catalogs_after": each.catalogs_after,
                "moved_bytes": each.moved_bytes,
                "rewrites": len(each.runs),
                "rewrites_done": len(ended.done) if ended else 0,
                "compacted": ended is not None and not _is_left(ended),
            }
        )
    return {
        "archive": archive,
        "dry_run": dry_run,
        "chunks": plan.chunks,
        "chunks_after": plan.chunks_after,
        "moved_bytes": plan.moved_bytes,
        "untouched": plan.untouched,
        "encrypted_chunks": plan.encrypted,
        "partitions": partitions,
        "problems": [each.as_json for each in problems],
    }


def _print_plan(plan: CompactPlans) -> None:
    if plan.partitions:
        rows = [
            (
                str(each.keys.folder),
                each.keys.partition,
                each.chunks,
                each.chunks_after,
                bytes_text(each.moved_bytes),
                each.catalogs,
                each.catalogs_after,
            )
            for each in plan.partitions
        ]
        columns = ("topic", "partition", "chunks", "chunks after", "bytes to move", "catalogs", "catalogs after")
        print_table(columns, rows, droppable=("catalogs", "catalogs after"))
    elif not plan.problems:
        click.echo("nothing to compact")
    if plan.partitions and plan.untouched:
        click.echo(f"{plan.untouched:,} partitions stay as they are")
