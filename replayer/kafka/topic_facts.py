"""Facts of a topic that replays and comparisons depend on, and what may be changed of it."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec


@dataclass(frozen=True)
class EffectiveConfig:
    """A topic's configuration; times in ms, None for no limit."""

    cleanup_policy: frozenset[str]
    retention_ms: int | None
    retention_bytes: int | None
    timestamp_type: str
    timestamp_before_max_ms: int | None
    timestamp_after_max_ms: int | None
    max_message_bytes: int | None

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy


@dataclass(frozen=True)
class TopicFacts:
    """A topic that exists; None for what the broker does not tell."""

    name: str
    num_partitions: int
    topic_id: str | None
    config: EffectiveConfig | None


@dataclass(frozen=True)
class NewTopic:
    """A topic to be made; without a replication factor it gets the cluster's default."""

    name: str
    partitions: int
    config: Mapping[str, str]
    replication_factor: int | None = None

    @property
    def facts(self) -> TopicFacts:
        """Return the facts of the topic once it exists."""
        return TopicFacts(self.name, self.partitions, None, parse_config(self.config))


class ConfigChange(msgspec.Struct, frozen=True):
    """Settings of a topic to set, and those to remove from it so that the cluster's own hold again."""

    values: dict[str, str]
    removed: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """Settings that somebody else has changed in the meantime: they stay as they are."""

    def __bool__(self) -> bool:
        return bool(self.values or self.removed)


# Kafka's own word for no limit in settings that have no -1.
UNLIMITED = 2**63 - 1


def parse_config(values: Mapping[str, str]) -> EffectiveConfig:
    """Return a topic's configuration from Kafka's names and values; missing settings have Kafka's default."""
    difference = values.get("message.timestamp.difference.max.ms")
    return EffectiveConfig(
        cleanup_policy=frozenset(part.strip() for part in values.get("cleanup.policy", "delete").split(",")),
        retention_ms=_limit(values.get("retention.ms")),
        retention_bytes=_limit(values.get("retention.bytes")),
        timestamp_type=values.get("message.timestamp.type", "CreateTime"),
        timestamp_before_max_ms=_limit(values.get("message.timestamp.before.max.ms", difference)),
        timestamp_after_max_ms=_limit(values.get("message.timestamp.after.max.ms", difference)),
        max_message_bytes=_limit(values.get("max.message.bytes")),
    )


def _limit(text: str | None) -> int | None:
    if text is None or not text.lstrip("-").isdigit():
        return None
    number = int(text)
    return number if 0 <= number < UNLIMITED else None
