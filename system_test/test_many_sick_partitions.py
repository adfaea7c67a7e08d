"""More sick partitions than a pool has threads, beside healthy ones: a real service, librdkafka's mock cluster."""

import threading
from pathlib import Path

import pytest

from archiver.ingest.buffer import BufferFolder
from archiver.ingest.service import CLAIMS_AT_ONCE, COMMITS_AT_ONCE, ArchiverService
from archiver.monitor.snapshot import ServiceSnapshot
from blockgz import elastic_pool
from blockgz.config.model import RunConfig
from blockgz.store.local import LocalStore
from blockgz.store.writer import Body, StoredObject
from system_test.test_one_sick_partition import running, until
from tests.support.archives import records
from tests.support.mock_cluster import PARTITIONS, MockCluster

RECORDS = 100
SICK_TOPICS = [f"sick-{number}" for number in range(max(CLAIMS_AT_ONCE, COMMITS_AT_ONCE) // PARTITIONS + 2)]


class HangingStore(LocalStore):
    """Answers nothing about sick topics while it hangs: neither what a claim reads nor what a commit writes."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads, self.writes = threading.Event(), threading.Event()
        self.reads.set()
        self.writes.set()

    def get(self, key: str) -> StoredObject | None:
        if "topic=sick" in key and "partition=" in key:
            self.reads.wait()
        return super().get(key)

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        if "topic=sick" in key and "partition=" in key:
            self.writes.wait()
        return super().put_if_absent(key, body, attempt)


@pytest.fixture
def mock() -> MockCluster:
    cluster = MockCluster()
    for topic in ("orders", *SICK_TOPICS):
        fill(cluster, topic)
    return cluster


def fill(cluster: MockCluster, topic: str) -> None:
    for number in range(PARTITIONS):
        cluster.produce(topic, number, records(range(RECORDS)))


@pytest.fixture
def store(tmp_path: Path) -> HangingStore:
    return HangingStore(tmp_path / "archive")


@pytest.fixture
def service(mock: MockCluster, store: HangingStore, tmp_path: Path) -> ArchiverService:
    config = RunConfig(
        archive=store.url,
        bootstrap_servers=mock.bootstrap_servers,
        topics=("orders*", "sick-*"),
        single_writer=True,
        chunk_records=RECORDS,
        topic_refresh=1,
        kafka={"session.timeout.ms": "6000"},  # so long the mock cluster takes to assign new topics
    )
    return ArchiverService(config, store, BufferFolder(tmp_path / "buffer"))


def archived(topic: str, seen: ServiceSnapshot) -> int:
    """Records of the topic in the archive."""
    return sum(each.records for each in seen.partitions if each.topic == topic)


def check_the_others(service: ArchiverService, mock: MockCluster) -> None:
    """What is healthy is archived, and so is a topic that comes later."""
    until(service, lambda seen: archived("orders", seen) == PARTITIONS * RECORDS, "healthy partitions are archived")
    fill(mock, "orders-2")
    until(service, lambda seen: archived("orders-2", seen) == PARTITIONS * RECORDS, "the new topic is archived")
    assert not any(archived(topic, service.snapshot()) for topic in SICK_TOPICS)


def test_partitions_without_a_leader(service: ArchiverService, mock: MockCluster) -> None:
    for topic in SICK_TOPICS:
        for number in range(PARTITIONS):
            mock.leaderless(topic, number)
    with running(service):
        check_the_others(service, mock)


@pytest.mark.parametrize("hangs", ["reads", "writes"], ids=["claims", "commits"])
def test_what_the_store_does_not_answer(
    service: ArchiverService, mock: MockCluster, store: HangingStore, hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(elastic_pool, "STALLED_SECONDS", 1.0)
    hanging: threading.Event = getattr(store, hangs)
    hanging.clear()
    with running(service):
        try:
            check_the_others(service, mock)
        finally:
            hanging.set()
        until(service, lambda seen: all(archived(topic, seen) for topic in SICK_TOPICS), "the sick ones catch up")
