"""`replayer spark verify`."""

import random
import time

import click

from ...chunk_choice import ChunkChoice
from ...positions import parse_time
from ...verify import Depth
from ..archive_options import ArchiveOptions, archive_options
from ..options import json_option
from ..program import closing
from ..report import ReportOptions, report_options
from ..verify import Share
from .job_options import Cutting, cutting_options, dry_run_option
from .session_options import SessionOptions, session_options, spark_needed


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
@click.option(
    "--since",
    envvar="BLOCKGZ_VERIFY_SINCE",
    metavar="TIME",
    help="Check only chunks with a record at or after: a time, or a duration before now (-1d).",
)
@click.option(
    "--sample",
    type=Share(),
    default="100%",
    show_default=True,
    metavar="PERCENT",
    help="Check only a random share of the chunks of each partition, at least one, such as 5%.",
)
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
    since: str | None,
    sample: float,
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
    now = time.time_ns() // 1_000_000
    choice = ChunkChoice(None if since is None else parse_time(since, now).timestamp, sample, random.randrange(2**32))
    depth = Depth.RECORDS if records else Depth.BLOCKS
    with spark_needed():
        from .verifying_job import run  # noqa: PLC0415
    return run(
        archive, topics, depth, choice, cutting, spark, report_to, digests=digests, dry_run=dry_run, as_json=as_json
    )
