"""Where `--once` ends; which groups are joined."""

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from archiver.errors import GroupOfAnother
from archiver.ingest.assignment import ASK_AGAIN_SECONDS, ASKS_FOR_ENDS, WHOLE, Drain, GroupMember, GroupOffsets
from archiver.ingest.kafka_cluster import BoundsOrFailure, KafkaCluster
from archiver.ingest.kafka_source import Partition
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied, PartitionUnavailable
from blockgz.kafka import LogBounds
from index_format.errors import BlockgzError
from tests.support.archives import records
from tests.support.executors import Later
from tests.support.mock_cluster import MockCluster

CONFIG = RunConfig(archive="./unused", bootstrap_servers="b:9092", topics=("orders",), once=True)


class Acquired:
    """Stands for the partitions of the process."""

    is_over = True

    def __init__(self) -> None:
        self.ends: dict[Partition, tuple[int, int]] = {}
        self.refused: dict[Partition, BlockgzError] = {}

    def acquire(self, partition: Partition, end: int, high: int) -> None:
        self.ends[partition] = end, high

    def refuse(self, partition: Partition, error: BlockgzError) -> None:
        self.refused[partition] = error

    def give_up(self, *_: object) -> None: ...


def drain(cluster: Any, acquired: Any, executor: ThreadPoolExecutor) -> Drain:
    return Drain(CONFIG, cluster, acquired, {"orders": 4}, WHOLE, lambda: None, executor)


def test_a_topic_that_is_written_to_has_no_open_transaction() -> None:
    mock = MockCluster()
    mock.create_topic("orders")

    class BusyCluster(KafkaCluster):
        """With a topic that grows with every question."""

        def ask_bounds(
            self, partitions: Collection[Partition], isolation_level: str
        ) -> dict[Partition, BoundsOrFailure]:
            found = super().ask_bounds(partitions, isolation_level)
            for _, number in partitions:
                mock.produce("orders", number, records(range(2)))
            return found

    acquired = Acquired()
    with ThreadPoolExecutor(1) as executor:
        drain(BusyCluster({"bootstrap.servers": mock.bootstrap_servers}), acquired, executor).start()
    assert len(acquired.ends) == 4
    assert all(high <= end for end, high in acquired.ends.values()), acquired.ends


class ScriptedCluster:
    """One topic, of which three partitions are asked about in vain."""

    def __init__(self) -> None:
        self.answers: dict[Partition, BoundsOrFailure] = {
            ("orders", 0): LogBounds(0, 10),
            ("orders", 1): PartitionUnavailable("no leader"),
            ("orders", 2): AccessDenied("no"),
            ("orders", 3): PartitionUnavailable("no leader"),
        }
        self.asked: list[Collection[Partition]] = []

    def topics(self) -> dict[str, int]:
        return {"orders": 4}

    def ask_bounds(self, partitions: Collection[Partition], _: str) -> dict[Partition, BoundsOrFailure]:
        self.asked.append(partitions)
        return {partition: self.answers[partition] for partition in partitions}


def test_partitions_without_a_leader_are_asked_for_again_and_left_in_the_end() -> None:
    cluster, acquired, now = ScriptedCluster(), Acquired(), 0.0
    with ThreadPoolExecutor(1) as executor:
        drained = drain(cluster, acquired, executor)
        drained.start()
        assert (acquired.ends, list(acquired.refused)) == ({("orders", 0): (10, 10)}, [("orders", 2)])
        assert len(cluster.asked) == 2, "every end was asked for at once"
        cluster.answers["orders", 3] = LogBounds(0, 7)
        for _ in range(3 * ASKS_FOR_ENDS):
            assert not drained.is_over or now > ASK_AGAIN_SECONDS * (ASKS_FOR_ENDS - 1)
            drained.tick(now)
            executor.submit(int).result()  # the question before it is answered
            now += ASK_AGAIN_SECONDS
        assert drained.is_over
    assert acquired.ends == {("orders", 0): (10, 10), ("orders", 3): (7, 7)}
    assert sorted(acquired.refused) == [("orders", 1), ("orders", 2)]
    assert len(cluster.asked) == 2 * (1 + ASKS_FOR_ENDS)


def test_topics_that_a_second_answer_lacks_are_drained_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started may know of none; without partitions the run would end at once, with success."""
    cluster, acquired = ScriptedCluster(), Acquired()
    monkeypatch.setattr(cluster, "topics", dict)
    with ThreadPoolExecutor(1) as executor:
        drain(cluster, acquired, executor).start()
    assert ("orders", 0) in acquired.ends


def test_ended_before_an_end_is_known() -> None:
    cluster, acquired = ScriptedCluster(), Acquired()
    with ThreadPoolExecutor(1) as executor:
        drained = drain(cluster, acquired, executor)
        drained.start()
        drained.give_up([])
    assert sorted(acquired.refused) == [("orders", 1), ("orders", 2), ("orders", 3)]


@pytest.mark.parametrize("takeover", [False, True])
def test_a_group_of_another_archive_is_not_joined_unless_it_is_taken_over(takeover: bool) -> None:
    config = RunConfig(archive="./unused", bootstrap_servers="broker:9092", topics=("orders",), takeover=takeover)
    subscribed: list[Sequence[str]] = []
    fetching: Any = SimpleNamespace(subscribe=lambda topics, _: subscribed.append(topics))
    offsets = GroupOffsets("group", "mine", lambda _: {("orders", 0): "theirs"}, Later())
    nobody: Any = None
    member = GroupMember(
        config, nobody, fetching, ["orders"], nobody, offsets, nobody, rest=lambda: None, wait=lambda seconds: None
    )
    with nullcontext() if takeover else pytest.raises(GroupOfAnother):
        member.start()
    assert subscribed == ([["orders"]] if takeover else [])
