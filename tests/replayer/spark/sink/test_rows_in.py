from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from blockgz.archive.rows import to_rows
from blockgz.errors import UsageError
from index_format.records import Record, batch_from_records, iter_records
from replayer.errors import ReplayRefused
from replayer.spark.sink_target import Columns, RowPart, RowReader, check_columns

SOURCE = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}
NOW = 1_700_000_000_000
RECORDS = [
    Record(3, 1_600_000_000_123, 0, b"k", b"v", (("a", b"1"), ("a", None), ("", b""))),
    Record(5, -1, 0, None, None, ()),
    Record(9, 0, 0, b"", b"\xff\x00", (("b", b"2"),)),
]


def parts(batch: pa.RecordBatch, types: Mapping[str, str] = SOURCE, *, headers: bool = True) -> list[RowPart]:
    return list(RowReader(check_columns(types), headers=headers, clock=lambda: NOW).parts(batch))


def rows(**columns: Any) -> pa.RecordBatch:
    types = {"partition": pa.int32(), "offset": pa.int64(), "topic": pa.string()}
    return pa.record_batch({name: pa.array(values, types.get(name)) for name, values in columns.items()})


def plain(**columns: Any) -> list[tuple[str | None, int | None, list[Record]]]:
    types = {name: SOURCE[name] for name in columns}
    return [(part.topic, part.partition, list(iter_records(part.records))) for part in parts(rows(**columns), types)]


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
    found = [part for number in range(2) for part in reader.parts(rows(value=[f"v{number}", None]))]
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
        parts(batch, {"value": "binary", "headers": SOURCE["headers"]})


def test_columns_are_checked_before_anything_is_written() -> None:
    assert check_columns({**SOURCE, "more": "date"}) == Columns(frozenset(SOURCE) - {"timestampType"})
    with pytest.raises(UsageError, match="no column named value"):
        check_columns({"body": "binary"})
    with pytest.raises(UsageError, match="column value is of type int") as caught:
        check_columns({"value": "int"})
    assert "CAST(value AS binary)" in caught.value.remedy
