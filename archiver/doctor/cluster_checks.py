"""What there is to find out of a broker: what is set up there, and what this user may do."""

import resource
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from archiver.doctor.findings import Finding, Verdict
from archiver.doctor.judging import (
    NEW_GROUP,
    judge_dead_letters,
    judge_group_owners,
    judge_group_permissions,
    judge_newest,
    judge_open_files,
    judge_protocols,
    judge_topic_ids,
    judge_topic_permissions,
    judge_topics,
)
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_settings import cluster_settings
from archiver.ingest.kafka_source import Partition
from blockgz.config.model import RunConfig
from blockgz.errors import listed
from blockgz.kafka.admin import answered
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import DENIED
from blockgz.kafka.settings import make_client
from blockgz.topic_patterns import TopicSelection
from index_format.identity import ArchiveInfo

DEADLINE_SECONDS = 5.0
MAX_TIMESTAMP: Any = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]


class ClusterChecks:
    """The checks that need a broker: all but the first only where `is_reached`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._known: dict[str, int] = {}
        self._selected: list[str] = []
        self._brokers: int | None = None
        self.is_reached = False
        self.cluster_id: str | None = None

    def broker(self) -> Iterator[Finding]:
        """Whether a broker answers, and what it offers; the others rest on it."""
        settings = cluster_settings(self._config)
        self._cluster = KafkaCluster(settings)
        self._access = KafkaAccess(self._cluster.admin, make_client(AdminApart, settings))
        known = self._known = self._cluster.topics()
        self.is_reached = True
        self._brokers = self._access.num_brokers()
        self.cluster_id = self._cluster.cluster_id()
        where = f"cluster {self.cluster_id or 'without an id'}, {self._brokers or '?'} brokers, {len(known)} topics"
        yield Finding("broker", Verdict.OK, where)
        sample = next(iter(known), None)
        if sample is not None:
            answers = self._cluster.topic_ids([sample])
            yield judge_topic_ids(answers.ids.get(sample), is_denied=sample in answers.denied)
        if self._config.group_protocol == "consumer":
            yield judge_protocols(self._access.rebalance_protocols())

    def topics(self) -> Iterator[Finding]:
        """Which topics are selected, and which are missing."""
        selection = TopicSelection(self._config.topics, self._config.exclude)
        self._selected = selection(self._known)
        missing = sorted(selection.names - self._known.keys())
        partitions = sum(self._known[topic] for topic in self._selected)
        if missing:
            yield Finding("topics", Verdict.FAIL, f"there is no topic {listed(missing)}", "create it, or check -b")
        if self._selected:
            yield Finding("topics", Verdict.OK, f"{len(self._selected)} topics, {partitions} partitions")
        elif not missing:
            yield Finding("topics", Verdict.WARN, "no topics are selected yet", "check TOPIC and --exclude")

    def permissions(self) -> Iterator[Finding]:
        """Whether topics may be read."""
        allowed = self._access.topic_operations(self._selected) if self._selected else {}
        yield from judge_topic_permissions(allowed)
        dlq = self._config.dead_letter_topic
        if dlq is not None:
            is_there = dlq in self._known
            yield judge_dead_letters(dlq, is_there, self._access.topic_operations([dlq])[dlq] if is_there else None)

    def group(self, archive: ArchiveInfo | None) -> Iterator[Finding]:
        """Whether the consumer group may be joined, and is no other archive's."""
        group_id = self._config.group_id if archive is None else archive.group(self._config.group_id)
        if group_id is None:
            yield NEW_GROUP
            return
        yield judge_group_permissions(group_id, self._access.group_operations(group_id))
        owners = self._cluster.committed_metadata(group_id, self._selected)
        yield judge_group_owners(group_id, archive, owners, takeover=self._config.takeover)

    def retention(self) -> Iterator[Finding]:
        """Whether records live long enough to be archived."""
        yield from judge_topics(self._cluster.describe(self._selected), self._config.chunk_interval)

    def timestamps(self, now: float) -> Iterator[Finding]:
        """Whether records come from the future; `now` in seconds since 1970."""
        partitions = [(topic, number) for topic in self._selected for number in range(self._known[topic])]
        yield judge_newest(self._access.newest_timestamp(partitions), now)

    def open_files(self) -> Iterator[Finding]:
        """Whether the process may open what it needs."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        partitions = sum(self._known[topic] for topic in self._selected)
        limit = None if soft == resource.RLIM_INFINITY else soft
        yield judge_open_files(limit, self._brokers or 1, partitions)


class KafkaAccess:
    """Read-only questions; None stands for what the brokers do not tell in time."""

    def __init__(self, admin: AdminClient, apart: AdminApart) -> None:
        self._admin = admin
        self._apart = apart

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
        try:
            return self._apart.group_operations(group_id, DEADLINE_SECONDS)
        except KafkaException as error:
            return _without_operations(error)

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
        answers = self._admin.list_offsets(wanted, request_timeout=DEADLINE_SECONDS).values()
        told = (answered(each, "the newest timestamps cannot be read") for each in answers)
        found = [each.timestamp for each in told if each is not None]
        return max((timestamp for timestamp in found if timestamp is not None and timestamp >= 0), default=None)


def _operations(answer: Any) -> frozenset[str] | None:
    try:
        operations = answer.result().authorized_operations
    except KafkaException as error:
        return _without_operations(error)
    return None if operations is None else frozenset(operation.name for operation in operations)


def _without_operations(error: KafkaException) -> frozenset[str] | None:
    return frozenset() if error.args[0].code() in DENIED else None
