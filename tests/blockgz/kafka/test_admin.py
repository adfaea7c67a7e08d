"""Questions to a cluster: those that may not be asked, that hang, or that only a child process may ask."""

import json
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from archiver.ingest.kafka_cluster import KafkaCluster
from blockgz.errors import AccessDenied, BrokerUnreachable, PartitionUnavailable, UsageError
from blockgz.kafka import admin_apart, connection
from blockgz.kafka.admin import answered, log_bounds, topic_id, topic_ids
from blockgz.kafka.admin_apart import AdminApart
from blockgz.kafka.connection import ConnectionErrors, client_settings, cluster_metadata, make_client
from blockgz.kafka.groups import CommittedOffset, GroupAnswers, KafkaGroups, OffsetsClient
from index_format.errors import BlockgzError
from index_format.groups import GroupPosition
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


PROPERTIES = {"bootstrap.servers": "127.0.0.1:1", "sasl.password": "${env:PASSWORD_OF_A_TEST}"}


def apart(child: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AdminApart:
    """A client whose child process is this program."""
    script = tmp_path / "child.py"
    script.write_text(child)
    monkeypatch.setattr(admin_apart, "__file__", str(script))
    monkeypatch.setenv("PASSWORD_OF_A_TEST", "hunter2")
    client: AdminApart = make_client(AdminApart, client_settings(PROPERTIES, "test"))
    monkeypatch.delenv("PASSWORD_OF_A_TEST")
    return client


@pytest.mark.parametrize("end", ["import os; os.abort()", "raise SystemExit(1)"])
def test_a_child_that_dies_is_an_error_of_the_connection(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KafkaException) as raised:
        apart(end, tmp_path, monkeypatch).delete_group("g", 1)
    assert raised.value.args[0].code() == KafkaError._TRANSPORT
    assert "a broker went away" in raised.value.args[0].str()


def test_a_child_that_gives_no_answer_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_apart, "START_SECONDS", 0.1)
    with pytest.raises(KafkaException) as raised:
        apart("import signal; signal.pause()", tmp_path, monkeypatch).cluster_operations(0)
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT


def test_settings_go_through_the_pipe_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = """
import json, sys
question = json.load(sys.stdin)
seen = open("/proc/self/cmdline").read() + open("/proc/self/environ").read()
password = question["settings"]["sasl.password"]
json.dump({"operations": [question["call"], question["group_id"], password, str(password in seen)]}, sys.stdout)
"""
    told = apart(child, tmp_path, monkeypatch).group_operations("g", 1)
    assert told == {"describe_consumer_groups", "g", "hunter2", "False"}


def test_an_error_is_raised_as_it_was_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = json.dumps({"error": [KafkaError.GROUP_ID_NOT_FOUND, "no such group"]})
    with pytest.raises(KafkaException) as raised:
        apart(f"print({answer!r})", tmp_path, monkeypatch).delete_group("g", 1)
    assert (raised.value.args[0].code(), raised.value.args[0].str()) == (KafkaError.GROUP_ID_NOT_FOUND, "no such group")


def test_without_a_broker_the_call_times_out() -> None:
    client: AdminApart = make_client(AdminApart, client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    with pytest.raises(KafkaException) as raised:
        client.cluster_operations(0.1)
    assert raised.value.args[0].code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT)
    assert "ended with" not in raised.value.args[0].str()


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
    answers, failures = mocked.asked("billing", "search", "new")
    assert failures == {}
    assert {group_id: answer.positions for group_id, answer in answers.items()} == {
        "billing": {"orders": (GroupPosition(0, 7, "host-7"), GroupPosition(3, 5, None))},
        "search": {"orders": (GroupPosition(1, 2, None),), "payments": (GroupPosition(1, 0, None),)},
        "new": {},
    }
    assert all(before <= answer.asked_at <= round(time.time() * 1000) for answer in answers.values())


def test_an_answer_has_the_time_at_which_it_came() -> None:
    """A table of that time would hold what was committed after it otherwise."""
    mocked = Mocked()
    mocked.commit("billing", TopicPartition("orders", 0, 7))
    mocked.mock.answer_late(OFFSET_FETCH, 0, 300)
    before = time.time() * 1000
    assert mocked.asked("billing")[0]["billing"].asked_at >= before + 300


def test_a_group_that_gives_no_answer_costs_the_others_nothing() -> None:
    mocked = Mocked()
    mocked.commit("billing", TopicPartition("orders", 0, 7))
    for code in (NOT_COORDINATOR, NOT_ALLOWED):
        mocked.mock.refuse(OFFSET_FETCH, code, 1)
        answers, failures = mocked.asked("billing", "billing")
        assert set(answers) == set(failures) == {"billing"}
        assert isinstance(failures["billing"], BlockgzError)


def test_after_its_time_no_group_is_asked() -> None:
    assert Mocked().asked("billing", seconds=0) == ({}, {})


