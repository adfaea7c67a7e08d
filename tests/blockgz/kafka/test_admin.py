"""What questions that may not be asked are taken for."""

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from blockgz.errors import AccessDenied, PartitionUnavailable
from blockgz.kafka.admin import answered, log_bounds, topic_id, topic_ids
from tests.support.mock_cluster import PARTITIONS, MockCluster

DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
TIMED_OUT = KafkaError(KafkaError._TIMED_OUT)
MISSING = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)


def future(answer: object) -> "Future[object]":
    made: Future[object] = Future()
    if isinstance(answer, KafkaError):
        made.set_exception(KafkaException(answer))
    else:
        made.set_result(answer)
    return made


class Admin:
    """Describes topics by what stands in `answers`."""

    def __init__(self, **answers: object) -> None:
        self._answers = answers

    def describe_topics(self, topics: TopicCollection, request_timeout: float) -> dict[str, "Future[object]"]:
        return {topic: future(self._answers[topic]) for topic in topics.topic_names}


def test_ids_that_may_not_be_asked_are_denied_and_not_unknown() -> None:
    told: Any = Admin(told=SimpleNamespace(topic_id="id"), denied=DENIED, silent=TIMED_OUT, gone=MISSING)
    answers = topic_ids(told, ["told", "denied", "silent", "gone"])
    assert (answers.ids, answers.missing, set(answers.denied)) == ({"told": "id"}, {"gone"}, {"denied"})
    assert "'denied' cannot be described" in answers.denied["denied"].what
    assert answers.denied["denied"].why == "Broker: Topic authorization failed"
    assert (topic_id(told, "told"), topic_id(told, "silent")) == ("id", None)
    for topic, error in (("denied", AccessDenied), ("gone", PartitionUnavailable)):
        with pytest.raises(error):
            topic_id(told, topic)


@pytest.mark.parametrize("answer", [lambda: future(TIMED_OUT), lambda: future(None)])
def test_what_a_broker_does_not_report_is_none(answer: Callable[[], "Future[object]"]) -> None:
    assert answered(answer(), "it cannot be told") is None


def test_what_may_not_be_asked_is_denied() -> None:
    with pytest.raises(AccessDenied, match="it cannot be told"):
        answered(future(DENIED), "it cannot be told")


def test_a_bound_without_an_offset_is_not_an_answer() -> None:
    """A broker that stood still answers so."""

    class Listing:
        def list_offsets(self, asked: dict[TopicPartition, Any], **_: Any) -> dict[TopicPartition, "Future[object]"]:
            return {place: future(SimpleNamespace(offset=-1001 if place.partition else 7)) for place in asked}

        def list_topics(self, timeout: float) -> SimpleNamespace:
            """Nothing is known."""
            return SimpleNamespace(topics={})

    listing: Any = Listing()
    bounds, failures = log_bounds(listing, [("t", 0), ("t", 1)], "read_uncommitted")
    assert bounds == {("t", 0): (7, 7)}
    assert [(place, error.code()) for place, error in failures.items()] == [(("t", 1), KafkaError.LEADER_NOT_AVAILABLE)]


@pytest.mark.parametrize("leaderless", [range(PARTITIONS), range(1)])
def test_a_partition_that_had_no_leader_is_asked_about_anew(leaderless: range) -> None:
    cluster = MockCluster()
    cluster.create_topic("orders")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for partition in leaderless:
        cluster.leaderless("orders", partition)
    admin.list_topics(timeout=10)
    places = [("orders", partition) for partition in range(PARTITIONS)]
    assert log_bounds(admin, places, "read_uncommitted")[1].keys() == {("orders", each) for each in leaderless}
    for partition in leaderless:
        cluster.elect("orders", partition)
    log_bounds(admin, places, "read_uncommitted")
    assert log_bounds(admin, places, "read_uncommitted") == (dict.fromkeys(places, (0, 0)), {})


def test_partitions_that_do_not_exist_are_no_partitions_without_a_leader() -> None:
    cluster = MockCluster()
    cluster.create_topic("orders")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    places = [("orders", 17), ("orders", 18)]
    bounds, failures = log_bounds(admin, places, "read_uncommitted")
    assert not bounds
    assert {place: error.code() for place, error in failures.items()} == dict.fromkeys(
        places, KafkaError._UNKNOWN_PARTITION
    )
