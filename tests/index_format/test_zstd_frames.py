import contextlib

import pytest
import zstandard

from index_format.blocks import COMPRESSORS, decode_block
from index_format.errors import CorruptBlock, TooLarge
from index_format.records import iter_records
from index_format.zstd_frames import ZstdCompressor, decompress
from tests.index_format.builders import normal, record
from tests.support.format_objects import chunk_of

LIMIT = 1 << 20
RAW = b"".join(b"%d: some record\n" % (number * number) for number in range(40))
FRAME = ZstdCompressor(3).compress(RAW)


@pytest.mark.parametrize("level", [1, 3, 19])
def test_a_frame_says_its_size_and_carries_a_checksum(level: int) -> None:
    frame = COMPRESSORS["zstd"](level).compress(RAW)
    header = zstandard.get_frame_parameters(frame)
    assert (header.content_size, header.has_checksum) == (len(RAW), True)
    assert decompress(frame, len(RAW)) == RAW


@pytest.mark.parametrize("level", [0, 20])
def test_levels_that_there_are_not(level: int) -> None:
    with pytest.raises(ValueError, match="levels"):
        ZstdCompressor(level)


@pytest.mark.parametrize("length", range(len(FRAME)))
def test_a_truncated_frame(length: int) -> None:
    with pytest.raises(CorruptBlock):
        decompress(FRAME[:length], len(RAW))


@pytest.mark.parametrize("position", range(len(FRAME)))
def test_a_flipped_bit_is_never_believed(position: int) -> None:
    damaged = bytearray(FRAME)
    damaged[position] ^= 0x10
    with contextlib.suppress(CorruptBlock):
        assert decompress(bytes(damaged), len(RAW)) == RAW, "a reserved bit at most"


@pytest.mark.parametrize("tail", [b"\0", FRAME, b"garbage"], ids=["zero", "second frame", "garbage"])
def test_bytes_after_the_frame(tail: bytes) -> None:
    with pytest.raises(CorruptBlock):
        decompress(FRAME + tail, len(RAW))


@pytest.mark.parametrize("format_name", ["json", "arrow"])
def test_a_chunk_of_frames_comes_back(format_name: str) -> None:
    rows = [record(number, b"v" * number) for number in range(100)]
    index, data = chunk_of(rows, format_name, 2_500, ZstdCompressor(3), codec="zstd")
    assert len(index.blocks) > 1
    back = [
        row
        for block in index.blocks
        for row in iter_records(decode_block(data[block.byte_offset : block.byte_end], block, index, LIMIT))
    ]
    assert normal(back) == normal(rows)
    with pytest.raises(TooLarge):
        decode_block(data[: index.blocks[0].byte_end], index.blocks[0], index, 40)


def test_another_blocks_frame_is_not_taken() -> None:
    index, _ = chunk_of([record(0, b"a" * 30)], "json", 1, ZstdCompressor(3), codec="zstd")
    _, other = chunk_of([record(0, b"b" * 30)], "json", 1, ZstdCompressor(3), codec="zstd")
    block = index.blocks[0]
    assert len(other) == block.byte_length
    with pytest.raises(CorruptBlock, match="not the one its index describes"):
        decode_block(other, block, index, LIMIT)
