"""The configuration file of both programs: where it is, and the defaults that it gives to a command's options.

The file is the archiver's. Other commands take from it what they share with `archiver run`: the archive, the settings
of S3 and of Kafka. Only the names of its other keys are checked.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from blockgz.store.s3_settings import S3Settings

if TYPE_CHECKING:
    from blockgz.config.files import Settings

# The parameter of -C.
CONFIG = "config"
# The field that gives the default of a command's parameter; `kafka_options` merges other settings of Kafka.
SHARED = {
    "archive": "archive",
    "bootstrap_server": "bootstrap_servers",
    "bootstrap_servers": "bootstrap_servers",
    "encrypt": "encrypt",
    "keyring": "encrypt",
    **{each.name: each.name for each in fields(S3Settings)},
}
_LOADED = "blockgz.program.config_file"


class UsedConfig(NamedTuple):
    """The file that a command uses, and its settings."""

    path: Path | None
    settings: "Settings"
    notes: tuple[str, ...]

    @property
    def place(self) -> str:
        """The name of the file in a remedy."""
        return str(self.path) if self.path else "a configuration file (-C)"


def config_path(given: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file of -C or BLOCKGZ_CONFIG, or `$XDG_CONFIG_HOME/blockgz/config.yaml` if it exists.

    XDG_CONFIG_HOME is ~/.config if it is not set.
    """
    if given:
        return Path(given)
    named = environ.get("XDG_CONFIG_HOME", "")
    try:
        home = Path(named) if Path(named).is_absolute() else Path.home() / ".config"
    except RuntimeError:
        return None
    path = home / "blockgz" / "config.yaml"
    return path if os.path.exists(path) else None  # noqa: PTH110 - False where the folder may not be read


def used_config() -> UsedConfig:
    """Return the file that the current command has loaded."""
    used: UsedConfig = click.get_current_context().meta.get(_LOADED, UsedConfig(None, {}, ()))
    return used


def config_option() -> click.Option:
    """Return -C, which makes the file's values defaults of the command's options; see `used_config`."""
    return click.Option(
        ["-C", f"--{CONFIG}"],
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        envvar="BLOCKGZ_CONFIG",
        callback=_load,
        help="Settings in YAML, Java properties or Connect's JSON; options and environment variables override them. "
        " [default: ~/.config/blockgz/config.yaml, if it exists]",
    )


def _load(context: click.Context, _: click.Parameter, given: str | None) -> None:
    path = config_path(given, os.environ)
    if path is not None:
        use_config(context, path)


def use_config(context: click.Context, path: Path) -> None:
    """Make the file's values the defaults of the context's command; raises UsageError for a wrong file."""
    from blockgz.config.files import read_config_file  # noqa: PLC0415 - it loads pydantic and a YAML parser
    from blockgz.config.resolution import check_kafka, text_of  # noqa: PLC0415

    file = read_config_file(path)
    check_kafka(file.settings)
    context.meta[_LOADED] = UsedConfig(path, file.settings, file.notes)
    context.default_map = {
        param: partial(text_of, field, file.settings[field], os.environ)
        for param, field in SHARED.items()
        if field in file.settings
    }


def kafka_defaults() -> dict[str, str]:
    """Return the file's settings of Kafka, by librdkafka's names; references to secrets are not resolved."""
    settings = used_config().settings
    if not settings:
        return {}
    from blockgz.config.resolution import check_kafka  # noqa: PLC0415

    return check_kafka(settings)
