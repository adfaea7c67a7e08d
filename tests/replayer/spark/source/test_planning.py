import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from blockgz.archive.archive import opened
from blockgz.archive.positions import AT_START
from blockgz.archive.rows import to_rows
from blockgz.errors import NotInArchive, UsageError
from blockgz.spark.formats import KAFKA_COLUMNS
from index_format.chunk_index import Gap
from index_format.marker import Continues
from index_format.records import batch_from_records
from replayer.spark import planning, stream
from replayer.spark.background import iterated
from replayer.spark.planning import DataLost, PartitionRange, cut
from replayer.spark.source import BatchReader, ReadTask, batched, check_columns, schema_of
from replayer.spark.source_options import SourceOptions, parse_options
from tests.support.archives import ArchiveWriter, records


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 100)), min_size=1, max_size=12),
    st.integers(0, 40),
    st.integers(1, 60),
    st.integers(1, 200),
)
def test_tasks_cover_a_run_once_at_the_edges_of_pieces(
    steps: list[tuple[int, int]], start: int, length: int, limit: int
) -> None:
    ends = [sum(step for step, _ in steps[: number + 1]) for number in range(len(steps))]
    pieces = [(end, size) for end, (_, size) in zip(ends, steps, strict=True)]
    run = PartitionRange("orders~1", 0, start, min(start + length, ends[-1]))
    parts = cut(run, pieces, limit)
    if run.end <= run.start:
        assert parts == []
        return
    assert [parts[0].start, *(part.end for part in parts)] == [run.start, *(part.start for part in parts[1:]), run.end]
    for part in parts:
        assert part.end == run.end or part.end in ends
        sizes = [
            size
            for (end, size), before in zip(pieces, [0, *ends], strict=False)
            if end > part.start and before < part.end
        ]
        assert sum(sizes) <= limit or len(sizes) == 1


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    writer = ArchiveWriter(tmp_path)
    orders = writer.partition("orders", 0)
    for first in range(0, 400, 100):
        orders.commit(records(range(first, first + 100)))
    writer.partition("orders", 1).commit(records(range(50, 60)))
    writer.partition("payments", 0)
    return tmp_path


def options(path: Path, **given: str) -> SourceOptions:
    return parse_options({"path": str(path), "subscribe": "orders"} | given, default_start=AT_START)


def planned(wanted: SourceOptions) -> list[PartitionRange]:
    async def plan() -> list[PartitionRange]:
        async with opened(wanted.place) as archive:
            found = await planning.subscribed(archive, wanted)
            runs = await planning.ranges(found, wanted)
            return await planning.tasks([each.partition for each in found], runs, wanted)

    return asyncio.run(plan())


def test_a_small_archive_is_a_task_for_each_partition(archive: Path) -> None:
    assert planned(options(archive)) == [PartitionRange("orders~1", 0, 0, 400), PartitionRange("orders~1", 1, 50, 60)]


def test_more_tasks_cut_chunks_at_blocks(archive: Path) -> None:
    few = planned(options(archive, minPartitions="5"))
    many = planned(options(archive, minPartitions="30"))
    assert 5 <= len(few) < 30 <= len(many)
    for runs in (few, many):
        assert sum(run.end - run.start for run in runs) == 410


def test_ranges_by_offset_and_time(archive: Path) -> None:
    by_offset = options(archive, assign='{"orders":[0]}', subscribe="", startingOffsets='{"orders":{"0":150}}')
    assert planned(by_offset) == [PartitionRange("orders~1", 0, 150, 400)]
    start, end = 1_760_000_000_000 + 55, 1_760_000_000_000 + 58
    assert planned(options(archive, startingTimestamp=str(start), endingTimestamp=str(end))) == [
        PartitionRange("orders~1", 0, 55, 58),
        PartitionRange("orders~1", 1, 55, 58),
    ]


