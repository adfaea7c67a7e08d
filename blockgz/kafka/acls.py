"""The ACLs on a cluster's topics: read and created."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.settings import make_client
from index_format.acls import Acl

NO_AUTHORIZER = KafkaError.SECURITY_DISABLED
"""What brokers answer that keep no ACLs."""


def topic_acls(admin: AdminClient, settings: Mapping[str, Any], seconds: float) -> list[Acl]:
    """Return all ACLs on topics, in one request; needs Describe on the cluster. Raises KafkaException.

    A refusal arrives as an empty list, because librdkafka 2.16 drops the answer's error: who gets none is asked for his
    rights. A cluster without an authorizer grants all of them, and has no ACLs.
    """
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
        _check_may_read(settings, seconds)
    return [_acl(each) for each in found]


def _check_may_read(settings: Mapping[str, Any], seconds: float) -> None:
    apart: AdminApart = make_client(AdminApart, dict(settings))
    if AclOperation.DESCRIBE.name not in apart.cluster_operations(seconds):
        raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed"))


def create_acls(admin: AdminClient, acls: Collection[Acl], seconds: float) -> dict[Acl, KafkaError]:
    """Creates ACLs on topics in one request, and says why some were not. Those that exist stay as they are.

    Raises KafkaException where there is no answer at all.
    """
    by_binding = {_binding(each): each for each in acls}
    if not by_binding:
        return {}
    failed = {}
    for binding, answer in admin.create_acls(list(by_binding), request_timeout=seconds).items():
        try:
            answer.result()
        except KafkaException as error:
            failed[by_binding[binding]] = error.args[0]
    return failed


def creatable(acls: Iterable[Acl]) -> list[Acl]:
    """Those whose words the client knows: brokers of a later version may have others."""
    return [
        each
        for each in acls
        if each.operation in AclOperation.__members__
        and each.permission in AclPermissionType.__members__
        and each.pattern in ResourcePatternType.__members__
        and "UNKNOWN" not in (each.operation, each.permission, each.pattern)
    ]


def _acl(binding: Any) -> Acl:
    return Acl(
        pattern=binding.resource_pattern_type.name,
        name=binding.name,
        principal=binding.principal,
        host=binding.host,
        operation=binding.operation.name,
        permission=binding.permission_type.name,
    )


def _binding(acl: Acl) -> AclBinding:
    return AclBinding(
        ResourceType.TOPIC,
        acl.name,
        ResourcePatternType[acl.pattern],
        acl.principal,
        acl.host,
        AclOperation[acl.operation],
        AclPermissionType[acl.permission],
    )
