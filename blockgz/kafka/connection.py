"""Connections to a Kafka cluster: how long a broker is waited for, and librdkafka's errors as ours."""

import logging
import time
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from blockgz.errors import AccessDenied, BlockgzError, BrokerUnreachable, PartitionUnavailable
from blockgz.kafka import LOGGER

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
    """Return the cluster's metadata as soon as a broker answers; `client` reports its errors to `errors`.

    Raises AccessDenied or BrokerUnreachable.
    """
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
