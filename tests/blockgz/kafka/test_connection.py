"""Waiting for a broker that is slow, gone, or refuses the credentials."""

import math
from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException

from archiver.ingest.kafka_cluster import KafkaCluster
from blockgz.errors import AccessDenied, BrokerUnreachable
from blockgz.kafka import connection
from blockgz.kafka.connection import ConnectionErrors, cluster_metadata
from blockgz.kafka.settings import client_settings

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
