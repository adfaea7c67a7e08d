"""`replayer verify`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from blockgz.archive.archive import ArchivePlace, TopicPartitions, parse_topic
from blockgz.archive.selection import Positions
from blockgz.process import every, run_async
from blockgz.program.main import closing, debug
from blockgz.program.options import Option, kafka_options, spark_needed
from blockgz.program.progress import PLAIN_SECONDS
from blockgz.program.terminal import unescaped
from blockgz.units import bytes_text
from replayer.cli.options import options as common
from replayer.cli.options.selection_options import range_options
from replayer.cli.options.verify_options import choice_options, earlier_options, expect_option, report_options
from replayer.cli.report import conclude, naming_what_is_left
from replayer.verify.chunk_checks import ChunkChoice
from replayer.verify.report import ArchiveReport, Depth, ReportFiles, StoredReport
from replayer.verify.verifying import VerifyWork, verify_archive


@click.command(
    "verify",
    epilog=closing(
        "replayer verify -a ./archive",
        "replayer verify orders --deep -a s3://bucket/prefix",
        "replayer verify orders:0-3 --records --json -a ./archive",
        "replayer verify --deep --since -1d --sample 5% -a s3://bucket/prefix",
        "replayer verify orders --records --report report.json --report page.html --sign-key key.pem -a ./archive",
        "replayer verify --expect orders --expect users -a ./archive",
        "replayer verify --since-report report.json --key pub.pem -a ./archive",
        "replayer verify orders --against-topic orders -b localhost:9092 -a ./archive",
        "replayer verify --job restore-1 -b localhost:9092 -a ./archive",
        "replayer verify orders --against-topic orders-copy --at 2026-11-20T12:00:00Z -b localhost:9092 -a ./archive",
        "replayer verify --spark --records --master local[4] -a s3://bucket/prefix",
    ),
)
@click.argument("topics", metavar="[TOPIC[:P[,P-P]]...]", nargs=-1)
@click.option("--deep", is_flag=True, help="Read all data and check its checksums and counts.")
@click.option("--records", is_flag=True, help="Also decode every record.")
@click.option(
    "--against-topic", metavar="TOPIC", help="Compare every record with this topic, the archived one or a copy."
)
@click.option("--partitions", metavar="P,P-P", help="With --against-topic: only these partitions.")
@expect_option
@click.option("--job", metavar="NAME", help="Prove what a replay wrote, using its job folder.")
@common.jobs_option
@choice_options
@earlier_options
@range_options
@report_options
@common.spark_switch(
    Option("--digests", is_flag=True, help="With --spark --records: digests of all partitions, a task for each."),
    common.task_bytes_option,
    common.dry_run_option,
    without=("against_topic", "partitions", "job", "jobs", "start", "end", "at", "at_rule"),
    why="a Spark job checks an archive by itself",
)
@common.json_option
@kafka_options()
@common.archive_options
def command(
    topics: tuple[str, ...],
    deep: bool,
    records: bool,
    against_topic: str | None,
    partitions: str | None,
    expected: tuple[str, ...],
    job: str | None,
    jobs: str | None,
    choice: ChunkChoice,
    earlier: StoredReport | None,
    positions: Positions,
    report_to: ReportFiles,
    spark: common.SparkOptions | None,
    as_json: bool,
    kafka: dict[str, str],
    archive: ArchivePlace,
) -> int:
    """Prove that an archive is complete and undamaged, or that a topic is a copy of it.

    Checks the chain, catalogs, indexes and sizes; with --deep, all data too. Finds all damage in one run and names the
    offsets that are lost. A partition that is in the archive's inventory but gone is a FAILURE; gaps that the archiver
    recorded are a WARNING. The marker and the catalogs are always checked completely, and missing objects are always
    found; --since and --sample limit the chunks whose index and data are read, and the verdict is then SAMPLED instead
    of OK. With --records and no such limit, --json and --report contain a digest of each partition's records.

    With --since-report, also compares with an earlier report: nothing in it may have disappeared or changed.

    With --against-topic, compares one topic of the archive, or the part selected by --from, --to and --at, with a Kafka
    topic record by record.

    With --job, applies what a replay did to the archived records again, and compares the result with what it wrote.
    With --spark, Spark tasks check all data, as --deep does; digests need one task per partition: --digests.
    """
    sampled = not choice.takes_all
    if job is not None:
        chosen = (topics, deep, records, against_topic, earlier, partitions, expected, report_to.paths)
        beside = any(chosen) or sampled or positions != Positions()
        return _verify_job(job, jobs, kafka, archive, as_json=as_json, beside=beside)
    if against_topic is not None:
        _refuse(
            (deep or records, "--against-topic reads every record anyway: remove --deep and --records"),
            (sampled, "--since and --sample choose chunks of an archive; with --against-topic, use --from"),
            (earlier is not None, "--since-report compares the archive with itself: remove --against-topic"),
            (expected, "--expect requires topics in an archive; --against-topic names the one to compare"),
            (len(topics) != 1, "--against-topic compares one archived topic: name it"),
        )
        # Here, because no other verification needs a Kafka client.
        from replayer.cli.verify_topic import verify_against  # noqa: PLC0415

        wanted = parse_topic(topics[0]).narrow(partitions)
        return verify_against(wanted, against_topic, positions, kafka, archive, report_to, as_json=as_json)
    if partitions is not None or positions != Positions():
        raise click.UsageError("--partitions, --from, --to and --at require --against-topic")
    depth = Depth.RECORDS if records else Depth.BLOCKS if deep or spark else Depth.STRUCTURE
    if spark is None:
        report = run_async(_verify(archive, [parse_topic(topic) for topic in topics], depth, choice, earlier, expected))
    else:
        report = _verify_on_spark(archive, topics, depth, choice, earlier, expected, spark, as_json=as_json)
    return conclude(report, str(archive.address), depth, report_to, as_json=as_json)


def _refuse(*rules: tuple[object, str]) -> None:
    """Raise a usage error with the text of the first rule that applies."""
    for applies, text in rules:
        if applies:
            raise click.UsageError(text)


def _verify_on_spark(
    archive: ArchivePlace,
    topics: Sequence[str],
    depth: Depth,
    choice: ChunkChoice,
    earlier: StoredReport | None,
    expected: Sequence[str],
    spark: common.SparkOptions,
    *,
    as_json: bool,
) -> ArchiveReport:
    """Return the report of a Spark job after its plan is printed; raise click's Exit then for a dry run."""
    if spark.digests and depth is not Depth.RECORDS:
        raise click.UsageError("--digests requires --records")
    with spark_needed("replayer verify --spark"):
        from blockgz.spark.session import session  # noqa: PLC0415
        from replayer.spark.verify import planned, verify  # noqa: PLC0415

    place = replace(archive.absolute(), old_format=None)
    plan = run_async(
        planned(place, topics, choice, spark.task_bytes, digests=spark.digests, expected=expected, earlier=earlier)
    )
    text = f"{plan.chunks:,} chunks, {bytes_text(plan.bytes)}, in {len(plan.slices):,} tasks"
    if spark.dry_run:
        counts = {"partitions": len(plan.subjects), "chunks": plan.chunks, "bytes": plan.bytes}
        click.echo(msgspec.json.encode(counts | {"tasks": len(plan.slices)}) if as_json else f"would check {text}")
        raise click.exceptions.Exit(0)
    click.echo(f"checks {text}", err=True)
    with (
        session("replayer verify", spark.master, spark.settings, quiet=not debug.get()) as running,
        common.stage_progress("verify", running.sparkContext.statusTracker(), as_json=as_json),
    ):
        return verify(running, plan, place, depth)


