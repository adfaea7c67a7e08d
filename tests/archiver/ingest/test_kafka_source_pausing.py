"""What the client does with a partition that is paused alone, against librdkafka's mock cluster."""

import time
from collections.abc import Iterator

import pytest

from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import Fetched, KafkaSource, Partition
from blockgz.config.model import RunConfig
from tests.support.archives import records
from tests.support.fetch_clients import CLIENTS, fetch_with
from tests.support.mock_cluster import MockCluster

RECORDS = 3000
SICK, OTHER = ("orders", 0), ("orders", 1)
DEADLINE_SECONDS = 20


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    cluster = MockCluster()
    for _, number in (SICK, OTHER):
        cluster.produce("orders", number, records(range(RECORDS)))
    return cluster


@pytest.fixture(params=CLIENTS)
def source(
    request: pytest.FixtureRequest, cluster: MockCluster, monkeypatch: pytest.MonkeyPatch
) -> Iterator[KafkaSource]:
    fetch_with(request.param, monkeypatch)
    config = RunConfig(archive="./archive", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    source = KafkaSource(consumer_settings(config, queue_bytes=2**20), batching_bytes=1, poll_seconds=0.01)
    source.consume({SICK: 0, OTHER: 0})
    yield source
    source.close()


class Reading:
    """The offsets that came of each partition, in order."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self.offsets: dict[Partition, list[int]] = {SICK: [], OTHER: []}

    def until(self, partition: Partition, count: int) -> None:
        """Poll until so many records of the partition came."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while len(self.offsets[partition]) < count:
            assert time.monotonic() < deadline, f"{partition}: {len(self.offsets[partition])} records"
            for event in self._source.poll():
                if isinstance(event, Fetched):
                    self.offsets[event.partition] += event.batch.column("offset").to_pylist()


def test_what_was_fetched_ahead_comes_again_after_a_pause(source: KafkaSource) -> None:
    reading = Reading(source)
    for count in range(100, RECORDS, 400):
        reading.until(SICK, count)
        source.pause([SICK])
        so_far = len(reading.offsets[SICK])
        reading.until(OTHER, min(RECORDS, len(reading.offsets[OTHER]) + 100))
        assert len(reading.offsets[SICK]) == so_far, "nothing comes of a paused partition"
        source.resume([SICK])
    for partition, offsets in reading.offsets.items():
        reading.until(partition, RECORDS)
        assert offsets == list(range(RECORDS)), "nothing is lost, nothing comes twice"


def test_the_others_are_read_to_their_end_meanwhile(source: KafkaSource) -> None:
    reading = Reading(source)
    reading.until(SICK, 1)
    source.pause([SICK])
    so_far = len(reading.offsets[SICK])
    reading.until(OTHER, RECORDS)
    assert len(reading.offsets[SICK]) == so_far


def test_a_partition_that_is_consumed_again_is_not_paused(source: KafkaSource) -> None:
    """The client itself would keep it paused."""
    reading = Reading(source)
    reading.until(SICK, 1)
    source.pause([SICK])
    source.release([SICK])
    source.resume([SICK])  # of what is not consumed there is nothing to resume
    reading.offsets[SICK].clear()
    source.consume({SICK: 40})
    reading.until(SICK, RECORDS - 40)
    assert reading.offsets[SICK] == list(range(40, RECORDS))
