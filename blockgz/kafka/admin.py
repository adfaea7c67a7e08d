"""Questions to a cluster that both programs ask, with librdkafka's futures turned into values."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ConfigSource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
)

from blockgz.errors import AccessDenied, PartitionUnavailable
from blockgz.kafka import LogBounds
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import BROKER_DEADLINE_SECONDS, DENIED, kafka_failure, make_client
from index_format.objects import Acl

# The error of brokers without ACLs.
NO_AUTHORIZER = KafkaError.SECURITY_DISABLED


def topic_acls(admin: AdminClient, settings: Mapping[str, Any], seconds: float) -> list[Acl]:
    """Return all ACLs on topics, in one request; needs Describe on the cluster. Raises KafkaException."""
    # A refusal arrives as an empty list, because librdkafka 2.16 drops the answer's error: an empty one is followed by
    # a request for the user's rights. A cluster without an authorizer grants all of them, and has no ACLs.
    wanted = AclBindingFilter(
        ResourceType.TOPIC,
        None,  # type: ignore[arg-type]  # its stubs lack that None means any
        ResourcePatternType.ANY,
        None,  # type: ignore[arg-type]  # its stubs lack that None means any
        None,  # type: ignore[arg-type]  # its stubs lack that None means any
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = admin.describe_acls(wanted, request_timeout=seconds).result()
    if not found:
        apart: AdminApart = make_client(AdminApart, dict(settings))
        if AclOperation.DESCRIBE.name not in apart.cluster_operations(seconds):
            raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed"))
    return [
        Acl(
            pattern=each.resource_pattern_type.name,
            name=each.name,
            principal=each.principal,
            host=each.host,
            operation=each.operation.name,
            permission=each.permission_type.name,
        )
        for each in found
    ]


def creatable(acls: Iterable[Acl]) -> list[Acl]:
    """Return the ACLs whose words the client knows: brokers of a later version may have others."""
    return [
        each
        for each in acls
        if each.operation in AclOperation.__members__
        and each.permission in AclPermissionType.__members__
        and each.pattern in ResourcePatternType.__members__
        and "UNKNOWN" not in (each.operation, each.permission, each.pattern)
    ]


def acl_binding(acl: Acl) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        acl.name,
        ResourcePatternType[acl.pattern],
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType[acl.permission],
    )


# Brokers that do not tell ids or configurations, such as librdkafka's mock, are not waited for.
FACTS_DEADLINE_SECONDS = 3.0
# Errors if some, or all, of the requested partitions have no leader.
LEADERLESS = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError._NOENT)
# The error if none of the requested partitions exists: librdkafka then reports that none has a leader.
UNKNOWN_PARTITION = KafkaError(KafkaError._UNKNOWN_PARTITION, "the topic has no such partition")
ISOLATION_LEVELS = {
    "read_committed": IsolationLevel.READ_COMMITTED,
    "read_uncommitted": IsolationLevel.READ_UNCOMMITTED,
}
# The source of a setting of the topic itself: a member or its number, depending on the client's version.
OF_THE_TOPIC = (ConfigSource.DYNAMIC_TOPIC_CONFIG, ConfigSource.DYNAMIC_TOPIC_CONFIG.value)


def topics_of(settings: dict[str, Any], seconds: float) -> list[str]:
    """Return the topics of a cluster without internal ones. Raises KafkaException or UsageError."""
    admin: AdminClient = make_client(AdminClient, settings)
    return [name for name in admin.list_topics(timeout=seconds).topics if not name.startswith("__")]


def has_controller(metadata: Any) -> bool:
    """Return whether the cluster names a broker as its controller, which librdkafka sends questions of an admin to."""
    # Its mock cluster does not, nor does a cluster that elects one; those questions would only time out.
    return metadata.controller_id in metadata.brokers


def answered(answer: Any, what: str) -> Any:
    """Return the result of a future; None if the broker gives none. Raises AccessDenied, about `what`."""
    try:
        return answer.result()
    except KafkaException as error:
        if error.args[0].code() in DENIED:
            raise kafka_failure(error.args[0], what) from error
        return None


class TopicIdAnswers(NamedTuple):
    """Answers of a cluster about topics; nothing is known of topics in no field."""

    ids: dict[str, str]
    missing: frozenset[str]
    """Topics that the broker which answered does not have."""
    denied: Mapping[str, AccessDenied] = {}
    """Topics that may not be described."""


NOTHING_TOLD = TopicIdAnswers({}, frozenset())


def topic_ids(admin: AdminClient, topics: Collection[str]) -> TopicIdAnswers:
    """Return the ids of topics, in one request; empty if no broker answers or none reports ids."""
    answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=FACTS_DEADLINE_SECONDS)
    ids, missing, denied = dict[str, str](), set[str](), dict[str, AccessDenied]()
    for topic, answer in answers.items():
        try:
            told = answer.result().topic_id
        except KafkaException as error:
            failure = kafka_failure(error.args[0], f"topic {topic!r} cannot be described")
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.add(topic)
            elif isinstance(failure, AccessDenied):
                denied[topic] = failure
        else:
            if told is not None:
                ids[topic] = str(told)
    return TopicIdAnswers(ids, frozenset(missing), denied)


def topic_id(admin: AdminClient, topic: str) -> str | None:
    """Return the topic's id, None if the broker does not report it.

    Raises PartitionUnavailable for a missing topic, AccessDenied for one that may not be described.
    """
    answers = topic_ids(admin, [topic])
    if topic in answers.missing:
        raise PartitionUnavailable(f"topic {topic!r} cannot be described", why="the broker has no such topic")
    if topic in answers.denied:
        raise answers.denied[topic]
    return answers.ids.get(topic)


def ask_configs(admin: AdminClient, topics: Iterable[str]) -> dict[str, Any]:
    """Topic -> the future of its configuration's entries by name."""
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    answers = admin.describe_configs(resources, request_timeout=FACTS_DEADLINE_SECONDS) if resources else {}
    return {resource.name: answer for resource, answer in answers.items()}


