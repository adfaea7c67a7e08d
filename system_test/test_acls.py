"""ACLs of topics on a broker that keeps them: archived with dates, restored under new names, compared, created."""

import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)

from system_test.support.archiving import Site, folder_site
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import NewRecord, delete_topic, fill_topic, read, topic_names
from system_test.support.waiting import wait_until

ALLOW, DENY = ACLPermissionType.ALLOW, ACLPermissionType.DENY
LITERAL, PREFIXED = ACLResourcePatternType.LITERAL, ACLResourcePatternType.PREFIXED
PASSWORD = "of-the-archiver"

Granted = tuple[str, str, str]
"""A principal, an operation and a permission."""


@pytest.fixture(scope="module")
def guarded() -> Iterator[KafkaBroker]:
    """One that lets its administrator do everything, and a user of a second listener what it was granted."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_PLAINTEXT",
        "listener.name.users.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.users.plain.sasl.jaas.config": f'{module} required user_archiver="{PASSWORD}";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with KafkaBroker(settings, listeners=("USERS",)) as broker:
        yield broker


@pytest.fixture
def site(guarded: KafkaBroker, tmp_path: Path) -> Site:
    return folder_site(guarded.bootstrap, tmp_path / "archive")


def acl(
    name: str,
    user: str,
    operation: ACLOperation = ACLOperation.READ,
    kind: ACLPermissionType = ALLOW,
    pattern: ACLResourcePatternType = LITERAL,
    resource: ResourceType = ResourceType.TOPIC,
) -> ACL:
    return ACL(f"User:{user}", "*", operation, kind, ResourcePattern(resource, name, pattern))


def of_name(bootstrap: str, topic: str) -> set[Granted]:
    """What ACLs on this very name say."""
    pattern = ResourcePatternFilter(ResourceType.TOPIC, topic, LITERAL)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        found, _ = admin.describe_acls(ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, pattern))
    return {(each.principal, each.operation.name, each.permission_type.name) for each in found}


def grant(bootstrap: str, *acls: ACL) -> None:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_acls(list(acls))
    for each in acls:
        if each.resource_pattern.resource_type is ResourceType.TOPIC:
            what = (each.principal, each.operation.name, each.permission_type.name)
            name = each.resource_pattern.resource_name
            if each.resource_pattern.pattern_type is LITERAL:
                wait_until(lambda name=name, what=what: what in of_name(bootstrap, name), 10, "an ACL")


def take(bootstrap: str, *acls: ACL) -> None:
    filters = [
        ACLFilter(each.principal, each.host, each.operation, each.permission_type, each.resource_pattern)
        for each in acls
    ]
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.delete_acls(filters)


@pytest.fixture
def topic(guarded: KafkaBroker, topic_name: str) -> Iterator[str]:
    """A topic with records, and ACLs on its name, on the beginning of it, and on all topics."""
    rows = [NewRecord(b"%d" % n, partition=n % 2) for n in range(20)]
    fill_topic(guarded.bootstrap, topic_name, rows, partitions=2, config={"retention.ms": "-1"})
    acls = [
        acl(topic_name, "billing"),
        acl(topic_name[:-1], "search", ACLOperation.DESCRIBE, pattern=PREFIXED),
        acl("*", "mallory", ACLOperation.WRITE, DENY),
        acl(f"{topic_name}-2", "nobody"),
    ]
    grant(guarded.bootstrap, *acls)
    yield topic_name
    take(guarded.bootstrap, *acls)


GRANTED = {("User:billing", "READ", "ALLOW"), ("User:search", "DESCRIBE", "ALLOW"), ("User:mallory", "WRITE", "DENY")}


def stored(site: Site, topic: str) -> list[dict[str, Any]]:
    """The dated versions of the topic's configuration, oldest first."""
    return [json.loads(path.read_bytes()) for path in sorted(Path(site.address, f"topic={topic}/_configs").iterdir())]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_acls_of_one_moment_are_restored_under_the_new_name(site: Site, topic: str) -> None:
    site.once(topic)
    at = now_ms() + 50
    wait_until(lambda: now_ms() > at, 5, "the moment to pass")
    later = acl(topic, "later")
    grant(site.bootstrap, later)
    site.once(topic)
    versions = [{each["principal"] for each in version["acls"]} for version in stored(site, topic)]
    assert versions == [
        {"User:billing", "User:search", "User:mallory"},
        {"User:billing", "User:search", "User:mallory", "User:later"},
    ]

    def restored(name: str, *more: str) -> tuple[object, ...]:
        names = ("--map", rf"(.*)={name}.\1", "--name", name)
        return ("restore", topic, "--at", f"@{at}", "--yes", *names, *more, *site.kafka)

    without = site.replayer(*restored("without"))
    assert "3 ACLs of the topics are known, and are not created without --acls" in without.stderr
    assert of_name(site.bootstrap, f"without.{topic}") == set()
    planned = site.replayer_json(*restored("copy", "--acls", "--dry-run"))
    assert (planned["totals"]["acls"], len(planned["plan"]["topics"][0]["acls"])) == (3, 3)
    told = site.replayer_json(*restored("copy", "--acls"))
    assert (told["verdict"], told["acls"], told["acls_error"]) == ("OK", {f"copy.{topic}": 3}, None)
    wait_until(lambda: of_name(site.bootstrap, f"copy.{topic}") == GRANTED, 10, "the ACLs")
    again = site.replayer_json("restore", "--resume", "--name", "copy", "--yes", *site.kafka)
    assert again["acl_notes"] == ["the ACLs were created by an earlier run"]
    later_ones = site.replayer_json("restore", "--resume", "--name", "without", "--acls", "--yes", *site.kafka)
    assert later_ones["acls"] == {f"without.{topic}": 3}, "a resumed restore may be given them, too"


