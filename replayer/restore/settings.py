"""Which settings a restored topic has while its records arrive, and which it gets when they are proved. Pure."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from blockgz.units import time_text
from replayer.kafka.topic_facts import ConfigChange, parse_config
from replayer.replay.target_topic import LIMIT
from replayer.topics import MIN_INSYNC

KEEPING_ALL: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}
"""Under these a topic keeps every record as it is sent."""
LAST = frozenset(
    {
        *KEEPING_ALL,
        MIN_INSYNC,
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "delete.retention.ms",
    }
)
"""Settings that come last: they would delete, change or refuse records on their way, or tombstones too soon."""


def first_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """What the topic is created with."""
    early = {name: value for name, value in settings.items() if name not in LAST}
    return dict(sorted({**early, **KEEPING_ALL}.items()))


class Restored(NamedTuple):
    """What is known of a restored topic: its records, and the replicas of its partitions."""

    oldest_ms: int | None
    largest_bytes: int
    """Of one partition, encoded."""
    replicas: int


class LastSettings(NamedTuple):
    """The change, and what is not changed and why."""

    change: ConfigChange
    notes: tuple[str, ...]


def last_settings(settings: Mapping[str, str], own: Mapping[str, str], restored: Restored, now_ms: int) -> LastSettings:
    """What makes a topic as it was; `own` is set for it now.

    Retention that would delete restored records at once stays lifted. What is not as the topic was created with,
    somebody has set since: it stays.
    """
    held = dict(_held(settings, restored, now_ms))
    values = {
        name: value
        for name, value in sorted(settings.items())
        if name in LAST and name not in held and own.get(name) == KEEPING_ALL.get(name) and own.get(name) != value
    }
    # The replay raised it, and set it back unless another machine finished it.
    limit = parse_config(settings).max_message_bytes
    if limit is not None and (parse_config(own).max_message_bytes or 0) > limit:
        values[LIMIT] = settings[LIMIT]
    return LastSettings(ConfigChange(values), tuple(held.values()))


def _held(settings: Mapping[str, str], restored: Restored, now_ms: int) -> Iterator[tuple[str, str]]:
    config = parse_config(settings)
    oldest, limit = restored.oldest_ms, config.retention_ms
    if config.deletes and limit is not None and oldest is not None and 0 <= oldest < now_ms - limit:
        yield (
            "retention.ms",
            f"retention.ms={limit} is not set: it would delete records now, of which the oldest are of "
            f"{time_text(oldest)}; set it when consumers have read on",
        )
    if config.deletes and config.retention_bytes is not None and restored.largest_bytes > config.retention_bytes:
        yield (
            "retention.bytes",
            f"retention.bytes={config.retention_bytes} is not set: it would delete records now; set it when consumers "
            "have read on",
        )
    least = settings.get(MIN_INSYNC)
    if least is not None and least.isdigit() and int(least) > restored.replicas:
        yield MIN_INSYNC, f"{MIN_INSYNC}={least} is not set: the topic has {restored.replicas} replicas"
