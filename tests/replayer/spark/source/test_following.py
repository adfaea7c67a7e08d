import asyncio
import functools
import operator
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
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

from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened
from blockgz.archive.positions import AT_END, AT_START
from blockgz.store.opening import open_reader
from blockgz.store.reader import PassingReader
from index_format.marker import Continues
from replayer.spark import planning, stream
from replayer.spark.planning import LISTED_SECONDS, Listing, PartitionRange
from replayer.spark.source import FilteredReader
from replayer.spark.source_options import SourceOptions, parse_options
from replayer.spark.stream import Offsets
from tests.support.archives import ArchiveWriter, PartitionWriter, records


def options(path: Path, **given: str) -> SourceOptions:
    return parse_options({"path": str(path), "subscribe": "orders"} | given, default_start=AT_START)


def ended(start: Offsets, wanted: SourceOptions, most: int | None = None, last: Offsets | None = None) -> Offsets:
    """Where the next batch ends."""
    listing = Listing(wanted.subscription)
    return asyncio.run(stream.next_end(start, last, most, wanted, listing))[0]


def drained(start: Offsets, wanted: SourceOptions, most: int | None = None) -> list[Offsets]:
    """The ends of all batches until nothing is left."""
    found: list[Offsets] = []
    while (end := ended(start, wanted, most)) != start:
        found.append(end)
        start = end
    return found


def named(writer: PartitionWriter, successor: str) -> None:
    writer.marker = replace(writer.marker, successor=successor)
    writer.store_marker()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    writer = ArchiveWriter(tmp_path)
    orders = writer.partition("orders", 0)
    for first in range(0, 400, 100):
        orders.commit(records(range(first, first + 100)))
    writer.partition("orders", 1).commit(records(range(50, 60)))
    return tmp_path


