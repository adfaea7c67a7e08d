"""Clients of librdkafka: the settings that every one is made with, and secrets looked up only as it is made."""

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from pydantic import SecretStr

from blockgz.errors import UsageError
from blockgz.kafka import LOGGER
from blockgz.kafka.secrets import Secrets, is_secret, look_up_secrets

# Settings that belong to the program or to tests.
RESERVED = {"logger", "error_cb", "on_delivery", "stats_cb", "test.mock.num.brokers"}
WITHOUT_KERBEROS = "No provider for SASL mechanism GSSAPI"


class LacksKerberos(UsageError):
    """The settings are right, or name no mechanism; this build of librdkafka has no GSSAPI."""

    def __init__(self) -> None:
        super().__init__(
            "this build of librdkafka lacks Kerberos (SASL mechanism GSSAPI)",
            why="the wheel of confluent-kafka is built without libsasl2; GSSAPI is the default of sasl.mechanism",
            remedy="for Kerberos, install libsasl2 and librdkafka with their headers, then run pip install "
            "--force-reinstall --no-binary confluent-kafka confluent-kafka; for others, set sasl.mechanism, such as "
            "SCRAM-SHA-512",
        )


def client_settings(properties: Mapping[str, str | SecretStr], client_id: str) -> dict[str, Any]:
    """Return the settings of every client: the user's properties, and librdkafka's log kept off stderr.

    Secrets and references are covered until `make_client`. Raises UsageError if no cluster is named or a property
    is not the user's to set.
    """
    if not properties.get("bootstrap.servers"):
        raise UsageError("no Kafka cluster is given", why="-b/--bootstrap-server is missing", remedy="add -b HOST:PORT")
    for name in sorted(RESERVED & properties.keys()):
        raise UsageError(f"-X {name} cannot be set", why="the program sets it itself", remedy="remove it")
    covered = {
        name: SecretStr(value) if isinstance(value, str) and is_secret(name, value) else value
        for name, value in properties.items()
    }
    return {"client.id": client_id, **covered, "logger": logging.getLogger(LOGGER)}


def make_client(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    """Return a client of librdkafka. Its secrets are looked up now.

    Raises UsageError for settings that it refuses, UnresolvedReference for a reference that leads nowhere.
    """
    secrets = look_up_secrets(settings, os.environ)
    clear = {**settings, **secrets.values}
    if secrets.hidden and "error_cb" in settings:
        clear["error_cb"] = partial(_report_masked, secrets, settings["error_cb"])
    if secrets.hidden and "logger" in settings:
        clear["logger"] = _MaskedLogger(secrets, settings["logger"])
    try:
        return kind(clear)
    except (KafkaException, TypeError, ValueError) as error:
        why = secrets.mask(error.args[0].str() if isinstance(error, KafkaException) else str(error))
        remedy = "correct -X or kafka in the configuration; names are listed in librdkafka's CONFIGURATION.md"
        refusal = UsageError("librdkafka refuses these settings", why=why, remedy=remedy)
        raise (LacksKerberos() if WITHOUT_KERBEROS in why else refusal) from (None if secrets.hidden else error)


class _MaskedLogger:
    """Logs lines without the secrets that librdkafka or the broker repeat in them."""

    def __init__(self, secrets: Secrets, logger: logging.Logger) -> None:
        self._secrets = secrets
        self._logger = logger

    def log(self, level: int, message: str, *args: str) -> None:
        self._logger.log(level, message, *map(self._secrets.mask, args))


def _report_masked(secrets: Secrets, report: Callable[[KafkaError], None], error: KafkaError) -> None:
    """Report an error without the secrets that librdkafka or the broker repeat in it."""
    text = secrets.mask(error.str())
    report(error if text == error.str() else KafkaError(error.code(), text, error.fatal(), error.retriable()))
