"""`replayer spark`: what one machine is too small for, as Spark jobs. Nothing here imports Spark before a job runs."""

import click

from ..program import Program, closing

COMMANDS = {"load": "load_command", "export": "export_command", "verify": "verify_command", "replay": "replay_command"}
"""Commands and the modules that hold them, as in the program itself."""


@click.group(
    "spark",
    cls=Program,
    modules={name: f"spark.{module}" for name, module in COMMANDS.items()},
    epilog=closing(
        "replayer spark export orders ./orders --format parquet -a ./archive",
        "replayer spark verify --records --master local[4] -a s3://bucket/prefix",
    ),
)
def command() -> None:
    """Load, export, check and replay archives as Spark jobs: on this machine, or on the cluster of spark-submit.

    Needs Spark: pip install 'blockgz[spark]', and Java 17.
    """
