"""Producers: how much they are handed, calls that do not come back, and where records are afterwards."""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from blockgz.errors import BrokerUnreachable, UsageError
from blockgz.kafka.batch_producer import NO_OFFSET, batch_producer
from index_format.errors import BlockgzError
from index_format.records import Record, batch_from_records
from replayer.errors import CommitLost, DeliveryFailed
from replayer.replay.job import Job, LanePosition, Position, SourceProgress
from replayer.replay.request import LEVELS, Compression, parse_compression
from replayer.replay.sinks import producer as kafka_outlet
from replayer.replay.sinks import producer as producer_module
from replayer.replay.sinks import transactional
from replayer.replay.sinks import transactional as kafka_transactions
from replayer.replay.sinks.producer import (
    WINDOW_BYTES,
    KafkaSink,
    LaneReports,
    TopicProducer,
    found,
    inferred,
    producer_settings,
)
from replayer.replay.sinks.transactional import Calls, CommittedPositions, NoAnswer, TransactionalSink
from tests.support.archives import records
from tests.support.replays import NoStore


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


class Group:
    """A consumer whose group answers with each of these in turn: an error of the call, of a partition, or none."""

    def __init__(self, answers: Iterator[tuple[int | None, int | None]]) -> None:
        self._answers = answers

    def committed(self, wanted: list[TopicPartition], timeout: float) -> list[Any]:
        assert timeout > 0
        of_call, of_partition = next(self._answers)
        if of_call is not None:
            raise KafkaException(KafkaError(of_call))
        return [_Answer(each.partition, of_partition) for each in wanted]

    def close(self) -> None: ...


class _Answer:
    metadata = ""

    def __init__(self, partition: int, error: int | None) -> None:
        self.partition, self.offset = partition, 7
        self.error = None if error is None else KafkaError(error)


def positions(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int | None, int | None]) -> CommittedPositions[Position]:
    monkeypatch.setattr(transactional, "ASK_AGAIN_SECONDS", 0)
    group = Group(iter(answers))
    monkeypatch.setattr(transactional, "make_client", lambda *_: group)
    decode: Any = lambda offset, _: offset  # noqa: E731
    return CommittedPositions({"bootstrap.servers": "b:9092"}, Job("j", "t", "s"), decode)


