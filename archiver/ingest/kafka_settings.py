"""librdkafka's settings for the archiver."""

import os
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer
from pydantic import SecretStr

from blockgz.config.model import RunConfig
from blockgz.errors import UnresolvedReference, UsageError
from blockgz.kafka.connection import LacksKerberos, client_settings, make_client
from blockgz.kafka.secrets import without_code
from blockgz.references import resolve_references

# Bytes that librdkafka takes for a queued record in addition to key and value, which it counts; measured with 2.16.
QUEUED_RECORD_FOOTPRINT = 320
LEAST_FETCH_BYTES = 1024**2
# A fetch that waits for records at the ends of some logs holds up partitions that begin then: by librdkafka's default
# for half a second, which is for those who follow.
FETCH_WAIT_MS_OF_ONCE = 20
CLIENT_ID = "blockgz-archiver"
# librdkafka's default.
SESSION_MS = 45_000
DEAD_LETTER_TIMEOUT_MS = 10_000
DEAD_LETTER_QUEUE_KBYTES = 32 * 1024

# A kind of client, made of its settings.
Client = Callable[[dict[str, Any]], Any]


def queue_settings(share_bytes: int) -> dict[str, int]:
    """Return bounds of librdkafka's queue for a share of memory; it stops to fetch at either of the first two."""
    # An answer that began below the bounds is added whole and inflated, one for each broker: so it is small.
    fetch_bytes = max(LEAST_FETCH_BYTES, share_bytes // 32)
    # Keys and values have half the share; the other half is for what is around them.
    content_bytes = max(LEAST_FETCH_BYTES, share_bytes // 2)
    return {
        "queued.min.messages": max(1000, share_bytes // 2 // QUEUED_RECORD_FOOTPRINT),
        "queued.max.messages.kbytes": content_bytes // 1024,
        "fetch.max.bytes": fetch_bytes,
        "fetch.message.max.bytes": fetch_bytes,
    }


def cluster_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of every client of a run."""
    return client_settings({"bootstrap.servers": config.bootstrap_servers, **config.kafka}, CLIENT_ID)


def consumer_settings(config: RunConfig, *, queue_bytes: int) -> dict[str, Any]:
    """Return the settings of the consumer, which commits and resets nothing; `queue_bytes` bounds prefetching."""
    return {
        "fetch.queue.backoff.ms": 10,
        **queue_settings(queue_bytes),
        "check.crcs": True,
        **({"fetch.wait.max.ms": FETCH_WAIT_MS_OF_ONCE} if config.once else {}),
        "topic.metadata.refresh.interval.ms": 30_000,
        **_group_settings(config),
        **cluster_settings(config),
        "group.id": config.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "isolation.level": config.isolation_level,
    }


def dead_letter_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings of the producer of dead letters: a record is acknowledged by all replicas in sync."""
    return {
        "message.timeout.ms": DEAD_LETTER_TIMEOUT_MS,
        "queue.buffering.max.kbytes": DEAD_LETTER_QUEUE_KBYTES,
        # The broker decides what is too large for it; this only keeps librdkafka from deciding before.
        "message.max.bytes": 1_000_000_000,
        "partitioner": "murmur2_random",
        **cluster_settings(config),
        "acks": "all",
        "enable.idempotence": True,
    }


def _group_settings(config: RunConfig) -> dict[str, Any]:
    static = {"group.instance.id": config.group_instance_id} if config.group_instance_id else {}
    if config.group_protocol == "consumer":
        return {"group.protocol": "consumer", **static}
    return {"partition.assignment.strategy": "cooperative-sticky", **static}


def rebalance_seconds(config: RunConfig) -> float:
    """Return the seconds that a rebalance of the classic protocol takes if a member dies: two sessions."""
    told = config.kafka.get("session.timeout.ms")
    session_ms = int(told) if isinstance(told, str) and told.isdecimal() else SESSION_MS  # or it is a reference
    return 2 * session_ms / 1000


def check_settings(config: RunConfig, named: Callable[[str], str]) -> None:
    """Raise UsageError if librdkafka refuses the user's settings. Ask no broker.

    `named` says how the user knows one of them. A secret that cannot be looked up here is taken to be right.
    """
    _check(Consumer, consumer_settings(config, queue_bytes=config.memory), config, named)
    if config.dead_letter_topic is not None:
        _check(Producer, dead_letter_settings(config), config, named)


def _check(kind: Client, settings: dict[str, Any], config: RunConfig, named: Callable[[str], str]) -> None:
    del settings["bootstrap.servers"]
    lost = [name for name, value in settings.items() if isinstance(value, SecretStr) and not _is_there(value)]
    settings |= dict.fromkeys(lost, "unknown")
    if lost:
        settings = {name: value for name, value in settings.items() if not name.startswith("ssl.key")}
    refusal = _refusal(kind, settings)
    if refusal is None:
        return
    if isinstance(refusal, LacksKerberos):
        raise refusal
    for name in config.kafka:
        others = {other: value for other, value in settings.items() if other != name}
        if name in settings and _refusal(kind, others) is None:
            raise UsageError(
                f"{named(name)}: librdkafka refuses it, or a related setting", why=refusal.why, remedy=refusal.remedy
            ) from refusal
    raise refusal


def _is_there(value: SecretStr) -> bool:
    try:
        resolve_references(value.get_secret_value(), os.environ)
    except UnresolvedReference:
        return False
    return True


def _refusal(kind: Client, settings: dict[str, Any]) -> UsageError | None:
    try:
        make_client(kind, without_code(settings)).close()
    except UsageError as refusal:
        return refusal
    return None
