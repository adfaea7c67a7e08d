import gzip
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from index_format.blocks import (
    COMPRESSORS,
    GZIP_HEADER,
    BlockBuilder,
    Compressor,
    IsalCompressor,
    RawBlock,
    ZlibCompressor,
    decode_block,
    decode_block_near,
    inflate,
    member_crc32,
)
from index_format.errors import CorruptBlock
from index_format.record_formats import record_format
from index_format.records import Record, batch_from_records, iter_records
from tests.index_format.builders import normal, record, record_lists, text_record_lists
from tests.support.format_objects import chunk_of, cut

LIMIT = 1 << 20
ALL_COMPRESSORS = [IsalCompressor(level) for level in range(4)] + [ZlibCompressor(level) for level in (0, 1, 6, 9)]
batch_sizes = st.lists(st.integers(0, 6), max_size=6)


def values(block: RawBlock) -> list[bytes]:
    return block.raw.splitlines()


def texts(*contents: bytes, first: int = 0) -> list[Record]:
    return [record(first + number, content) for number, content in enumerate(contents)]


@pytest.mark.parametrize("compressor", ALL_COMPRESSORS, ids=lambda each: f"{type(each).__name__}{each._level}")
@given(raw=st.one_of(st.binary(max_size=200), st.binary(min_size=1, max_size=9).map(lambda part: part * 20_000)))
def test_a_member_is_plain_reproducible_gzip(compressor: Compressor, raw: bytes) -> None:
    member = compressor.compress(raw)
    assert gzip.decompress(member) == raw
    assert member == compressor.compress(raw)
    assert member[:4] + member[4:8] == GZIP_HEADER[:4] + bytes(4), "no flags, no time"
    assert member_crc32(member) == zlib.crc32(raw)
    assert inflate(member, len(raw), LIMIT) == raw


def test_headers_are_the_documented_one() -> None:
    for compressor in (*ALL_COMPRESSORS[1:4], *ALL_COMPRESSORS[4:]):
        assert compressor.compress(b"x").startswith(GZIP_HEADER)


@pytest.mark.parametrize(("name", "level"), [("isal", -1), ("isal", 4), ("zlib", -1), ("zlib", 10)])
def test_levels_that_a_library_does_not_have(name: str, level: int) -> None:
    with pytest.raises(ValueError, match="levels"):
        COMPRESSORS[name](level)


@pytest.mark.slow
@given(record_lists(), st.sampled_from([1, 80, 200, 1 << 20]))
def test_a_chunk_is_one_gzip_file_of_json_lines(rows: list[Record], block_bytes: int) -> None:
    index, data = chunk_of(rows, block_bytes=block_bytes, compressor=IsalCompressor(1))
    whole = gzip.decompress(data)
    members = [data[block.byte_offset : block.byte_end] for block in index.blocks]
    assert b"".join(gzip.decompress(member) for member in members) == whole
    assert [json.loads(line)["offset"] for line in whole.decode().split("\n")[:-1]] == [row.offset for row in rows]
    back = [
        row
        for member, block in zip(members, index.blocks, strict=True)
        for row in iter_records(decode_block(member, block, index, LIMIT))
    ]
    assert normal(back) == normal(rows)


@given(text_record_lists(), st.integers(1, 40))
def test_text_chunks_come_back_over_holes(rows: list[Record], block_bytes: int) -> None:
    if not rows:
        return
    index, data = chunk_of(rows, "text", block_bytes)
    back = [
        row
        for block in index.blocks
        for row in iter_records(decode_block(data[block.byte_offset : block.byte_end], block, index, LIMIT))
    ]
    assert back == rows


@pytest.mark.slow
@given(record_lists(), batch_sizes, st.integers(1, 600))
def test_blocks_do_not_depend_on_batches_and_never_split(rows: list[Record], sizes: list[int], limit: int) -> None:
    blocks = cut(rows, "json", limit, sizes)
    assert blocks == cut(rows, "json", limit)
    lengths = [len(record_format("json").encode(batch_from_records([row]), rows[0].timestamp_type)[0]) for row in rows]
    row = 0
    for block in blocks:
        count = block.num_records
        mine, following = rows[row : row + count], lengths[row + count : row + count + 1]
        assert len(block.raw) == sum(lengths[row : row + count])
        assert len(block.raw) <= limit or count == 1
        assert not following or len(block.raw) + following[0] > limit, "the block was not full"
        stamps = [each.timestamp for each in mine]
        assert block[1:-1] == (count, mine[0].offset, mine[-1].offset, min(stamps), max(stamps))
        row += count
    assert row == len(rows)


@given(text_record_lists(), batch_sizes, st.integers(1, 40))
def test_text_blocks_end_at_every_hole(rows: list[Record], sizes: list[int], limit: int) -> None:
    blocks = cut(rows, "text", limit, sizes)
    assert blocks == cut(rows, "text", limit)
    assert sum(block.num_records for block in blocks) == len(rows)
    for block in blocks:
        assert block.last_offset - block.first_offset + 1 == block.num_records
        assert len(block.raw) <= limit or block.num_records == 1


