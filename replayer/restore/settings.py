"""Settings of a restored topic: while its records arrive, and once they are proved. Pure."""

from collections.abc import Iterator, Mapping

from blockgz.units import time_text
from replayer.kafka.topic_facts import ConfigChange, parse_config
from replayer.replay.target_topic import LIMIT
from replayer.restore.document import TopicToRestore
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
    """Return the settings with which the topic is created."""
    early = {name: value for name, value in settings.items() if name not in LAST}
    return dict(sorted({**early, **KEEPING_ALL}.items()))


def last_settings(
    topic: TopicToRestore, own: Mapping[str, str], replicas: int, now_ms: int
) -> tuple[ConfigChange, tuple[str, ...]]:
    """Return the settings that make a restored topic as it was, and the settings left out with the reason; `own` are
    its settings now.

    Retention that would delete restored records at once stays lifted. A setting that differs from the one at creation
    was set by somebody since: it is kept.
    """
    settings = topic.settings
    held = dict(_held(topic, replicas, now_ms))
    values = {
        name: value
        for name, value in sorted(settings.items())
        if name in LAST and name not in held and own.get(name) == KEEPING_ALL.get(name) and own.get(name) != value
    }
    # The replay raised it, and set it back unless another machine finished it.
    limit = parse_config(settings).max_message_bytes
    if limit is not None and (parse_config(own).max_message_bytes or 0) > limit:
        values[LIMIT] = settings[LIMIT]
    return ConfigChange(values), tuple(held.values())


def _held(topic: TopicToRestore, replicas: int, now_ms: int) -> Iterator[tuple[str, str]]:
    config = parse_config(topic.settings)
    oldest, limit = topic.oldest, config.retention_ms
    if config.deletes and limit is not None and oldest is not None and 0 <= oldest < now_ms - limit:
        yield (
            "retention.ms",
            f"retention.ms={limit} is not set: it would delete records now, of which the oldest are of "
            f"{time_text(oldest)}; set it when consumers have read on",
        )
    if config.deletes and config.retention_bytes is not None and topic.largest > config.retention_bytes:
        yield (
            "retention.bytes",
            f"retention.bytes={config.retention_bytes} is not set: it would delete records now; set it when consumers "
            "have read on",
        )
    least = topic.settings.get(MIN_INSYNC)
    if least is not None and least.isdigit() and int(least) > replicas:
        yield MIN_INSYNC, f"{MIN_INSYNC}={least} is not set: the topic has {replicas} replicas"
