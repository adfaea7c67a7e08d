"""Large blocks, decoded part by part: everything small is taken for large here."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from index_format import blocks
from index_format import record_formats as line_formats
from index_format.blocks import COMPRESSORS, Compressor, count_records, decode_block, decode_block_near, decode_parts
from index_format.errors import CorruptBlock
from index_format.records import Record, iter_records
from tests.index_format.builders import normal, record, record_lists
from tests.index_format.test_blocks_hostile import (
    test_a_trailer_that_lies_about_the_content,
    test_another_blocks_bytes,
    test_exactly_the_bound_is_accepted,
    test_millions_of_empty_lines,
    test_records_that_the_index_does_not_announce,
    test_text_lines_beyond_the_last_possible_offset,
    test_the_bound_on_records_is_exact,
)
from tests.support.format_objects import chunk_of

__all__ = [
    "test_a_trailer_that_lies_about_the_content",
    "test_another_blocks_bytes",
    "test_exactly_the_bound_is_accepted",
    "test_millions_of_empty_lines",
    "test_records_that_the_index_does_not_announce",
    "test_text_lines_beyond_the_last_possible_offset",
    "test_the_bound_on_records_is_exact",
]

LIMIT = 1 << 20
CODECS = [("gzip", COMPRESSORS["isal"](1)), ("gzip", COMPRESSORS["zlib"](0)), ("zstd", COMPRESSORS["zstd"](1))]
ESCAPES = record(0, '\\"\n\x00ü😀\\\\\\ud83d"'.encode() * 9, key=b'\\u0041\\"\\\\"' * 7)
BYTES = record(1, b"\xff\x00\\" * 50, key=b"\xc3\x28=")
HEADERS = record(2, None, headers=[("\\h\n😀", b"\\\\\xff"), ("", None), ("h", b""), ("\\h", '"ä'.encode())])


@pytest.fixture(autouse=True, scope="module")
def everything_is_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "LARGE_BLOCK_BYTES", 0)
        patched.setattr(blocks, "STEP_BYTES", 64)
        patched.setattr(blocks, "FED_BYTES", 16)
        patched.setattr(line_formats, "STEP_BYTES", 16)
        patched.setattr(line_formats, "LARGE_LINE_BYTES", 0)
        patched.setattr(line_formats.records, "LARGE_CONTENT_BYTES", 0)
        yield


@pytest.mark.slow
@pytest.mark.parametrize(("codec", "compressor"), CODECS, ids=["isal", "stored", "zstd"])
@given(rows=record_lists().filter(bool))
@example(rows=[ESCAPES])
@example(rows=[BYTES, HEADERS])
@example(rows=[ESCAPES, BYTES, HEADERS])
@settings(max_examples=10)  # of each of three codecs, which matter less than the rows
@example(rows=[record(0, b"x" * 63), record(1, b"y" * 64), record(2, b'"' * 65)])
def test_json_blocks_come_back(codec: str, compressor: Compressor, rows: list[Record]) -> None:
    assert normal(decoded(rows, "json", codec, compressor)) == normal(rows)


@pytest.mark.slow
@given(st.lists(st.binary(max_size=200).filter(lambda value: b"\n" not in value), min_size=1, max_size=20))
def test_text_blocks_come_back(values: list[bytes]) -> None:
    rows = [record(offset, value, timestamp=-1, timestamp_type=-1) for offset, value in enumerate(values)]
    assert decoded(rows, "text", *CODECS[0]) == rows


@pytest.mark.slow
@given(rows=record_lists().filter(bool))
def test_arrow_blocks_come_back(rows: list[Record]) -> None:
    assert normal(decoded(rows, "arrow", *CODECS[2])) == normal(rows)


def test_parts_are_small_or_one_record() -> None:
    rows = [record(offset, b"x" * (500 if offset % 10 == 5 else 5)) for offset in range(40)]
    index, data = chunk_of(rows, "json", 1 << 20)
    (block,) = index.blocks
    parts = decode_parts(data, block, index, LIMIT)
    assert len(parts) > 10
    assert max(part.num_rows for part in parts if part.nbytes > 200) == 1
    assert count_records(data, block, index, LIMIT) == 40


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 20, 200])
def test_damage_is_never_believed(size: int) -> None:
    for codec, compressor in CODECS:
        rows = [record(each, b"%d" % each * size) for each in range(20)]
        index, data = chunk_of(rows, "json", 1 << 20, compressor, codec=codec)
        (block,) = index.blocks
        good = decode_block(data, block, index, LIMIT)
        for position in range(0, len(data), 7 + size // 5):
            damaged = bytearray(data)
            damaged[position] ^= 1 << position % 8
            try:
                assert decode_block(bytes(damaged), block, index, LIMIT).equals(good)
            except CorruptBlock:
                continue


def decoded(rows: list[Record], record_format: str, codec: str, compressor: Compressor) -> list[Record]:
    """The records of all blocks, each decoded as a whole, in parts, and one by one."""
    index, data = chunk_of(rows, record_format, 1 << 20, compressor, codec=codec)
    found: list[Record] = []
    for block in index.blocks:
        member = data[block.byte_offset : block.byte_end]
        parts = [row for part in decode_parts(member, block, index, LIMIT) for row in iter_records(part)]
        assert list(iter_records(decode_block(member, block, index, LIMIT))) == parts
        for row in parts:
            near = decode_block_near(member, block, index, LIMIT, [row.offset])
            assert row in list(iter_records(near))
        for below, above in pairwise(parts):
            if above.offset - below.offset > 1:
                near = decode_block_near(member, block, index, LIMIT, [parts[0].offset, above.offset - 1])
                assert near.column("offset").to_pylist()[-2:] == [below.offset, above.offset]
        found += parts
    return found
