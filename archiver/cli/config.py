"""`archiver config`: print, check and explain configurations."""

import os

import click
import orjson

from archiver.cli.config_options import config_options, print_notes
from archiver.ingest.kafka_source import check_settings
from blockgz.config.files import KAFKA_PREFIX
from blockgz.config.kinds import FIELDS, json_schema, value_text, yaml_template
from blockgz.config.resolution import Resolved, check_config_file
from blockgz.errors import UsageError
from blockgz.program.main import closing
from blockgz.program.options import config_path


@click.group(
    "config",
    epilog=closing(
        "archiver config init > archiver.yaml", "archiver config check archiver.yaml", "archiver run -C archiver.yaml"
    ),
)
def config_group() -> None:
    """Print, check and explain configuration files."""


@config_group.command(epilog=closing("archiver config init > archiver.yaml"))
def init() -> None:
    """Print a YAML file with every field, its meaning and its default."""
    click.echo(yaml_template(), nl=False)


@config_group.command(epilog=closing("archiver config check archiver.yaml", "archiver config check connector.json"))
@click.argument("file", required=False)
@click.option("-C", "--config", metavar="FILE", help="The same as FILE.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(*, file: str | None, config: str | None, as_json: bool) -> None:
    """Check a configuration file without contacting a broker or store; exit with 2 if it is wrong.

    Anything that may merely be missing on this machine, such as a secret, is a warning.
    """
    name = config_path(file or config, os.environ)
    if name is None:
        raise UsageError(
            "no file is given",
            why="neither FILE nor -C nor BLOCKGZ_CONFIG names one, and ~/.config/blockgz/config.yaml does not exist",
            remedy="archiver config check FILE",
        )
    resolved, notes = check_config_file(name, os.environ)
    check_settings(resolved.config, lambda name: resolved.named(KAFKA_PREFIX + name))
    if as_json:
        click.echo(orjson.dumps({"file": str(name), "ok": True, "warnings": notes}).decode())
        return
    print_notes(notes)
    click.echo(f"ok: {name}")


@config_group.command(
    epilog=closing(
        "archiver config show -C archiver.yaml", "archiver config show orders -a ./archive -b localhost:9092"
    )
)
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(*, resolved: Resolved, as_json: bool) -> None:
    """Print the configuration that `archiver run` would use with the same options, and where each value comes from.

    Secrets and the values of references are masked.
    """
    rows = resolved.shown()
    if as_json:
        answer = {
            name: {"value": value, "origin": origin.kind.value, "place": origin.place or None}
            for name, (value, origin) in rows.items()
        }
        click.echo(orjson.dumps(answer).decode())
        return
    for name, (value, origin) in rows.items():
        shown = value if name not in FIELDS or name in resolved.masked else value_text(name, value)
        click.echo(f"{name}: {shown}  # {origin}")


@config_group.command(epilog=closing("archiver config schema > archiver.schema.json"))
def schema() -> None:
    """Print the JSON Schema of a configuration file, for editors and other checkers."""
    click.echo(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2).decode())
