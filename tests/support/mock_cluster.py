"""librdkafka's in-process mock cluster: a broker for clients of this machine, with nothing installed.

It makes topics of four partitions when a client asks for them by name, keeps what is produced, and tells neither
configurations nor topic ids (those requests time out).
"""

import ctypes
import logging
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Producer, cimpl

from index_format.records import Record

PARTITIONS = 4
OFFSET_COMMIT, FIND_COORDINATOR = 8, 10
"""Kafka's numbers of these requests."""

_TOPIC, _PARTITION, _VALUE, _MSGFLAGS, _HEADER, _COPY = 1, 3, 4, 7, 9, 2
"""Kinds of arguments of rd_kafka_producev, and a flag; see rdkafka.h."""

_silent = logging.getLogger("tests.mock_cluster")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class MockCluster:
    """One broker, alive as long as this object."""

    def __init__(self) -> None:
        self._host = Producer({"test.mock.num.brokers": 1, "logger": _silent})
        (broker,) = self._host.list_topics(timeout=10).brokers.values()
        self.bootstrap_servers = f"{broker.host}:{broker.port}"
        self._producer = Producer({"bootstrap.servers": self.bootstrap_servers, "logger": _silent})

        self._library = ctypes.CDLL(cimpl.__file__)
        self._library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_handle_mock_cluster(_handle(self._host)))

    def refuse(self, request: int, error: int, times: int) -> None:
        """Answer so many of the next requests of that kind with an error; see rdkafka_mock.h."""
        errors = (ctypes.c_int * times)(*[error] * times)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(request), ctypes.c_size_t(times), errors
        )

    def answer_late(self, request: int, error: int, milliseconds: int) -> None:
        """Answer the next request of that kind with an error, and so much later."""
        self._library.rd_kafka_mock_broker_push_request_error_rtts(
            self._cluster,
            ctypes.c_int32(1),
            ctypes.c_int16(request),
            ctypes.c_size_t(1),
            ctypes.c_int(error),
            ctypes.c_int(milliseconds),
        )

    def rebalance_at_once(self) -> None:
        """Do not wait for more members of a new group."""
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, ctypes.c_int32(0))

    def refuse_no_more(self, request: int) -> None:
        """Answer requests of that kind again, whatever was still to be refused."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(request))

    def leaderless(self, topic: str, partition: int) -> None:
        """Take the partition's leader away."""
        nobody = ctypes.c_int32(-1)
        assert not self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, nobody)

    def produce_raw_headers(self, topic: str, partition: int, value: bytes, keys: Sequence[bytes]) -> None:
        """Appends a record whose headers have these keys, UTF-8 or not, and no values."""
        self.create_topic(topic)
        arguments: list[Any] = [_TOPIC, topic.encode(), _PARTITION, partition]
        arguments += [_VALUE, value, ctypes.c_size_t(len(value)), _MSGFLAGS, _COPY]
        for key in keys:
            arguments += [_HEADER, key, None, ctypes.c_ssize_t(0)]
        assert not self._library.rd_kafka_producev(_handle(self._producer), *arguments, 0)
        assert self._producer.flush(10) == 0

    def elect(self, topic: str, partition: int) -> None:
        """Begin a new leader epoch of the partition."""
        leader = ctypes.c_int32(1)
        assert not self._library.rd_kafka_mock_partition_set_leader(self._cluster, topic.encode(), partition, leader)

    def create_topic(self, topic: str, partitions: int = PARTITIONS) -> None:
        """A topic of empty partitions; of four, if it is there already."""
        if partitions != PARTITIONS:
            counts = ctypes.c_int(partitions), ctypes.c_int(1)
            assert not self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), *counts)
        self._producer.list_topics(topic, timeout=10)

    def produce(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Appends records as they are, apart from their offsets; their timestamps must not be 0."""
        self.create_topic(topic)
        failures: list[object] = []
        for record in records:
            self._producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        assert self._producer.flush(10) == 0
        assert not failures, failures


def _handle(client: Producer) -> ctypes.c_void_p:
    """The rd_kafka_t of a client."""
    return ctypes.c_void_p.from_address(id(client) + object.__basicsize__)
