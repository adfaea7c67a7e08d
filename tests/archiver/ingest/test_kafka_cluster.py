"""Bounds of logs that are asked for now and then."""

from archiver.commit.operations import LogBounds
from archiver.ingest.kafka_cluster import LogEnds, LogView, Watermarks
from archiver.ingest.kafka_source import Partition
from blockgz_runtime.errors import BrokerUnreachable

BOUNDS = LogBounds(10, 100)


def test_watermarks_outlive_a_broker_that_does_not_answer() -> None:
    now = 100.0
    assigned: set[Partition] = set()
    answers: list[dict[Partition, LogEnds] | BrokerUnreachable] = []

    def ask(partitions: object) -> dict[Partition, LogEnds]:
        answer = answers.pop(0)
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer

    watermarks = Watermarks(lambda: assigned, ask, lambda: now)
    watermarks.refresh()
    assert watermarks.age_seconds is None, "nothing is asked about no partition"
    assigned.add(("orders", 0))
    answers += [{("orders", 0): LogEnds(BOUNDS, 120)}, BrokerUnreachable("no broker")]
    watermarks.refresh()
    now = 140.0
    watermarks.refresh()
    assert (watermarks.logs, watermarks.age_seconds) == ({("orders", 0): LogView(BOUNDS, 120, None)}, 40.0)
    answers.append({("orders", 0): LogEnds(LogBounds(10, 150), 150)})
    watermarks.refresh()
    assert watermarks.logs == {("orders", 0): LogView(LogBounds(10, 150), 150, earlier_end=100)}
