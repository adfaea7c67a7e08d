"""The program `archiver`: the only place that wires configuration, Kafka, stores and services together."""

import click

from blockgz_runtime.program.main import Program, closing
from blockgz_runtime.program.version import version_option

COMMANDS = {
    "config": "archiver.cli.config:config_group",
    "demo": "archiver.cli.demo:demo",
    "doctor": "archiver.cli.doctor:doctor",
    "forget": "archiver.cli.forget:forget",
    "gc": "archiver.cli.gc:gc",
    "import": "archiver.cli.import_command:import_command",
    "repair": "archiver.cli.repair:repair",
    "run": "archiver.cli.run:run",
    "spark": "archiver.cli.spark:spark",
    "status": "archiver.cli.status:status",
}
"""Commands and where they are defined; each is imported when it is used."""


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
