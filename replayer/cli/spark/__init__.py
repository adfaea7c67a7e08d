"""`replayer spark`: what one machine is too small for, as Spark jobs. Nothing here imports Spark before a job runs."""

import click

from blockgz_runtime.program.main import Program, closing

COMMANDS = {
    "load": "replayer.cli.spark.write_commands:load",
    "export": "replayer.cli.spark.write_commands:export",
    "verify": "replayer.cli.spark.verify_command:command",
    "replay": "replayer.cli.spark.replay_command:command",
}
"""Commands and where they are defined; each is imported when it is used."""


@click.group(
    "spark",
    cls=Program,
    places=COMMANDS,
    epilog=closing(
        "replayer spark export orders ./orders --format parquet -a ./archive",
        "replayer spark verify --records --master local[4] -a s3://bucket/prefix",
    ),
)
def command() -> None:
    """Load, export, check and replay archives as Spark jobs: on this machine, or on the cluster of spark-submit.

    Needs Spark: pip install 'blockgz[spark]', and Java 17.
    """
