"""The program `archiver`: the only place that wires configuration, Kafka, stores and services together."""

import click

from .config import config_group
from .demo import demo
from .doctor import doctor
from .gc import gc
from .import_command import import_command
from .outcome import OutcomeGroup, closing, completed
from .repair import repair
from .run import run
from .spark import spark
from .status import status


@click.group(
    cls=OutcomeGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=closing("archiver run orders -b localhost:9092 -a ./archive --once", "archiver config init > archiver.yaml"),
)
@click.version_option(package_name="blockgz")
def main() -> None:
    """Archive Kafka topics as Block-GZIP chunks."""


for command in (run, status, doctor, demo, gc, import_command, spark, repair, config_group):
    main.add_command(completed(command))
