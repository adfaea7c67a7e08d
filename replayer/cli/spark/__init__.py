"""`replayer spark`: what one machine is too small for, as Spark jobs. Nothing here imports Spark before a job runs."""

import click

from blockgz_runtime.program.main import Place, Program, closing

COMMANDS = {
    "load": Place(
        "replayer.cli.spark.write_commands:load",
        "Load records into a table of Spark's catalog: the columns of `spark export`.",
    ),
    "export": Place(
        "replayer.cli.spark.write_commands:export",
        "Write records as files that anything reads.",
    ),
    "verify": Place(
        "replayer.cli.spark.verify_command:command",
        "Check all data of an archive, as `replayer verify --deep` does, spread over the tasks of a Spark job.",
    ),
    "replay": Place(
        "replayer.cli.spark.replay_command:command",
        "Produce archived records to a topic as `replayer replay` does, each source partition by a task of a Spark "
        "job.",
    ),
}
"""Commands, where they are defined, and their line on the help page; each is imported when it is used."""


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
