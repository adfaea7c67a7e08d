"""Against librdkafka's mock cluster, which keeps offsets and does not list groups."""

import time

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from blockgz.errors import BrokerUnreachable
from blockgz.kafka.groups import GroupAnswers, KafkaGroups
from index_format.errors import BlockgzError
from index_format.groups import GroupPosition
from tests.support.mock_cluster import MockCluster

OFFSET_FETCH, NOT_COORDINATOR, NOT_ALLOWED = 9, 16, 30
"""Kafka's numbers of the request and of errors."""


class Mocked:
    def __init__(self) -> None:
        self.mock = MockCluster()
        for topic in ("orders", "payments"):
            self.mock.create_topic(topic)
        self.settings = {"bootstrap.servers": self.mock.bootstrap_servers}
        self.admin = AdminClient(self.settings)
        self.admin.list_topics(timeout=10)
        self.groups = KafkaGroups(self.settings, self.admin)

    def commit(self, group_id: str, *places: TopicPartition) -> None:
        consumer = Consumer({**self.settings, "group.id": group_id})
        consumer.commit(offsets=list(places), asynchronous=False)
        consumer.close()

    def asked(self, *group_ids: str, seconds: float = 10) -> GroupAnswers:
        return self.groups.answers(group_ids, {"orders": 4, "payments": 4}, seconds)


def test_where_groups_stand() -> None:
    mocked = Mocked()
    mocked.commit("billing", TopicPartition("orders", 3, 5), TopicPartition("orders", 0, 7, metadata="host-7"))
    mocked.commit("search", TopicPartition("payments", 1, 0), TopicPartition("orders", 1, 2, metadata="x" * 257))
    before = round(time.time() * 1000)
    asked = mocked.asked("billing", "search", "new")
    assert asked.failures == {}
    assert {group_id: answer.positions for group_id, answer in asked.answers.items()} == {
        "billing": {"orders": (GroupPosition(0, 7, "host-7"), GroupPosition(3, 5, None))},
        "search": {"orders": (GroupPosition(1, 2, None),), "payments": (GroupPosition(1, 0, None),)},
        "new": {},
    }
    assert all(before <= answer.asked_at <= round(time.time() * 1000) for answer in asked.answers.values())


def test_a_group_that_gives_no_answer_costs_the_others_nothing() -> None:
    mocked = Mocked()
    mocked.commit("billing", TopicPartition("orders", 0, 7))
    for code in (NOT_COORDINATOR, NOT_ALLOWED):
        mocked.mock.refuse(OFFSET_FETCH, code, 1)
        asked = mocked.asked("billing", "billing")
        assert set(asked.answers) == set(asked.failures) == {"billing"}
        assert isinstance(asked.failures["billing"], BlockgzError)


def test_after_its_time_no_group_is_asked() -> None:
    assert Mocked().asked("billing", seconds=0) == GroupAnswers({}, {})


def test_a_cluster_that_does_not_list_its_groups() -> None:
    with pytest.raises(BlockgzError) as caught:
        Mocked().groups.ids(seconds=0.5)
    assert caught.value.what == "the consumer groups of the cluster cannot be listed"


def test_settings_that_are_refused_are_a_failure() -> None:
    mocked = Mocked()
    groups = KafkaGroups({**mocked.settings, "no.such": "setting"}, mocked.admin)
    asked = groups.answers(["billing"], {"orders": 4}, 10)
    assert "no.such" in asked.failures["billing"].why
    assert not isinstance(asked.failures["billing"], BrokerUnreachable)
