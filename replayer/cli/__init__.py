"""The program `replayer`: the one place where configuration, stores, Kafka and services are put together."""

import click

from .program import Program, closing

COMMANDS = {
    "get": "get",
    "cat": "cat",
    "tail": "tail",
    "grep": "grep",
    "find": "find",
    "ls": "ls",
    "describe": "describe",
    "coverage": "coverage",
    "replay": "replay",
    "verify": "verify",
    "verify-report": "verify_report",
    "spark": "spark",
}
"""Commands and the modules of this package that hold them; each is imported when it is used."""


@click.group(
    "replayer",
    cls=Program,
    modules=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=closing("replayer ls -a ./archive", "replayer get orders:3:17 -a s3://bucket/prefix"),
)
@click.version_option(package_name="blockgz", prog_name="replayer")
def main() -> None:
    """Read, check and replay a block-GZIP archive of Kafka topics."""
