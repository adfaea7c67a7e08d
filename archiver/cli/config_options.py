"""The options of the configuration, made from the model: one per field, with its help, default and variable."""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, cast

import click
from click.core import ParameterSource

from blockgz.config.files import DEFAULT, KAFKA_PREFIX, Origin, OriginKind, Setting, Settings
from blockgz.config.kinds import FIELDS, FieldKind, default_text, field_choices, field_kind, option_name, variable_name
from blockgz.config.resolution import resolve
from blockgz.program.options import F, kafka_properties, properties_option, split_properties, used_config

LONG_NAMES = {"archive": ("-a", "--archive"), "bootstrap_servers": ("-b", "--bootstrap-server")}
METAVARS = {
    "archive": "ADDRESS",
    "bootstrap_servers": "HOST:PORT",
    "http": "HOST:PORT",
    "endpoint_url": "URL",
    "archive_retention": "[TOPIC=]AGE",
    "archive_retention_bytes": "[TOPIC=]SIZE",
}
REPEATED = ("exclude", "archive_retention", "archive_retention_bytes")
HELP = {name: f"{(FIELDS[name].description or '').removesuffix('.')}; may be repeated." for name in REPEATED}


def config_options(function: F) -> F:
    """Add TOPIC... and an option for every field; pass `resolved: Resolved`, and print notes to stderr."""
    return _with_config(function, {})


def config_options_for_any_topic(function: F) -> F:
    """Add the same options as `config_options`; without TOPIC, it means all topics."""
    return _with_config(function, {"topics": Setting(("*",), DEFAULT)})


def _with_config(function: F, fallback: Settings) -> F:
    @functools.wraps(function)
    def with_config(*args: Any, **kwargs: Any) -> Any:
        file = used_config()
        print_notes(file.notes)
        given = {field: kwargs.pop(field) for field in FIELDS}
        environment, flags = _layers(click.get_current_context(), given)
        resolved = resolve(fallback, file.settings, environment, flags, environ=os.environ)
        return function(*args, resolved=resolved, **kwargs)

    decorated: Any = with_config
    for field in reversed(FIELDS):
        decorated = _topics(decorated) if field == "topics" else field_option(field)(decorated)
    return cast(F, decorated)


def print_notes(notes: tuple[str, ...]) -> None:
    """Print warnings about a file on stderr, one a line."""
    for note in notes:
        click.echo(f"warning: {note}", err=True)


_topics = click.argument("topics", nargs=-1, metavar="[TOPIC...]", envvar="BLOCKGZ_TOPICS")


def field_option(field: str, *, shown: str | None = None, help_text: str | None = None) -> Callable[[F], F]:
    """Return the option of one field; `shown` and `help_text` replace the model's default and help."""
    if field == "kafka":
        return properties_option(field)
    kind = field_kind(field)
    names = LONG_NAMES.get(field, (option_name(field),))
    if kind is FieldKind.SWITCH:
        names = (f"{names[0]}/{names[0].replace('--', '--no-', 1)}",)
    return click.option(
        *names,
        field,
        default=None,
        type=bool if kind is FieldKind.SWITCH else str,
        multiple=field in REPEATED,
        metavar=METAVARS.get(field) or "|".join(field_choices(field)) or kind.value[0] or None,
        envvar=variable_name(field),
        help=help_text or HELP.get(field, FIELDS[field].description),
        show_default=shown or (kind is not FieldKind.SWITCH and default_text(field)) or False,
    )


def _layers(context: click.Context, given: dict[str, Any]) -> tuple[Settings, Settings]:
    """Return the settings of the environment, and those of the flags."""
    environment: Settings = {}
    flags: Settings = {}
    for field, value in given.items():
        variable, source = variable_name(field), context.get_parameter_source(field)
        if field == "kafka":
            pairs = split_properties(variable, os.environ.get(variable, ""))
            environment |= _kafka_settings(pairs, Origin(OriginKind.ENVIRONMENT, variable))
            if source is ParameterSource.COMMANDLINE:
                flags |= _kafka_settings(value, Origin(OriginKind.FLAG, "-X"))
        elif source is ParameterSource.ENVIRONMENT:
            environment[field] = Setting(value, Origin(OriginKind.ENVIRONMENT, variable))
        elif source is ParameterSource.COMMANDLINE:
            flags[field] = Setting(value, Origin(OriginKind.FLAG, option_name(field)))
    return environment, flags


def _kafka_settings(pairs: Iterable[str], origin: Origin) -> Settings:
    return {KAFKA_PREFIX + name: Setting(value, origin) for name, value in kafka_properties(pairs).items()}
