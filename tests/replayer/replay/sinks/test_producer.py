"""How much a producer is handed before the cluster answers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from index_format.records import Record, batch_from_records
from replayer.replay.sinks import producer as producer_module
from replayer.replay.sinks.producer import WINDOW_BYTES, TopicProducer


class SlowCluster:
    """Answers one record each time that it is waited for."""

    failure = None

    def __init__(self) -> None:
        self.waiting = self.most = self.answered = 0

    def produce(self, _: int, batch: pa.RecordBatch, __: Callable[[int], None]) -> None:
        self.waiting += batch.num_rows
        self.most = max(self.most, self.waiting)

    def poll(self, seconds: float) -> int:
        if seconds:
            self.answered += 1
            self.waiting -= 1
        return 1

    def delivered(self) -> dict[int, Any]:
        told, self.answered = self.answered, 0
        return {0: np.arange(told)} if told else {}

    def __len__(self) -> int:
        return self.waiting


@pytest.mark.parametrize("value_bytes", [WINDOW_BYTES // 64, 2 * WINDOW_BYTES])
def test_a_window_of_records_is_unanswered_at_most(monkeypatch: pytest.MonkeyPatch, value_bytes: int) -> None:
    """And a record that is larger than the window goes alone."""
    cluster = SlowCluster()
    monkeypatch.setattr(producer_module, "batch_producer", lambda *_: cluster)
    producer = TopicProducer({}, "copy", look=lambda *_: [])
    batch = batch_from_records([Record(0, 1, 0, None, bytes(value_bytes), ())])
    for _ in range(100):
        producer.send(0, batch)
    assert cluster.most == max(1, WINDOW_BYTES // value_bytes + 1)


class PickyCluster(SlowCluster):
    """Notes what it is handed; answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.handed: list[tuple[int, list[int]]] = []
        self.answers: dict[int, Any] = {}

    def produce(self, partition: int, batch: pa.RecordBatch, full: Callable[[int], None]) -> None:
        super().produce(partition, batch, full)
        self.handed.append((partition, batch.column("offset").to_pylist()))

    def delivered(self) -> dict[int, Any]:
        told, self.answers = self.answers, {}
        return told

    def flush(self, _: float) -> int:
        return 0


def test_the_first_record_for_a_partition_goes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its batch, and no batch of another partition, wait until it is acknowledged."""
    cluster = PickyCluster()
    monkeypatch.setattr(producer_module, "batch_producer", lambda *_: cluster)
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    producer = TopicProducer({}, "copy", look=lambda *_: [])
    three, two = (batch_from_records([Record(n, 1, 0, None, b"", ()) for n in some]) for some in (range(3), (3, 4)))
    producer.send(0, three)
    producer.send(1, three)
    assert cluster.handed == [(0, [0]), (1, [0])]
    cluster.answers = {0: np.array([7])}
    producer.send(0, two)
    assert cluster.handed[2:] == [(0, [1, 2]), (0, [3, 4])]
    cluster.answers = {1: np.array([5])}
    producer.flush()
    assert cluster.handed[4:] == [(1, [1, 2])]
    producer.send(2, three)
    cluster.answers = {2: np.array([9])}
    assert producer.acknowledged()[2].tolist() == [9]
    assert cluster.handed[5:] == [(2, [0]), (2, [1, 2])], "a commit lets them go as well"
    now += producer_module.SILENT_SECONDS
    producer.send(0, two)
    assert cluster.handed[7:] == [(0, [3])]
    transactional = TopicProducer({"transactional.id": "job"}, "copy", look=lambda *_: [])
    transactional.send(0, three)
    assert cluster.handed[8:] == [(0, [0, 1, 2])]