def test_a_cluster_that_does_not_list_its_groups() -> None:
    with pytest.raises(BlockgzError) as caught:
        Mocked().groups.ids(seconds=0.5)
    assert caught.value.what == "the consumer groups of the cluster cannot be listed"


def test_settings_that_are_refused_are_a_failure() -> None:
    mocked = Mocked()
    groups = KafkaGroups({**mocked.settings, "no.such": "setting"}, mocked.admin)
    _, failures = groups.answers(["billing"], {"orders": 4}, 10)
    assert "no.such" in failures["billing"].why
    assert not isinstance(failures["billing"], BrokerUnreachable)


def test_what_a_group_committed() -> None:
    cluster = MockCluster()
    cluster.create_topic("orders")
    settings = client_settings({"bootstrap.servers": cluster.bootstrap_servers}, "test") | {"group.id": "billing"}
    former = Consumer(settings)
    places = [TopicPartition("orders", 0, 5), TopicPartition("orders", 2, 7, metadata="é")]
    former.commit(offsets=places, asynchronous=False)
    former.close()
    reader: OffsetsClient = make_client(OffsetsClient, settings | {"enable.auto.commit": False})
    every = [("orders", number) for number in range(4)]
    found = [CommittedOffset("orders", 0, 5, b""), CommittedOffset("orders", 2, 7, "é\x00".encode())]
    assert reader.committed(every, 10) == found
    assert reader.committed([("orders", 1)], 10) == []
    assert reader.committed([], 10) == []
    cluster.refuse(OFFSET_FETCH, NOT_COORDINATOR, 1)
    with pytest.raises(KafkaException):  # and the process lives on
        reader.committed(every, 0.3)
    assert reader.committed(every, 10) == found
    reader.close()


def test_what_is_committed_comes_back_byte_by_byte() -> None:
    cluster = MockCluster()
    cluster.create_topic("orders")
    settings = client_settings({"bootstrap.servers": cluster.bootstrap_servers}, "test") | {"group.id": "billing"}
    client: OffsetsClient = make_client(OffsetsClient, settings)
    wanted = [CommittedOffset("orders", number, 5 + number, b"m" * number) for number in range(4)]
    client.commit(wanted)
    assert client.committed([("orders", number) for number in range(4)], 10) == wanted
    client.close()


def test_no_answer_in_time() -> None:
    reader: OffsetsClient = make_client(OffsetsClient, {"bootstrap.servers": "127.0.0.1:1", "group.id": "billing"})
    with pytest.raises(KafkaException):
        reader.committed([("orders", 0)], 0.05)
    reader.close()


@pytest.mark.parametrize("refused", [{"no.such": "1"}, {"ssl.ca.location": "/no/such"}, {"oauth_cb": print}])
def test_settings_that_librdkafka_refuses(refused: dict[str, object]) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "billing", "security.protocol": "ssl", **refused}
    with pytest.raises(UsageError) as caught:
        make_client(OffsetsClient, settings)
    assert caught.value.why


METADATA = object()


class Client:
    """Answers after some attempts; each that fails reports errors."""

    def __init__(self, failures: int, reports: Sequence[KafkaError] = ()) -> None:
        self.failures = failures
        self.reports = reports
        self.connection_errors = ConnectionErrors()
        self.asked = 0

    def list_topics(self, timeout: float) -> object:
        assert timeout < 1
        self.asked += 1
        if self.asked <= self.failures:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no answer"))
        return METADATA

    def poll(self, _: float) -> None:
        for error in self.reports:
            self.connection_errors(error)


def test_a_slow_broker_is_waited_for() -> None:
    client = Client(failures=3)
    assert cluster_metadata(client, client.connection_errors, "host:9092") is METADATA
    assert client.asked == 4


def test_refused_credentials_are_reported_at_once() -> None:
    client = Client(failures=3, reports=[KafkaError(KafkaError._AUTHENTICATION, "wrong password")])
    with pytest.raises(AccessDenied, match="host:9092") as caught:
        cluster_metadata(client, client.connection_errors, "host:9092")
    assert client.asked == 1 and "wrong password" in caught.value.why


def test_troubles_are_forgotten_once_a_broker_answers() -> None:
    client = Client(failures=1, reports=[KafkaError(KafkaError._ALL_BROKERS_DOWN), KafkaError(KafkaError._TRANSPORT)])
    cluster_metadata(client, client.connection_errors, "host:9092")
    assert (client.connection_errors.all_down, client.connection_errors.first, client.connection_errors.denied) == (
        False,
        None,
        None,
    )


@pytest.mark.slow
def test_where_nobody_listens_the_broker_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "BROKER_DEADLINE_SECONDS", math.inf)
    cluster = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1") as caught:
        cluster.bounds([("orders", 0)], "read_uncommitted")
    assert "Connection refused" in caught.value.why
