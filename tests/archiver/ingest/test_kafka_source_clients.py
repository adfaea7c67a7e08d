"""KafkaSource tells the same whichever client fetches, against librdkafka's mock cluster."""

import random
import time
from typing import Any

import pytest

from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import (
    EndReached,
    Event,
    Fetched,
    KafkaSource,
    Partition,
    PartitionFailed,
    RecordRefused,
)
from blockgz.config.model import RunConfig
from index_format.records import Record, iter_records
from tests.support.fetch_clients import fetch_with, needs_kernel
from tests.support.mock_cluster import MockCluster

NOW = 1_700_000_000_000
DEADLINE_SECONDS = 30
LOGS: list[Partition] = [("orders", number) for number in range(4)]


def filled(cluster: MockCluster, source: random.Random) -> None:
    """Three logs with new leaders and unreadable records among many; the fourth is empty."""
    for topic, number in LOGS[:3]:
        for _ in range(6):
            value = source.randbytes(source.choice([0, 10, 3000]))
            headers = [("trace", b"t")] if source.random() < 0.3 else []
            count = source.randrange(1, 300)
            cluster.produce(topic, number, [Record(0, NOW, 0, source.choice([None, b"k"]), value, headers)] * count)
            if source.random() < 0.5:
                cluster.produce_raw_headers(topic, number, b"v", [b"\xff"])
            if source.random() < 0.5:
                cluster.elect(topic, number)


def told(source: KafkaSource, positions: dict[Partition, int]) -> dict[Partition, list[Any]]:
    """What came of each partition, record by record, until it ended or failed."""
    story: dict[Partition, list[Any]] = {partition: [] for partition in positions}
    over: set[Partition] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    source.consume(positions)
    while len(over) < len(positions):
        assert time.monotonic() < deadline, story
        for event in source.poll():
            story[event.partition] += parts(event)
            if isinstance(event, EndReached | PartitionFailed):
                over.add(event.partition)
    return story


def parts(event: Event) -> list[Any]:
    match event:
        case Fetched(batch=batch, leader_epoch=epoch):
            return [(record, epoch) for record in iter_records(batch)]
        case RecordRefused(record=record):
            # It is written by the clock of the producer.
            return ["unreadable", record._replace(timestamp=0), event.error.what, event.error.remedy]
        case EndReached(position=position):
            return ["end", position]
        case PartitionFailed(error=error):
            return ["failed", type(error), error.what, error.why]


@needs_kernel
def test_both_clients_tell_the_same_of_random_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = time.time_ns()
    print("seed", seed)
    chance = random.Random(seed)
    cluster = MockCluster()
    filled(cluster, chance)
    config = RunConfig(archive="./archive", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",), once=True)
    positions = {partition: chance.randrange(3) for partition in LOGS[:3]} | {LOGS[3]: chance.choice([0, 70])}
    stories = []
    for kind in ("kernel", "confluent"):
        with monkeypatch.context() as patch:
            fetch_with(kind, patch)
            batching_bytes = chance.choice([1, 10**9])
            source = KafkaSource(consumer_settings(config, queue_bytes=1), batching_bytes, poll_seconds=0.01)
        try:
            stories.append(told(source, positions))
        finally:
            source.close()
    assert stories[0] == stories[1]
    assert sum(map(len, stories[0].values())) > 18
