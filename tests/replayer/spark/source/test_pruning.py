"""What a query's filters leave out holds none of its rows."""

import asyncio
import functools
import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from blockgz.archive.archive import opened
from blockgz.archive.positions import AT_START
from replayer.spark import planning
from replayer.spark.planning import PartitionRange
from replayer.spark.source import FilteredReader
from replayer.spark.source_options import SourceOptions, parse_options
from tests.support.archives import ArchiveWriter, records

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = ("topic", "partition", "offset", "timestamp")
FIRST_MS = 1_760_000_000_000
Row = dict[str, Any]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics: chunks of several blocks, holes, times that fall, a partition without times, one as text."""
    root = tmp_path_factory.mktemp("archive")
    writer = ArchiveWriter(root)
    orders = writer.partition("orders", 0)
    for first in range(0, 400, 100):
        orders.commit(records(range(first, first + 100, 2)), block_bytes=500)
    falling = writer.partition("orders", 1)
    for first in range(0, 120, 40):
        times = [FIRST_MS + 400 - 3 * offset for offset in range(first, first + 40)]
        falling.commit(records(range(first, first + 40), timestamps=times), block_bytes=500)
    without = writer.partition("payments", 0)
    without.commit(records(range(30), timestamps=[-1] * 30), block_bytes=500)
    lines = [record._replace(key=None, value=b"a line", headers=()) for record in records(range(60, 90))]
    writer.partition("payments", 1, record_format="text").commit(lines, block_bytes=300)
    return root


def at(offset: int) -> datetime:
    """About the time of a record, to the microsecond, so that some filters fall between two milliseconds."""
    return EPOCH + timedelta(milliseconds=FIRST_MS + offset, microseconds=(offset * 7) % 3)


numbers = st.integers(-5, 420)
times = st.one_of(numbers.map(at), st.just(EPOCH), st.just(EPOCH - timedelta(milliseconds=1)))
values: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(["orders", "payments", "p"]),
    "partition": st.integers(-1, 2),
    "offset": numbers,
    "timestamp": times,
}


COMPARED: dict[Any, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, values: value in values,
}


@st.composite
def conditions(draw: st.DrawFn) -> Filter:
    column, kind = draw(st.sampled_from(COLUMNS)), draw(st.sampled_from([*COMPARED, IsNotNull]))
    if kind is IsNotNull:
        return IsNotNull((column,))
    value = values[column] if kind is not In else st.lists(values[column], max_size=3).map(tuple)
    made: Filter = kind((column,), draw(value))
    return Not(made) if draw(st.booleans()) and draw(st.booleans()) else made


def passes(row: Row, condition: Any) -> bool:
    """What Spark would say."""
    if isinstance(condition, Not):
        return not passes(row, condition.child)
    compared = COMPARED.get(type(condition))
    return compared is None or compared(row[condition.attribute[0]], condition.value)


def options(place: Path) -> SourceOptions:
    given = {"path": str(place), "subscribe": "orders,payments"}
    return parse_options(given, default_start=AT_START)


def read(place: Path, filters: list[Filter]) -> list[Row]:
    """What the tasks of a query with these filters hand to Spark."""
    reader = FilteredReader(options(place), COLUMNS)
    assert reader.pushFilters(filters) is filters
    tasks = reader.partitions()
    return [row for task in tasks for row in pa.Table.from_batches(reader.read(task)).to_pylist()]


@functools.cache
def whole(place: Path) -> list[Row]:
    """All rows."""
    rows = read(place, [])
    assert len(rows) == 200 + 120 + 30 + 30
    return rows


def planned(place: Path, *filters: Filter) -> list[PartitionRange]:
    """Without cutting, what is left of each partition."""

    async def plan() -> list[PartitionRange]:
        whole = parse_options({"path": str(place), "subscribe": "orders,payments"}, default_start=AT_START)
        async with opened(whole.place) as archive:
            found = await planning.subscribed(archive, whole)
            runs = await planning.ranges(found, whole)
            return await planning.tasks([each.partition for each in found], runs, whole, filters)

    return asyncio.run(plan())


@pytest.mark.slow
@settings(deadline=None)
@given(filters=st.lists(conditions(), min_size=1, max_size=4))
def test_no_row_that_passes_is_left_out(place: Path, filters: list[Filter]) -> None:
    left = planned(place, *filters)
    wanted = [row for row in whole(place) if all(passes(row, each) for each in filters)]
    assert all(any(_holds(each, row) for each in left) for row in wanted)


def _holds(part: PartitionRange, row: Row) -> bool:
    place = f"{row['topic']}~1", row["partition"]
    return (part.topic, part.partition) == place and part.start <= row["offset"] < part.end


def test_a_task_reads_what_is_left(place: Path) -> None:
    filters: list[Filter] = [GreaterThan(("offset",), 250), EqualTo(("topic",), "orders")]
    rows = read(place, filters)
    assert 74 <= len(rows) < 100
    assert [row for row in rows if row["offset"] > 250] == [
        row for row in whole(place) if all(passes(row, each) for each in filters)
    ]


def test_whole_chunks_and_the_blocks_before_and_behind_are_left_out(place: Path) -> None:
    between = GreaterThanOrEqual(("timestamp",), at(150)), LessThan(("timestamp",), at(250))
    orders, falling = planned(place, EqualTo(("topic",), "orders"), *between)
    assert 100 < orders.start <= 150 and 250 <= orders.end < 300
    assert falling.partition == 1 and falling.end - falling.start < 80
    (one,) = planned(place, EqualTo(("offset",), 156), EqualTo(("partition",), 0), EqualTo(("topic",), "orders"))
    assert one.end > 150 and one.end - one.start < 40


def test_chunks_in_between_that_hold_none_are_left_out(place: Path) -> None:
    ranges = planned(place, In(("offset",), (5, 350)), EqualTo(("topic",), "orders"), EqualTo(("partition",), 0))
    assert [each.start // 100 for each in ranges] == [0, 3]


def test_a_topic_without_times_passes_where_none_is_asked_for_alone(place: Path) -> None:
    payments = EqualTo(("topic",), "payments")
    assert planned(place, payments, GreaterThan(("timestamp",), EPOCH)) == []
    assert len(planned(place, payments, LessThan(("timestamp",), EPOCH))) == 2


def test_what_came_later_is_left_out_as_well(place: Path) -> None:
    orders, falling = planned(place, EqualTo(("topic",), "orders"), LessThan(("timestamp",), at(110)))
    assert (orders.start, orders.end // 100) == (0, 1)
    assert falling.start > 80


def test_a_value_that_cannot_be_compared_leaves_nothing_out(place: Path) -> None:
    unknown = EqualTo(("offset",), "17"), EqualTo(("timestamp",), datetime(2020, 1, 1)), EqualTo(("value",), b"x")
    assert planned(place, *unknown) == planned(place)
