"""The program `replayer`: the one place where configuration, stores, Kafka and services are put together."""

import click

from blockgz.program.main import Program, closing, version_option

# Commands, the modules that define them, and their lines on the help page; a module is imported when it is used.
COMMANDS = {
    "get": (
        "replayer.cli.get:command",
        "Fetch single records, each with one range read; several are fetched together.",
    ),
    "cat": ("replayer.cli.cat:cat", "Print records, one partition after another, in offset order."),
    "tail": ("replayer.cli.tail:command", "Print the newest records of each partition in offset order."),
    "grep": ("replayer.cli.cat:grep", "Print the records whose value matches REGEX, each preceded by its place."),
    "find": (
        "replayer.cli.find:command",
        "Find the offsets for a time, or of records with a key, a header or a pattern.",
    ),
    "ls": ("replayer.cli.ls:ls", "List the topics of the archive and what is archived of each."),
    "describe": ("replayer.cli.ls:describe", "Show each partition of a topic: offsets, chunks, gaps and owner."),
    "coverage": (
        "replayer.cli.coverage:command",
        "Show what is archived of each partition over time, and where the gaps are.",
    ),
    "export": ("replayer.cli.export:command", "Write records to a Parquet, CSV, JSON lines or Arrow file."),
    "topics": (
        "replayer.cli.topics:command",
        "Compare topics with their archived configuration, or change them to match.",
    ),
    "replay": ("replayer.cli.replay:command", "Write archived records to a topic, unchanged and in order."),
    "restore": (
        "replayer.cli.restore:command",
        "Restore topics to a cluster, all as of one time, and let their consumers continue.",
    ),
    "jobs": ("replayer.cli.jobs:command", "List the folders of replay jobs, steer one, or remove one."),
    "undo": ("replayer.cli.undo:command", "Delete the topic that a replay created."),
    "drill": (
        "replayer.cli.drill:command",
        "Try a restore: restore a share of the partitions, prove it, and delete it again.",
    ),
    "groups": ("replayer.cli.groups:command", "Show where consumer groups stood, and let them continue in a copy."),
    "verify": (
        "replayer.cli.verify:command",
        "Prove that an archive is complete and undamaged, or that a topic is a copy of it.",
    ),
    "verify-report": (
        "replayer.cli.report:verify_report",
        "Check the signature of a report, also of one made by `archiver erase`.",
    ),
    "serve": ("replayer.cli.serve:command", "Show an archive as a web page, with an API under it."),
    "broker": ("replayer.cli.broker:command", "Serve an archive to Kafka clients as a broker that is only read."),
    "spark": ("replayer.cli.spark:command", "Load and export archives as Spark jobs, on this machine or a cluster."),
}


@click.group(
    "replayer",
    cls=Program,
    places=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=closing("replayer ls -a ./archive", "replayer get orders:3:17 -a s3://bucket/prefix"),
)
@version_option("replayer")
def main() -> None:
    """Read, verify and replay a Block-GZIP archive of Kafka topics."""