def test_json_blocks_span_holes() -> None:
    assert len(cut([record(0), record(5), record(9)], "json")) == 1


def test_a_hole_between_two_batches_ends_a_text_block() -> None:
    rows = [*texts(b"a", b"b"), *texts(b"c", first=7)]
    assert [values(block) for block in cut(rows, "text", 100, [2])] == [[b"a", b"b"], [b"c"]]


@pytest.mark.parametrize(
    ("limit", "contents", "expected"),
    [
        (10, [b"aaaa", b"bbbb", b"cccc"], [[b"aaaa", b"bbbb"], [b"cccc"]]),
        (9, [b"aaaa", b"bbbb", b"cccc"], [[b"aaaa"], [b"bbbb"], [b"cccc"]]),
        (10, [b"a" * 9, b"b" * 10, b"c"], [[b"a" * 9], [b"b" * 10], [b"c"]]),
        (10, [b"x", b"0" * 50, b"y", b"z"], [[b"x"], [b"0" * 50], [b"y", b"z"]]),
        (1, [b"", b""], [[b""], [b""]]),
    ],
)
def test_limits_are_exact(limit: int, contents: list[bytes], expected: list[list[bytes]]) -> None:
    for sizes in ([], [1, 1], [2]):
        assert [values(block) for block in cut(texts(*contents), "text", limit, sizes)] == expected


def test_nothing_comes_of_nothing() -> None:
    builder = BlockBuilder(record_format("json"), 0, 100)
    assert list(builder.add(batch_from_records([]))) == []
    assert builder.finish() is None
    assert builder.open_bytes == 0


def test_open_bytes_are_those_that_wait() -> None:
    builder = BlockBuilder(record_format("text"), 0, 10)
    assert list(builder.add(batch_from_records(texts(b"abc")))) == []
    assert builder.open_bytes == 4
    assert len(list(builder.add(batch_from_records(texts(b"0123456", b"", first=1))))) == 1
    assert builder.open_bytes == 9
    assert builder.finish() == RawBlock(b"0123456\n\n", 2, 1, 2, 1000, 1000)
    assert builder.open_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "arrow"])
def test_records_that_come_one_by_one_lie_together_in_memory(name: str) -> None:
    builder = BlockBuilder(record_format(name), 0, 1 << 20)
    rows = [record(offset, b"x" * 100) for offset in range(1000)]
    assert not [block for row in rows for block in builder.add(batch_from_records([row]))]
    assert len(builder._pieces) < 20, "each takes thousands of bytes beside its content"
    finished = builder.finish()
    assert finished is not None
    assert list(iter_records(record_format(name).decode(finished.raw, 0, 0))) == rows


def test_an_open_block_does_not_hold_what_its_records_were_cut_from() -> None:
    builder = BlockBuilder(record_format("arrow"), 0, 100_000)
    batch = batch_from_records([record(offset, b"x" * 1000) for offset in range(1000)])
    assert len(list(builder.add(batch.slice(0, 990)))) == 10
    held = sum(piece.get_total_buffer_size() for piece in builder._pieces)
    assert held <= 2 * builder.open_bytes


@pytest.mark.parametrize("format_name", ["json", "arrow", "text"])
def test_single_records_of_a_block(format_name: str) -> None:
    """Those around each offset are there, however few are decoded, and the bytes are checked all the same."""
    offsets = range(0, 400) if format_name == "text" else range(0, 1200, 3)
    timestamp, kind = (-1, -1) if format_name == "text" else (1_000, 0)
    rows = [record(offset, b"%d" % offset, timestamp=timestamp, timestamp_type=kind) for offset in offsets]
    index, data = chunk_of(rows, format_name, 1 << 20)
    (block,) = index.blocks
    known = dict(zip(offsets, rows, strict=True))
    for wanted in ([0], [1], [offsets[-1] - 1], [offsets[-1]], [5, 7, 600 % len(rows)], [*range(200)]):
        batch = decode_block_near(data, block, index, LIMIT, wanted)
        found = list(iter_records(batch))
        present = batch.column("offset").to_pylist()
        assert [known[row.offset] for row in found] == found
        for offset in wanted:
            below = max((each for each in offsets if each < offset), default=0)
            assert {below, min(each for each in offsets if each >= offset)} <= set(present)
    assert format_name != "json" or decode_block_near(data, block, index, LIMIT, [600]).num_rows == 4
    damaged = bytearray(data)
    damaged[len(data) // 2] ^= 1
    with pytest.raises(CorruptBlock):
        decode_block_near(bytes(damaged), block, index, LIMIT, [0])
    with pytest.raises(CorruptBlock, match="the records that its index says"):
        decode_block_near(data, replace(block, last_record_offset=block.last_record_offset + 1), index, LIMIT, [300])
