"""librdkafka's settings for the archiver, and its errors as ours."""

import logging
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from index_format.errors import BlockgzError

from .config import RunConfig
from .errors import BrokerUnreachable, NotPermitted, StoreError, UsageError

BROKER_DEADLINE_SECONDS = 10.0
DENIED = {
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
UNREACHABLE = {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._RESOLVE}

_silent = logging.getLogger("blockgz.librdkafka")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


def client_settings(bootstrap_servers: str, extra: dict[str, str]) -> dict[str, Any]:
    """What every client of this process is made with; librdkafka's own log goes to the logger blockgz.librdkafka."""
    return {"bootstrap.servers": bootstrap_servers, "client.id": "blockgz-archiver", **extra, "logger": _silent}


def consumer_settings(config: RunConfig, *, queue_bytes: int) -> dict[str, Any]:
    """The archiver's consumer: nothing is committed or reset behind its back; `queue_bytes` bounds prefetching."""
    return {
        "fetch.queue.backoff.ms": 10,
        "queued.min.messages": 1_000_000,
        "queued.max.messages.kbytes": max(1024, queue_bytes // 1024),
        "fetch.message.max.bytes": 8 * 1024**2,
        "check.crcs": True,
        "topic.metadata.refresh.interval.ms": 30_000,
        **_group_settings(config),
        **client_settings(config.bootstrap_servers, config.kafka),
        "group.id": config.group_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": config.isolation_level,
    }


def _group_settings(config: RunConfig) -> dict[str, Any]:
    static = {"group.instance.id": config.group_instance_id} if config.group_instance_id else {}
    if config.group_protocol == "consumer":
        return {"group.protocol": "consumer", **static}
    return {"partition.assignment.strategy": "cooperative-sticky", **static}


def make_client(kind: Callable[[dict[str, Any]], Any], settings: dict[str, Any]) -> Any:
    """A librdkafka client; raises UsageError for settings that it refuses."""
    try:
        return kind(settings)
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        raise UsageError(
            "librdkafka refuses these settings", why=reason, remedy="correct -X; the names are librdkafka's own"
        ) from error


def kafka_failure(error: KafkaError, what: str) -> BlockgzError:
    """One of our errors for one of librdkafka's."""
    if error.code() in DENIED:
        return NotPermitted(
            what, why=error.str(), remedy="check the SASL settings and the ACLs: Describe and Read on the topic"
        )
    if error.code() in UNREACHABLE or error.retriable():
        return BrokerUnreachable(what, why=error.str(), remedy="check -b and that the broker is up")
    return StoreError(what, why=error.str())
