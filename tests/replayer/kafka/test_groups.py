"""Against librdkafka's mock cluster, which does not list its groups: they are made up."""

from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition

from blockgz.errors import BrokerUnreachable
from blockgz.kafka.groups import GroupMembers, KafkaGroups
from replayer.kafka.admin import kafka_groups
from tests.support.mock_cluster import MockCluster

OFFSET_FETCH, NOT_COORDINATOR = 9, 16
"""Kafka's numbers of the request and of the error."""


def test_groups_with_a_position_in_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    mock = MockCluster()
    mock.create_topic("orders")
    settings = {"bootstrap.servers": mock.bootstrap_servers}
    consumer = Consumer({**settings, "group.id": "billing"})
    consumer.commit(offsets=[TopicPartition("orders", 3, 0)], asynchronous=False)
    consumer.close()
    monkeypatch.setattr(KafkaGroups, "ids", lambda _: ["search", "billing"])
    groups = kafka_groups(settings)
    assert groups.in_topic("orders", 4) == (("billing",), ())
    assert groups.in_topic("orders", 4, seconds=0) == ((), ("billing", "search"))
    mock.refuse(OFFSET_FETCH, NOT_COORDINATOR, 2)
    assert groups.in_topic("orders", 4) == ((), ("billing", "search")), "nothing crashes"


class FakeAdmin:
    """Lists two groups; a third one is known to a broker that may be silent."""

    def __init__(self) -> None:
        self.failures: list[KafkaException] = []

    def list_consumer_groups(self, **_: float) -> SimpleNamespace:
        """See AdminClient."""
        states = {"billing": ConsumerGroupState.STABLE, "search": ConsumerGroupState.EMPTY}
        valid = [SimpleNamespace(group_id=group, state=state) for group, state in states.items()]
        return SimpleNamespace(result=lambda timeout: SimpleNamespace(valid=valid, errors=self.failures))

    def list_groups(self, group: str, **_: float) -> list[SimpleNamespace]:
        """See AdminClient."""
        assert group == "billing", "the others have no members"
        return [SimpleNamespace(members=[SimpleNamespace(client_id="b"), SimpleNamespace(client_id="a")])]


def test_who_is_at_work_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, admin = kafka_groups({"bootstrap.servers": "127.0.0.1:1"}), FakeAdmin()
    monkeypatch.setattr(groups, "_admin", admin)
    wanted = ["billing", "search", "gone"]
    assert groups.members(wanted) == {
        "billing": GroupMembers(active=True, state="STABLE", clients=("a", "b")),
        "search": GroupMembers(active=False, state="EMPTY"),
        "gone": GroupMembers(active=False, state="DEAD"),
    }
    admin.failures = [KafkaException(KafkaError(KafkaError._TRANSPORT))]
    with pytest.raises(BrokerUnreachable, match="cannot be listed"):
        groups.members(wanted)  # the silent broker may know them
