"""The source without Spark: options, plans of tasks, keys and values, damaged archives."""

import asyncio
import json
import pickle
import shutil
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pyspark import cloudpickle
from pyspark.sql.datasource import Filter, GreaterThanOrEqual
from pyspark.sql.types import LongType, StringType, StructField, StructType

from blockgz.archive.archive import opened
from blockgz.archive.positions import AT_END, AT_START, AtOffset, AtTime
from blockgz.archive.rows import to_rows
from blockgz.errors import NotInArchive, UsageError
from blockgz.spark.errors import ReadFailed
from blockgz.spark.formats import KAFKA_COLUMNS
from blockgz.store.address import Address, LocalAddress, S3Address, S3Settings
from index_format.keys import TopicFolder
from index_format.marker import Continues
from index_format.objects import Gap
from index_format.records import Record, batch_from_records
from replayer.spark import planning, stream
from replayer.spark.background import iterated
from replayer.spark.planning import DataLost, PartitionRange, cut
from replayer.spark.source import BatchReader, FilteredReader, ReadTask, batch_reader, batched, check_columns, schema_of
from replayer.spark.source_options import Bound, SourceOptions, parse_options, position_in
from tests.support.archives import ArchiveWriter, records
from tests.support.sampling import mostly_long
from tests.support.schema_registry import schema_registry


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


LEAST = {"path": "./archive", "subscribe": "orders"}


def here(name: str) -> LocalAddress:
    """Executors work in other folders."""
    return LocalAddress(str(Path.cwd() / name))


def parsed(**options: str) -> SourceOptions:
    return parse_options(LEAST | options, default_start=AT_START)


def test_the_least_reads_everything() -> None:
    options = parsed()
    assert (options.place.address, options.start, options.end) == (here("archive"), AT_START, AT_END)
    assert options.subscription == {"orders": None}
    assert options.fails_on_data_loss
    assert not options.headers


def test_a_bare_path_is_a_folder_as_everywhere_in_spark() -> None:
    assert parsed(path="archive").place.address == here("archive")


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("s3a://backup/kafka", S3Address("backup", "kafka/")),
        ("s3://backup/kafka", S3Address("backup", "kafka/")),
        ("file:/data/kafka", LocalAddress("/data/kafka")),
        ("file:///data/kafka", LocalAddress("/data/kafka")),
        ("~/kafka", LocalAddress(str(Path.home() / "kafka"))),
    ],
)
def test_paths_as_spark_spells_them(path: str, address: Address) -> None:
    assert parsed(path=path).place.address == address


def test_the_connection_to_s3() -> None:
    role = "arn:aws:iam::1:role/reader"
    options = parsed(
        endpointUrl="http://s3", region="r", profile="p", proxyUrl="http://x:1", roleArn=role, externalId="i"
    )
    assert options.place.s3 == S3Settings("http://s3", "r", "p", "http://x:1", role, "i")
    with pytest.raises(UsageError, match="cannot be combined"):
        parsed(externalId="i")


def test_what_hadoops_s3a_calls_the_same() -> None:
    keys = {"fs.s3a.access.key": "${env:ID}", "fs.s3a.secret.key": "${env:SECRET}", "fs.s3a.session.token": "${env:T}"}
    role = "arn:aws:iam::1:role/reader"
    s3a = {"fs.s3a.endpoint": "s3.example.com:9000", "fs.s3a.Endpoint.Region": "r", "fs.s3a.assumed.role.arn": role}
    references = {"access_key_id": "${env:ID}", "secret_access_key": "${env:SECRET}", "session_token": "${env:T}"}
    expected = S3Settings("https://s3.example.com:9000", "r", role_arn=role, **references)
    assert parsed(**s3a, **keys).place.s3 == expected
    assert parsed(**{"fs.s3a.endpoint": "http://s3:1"}).place.s3.endpoint_url == "http://s3:1"
    with pytest.raises(UsageError, match="has no effect") as caught:
        parsed(**{"fs.s3a.path.style.access": "true"})
    assert "fs.s3a.endpoint.region" in caught.value.remedy
    with pytest.raises(UsageError, match="the same option"):
        parsed(**{"fs.s3a.endpoint": "http://s3:1", "EndpointURL": "http://s3:2"})
    with pytest.raises(UsageError, match="not a reference") as caught:
        parsed(**{"fs.s3a.access.key": "AKIA", "fs.s3a.secret.key": "hidden"})
    assert "hidden" not in str(caught.value.why)


def test_names_in_any_case() -> None:
    assert parsed(INCLUDEHEADERS="TRUE", MinPartitions="7").headers
    assert parsed(MINPARTITIONS="7").min_tasks == 7


