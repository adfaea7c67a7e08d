"""Partitions that wait to be claimed, of which some have no leader."""

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest

from archiver.ingest.kafka_cluster import BoundsOrFailure
from archiver.ingest.kafka_source import Partition
from archiver.ingest.ownership import ClaimQueue
from blockgz.errors import PartitionUnavailable
from blockgz.kafka import LogBounds
from index_format.errors import BlockgzError

SECONDS = 10
THREADS = 2


def test_bounds_are_asked_for_in_a_batch_and_sick_partitions_take_no_thread() -> None:
    partitions = [("orders", number) for number in range(40)]
    sick = set(partitions[:30])
    asked: list[Collection[Partition]] = []
    threads = set[str]()

    def ask(wanted: Collection[Partition]) -> dict[Partition, BoundsOrFailure]:
        asked.append(wanted)
        return {each: PartitionUnavailable("no leader") if each in sick else LogBounds(1, each[1]) for each in wanted}

    def claim(partition: Partition, bounds: LogBounds) -> tuple[Partition, LogBounds]:
        assert partition not in sick
        threads.add(threading.current_thread().name)
        return partition, bounds

    with ThreadPoolExecutor(THREADS) as executor:
        queue: ClaimQueue[tuple[Partition, LogBounds]] = ClaimQueue(ask, executor)
        claims = {partition: queue.submit(partition, claim) for partition in partitions}
        queue.ask()
        for partition, result in claims.items():
            if partition in sick:
                with pytest.raises(PartitionUnavailable):
                    result.result(SECONDS)
            else:
                assert result.result(SECONDS) == (partition, LogBounds(1, partition[1]))
        queue.ask()
        again = queue.submit(("orders", 39), claim)
        queue.ask()
        again.result(SECONDS)
    assert asked == [partitions, [("orders", 39)]]


def test_what_a_claim_raises_is_its_results() -> None:
    def claim(partition: Partition, bounds: LogBounds) -> None:
        raise KeyError("x")

    with ThreadPoolExecutor(THREADS) as executor:
        queue: ClaimQueue[None] = ClaimQueue(lambda each: dict.fromkeys(each, LogBounds(0, 0)), executor)
        result = queue.submit(("orders", 0), claim)
        queue.ask()
        failure = result.exception(SECONDS)
    assert isinstance(failure, BlockgzError) and isinstance(failure.__cause__, KeyError)


def test_a_fault_of_our_own_leaves_no_claim_waiting_forever() -> None:
    def ask(_: object) -> dict[Partition, LogBounds]:
        raise KeyError("x")

    with ThreadPoolExecutor(THREADS) as executor:
        queue: ClaimQueue[None] = ClaimQueue(ask, executor)
        results = [queue.submit(("orders", number), lambda *_: None) for number in range(3)]
        queue.ask()
        assert all(isinstance(result.exception(SECONDS), BlockgzError) for result in results)
