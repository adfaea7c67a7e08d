"""`replayer spark verify`."""

from dataclasses import replace

import click
import msgspec

from blockgz.archive.archive import ArchivePlace
from blockgz.process import run_async
from blockgz.program.command import debug
from blockgz.program.main import closing
from blockgz.program.options import spark_needed
from blockgz.program.tables import bytes_text
from replayer.cli.options.options import archive_options, json_option
from replayer.cli.options.verify_options import choice_options, earlier_options, expect_option, report_options
from replayer.cli.report import conclude
from replayer.cli.spark.options import SessionOptions, cutting_options, dry_run_option, session_options, stage_progress
from replayer.verify.chunk_checks import ChunkChoice
from replayer.verify.report import Depth, ReportFiles, StoredReport


@click.command(
    "verify",
    epilog=closing(
        "replayer spark verify -a s3://bucket/prefix",
        "replayer spark verify orders 'shop-*' --records --json -a ./archive",
        "replayer spark verify orders --records --digests --report report.json -a ./archive",
        "replayer spark verify --expect orders --since-report report.json --key pub.pem -a s3://bucket/prefix",
    ),
)
@click.argument("topics", metavar="[TOPIC[:P[,P-P]]...]", nargs=-1)
@click.option("--records", is_flag=True, help="Also decode every record.")
@click.option("--digests", is_flag=True, help="Compute digests of partitions, with one task per partition.")
@expect_option
@choice_options
@earlier_options
@report_options
@cutting_options
@dry_run_option
@session_options
@json_option
@archive_options
def command(
    topics: tuple[str, ...],
    records: bool,
    digests: bool,
    expected: tuple[str, ...],
    choice: ChunkChoice,
    earlier: StoredReport | None,
    report_to: ReportFiles,
    cutting: dict[str, int],
    dry_run: bool,
    spark: SessionOptions,
    as_json: bool,
    archive: ArchivePlace,
) -> int:
    """Check all data of an archive, as `replayer verify --deep` does, in the tasks of a Spark job.

    The report and the exit code are the same. A digest needs the records of a partition one after another. The report
    has it if one task had the whole partition; with --digests, it has all digests.

    With --since-report, also compares with an earlier report: nothing in it may have disappeared or changed.
    """
    if digests and not records:
        raise click.UsageError("--digests requires --records")
    depth = Depth.RECORDS if records else Depth.BLOCKS
    with spark_needed("replayer spark"):
        from blockgz.spark.session import session  # noqa: PLC0415
        from replayer.spark.verify import planned, verify  # noqa: PLC0415

    place = replace(archive.absolute(), old_format=None)
    plan = run_async(
        planned(place, topics, choice, cutting["task_bytes"], digests=digests, expected=expected, earlier=earlier)
    )
    text = f"{plan.chunks:,} chunks, {bytes_text(plan.bytes)}, in {len(plan.slices):,} tasks"
    if dry_run:
        counts = {"partitions": len(plan.subjects), "chunks": plan.chunks, "bytes": plan.bytes}
        click.echo(msgspec.json.encode(counts | {"tasks": len(plan.slices)}) if as_json else f"would check {text}")
        return 0
    click.echo(f"checks {text}", err=True)
    with (
        session("replayer spark verify", spark.master, spark.settings, quiet=not debug.get()) as running,
        stage_progress("verify", running.sparkContext.statusTracker(), as_json=as_json),
    ):
        report = verify(running, plan, place, depth)
    return conclude(report, str(archive.address), depth, report_to, as_json=as_json)