@pytest.mark.parametrize(
    ("options", "start"),
    [
        ({"startingOffsets": "earliest"}, AT_START),
        ({"startingOffsets": "latest"}, AT_END),
        (
            {"startingOffsets": '{"orders":{"0":23,"1":-1,"2":-2}}'},
            {("orders", 0): AtOffset(23), ("orders", 1): AT_END, ("orders", 2): AT_START},
        ),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":1000}}'}, {("orders", 0): AtTime(1000)}),
        ({"startingTimestamp": "1000", "startingOffsets": "latest"}, AtTime(1000)),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":1}}', "startingOffsets": "latest"}, {("orders", 0): AtTime(1)}),
    ],
)
def test_where_to_start(options: dict[str, str], start: Bound) -> None:
    assert parsed(**options).start == start


def test_topics_and_partitions() -> None:
    assert parsed(subscribe="orders, payments,").subscription == {"orders": None, "payments": None}
    assigned = parse_options({"path": "/a", "assign": '{"orders":[2,0,2]}'}, default_start=AT_START)
    assert assigned.subscription == {"orders": (0, 2)}
    fitting = parse_options({"path": "/a", "subscribePattern": "ord.*"}, default_start=AT_START)
    assert fitting.subscription == "ord.*"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kafka.bootstrap.servers": "localhost:9092"}, "kafka.bootstrap.servers"),
        ({"path": ""}, "path"),
        ({"path": "gs://bucket"}, "gs://bucket"),
        ({"subscribe": ""}, "subscribe"),
        ({"subscribePattern": "o.*"}, "one of subscribe"),
        ({"subscribe": "", "subscribePattern": "("}, "subscribePattern"),
        ({"subscribe": "", "assign": "orders"}, "assign"),
        ({"subscribe": "", "assign": '{"orders":3}'}, "assign"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": '{"orders":3}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":"3"}}'}, "startingOffsets"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "startingOffsets"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"endingOffsets": '{"orders":{"0":-2}}'}, "endingOffsets"),
        ({"endingTimestamp": "yesterday"}, "endingTimestamp"),
        ({"includeHeaders": "yes"}, "includeHeaders"),
        ({"minPartitions": "-1"}, "minPartitions"),
        ({"startingOffsetsByTimestampStrategy": "first"}, "startingOffsetsByTimestampStrategy"),
    ],
)
def test_what_is_refused_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(**options)
    assert named in str(caught.value)
    assert caught.value.remedy


def test_offsets_by_partition_must_name_all() -> None:
    bound = parsed(startingOffsets='{"orders":{"0":23}}').start
    assert position_in(bound, TopicFolder("orders"), 0, "startingOffsets") == AtOffset(23)
    with pytest.raises(UsageError, match="does not name partition 1 of orders"):
        position_in(bound, TopicFolder("orders"), 1, "startingOffsets")


