import gzip
import resource
import zlib

import pytest
from msgspec.structs import replace

from index_format.blocks import RECORD_FOOTPRINT, ZlibCompressor, decode_block, inflate, inflate_block, member_crc32
from index_format.errors import CorruptBlock, FormatError, TooLarge, UnsupportedVersion
from index_format.objects import BlockEntry, ChunkIndex
from tests.index_format.builders import MAX_INT64, record
from tests.support.format_objects import block_at, chunk_of, index_of

LIMIT = 1 << 20
RAW = b"".join(b"%d: some record\n" % (number * number) for number in range(40))
MEMBER = ZlibCompressor(6).compress(RAW)


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def block_of(raw: bytes, format_name: str = "json", **fields: int) -> tuple[bytes, BlockEntry, ChunkIndex]:
    member = ZlibCompressor(6).compress(raw)
    values = {
        "byte_length_uncompressed": len(raw),
        "num_records": raw.count(b"\n"),
        "byte_length": len(member),
        "first_record_offset": 0,
        "last_record_offset": raw.count(b"\n") - 1,
        "crc32": member_crc32(member),
    }
    entry = block_at(0, **(values | fields))
    return member, entry, index_of([entry], member, record_format=format_name)


@pytest.mark.parametrize("length", range(len(MEMBER)))
def test_a_truncated_member(length: int) -> None:
    with pytest.raises(CorruptBlock):
        inflate(MEMBER[:length], len(RAW), LIMIT)


@pytest.mark.parametrize("position", range(len(MEMBER)))
def test_a_flipped_bit_is_never_believed(position: int) -> None:
    damaged = bytearray(MEMBER)
    damaged[position] ^= 0x10
    try:
        assert inflate(bytes(damaged), len(RAW), LIMIT) == RAW, "only MTIME, XFL, OS say nothing of the content"
        assert 4 <= position < 10
    except CorruptBlock:
        pass


@pytest.mark.parametrize(
    "tail",
    [b"\x00", MEMBER, bytes.fromhex("1f8b08000000000000ff03000000000000000000"), b"garbage"],
    ids=["zero", "second member", "empty member", "garbage"],
)
def test_bytes_after_the_member(tail: bytes) -> None:
    with pytest.raises(CorruptBlock, match="one complete gzip member"):
        inflate(MEMBER + tail, len(RAW), LIMIT)


@pytest.mark.parametrize("expected", [0, 1, len(RAW) - 1, len(RAW) + 1, LIMIT])
def test_another_length_than_recorded(expected: int) -> None:
    with pytest.raises(CorruptBlock):
        inflate(MEMBER, expected, LIMIT)


@pytest.mark.parametrize("member", [b"", b"\x1f", b"plain text, not gzip", zlib.compress(RAW), RAW])
def test_what_is_not_gzip(member: bytes) -> None:
    with pytest.raises(CorruptBlock):
        inflate(member, len(RAW), LIMIT)


@pytest.mark.slow
def test_a_bomb_is_not_inflated() -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(deflater.compress(bytes(1 << 20)) for _ in range(256)) + deflater.flush()
    before = peak_memory()
    with pytest.raises(CorruptBlock):
        inflate(bomb, 1000, LIMIT)
    with pytest.raises(TooLarge) as caught:
        inflate(bomb, 256 << 20, LIMIT)
    assert peak_memory() - before < 32 << 20
    assert "limit" in caught.value.remedy


def test_a_claim_of_much_costs_nothing() -> None:
    before = peak_memory()
    with pytest.raises(CorruptBlock):
        inflate(MEMBER, 1 << 34, 1 << 34)
    assert peak_memory() - before < 32 << 20


def test_exactly_the_bound_is_accepted() -> None:
    assert inflate(MEMBER, len(RAW), len(RAW)) == RAW
    with pytest.raises(TooLarge):
        inflate(MEMBER, len(RAW), len(RAW) - 1)


def line(offset: int) -> bytes:
    return b'{"offset":%d,"timestamp":0,"key":null,"value":null}\n' % offset


GOOD = line(0) + line(1) + line(2)


