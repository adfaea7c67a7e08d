"""The ACLs on a cluster's topics: read, and created."""

from collections.abc import Collection, Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from blockgz.errors import AccessDenied, BrokerUnreachable
from blockgz.kafka.acls import NO_AUTHORIZER, creatable, create_acls, topic_acls
from blockgz.kafka.connection import kafka_failure
from blockgz.kafka.settings import client_settings, make_client
from index_format.acls import Acl, AclsOfTopics
from index_format.errors import BlockgzError
from replayer.errors import ReplayRefused
from replayer.kafka import CLIENT_ID

SECONDS = 30.0
"""So long a cluster is waited for, however many ACLs it has."""
CANNOT_BE_CREATED = "ACLs cannot be created, which needs Alter on the cluster"


class KafkaAcls:
    """The ACLs of one cluster; calls block, and raise ReplayRefused, AccessDenied or BrokerUnreachable."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        """Raises UsageError."""
        self._settings = client_settings(properties, CLIENT_ID)
        self._admin: AdminClient = make_client(AdminClient, self._settings)

    def of_topics(self, topics: Collection[str]) -> dict[str, tuple[Acl, ...]]:
        """The ACLs that concern each of the topics, whether or not it exists; one request for all."""
        try:
            found = AclsOfTopics(topic_acls(self._admin, self._settings, SECONDS))
        except KafkaException as error:
            raise _failure(error.args[0], "ACLs cannot be read, which needs Describe on the cluster") from error
        return {topic: found.concerning(topic) for topic in topics}

    def create(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        """Creates ACLs, unless they exist; those that are left out, because this client does not know their words."""
        known = creatable(acls)
        try:
            failed = create_acls(self._admin, known, SECONDS)
        except KafkaException as error:
            raise _failure(error.args[0], CANNOT_BE_CREATED) from error
        for reason in failed.values():
            raise _failure(reason, CANNOT_BE_CREATED)
        return tuple(each for each in acls if each not in known)


def _failure(reason: KafkaError, what: str) -> BlockgzError:
    known = kafka_failure(reason, what)
    if isinstance(known, AccessDenied | BrokerUnreachable):
        return known
    remedy = "check the ACLs: Describe and Alter on the cluster"
    if reason.code() == NO_AUTHORIZER:
        remedy = "set authorizer.class.name of its brokers, or leave out --acls"
    return ReplayRefused(what, why=reason.str(), remedy=remedy)
