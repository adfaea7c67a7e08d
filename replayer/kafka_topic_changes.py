"""What a replay changes about the cluster itself: it makes the target topic and sets its configuration."""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as ClientNewTopic  # type: ignore[attr-defined]

from .errors import AccessDenied, BrokerUnreachable, ReplayRefused
from .kafka_settings import BROKER_DEADLINE_SECONDS, client_settings, kafka_failure, make_client
from .target_topic import ConfigChange, NewTopic

CHANGE_SECONDS = 30.0
ASK_AGAIN_SECONDS = 0.1
CLUSTER_DEFAULT = -1
OF_THE_TOPIC = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)
"""The client gives the source as a member or as its number, by version."""


class TopicChanges:
    """A client for changes; every call waits until the cluster has done it."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises UsageError."""
        self._admin: AdminClient = make_client(AdminClient, client_settings(properties))

    def create(self, topic: NewTopic) -> None:
        """Makes the topic and waits until every partition has a leader.

        Raises ReplayRefused for what the cluster does not accept, AccessDenied or BrokerUnreachable.
        """
        wanted = ClientNewTopic(
            topic.name, num_partitions=topic.partitions, replication_factor=CLUSTER_DEFAULT, config=dict(topic.config)
        )
        (answer,) = self._admin.create_topics(
            [wanted], operation_timeout=CHANGE_SECONDS, request_timeout=CHANGE_SECONDS
        ).values()
        self._result(answer, f"topic {topic.name!r} cannot be made", "choose its settings with --topic-config")
        deadline = time.monotonic() + CHANGE_SECONDS
        while not self._led(topic):
            if time.monotonic() > deadline:
                raise kafka_failure(KafkaError(KafkaError._TIMED_OUT), f"topic {topic.name!r} gets no leaders")
            time.sleep(ASK_AGAIN_SECONDS)

    def own_config(self, topic: str) -> dict[str, str]:
        """What is set for the topic itself; raises ReplayRefused, AccessDenied or BrokerUnreachable."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (answer,) = self._admin.describe_configs([resource], request_timeout=BROKER_DEADLINE_SECONDS).values()
        entries = self._result(answer, f"the configuration of topic {topic!r} cannot be read", "check the topic's name")
        return {e.name: e.value for e in entries.values() if e.source in OF_THE_TOPIC and e.value is not None}

    def alter(self, topic: str, change: ConfigChange) -> None:
        """Sets and removes settings of a topic; raises ReplayRefused, AccessDenied or BrokerUnreachable."""
        entries = [
            *(_entry(name, value, AlterConfigOpType.SET) for name, value in change.values.items()),
            *(_entry(name, None, AlterConfigOpType.DELETE) for name in change.removed),
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        (answer,) = self._admin.incremental_alter_configs([resource], request_timeout=CHANGE_SECONDS).values()
        self._result(answer, f"the configuration of topic {topic!r} cannot be changed", "check the ACLs: AlterConfigs")

    def _led(self, topic: NewTopic) -> bool:
        found = self._admin.list_topics(topic.name, timeout=BROKER_DEADLINE_SECONDS).topics[topic.name]
        return len(found.partitions) == topic.partitions and all(each.leader >= 0 for each in found.partitions.values())

    def _result(self, answer: Any, what: str, remedy: str) -> Any:
        try:
            return answer.result()
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            known = kafka_failure(failure, what)
            if isinstance(known, AccessDenied | BrokerUnreachable):
                raise known from error
            raise ReplayRefused(what, why=failure.str(), remedy=remedy) from error


def _entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)
