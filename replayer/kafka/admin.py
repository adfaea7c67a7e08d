"""The cluster of a replay: its topics, their configurations, watermarks and ACLs, read and changed."""

import time
from collections.abc import Collection, Iterable, Mapping
from copy import copy
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from confluent_kafka.admin import NewTopic as ClientNewTopic  # type: ignore[attr-defined]

from blockgz.errors import AccessDenied, BlockgzError, BrokerUnreachable, NoSuchTopic, PartitionUnavailable, listed
from blockgz.kafka import LogBounds, connection
from blockgz.kafka.admin import (
    LEADERLESS,
    NO_AUTHORIZER,
    OF_THE_TOPIC,
    TopicIdAnswers,
    acl_binding,
    answered,
    ask_configs,
    creatable,
    has_controller,
    log_bounds,
    topic_acls,
    topic_id,
    topic_ids,
)
from blockgz.kafka.groups import KafkaGroups, listed_groups
from index_format.objects import Acl, AclsOfTopics
from replayer.errors import ReplayRefused, TargetChanged
from replayer.kafka import CLIENT_ID
from replayer.kafka.topic_facts import ConfigChange, EffectiveConfig, NewTopic, TopicFacts, parse_config

CHANGE_SECONDS = 30.0
ASK_AGAIN_SECONDS = 0.1
CLUSTER_DEFAULT = -1
NOT_LED_YET = {
    *LEADERLESS,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
}
# Errors of a cluster for a topic that it would not create as described.
UNCREATABLE = {
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_PARTITIONS,
    KafkaError.INVALID_REPLICATION_FACTOR,
    KafkaError.INVALID_REQUEST,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
}
ACL_REMEDY = "check the ACLs: Describe and Alter on the cluster"
CREATION_REMEDY = (
    "choose its settings with --topic-config NAME=VALUE or --omit-topic-config NAME; a restore takes "
    "--replication-factor"
)