CHUNKS, CHUNK = 140, 10
"""Enough chunks for catalogs."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    part = ArchiveWriter(root).partition("orders", 0)
    for first in range(0, CHUNKS * CHUNK, CHUNK):
        part.commit(records(range(first, first + CHUNK)))
    return root


@pytest.fixture
def damaged_archive(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "archive"))


def chunk_of(damaged_archive: Path, suffix: str) -> Path:
    """A file of the tenth chunk."""
    (found,) = damaged_archive.rglob(f"*{9 * CHUNK:020d}{suffix}")
    return found


def damage_data(damaged_archive: Path) -> None:
    data = chunk_of(damaged_archive, ".gz")
    data.write_bytes(bytes(data.stat().st_size))


def lose_index(damaged_archive: Path) -> None:
    chunk_of(damaged_archive, ".index.json").unlink()


def lose_catalog(damaged_archive: Path) -> None:
    min(damaged_archive.rglob("_catalog/*")).unlink()


def read(damaged_archive: Path, *filters: Filter, **more: str) -> list[int]:
    given = {"path": str(damaged_archive), "subscribe": "orders", **more}
    reader = FilteredReader(parse_options(given, default_start=AT_START), ("offset",))
    reader.pushFilters(list(filters))
    return [
        offset for task in reader.partitions() for rows in reader.read(task) for offset in rows["offset"].to_pylist()
    ]


@pytest.mark.slow
@pytest.mark.parametrize("damage", [damage_data, lose_index, lose_catalog])
@pytest.mark.parametrize("filters", [(), (GreaterThanOrEqual(("offset",), 95),)], ids=["whole", "filtered"])
@pytest.mark.parametrize("size", mostly_long(["10000", "1000000"]), ids=["many tasks", "one task"])
def test_damage_ends_a_read_or_is_skipped(
    damaged_archive: Path,
    damage: Callable[[Path], None],
    filters: tuple[Filter, ...],
    size: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    damage(damaged_archive)
    with pytest.raises(ReadFailed):
        read(damaged_archive, *filters, taskBytes=size)
    capfd.readouterr()
    found = read(damaged_archive, *filters, taskBytes=size, onDamage="skip")
    assert found == sorted(set(found))
    lost = set(range(95 if filters else 0, CHUNKS * CHUNK)) - set(found)
    assert lost and max(lost) < CHUNK * CHUNKS / 2
    if damage is not lose_catalog:
        assert lost <= set(range(90, 100))
    assert "blockgz: FAILURE orders:0 skipped offsets [" in capfd.readouterr().err


@pytest.mark.parametrize("columns", [("value", "offset"), ("offset", "timestamp", "timestampType")])
def test_a_time_that_microseconds_cannot_hold_is_null(tmp_path: Path, columns: tuple[str, ...]) -> None:
    times = [1_760_000_000_000_000_000, 2**63 - 1, -(2**63), -1, 1_760_000_000_000]
    ArchiveWriter(tmp_path).partition("orders", 0).commit(records(range(5), timestamps=times))
    options = parse_options({"path": str(tmp_path), "subscribe": "orders"}, default_start=AT_START)
    reader = FilteredReader(options, columns)
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [name for batch in batches for name in batch.schema.names] == [*columns]
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == list(range(5))
    if "timestamp" in columns:
        found = [each.value for each in batches[0].column("timestamp")]
        assert found == [None, None, None, -1000, 1_760_000_000_000_000]


@pytest.mark.parametrize("bound", ["startingTimestamp", "endingTimestamp"])
def test_records_on_the_wrong_side_of_a_time_are_told_on_stderr(
    tmp_path: Path, bound: str, capfd: pytest.CaptureFixture[str]
) -> None:
    skewed = ArchiveWriter(tmp_path).partition("skewed", 0)
    skewed.commit(records(range(250), timestamps=[5_000] * 250))
    skewed.commit(records(range(250, 600), timestamps=[1_000] * 350))
    options = parse_options({"path": str(tmp_path), "subscribe": "skewed", bound: "3000"}, default_start=AT_START)
    FilteredReader(options, ("offset",)).partitions()
    note = "blockgz: note: skewed:0  offset 0 is the first record stamped 1970-01-01T00:00:03Z or later: at least 350"
    assert capfd.readouterr().err.count(note) == 1
    asyncio.run(stream.initial(options))
    assert capfd.readouterr().err.count(note) == (bound == "startingTimestamp")


ROW = StructType([StructField("id", LongType()), StructField("name", StringType())]).json()
CHANGE = {"before": None, "after": {"id": 1, "name": "x"}, "op": "c", "ts_ms": 1_760_000_000_123, "source": {"a": 1}}


def made(*values: bytes | None) -> list[Record]:
    return [
        record._replace(key=b"k", value=value)
        for record, value in zip(records(range(len(values))), values, strict=True)
    ]


def read_values(path: Path, columns: str | None = None, **options: str) -> pa.Table:
    """All rows, by a reader as Spark pickles it to tasks."""
    given = {"path": str(path), "subscribe": "orders", **options}
    schema = schema_of(given)
    if columns is not None:
        schema = StructType([field for field in schema if field.name in columns.split()])
    reader = batch_reader(given, schema, takes_filters=False)
    tasks = reader.partitions()
    reader = pickle.loads(cloudpickle.dumps(reader))
    return pa.Table.from_batches([batch for task in tasks for batch in reader.read(task)])


@pytest.fixture
def values_archive(tmp_path: Path) -> Path:
    values = (b'{"id": 1, "name": "x"}', b"{", None, b"\xff")
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(*values))
    return tmp_path


def test_rows_that_do_not_decode(values_archive: Path) -> None:
    as_json = {"keyFormat": "string", "valueFormat": "json", "valueSchema": ROW}
    found = read_values(values_archive, **as_json, onBadValue="column")
    assert found.column("key").to_pylist() == ["k"] * 4
    assert found.column("value").to_pylist() == [{"id": 1, "name": "x"}, None, None, None]
    assert [reason is not None for reason in found.column("bad").to_pylist()] == [False, True, False, True]
    assert read_values(values_archive, **as_json, onBadValue="null").column("value").null_count == 3
    assert read_values(values_archive, **as_json, onBadValue="skip").column("offset").to_pylist() == [0, 2]
    with pytest.raises(ReadFailed, match="the record orders:0:1 cannot be decoded"):
        read_values(values_archive, **as_json)


def test_columns_may_be_left_out(values_archive: Path) -> None:
    found = read_values(values_archive, "offset value", valueFormat="string", onBadValue="null")
    assert found.column_names == ["value", "offset"]
    assert found.column("value").to_pylist()[1:] == ["{", None, None]


def test_changes_of_debezium(tmp_path: Path) -> None:
    deleted = {"before": {"id": 1, "name": "x"}, "after": None, "op": "d", "ts_ms": 1_760_000_000_124}
    wrapped = {"schema": {}, "payload": CHANGE}
    values = [*(json.dumps(each).encode() for each in (CHANGE, deleted, wrapped)), None]
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(*values))
    found = read_values(tmp_path, valueFormat="json", valueSchema=ROW, envelope="debezium")
    assert found.column_names[:6] == ["key", "op", "before", "after", "changed_at", "topic"]
    assert found.column("op").to_pylist() == ["c", "d", "c", None]
    assert found.column("after").to_pylist() == [CHANGE["after"], None, CHANGE["after"], None]
    assert found.column("before").to_pylist() == [None, deleted["before"], None, None]
    assert found.column("changed_at").to_pylist()[0] == datetime(2025, 10, 9, 8, 53, 20, 123000, UTC)


def test_a_change_at_a_time_that_no_column_holds(tmp_path: Path) -> None:
    values = (json.dumps({**CHANGE, "ts_ms": time}).encode() for time in (1, 2**62))
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(*values))
    with pytest.raises(ReadFailed, match=f"in orders:0:1 does not fit (.|\n)*{2**62} ms"):
        read_values(tmp_path, valueFormat="json", valueSchema=ROW, envelope="debezium")


def test_a_secret_that_a_machine_lacks_makes_no_record_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors may have another environment than the driver."""
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(b"\0\0\0\0\1\2"))
    given = {"path": str(tmp_path), "subscribe": "orders", "valueFormat": "avro", "onBadValue": "skip"}
    with schema_registry({1: "long"}, {"orders-value": 1}) as (url, _):
        monkeypatch.setenv("REGISTRY", url)
        given["schemaRegistry"] = "${env:REGISTRY}"
        reader = batch_reader(given, schema_of(given), takes_filters=False)
        (task,) = reader.partitions()
        monkeypatch.delenv("REGISTRY")
        with pytest.raises(ReadFailed, match="the environment variable REGISTRY is not set"):
            list(reader.read(task))