def log_bounds(
    admin: AdminClient, partitions: Iterable[tuple[str, int]], isolation_level: str
) -> tuple[dict[tuple[str, int], LogBounds], dict[tuple[str, int], KafkaError]]:
    """Return the bounds of each log, and the errors of logs without an answer."""
    # The end is the last stable offset under `read_committed`, the high watermark under `read_uncommitted`. A broker
    # that was suspended may answer without an error and without an offset (-1001): that is not an answer. If a
    # partition has no leader, the cluster's metadata is refreshed for the next question: librdkafka would believe it
    # for 15 minutes.
    wanted = [TopicPartition(*partition) for partition in partitions]
    earliest, latest = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = [_list_offsets(admin, wanted, spec, isolation_level) for spec in (earliest, latest)]
    bounds: dict[tuple[str, int], LogBounds] = {}
    failures: dict[tuple[str, int], KafkaError] = {}
    for place in wanted:
        try:
            low, end = (answers[place].result().offset for answers in asked)
            if low < 0 or end < 0:
                raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE, "the broker reported no offset"))
            bounds[place.topic, place.partition] = LogBounds(low, end)
        except KafkaException as error:
            failures[place.topic, place.partition] = error.args[0]
    if any(failure.code() in LEADERLESS for failure in failures.values()):
        with suppress(KafkaException):
            known = admin.list_topics(timeout=FACTS_DEADLINE_SECONDS).topics
            for topic, partition in failures:
                # The topic is there, and the partition is not.
                if topic in known and known[topic].error is None and partition not in known[topic].partitions:
                    failures[topic, partition] = UNKNOWN_PARTITION
    return bounds, failures


def high_watermarks(admin: AdminClient, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return where each log ends, asked in one request for each leader; logs without an answer are left out."""
    wanted = [TopicPartition(*partition) for partition in partitions]
    found = {}
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    for place, answer in _list_offsets(admin, wanted, latest, "read_uncommitted").items():
        with suppress(KafkaException):
            if (end := answer.result().offset) >= 0:
                found[place.topic, place.partition] = end
    return found


def _list_offsets(admin: AdminClient, wanted: list[TopicPartition], spec: OffsetSpec, isolation: str) -> dict[Any, Any]:
    if not wanted:
        return {}
    level, seconds = ISOLATION_LEVELS[isolation], BROKER_DEADLINE_SECONDS
    return admin.list_offsets(dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=seconds)
