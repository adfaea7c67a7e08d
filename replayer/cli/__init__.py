"""The program `replayer`: the one place where configuration, stores, Kafka and services are put together."""

import click

from blockgz_runtime.program.main import Place, Program, closing
from blockgz_runtime.program.version import version_option

COMMANDS = {
    "get": Place(
        "replayer.cli.get:command",
        "Fetch single records, each by one range read; several are fetched together.",
    ),
    "cat": Place(
        "replayer.cli.cat:cat",
        "Print records, partition after partition, in offset order.",
    ),
    "tail": Place(
        "replayer.cli.tail:command",
        "Print the newest records of each partition in offset order.",
    ),
    "grep": Place(
        "replayer.cli.cat:grep",
        "Print the records in whose value REGEX is found, each with its place in front.",
    ),
    "find": Place(
        "replayer.cli.find:command",
        "Find the offsets of a time, or of records with a key, a header or a pattern.",
    ),
    "ls": Place(
        "replayer.cli.ls:ls",
        "List the topics of the archive, with what is archived of each.",
    ),
    "describe": Place(
        "replayer.cli.ls:describe",
        "Show each partition of a topic: offsets, chunks, gaps, and who writes it.",
    ),
    "coverage": Place(
        "replayer.cli.coverage:command",
        "Show what is archived of each partition over time, and where the gaps are.",
    ),
    "replay": Place(
        "replayer.cli.replay:command",
        "Produce archived records to a topic, in order and as they were.",
    ),
    "jobs": Place(
        "replayer.cli.jobs:command",
        "List the replay jobs that have a folder, or remove the folder of one.",
    ),
    "verify": Place(
        "replayer.cli.verify:command",
        "Prove that the archive is whole, or that a topic is its copy.",
    ),
    "verify-report": Place(
        "replayer.cli.report:verify_report",
        "Check that a report is as `verify --report --sign-key` signed it.",
    ),
    "spark": Place(
        "replayer.cli.spark:command",
        "Load, export, check and replay archives as Spark jobs: on this machine, or on the cluster of spark-submit.",
    ),
}
"""Commands, where they are defined, and their line on the help page; each is imported when it is used."""


@click.group(
    "replayer",
    cls=Program,
    places=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=closing("replayer ls -a ./archive", "replayer get orders:3:17 -a s3://bucket/prefix"),
)
@version_option("replayer")
def main() -> None:
    """Read, check and replay a block-GZIP archive of Kafka topics."""
