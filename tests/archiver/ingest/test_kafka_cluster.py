"""What is asked of a cluster: bounds of logs now and then, configurations that may be denied."""

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from archiver.ingest import kafka_cluster
from archiver.ingest.kafka_cluster import KafkaCluster, LogView, WatermarkWatch
from archiver.ingest.kafka_source import Partition
from archiver.logs import LogEvent
from blockgz.errors import BrokerUnreachable, PartitionUnavailable
from blockgz.kafka import LogBounds
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.settings import client_settings
from index_format.identity import Acl
from tests.blockgz.kafka.test_admin import DENIED, future
from tests.support.archives import topic_config
from tests.support.mock_cluster import MockCluster

BOUNDS = LogBounds(10, 100)
SECURITY_DISABLED = KafkaError(KafkaError.SECURITY_DISABLED)
NO_ANSWER = KafkaError(KafkaError._TIMED_OUT)
NOT_ALLOWED = KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED)


def test_watermarks_outlive_a_broker_that_does_not_answer() -> None:
    now = 100.0
    assigned: set[Partition] = set()
    answers: list[dict[Partition, LogView] | BrokerUnreachable] = []

    def ask(partitions: object) -> dict[Partition, LogView]:
        answer = answers.pop(0)
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer

    watermarks = WatermarkWatch(lambda: assigned, ask, lambda: now)
    watermarks.refresh()
    assert watermarks.age_seconds is None, "nothing is asked about no partition"
    assigned.add(("orders", 0))
    answers += [{("orders", 0): LogView(BOUNDS, 120)}, BrokerUnreachable("no broker")]
    watermarks.refresh()
    now = 140.0
    watermarks.refresh()
    assert (watermarks.logs, watermarks.age_seconds) == ({("orders", 0): LogView(BOUNDS, 120, None)}, 40.0)
    answers.append({("orders", 0): LogView(LogBounds(10, 150), 150)})
    watermarks.refresh()
    assert watermarks.logs == {("orders", 0): LogView(LogBounds(10, 150), 150, earlier_end=100)}


class Admin:
    """A client that may read the configuration of one topic of two; `acls` is the answer to who asks for them."""

    def __init__(self, acls: object = SECURITY_DISABLED) -> None:
        self.acls = acls
        self.asked: list[AclBindingFilter] = []

    def list_topics(self, timeout: float) -> object:
        partition = SimpleNamespace(replicas=[1])
        topics = {name: SimpleNamespace(error=None, partitions={0: partition}) for name in ("orders", "users")}
        return SimpleNamespace(topics=topics, controller_id=1, brokers={1: None}, cluster_id="one")

    def describe_configs(self, resources: list[Any], request_timeout: float) -> dict[Any, object]:
        return {each: future(DENIED if each.name == "orders" else {}) for each in resources}

    def describe_acls(self, wanted: AclBindingFilter, request_timeout: float) -> object:
        self.asked.append(wanted)
        return future(self.acls)

    def poll(self, timeout: float) -> None:
        """Nothing to serve."""


def test_a_configuration_that_may_not_be_read_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin()  # type: ignore[assignment]
    with caplog.at_level("WARNING", "blockgz.archiver"):
        for _ in range(2):
            described = cluster.describe(["orders", "users"])
    assert described == {
        "orders": topic_config("orders", 1, None, None),
        "users": topic_config("users", 1, {}, {}),
    }
    told = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    (line,) = [each for each in told if each["event"] is LogEvent.DESCRIBE_DENIED]  # beside those of a real client
    assert (line["topic"], line["asked"]) == ("orders", "configuration")
    assert line["why"] == KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED).str()


def binding(name: str, principal: str, pattern: ResourcePatternType = ResourcePatternType.LITERAL) -> AclBinding:
    kinds = (AclOperation.READ, AclPermissionType.ALLOW)
    return AclBinding(ResourceType.TOPIC, name, pattern, f"User:{principal}", "*", *kinds)


def acl(name: str, principal: str, pattern: str = "LITERAL") -> Acl:
    return Acl(pattern, name, f"User:{principal}", "*", "READ", "ALLOW")


