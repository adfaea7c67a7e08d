"""Clients of librdkafka: their settings, secrets that are looked up only as one is made, and its errors as ours."""

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from pydantic import SecretStr

from blockgz.errors import AccessDenied, BlockgzError, BrokerUnreachable, PartitionUnavailable, UsageError
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


# How long a broker is waited for.
BROKER_DEADLINE_SECONDS = 10.0
# How long all brokers may refuse the connection before they are taken to be down.
REFUSED_DEADLINE_SECONDS = 2.0
ATTEMPT_SECONDS = 0.5
DENIED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# A group has none for a moment while a broker starts or goes.
NO_COORDINATOR_YET = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
UNREACHABLE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    *NO_COORDINATOR_YET,
}


_log = logging.getLogger(LOGGER)
_log.addHandler(logging.NullHandler())
_log.propagate = False


def report(error: KafkaError) -> None:
    """Log an error that a client reported by itself, as librdkafka logs its own lines: kind, client, text."""
    _log.error("%s [%s] %s", error.name(), "", error.str())


def kafka_failure(error: KafkaError, what: str) -> BlockgzError:
    """Return our error for one of librdkafka's."""
    if error.code() in DENIED:
        return AccessDenied(what, why=error.str(), remedy="check the SASL settings (-X) and the ACLs")
    if error.code() in UNREACHABLE or error.retriable():
        return BrokerUnreachable(what, why=error.str(), remedy="check -b and that the broker is up")
    return PartitionUnavailable(what, why=error.str())


class ConnectionErrors:
    """An `error_cb` that remembers the connection errors of a client."""

    denied: KafkaError | None
    first: KafkaError | None
    """The first failure to connect, the most telling of them."""
    fatal: KafkaError | None
    """After this one the client is of no use any longer."""
    all_down: bool

    def __init__(self) -> None:
        self.forget()

    def __call__(self, error: KafkaError) -> None:
        """Remember and log an error. Librdkafka calls this while the client is polled."""
        report(error)
        if error.code() in DENIED:
            self.denied = self.denied or error
        elif error.fatal():
            self.fatal = self.fatal or error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.first = self.first or error

    def forget(self) -> None:
        """Forget all errors: a broker answers again."""
        self.denied = self.first = self.fatal = None
        self.all_down = False


def cluster_metadata(client: Any, errors: ConnectionErrors, address: str) -> Any:
    """Return the cluster's metadata as soon as a broker answers; `client` reports its errors to `errors`."""
    what = f"cannot reach a Kafka broker at {address}"
    began = time.monotonic()
    while True:
        try:
            metadata = client.list_topics(timeout=ATTEMPT_SECONDS)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            client.poll(0)
        else:
            client.poll(0)
            errors.forget()
            return metadata
        waited = time.monotonic() - began
        if errors.denied is not None:
            raise kafka_failure(errors.denied, what)
        if failure.code() not in UNREACHABLE:
            raise kafka_failure(failure, what)
        if waited >= (REFUSED_DEADLINE_SECONDS if errors.all_down else BROKER_DEADLINE_SECONDS):
            raise kafka_failure(errors.first or failure, what)