@pytest.mark.parametrize(
    "raw",
    [
        line(0) + line(2) + line(1),
        line(0) + line(0) + line(2),
        line(0) + line(1) + line(3),
        line(1) + line(2) + line(3),
        line(0) + line(2),
        GOOD + line(3),
        GOOD + b"\n",
        GOOD[:-1],
        GOOD[:-1] + b" ",
        line(0) + b"\n" + line(2),
        line(0) + line(MAX_INT64) + line(-2) + line(3),
        b"\n\n\n",
    ],
    ids=["swapped", "twice", "last", "first", "fewer", "more", "blank", "unended", "space", "hole", "wrapping", "none"],
)
def test_records_that_the_index_does_not_announce(raw: bytes) -> None:
    records = 4 if b"-2" in raw else 3
    member, entry, index = block_of(raw, num_records=records, last_record_offset=records - 1)
    with pytest.raises(CorruptBlock, match="the records that its index says"):
        decode_block(member, entry, index, LIMIT)


def test_another_blocks_bytes() -> None:
    member, entry, index = block_of(GOOD)
    assert decode_block(member, entry, index, LIMIT).num_rows == 3
    other = ZlibCompressor(6).compress(GOOD.replace(b"null}", b"true}"))
    for wrong in (other, member + b"\x00", member[:-1], b""):
        with pytest.raises(CorruptBlock, match="not the one its index describes"):
            inflate_block(wrong, entry, index, LIMIT)
    with pytest.raises(CorruptBlock, match="not the one"):
        inflate_block(member, replace(entry, crc32=entry.crc32 ^ 1), index, LIMIT)


def test_a_trailer_that_lies_about_the_content() -> None:
    member, entry, index = block_of(GOOD)
    crc = entry.crc32 ^ 1
    lying = member[:-8] + crc.to_bytes(4, "little") + member[-4:]
    with pytest.raises(CorruptBlock, match="does not decompress"):
        inflate_block(lying, replace(entry, crc32=crc), index, LIMIT)


def test_text_lines_beyond_the_last_possible_offset() -> None:
    member, entry, index = block_of(
        b"a\nb\nc\n", "text", num_records=2, first_record_offset=MAX_INT64 - 2, last_record_offset=MAX_INT64 - 1
    )
    with pytest.raises(CorruptBlock):
        decode_block(member, entry, index, LIMIT)


@pytest.mark.parametrize("claimed", [10, 16 << 20])
def test_millions_of_empty_lines(claimed: int) -> None:
    raw = b"\n" * (16 << 20)
    member, entry, index = block_of(raw, "text", num_records=claimed, last_record_offset=16 << 20)
    before = peak_memory()
    with pytest.raises(FormatError):
        decode_block(member, entry, index, max_bytes=32 << 20)
    assert peak_memory() - before < 64 << 20


def test_the_bound_on_records_is_exact() -> None:
    member, entry, index = block_of(b"\n" * 40, "text")
    assert decode_block(member, entry, index, 40 * RECORD_FOOTPRINT).num_rows == 40
    with pytest.raises(TooLarge) as caught:
        decode_block(member, entry, index, 40 * RECORD_FOOTPRINT - 1)
    assert caught.value.why == "this reader accepts at most 39"


@pytest.mark.parametrize(
    "fields", [{"codec": "brotli"}, {"record_format": "avro"}, {"timestamp_type": "Later"}], ids=str
)
def test_what_a_newer_release_may_write_is_named(fields: dict[str, str]) -> None:
    index, data = chunk_of([record(0)])
    with pytest.raises(UnsupportedVersion, match=next(iter(fields.values()))):
        decode_block(data, index.blocks[0], replace(index, **fields), LIMIT)


def test_other_writers_gzip_headers_are_read() -> None:
    assert inflate(gzip.compress(RAW, mtime=1), len(RAW), LIMIT) == RAW
    named = b"\x1f\x8b\x08\x08" + bytes(6) + b"name\x00" + MEMBER[10:]
    assert inflate(named, len(RAW), LIMIT) == RAW