@pytest.mark.slow
def test_the_schema_is_that_of_the_registry(tmp_path: Path) -> None:
    ArchiveWriter(tmp_path).partition("orders", 0).commit(made(None))
    order = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    given: dict[str, Any] = {"path": str(tmp_path), "valueFormat": "avro"}
    with schema_registry({1: order}, {"orders-value": 1, "shop.Order": 1}) as (url, _):
        given["schemaRegistry"] = url
        for where in ({"subscribe": "orders~1"}, {"subscribePattern": "ord.*"}, {"assign": '{"orders":[0]}'}):
            assert schema_of(given | where)["value"].dataType.simpleString() == "struct<id:bigint>"
        named = {"subscribe": "other", "valueSubject": "shop.Order"}
        assert schema_of(given | named)["value"].dataType.simpleString() == "struct<id:bigint>"
        with pytest.raises(ReadFailed, match="has no subject other-value"):
            schema_of(given | {"subscribe": "other"})
        with pytest.raises(ReadFailed, match="no envelopes of Debezium"):
            schema_of(given | {"subscribe": "orders", "envelope": "debezium"})
    with pytest.raises(ReadFailed, match="does not answer"):
        schema_of(given | {"subscribe": "orders"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "avro"}, "need a schema registry"),
        ({"valueFormat": "xml"}, "binary or string or json or avro or protobuf"),
        ({"valueFormat": "json"}, "set both valueFormat json and valueSchema"),
        ({"keyFormat": "avro", "keySchema": "{}", "schemaRegistry": "http://x"}, "do not go together"),
        ({"valueFormat": "string", "valueSubject": "x"}, "valueSubject goes with"),
        ({"envelope": "debezium"}, "an envelope needs fields"),
        ({"valueFormat": "json", "valueSchema": ROW, "envelope": "maxwell"}, "debezium"),
        ({"valueFormat": "string", "onBadValue": "ignore"}, "fail or null or skip or column"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_options({"path": "x", "subscribe": "orders", **options}, default_start=AT_START)
    assert words in f"{caught.value.what} {caught.value.why} {caught.value.remedy}"
