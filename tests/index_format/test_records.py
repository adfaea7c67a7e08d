import struct

import pytest
from hypothesis import given

from index_format import records
from tests.index_format.builders import normal, record, record_lists


@pytest.mark.slow
@given(record_lists(min_size=0))
def test_records_survive_arrow(rows: list[records.Record]) -> None:
    batch = records.batch_from_records(rows)
    batch.validate(full=True)
    assert batch.schema == records.SCHEMA
    assert normal(list(records.iter_records(batch))) == normal(rows)


@pytest.mark.slow
@given(record_lists(min_size=3))
def test_slices_keep_their_headers(rows: list[records.Record]) -> None:
    assert normal(list(records.iter_records(records.batch_from_records(rows).slice(1, 1)))) == normal(rows[1:2])


def test_no_headers_stand_for_none() -> None:
    batch = records.batch_from_columns([1, 2], [0, 0], [0, 0], [None, b"k"], [b"", None], [None, ()])
    assert not records.has_headers(batch)
    assert [row.headers for row in records.iter_records(batch)] == [(), ()]


def test_canonical_bytes_are_laid_out_as_documented() -> None:
    row = record(7, None, b"k", [("h", b""), ("h", None)], timestamp=-1, timestamp_type=1)
    assert records.canonical_bytes(row) == b"".join(
        [
            struct.pack(">q", 7),
            struct.pack(">q", -1),
            b"\x01",
            b"\x01" + struct.pack(">Q", 1) + b"k",
            b"\x00",
            struct.pack(">I", 2),
            b"\x01" + struct.pack(">Q", 1) + b"h" + b"\x01" + struct.pack(">Q", 0),
            b"\x01" + struct.pack(">Q", 1) + b"h" + b"\x00",
        ]
    )
    assert len(records.record_hash(row)) == 64


def test_records_that_differ_anywhere_differ_in_hash() -> None:
    variants = [
        record(1, b"", None),
        record(1, None, b""),
        record(1, None, None),
        record(1, b"", b""),
        record(1, b"ab", b"c"),
        record(1, b"a", b"bc"),
        record(1, b"", b"", [("a", b"")]),
        record(1, b"", b"", [("a", None)]),
        record(1, b"", b"", [("a", b""), ("a", b"")]),
        record(1, b"", b"", timestamp=2),
        record(1, b"", b"", timestamp_type=1),
        record(2, b"", b""),
    ]
    assert len({records.record_hash(row) for row in variants}) == len(variants)
