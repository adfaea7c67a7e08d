"""A group in which another archive commits is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from archiver.errors import GroupOfAnother
from archiver.ingest.assignment import OWNERS_SECONDS, GroupOffsets
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_source import KafkaSource, Partition
from blockgz.errors import BrokerUnreachable, exit_code
from tests.support.executors import Later
from tests.support.mock_cluster import MockCluster

ORDERS = ("orders", 1)
OFFSET_FETCH, NOT_COORDINATOR = 9, 16
"""Kafka's numbers of the request and of the error."""
Answer = Mapping[Partition, str] | BrokerUnreachable


class Asked:
    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.topics: list[Sequence[str]] = []

    def __call__(self, topics: Sequence[str]) -> Mapping[Partition, str]:
        self.topics.append(topics)
        answer = self.answers.pop(0)
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer


def test_before_subscribing() -> None:
    for answer in ({}, {ORDERS: "mine"}, BrokerUnreachable("no answer")):
        GroupOffsets("group", "mine", Asked(answer), Later()).check(["orders"])
    with pytest.raises(GroupOfAnother) as caught:
        GroupOffsets("group", "mine", Asked({("orders", 0): "mine", ORDERS: "theirs"}), Later()).check(["orders"])
    assert exit_code(caught.value) == 11
    assert all(text in str(caught.value.why) for text in ("orders:1", "theirs", "mine"))
    assert "--group-id" in caught.value.remedy and "--takeover" in caught.value.remedy


def test_with_commits_and_without_waiting() -> None:
    asked, later = Asked({ORDERS: "mine"}, BrokerUnreachable("no answer"), {ORDERS: "theirs"}), Later()
    offsets = GroupOffsets("group", "mine", asked, later)
    offsets.check_again(["orders"], 1000)
    offsets.check_again(["orders"], 1000 + OWNERS_SECONDS)
    assert not asked.topics, "one question at a time, and nobody waits for it"
    later.carry_out()
    offsets.check_again(["orders"], 1001)
    offsets.check_again(["orders"], 1000 + OWNERS_SECONDS)
    assert not later.submitted, "not with every commit"
    offsets.check_again(["orders", "payments"], 1001 + OWNERS_SECONDS)
    later.carry_out()
    offsets.check_again(["orders"], 1001 + OWNERS_SECONDS)
    offsets.check_again(["orders"], 1001 + 2 * OWNERS_SECONDS)
    later.carry_out()
    assert asked.topics == [["orders"], ["orders", "payments"], ["orders"]]
    with pytest.raises(GroupOfAnother):
        offsets.check_again(["orders"], 1002 + 2 * OWNERS_SECONDS)


def test_what_a_cluster_tells() -> None:
    cluster = MockCluster()
    for topic in ("orders", "payments"):
        cluster.create_topic(topic)
    settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "group"}
    former = Consumer(settings)
    former.commit(offsets=[TopicPartition("orders", 0, 5), TopicPartition("payments", 0, 5, "b")], asynchronous=False)
    former.close()
    source = KafkaSource(settings, 1024**2, metadata="archive-1")
    source.commit({ORDERS: 7})
    source.close()
    asked = KafkaCluster({"bootstrap.servers": cluster.bootstrap_servers})
    assert asked.committed_metadata("group", ["orders"]) == {ORDERS: "archive-1"}
    assert asked.committed_metadata("group", ["orders", "missing", "payments"]) == {
        ORDERS: "archive-1",
        ("payments", 0): "b",
    }
    assert asked.committed_metadata("another", ["orders"]) == {}
    assert asked.committed_metadata("group", []) == {}
    cluster.refuse(OFFSET_FETCH, NOT_COORDINATOR, 1)
    with pytest.raises(BrokerUnreachable):  # and the process lives on
        asked.committed_metadata("group", ["orders"])
    assert asked.committed_metadata("group", ["orders"]) == {ORDERS: "archive-1"}