def test_a_group_without_its_coordinator_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = positions(
        monkeypatch,
        (KafkaError.NOT_COORDINATOR, None),
        (None, KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        (KafkaError.COORDINATOR_NOT_AVAILABLE, None),
        (None, None),
    )
    assert asked.read([0, 1]) == {0: 7, 1: 7}


@pytest.mark.parametrize(
    "answer", [(KafkaError.INVALID_GROUP_ID, None), (None, KafkaError.INVALID_GROUP_ID)], ids=["call", "partition"]
)
def test_any_other_error_is_the_answer(answer: tuple[int | None, int | None], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = positions(monkeypatch, answer)
    with pytest.raises(BlockgzError, match="the job's positions in t cannot be read"):
        asked.read([0])


def test_a_group_that_finds_no_coordinator_is_not_asked_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional, "COORDINATOR_SECONDS", 0)
    asked = positions(monkeypatch, (KafkaError.NOT_COORDINATOR, None))
    with pytest.raises(BlockgzError, match="cannot be read"):
        asked.read([0])


EVERY = [codec for codec, levels in LEVELS.items() for codec in (codec, *(f"{codec}:{level}" for level in levels))]


@pytest.mark.parametrize("text", EVERY)
def test_the_client_takes_every_codec_and_level(text: str) -> None:
    asked = parse_compression(text)
    assert str(asked) == text
    settings = producer_settings(asked.added_to({"bootstrap.servers": "127.0.0.1:1"}), None)
    assert settings["compression.type"] == asked.codec
    assert settings.get("compression.level") == (None if asked.level is None else str(asked.level))
    batch_producer(settings, "t")


def test_lz4_is_the_default() -> None:
    assert producer_settings({"bootstrap.servers": "x"}, None)["compression.type"] == "lz4"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("brotli", "Kafka has lz4, zstd, snappy, gzip, none"),
        ("", "Kafka has"),
        ("lz4:13", "those of lz4 are 0 to 12"),
        ("zstd:", "those of zstd are 1 to 12"),
        ("gzip:-1", "those of gzip are 1 to 9"),
        ("none:1", "none has none"),
        ("snappy:0", "snappy has none"),
    ],
)
def test_what_is_not_known_is_refused(text: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_compression(text)
    assert why in caught.value.why


@pytest.mark.parametrize(
    ("properties", "is_refused"),
    [
        ({"compression.type": "lz4"}, True),
        ({"compression.codec": "gzip"}, True),
        ({"compression.level": "4"}, True),
        ({"compression.type": "zstd", "compression.level": "3"}, False),
        ({"compression.codec": "zstd"}, False),
    ],
)
def test_settings_that_say_something_else_are_refused(properties: dict[str, str], is_refused: bool) -> None:
    asked = Compression("zstd", 3)
    if not is_refused:
        assert asked.added_to(properties)["compression.type"] == "zstd"
        return
    with pytest.raises(UsageError, match="--compression zstd:3 contradicts -X compression"):
        asked.added_to(properties)


def test_a_level_alone_is_not_a_contradiction() -> None:
    assert Compression("gzip").added_to({"compression.level": "9"}) == {
        "compression.type": "gzip",
        "compression.level": "9",
    }


def no_look(*_: object) -> list[int]:
    raise AssertionError("nothing is to be read back")


def acknowledgements(*offsets: int | None) -> npt.NDArray[np.int64]:
    return np.array([NO_OFFSET if each is None else each for each in offsets], np.int64)


@pytest.fixture
def reports() -> Callable[..., LaneReports]:
    def made(*offsets: int | None, end: int | None = None, sent: int | None = None) -> LaneReports:
        lane = LaneReports(0, end)
        lane.sent(batch_from_records(records(range(sent or len(offsets)))))
        lane.told(acknowledgements(*offsets))
        return lane

    return made


def test_what_is_told_is_taken_once(reports: Callable[..., LaneReports]) -> None:
    lane = reports(7, 8, 11, sent=4)
    assert lane.take(no_look, drained=False).tolist() == [7, 8, 11]
    assert lane.take(no_look, drained=False).tolist() == []
    lane.told(acknowledgements(12))
    assert lane.take(no_look, drained=True).tolist() == [12]


def test_records_are_kept_only_until_their_offsets_are_known() -> None:
    lane, batches = LaneReports(0, None), [batch_from_records(records(range(10))) for _ in range(3)]
    kept = [weakref.ref(batch) for batch in batches]
    for batch in batches:
        lane.sent(batch)
    del batch, batches
    lane.told(acknowledgements(*range(10)))
    lane.told(acknowledgements(*[None] * 10))
    assert [each() is None for each in kept] == [True, False, False]
    lane.told(acknowledgements(20))
    assert lane.take(no_look, drained=False).tolist() == list(range(21))


@pytest.mark.parametrize(
    ("told", "before", "wanted"),
    [
        ([-1, -1, 12], 9, [10, 11, 12]),
        ([-1, -1, 12], None, [-1, -1, 12]),
        ([10, -1, 12, -1, 15], 9, [10, 11, 12, -1, 15]),
        ([10, -1], 9, [10, -1]),
    ],
)
def test_offsets_that_can_only_be_what_they_are(told: list[int], before: int | None, wanted: list[int]) -> None:
    assert inferred(np.array(told, np.int64), before).tolist() == wanted


def test_records_without_an_offset_wait_for_the_ones_after_them(reports: Callable[..., LaneReports]) -> None:
    lane = reports(5, None, None, sent=4)
    assert lane.take(no_look, drained=False).tolist() == [5]
    assert lane.take(no_look, drained=False).tolist() == []
    lane.told(acknowledgements(8))
    assert lane.take(no_look, drained=False).tolist() == [6, 7, 8]


def test_the_last_ones_are_read_back(reports: Callable[..., LaneReports]) -> None:
    asked: list[tuple[int, int, int]] = []

    def look(partition: int, start: int, rows: pa.Table) -> list[int]:
        asked.append((partition, start, rows.num_rows))
        return [21, 23]

    assert reports(None, None, end=20).take(look, drained=True).tolist() == [21, 23]
    assert reports(19, None, None, end=19).take(look, drained=True).tolist() == [19, 21, 23]
    assert asked == [(0, 20, 2), (0, 20, 2)]


def test_records_are_found_in_their_order() -> None:
    mine = records(range(3))
    others = [each._replace(value=b"other") for each in records(range(9))]
    log = [
        others[0],
        mine[0]._replace(offset=1),
        others[2],
        *(each._replace(offset=each.offset + 2) for each in mine[1:]),
    ]
    table = pa.Table.from_batches([batch_from_records(mine)])
    assert found(table, [batch_from_records(log)]) == [1, 3, 4]
    assert found(table, [batch_from_records(others)]) == []
