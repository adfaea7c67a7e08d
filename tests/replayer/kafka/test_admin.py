"""The Kafka edges: settings, errors, questions to the cluster, reading."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from blockgz.errors import AccessDenied, BlockgzError, BrokerUnreachable, PartitionUnavailable, UsageError
from blockgz.errors import exit_code as exit_code_of
from blockgz.kafka import LogBounds
from blockgz.kafka.connection import client_settings, kafka_failure, make_client
from blockgz.kafka.groups import GroupMembers, KafkaGroups
from index_format.records import Record, iter_records
from replayer.kafka import admin
from replayer.kafka.admin import KafkaAdmin, TopicChanges, kafka_groups
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import NewTopic, TopicFacts
from replayer.replay.sinks.producer import producer_settings
from tests.support.archives import records
from tests.support.mock_cluster import MockCluster

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture
def properties(cluster: MockCluster) -> dict[str, str]:
    return {"bootstrap.servers": cluster.bootstrap_servers}


@pytest.fixture
def reader(properties: dict[str, str]) -> Iterator[KafkaReader]:
    opened = KafkaReader(properties)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "no Kafka cluster is given"),
        ({**NOWHERE, "no.such.property": "1"}, 'No such configuration property: "no.such.property"'),
        ({**NOWHERE, "linger.ms": "soon"}, "Invalid value"),
        ({**NOWHERE, "error_cb": "x"}, "cannot be set"),
    ],
)
def test_settings_that_cannot_be_are_the_users_mistake(given: dict[str, str], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_client(AdminClient, client_settings(given, "test"))
    assert expected in f"{caught.value.what} {caught.value.why}"
    assert caught.value.remedy
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", ["acks", "enable.idempotence", "max.in.flight.requests.per.connection"])
def test_what_order_rests_on_cannot_be_overridden(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        producer_settings({**NOWHERE, name: "1"}, None)


@pytest.mark.slow
def test_a_broker_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1") as caught:
        KafkaAdmin(NOWHERE)
    assert "Connection refused" in caught.value.why
    assert caught.value.remedy
    assert "127.0.0.1:1/" not in "".join(capfd.readouterr()), "librdkafka's own log"


@pytest.mark.parametrize(
    ("code", "expected", "exit_code"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, AccessDenied, 12),
        (KafkaError._AUTHENTICATION, AccessDenied, 12),
        (KafkaError.SASL_AUTHENTICATION_FAILED, AccessDenied, 12),
        (KafkaError._TRANSPORT, BrokerUnreachable, 1),
        (KafkaError.INVALID_REQUEST, PartitionUnavailable, 1),
    ],
)
def test_errors_of_librdkafka(code: int, expected: type[Exception], exit_code: int) -> None:
    failure = kafka_failure(KafkaError(code), "it failed")
    assert isinstance(failure, expected)
    assert (failure.what, exit_code_of(failure)) == ("it failed", exit_code)
    assert failure.why


def test_facts_and_watermarks(cluster: MockCluster, properties: dict[str, str]) -> None:
    cluster.produce("facts", 2, records(range(5)))
    admin = KafkaAdmin(properties)
    assert admin.topic("facts") == TopicFacts("facts", 4, None, None)
    assert "facts" in admin.topics
    assert admin.topic("no-such-topic") is None
    assert "no-such-topic" not in KafkaAdmin(properties).topics, "asking must not create it"
    assert admin.watermarks("facts", [1, 2]) == {1: LogBounds(0, 0), 2: LogBounds(0, 5)}
    with pytest.raises(PartitionUnavailable):
        admin.watermarks("facts", [17])


@pytest.mark.parametrize(("start", "end"), [(0, 30), (0, 10), (7, 8), (29, 30), (12, 12), (30, 30)])
def test_reads_from_one_offset_to_another(cluster: MockCluster, reader: KafkaReader, start: int, end: int) -> None:
    topic = f"read-{start}-{end}"
    cluster.produce(topic, 1, records(range(30)))
    found = [record.offset for batch in reader.read(topic, 1, start, end) for record in iter_records(batch)]
    assert found == list(range(start, end))


def test_reads_one_partition_after_the_other(cluster: MockCluster, reader: KafkaReader) -> None:
    made = {partition: records(range(10 + partition)) for partition in range(3)}
    for partition, some in made.items():
        cluster.produce("several", partition, some)
    for partition, some in made.items():
        read = [r for batch in reader.read("several", partition, 0, len(some)) for r in iter_records(batch)]
        assert read == [record._replace(headers=tuple(record.headers)) for record in some]


def test_reads_oddities_as_they_are(cluster: MockCluster, reader: KafkaReader) -> None:
    made = [
        Record(0, 1, 0, None, None, ()),
        Record(1, 2, 0, b"", b"", (("h", None), ("h", b""), ("ü", b"\xff"))),
        Record(2, 1, 0, bytes(range(256)), b"\n\0", ()),
    ]
    cluster.produce("odd", 0, made)
    assert [record for batch in reader.read("odd", 0, 0, 3) for record in iter_records(batch)] == made


def test_an_offset_that_is_gone_is_an_error(cluster: MockCluster, reader: KafkaReader) -> None:
    cluster.produce("gone", 0, records(range(3)))
    with pytest.raises(PartitionUnavailable, match="gone:0 cannot be read from the wanted offset"):
        list(reader.read("gone", 0, 10, 20))


def test_no_more_is_asked_for_than_there_is(
    cluster: MockCluster, reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll for more waits all of its time: many short partitions took a tenth of a second each."""
    cluster.produce("short", 0, records(range(5)))
    consumer, asked = reader._consumer, list[int]()

    class Asked:
        def consume(self, most: int, seconds: float) -> object:
            asked.append(most)
            return consumer.consume(most, seconds)

        def __getattr__(self, name: str) -> object:
            return getattr(consumer, name)

    monkeypatch.setattr(reader, "_consumer", Asked())
    assert sum(batch.num_rows for batch in reader.read("short", 0, 0, 4)) == 4
    assert max(asked) == 4


