"""The program `archiver`: the only place that wires configuration, Kafka, stores and services together."""

import click

from .demo import demo
from .outcome import OutcomeGroup, with_environment
from .run import run


@click.group(cls=OutcomeGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="blockgz")
def main() -> None:
    """Archive Kafka topics as Block-GZIP chunks."""


for command in (run, demo):
    main.add_command(with_environment(command))
