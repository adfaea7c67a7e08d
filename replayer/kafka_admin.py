"""What the replayer asks of the cluster: which topics there are, their configurations and watermarks."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from .kafka_settings import BROKER_DEADLINE_SECONDS, Troubles, await_broker, client_settings, kafka_failure, make_client
from .topic_facts import TopicConfig, TopicFacts, Watermarks, parse_config

FACTS_DEADLINE_SECONDS = 3.0
"""Brokers that do not tell their configuration are not waited for."""

_ISOLATION = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}


class KafkaAdmin:
    """Read-only questions to the cluster; connects at once, so that a wrong address is found out before any work."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises UsageError, BrokerUnreachable or AccessDenied."""
        troubles = Troubles()
        settings = {**client_settings(properties), "error_cb": troubles}
        self._admin: AdminClient = make_client(AdminClient, settings)
        self._metadata: Any = await_broker(self._admin, troubles, properties["bootstrap.servers"])

    @property
    def cluster_id(self) -> str | None:
        """The cluster's id, None where it does not tell."""
        return self._metadata.cluster_id or None

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the cluster's topics, without internal ones."""
        return tuple(sorted(name for name in self._metadata.topics if not name.startswith("__")))

    def topic(self, name: str) -> TopicFacts | None:
        """What the cluster tells of a topic, None where there is none of that name; raises AccessDenied."""
        metadata = self._metadata.topics.get(name)
        if metadata is None:
            return None
        if metadata.error is not None:
            raise kafka_failure(metadata.error, f"topic {name!r} cannot be described")
        # librdkafka asks the controller; where no broker is it, as in its mock cluster, these questions only time out.
        tells = self._metadata.controller_id in self._metadata.brokers
        return TopicFacts(
            name,
            len(metadata.partitions),
            self._topic_id(name) if tells else None,
            self._config(name) if tells else None,
        )

    def watermarks(
        self, topic: str, partitions: Iterable[int], isolation_level: str = "read_committed"
    ) -> dict[int, Watermarks]:
        """The readable offsets of each partition; raises BrokerUnreachable or AccessDenied."""
        wanted = [TopicPartition(topic, partition) for partition in partitions]
        bounds = []
        for spec in (OffsetSpec.earliest(), OffsetSpec.latest()):  # type: ignore[no-untyped-call]
            answers = self._admin.list_offsets(
                dict.fromkeys(wanted, spec),
                isolation_level=_ISOLATION[isolation_level],
                request_timeout=BROKER_DEADLINE_SECONDS,
            )
            try:
                bounds.append({place.partition: answer.result().offset for place, answer in answers.items()})
            except KafkaException as error:
                raise kafka_failure(error.args[0], f"the bounds of topic {topic!r} cannot be read") from error
        low, end = bounds
        return {partition: Watermarks(low[partition], end[partition]) for partition in sorted(low)}

    def groups(self) -> frozenset[str]:
        """The consumer groups that anything is recorded of; raises BrokerUnreachable or AccessDenied."""
        try:
            answer = self._admin.list_consumer_groups(request_timeout=BROKER_DEADLINE_SECONDS).result()
        except KafkaException as error:
            raise kafka_failure(error.args[0], "the groups of the cluster cannot be listed") from error
        return frozenset(group.group_id for group in answer.valid)

    def _config(self, topic: str) -> TopicConfig | None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (answer,) = self._admin.describe_configs([resource], request_timeout=FACTS_DEADLINE_SECONDS).values()
        try:
            entries = answer.result()
        except KafkaException:
            return None
        return parse_config({name: entry.value for name, entry in entries.items() if entry.value is not None})

    def _topic_id(self, topic: str) -> str | None:
        collection = TopicCollection([topic])
        (answer,) = self._admin.describe_topics(collection, request_timeout=FACTS_DEADLINE_SECONDS).values()
        try:
            identity = answer.result().topic_id
        except KafkaException:
            return None
        return str(identity) if identity is not None else None
