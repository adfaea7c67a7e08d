import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from blockgz.errors import UsageError
from blockgz.kafka.groups import CommittedOffset, OffsetsClient
from blockgz.kafka.settings import client_settings, make_client
from tests.support.mock_cluster import MockCluster

OFFSET_FETCH, NOT_COORDINATOR = 9, 16
"""Kafka's numbers of the request and of the error."""


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
