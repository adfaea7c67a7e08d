"""What the doctor asks of the cluster: what this user may do there, and how the brokers are set up."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition, libversion
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from archiver.ingest.kafka_source import Partition
from blockgz_runtime.kafka.connection import DENIED
from blockgz_runtime.kafka.settings import make_client

DEADLINE_SECONDS = 5.0
MAX_TIMESTAMP: Any = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]


class KafkaAccess:
    """Read-only questions; None stands for what the brokers do not tell in time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """Raises UsageError for settings that librdkafka refuses."""
        self._admin: AdminClient = make_client(AdminClient, dict(settings))

    def num_brokers(self) -> int | None:
        """How many brokers there are."""
        try:
            return len(self._admin.list_topics(timeout=DEADLINE_SECONDS).brokers)
        except KafkaException:
            return None

    def topic_operations(self, topics: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """What may be done to each topic, in Kafka's words such as READ."""
        answers = self._admin.describe_topics(
            TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=DEADLINE_SECONDS
        )
        return {topic: _operations(answer) for topic, answer in answers.items()}

    def group_operations(self, group_id: str) -> frozenset[str] | None:
        """What may be done to a consumer group; None also where nobody joined it yet."""
        answers = self._admin.describe_consumer_groups(
            [group_id], include_authorized_operations=True, request_timeout=DEADLINE_SECONDS
        )
        return _operations(answers[group_id])

    def rebalance_protocols(self) -> frozenset[str] | None:
        """The group protocols that a broker offers, such as `classic` and `consumer`."""
        try:
            broker = next(iter(self._admin.list_topics(timeout=DEADLINE_SECONDS).brokers))
            resource = ConfigResource(ResourceType.BROKER, str(broker))
            (answer,) = self._admin.describe_configs([resource], request_timeout=DEADLINE_SECONDS).values()
            entry = answer.result().get("group.coordinator.rebalance.protocols")
        except (KafkaException, StopIteration):
            return None
        return frozenset(entry.value.split(",")) if entry is not None and entry.value else None

    def newest_timestamp(self, partitions: Iterable[Partition]) -> int | None:
        """The highest timestamp of any record in these logs, in ms."""
        wanted = dict.fromkeys((TopicPartition(*partition) for partition in partitions), MAX_TIMESTAMP)
        if not wanted:
            return None
        newest = []
        for answer in self._admin.list_offsets(wanted, request_timeout=DEADLINE_SECONDS).values():
            try:
                newest.append(answer.result().timestamp)
            except KafkaException:
                continue
        return max((timestamp for timestamp in newest if timestamp is not None and timestamp >= 0), default=None)


def library_version() -> str:
    """The version of librdkafka."""
    return libversion()[0]


def _operations(answer: Any) -> frozenset[str] | None:
    try:
        operations = answer.result().authorized_operations
    except KafkaException as error:
        return frozenset() if error.args[0].code() in DENIED else None
    return None if operations is None else frozenset(operation.name for operation in operations)
