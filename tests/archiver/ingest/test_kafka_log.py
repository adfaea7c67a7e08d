"""Bounds and single records of logs, on librdkafka's mock cluster."""

import logging
import threading
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from archiver.ingest import kafka_cluster
from archiver.ingest.kafka_cluster import BoundsOrFailure, KafkaCluster, PartitionLog, RecordReader
from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import Partition
from blockgz.config.model import RunConfig
from blockgz.errors import BrokerUnreachable, PartitionUnavailable, ShuttingDown
from blockgz.kafka import LOGGER, LogBounds
from blockgz.kafka.admin import log_bounds
from blockgz.kafka.settings import client_settings
from tests.support.archives import records
from tests.support.mock_cluster import MockCluster

ROWS = records(range(20))


@pytest.fixture(scope="module")
def cluster() -> MockCluster:
    cluster = MockCluster()
    for number in range(4):
        cluster.produce("orders", number, ROWS)
    cluster.create_topic("sick")
    for number in range(4):
        cluster.produce("sick", number, ROWS[:1])
        cluster.leaderless("sick", number)
    return cluster


def new_reader(cluster: MockCluster) -> RecordReader:
    config = RunConfig(archive="./unused", bootstrap_servers=cluster.bootstrap_servers, topics=("orders",))
    return RecordReader(consumer_settings(config, queue_bytes=2**20))


@pytest.fixture
def reader(cluster: MockCluster) -> Iterator[RecordReader]:
    reader = new_reader(cluster)
    yield reader
    reader.close()


def test_records_of_many_logs_at_once(reader: RecordReader) -> None:
    with ThreadPoolExecutor(4) as askers:
        for offset in range(len(ROWS)):
            found = askers.map(lambda number, at=offset: reader.record_at(("orders", number), at), range(4))
            assert list(found) == [ROWS[offset]] * 4


def test_no_record_there(reader: RecordReader) -> None:
    assert reader.record_at(("orders", 0), 20) is None, "the log's end"
    assert reader.record_at(("orders", 0), 1000) is None, "above it"
    found = reader.record_at(("orders", 0), 19)
    assert found is not None and found.offset == 19


def test_the_first_record_from_an_offset_on(cluster: MockCluster, reader: RecordReader) -> None:
    assert reader.first_record(("orders", 0), 7) == 7
    assert reader.first_record(("orders", 0), 20) is None, "the log's end"


def test_a_partition_without_a_leader_meets_its_own_deadline_and_holds_up_nobody(cluster: MockCluster) -> None:
    reader = new_reader(cluster)
    with ThreadPoolExecutor(4) as askers:
        waiting = [askers.submit(reader.record_at, ("sick", number), 0, 600.0) for number in range(3)]
        impatient = askers.submit(reader.record_at, ("sick", 3), 0, 0.5)
        for number in range(4):
            assert reader.record_at(("orders", number), 3) == ROWS[3]
        assert isinstance(impatient.exception(60), BrokerUnreachable)
        assert "the record at sick:3" in str(impatient.exception())
        assert not any(each.done() for each in waiting)
        reader.close()
        assert all(isinstance(each.exception(60), ShuttingDown) for each in waiting)


def test_two_readers_of_one_partition(reader: RecordReader) -> None:
    with ThreadPoolExecutor(2) as askers:
        outcomes = [askers.submit(reader.record_at, ("sick", 1), 0, 0.5).exception for _ in range(2)]
        assert {type(outcome(10)) for outcome in outcomes} == {BrokerUnreachable, PartitionUnavailable}


def test_whoever_waits_at_the_end_is_told(cluster: MockCluster) -> None:
    reader = new_reader(cluster)
    with ThreadPoolExecutor(1) as askers:
        waiting = askers.submit(reader.record_at, ("sick", 0), 0)
        while not reader._wanted:
            assert not waiting.done()
        reader.close()
        assert isinstance(waiting.exception(10), ShuttingDown)
    with pytest.raises(ShuttingDown):
        reader.record_at(("orders", 0), 0)


@pytest.mark.slow
def test_bounds_in_one_question(cluster: MockCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[set[Partition]] = []

    def counted(admin: Any, partitions: Collection[Partition], isolation_level: str) -> Any:
        questions.append(set(partitions))
        return log_bounds(admin, partitions, isolation_level)

    monkeypatch.setattr(kafka_cluster, "log_bounds", counted)
    asked = KafkaCluster({"bootstrap.servers": cluster.bootstrap_servers})
    both = [(topic, number) for topic in ("orders", "sick") for number in range(4)]
    answers = asked.ask_bounds(both, "read_committed")
    assert questions == [{("orders", number) for number in range(4)}], "nobody leads the others"
    assert [answers["orders", number] for number in range(4)] == [LogBounds(0, 20)] * 4
    sick = [answers["sick", number] for number in range(4)]
    assert all(isinstance(each, PartitionUnavailable | BrokerUnreachable) for each in sick)
    nobody = KafkaCluster(client_settings({"bootstrap.servers": "127.0.0.1:1"}, "test"))
    assert isinstance(nobody.ask_bounds([("orders", 0)], "read_committed")["orders", 0], BrokerUnreachable)


def test_bounds_that_are_too_old_are_asked_again() -> None:
    asked: list[Collection[Partition]] = []
    answers: list[BoundsOrFailure] = [LogBounds(0, 30), PartitionUnavailable("no leader")]

    def ask(partitions: Collection[Partition]) -> dict[Partition, BoundsOrFailure]:
        asked.append(partitions)
        return {("orders", 0): answers.pop(0)}

    nothing: Any = None
    log = PartitionLog(("orders", 0), LogBounds(0, 20), ask, nothing, nothing)
    assert log.bounds(20) == LogBounds(0, 20) and not asked
    assert log.bounds(21) == LogBounds(0, 30) and asked == [[("orders", 0)]]
    with pytest.raises(PartitionUnavailable):
        log.bounds(21)


def test_lines_of_an_idle_client_do_not_pile_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kafka_cluster, "SERVE_SECONDS", 0.05)
    logger = logging.getLogger(LOGGER)
    monkeypatch.setattr(logger, "propagate", True)
    config = RunConfig(archive="./archive", bootstrap_servers="127.0.0.1:1", topics=("orders",))
    with caplog.at_level("ERROR", LOGGER):
        reader = RecordReader(consumer_settings(config, queue_bytes=2**20))
        deadline = time.monotonic() + 10
        while not caplog.records:
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        reader.close()
    assert "Connection refused" in caplog.records[0].getMessage()
