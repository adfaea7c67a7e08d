"""What of an archived topic is carried over to a cluster, and a new topic that is like it. Pure."""

from collections.abc import Collection, Mapping

from index_format.identity import TopicConfig as ArchivedTopic
from replayer.kafka.topic_facts import NewTopic

DECISIVE: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "max.message.bytes": "1048588",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
}
"""Settings that decide which records a topic keeps, and as what; with Kafka's defaults, for an archive without any.

A new topic gets them even where the source had them from its cluster: the target's cluster may have others.
"""
OF_THE_BROKERS = frozenset(
    {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "message.downconversion.enable",
        "message.format.version",
        "message.timestamp.difference.max.ms",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "unclean.leader.election.enable",
    }
)
"""Settings that belong to the source's brokers, their storage or their version of Kafka, not to the records."""
OF_A_VENDOR = "confluent."
"""What settings begin with that no other vendor's brokers know."""
MIN_INSYNC = "min.insync.replicas"
"""Fits a replication factor: what is made like a topic keeps it, the target of a replay does not."""


def carried_over(config: Mapping[str, str] | None) -> dict[str, str]:
    """Of what was set for a topic itself, what does not belong to its brokers."""
    return {name: value for name, value in sorted((config or {}).items()) if not _is_of_the_brokers(name)}


def left_behind(config: Mapping[str, str] | None) -> dict[str, str]:
    """Of what was set for a topic itself, what belongs to its brokers."""
    return {name: value for name, value in sorted((config or {}).items()) if _is_of_the_brokers(name)}


def new_topic(
    name: str,
    partitions: int,
    archived: ArchivedTopic | None,
    chosen: Mapping[str, str],
    without: Collection[str] = (),
    replication_factor: int | None = None,
) -> NewTopic:
    """A topic like the archived one, apart from what was chosen, and `without` some settings.

    None where the archive does not tell what it was like.
    """
    defaults = (archived.defaults if archived else None) or {}
    decisive = {key: defaults.get(key, value) for key, value in DECISIVE.items()}
    own = carried_over(archived.config if archived else None)
    taken = {key: value for key, value in {**decisive, **own}.items() if key not in without}
    return NewTopic(name, partitions, dict(sorted({**taken, **chosen}.items())), replication_factor)


def partition_count(archived: ArchivedTopic | None, numbers: Collection[int]) -> int:
    """How many partitions a topic had, `numbers` of which are archived."""
    return max([archived.partitions if archived else 0, *(number + 1 for number in numbers)])


def creation_note(topic: NewTopic) -> str:
    """What a plan says of a topic that is made."""
    settings = ", ".join(f"{name}={value}" for name, value in topic.config.items())
    factor = "" if topic.replication_factor is None else f", replication factor {topic.replication_factor}"
    return f"topic {topic.name} is created with {topic.partitions} partitions{factor} and {settings}"


def _is_of_the_brokers(name: str) -> bool:
    return name in OF_THE_BROKERS or name.startswith(OF_A_VENDOR)
