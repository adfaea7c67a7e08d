"""How much the consumer takes at a time, and what it may not do."""

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from archiver import kafka_source
from archiver.config import RunConfig
from archiver.errors import NotPermitted
from archiver.kafka_settings import consumer_settings
from archiver.kafka_source import (
    BYTES_A_POLL,
    FIRST_MESSAGES_A_POLL,
    MOST_MESSAGES_A_POLL,
    KafkaSource,
    messages_a_poll,
)
from tests.support.mock_cluster import FIND_COORDINATOR, MockCluster


@pytest.mark.parametrize("record_bytes", [10, 500, 20_000, 1_000_000, 10 * BYTES_A_POLL])
def test_a_poll_takes_a_bounded_number_of_bytes(record_bytes: int) -> None:
    asked = FIRST_MESSAGES_A_POLL
    for _ in range(4):
        asked = messages_a_poll(asked, asked * record_bytes, asked)
    assert asked == max(1, min(MOST_MESSAGES_A_POLL, BYTES_A_POLL // record_bytes))


def test_polls_grow_step_by_step_where_records_turn_small() -> None:
    assert [messages_a_poll(1, 10, 1), messages_a_poll(8, 80, 8)] == [8, 64]


def test_a_poll_without_records_changes_nothing() -> None:
    assert messages_a_poll(0, 0, 17) == 17


@pytest.mark.parametrize(("key", "headers"), [(b"k" * 200_000, []), (b"k", [("trace", b"t" * 200_000)])])
def test_keys_and_headers_count_as_values_do(
    monkeypatch: pytest.MonkeyPatch, key: bytes, headers: list[tuple[str, bytes]]
) -> None:
    asked: list[int] = []

    class Client:
        """A log without end."""

        def consume(self, count: int, _: float) -> list[Message]:
            asked.append(count)
            offsets = range(sum(asked), sum(asked) + min(count, 50))
            times = (1, 1_700_000_000_000)
            return [Message("orders", 0, offset, key, b"v", headers, timestamp=times) for offset in offsets]

        def incremental_assign(self, _: object) -> None:
            """Nothing to do."""

    monkeypatch.setattr(kafka_source, "make_client", lambda *_: Client())
    source = KafkaSource({}, gathering_bytes=1)
    source.consume({("orders", 0): 0})
    for _ in range(3):
        assert source.poll()
    assert asked[-1] == BYTES_A_POLL // 200_000


def test_a_group_that_may_not_be_joined_is_no_silence() -> None:
    cluster = MockCluster()
    cluster.create_topic("orders")
    cluster.refuse(FIND_COORDINATOR, KafkaError.GROUP_AUTHORIZATION_FAILED, times=100)
    config = RunConfig(archive="./archive", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    source = KafkaSource(consumer_settings(config, queue_bytes=1), gathering_bytes=1)
    listener: Any = None
    try:
        source.subscribe(["orders"], listener)
        deadline = time.monotonic() + 20
        with pytest.raises(NotPermitted, match="group"):
            while time.monotonic() < deadline:
                source.poll()
    finally:
        source.close()
