import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index_format.errors import CorruptBlock
from index_format.record_formats import json_object, record_format
from index_format.records import TIMESTAMP_TYPES, Record, batch_from_records, iter_records
from tests.index_format.builders import MAX_INT64, MIN_INT64, normal, record, record_lists

FORMAT = record_format("json")


def encoded(*rows: Record, timestamp_type: int = 0) -> bytes:
    return FORMAT.encode(batch_from_records(rows), timestamp_type)[0]


def decoded(raw: bytes, timestamp_type: int = 0) -> list[Record]:
    return normal(list(iter_records(FORMAT.decode(raw, 0, timestamp_type))))


@pytest.mark.slow
@given(record_lists())
def test_every_record_comes_back(rows: list[Record]) -> None:
    batch = batch_from_records(rows)
    assert FORMAT.objections(batch) == {}
    for timestamp_type in TIMESTAMP_TYPES:
        data, ends = FORMAT.encode(batch, timestamp_type)
        assert decoded(data, timestamp_type) == normal(rows)
        starts = [0, *ends[:-1]]
        for row, start, end in zip(rows, starts, ends, strict=True):
            assert decoded(data[start:end], timestamp_type) == normal([row])


@pytest.mark.slow
@given(record_lists())
def test_the_standard_library_reads_the_lines(rows: list[Record]) -> None:
    for line, row in zip(encoded(*rows).decode().split("\n")[:-1], rows, strict=True):
        parsed = json.loads(line)
        assert (parsed["offset"], parsed["timestamp"]) == (row.offset, row.timestamp)
        for field, content in (("key", row.key), ("value", row.value)):
            if f"{field}_base64" not in parsed:
                assert parsed[field] == (None if content is None else content.decode())


@pytest.mark.slow
@given(record_lists())
def test_lines_are_those_of_single_records(rows: list[Record]) -> None:
    """Fields that no record of a batch has are passed over at once; each line is as if it were alone."""
    for timestamp_type in TIMESTAMP_TYPES:
        assert encoded(*rows, timestamp_type=timestamp_type) == b"".join(
            msgspec.json.encode(fields_of(row, timestamp_type)) + b"\n" for row in rows
        )


def test_a_piece_keeps_at_most_as_much_again_in_memory() -> None:
    data, ends = FORMAT.encode(batch_from_records([record(offset, None, b"v" * 100) for offset in range(10)]), 0)
    for stop in range(1, 11):
        piece = FORMAT.piece(data, ends, 0, stop)
        assert bytes(piece) == encoded(*[record(offset, None, b"v" * 100) for offset in range(stop)])
        assert len(memoryview(piece.obj)) <= 2 * len(piece)


def fields_of(row: Record, timestamp_type: int) -> dict[str, Any]:
    """The fields of a line in order, by FORMAT.md."""
    fields: dict[str, Any] = {"offset": row.offset, "timestamp": row.timestamp}
    if row.timestamp_type != timestamp_type:
        fields["timestamp_type"] = TIMESTAMP_TYPES[row.timestamp_type]
    fields |= content_of("key", row.key)
    if row.headers:
        fields["headers"] = [{"key": key, **content_of("value", value)} for key, value in row.headers]
    return fields | content_of("value", row.value)


def content_of(name: str, content: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(content or b"").decode()}


def test_every_byte_value_comes_back() -> None:
    rows = [record(byte, bytes([byte]), bytes([byte, 0x41]), [("h", bytes([byte]))]) for byte in range(256)]
    rows += [record(256, bytes(range(256)), bytes(range(128)))]
    assert decoded(encoded(*rows)) == normal(rows)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (
            record(17, b"...", b"42", [("h", b"v")], timestamp=1760000000017),
            '{"offset":17,"timestamp":1760000000017,"key":"42","headers":[{"key":"h","value":"v"}],"value":"..."}',
        ),
        (record(0, None, None, timestamp=-1), '{"offset":0,"timestamp":-1,"key":null,"value":null}'),
        (record(0, b"", b"", timestamp=0), '{"offset":0,"timestamp":0,"key":"","value":""}'),
        (
            record(MAX_INT64, b"\xff", b"\xff\xfe", timestamp=MIN_INT64),
            '{"offset":9223372036854775807,"timestamp":-9223372036854775808,"key_base64":"//4=","value_base64":"/w=="}',
        ),
        (record(1, b"\xff", b"k"), '{"offset":1,"timestamp":1000,"key":"k","value_base64":"/w=="}'),
        (
            record(1, b"v", b"\xff", [("a", None), ("a", b"\xff"), ("a", b"")]),
            '{"offset":1,"timestamp":1000,"key_base64":"/w==","headers":[{"key":"a","value":null},'
            '{"key":"a","value_base64":"/w=="},{"key":"a","value":""}],"value":"v"}',
        ),
        (
            record(1, bytes(range(0x20)) + b'"\\/\x7f'),
            '{"offset":1,"timestamp":1000,"key":null,"value":"'
            r"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f"
            r"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c\u001d\u001e\u001f"
            r"\"\\/" + '\x7f"}',
        ),
        (
            record(1, "\ufeffé😀\u2028\x80".encode()),
            '{"offset":1,"timestamp":1000,"key":null,"value":"\ufeffé😀\u2028\x80"}',
        ),
        (
            record(1, timestamp_type=1),
            '{"offset":1,"timestamp":1000,"timestamp_type":"LogAppendTime","key":null,"value":"v"}',
        ),
        (
            record(1, timestamp=-1, timestamp_type=-1),
            '{"offset":1,"timestamp":-1,"timestamp_type":"NoTimestampType","key":null,"value":"v"}',
        ),
    ],
)
def test_the_bytes_of_a_line(row: Record, line: str) -> None:
    assert encoded(row) == line.encode() + b"\n"


