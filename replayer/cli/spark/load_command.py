"""`replayer spark load`."""

from typing import Any

import click

from blockgz_runtime.program.main import closing
from replayer.cli.options.archive_options import archive_options
from replayer.cli.options.options import json_option
from replayer.cli.options.selection_options import damage_option, selection_options
from replayer.cli.spark.job_options import Request, cutting_options, dry_run_option, value_options
from replayer.cli.spark.session_options import session_options, spark_needed
from replayer.cli.spark.target_options import mode_option, partition_by_option


@click.command(
    "load",
    epilog=closing(
        "replayer spark load orders --table shop.orders --conf spark.sql.catalogImplementation=hive -a ./archive",
        "replayer spark load 'shop-*' --table lake.shop.events --format iceberg --mode append --since -1d "
        "-a s3://bucket/prefix",
    ),
)
@click.argument("topics", metavar="TOPIC[:P[,P-P]]...", nargs=-1, required=True)
@click.option(
    "--table",
    required=True,
    metavar="NAME",
    help="The table: NAME, DATABASE.NAME or CATALOG.DATABASE.NAME.",
)
@click.option(
    "--format",
    "table_format",
    default="parquet",
    show_default=True,
    envvar="BLOCKGZ_TABLE_FORMAT",
    metavar="NAME",
    help="What Spark keeps the table in: parquet, orc, iceberg, delta, ….",
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
def command(table: str, table_format: str, mode: str, partition_by: tuple[str, ...], **given: Any) -> int:
    """Load records into a table of Spark's catalog: the columns of `spark export`.

    TOPIC may be a glob or ~regex. The database must exist, and the catalog must be one that lasts. Loading the same
    records twice with --mode append doubles them: take the next part with --from or --since. The exit code is 3 where
    values could not be decoded or damage was skipped.
    """
    with spark_needed():
        from replayer.cli.spark.writing_job import run  # noqa: PLC0415
    target = {"file_format": table_format, "mode": mode, "table": table, "partition_by": partition_by}
    return run(Request(**given), "load", target)