def test_a_topic_that_is_made_later_is_known_again(cluster: MockCluster, properties: dict[str, str]) -> None:
    admin = KafkaAdmin(properties)
    cluster.create_topic("later", 3)
    assert admin.topic("later") is None
    assert admin.again().topic("later") == TopicFacts("later", 3, None, None)


def test_a_topic_that_was_created_outlasts_a_broker_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Creating waits for leaders; a question in between may meet no broker."""
    led = SimpleNamespace(partitions={0: SimpleNamespace(leader=1)})
    answers: list[object] = [KafkaException(KafkaError(KafkaError._TRANSPORT)), SimpleNamespace(topics={"new": led})]

    def list_topics(*_: object, timeout: float) -> object:
        answer = answers.pop(0)
        if isinstance(answer, KafkaException):
            raise answer
        return answer

    created: Future[None] = Future()
    created.set_result(None)
    admin = SimpleNamespace(list_topics=list_topics, create_topics=lambda *_, **__: {"new": created})
    changes = TopicChanges(NOWHERE)
    monkeypatch.setattr(changes, "_admin", admin)
    changes.create(NewTopic("new", 1, {}))
    assert not answers


Place = tuple[str, int]


def asking(monkeypatch: pytest.MonkeyPatch, *codes: int) -> tuple[admin.KafkaAdmin, list[list[Place]]]:
    """Partition 1 fails with one code after the other, then answers."""
    asked: list[list[Place]] = []
    failing = list(codes)

    def log_bounds(_admin: Any, places: Iterable[Place], _level: str) -> Any:
        asked.append(list(places))
        failures = {("t", 1): KafkaError(failing.pop(0))} if failing else {}
        return {place: (0, 5) for place in asked[-1] if place not in failures}, failures

    monkeypatch.setattr(admin, "log_bounds", log_bounds)
    monkeypatch.setattr(admin, "ASK_AGAIN_SECONDS", 0)
    asker = object.__new__(admin.KafkaAdmin)
    asker._admin = None  # type: ignore[assignment]
    return asker, asked


def test_a_broker_that_does_not_lead_yet_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, asked = asking(monkeypatch, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_LEADER_EPOCH)
    assert asker.watermarks("t", [1, 0]) == {0: LogBounds(0, 5), 1: LogBounds(0, 5)}
    assert asked == [[("t", 0), ("t", 1)], [("t", 1)], [("t", 1)]]


def test_another_failure_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, asked = asking(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(BlockgzError):
        asker.watermarks("t", [0, 1])
    assert len(asked) == 1


def test_a_broker_that_never_leads_is_not_asked_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    asker, asked = asking(monkeypatch, KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(BlockgzError):
        asker.watermarks("t", [0, 1], patience=-1)
    assert len(asked) == 1


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
