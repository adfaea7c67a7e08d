"""The measurement of codecs: what it compresses is what the archiver would, and every codec gives it back."""

import gzip

import pytest
import zstandard

from benchmarks.codecs import BLOCK_BYTES, KINDS, blocks, codecs, measured
from index_format.record_formats import record_format
from index_format.records import NO_TIMESTAMP_TYPE


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_those_of_the_record_format(kind: str) -> None:
    first, second = blocks(kind, 2)
    codec = record_format(KINDS[kind][0])
    assert BLOCK_BYTES <= len(first) < 4 * BLOCK_BYTES
    assert first != second
    assert codec.decode(first, 0, NO_TIMESTAMP_TYPE).num_rows == codec.count(first) > 256


def test_every_codec_gives_a_block_back() -> None:
    raw = b"".join(b'{"offset":%d,"value":"some text"}\n' % number for number in range(2000))
    for name, compress in codecs().items():
        packed = compress(raw)
        unpacked = gzip.decompress(packed) if name.startswith("gzip") else zstandard.decompress(packed)
        assert unpacked == raw, name
        assert len(packed) < len(raw), name


def test_a_rate_and_a_ratio_are_measured() -> None:
    found = measured(lambda raw: raw[: len(raw) // 4], [bytes(1000), bytes(3000)], 2)
    assert found.ratio == 4
    assert found.rate > 0
