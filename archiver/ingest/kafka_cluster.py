"""What the archiver asks of the cluster: which topics and partitions there are, their identities and bounds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourceType,
)

from archiver.commit.operations import LogBounds
from archiver.ingest.kafka_source import Partition
from blockgz_runtime.kafka.connection import BROKER_DEADLINE_SECONDS, ConnectionErrors, cluster_metadata, kafka_failure
from blockgz_runtime.kafka.settings import make_client

IDENTITY_DEADLINE_SECONDS = 3.0
"""Brokers that do not tell their ids, such as librdkafka's mock, are not waited for."""


ISOLATION_LEVELS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}

MISSING = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
EARLIEST: Any = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
OF_THE_TOPIC = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
"""The client gives the source as a member or as its number, by version."""


class TopicDescription(NamedTuple):
    """What is known of a topic; None where the broker does not tell."""

    partitions: int
    replication_factor: int | None
    config: dict[str, str] | None
    """What was set for the topic itself."""
    defaults: dict[str, str] | None
    """What is in effect beyond that."""


class KafkaCluster:
    """Read-only questions to the cluster."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises UsageError for settings that librdkafka refuses."""
        self._connection_errors = ConnectionErrors()
        self._admin: AdminClient = make_client(AdminClient, {**settings, "error_cb": self._connection_errors})
        self._bootstrap = settings["bootstrap.servers"]
        self._was_reached = False

    def topics(self) -> dict[str, int]:
        """All topics with their numbers of partitions. Raises BrokerUnreachable or AccessDenied."""
        known = self._known_topics()
        return {name: len(topic.partitions) for name, topic in known.items() if topic.error is None}

    def cluster_id(self) -> str | None:
        """The cluster's id, or None where the broker does not tell it."""
        try:
            identity: str | None = (
                self._admin.describe_cluster(request_timeout=IDENTITY_DEADLINE_SECONDS).result().cluster_id
            )
        except KafkaException:
            return None
        return identity

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str | None]:
        """Topic -> its id, None where the broker does not tell it."""
        answers = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=IDENTITY_DEADLINE_SECONDS)
        ids: dict[str, str | None] = {}
        for topic, answer in answers.items():
            try:
                identity = answer.result().topic_id
                ids[topic] = str(identity) if identity is not None else None
            except KafkaException as error:
                if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise kafka_failure(error.args[0], f"topic {topic!r} cannot be described") from error
                ids[topic] = None
        return ids

    def bounds(self, partitions: Iterable[Partition], isolation_level: str) -> dict[Partition, LogBounds]:
        """The logs' bounds, all in a few requests; a partition that nobody answers for is left out.

        The end is the last stable offset under `read_committed`, the high watermark under `read_uncommitted`. Raises
        BrokerUnreachable or AccessDenied where there is no answer at all.
        """
        if not self._was_reached:
            self._known_topics()
        wanted = [TopicPartition(*partition) for partition in partitions]
        low = self._offsets(wanted, EARLIEST, isolation_level)
        high = self._offsets(wanted, LATEST, isolation_level)
        return {partition: LogBounds(low[partition], high[partition]) for partition in low.keys() & high.keys()}

    def describe(self, topics: Sequence[str]) -> dict[str, TopicDescription]:
        """What is known of these topics; those that the cluster does not have are left out.

        Raises BrokerUnreachable or AccessDenied.
        """
        known = self._known_topics()
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics if topic in known]
        if not resources:
            return {}
        answers = self._admin.describe_configs(resources, request_timeout=IDENTITY_DEADLINE_SECONDS)
        described = {}
        for resource, answer in answers.items():
            partitions = known[resource.name].partitions
            replicas = {len(partition.replicas) for partition in partitions.values()}
            described[resource.name] = TopicDescription(len(partitions), max(replicas, default=None), *_config(answer))
        return described

    def _known_topics(self) -> dict[str, Any]:
        metadata = cluster_metadata(self._admin, self._connection_errors, self._bootstrap)
        self._was_reached = True
        return dict(metadata.topics)

    def _offsets(self, wanted: Sequence[TopicPartition], spec: Any, isolation_level: str) -> dict[Partition, int]:
        if not wanted:
            return {}
        answers = self._admin.list_offsets(
            dict.fromkeys(wanted, spec),
            isolation_level=ISOLATION_LEVELS[isolation_level],
            request_timeout=BROKER_DEADLINE_SECONDS,
        )
        offsets: dict[Partition, int] = {}
        failures: list[KafkaError] = []
        for asked, answer in answers.items():
            try:
                offsets[asked.topic, asked.partition] = answer.result().offset
            except KafkaException as error:
                failures.append(error.args[0])
        if not offsets and failures[0].code() not in MISSING:
            raise kafka_failure(failures[0], f"the bounds of the logs at {self._bootstrap} cannot be read")
        return offsets


def _config(answer: Any) -> tuple[dict[str, str] | None, dict[str, str] | None]:
    try:
        entries = answer.result().values()
    except KafkaException:
        return None, None
    told = [entry for entry in entries if entry.value is not None and not entry.is_sensitive]
    own = {entry.name: entry.value for entry in told if entry.source in OF_THE_TOPIC}
    defaults = {entry.name: entry.value for entry in told if entry.name not in own}
    return dict(sorted(own.items())), dict(sorted(defaults.items()))
