"""librdkafka's settings for the replayer, and its errors as ours."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from index_format.errors import BlockgzError

from .errors import AccessDenied, BrokerUnreachable, TopicUnreadable, UsageError

BROKER_DEADLINE_SECONDS = 10.0
REFUSED_DEADLINE_SECONDS = 2.0
"""How long all brokers may refuse the connection before they are taken to be down."""
ATTEMPT_SECONDS = 0.5

DENIED = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
UNREACHABLE = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}
RESERVED = {"logger", "error_cb", "on_delivery", "stats_cb", "test.mock.num.brokers"}
"""Settings that belong to this program or to tests."""

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
    """A librdkafka client; raises UsageError for settings that it refuses."""
    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise UsageError(
            "librdkafka refuses these settings", why=reason, remedy="correct -X; the names are librdkafka's own"
        ) from error


class Troubles:
    """What a client reported about its connections: an `error_cb` that remembers."""

    def __init__(self) -> None:
        self.denied: KafkaError | None = None
        self.first: KafkaError | None = None
        """The first failure to connect, the most telling of them."""
        self.fatal: KafkaError | None = None
        """After this one the client is of no use any more."""
        self.all_down = False

    def __call__(self, error: KafkaError) -> None:
        """Remembers an error; librdkafka calls this while the client is polled."""
        if error.code() in DENIED:
            self.denied = self.denied or error
        elif error.fatal():
            self.fatal = self.fatal or error
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.all_down = True
        else:
            self.first = self.first or error


def await_broker(client: Any, troubles: Troubles, address: str) -> Any:
    """The cluster's metadata as soon as a broker answers; `client` reports its errors to `troubles`.

    Raises AccessDenied or BrokerUnreachable.
    """
    what = f"cannot reach a Kafka broker at {address}"
    began = time.monotonic()
    while True:
        try:
            return client.list_topics(timeout=ATTEMPT_SECONDS)
        except KafkaException as error:
            failure: KafkaError = error.args[0]
        client.poll(0)
        waited = time.monotonic() - began
        if troubles.denied is not None:
            raise kafka_failure(troubles.denied, what)
        if failure.code() not in UNREACHABLE:
            raise kafka_failure(failure, what)
        if waited >= (REFUSED_DEADLINE_SECONDS if troubles.all_down else BROKER_DEADLINE_SECONDS):
            raise kafka_failure(troubles.first or failure, what)


def kafka_failure(error: KafkaError, what: str) -> BlockgzError:
    """One of our errors for one of librdkafka's."""
    if error.code() in DENIED:
        return AccessDenied(
            what, why=error.str(), remedy="check the SASL settings (-X) and the ACLs: Describe, Read and Write"
        )
    if error.code() in UNREACHABLE or error.retriable():
        return BrokerUnreachable(what, why=error.str(), remedy="check -b and that the broker is up")
    return TopicUnreadable(what, why=error.str())
