"""The program `replayer`: the one place where configuration, stores, Kafka and services are put together."""

import click

from blockgz_runtime.program.main import Program, closing
from blockgz_runtime.program.version import version_option

COMMANDS = {
    "get": "replayer.cli.get:command",
    "cat": "replayer.cli.cat:cat",
    "tail": "replayer.cli.tail:command",
    "grep": "replayer.cli.cat:grep",
    "find": "replayer.cli.find:command",
    "ls": "replayer.cli.ls:ls",
    "describe": "replayer.cli.ls:describe",
    "coverage": "replayer.cli.coverage:command",
    "replay": "replayer.cli.replay:command",
    "jobs": "replayer.cli.jobs:command",
    "verify": "replayer.cli.verify:command",
    "verify-report": "replayer.cli.report:verify_report",
    "spark": "replayer.cli.spark:command",
}
"""Commands and where they are defined; each is imported when it is used."""


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