def _verify_job(
    job: str, jobs: str | None, kafka: dict[str, str], archive: ArchivePlace, *, as_json: bool, beside: bool
) -> int:
    if beside:
        raise click.UsageError("--job determines what is compared: use only -a, -b, --jobs and --json with it")
    from replayer.cli.verify_topic import verify_job  # noqa: PLC0415  # it needs a Kafka client

    return verify_job(job, jobs, kafka, archive, as_json=as_json)


async def _verify(
    options: ArchivePlace,
    wanted: list[TopicPartitions],
    depth: Depth,
    choice: ChunkChoice,
    earlier: StoredReport | None,
    expected: Sequence[str],
) -> ArchiveReport:
    async with common.open_archive(options) as archive:
        return await verify_archive(
            archive, wanted, depth, choice=choice, earlier=earlier, expected=expected, watched=_watched
        )


@contextmanager
def _watched(work: VerifyWork) -> Iterator[Callable[[], None]]:
    with naming_what_is_left(work.names, lambda: len(work.report.partitions)), _progress(work) as advanced:
        yield advanced


@contextmanager
def _progress(work: VerifyWork) -> Iterator[Callable[[], None]]:
    """Show a bar on stderr if that is a terminal, otherwise a line every few seconds."""
    if not sys.stderr.isatty():

        def show() -> None:
            click.echo(f"verifying: {bytes_text(work.done)} of {bytes_text(work.bytes)}", err=True)

        with every(PLAIN_SECONDS, show):
            yield lambda: None
        return
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=unescaped(sys.stderr)), transient=True) as bar:
        task = bar.add_task("verify", total=work.bytes)
        yield lambda: bar.update(task, completed=work.done, total=work.bytes)
