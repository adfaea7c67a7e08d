"""What the archiver asks of the cluster: which topics and partitions there are, and their identities."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from .kafka_settings import BROKER_DEADLINE_SECONDS, kafka_failure, make_client

IDENTITY_DEADLINE_SECONDS = 3.0
"""Brokers that do not tell their ids, such as librdkafka's mock, are not waited for."""


class KafkaCluster:
    """Read-only questions to the cluster."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises UsageError for settings that librdkafka refuses."""
        self._admin: AdminClient = make_client(AdminClient, dict(settings))
        self._bootstrap = settings["bootstrap.servers"]

    def topics(self) -> dict[str, int]:
        """All topics with their numbers of partitions. Raises BrokerUnreachable or NotPermitted."""
        try:
            known = self._admin.list_topics(timeout=BROKER_DEADLINE_SECONDS).topics
        except KafkaException as error:
            raise kafka_failure(error.args[0], f"cannot reach a broker at {self._bootstrap}") from error
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