def test_a_start_by_time_that_nothing_reaches(archive: Path) -> None:
    late = str(1_760_000_000_000 + 100)
    with pytest.raises(UsageError, match="orders:1 holds no record at or after"):
        planned(options(archive, startingTimestamp=late))
    lenient = options(archive, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest")
    assert planned(lenient) == [PartitionRange("orders~1", 0, 100, 400)]


def test_offsets_outside_the_archive_are_data_lost(archive: Path) -> None:
    outside = {"startingOffsets": '{"orders":{"0":0,"1":7}}'}
    with pytest.raises(DataLost, match=r"offsets \[7\.\.50\) of orders:1"):
        planned(options(archive, **outside))
    assert planned(options(archive, failOnDataLoss="false", **outside))[-1] == PartitionRange("orders~1", 1, 50, 60)


def test_a_gap_is_data_lost_where_it_is_read(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path).partition("orders", 0)
    writer.commit(records(range(10)))
    writer.commit(records(range(20, 30)), gaps=(Gap(10, 20, "retention"),))
    with pytest.raises(DataLost, match=r"offsets \[10\.\.20\) of orders~1:0"):
        planned(options(tmp_path))
    assert planned(options(tmp_path, failOnDataLoss="false")) == [PartitionRange("orders~1", 0, 0, 30)]
    assert planned(options(tmp_path, startingOffsets='{"orders":{"0":20}}')) == [PartitionRange("orders~1", 0, 20, 30)]


def test_a_gap_that_may_hold_nothing_does_not_end_a_read(tmp_path: Path) -> None:
    """As streams leave one where a batch ends before a transaction's end; a known loss ends the read still."""
    writer = ArchiveWriter(tmp_path).partition("orders", 0)
    writer.commit(records(range(10)))
    writer.commit(records(range(11, 20)), gaps=(Gap(10, 11, "unverified"),))
    assert planned(options(tmp_path)) == [PartitionRange("orders~1", 0, 0, 20)]
    writer.commit(records(range(25, 30)), gaps=(Gap(20, 25, "retention"),))
    with pytest.raises(DataLost, match=r"offsets \[20\.\.25\) of orders~1:0"):
        planned(options(tmp_path))


def created_again(tmp_path: Path) -> Path:
    """A topic of three lives; the second one had a partition more."""
    writer = ArchiveWriter(tmp_path)
    writer.partition("orders", 0).commit(records(range(10)))
    writer.partition("orders", 0, incarnation=2).commit(records(range(20, 30)))
    writer.partition("orders", 1, incarnation=2).commit(records(range(5)))
    writer.partition("orders", 0, incarnation=3).commit(records(range(40, 43)))
    return tmp_path


class TestTopicsCreatedAgain:
    """Which of a topic's logs a batch reads."""

    def test_from_earliest_all_are_read_oldest_first(self, tmp_path: Path) -> None:
        assert planned(options(created_again(tmp_path))) == [
            PartitionRange("orders~1", 0, 0, 10),
            PartitionRange("orders~2", 0, 20, 30),
            PartitionRange("orders~2", 1, 0, 5),
            PartitionRange("orders~3", 0, 40, 43),
        ]

    def test_a_name_with_a_number_is_one_of_them(self, tmp_path: Path) -> None:
        wanted = options(created_again(tmp_path), subscribe="orders~2")
        assert planned(wanted) == [PartitionRange("orders~2", 0, 20, 30), PartitionRange("orders~2", 1, 0, 5)]
        with pytest.raises(NotInArchive, match="orders~7 is not in the archive"):
            planned(options(tmp_path, subscribe="orders~7"))

    def test_times_mean_all_of_them(self, tmp_path: Path) -> None:
        start, end = 1_760_000_000_000 + 8, 1_760_000_000_000 + 41
        wanted = options(created_again(tmp_path), startingTimestamp=str(start), endingTimestamp=str(end))
        assert planned(wanted) == [
            PartitionRange("orders~1", 0, 8, 10),
            PartitionRange("orders~2", 0, 20, 30),
            PartitionRange("orders~3", 0, 40, 41),
        ]

    def test_offsets_are_those_of_the_newest_or_of_a_named_one(self, tmp_path: Path) -> None:
        created_again(tmp_path)
        assert planned(options(tmp_path, startingOffsets='{"orders":{"0":41}}')) == [
            PartitionRange("orders~3", 0, 41, 43)
        ]
        named = options(tmp_path, startingOffsets='{"orders~2":{"0":25},"orders":{"0":41}}')
        assert planned(named) == [PartitionRange("orders~2", 0, 25, 30), PartitionRange("orders~3", 0, 41, 43)]
        ends = options(tmp_path, endingOffsets='{"orders~1":{"0":3},"orders":{"0":41}}')
        assert planned(ends) == [
            PartitionRange("orders~1", 0, 0, 3),
            PartitionRange("orders~2", 0, 20, 30),
            PartitionRange("orders~2", 1, 0, 5),
            PartitionRange("orders~3", 0, 40, 41),
        ]

    def test_rows_of_a_truncated_log_name_the_folder_that_holds_them(self, tmp_path: Path) -> None:
        writer = ArchiveWriter(tmp_path)
        cut = writer.partition("orders", 0)
        cut.commit(records(range(8)))
        cut.commit(records(range(8, 10)))
        newer = writer.partition("orders", 0, incarnation=2)
        newer.marker = replace(
            newer.marker, topic_id="id-1", continues=Continues("orders", 8), start_offset=8, next_offset=8
        )
        newer.commit(records(range(8, 30)))
        wanted = options(tmp_path, includeIncarnation="true")
        (run,) = planned(wanted)
        assert run == PartitionRange("orders~2", 0, 0, 30)
        rows = [
            row
            for batch in BatchReader(wanted, ("offset", "incarnation")).read(ReadTask(run))
            for row in batch.to_pylist()
        ]
        assert [row["offset"] for row in rows] == list(range(30))
        assert [row["incarnation"] for row in rows] == [1] * 8 + [2] * 22

    def test_a_partition_is_assigned_where_any_had_it(self, tmp_path: Path) -> None:
        wanted = options(created_again(tmp_path), subscribe="", assign='{"orders":[1]}')
        assert planned(wanted) == [PartitionRange("orders~2", 1, 0, 5)]
        with pytest.raises(NotInArchive, match="partition 2 of orders is not in the archive"):
            planned(options(tmp_path, subscribe="", assign='{"orders":[0,2]}'))


def test_a_pattern_must_fit_some_topic(archive: Path) -> None:
    assert {run.topic for run in planned(options(archive, subscribe="", subscribePattern="ord.*"))} == {"orders~1"}
    with pytest.raises(NotInArchive, match="no archived topic matches"):
        planned(options(archive, subscribe="", subscribePattern="ord"))


@pytest.mark.slow
@given(st.dictionaries(st.tuples(st.just("t"), st.text("01", max_size=3)), st.integers(0, 1000)), st.integers(1, 3000))
def test_a_limit_is_shared_by_lag(lags: dict[tuple[str, str], int], most: int) -> None:
    steps = stream.shared_out(lags, most)
    assert all(0 <= steps[place] <= lag and (steps[place] > 0) == (lag > 0) for place, lag in lags.items())
    assert sum(steps.values()) <= most + len(lags)


def test_rows_name_their_incarnation_last_if_asked() -> None:
    batch = to_rows(batch_from_records(records(range(3))), "orders", 3, headers=True, incarnation=2)
    assert batch.schema.names[-2:] == ["headers", "incarnation"]
    assert batch.column("incarnation").to_pylist() == [2, 2, 2]


def test_rows_have_the_columns_of_the_kafka_source() -> None:
    batch = batch_from_records(records(range(3), timestamps=[-1, 0, 1_760_000_000_123]))
    rows = to_rows(batch, "orders", 3, headers=True).to_pylist()
    assert [row["timestamp"].isoformat() for row in rows] == [
        "1969-12-31T23:59:59.999000+00:00",
        "1970-01-01T00:00:00+00:00",
        "2025-10-09T08:53:20.123000+00:00",
    ]
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"v"}, {"key": "h", "value": None}], None, None]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {("orders", 3, 0)}
    assert "headers" not in to_rows(batch, "orders", 3, headers=False).schema.names


