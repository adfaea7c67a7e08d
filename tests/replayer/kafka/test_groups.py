"""Against librdkafka's mock cluster, which does not list its groups: they are made up."""

import pytest
from confluent_kafka import Consumer, TopicPartition

from blockgz_runtime.kafka.cluster_groups import ClusterGroups
from replayer.kafka.groups import GroupsInTopic, KafkaGroups
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
    monkeypatch.setattr(ClusterGroups, "ids", lambda _: ["search", "billing"])
    groups = KafkaGroups(settings)
    assert groups.in_topic("orders", 4) == GroupsInTopic(("billing",), ())
    assert groups.in_topic("orders", 4, seconds=0) == GroupsInTopic((), ("billing", "search"))
    mock.refuse(OFFSET_FETCH, NOT_COORDINATOR, 2)
    assert groups.in_topic("orders", 4) == GroupsInTopic((), ("billing", "search")), "nothing crashes"
