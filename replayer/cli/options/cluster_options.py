"""How to reach a Kafka cluster."""

import functools
from dataclasses import dataclass
from typing import Any, cast

import click

from blockgz_runtime.errors import UsageError
from blockgz_runtime.kafka.property_table import property_table
from blockgz_runtime.program.options import F, with_options


@dataclass(frozen=True)
class KafkaOptions:
    """How to reach a cluster: `properties` are librdkafka's, bootstrap.servers among them where it was given."""

    properties: dict[str, str]


def kafka_options(function: F) -> F:
    """Adds -b/--bootstrap-server -X; passes `kafka: KafkaOptions`."""

    @functools.wraps(function)
    def with_kafka(*args: Any, bootstrap_server: str | None, properties: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(_property(text) for text in properties)
        if bootstrap_server:
            settings["bootstrap.servers"] = bootstrap_server
        return function(*args, kafka=KafkaOptions(settings), **kwargs)

    options = [
        click.option("-b", "--bootstrap-server", metavar="HOST:PORT", help="The Kafka cluster."),
        click.option(
            "-X",
            "properties",
            multiple=True,
            envvar="BLOCKGZ_KAFKA_PROPERTIES",
            metavar="NAME=VALUE",
            callback=_list_on_request,
            is_eager=True,
            help="A property of librdkafka; may be repeated. -X list prints all.",
        ),
    ]
    return cast(F, with_options(with_kafka, options))


def _list_on_request(context: click.Context, _: click.Parameter, properties: tuple[str, ...]) -> tuple[str, ...]:
    """`-X list` prints librdkafka's properties, and does no more."""
    if "list" in properties and not context.resilient_parsing:
        click.echo(property_table(), nl=False)
        context.exit()
    return properties


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise UsageError(
            f"-X {text[:80]!r} is not a property",
            why="it has no '='",
            remedy="write -X NAME=VALUE with librdkafka's name",
        )
    return name, value