class TopicChanges:
    """A client for changes; every call waits until the cluster has done it."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raise UsageError."""
        self._settings = connection.client_settings(properties, CLIENT_ID)
        self._admin: AdminClient = connection.make_client(AdminClient, self._settings)

    def create(self, topic: NewTopic) -> None:
        """Make the topic and wait until every partition has a leader; raises ReplayRefused."""
        (answer,) = self._admin.create_topics(
            [_wanted(topic)], operation_timeout=CHANGE_SECONDS, request_timeout=CHANGE_SECONDS
        ).values()
        self._result(answer, _cannot_be_created(topic), CREATION_REMEDY)
        self._wait_led(topic.name, topic.partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of a topic's partitions to `partitions`; wait and raise as `create` does."""
        (answer,) = self._admin.create_partitions(
            [NewPartitions(topic, partitions)], operation_timeout=CHANGE_SECONDS, request_timeout=CHANGE_SECONDS
        ).values()
        self._result(answer, f"topic {topic!r} gets no more partitions", "check the ACLs: Alter on the topic")
        self._wait_led(topic, partitions)

    def delete(self, topic: str, topic_id: str) -> None:
        """Delete the topic of that name, and wait until the topic with this id is gone; raises ReplayRefused."""
        (answer,) = self._admin.delete_topics(
            [topic], operation_timeout=CHANGE_SECONDS, request_timeout=CHANGE_SECONDS
        ).values()
        self._result(answer, f"topic {topic!r} cannot be deleted", "check the ACLs: Delete on the topic")
        deadline = time.monotonic() + CHANGE_SECONDS
        while topic_ids(self._admin, [topic]).ids.get(topic) == topic_id and time.monotonic() < deadline:
            time.sleep(ASK_AGAIN_SECONDS)

    def own_config(self, topic: str) -> Mapping[str, str]:
        """Return the settings of the topic itself. Raises ReplayRefused, AccessDenied or BrokerUnreachable."""
        return self.settings(topic)[0]

    def settings(self, topic: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """Return a topic's own settings, and those that are in effect beyond them; raises ReplayRefused."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        (answer,) = self._admin.describe_configs(
            [resource], request_timeout=connection.BROKER_DEADLINE_SECONDS
        ).values()
        entries = self._result(answer, f"the configuration of topic {topic!r} cannot be read", "check the topic's name")
        own, inherited = dict[str, str](), dict[str, str]()
        for entry in entries.values():
            if entry.value is not None:
                (own if entry.source in OF_THE_TOPIC else inherited)[entry.name] = entry.value
        return own, inherited

    def alter(self, topic: str, change: ConfigChange) -> None:
        """Set and remove settings of a topic. Raises ReplayRefused, AccessDenied or BrokerUnreachable."""
        put, remove = AlterConfigOpType.SET, AlterConfigOpType.DELETE
        entries = [ConfigEntry(name, value, incremental_operation=put) for name, value in change.values.items()]
        entries += [ConfigEntry(name, None, incremental_operation=remove) for name in change.removed]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        (answer,) = self._admin.incremental_alter_configs([resource], request_timeout=CHANGE_SECONDS).values()
        self._result(answer, f"the configuration of topic {topic!r} cannot be changed", "check the ACLs: AlterConfigs")

    def acls(self, topics: Collection[str]) -> dict[str, tuple[Acl, ...]]:
        """Return the ACLs that concern each of the topics, whether or not it exists, in one request for all."""
        try:
            found = AclsOfTopics(topic_acls(self._admin, self._settings, CHANGE_SECONDS))
        except KafkaException as error:
            what = "ACLs cannot be read, which needs Describe on the cluster"
            raise _failure(error.args[0], what, ACL_REMEDY) from error
        return {topic: found.concerning(topic) for topic in topics}

    def create_acls(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        """Create ACLs unless they exist, and return those left out because this client does not know their words."""
        known = creatable(acls)
        if bindings := {acl_binding(each): None for each in known}:
            for answer in self._admin.create_acls(list(bindings), request_timeout=CHANGE_SECONDS).values():
                self._result(answer, "ACLs cannot be created, which needs Alter on the cluster", ACL_REMEDY)
        return tuple(each for each in acls if each not in known)

    def _wait_led(self, topic: str, partitions: int) -> None:
        """Wait until the topic has that many partitions, each with a leader."""
        deadline = time.monotonic() + CHANGE_SECONDS
        while not self._led(topic, partitions):
            if time.monotonic() > deadline:
                raise connection.kafka_failure(KafkaError(KafkaError._TIMED_OUT), f"topic {topic!r} gets no leaders")
            time.sleep(ASK_AGAIN_SECONDS)

    def _led(self, topic: str, partitions: int) -> bool:
        try:
            found = self._admin.list_topics(topic, timeout=connection.BROKER_DEADLINE_SECONDS).topics[topic]
        except KafkaException:  # a broker that left just now may be back before the deadline
            return False
        return len(found.partitions) == partitions and all(each.leader >= 0 for each in found.partitions.values())

    def _result(self, answer: Any, what: str, remedy: str) -> Any:
        try:
            return answer.result()
        except KafkaException as error:
            raise _failure(error.args[0], what, remedy) from error


def _failure(failure: KafkaError, what: str, remedy: str) -> BlockgzError:
    known = connection.kafka_failure(failure, what)
    if isinstance(known, AccessDenied | BrokerUnreachable):
        return known
    if failure.code() == NO_AUTHORIZER:
        remedy = "set authorizer.class.name of its brokers, or leave out --acls"
    return ReplayRefused(what, why=failure.str(), remedy=remedy)


def kafka_groups(properties: Mapping[str, str]) -> KafkaGroups:
    """Return a client for the consumer groups of a cluster. Raises UsageError."""
    return KafkaGroups(connection.client_settings(properties, CLIENT_ID))


class KafkaAdmin:
    """A client for read-only requests to the cluster; connects at once, so that a wrong address is found before any
    work.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raise UsageError, BrokerUnreachable or AccessDenied."""
        self._address = properties["bootstrap.servers"]
        self._connection_errors = connection.ConnectionErrors()
        settings = {**connection.client_settings(properties, CLIENT_ID), "error_cb": self._connection_errors}
        self._admin: AdminClient = connection.make_client(AdminClient, settings)
        self._metadata: Any = connection.cluster_metadata(self._admin, self._connection_errors, self._address)

    def again(self) -> "KafkaAdmin":
        """Return the same client with the current topics. Raises BrokerUnreachable or AccessDenied."""
        same = copy(self)
        same._metadata = connection.cluster_metadata(self._admin, self._connection_errors, self._address)
        return same

    @property
    def cluster_id(self) -> str | None:
        """Return the cluster's id, None if it is not reported."""
        return self._metadata.cluster_id or None

    @property
    def num_brokers(self) -> int:
        return len(self._metadata.brokers)

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the names of the cluster's topics, without internal ones."""
        return tuple(sorted(name for name in self._metadata.topics if not name.startswith("__")))

    def topic(self, name: str) -> TopicFacts | None:
        """Return the facts of a topic, None if it does not exist. Raises AccessDenied."""
        metadata = self._metadata.topics.get(name)
        if metadata is None:
            return None
        if metadata.error is not None:
            raise connection.kafka_failure(metadata.error, f"topic {name!r} cannot be described")
        tells = has_controller(self._metadata)
        return TopicFacts(
            name,
            len(metadata.partitions),
            topic_id(self._admin, name) if tells else None,
            self._config(name) if tells else None,
        )

    def replication_factor(self, name: str) -> int:
        """Return the smallest number of replicas of a topic's partitions. Raises NoSuchTopic."""
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise NoSuchTopic(
                f"the cluster has no topic {name!r}", why="it is gone", remedy="check -b, and who deletes"
            )
        return min(len(each.replicas) for each in topic.partitions.values())

    def topic_ids(self, names: Collection[str]) -> TopicIdAnswers:
        """Return the ids of these topics as the cluster reports them now."""
        return topic_ids(self._admin, names)

    def watermarks(
        self,
        topic: str,
        partitions: Iterable[int],
        isolation_level: str = "read_committed",
        patience: float = CHANGE_SECONDS,
    ) -> dict[int, LogBounds]:
        """Return the readable offsets of partitions. Raises BrokerUnreachable, PartitionUnavailable or AccessDenied."""
        # Right after a topic was created, brokers do not know yet that they lead it; so the request is repeated for
        # `patience` seconds.
        wanted = [(topic, partition) for partition in sorted(partitions)]
        deadline = time.monotonic() + patience
        bounds, failures = log_bounds(self._admin, wanted, isolation_level)
        while failures and all(each.code() in NOT_LED_YET for each in failures.values()):
            if time.monotonic() > deadline:
                break
            time.sleep(ASK_AGAIN_SECONDS)
            again, failures = log_bounds(self._admin, failures, isolation_level)
            bounds |= again
        what = f"the bounds of topic {topic!r} cannot be read"
        for failure in failures.values():
            if failure.code() == KafkaError._UNKNOWN_PARTITION:
                raise PartitionUnavailable(what, why=failure.str())
            raise connection.kafka_failure(failure, what)
        return {partition: found for (_, partition), found in bounds.items()}

    def refuse_uncreatable(self, topic: NewTopic) -> None:
        """Raise ReplayRefused for a topic that the cluster would not create. Do nothing if it does not say."""
        if (error := self.why_uncreatable(topic)) is not None:
            raise error

    def why_uncreatable(self, topic: NewTopic) -> ReplayRefused | None:
        """Return why the cluster would not create a topic; None if it would, or does not say."""
        if not has_controller(self._metadata):
            return None
        (answer,) = self._admin.create_topics(
            [_wanted(topic)], validate_only=True, request_timeout=connection.BROKER_DEADLINE_SECONDS
        ).values()
        try:
            answer.result()
        except KafkaException as error:
            failure: KafkaError = error.args[0]
            if failure.code() in UNCREATABLE:
                return ReplayRefused(_cannot_be_created(topic), why=failure.str(), remedy=CREATION_REMEDY)
        return None

    def changeable_settings(self) -> frozenset[str] | None:
        """Return the settings that topics of the cluster may be given, by one that exists; None if it does not say."""
        if not self.topics or not has_controller(self._metadata):
            return None
        topic = self.topics[0]
        try:
            entries = answered(ask_configs(self._admin, [topic])[topic], f"the configuration of {topic} cannot be read")
        except BlockgzError:
            return None
        return frozenset(name for name, entry in entries.items() if not entry.is_read_only) if entries else None

    def groups(self) -> frozenset[str]:
        """Return the consumer groups that anything is recorded of; raises BrokerUnreachable or AccessDenied."""
        return frozenset(listed_groups(self._admin))

    def _config(self, topic: str) -> EffectiveConfig | None:
        try:
            entries = answered(ask_configs(self._admin, [topic])[topic], f"the configuration of {topic} cannot be read")
        except AccessDenied:
            return None  # DescribeConfigs is not a condition of a replay: what cannot be checked is said to be so
        if entries is None:
            return None
        return parse_config({name: entry.value for name, entry in entries.items() if entry.value is not None})


def _wanted(topic: NewTopic) -> Any:
    return ClientNewTopic(
        topic.name,
        num_partitions=topic.partitions,
        replication_factor=CLUSTER_DEFAULT if topic.replication_factor is None else topic.replication_factor,
        config=dict(topic.config),
    )


def _cannot_be_created(topic: NewTopic) -> str:
    return f"topic {topic.name!r} cannot be created"


MISSING_SECONDS = 1.0
# Answers in a row that report the topic missing before it counts as gone.
TIMES_MISSING = 3


class TopicPin:
    """A check that a topic is still the same and lost no records; it blocks, and any thread may use it."""

    def __init__(self, admin: KafkaAdmin, topic: str, topic_id: str | None) -> None:
        """Remember `topic_id`, the topic's id at the beginning; None if the cluster gives no ids."""
        self._admin = admin
        self._topic = topic
        self._topic_id = topic_id

    def check(self, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Return the current ends of these partitions, at least `ends`. Raises TargetChanged if one is lower."""
        if self._topic_id is not None:
            self._refuse_another(ends)
        bounds = self._admin.watermarks(self._topic, ends, "read_uncommitted", patience=0.0)
        found = {lane: each.end for lane, each in bounds.items()}
        for lane, least in sorted(ends.items()):
            if found[lane] < least:
                raise TargetChanged(
                    f"{self._topic}:{lane} lacks records that this job wrote to it",
                    why=f"it ends at offset {found[lane]}, but the job's records reach to {least}",
                    remedy="start another job with --job NAME and a new topic; this one cannot be completed",
                )
        return found

    def _refuse_another(self, ends: Mapping[int, int]) -> None:
        """Raise TargetChanged if the topic is gone or was created again; a broker may not know a new topic yet."""
        for again in range(TIMES_MISSING):
            answers = self._admin.topic_ids([self._topic])
            if self._topic not in answers.missing:
                break
            if again:
                time.sleep(MISSING_SECONDS)
        found = answers.ids.get(self._topic)
        gone = self._topic in answers.missing
        if not gone and found in (None, self._topic_id):
            return
        written = [f"partition {lane} up to offset {end}" for lane, end in sorted(ends.items()) if end]
        now = "the topic no longer exists" if gone else f"the topic with that name now has id {found}"
        raise TargetChanged(
            f"topic {self._topic} was deleted while the job wrote to it" + ("" if gone else ", and created again"),
            why=f"its id was {self._topic_id}, {now}; what the job wrote is gone with it"
            + (f": {listed(written)}" if written else ""),
            remedy="start another job with --job NAME; records that this one has sent since may be in the new topic",
        )
