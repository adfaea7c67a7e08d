"""The program `archiver`: the only place that wires configuration, Kafka, stores and services together."""

import click

from .outcome import Program, closing

COMMANDS = {
    "run": "run.run",
    "status": "status.status",
    "doctor": "doctor.doctor",
    "demo": "demo.demo",
    "gc": "gc.gc",
    "import": "import_command.import_command",
    "spark": "spark.spark",
    "repair": "repair.repair",
    "config": "config.config_group",
}
"""Commands and where in this package they stand; each is imported when it is used."""


@click.group(
    cls=Program,
    places=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=closing("archiver run orders -b localhost:9092 -a ./archive --once", "archiver config init > archiver.yaml"),
)
@click.version_option(package_name="blockgz")
def main() -> None:
    """Archive Kafka topics as Block-GZIP chunks."""
