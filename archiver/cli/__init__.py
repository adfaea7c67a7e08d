"""The program `archiver`: the only place that wires configuration, Kafka, stores and services together."""

import click

from blockgz.program.main import Program, closing, version_option

# Commands, most used first, where they are defined, and their line on the help page; each is imported when used.
COMMANDS = {
    "run": ("archiver.cli.run:run", "Archive topics: follow them forever, or drain them once."),
    "status": (
        "archiver.cli.status:status",
        "Show the progress of each partition, from the archive's markers or from a running archiver.",
    ),
    "doctor": (
        "archiver.cli.doctor:doctor",
        "Check broker, permissions, topics, store and this machine for a run with the same settings.",
    ),
    "config": ("archiver.cli.config:config_group", "Print, check and explain configuration files."),
    "demo": (
        "archiver.cli.demo:demo",
        "Archive a topic, look up records, replay to a point in time, and prove that the copy is equal.",
    ),
    "gc": (
        "archiver.cli.gc:gc",
        "Delete what dead writers left behind: orphaned objects, temporary files and unfinished uploads.",
    ),
    "prune": ("archiver.cli.prune:prune", "Take the oldest records out of the archive, while archivers run."),
    "compact": (
        "archiver.cli.compact:compact",
        "Merge small neighbouring chunks into large ones, and convert chunks, while archivers run.",
    ),
    "erase": (
        "archiver.cli.erase:erase",
        "Erase records by key, header, value or offset, and report when no object in the archive contains them.",
    ),
    "rewrap": (
        "archiver.cli.rewrap:rewrap",
        "Wrap the keys of encrypted chunks with the newest master key, while archivers run.",
    ),
    "drop": (
        "archiver.cli.drop:drop_command",
        "Delete a whole topic from the archive, all its incarnations, for good and at once.",
    ),
    "repair": (
        "archiver.cli.repair:repair",
        "Rebuild lost indexes, catalogs, markers and inventories; recover records, or accept that they are lost.",
    ),
    "forget": ("archiver.cli.forget:forget", "Remove partitions that are gone for good from the archive's inventory."),
    "import": (
        "archiver.cli.import_command:import_command",
        "Convert an archive of kafka-connect-s3, or one of its forks, at SOURCE into a current one.",
    ),
    "spark": (
        "archiver.cli.spark:spark",
        "Archive topics as a Spark job, from Spark's Kafka source to the format blockgz-archive.",
    ),
}


@click.group(
    "archiver",
    cls=Program,
    places=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=closing("archiver run orders -b localhost:9092 -a ./archive --once", "archiver config init > archiver.yaml"),
)
@version_option("archiver")
def main() -> None:
    """Archive Kafka topics as Block-GZIP chunks."""
