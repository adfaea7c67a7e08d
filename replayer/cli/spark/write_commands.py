"""`replayer spark export` and `replayer spark load`."""

from typing import Any

import click

from blockgz.program.main import closing
from blockgz.program.options import spark_needed, with_options
from replayer.cli.options.archive_options import archive_options
from replayer.cli.options.options import json_option
from replayer.cli.options.selection_options import damage_option, selection_options
from replayer.cli.spark.job_options import (
    WriteRequest,
    cutting_options,
    dry_run_option,
    mode_option,
    partition_by_option,
    session_options,
    value_options,
)

FORMATS = ("parquet", "avro", "json", "csv")

_topics = click.argument("topics", metavar="TOPIC[:P[,P-P]]...", nargs=-1, required=True)


def _with_destination(_context: click.Context, _parameter: click.Parameter, topics: tuple[str, ...]) -> tuple[str, ...]:
    """Of a single argument nobody can tell whether it is TOPIC or DEST, as one who takes --to for DEST gives it."""
    if not topics:
        raise click.UsageError("TOPIC and DEST are both required: files go to DEST, and --to is a position")
    return topics


def _write_options(function: Any) -> Any:
    """What both commands take."""
    return with_options(
        function,
        [
            mode_option,
            partition_by_option,
            value_options,
            selection_options,
            damage_option,
            cutting_options,
            dry_run_option,
            session_options,
            json_option,
            archive_options,
        ],
    )


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
@click.argument("topics", metavar="TOPIC[:P[,P-P]]...", nargs=-1, callback=_with_destination)
@click.argument("destination", metavar="DEST")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(FORMATS),
    required=True,
    envvar="BLOCKGZ_EXPORT_FORMAT",
    help="File format; avro needs Spark's avro jar (--jars).",
)
@_write_options
def export(destination: str, file_format: str, **given: Any) -> int:
    """Write records to files in a common format.

    Columns are key, value, topic, partition, offset, timestamp, timestampType and headers.

    TOPIC may be a glob or ~regex. DEST is a path that Spark can write: a folder, s3a://, hdfs://. Files become visible
    only when all of them are written (Spark's committer); --mode overwrite deletes the old files first. Exits with 3 if
    values could not be decoded or damage was skipped.
    """
    with spark_needed("replayer spark"):
        from replayer.cli.spark.writing_job import run  # noqa: PLC0415
    return run(WriteRequest(**given), "export", file_format, path=destination)


@click.command(
    "load",
    epilog=closing(
        "replayer spark load orders --table shop.orders --conf spark.sql.catalogImplementation=hive -a ./archive",
        "replayer spark load 'shop-*' --table lake.shop.events --format iceberg --mode append --since -1d "
        "-a s3://bucket/prefix",
    ),
)
@_topics
@click.option("--table", required=True, metavar="NAME", help="The table: NAME, DATABASE.NAME or CATALOG.DATABASE.NAME.")
@click.option(
    "--format",
    "table_format",
    default="parquet",
    show_default=True,
    envvar="BLOCKGZ_TABLE_FORMAT",
    metavar="NAME",
    help="Storage format of the table: parquet, orc, iceberg, delta, ….",
)
@_write_options
def load(table: str, table_format: str, **given: Any) -> int:
    """Load records into a table of Spark's catalog, with the columns of `spark export`.

    TOPIC may be a glob or ~regex. The database must exist, and the catalog must be persistent. Loading the same records
    twice with --mode append duplicates them: select the next part with --from or --since. Exits with 3 if values could
    not be decoded or damage was skipped.
    """
    with spark_needed("replayer spark"):
        from replayer.cli.spark.writing_job import run  # noqa: PLC0415
    return run(WriteRequest(**given), "load", table_format, table=table)
