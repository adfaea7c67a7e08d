"""Clients of librdkafka: the settings that every one is made with, and secrets looked up only as it is made."""

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaException
from pydantic import SecretStr

from blockgz_runtime.errors import UsageError
from blockgz_runtime.kafka.secrets import MASK, resolve_references

RESERVED = {"logger", "error_cb", "on_delivery", "stats_cb", "test.mock.num.brokers"}
"""Settings that belong to the program or to tests."""

_silent = logging.getLogger("blockgz.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def client_settings(properties: Mapping[str, str]) -> dict[str, Any]:
    """What every client is made with: the user's properties, and librdkafka's log kept off stderr.

    Raises UsageError where no cluster is named or a property is not the user's to set.
    """
    if not properties.get("bootstrap.servers"):
        raise UsageError("no Kafka cluster is named", why="-b/--bootstrap-server is missing", remedy="add -b HOST:PORT")
    for name in sorted(RESERVED & properties.keys()):
        raise UsageError(f"-X {name} cannot be set", why="the replayer sets it itself", remedy="leave it out")
    return {"client.id": "blockgz-replayer", **properties, "logger": _silent}


def make_client(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    """A librdkafka client, its secrets looked up now; raises UsageError for settings that it refuses."""
    secrets = {
        name: resolve_references(value.get_secret_value(), os.environ)
        for name, value in settings.items()
        if isinstance(value, SecretStr)
    }
    try:
        return kind(settings | secrets)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        for secret in filter(None, secrets.values()):
            reason = reason.replace(secret, MASK)
        raise UsageError(
            "librdkafka refuses these settings",
            why=reason,
            remedy="correct -X or kafka in the configuration; the names are librdkafka's own",
        ) from (None if secrets else error)