def test_a_schema_may_leave_columns_out_and_nothing_else() -> None:
    known = {"offset": "bigint", "value": "binary", "incarnation": "int"}
    check_columns(known, known)
    with pytest.raises(UsageError, match="has column value as string") as caught:
        check_columns({"value": "string"}, known)
    assert "the archive holds it as binary" in str(caught.value.why)
    with pytest.raises(UsageError, match="has no column 'Value'"):
        check_columns({"Value": "binary"}, known)


def test_the_columns_of_a_read_are_those_of_sparks_kafka_source(tmp_path: Path) -> None:
    given = {"path": str(tmp_path), "subscribe": "orders"}
    kinds = {field.name: field.dataType.simpleString() for field in schema_of({**given, "includeHeaders": "true"})}
    assert kinds == KAFKA_COLUMNS
    assert schema_of({**given, "includeIncarnation": "true"}).names == [*[*KAFKA_COLUMNS][:-1], "incarnation"]


def test_batches_are_batched_in_order() -> None:
    batches = [to_rows(batch_from_records(records([n])), "t", 0, headers=False) for n in range(50)]
    (whole,) = batched(iter(batches))
    assert whole.column("offset").to_pylist() == list(range(50))
    assert list(batched(iter([]))) == []


class TestIterated:
    def test_items_then_the_error(self) -> None:
        async def source() -> AsyncGenerator[int]:
            for number in range(10):
                yield number
            raise DataLost("orders:0", 10, 11, "it broke")

        seen = []
        with pytest.raises(DataLost):
            for item in iterated(source):
                seen.append(item)
        assert seen == list(range(10))

    def test_giving_up_ends_the_read(self) -> None:
        closed = []

        async def source() -> AsyncGenerator[pa.RecordBatch]:
            try:
                while True:
                    yield 1
            finally:
                closed.append(True)

        items = iterated(source)
        assert next(items) == 1
        items.close()  # type: ignore[attr-defined]
        assert closed == [True]