def test_the_acls_of_all_topics_are_asked_for_once() -> None:
    given = [binding("*", "all"), binding("ord", "some", ResourcePatternType.PREFIXED), binding("users", "one")]
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    admin = cluster.admin = Admin(given)  # type: ignore[assignment]
    described = cluster.describe(["orders", "users"])
    assert described["orders"].acls == (acl("*", "all"), acl("ord", "some", "PREFIXED"))
    assert described["users"].acls == (acl("*", "all"), acl("users", "one"))
    assert len(admin.asked) == 1  # type: ignore[attr-defined]
    assert cluster.describe([]) == {}
    assert len(admin.asked) == 1, "nothing is asked about no topic"  # type: ignore[attr-defined]


def test_the_clusters_id_is_in_its_metadata() -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin()  # type: ignore[assignment]
    assert cluster.cluster_id() == "one"


def test_no_acl_is_none_if_they_may_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin([])  # type: ignore[assignment]
    monkeypatch.setattr(AdminApart, "cluster_operations", lambda *_: frozenset({"DESCRIBE"}))
    assert cluster.describe(["users"])["users"].acls == ()


@pytest.mark.parametrize(
    ("answer", "rights", "lines"),
    [
        (SECURITY_DISABLED, {}, 0),
        (NO_ANSWER, {}, 0),
        (NOT_ALLOWED, {}, 1),
        ([], {"CREATE"}, 1),
        ([], {}, 1),
    ],
)
def test_acls_that_cannot_be_read_are_reported_at_most_once(
    answer: object,
    rights: Collection[str],
    lines: int,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = Admin(answer)  # type: ignore[assignment]
    monkeypatch.setattr(AdminApart, "cluster_operations", lambda *_: frozenset(rights))
    with caplog.at_level("WARNING", "blockgz.archiver"):
        for _ in range(3):
            assert cluster.describe(["users"])["users"] == topic_config("users", 1, {}, {})
    told = [line.msg for line in caplog.records if isinstance(line.msg, dict)]
    assert [(each["event"], each["topic"], each["asked"]) for each in told] == [
        (LogEvent.DESCRIBE_DENIED, "*", "ACLs")
    ] * lines


class WithoutController(Admin):
    """Like librdkafka's mock cluster: what an admin asks only times out."""

    def list_topics(self, timeout: float) -> object:
        return SimpleNamespace(**{**vars(super().list_topics(timeout)), "controller_id": 0})

    def describe_configs(self, *_: object, **__: object) -> NoReturn:
        raise AssertionError("asked")

    describe_topics = describe_acls = describe_configs  # type: ignore[assignment]


def test_where_no_controller_is_nobody_is_asked() -> None:
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    cluster.admin = WithoutController()  # type: ignore[assignment]
    assert cluster.describe(["orders"]) == {"orders": topic_config("orders", 1, None, None)}
    assert (cluster.cluster_id(), cluster.topic_ids(["orders"]).ids) == (None, {})


def test_a_partition_without_a_leader_holds_up_no_answer_about_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    mock = MockCluster()
    mock.create_topic("orders")
    mock.leaderless("orders", 2)
    asked: list[set[Partition]] = []

    def log_bounds(_: object, partitions: set[Partition], __: str) -> tuple[dict[Partition, tuple[int, int]], object]:
        asked.append(partitions)
        return dict.fromkeys(partitions, (0, 0)), {}

    monkeypatch.setattr(kafka_cluster, "log_bounds", log_bounds)
    cluster = KafkaCluster(client_settings({"bootstrap.servers": mock.bootstrap_servers}, "test"))
    answers = cluster.ask_bounds([("orders", number) for number in range(4)], "read_committed")
    assert asked == [{("orders", 0), ("orders", 1), ("orders", 3)}], "librdkafka waits for a leader of all of them"
    assert isinstance(answers.pop(("orders", 2)), PartitionUnavailable)
    assert set(answers.values()) == {LogBounds(0, 0)}