def test_a_stream_continues_through_a_topic_created_again(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    writer.partition("orders", 0).commit(records(range(10)))
    wanted = options(tmp_path)
    start = asyncio.run(stream.initial(wanted))
    assert start == {"orders~1": {"0": 0}}
    first = ended(start, wanted, 4)
    assert first == {"orders~1": {"0": 4}}
    writer.partition("orders", 0, incarnation=2).commit(records(range(3)))
    second, third = drained(first, wanted)
    assert second == {"orders~1": {"0": 10}}, "a batch reads one log of a topic"
    assert third == {"orders~1": {"0": 10}, "orders~2": {"0": 3}}
    assert asyncio.run(stream.tasks_between(second, third, wanted)) == [PartitionRange("orders~2", 0, 0, 3)]


@pytest.mark.parametrize("most", [None, 3, 7])
def test_a_new_query_from_the_earliest_reads_the_logs_one_after_the_other(tmp_path: Path, most: int | None) -> None:
    writer = ArchiveWriter(tmp_path)
    for partition in range(2):
        old = writer.partition("orders", partition)
        old.commit(records(range(10 + partition)))
        named(old, "orders~2")
        writer.partition("orders", partition, incarnation=2).commit(records(range(6)))
    wanted = options(tmp_path)
    start = asyncio.run(stream.initial(wanted))
    assert start == {"orders~1": {"0": 0, "1": 0}, "orders~2": {"0": 0, "1": 0}}
    batches = drained(start, wanted, most)
    assert batches[-1] == {"orders~1": {"0": 10, "1": 11}, "orders~2": {"0": 6, "1": 6}}
    for end in batches:
        assert end["orders~1"] == {"0": 10, "1": 11} or end["orders~2"] == {"0": 0, "1": 0}


def test_a_new_query_from_the_latest_reads_the_newest_log_alone(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    old = writer.partition("orders", 0)
    old.commit(records(range(10)))
    new = writer.partition("orders", 0, incarnation=2)
    new.commit(records(range(3)))
    wanted = parse_options({"path": str(tmp_path), "subscribe": "orders"}, default_start=AT_END)
    start = asyncio.run(stream.initial(wanted))
    assert start == {"orders~2": {"0": 3}}
    new.commit(records(range(3, 5)))
    assert drained(start, wanted) == [{"orders~2": {"0": 5}}]


def test_a_topic_that_comes_later_is_read_from_its_first_log(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    writer.partition("orders", 0).commit(records(range(3)))
    wanted = options(tmp_path, subscribe="", subscribePattern="o.*")
    (start,) = drained(asyncio.run(stream.initial(wanted)), wanted)
    writer.partition("others", 0).commit(records(range(5)))
    writer.partition("others", 0, incarnation=2).commit(records(range(7)))
    assert drained(start, wanted)[-1] == {"orders~1": {"0": 3}, "others~1": {"0": 5}, "others~2": {"0": 7}}


@pytest.mark.slow
def test_a_truncated_log_is_one_log(tmp_path: Path) -> None:
    """Partition 1 stays in the first folder and grows there: partition 0 in the second one does not wait for it."""
    writer = ArchiveWriter(tmp_path)
    cut = writer.partition("orders", 0)
    cut.commit(records(range(8)))
    cut.commit(records(range(8, 10)))
    growing = writer.partition("orders", 1)
    growing.commit(records(range(10)))
    newer = writer.partition("orders", 0, incarnation=2)
    newer.marker = replace(
        newer.marker, topic_id="id-1", continues=Continues("orders", 8), start_offset=8, next_offset=8
    )
    newer.commit(records(range(8, 30)))
    wanted = options(tmp_path)
    start = asyncio.run(stream.initial(wanted))
    assert start == {"orders~1": {"0": 0, "1": 0}, "orders~2": {"0": 8}}
    position = ended(start, wanted, 5)
    assert (position["orders~1"]["1"] > 0, position["orders~2"]) == (True, {"0": 8})
    for first in range(10, 400, 10):
        growing.commit(records(range(first, first + 10)))
        position = ended(position, wanted, 10)
    assert position["orders~1"]["0"] == 8, "what follows stands in the second folder"
    assert position["orders~2"] == {"0": 30}


def test_available_now_does_not_run_after_new_records(archive: Path) -> None:
    wanted = options(archive)
    last = asyncio.run(stream.latest(wanted, Listing(wanted.subscription)))
    end = ended({}, wanted, 100, last)
    assert sum(end["orders~1"].values()) <= 50 + 100
    ArchiveWriter(archive).partition("orders", 0, incarnation=2).commit(records(range(5)))
    for _ in range(10):
        end = ended(end, wanted, 100, last)
    assert end == last


@given(st.dictionaries(st.tuples(st.just("t"), st.text("01", max_size=3)), st.integers(0, 1000)), st.integers(1, 3000))
def test_a_limit_is_shared_by_lag(lags: dict[tuple[str, str], int], most: int) -> None:
    steps = stream.shared_out(lags, most)
    assert all(0 <= steps[place] <= lag and (steps[place] > 0) == (lag > 0) for place, lag in lags.items())
    assert sum(steps.values()) <= most + len(lags)


class CountingReader(PassingReader):
    """Counts requests, and how many are under way at once."""

    requests = at_once = _now = 0

    async def get(self, key: str, max_bytes: int) -> bytes:
        async with self._counted():
            return await super().get(key, max_bytes)

    async def folders(self, prefix: str) -> tuple[str, ...]:
        async with self._counted():
            return await super().folders(prefix)

    @asynccontextmanager
    async def _counted(self) -> AsyncIterator[None]:
        self.requests += 1
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        for _ in range(20):
            await asyncio.sleep(0)
        try:
            yield
        finally:
            self._now -= 1


@pytest.mark.slow
@pytest.mark.parametrize(("topics", "partitions"), [(1, 200), (200, 1)])
def test_a_trigger_asks_for_many_partitions_at_once_and_an_idle_one_for_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, topics: int, partitions: int
) -> None:
    writer = ArchiveWriter(tmp_path)
    for topic in range(topics):
        for partition in range(partitions):
            writer.partition(f"orders{topic}", partition).commit(records([0]))
    readers: list[CountingReader] = []

    @asynccontextmanager
    async def counted(place: ArchivePlace) -> AsyncIterator[ArchiveReader]:
        async with open_reader(place.address) as reader:
            readers.append(CountingReader(reader))
            yield ArchiveReader(readers[-1])

    monkeypatch.setattr(stream, "opened", counted)
    wanted = options(tmp_path, subscribe="", subscribePattern="orders.*")
    now = 0.0
    listing = Listing(wanted.subscription, lambda: now)
    start = asyncio.run(stream.initial(wanted))
    end = asyncio.run(stream.next_end(start, None, None, wanted, listing))[0]
    assert sum(sum(each.values()) for each in end.values()) == 200
    assert readers[-1].at_once >= 50
    assert asyncio.run(stream.next_end(end, None, None, wanted, listing))[0] == end
    assert readers[-1].requests == 200
    writer.partition("orders0", partitions).commit(records([0]))
    now = LISTED_SECONDS + 1
    assert asyncio.run(stream.next_end(end, None, None, wanted, listing))[0] != end, "it is listed by now"


def test_a_topic_created_again_is_seen_at_once(tmp_path: Path) -> None:
    """Its markers name what comes after it."""
    writer = ArchiveWriter(tmp_path)
    old = writer.partition("orders", 0)
    old.commit(records(range(10)))
    wanted = options(tmp_path)
    listing = Listing(wanted.subscription, lambda: 0.0)
    start = asyncio.run(stream.next_end({}, None, None, wanted, listing))[0]
    named(old, "orders~2")
    writer.partition("orders", 0, incarnation=2).commit(records(range(4)))
    end = asyncio.run(stream.next_end(start, None, None, wanted, listing))[0]
    assert end == {"orders~1": {"0": 10}, "orders~2": {"0": 4}}


def test_how_far_behind_a_stream_is(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    for partition in (0, 1):
        orders = writer.partition("orders", partition)
        for first in range(0, 30, 10):
            orders.commit([each._replace(timestamp=1000 * each.offset) for each in records(range(first, first + 10))])
    wanted = options(tmp_path)
    listing = Listing(wanted.subscription)
    start = asyncio.run(stream.initial(wanted))

    def told(start: Offsets, most: int | None, last: Offsets | None = None) -> dict[str, int]:
        return asyncio.run(stream.next_end(start, last, most, wanted, listing))[1][stream.BEHIND]

    assert told(start, 2) == {"offsets": 58, "seconds": 29}
    later = {"orders~1": {"0": 15, "1": 30}}
    assert told(later, 1) == {"offsets": 14, "seconds": 19}, "from the beginning of the chunk that is read next"
    assert told(later, None, last=later) == {"offsets": 15, "seconds": 19}, "what came after the query's end counts"
    assert told(later, None) == {"offsets": 0, "seconds": 0}
    assert told({"orders~1": {"0": 30, "1": 30}}, None) == {"offsets": 0, "seconds": 0}


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


def options_pruning(place: Path) -> SourceOptions:
    given = {"path": str(place), "subscribe": "orders,payments"}
    return parse_options(given, default_start=AT_START)


def read(place: Path, filters: list[Filter]) -> list[Row]:
    """What the tasks of a query with these filters hand to Spark."""
    reader = FilteredReader(options_pruning(place), COLUMNS)
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
