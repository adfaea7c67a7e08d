"""Calls that do not come back, and what a replay makes of a client that hangs."""

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from blockgz.errors import BrokerUnreachable
from index_format.records import batch_from_records
from replayer.errors import CommitLost, DeliveryFailed
from replayer.replay.job import Job, LanePosition, SourceProgress
from replayer.replay.sinks import producer as kafka_outlet
from replayer.replay.sinks import transactional as kafka_transactions
from replayer.replay.sinks.committed_positions import Calls, NoAnswer
from replayer.replay.sinks.idempotent import KafkaSink
from replayer.replay.sinks.transactional import TransactionalSink
from tests.support.archives import records
from tests.support.replays import NoStore

LONG = 60.0
POSITION = LanePosition("0" * 16, "0" * 16, 3, {0: SourceProgress(0, 3, 9)})
never = threading.Event()


def fail() -> None:
    raise OSError("as it was raised")


def test_an_answer_is_passed_on_whatever_it_is() -> None:
    calls = Calls()
    assert calls.make(lambda: 17, LONG) == 17
    with pytest.raises(OSError, match="as it was raised"):
        calls.make(fail, LONG)


def test_a_call_that_does_not_come_back_is_given_up() -> None:
    calls = Calls()
    with pytest.raises(NoAnswer):
        calls.make(never.wait, 0.01)
    assert calls.make(lambda: 1, LONG) == 1
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "kafka-call")


def test_stop_releases_whoever_waits() -> None:
    calls, begun, released = Calls(), threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        never.wait()

    def wait() -> None:
        with pytest.raises(NoAnswer):
            calls.make(hang, LONG)
        released.set()

    threading.Thread(target=wait, daemon=True).start()
    assert begun.wait(LONG)
    calls.stop()
    assert released.wait(LONG)
    with pytest.raises(NoAnswer):
        calls.make(fail, LONG)


class FakeProducer:
    """A transactional producer that takes everything, and hangs for ever in one of its calls."""

    def __init__(self, hangs_in: str) -> None:
        self.calls: list[str] = []
        self.failure = None
        self._end = self._told = 100
        self._hangs_in = hangs_in

    def __len__(self) -> int:
        return 0

    def produce(self, _: int, batch: pa.RecordBatch, __: object) -> None:
        """Takes the records."""
        self._end += batch.num_rows

    def delivered(self) -> dict[int, Any]:
        """All that was taken, all of one partition."""
        told, self._told = np.arange(self._told, self._end), self._end
        return {0: told}

    def poll(self, _: float) -> None:
        """Nothing to report."""

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*_: object, **__: object) -> int:
            self.calls.append(name)
            if name == self._hangs_in:
                never.wait()
            return 0

        return call


class FakePositions:
    """What is committed."""

    group_metadata = None

    def __init__(self, committed: Mapping[int, LanePosition]) -> None:
        self.committed = committed
        self.away = False

    def settled(self, _: Iterable[int]) -> Mapping[int, LanePosition]:
        """The same, whatever is asked."""
        if self.away:
            raise BrokerUnreachable("nobody there", why="it is away")
        return self.committed


@pytest.fixture
def batch() -> pa.RecordBatch:
    return batch_from_records(records(range(3)))


@pytest.mark.parametrize("step", ["init_transactions", "send_offsets_to_transaction", "commit_transaction"])
def test_a_producer_that_hangs_is_left_alone_and_another_one_continues(
    monkeypatch: pytest.MonkeyPatch, batch: pa.RecordBatch, step: str
) -> None:
    producers = [FakeProducer(step), FakeProducer("")]
    made = iter(producers)
    monkeypatch.setattr(kafka_outlet, "batch_producer", lambda *_: next(made))
    monkeypatch.setattr(kafka_transactions, "ANSWER_SECONDS", 0.01)
    monkeypatch.setattr(kafka_transactions, "HANG_SECONDS", 0.01)
    positions = FakePositions({})
    sink = TransactionalSink({"bootstrap.servers": "x"}, Job("job", "t", "0" * 16), positions)  # type: ignore[arg-type]

    def transact() -> None:
        sink.begin([0])
        sink.send(0, batch)
        sink.commit({0: POSITION})

    with pytest.raises(CommitLost, match="a transaction for t was not committed"):
        transact()
    assert producers[0].calls[-1] == step
    transact()
    assert producers[0].calls[-1] == step, "nothing more is asked of it"
    assert producers[1].calls[-1] == "commit_transaction"
    sink.stop()


def test_ending_does_not_wait_for_a_producer_that_hangs(monkeypatch: pytest.MonkeyPatch, batch: pa.RecordBatch) -> None:
    producer = FakeProducer("commit_transaction")
    monkeypatch.setattr(kafka_outlet, "batch_producer", lambda *_: producer)
    sink = TransactionalSink({"bootstrap.servers": "x"}, Job("job", "t", "0" * 16), FakePositions({}))  # type: ignore[arg-type]
    sink.begin([0])
    sink.send(0, batch)
    ended = threading.Event()

    def commit() -> None:
        with pytest.raises(CommitLost):
            sink.commit({0: POSITION})
        ended.set()

    threading.Thread(target=commit, daemon=True).start()
    while "commit_transaction" not in producer.calls:
        assert not ended.wait(0.001)
    monkeypatch.setattr(kafka_transactions, "ABORT_SECONDS", 0.01)
    monkeypatch.setattr(kafka_transactions, "HANG_SECONDS", 0.01)
    sink.stop()
    assert ended.wait(LONG)


def test_a_cluster_that_does_not_report_positions_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_outlet, "batch_producer", lambda *_: FakeProducer(""))
    positions = FakePositions({0: POSITION})
    positions.away = True
    sink = TransactionalSink({"bootstrap.servers": "x"}, Job("job", "t", "0" * 16), positions)  # type: ignore[arg-type]
    with pytest.raises(CommitLost, match="is unknown"):
        sink.begin([0])
    positions.away = False
    assert sink.begin([0]) == {0: POSITION}


def test_what_a_stopped_sink_dropped_does_not_count_as_written(batch: pa.RecordBatch) -> None:
    written: list[object] = []

    class Store(NoStore):
        def write(self, positions: Mapping[int, LanePosition]) -> None:
            written.append(positions)

    sink = KafkaSink({"bootstrap.servers": "127.0.0.1:1"}, "t", Store())
    sink.send(0, batch)
    sink.stop()
    with pytest.raises(DeliveryFailed, match="not delivered"):
        sink.acknowledged(wait=True)
    assert written == []
