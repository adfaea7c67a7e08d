"""Writes to topics without Spark: rows, their positions, the sink's options, what is committed when."""

import random
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

from blockgz.archive.positions import OffsetRange
from blockgz.archive.rows import to_rows
from blockgz.errors import NoSuchTopic, UsageError
from blockgz.kafka import LogBounds
from blockgz.spark.errors import WriteFailed
from index_format.records import Record, batch_from_records, iter_records
from replayer.errors import DeliveryFailed, ReplayRefused
from replayer.kafka.topic_facts import TopicFacts, parse_config
from replayer.replay.job import MAX_METADATA_BYTES
from replayer.replay.pipeline import Router, Routing, ScannedBatch
from replayer.spark import lanes, sink
from replayer.spark.row_position import MAX_RANGES, RowLedger, RowPosition, TaskRun, decode_row_position
from replayer.spark.sink import LANES_AT_ONCE, TopicBatchWriter, WriteWork, batch_writer, refuse_unfit, write_rows
from replayer.spark.sink_target import (
    Columns,
    RowPart,
    RowReader,
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
    monkeypatch.setattr(sink.sink_target, "opened_admin", lambda _: cluster)
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


SOURCE_ROWS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
RECORDS = [
    Record(3, 1_600_000_000_123, 0, b"k", b"v", (("a", b"1"), ("a", None), ("", b""))),
    Record(5, -1, 0, None, None, ()),
    Record(9, 0, 0, b"", b"\xff\x00", (("b", b"2"),)),
]


def parts(batch: pa.RecordBatch, types: Mapping[str, str] = SOURCE_ROWS, *, headers: bool = True) -> list[RowPart]:
    return list(RowReader(check_columns(types), headers=headers, clock=lambda: NOW).parts(batch))


def rows_of(**columns: Any) -> pa.RecordBatch:
    types = {"partition": pa.int32(), "offset": pa.int64(), "topic": pa.string()}
    return pa.record_batch({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def plain(**columns: Any) -> list[tuple[str | None, int | None, list[Record]]]:
    types = {name: SOURCE_ROWS[name] for name in columns}
    return [(part.topic, part.partition, list(iter_records(part.records))) for part in parts(rows_of(**columns), types)]


def test_what_the_source_reads_comes_back_as_it_was_archived() -> None:
    batch = to_rows(batch_from_records(RECORDS), "orders", 4, headers=True)
    (part,) = parts(batch)
    assert (part.topic, part.partition) == ("orders", 4)
    assert list(iter_records(part.records)) == RECORDS
    (part,) = parts(batch.slice(1))
    assert list(iter_records(part.records)) == RECORDS[1:]


def test_headers_can_be_left_out() -> None:
    (part,) = parts(to_rows(batch_from_records(RECORDS), "orders", 4, headers=True), headers=False)
    assert [record.headers for record in iter_records(part.records)] == [(), (), ()]


def test_a_value_alone_is_enough() -> None:
    reader = RowReader(check_columns({"value": "string"}), headers=True, clock=lambda: NOW)
    found = [part for number in range(2) for part in reader.parts(rows_of(value=[f"v{number}", None]))]
    assert [(part.topic, part.partition) for part in found] == [(None, None)] * 2
    records = [record for part in found for record in iter_records(part.records)]
    assert [(each.offset, each.timestamp, each.key, each.value) for each in records] == [
        (0, NOW, None, b"v0"),
        (1, NOW, None, None),
        (2, NOW, None, b"v1"),
        (3, NOW, None, None),
    ]


def test_mixed_rows_come_apart_by_topic_and_partition_in_their_order() -> None:
    found = plain(
        value=[b"0", b"1", b"2", b"3", b"4"],
        topic=["b", "a", "b", "b", "a"],
        partition=[1, 1, 0, 1, 1],
        offset=[7, 8, 9, 10, 11],
    )
    assert [(topic, partition, [each.value for each in records]) for topic, partition, records in found] == [
        ("b", 1, [b"0", b"3"]),
        ("a", 1, [b"1", b"4"]),
        ("b", 0, [b"2"]),
    ]


def test_a_row_without_a_timestamp_gets_the_time_of_sending() -> None:
    times = pa.array([None, datetime(2020, 1, 1, tzinfo=UTC)], pa.timestamp("us", tz="Europe/Berlin"))
    batch = pa.record_batch({"value": pa.array([b"", b""]), "timestamp": times})
    (part,) = parts(batch, {"value": "binary", "timestamp": "timestamp"})
    assert part.records.column("timestamp").to_pylist() == [NOW, 1_577_836_800_000]


def test_no_rows_are_no_parts() -> None:
    assert parts(to_rows(batch_from_records([]), "orders", 0, headers=True)) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"partition": [0, None]}, "a row has no partition"),
        ({"offset": [0, None]}, "a row has no offset"),
        ({"topic": ["a", None]}, "a row has no topic"),
        ({"partition": [0, -1]}, "a row has the partition -1"),
    ],
)
def test_a_row_without_its_place_is_refused(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(ReplayRefused, match=message):
        plain(value=[b"", b""], **columns)


def test_a_time_before_1970_is_refused() -> None:
    times = pa.array([datetime(1969, 12, 31, tzinfo=UTC)], pa.timestamp("us", tz="UTC"))
    with pytest.raises(ReplayRefused, match="before 1970"):
        parts(
            pa.record_batch({"value": pa.array([b""]), "timestamp": times}),
            {"value": "binary", "timestamp": "timestamp"},
        )


@pytest.mark.parametrize("header", [None, {"key": None, "value": b"1"}])
def test_a_header_without_a_name_is_refused(header: Any) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    batch = pa.record_batch({"value": pa.array([b""]), "headers": pa.array([[header]], kind)})
    with pytest.raises(ReplayRefused, match="header without a name"):
        parts(batch, {"value": "binary", "headers": SOURCE_ROWS["headers"]})


def test_columns_are_checked_before_anything_is_written() -> None:
    assert check_columns({**SOURCE_ROWS, "more": "date"}) == Columns(frozenset(SOURCE_ROWS) - {"timestampType"})
    with pytest.raises(UsageError, match="no column named value"):
        check_columns({"body": "binary"})
    with pytest.raises(UsageError, match="column value is of type int") as caught:
        check_columns({"value": "int"})
    assert "CAST(value AS binary)" in caught.value.remedy


LEAST = {"kafka.bootstrap.servers": "localhost:9092"}


def parsed(**options: str) -> TopicSinkOptions:
    return parse_sink_options(LEAST | options)


def test_the_least() -> None:
    options = parsed()
    assert options.properties == {"bootstrap.servers": "localhost:9092"}
    assert (options.topic, options.routing, options.job) == (None, None, None)
    assert options.headers
    assert not (options.transactional or options.append or options.into_source)


def test_names_in_any_case_and_properties_of_the_client() -> None:
    options = parse_sink_options(
        {"Kafka.Bootstrap.Servers": "b:1", "TOPIC": "copy", "PARTITIONS": "by-key", "kafka.linger.ms": "5"}
    )
    assert options.properties == {"bootstrap.servers": "b:1", "linger.ms": "5"}
    assert (options.topic, options.routing) == ("copy", Routing("by-key"))


def test_a_streams_own_options_are_let_through() -> None:
    assert parsed(checkpointLocation="/somewhere", queryName="q") == parsed()


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        ({"transactionl": "true"}, "no option 'transactionl'", "did you mean transactional"),
        ({"linger.ms": "5"}, "no option 'linger.ms'", "remove it"),
        ({"transactional": "yes"}, "transactional is 'yes'", "true or false"),
        ({"transactional": "true"}, "needs a name for its job", '.option("job"'),
        ({"job": "a b"}, "not a job name", "letters"),
        ({"job": "copy.1"}, "not a job name of this format", "copy-1"),
        ({"partitions": "some"}, "partitions is 'some'", "omit it"),
    ],
)
def test_what_cannot_be_used_names_the_remedy(options: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink_options(LEAST | options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_property_without_its_prefix_is_explained() -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink_options(LEAST | {"linger.ms": "5"})
    assert "kafka.linger.ms" in caught.value.remedy


def test_a_cluster_is_needed() -> None:
    with pytest.raises(UsageError) as caught:
        parse_sink_options({"topic": "copy"})
    assert "kafka.bootstrap.servers" in caught.value.remedy


LEAST_COLUMNS = {"kafka.bootstrap.servers": "localhost:1"}
TYPES = {
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "headers": "array<struct<key:string,value:binary>>",
    "incarnation": "int",
}


def refuse(columns: str, **options: str) -> None:
    refuse_unfit(
        parse_sink_options(LEAST_COLUMNS | options), check_columns({name: TYPES[name] for name in columns.split()})
    )


@pytest.mark.parametrize(
    ("columns", "options"),
    [
        ("value", {"topic": "copy"}),
        ("value topic", {}),
        ("value topic partition", {"partitions": "4"}),
        ("value topic partition offset headers", {"topic": "copy", "incarnation": "1", **EXACTLY_ONCE}),
        ("value topic partition offset headers incarnation", {"topic": "copy", **EXACTLY_ONCE}),
        ("value topic partition offset", {"topic": "copy", "includeHeaders": "false"}),
        ("value topic partition offset headers", {"intoSource": "true", "incarnation": "2", **EXACTLY_ONCE}),
    ],
)
def test_columns_that_go_with_the_options(columns: str, options: dict[str, str]) -> None:
    refuse(columns, **options)


@pytest.mark.parametrize(
    ("columns", "options", "what", "remedy"),
    [
        ("value", {}, "no topic is named", "topic"),
        ("value topic partition offset headers", {}, "to the topics that they come from", "intoSource"),
        ("value topic partition offset", {"topic": "copy"}, "headers would be lost", "includeHeaders"),
        ("value", {"topic": "copy", "partitions": "keep"}, "no column partition", "by-key"),
        ("value topic partition", {"topic": "copy", **EXACTLY_ONCE}, "transactionally", "keep the columns"),
        ("value partition offset headers", {"topic": "copy", **EXACTLY_ONCE}, "transactionally", "keep the columns"),
        (
            "value topic partition offset headers",
            {"topic": "copy", **EXACTLY_ONCE},
            "do not say which incarnation",
            '.option("incarnation", "1")',
        ),
        (
            "value topic partition offset headers incarnation",
            {"topic": "copy", "incarnation": "1", **EXACTLY_ONCE},
            "an option and a column",
            "remove the option",
        ),
        (
            "value topic partition offset headers",
            {"topic": "copy", "recordedIncarnation": "1", **EXACTLY_ONCE},
            "recordedIncarnation does not apply",
            "includeIncarnation",
        ),
    ],
)
def test_columns_that_do_not(columns: str, options: dict[str, str], what: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        refuse(columns, **options)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_topic_is_not_overwritten_and_the_error_is_one_text() -> None:
    schema = StructType().add("value", "binary")
    with pytest.raises(WriteFailed) as caught:
        batch_writer({**LEAST_COLUMNS, "topic": "copy"}, schema, overwrite=True)
    assert str(caught.value).splitlines() == [
        "a topic cannot be overwritten",
        "why:   records are only ever appended to one",
        'do:    .mode("append")',
    ]


def test_every_write_is_a_run_of_its_own_and_travels_to_the_tasks() -> None:
    writer = TopicBatchWriter(None)  # type: ignore[arg-type]
    again = cloudpickle.loads(cloudpickle.dumps(writer))
    assert vars(again) == vars(writer)
    assert vars(TopicBatchWriter(None)) != vars(writer)  # type: ignore[arg-type]


POSITION = RowPosition(
    "orders", TaskRun("run:3", 2), 17, (OffsetRange(0, 5), OffsetRange(9, 12)), OffsetRange(20, 40), 11
)


class Lane:
    """A lane's committed position, and what stands in the target; every run is another one."""

    def __init__(self) -> None:
        self.position: RowPosition | None = None
        self.target: list[int] = []
        self.runs = 0

    def run(self, *batches: list[int], task: int = 0, dies: bool = False, same_run: bool = False) -> None:
        """One task, which commits after every batch; one that dies comes no further than them."""
        self.runs += not same_run
        ledger = RowLedger(self.position, "orders", 0, TaskRun(f"run-{self.runs}", task))
        for batch in batches:
            self._commit(ledger, batch[ledger.accept(np.array(batch, np.int64)) :])
        if not dies:
            ledger.finish()
            self._commit(ledger, [])

    def _commit(self, ledger: RowLedger, fresh: list[int]) -> None:
        position = ledger.position()
        if position is not None:
            self.target += fresh
            self.position = decode_row_position(position.written, position.encoded())
            ledger.committed(position)


@pytest.fixture
def lane() -> Lane:
    return Lane()


def test_encoded_and_back() -> None:
    assert decode_row_position(17, POSITION.encoded()) == POSITION
    named = replace(POSITION, incarnation=3)
    assert decode_row_position(17, named.encoded()) == named


def test_a_position_of_an_earlier_version_names_no_incarnation() -> None:
    earlier = POSITION.encoded().replace(',"incarnation":null', "")
    assert "incarnation" not in earlier
    assert decode_row_position(17, earlier) == POSITION


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", POSITION.encoded().replace('"v":1', '"v":2'), POSITION.encoded().replace("[20,40]", "[20]")],
)
def test_what_this_program_did_not_write_is_refused(text: str) -> None:
    with pytest.raises(ReplayRefused, match="cannot be read"):
        decode_row_position(1, text)


def test_the_longest_position_fits_into_what_kafka_stores() -> None:
    large = 2**63 - 1
    ranges = tuple(OffsetRange(large - 1, large) for _ in range(MAX_RANGES))
    writer = TaskRun("f" * 32 + ":99999999", 10**6)
    longest = RowPosition("t" * 249, writer, large, ranges, OffsetRange(large - 1, large), large)
    assert len(longest.encoded()) < MAX_METADATA_BYTES


def test_a_repeated_run_writes_nothing(lane: Lane) -> None:
    lane.run([3, 4, 7], [8])
    lane.run([3], [4, 7, 8])
    assert lane.target == [3, 4, 7, 8]
    assert lane.position is not None
    assert lane.position.writer == TaskRun("run-2", 0), "the second run has claimed the lane"


def test_a_task_that_died_is_gone_on_with(lane: Lane) -> None:
    lane.run([3, 4, 7], dies=True)
    lane.run([3, 4], [7, 8, 11], same_run=True)
    assert lane.target == [3, 4, 7, 8, 11]
    lane.run([3, 4, 7, 8, 11])
    assert lane.target == [3, 4, 7, 8, 11]


def test_batches_of_a_stream_with_kafkas_holes_between_them(lane: Lane) -> None:
    """And all of them again, from a lost checkpoint, in batches that end elsewhere."""
    lane.run([0, 1, 2])
    lane.run([4, 5])
    lane.run([6, 9])
    lane.run([0, 1])
    lane.run([2, 4, 5, 6])
    lane.run([9, 10])
    assert lane.target == [0, 1, 2, 4, 5, 6, 9, 10]


def test_holes_that_are_too_many_are_forgotten_from_the_oldest(lane: Lane) -> None:
    for number in range(0, 4 * MAX_RANGES, 2):
        lane.run([number])
    assert lane.position is not None
    assert len(lane.position.done) == MAX_RANGES
    lane.run(list(range(0, 4 * MAX_RANGES, 2)))
    assert lane.target == list(range(0, 4 * MAX_RANGES, 2))


def test_rows_that_were_skipped_are_refused_not_dropped(lane: Lane) -> None:
    """A later part of a partition came first, and the earlier one's task never ran."""
    lane.run([0, 1, 2])
    lane.run([50, 51], task=1)
    with pytest.raises(ReplayRefused, match="offset 3 of partition 0 of orders was not written"):
        lane.run([0, 1, 2, 3, 4, 50, 51])
    with pytest.raises(ReplayRefused, match="offset 4 "):
        lane.run([4])
    lane.run([0, 1, 2, 50, 51, 52])
    assert lane.target == [0, 1, 2, 50, 51, 52]


@pytest.mark.parametrize("even_first", [True, False])
def test_a_partition_dealt_out_to_two_tasks(lane: Lane, even_first: bool) -> None:
    """One of them is refused, and so is the whole once it comes in order: nothing is taken for written that was not."""
    parts = [list(range(0, 20, 2)), list(range(1, 20, 2))]
    first, second = parts if even_first else parts[::-1]
    lane.run(first, task=0)
    with pytest.raises(ReplayRefused, match="two tasks write partition 0 of orders"):
        lane.run(second, task=1, same_run=True)
    with pytest.raises(ReplayRefused, match=r"has other rows than were written|offset 0 .* was not written"):
        lane.run(list(range(20)))
    assert lane.target == first


def test_the_same_mistake_again_after_a_crash(lane: Lane) -> None:
    lane.run(list(range(0, 20, 2)), task=0)
    lane.run(list(range(0, 20, 2)), task=0)
    with pytest.raises(ReplayRefused, match="two tasks"):
        lane.run(list(range(1, 20, 2)), task=1, same_run=True)


def test_fewer_rows_than_were_written(lane: Lane) -> None:
    lane.run([0, 1, 2, 3])
    with pytest.raises(ReplayRefused, match="other rows") as caught:
        lane.run([0, 2, 3])
    assert caught.value.why == "4 were written at offsets [0..4), and these are 3"
    with pytest.raises(ReplayRefused, match="other rows"):
        lane.run([0, 2, 5])
    assert lane.target == [0, 1, 2, 3]


@pytest.mark.parametrize("batches", [([5, 4],), ([4, 4],), ([4], [4]), ([4, 9], [7])])
def test_rows_out_of_order(lane: Lane, batches: tuple[list[int], ...]) -> None:
    with pytest.raises(ReplayRefused, match="is not in order") as caught:
        lane.run(*batches)
    assert "sortWithinPartitions" in caught.value.remedy


def test_rows_of_another_topic() -> None:
    with pytest.raises(ReplayRefused, match="records of orders, not of payments"):
        RowLedger(POSITION, "payments", 0, TaskRun("new", 0))


def test_nothing_to_write_is_nothing_to_commit() -> None:
    ledger = RowLedger(None, "orders", 0, TaskRun("run", 0))
    assert ledger.accept(np.array([], np.int64)) == 0
    ledger.finish()
    assert ledger.position() is None
    again = RowLedger(POSITION, "orders", 0, POSITION.writer)
    assert again.position() is None
    assert RowLedger(POSITION, "orders", 0, TaskRun("new", 7)).position() == replace(POSITION, writer=TaskRun("new", 7))


@pytest.mark.slow
def test_any_deaths_and_batches_leave_every_row_once_and_in_order() -> None:
    seed = random.randrange(2**32)
    source = random.Random(seed)
    for _ in range(300):
        lane = Lane()
        rows = sorted(source.sample(range(200), source.randrange(1, 120)))
        ends = sorted({*source.sample(range(1, len(rows) + 1), min(len(rows), 4)), len(rows)})
        begun = 0
        for end in ends:
            # A batch of a stream, or a whole write again from the start or the middle, dies now and then.
            for attempt in range(3):
                start = source.choice([0, begun, source.randrange(begun + 1)])
                upto = source.randrange(start, end) if attempt < 2 and source.random() < 0.5 else end
                part = rows[start:upto]
                cut = source.randrange(len(part) + 1)
                batches = [batch for batch in (part[:cut], part[cut:]) if batch]
                lane.run(*batches, dies=upto < end, same_run=attempt > 0)
                if upto == end:
                    break
            begun = end
        assert lane.target == rows, f"seed {seed}"
