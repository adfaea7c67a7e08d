import json
from typing import Any

import pytest
from hypothesis import given

from index_format import objects
from index_format.errors import MalformedObject
from index_format.objects import ChunkIndex, Gap, ancestor_index
from index_format.records import Record
from tests.index_format.builders import MAX_INT64, record_lists
from tests.support.format_objects import block_at, chunk_of, index_of

GOOD = json.loads(
    objects.encode(
        index_of(
            [
                block_at(0, min_timestamp=5, max_timestamp=9),
                block_at(1, min_timestamp=-1, max_timestamp=7),
                block_at(2),
            ],
            bytes(300),
            gaps=(Gap(2, 4, "skipped"), Gap(4, 5, "skipped")),
        )
    )
)


def changed(path: str, value: Any) -> bytes:
    """The good index with the field at `path` (a.0.b) replaced, or removed where the value is Ellipsis."""
    whole = json.loads(json.dumps(GOOD))
    *parents, last = path.split(".")
    target = whole
    for parent in parents:
        target = target[int(parent)] if parent.isdigit() else target[parent]
    if value is ...:
        del target[last]
    else:
        target[int(last) if last.isdigit() else last] = value
    return json.dumps(whole).encode()


def test_the_good_one_is_good() -> None:
    index = objects.decode(json.dumps(GOOD).encode(), ChunkIndex, "it")
    assert index.raw_bytes == 1500
    assert [block.byte_end for block in index.blocks] == [100, 200, 300]
    assert 3 in index.gaps[0] and 4 not in index.gaps[0]


@pytest.mark.slow
@given(record_lists())
def test_indexes_of_real_chunks_come_back(rows: list[Record]) -> None:
    index, _ = chunk_of(rows)
    assert objects.decode(objects.encode(index), ChunkIndex, "it") == index


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("chunks", []),
        ("erased", [{"from": 2, "to": 2}]),
        ("erased", [{"from": 1, "to": 2}, {"from": 2, "to": 3}]),
        ("erased", [{"from": 0, "to": 1000}]),
        ("chunks.0.byte_offset", 1),
        ("chunks.1.byte_offset", 99),
        ("chunks.1.byte_offset", 101),
        ("chunks.2.byte_length", 99),
        ("chunks.2.byte_length", MAX_INT64),
        ("data.bytes", 299),
        ("data.bytes", 301),
        ("chunks.1.first_record_offset", 9),
        ("chunks.0.last_record_offset", 10),
        ("chunks.0.first_record_offset", 1),
        ("chunks.2.last_record_offset", 30),
        ("chunks.0.num_records", 11),
        ("chunks.0.num_records", 9),
        ("chunks.0.num_records", 0),
        ("chunks.0.byte_length_uncompressed", 0),
        ("chunks.0.byte_length", 0),
        ("chunks.0.byte_offset", -1),
        ("chunks.0.crc32", 2**32),
        ("chunks.0.crc32", -1),
        ("chunks.0.max_timestamp", 4),
        ("chunks.0.min_timestamp", 2**63),
        ("chunks.0.min_timestamp", -(2**63) - 1),
        ("chunks.0.max_timestamp", 10),
        ("chunks.0.crc32", ...),
        ("chunks.0.last_record_offset", ...),
        ("chunks.0", None),
        ("start_offset", 1),
        ("start_offset", -1),
        ("next_offset", 29),
        ("next_offset", 2**63),
        ("next_offset", None),
        ("first_offset", 1),
        ("last_offset", 28),
        ("num_records", 29),
        ("num_records", 31),
        ("min_timestamp", 0),
        ("min_timestamp", -2),
        ("max_timestamp", 8),
        ("max_timestamp", 10),
        ("gaps.0.to", 5),
        ("gaps.0.to", 2),
        ("gaps.0.from", 5),
        ("gaps.1.to", 31),
        ("gaps.0.reason", "two\nlines"),
        ("gaps.0.reason", ""),
        ("data.name", ""),
        ("data.name", "a\x00b"),
        ("data.sha256", "0" * 63),
        ("data.sha256", "A" * 64),
        ("data.sha256", "0" * 64 + "\n"),
        ("data", ...),
        ("codec", "/../../x"),
        ("codec", "gzip\n"),
        ("codec", "index.json"),
        ("codec", ""),
        ("record_format", "../x"),
        ("timestamp_type", "a b"),
        ("isolation_level", "x" * 65),
        ("partition", -1),
        ("epoch", 1.5),
        ("topic_id", 1),
        ("archive_id", ...),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_broken_rule_is_refused(path: str, value: Any) -> None:
    with pytest.raises(MalformedObject) as caught:
        objects.decode(changed(path, value), ChunkIndex, "the index")
    assert caught.value.what == "the index is damaged"
    assert caught.value.why


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("next_offset", 31),
        ("start_offset", 0),
        ("codec", "brotli-9"),
        ("gaps.0.reason", "moonlight"),
        ("previous", "x"),
    ],
)
def test_what_a_newer_writer_may_say_is_read(path: str, value: Any) -> None:
    objects.decode(changed(path, value), ChunkIndex, "the index")


@pytest.mark.parametrize(("start", "end"), [(5, 5), (5, 4)])
def test_an_empty_gap_is_none(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="empty"):
        Gap(start, end, "retention")


def test_the_ancestors_index_has_five_fields_only() -> None:
    assert ancestor_index([block_at(0), block_at(1)]) == (
        b'{"chunks":[{"byte_length_uncompressed":500,"num_records":10,"byte_length":100,"byte_offset":0,'
        b'"first_record_offset":0},{"byte_length_uncompressed":500,"num_records":10,"byte_length":100,'
        b'"byte_offset":100,"first_record_offset":10}]}'
    )
