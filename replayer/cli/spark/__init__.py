"""`replayer spark`: exports and loads as Spark jobs. Nothing here imports Spark before a job runs."""

import click

from blockgz.program.main import Program, closing

# Commands with their modules and their lines on the help page; each is imported when it is used.
COMMANDS = {
    "load": (
        "replayer.cli.spark.export:load",
        "Load records into a table of Spark's catalog, with the columns of `spark export`.",
    ),
    "export": ("replayer.cli.spark.export:export", "Write records to files in a common format."),
}


@click.group(
    "spark",
    cls=Program,
    places=COMMANDS,
    epilog=closing(
        "replayer spark export orders ./orders --format parquet -a ./archive",
        "replayer spark load orders --table shop.orders --master local[4] -a s3://bucket/prefix",
    ),
)
def command() -> None:
    """Load and export archives as Spark jobs, on this machine or a cluster.

    Needs Spark: pip install 'blockgz[spark]', and Java 17. `replayer replay` and `replayer verify` run on Spark with
    --spark.
    """
