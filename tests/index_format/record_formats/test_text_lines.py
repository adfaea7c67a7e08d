import pytest
from hypothesis import given

from index_format.errors import CorruptBlock, UnsupportedVersion
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records, iter_records
from tests.index_format.builders import record, text_record_lists

FORMAT = record_format("text")


def test_a_record_is_its_value_and_a_newline() -> None:
    data, ends = FORMAT.encode(batch_from_records([record(1, b"a"), record(2, b""), record(3, b"\xff\x00\r")]), 0)
    assert data == b"a\n\n\xff\x00\r\n"
    assert ends.tolist() == [2, 3, 7]


@given(text_record_lists())
def test_values_come_back_at_counted_offsets(rows: list[Record]) -> None:
    rows = [row._replace(offset=5 + number) for number, row in enumerate(rows)]
    data, _ = FORMAT.encode(batch_from_records(rows), 0)
    if rows:
        assert list(iter_records(FORMAT.decode(data, 5, 0))) == rows


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (record(1, None), "null"),
        (record(1, b"a\nb"), "newline"),
        (record(1, b"\n"), "newline"),
        (record(1, b"v", b""), "key"),
        (record(1, b"v", b"k"), "key"),
        (record(1, b"v", None, [("h", None)]), "headers"),
    ],
)
def test_records_that_text_cannot_hold(row: Record, reason: str) -> None:
    good = [record(0, b"fine"), record(2, b"")]
    objections = FORMAT.objections(batch_from_records([good[0], row, good[1]]))
    assert list(objections) == [1]
    assert reason in objections[1]


@given(text_record_lists())
def test_there_are_no_other_objections(rows: list[Record]) -> None:
    assert FORMAT.objections(batch_from_records(rows)) == {}


def test_objections_are_by_row_of_a_slice() -> None:
    batch = batch_from_records([record(0, None), record(1, b"v", None, [("h", b"")]), record(2, b"v")])
    assert list(FORMAT.objections(batch.slice(1))) == [0]
    assert FORMAT.objections(batch.slice(2)) == {}


@pytest.mark.parametrize("raw", [b"", b"a", b"a\nb"])
def test_text_without_its_last_newline_is_damage(raw: bytes) -> None:
    with pytest.raises(CorruptBlock):
        FORMAT.decode(raw, 0, 0)


def test_an_unknown_record_format_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedVersion, match="'avro'") as caught:
        record_format("avro")
    assert caught.value.why == "this release reads arrow, json, text"