def test_only_records_of_another_timestamp_type_name_it() -> None:
    lines = encoded(record(1, timestamp_type=1), record(2, timestamp_type=0), timestamp_type=1).splitlines()
    assert [b"timestamp_type" in line for line in lines] == [False, True]


def test_bytes_that_only_look_like_utf8_are_kept_as_bytes() -> None:
    for content in (b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80"):
        assert b'"value_base64"' in encoded(record(1, content))


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"null",
        b"[]",
        b'{"offset":1,"timestamp":0,"key":null}',
        b'{"offset":1,"timestamp":0,"value":null}',
        b'{"timestamp":0,"key":null,"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"value":"v","value_base64":"dg=="}',
        b'{"offset":1,"timestamp":0,"key":null,"value_base64":"dg"}',
        b'{"offset":1,"timestamp":0,"key":null,"value_base64":null}',
        b'{"offset":1,"timestamp":0,"key":null,"value":7}',
        b'{"offset":1.0,"timestamp":0,"key":null,"value":null}',
        b'{"offset":true,"timestamp":0,"key":null,"value":null}',
        b'{"offset":1,"timestamp":NaN,"key":null,"value":null}',
        b'{"offset":9223372036854775808,"timestamp":0,"key":null,"value":null}',
        b'{"offset":1,"timestamp":-9223372036854775809,"key":null,"value":null}',
        b'{"offset":1,"timestamp":' + b"9" * 5000 + b',"key":null,"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"value":"\xff"}',
        b'{"offset":1,"timestamp":0,"key":null,"value":"\\ud800"}',
        b'{"offset":1,"timestamp":0,"key":null,"value":"\\udc00\\ud800"}',
        b'{"offset":1,"timestamp":0,"timestamp_type":"Later","key":null,"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"headers":null,"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"headers":[{"key":"\\ud800","value":null}],"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"headers":[{"key":"a"}],"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"headers":[{"key":null,"value":null}],"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"value":null,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'\xef\xbb\xbf{"offset":1,"timestamp":0,"key":null,"value":null}',
        b'{"offset":1,"timestamp":0,"key":null,"value":null}{}',
    ],
    ids=lambda line: line[:60].decode(errors="replace"),
)
def test_lines_that_are_not_records(line: bytes) -> None:
    if not line:
        assert decoded(line) == []
        return
    with pytest.raises(CorruptBlock) as caught:
        decoded(line + b"\n")
    assert caught.value.what and caught.value.why


def test_unknown_fields_are_ignored() -> None:
    line = b'{"offset":1,"new":{"a":[1.5]},"timestamp":1000,"key":null,"value":"v"}\n'
    assert decoded(line) == normal([record(1)])


@pytest.mark.parametrize(
    ("row", "fields"),
    [
        (record(1, b"v", b"k"), {"key": "k", "value": "v"}),
        (
            record(1, None, b"\xff", [("h", None)]),
            {"key_base64": "/w==", "headers": [{"key": "h", "value": None}], "value": None},
        ),
    ],
)
def test_the_printed_object(row: Record, fields: dict[str, Any]) -> None:
    assert (
        json_object(row, topic="orders", partition=3)
        == {"topic": "orders", "partition": 3, "offset": 1, "timestamp": 1000, "timestamp_type": "CreateTime"} | fields
    )


@pytest.mark.slow
@given(record_lists(min_size=1, max_size=40), st.data())
def test_some_records_are_found_among_all(rows: list[Record], data: st.DataObject) -> None:
    raw = encoded(*rows)
    offsets = data.draw(st.lists(st.integers(rows[0].offset, rows[-1].offset), max_size=4))
    found = FORMAT.decode_near(raw, offsets, 0)
    assert found is not None
    near = {rows[0].offset, rows[-1].offset}
    for offset in offsets:
        near |= {max((row.offset for row in rows if row.offset < offset), default=rows[0].offset)}
        near |= {min(row.offset for row in rows if row.offset >= offset)}
    assert normal(list(iter_records(found))) == normal([row for row in rows if row.offset in near])


def test_an_offset_beyond_all_finds_the_last_record() -> None:
    rows = [record(offset) for offset in range(10, 20)]
    found = FORMAT.decode_near(encoded(*rows), [25], 0)
    assert found is not None and found.column("offset").to_pylist() == [10, 19]


@pytest.mark.parametrize("middle", [b"", b"null", b'{"offset":"5"}', b'{"offset":5,"timestamp":0,"key":null}', b"["])
def test_a_line_that_is_met_on_the_way_and_is_not_a_record(middle: bytes) -> None:
    lines = [encoded(record(offset)) for offset in range(10)]
    lines[5] = middle + b"\n"
    with pytest.raises(CorruptBlock, match="not a record"):
        FORMAT.decode_near(b"".join(lines), [5], 0)


def test_a_mixture_of_plain_lines_and_others() -> None:
    rows = [
        record(0),
        record(1, b"\xff"),
        record(2, b"v", b"\xfe"),
        record(3, None, None, [("h", b"\xff"), ("h", None)]),
    ]
    for last in rows:
        assert decoded(encoded(*[record(-9), last])) == normal([record(-9), last])
    assert decoded(encoded(*rows)) == normal(rows)