def test_a_user_who_may_not_read_them_archives_all_the_same(guarded: KafkaBroker, site: Site, topic: str) -> None:
    rights = [
        acl(topic, "archiver"),
        acl(topic, "archiver", ACLOperation.DESCRIBE_CONFIGS),
        acl("blockgz-", "archiver", pattern=PREFIXED, resource=ResourceType.GROUP),
    ]
    grant(guarded.bootstrap, *rights)
    sasl = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=archiver")
    settings = [text for each in (*sasl, f"sasl.password={PASSWORD}") for text in ("-X", each)]
    user = dataclasses.replace(site, bootstrap=guarded.bootstrap_of("USERS"))

    def archived() -> str:
        return user.run(topic, "--once", "--groups", "none", *settings).stderr

    (line,) = [each for each in archived().splitlines() if "describe_denied" in each]
    assert "asked=ACLs" in line and "Cluster authorization failed" in line
    (version,) = stored(site, topic)
    assert "acls" not in version and version["config"] == {"retention.ms": "-1"}
    grant(guarded.bootstrap, acl("kafka-cluster", "archiver", ACLOperation.DESCRIBE, resource=ResourceType.CLUSTER))
    wait_until(lambda: "describe_denied" not in archived(), 30, "the right to describe the cluster")
    assert {each["principal"] for each in stored(site, topic)[-1]["acls"]} >= {"User:billing", "User:archiver"}
    assert [len(read(site.bootstrap, topic, number)) for number in range(2)] == [10, 10]


def test_acls_are_compared_and_created_if_asked(site: Site, topic: str) -> None:
    site.once(topic)
    diff = ("topics", "diff", topic, *site.kafka)
    apply = ("topics", "apply", topic, "--yes", *site.kafka)
    assert site.replayer_json(*diff, "--acls")["equal"]
    other, billing = acl(topic, "other"), acl(topic, "billing")
    grant(site.bootstrap, other)
    take(site.bootstrap, billing)
    wait_until(lambda: of_name(site.bootstrap, topic) == {("User:other", "READ", "ALLOW")}, 10, "the ACLs")
    assert site.replayer_json(*diff)["equal"], "nobody asked"
    differs = site.replayer_json(*diff, "--acls", check=3)["topics"][0]["differences"]
    assert differs == [
        {"setting": "acl", "archived": "ALLOW READ for User:billing from *", "live": None},
        {"setting": "acl", "archived": None, "live": "ALLOW READ for User:other from *"},
    ]
    assert "nothing is changed" in site.replayer(*apply).stderr
    done = site.replayer(*apply, "--acls")
    assert f"topic {topic}: ACL ALLOW READ for User:billing from * is created" in done.stderr
    assert "1 ACLs stay that only the live topic has" in done.stderr
    assert "read back as planned" in done.stdout
    assert {each[0] for each in of_name(site.bootstrap, topic)} == {"User:other", "User:billing"}
    take(site.bootstrap, other)


def test_a_topic_that_is_lost_gets_its_acls_again(site: Site, topic: str) -> None:
    site.once(topic)
    take(site.bootstrap, acl(topic, "billing"))
    delete_topic(site.bootstrap, topic)
    wait_until(lambda: topic not in topic_names(site.bootstrap), 30, "the topic to be gone")
    told = site.replayer_json("topics", "apply", topic, "--acls", "--yes", *site.kafka)["topics"][0]
    assert told["done"] and [each["principal"] for each in told["creates_acls"]] == ["User:billing"]
    assert of_name(site.bootstrap, topic) == {("User:billing", "READ", "ALLOW")}


def test_a_target_without_an_authorizer_gets_the_records(site: Site, topic: str, broker: KafkaBroker) -> None:
    site.once(topic)
    target = dataclasses.replace(site, bootstrap=broker.bootstrap)
    asked = ("restore", topic, "--at", "-0s", "--name", f"{topic}-r", "--acls", "--yes", *target.kafka)
    told = target.replayer_json(*asked, check=3)
    assert (told["verdict"], told["topics"][0]["proof"]) == ("FAILURE", "OK")
    assert "ACLs cannot be created" in told["acls_error"] and "leave out --acls" in told["acls_error"]
    assert [len(read(target.bootstrap, topic, number)) for number in range(2)] == [10, 10]
    resumed = ("restore", "--resume", "--name", f"{topic}-r", "--yes", *target.kafka)
    assert "no ACL was created" in target.replayer(*resumed, check=3).stderr
    assert target.replayer_json(*resumed, "--no-acls")["verdict"] == "OK"
    refused = target.replayer("topics", "apply", topic, "--acls", "--yes", *target.kafka, check=3)
    assert "ACLs cannot be created" in refused.stderr and "No Authorizer is configured" in refused.stderr
    plain = folder_site(broker.bootstrap, Path(site.address).parent / "plain")
    assert "describe_denied" not in plain.run(topic, "--once").stderr
    assert stored(plain, topic)[-1]["acls"] == []
