"""One task of a write over a cluster that is only remembered: which rows go where, and what is committed when."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from blockgz.archive.rows import to_rows
from blockgz.errors import NoSuchTopic, UsageError
from blockgz.kafka import LogBounds
from index_format.records import Record, batch_from_records
from replayer.errors import DeliveryFailed, ReplayRefused
from replayer.kafka.topic_facts import TopicFacts, parse_config
from replayer.replay.pipeline import Router, ScannedBatch
from replayer.spark import lanes, sink
from replayer.spark.row_position import RowPosition, TaskRun
from replayer.spark.sink import LANES_AT_ONCE, WriteWork, write_rows
from replayer.spark.sink_target import (
    Columns,
    TopicSinkOptions,
    check_columns,
    find_target,
    opened_admin,
    parse_sink_options,
    refuse_foreign_records,
    refuse_other_key,
)

SOURCE = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
COLUMNS = check_columns(SOURCE)
NOW = 1_700_000_000_000
Place = tuple[str, int]
never = threading.Event()


class Cluster:
    """What stands in topics and for groups, and the clients that a task makes of it."""

    def __init__(self) -> None:
        self.topics = {name: TopicFacts(name, 3, None, parse_config({"retention.ms": "-1"})) for name in ("copy", "b")}
        self.records: dict[Place, list[int]] = {}
        self.positions: dict[tuple[str, int], RowPosition] = {}
        self.commits = 0
        self.producers = 0
        self.fails_at: int | None = None

    def take(self, topic: str, partition: int, batch: pa.RecordBatch) -> None:
        offsets = batch.column("offset").to_pylist()
        if self.fails_at in offsets:
            raise DeliveryFailed("the cluster did not accept a record", why="it is full", remedy="go on with --resume")
        self.records.setdefault((topic, partition), []).extend(offsets)

    def wait_for_commits(self, number: int) -> None:
        for _ in range(60_000):
            if self.commits >= number:
                return
            never.wait(0.001)
        raise AssertionError(f"{self.commits} commits")

    def topic(self, name: str) -> TopicFacts | None:
        return self.topics.get(name)

    def groups(self) -> frozenset[str]:
        return frozenset(group for group, _ in self.positions)

    def watermarks(self, topic: str, partitions: Iterable[int]) -> dict[int, LogBounds]:
        return {number: LogBounds(0, len(self.records.get((topic, number), []))) for number in partitions}


class Transactions:
    """As TransactionalSink: what is not committed goes away."""

    def __init__(self, cluster: Cluster, job: Any, router: Router) -> None:
        self._cluster, self._job, self._router = cluster, job, router
        self._open: list[tuple[int, pa.RecordBatch]] = []
        self._unacknowledged = 0

    def begin(self, lanes: Iterable[int]) -> Mapping[int, RowPosition]:
        self._cluster.producers += 1
        found = {lane: self._cluster.positions.get((self._job.group_id, lane)) for lane in lanes}
        return {lane: position for lane, position in found.items() if position is not None}

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        if self._cluster.fails_at in batch.column("offset").to_pylist():
            self._cluster.take("copy", 0, batch)
        self._unacknowledged += batch.num_rows
        self._open += [(piece.target, piece.records) for piece in self._router.route(ScannedBatch(lane, batch))]

    def acknowledged(self, *, wait: bool) -> None:
        assert wait
        self._unacknowledged = 0

    def commit(self, positions: Mapping[int, RowPosition]) -> None:
        assert not self._unacknowledged, "the producer keeps what is not asked for"
        for target, batch in self._open:
            self._cluster.take(self._job.target, target, batch)
        self._open = []
        self._cluster.commits += 1
        for lane, position in positions.items():
            self._cluster.positions[self._job.group_id, lane] = position

    def stop(self) -> None:
        self._cluster.producers -= 1


class Plain:
    """As KafkaSink: what is not waited for may be lost."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._queue: list[tuple[int, pa.RecordBatch]] = []

    def send(self, lane: int, batch: pa.RecordBatch) -> None:
        self._queue.append((lane, batch))

    def acknowledged(self, *, wait: bool) -> None:
        while wait and self._queue:
            self._cluster.take(self._topic, *self._queue.pop(0))

    def stop(self) -> None:
        """Nothing is held."""


