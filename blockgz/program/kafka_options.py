"""Options that name a Kafka cluster: `-b`, and `-X` with the settings of librdkafka."""

import ctypes
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click
from click.core import ParameterSource

from blockgz.errors import UsageError
from blockgz.hosts import unencrypted_brokers
from blockgz.kafka.secrets import refuse_code
from blockgz.program.config_file import kafka_defaults
from blockgz.program.options import Option, OptionSet

PROPERTIES_VARIABLE = "BLOCKGZ_KAFKA_PROPERTIES"


def kafka_options(bootstrap_help: str = "The Kafka cluster.", *, required: bool = False) -> OptionSet:
    """Return -b/--bootstrap-server and -X, which pass librdkafka's properties as `kafka: dict[str, str]`.

    If a property is given twice, -b comes before -X, and this before the configuration file. References to secrets are
    resolved when a client is made.
    """
    bootstrap = Option(
        *("-b", "--bootstrap-server"), cls=_Brokers, required=required, metavar="HOST:PORT", help=bootstrap_help
    )
    return OptionSet("kafka", _properties, bootstrap, properties_option("properties"))


class _Brokers(click.Option):
    """The option of brokers: those of -X count as given, before those of the configuration file."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        value, source = super().consume_value(ctx, opts)
        named = kafka_properties(ctx.params.get("properties") or ()).get("bootstrap.servers")
        if named and source not in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT):
            return named, ParameterSource.COMMANDLINE
        return value, source


def _properties(bootstrap_server: str | None, properties: tuple[str, ...]) -> dict[str, str]:
    bootstrap = {"bootstrap.servers": bootstrap_server} if bootstrap_server else {}
    kafka = kafka_defaults() | kafka_properties(properties) | bootstrap
    broker = unencrypted_brokers(kafka)
    if broker is not None:
        click.echo(
            f"warning: the connection to Kafka at {broker} is not encrypted: security.protocol is not SSL", err=True
        )
    return kafka


def properties_option(parameter: str) -> Option:
    """Return -X, which passes `parameter: tuple[str, ...]`, as written; `-X list` prints all properties and exits."""
    return Option(
        "-X",
        parameter,
        type=_PropertyType(),
        multiple=True,
        envvar=PROPERTIES_VARIABLE,
        metavar="NAME=VALUE",
        callback=_taken,
        is_eager=True,
        help="A librdkafka setting; may be repeated. -X list prints all.",
    )


class _PropertyType(click.types.StringParamType):
    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return split_properties(PROPERTIES_VARIABLE, rv)


def split_properties(variable: str, text: str) -> list[str]:
    """Return pairs that white space separates, quoted as in a shell if a value has spaces; raises UsageError."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"{variable} cannot be read", why=f"{error}", remedy="write NAME=VALUE pairs with spaces between them"
        ) from error


def kafka_properties(pairs: Iterable[str]) -> dict[str, str]:
    """Return settings from `name=value` pairs; raises UsageError."""
    properties = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise UsageError(
                f"-X {name[:80]!r} is not NAME=VALUE",
                why="a setting is a name, = and a value",
                remedy="write -X security.protocol=SSL; -X list prints the names",
            )
        properties[name.strip()] = value
    return properties


def _taken(context: click.Context, parameter: click.Parameter, pairs: tuple[str, ...]) -> tuple[str, ...]:
    if "list" in pairs and not context.resilient_parsing:
        click.echo(property_table(), nl=False)
        context.exit()
    if context.get_parameter_source(str(parameter.name)) is ParameterSource.ENVIRONMENT:
        for name, value in kafka_properties(pairs).items():
            refuse_code(name, value, f"{PROPERTIES_VARIABLE}: {name}")
    return pairs


def property_table() -> str:
    """Return name, client, range, default and description of every setting, in librdkafka's words.

    The library prints only to a C stream, so it prints to a file. Raises UsageError if this build cannot.
    """
    client = import_module("confluent_kafka.cimpl")  # here, so that commands which ask no cluster do not load it
    library, process = ctypes.CDLL(client.__file__), ctypes.CDLL(None)
    try:
        show = library.rd_kafka_conf_properties_show
    except AttributeError as error:
        raise UsageError(
            "this build of librdkafka does not list its settings",
            why=str(error),
            remedy="see librdkafka's CONFIGURATION.md",
        ) from error
    process.fopen.restype = ctypes.c_void_p
    show.restype, show.argtypes = None, [ctypes.c_void_p]
    process.fclose.argtypes = [ctypes.c_void_p]
    with tempfile.NamedTemporaryFile() as file:
        stream = process.fopen(file.name.encode(), b"w")
        show(stream)
        process.fclose(stream)
        return file.read().decode()
