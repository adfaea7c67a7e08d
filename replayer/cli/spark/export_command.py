"""`replayer spark export`."""

from typing import Any

import click

from blockgz_runtime.program.main import closing
from replayer.cli.options.archive_options import archive_options
from replayer.cli.options.options import json_option
from replayer.cli.options.selection_options import damage_option, selection_options
from replayer.cli.spark.job_options import Request, cutting_options, dry_run_option, value_options
from replayer.cli.spark.session_options import session_options, spark_needed
from replayer.cli.spark.target_options import mode_option, partition_by_option

FORMATS = ("parquet", "avro", "json", "csv")


@click.command(
    "export",
    epilog=closing(
        "replayer spark export orders ./orders --format parquet -a ./archive",
        "replayer spark export 'shop-*' s3a://lake/shop --format parquet --partition-by topic,date --since -1d "
        "-a s3://bucket/prefix",
        "replayer spark export orders ./orders --format json --value json --schema 'id BIGINT, name STRING' "
        "-a ./archive",
        "replayer spark export orders ./orders --format parquet --value avro --schema-registry http://localhost:8081 "
        "--on-bad-value skip --partition-by date,value.country -a ./archive",
    ),
)
@click.argument("topics", metavar="TOPIC[:P[,P-P]]...", nargs=-1, required=True)
@click.argument("destination", metavar="DEST")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    required=True,
    envvar="BLOCKGZ_EXPORT_FORMAT",
    help="The files' format; avro needs Spark's own jar for it (--jars).",
)
@mode_option
@partition_by_option
@value_options
@selection_options
@damage_option
@cutting_options
@dry_run_option
@session_options
@json_option
@archive_options
def command(destination: str, file_format: str, mode: str, partition_by: tuple[str, ...], **given: Any) -> int:
    """Write records as files that anything reads.

    Columns are key, value, topic, partition, offset, timestamp, timestampType and headers.

    TOPIC may be a glob or ~regex. DEST is a path that Spark knows: a folder, s3a://, hdfs://. Nothing is visible there
    before all of it is (Spark's committer); --mode overwrite deletes what was there as it begins. The exit code is 3
    where values could not be decoded or damage was skipped.
    """
    with spark_needed():
        from replayer.cli.spark.writing_job import run  # noqa: PLC0415
    target = {"file_format": file_format, "mode": mode, "path": destination, "partition_by": partition_by}
    return run(Request(**given), "export", target)