class Positions:
    """As CommittedPositions."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(sink, "opened_admin", lambda _: cluster)
    monkeypatch.setattr(lanes, "CommittedPositions", lambda *_: Positions())
    monkeypatch.setattr(lanes, "TransactionalSink", lambda _, job, *rest: Transactions(cluster, job, rest[-1]))
    monkeypatch.setattr(sink, "KafkaSink", lambda _, topic, *__: Plain(cluster, topic))
    return cluster


def options(**more: str) -> TopicSinkOptions:
    return parse_sink_options({"kafka.bootstrap.servers": "x", "topic": "copy", **more})


EXACTLY_ONCE = {"transactional": "true", "job": "j"}


def rows(offsets: Iterable[int], partition: int = 0, topic: str = "orders", timestamp: int = NOW) -> pa.RecordBatch:
    records = [Record(offset, timestamp, 0, b"%d" % offset, b"v", ()) for offset in offsets]
    return to_rows(batch_from_records(records), topic, partition, headers=True)


FIRST_RUN = TaskRun("run", 0)


def written(cluster: Cluster, *batches: pa.RecordBatch, given: TopicSinkOptions, writer: TaskRun = FIRST_RUN) -> int:
    name = given.topic
    target = find_target(given, COLUMNS, name, cluster) if name else None  # type: ignore[arg-type]
    return write_rows(iter(batches), WriteWork(given, COLUMNS, target), writer)


def test_rows_go_to_their_partitions_and_again_when_they_are_written_again(cluster: Cluster) -> None:
    for _ in range(2):
        assert written(cluster, rows([1, 2]), rows([3], 2), rows([4]), given=options()) == 4
    assert cluster.records == {("copy", 0): [1, 2, 4] * 2, ("copy", 2): [3, 3]}


def test_transactional_rows_are_written_once(cluster: Cluster) -> None:
    given = options(**EXACTLY_ONCE)
    assert written(cluster, rows([1, 2]), rows([1], 2), rows([4]), given=given) == 4
    assert written(cluster, rows([1, 2, 4, 5]), rows([1, 3], 2), given=given, writer=TaskRun("again", 1)) == 2
    assert cluster.records == {("copy", 0): [1, 2, 4, 5], ("copy", 2): [1, 3]}
    assert set(cluster.positions) == {("blockgz-j", 0), ("blockgz-j.2", 0)}
    assert cluster.producers == 0


def of_incarnation(number: int, offsets: Iterable[int], partition: int = 0) -> pa.RecordBatch:
    records = [Record(offset, NOW, 0, b"%d" % offset, b"%d" % number, ()) for offset in offsets]
    return to_rows(batch_from_records(records), "orders", partition, headers=True, incarnation=number)


class TestIncarnations:
    """A topic that was created again has the same offsets again."""

    COLUMNS = check_columns({**SOURCE, "incarnation": "int"})

    def written(self, cluster: Cluster, *batches: pa.RecordBatch, run: str = "run", **more: str) -> int:
        given = options(**EXACTLY_ONCE, **more)
        refuse_other_key(given, self.COLUMNS, cluster)  # type: ignore[arg-type]
        target = find_target(given, self.COLUMNS, "copy", cluster)  # type: ignore[arg-type]
        return write_rows(iter(batches), WriteWork(given, self.COLUMNS, target), TaskRun(run, 0))

    def test_each_has_positions_of_its_own(self, cluster: Cluster) -> None:
        batches = [of_incarnation(1, range(10)), of_incarnation(2, range(7)), of_incarnation(2, range(4), 2)]
        assert self.written(cluster, *batches) == 21
        assert self.written(cluster, *batches, of_incarnation(2, [7]), run="again") == 1
        assert cluster.records == {("copy", 0): [*range(10), *range(7), 7], ("copy", 2): [*range(4)]}
        assert {group for group, _ in cluster.positions} == {"blockgz-j.0.1", "blockgz-j.0.2", "blockgz-j.2.2"}
        assert {each.incarnation for each in cluster.positions.values()} == {1, 2}

    def test_an_option_names_that_of_rows_without_the_column(self, cluster: Cluster) -> None:
        """What was written of another incarnation is not taken for theirs."""
        for number, count in (("1", 10), ("2", 8), ("2", 8)):
            given = options(**EXACTLY_ONCE, incarnation=number)
            refuse_other_key(given, COLUMNS, cluster)  # type: ignore[arg-type]
            written(cluster, rows(range(count)), given=given)
        assert cluster.records == {("copy", 0): [*range(10), *range(8)]}
        assert {group for group, _ in cluster.positions} == {"blockgz-j.0.1", "blockgz-j.0.2"}

    def test_rows_of_several_in_one_batch(self, cluster: Cluster) -> None:
        mixed = pa.concat_batches([of_incarnation(2, [0, 1]), of_incarnation(1, [0, 1]), of_incarnation(2, [2])])
        assert self.written(cluster, mixed) == 5
        assert sorted(cluster.records["copy", 0]) == [0, 0, 1, 1, 2]

    def test_rows_without_one_are_refused_then(self, cluster: Cluster) -> None:
        self.written(cluster, of_incarnation(1, [0]))
        with pytest.raises(ReplayRefused, match="do not say which incarnation") as caught:
            refuse_other_key(options(**EXACTLY_ONCE), COLUMNS, cluster)  # type: ignore[arg-type]
        assert "includeIncarnation" in caught.value.remedy

    def test_positions_of_rows_without_one_need_to_be_told_whose_they_are(self, cluster: Cluster) -> None:
        written(cluster, rows(range(5)), given=options(**EXACTLY_ONCE))
        batches = [of_incarnation(1, range(8)), of_incarnation(2, range(3))]
        with pytest.raises(ReplayRefused, match="recorded without an incarnation") as caught:
            self.written(cluster, *batches)
        assert "recordedIncarnation" in caught.value.remedy
        assert self.written(cluster, *batches, recordedIncarnation="1") == 6
        assert cluster.records == {("copy", 0): [*range(8), *range(3)]}
        with pytest.raises(ReplayRefused, match="is of incarnation 1 of orders, the rows are of another"):
            self.written(cluster, of_incarnation(2, range(3)), recordedIncarnation="2")
        with pytest.raises(ReplayRefused, match="is of incarnation 1 of orders, the rows are of another"):
            written(cluster, rows(range(9)), given=options(**EXACTLY_ONCE))

    def test_a_topic_with_records_of_the_job_is_its_own(self, cluster: Cluster) -> None:
        self.written(cluster, of_incarnation(2, [0], 2))
        given = options(**EXACTLY_ONCE)
        refuse_foreign_records(given, find_target(given, COLUMNS, "copy", cluster), cluster)  # type: ignore[arg-type]


def test_what_was_not_committed_is_written_by_the_next_attempt(cluster: Cluster) -> None:
    given = options(**EXACTLY_ONCE)
    cluster.fails_at = 7
    with pytest.raises(DeliveryFailed) as caught:
        written(cluster, rows([1, 2]), rows([7]), given=given)
    assert "--resume" not in caught.value.remedy
    assert (cluster.records, cluster.producers) == ({}, 0)
    cluster.fails_at = None
    written(cluster, rows([1, 2]), rows([7]), given=given)
    assert cluster.records == {("copy", 0): [1, 2, 7]}


def test_rows_by_key_are_one_lane_over_many_partitions(cluster: Cluster) -> None:
    written(cluster, rows(range(50), 5), given=options(**EXACTLY_ONCE, partitions="by-key"))
    assert {partition for _, partition in cluster.records} == {0, 1, 2}
    assert sorted(sum(cluster.records.values(), [])) == list(range(50))  # noqa: RUF017
    assert set(cluster.positions) == {("blockgz-j.5", 0)}


def test_more_source_partitions_than_producers_at_a_time(cluster: Cluster) -> None:
    numbers = range(LANES_AT_ONCE + 3)
    most = 0

    def arriving() -> Iterator[pa.RecordBatch]:
        nonlocal most
        for offset in range(2):
            for number in numbers:
                yield rows([offset], number)
                most = max(most, cluster.producers)

    given = options(**EXACTLY_ONCE, partitions="3")
    target = find_target(given, COLUMNS, "copy", cluster)  # type: ignore[arg-type]
    assert write_rows(arriving(), WriteWork(given, COLUMNS, target), TaskRun("run", 0)) == 2 * len(numbers)
    assert sum(map(len, cluster.records.values())) == 2 * len(numbers)
    assert most <= LANES_AT_ONCE


def test_disorder_is_seen_across_the_lanes_of_a_partition(cluster: Cluster) -> None:
    others = [rows([0], number) for number in range(1, LANES_AT_ONCE + 1)]
    given = options(**EXACTLY_ONCE, partitions="3")
    with pytest.raises(ReplayRefused, match="partition 0 of orders is not in order") as caught:
        written(cluster, rows([0, 20]), *others, rows([6]), given=given)
    assert caught.value.why == "offset 6 comes after offset 20"


def test_two_topics_in_one_task(cluster: Cluster) -> None:
    with pytest.raises(ReplayRefused, match="records of orders, not of payments"):
        written(cluster, rows([1]), rows([2], topic="payments"), given=options(**EXACTLY_ONCE))
    assert cluster.records == {}


def test_transactions_end_by_size_and_while_no_rows_come(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "CADENCE", sink.CADENCE._replace(records=5, seconds=0.05))
    seen: list[int] = []

    def arriving() -> Iterator[pa.RecordBatch]:
        yield rows(range(5))
        cluster.wait_for_commits(1)
        yield rows([7])
        cluster.wait_for_commits(2)
        seen.append(cluster.commits)

    given = options(**EXACTLY_ONCE)
    target = find_target(given, COLUMNS, "copy", cluster)  # type: ignore[arg-type]
    write_rows(arriving(), WriteWork(given, COLUMNS, target), TaskRun("run", 0))
    assert seen == [2]
    assert cluster.records == {("copy", 0): [0, 1, 2, 3, 4, 7]}


def test_what_the_rows_iterator_raises_goes_through(cluster: Cluster) -> None:
    def arriving() -> Iterator[pa.RecordBatch]:
        yield rows([1])
        raise ZeroDivisionError

    given = options(**EXACTLY_ONCE)
    target = find_target(given, COLUMNS, "copy", cluster)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        write_rows(arriving(), WriteWork(given, COLUMNS, target), TaskRun("run", 0))
    assert (cluster.records, cluster.producers) == ({}, 0)


def test_every_row_to_the_topic_that_it_names(cluster: Cluster) -> None:
    given = parse_sink_options({"kafka.bootstrap.servers": "x", "intoSource": "true"})
    written(cluster, rows([1], topic="copy"), rows([2], topic="b"), given=given)
    assert cluster.records == {("copy", 0): [1], ("b", 0): [2]}
    with pytest.raises(NoSuchTopic):
        written(cluster, rows([1], topic="missing"), given=given)


def test_rows_do_not_go_to_where_they_come_from_unasked(cluster: Cluster) -> None:
    with pytest.raises(UsageError, match="is the topic that the rows come from"):
        written(cluster, rows([1], topic="copy"), given=options())
    written(cluster, rows([1], topic="copy"), given=options(intoSource="true"))


def test_two_topics_in_one_transactional_job(cluster: Cluster) -> None:
    written(cluster, rows([1], topic="orders"), given=options(**EXACTLY_ONCE))
    with pytest.raises(ReplayRefused, match="records of orders, not of payments"):
        written(cluster, rows([1], topic="payments"), given=options(**EXACTLY_ONCE))


@pytest.mark.parametrize(
    ("config", "batch", "message"),
    [
        ({"retention.ms": "1000"}, rows([1], timestamp=1), "would delete the records"),
        ({"message.timestamp.before.max.ms": "1000", "retention.ms": "-1"}, rows([1], timestamp=1), "as old as these"),
        ({"retention.ms": "-1"}, rows([1], partition=3), "too few partitions"),
    ],
)
@pytest.mark.parametrize("more", [{}, EXACTLY_ONCE])
def test_what_the_topic_would_not_keep_is_refused_before_it_is_sent(
    cluster: Cluster, config: dict[str, str], batch: pa.RecordBatch, message: str, more: dict[str, str]
) -> None:
    cluster.topics["copy"] = TopicFacts("copy", 3, None, parse_config(config))
    with pytest.raises(ReplayRefused, match=message) as caught:
        written(cluster, batch, given=options(**more))
    assert "--retention hold" not in caught.value.remedy
    assert cluster.records == {}


def test_records_without_a_key_for_a_compacted_topic(cluster: Cluster) -> None:
    cluster.topics["copy"] = TopicFacts("copy", 3, None, parse_config({"cleanup.policy": "compact"}))
    records = batch_from_records([Record(4, NOW, 0, None, b"v", ())])
    with pytest.raises(ReplayRefused, match="without a key"):
        written(cluster, to_rows(records, "orders", 0, headers=True), given=options())


def test_a_topic_that_replaces_timestamps_is_refused_at_once(cluster: Cluster) -> None:
    cluster.topics["copy"] = TopicFacts("copy", 3, None, parse_config({"message.timestamp.type": "LogAppendTime"}))
    with pytest.raises(ReplayRefused, match="replace the records' timestamps"):
        find_target(options(), COLUMNS, "copy", cluster)  # type: ignore[arg-type]


def test_a_topic_with_records_is_refused_unless_they_are_the_jobs(cluster: Cluster) -> None:
    def ask(**more: str) -> None:
        given = options(**more)
        refuse_foreign_records(given, find_target(given, COLUMNS, "copy", cluster), cluster)  # type: ignore[arg-type]

    ask()
    written(cluster, rows([1], 2), given=options(**{**EXACTLY_ONCE, "job": "j.other"}))
    with pytest.raises(ReplayRefused, match="is not empty"):
        ask(**EXACTLY_ONCE)
    written(cluster, rows([1], 2), given=options(**EXACTLY_ONCE))
    ask(**EXACTLY_ONCE)
    ask(append="true")
    for more in ({}, {**EXACTLY_ONCE, "job": "other"}):
        with pytest.raises(ReplayRefused, match="is not empty"):
            ask(**more)


@pytest.mark.parametrize(
    ("name", "value", "more", "message"),
    [
        ("acks", "1", {}, "kafka.acks cannot be set"),
        ("enable.idempotence", "false", {}, "kafka.enable.idempotence cannot be set"),
        ("transactional.id", "t", EXACTLY_ONCE, "kafka.transactional.id cannot be set"),
        ("sasl.jaas.config", "j", {}, "librdkafka refuses these settings"),
    ],
)
def test_properties_that_are_not_the_users_to_set(name: str, value: str, more: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        opened_admin(options(**{f"kafka.{name}": value}, **more))
    assert "-X" not in caught.value.remedy


def test_without_a_column_partition_keys_decide(cluster: Cluster) -> None:
    columns = Columns(frozenset({"value"}))
    target = find_target(options(), columns, "copy", cluster)  # type: ignore[arg-type]
    assert target.router.fingerprint == "murmur2 modulo 3"
    only = pa.record_batch({"value": pa.array([b"v"] * 6)})
    assert write_rows(iter([only]), WriteWork(options(), columns, target), TaskRun("run", 1)) == 6
    assert {place: len(found) for place, found in cluster.records.items()} == {("copy", n): 2 for n in range(3)}
