"""`replayer spark verify`."""

import click

from blockgz_runtime.program.main import closing
from replayer.cli.options.archive_options import ArchiveOptions, archive_options
from replayer.cli.options.options import json_option
from replayer.cli.options.verify_options import choice_options, report_options
from replayer.cli.report import ReportOptions
from replayer.cli.spark.job_options import Cutting, cutting_options, dry_run_option
from replayer.cli.spark.session_options import SessionOptions, session_options, spark_needed
from replayer.verify.chunk_checks import ChunkChoice, Depth


@click.command(
    "verify",
    epilog=closing(
        "replayer spark verify -a s3://bucket/prefix",
        "replayer spark verify orders 'shop-*' --records --json -a ./archive",
        "replayer spark verify orders --records --digests --report report.json -a ./archive",
    ),
)
@click.argument("topics", metavar="[TOPIC[:P[,P-P]]...]", nargs=-1)
@click.option("--records", is_flag=True, help="Decode every record as well.")
@click.option(
    "--digests",
    is_flag=True,
    help="Digests of the records of each partition: each is one task then.",
)
@choice_options
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
    choice: ChunkChoice,
    report_to: ReportOptions,
    cutting: Cutting,
    dry_run: bool,
    spark: SessionOptions,
    as_json: bool,
    archive: ArchiveOptions,
) -> int:
    """Check all data of an archive, as `replayer verify --deep` does, spread over the tasks of a Spark job.

    The report and the exit code are the same. Digests need the records of a partition one after the other: they are in
    the report where a task had a whole partition, and everywhere with --digests.
    """
    if digests and not records:
        raise click.UsageError("--digests goes with --records")
    depth = Depth.RECORDS if records else Depth.BLOCKS
    with spark_needed():
        from replayer.cli.spark.verifying_job import run  # noqa: PLC0415
    return run(
        archive, topics, depth, choice, cutting, spark, report_to, digests=digests, dry_run=dry_run, as_json=as_json
    )
