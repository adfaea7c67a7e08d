"""The ancestor's bytes, held exactly; the one exception is the empty block that it left before an oversized record."""

import gzip
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from index_format.blocks import ZlibCompressor
from index_format.keys import ChunkStart, SeedLayoutKeys, TopicFolder
from index_format.objects import ANCESTOR_FIELDS, BlockEntry, ChunkIndex, ancestor_index
from tests.index_format.builders import record
from tests.support.format_objects import block_at, chunk_of, index_of

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "ancestor.json").read_text())


def deflates_like_the_ancestor() -> bool:
    """Whether this machine's zlib gives the ancestor's number of bytes, asked without any code of the project."""
    raw = "".join(GOLDEN["value"] % counter + "\n" for counter in range(100)).encode()
    deflater = zlib.compressobj(6, zlib.DEFLATED, -15, 8, 0)
    return len(deflater.compress(raw) + deflater.flush()) + 18 == int(GOLDEN["chunks"][0]["blocks"][0][2])


same_zlib = pytest.mark.skipif(
    not deflates_like_the_ancestor(), reason=f"zlib {zlib.ZLIB_RUNTIME_VERSION} of this machine deflates to other bytes"
)


def chunk(values: Sequence[str], first_offset: int, block_bytes: int = 64 << 20) -> tuple[ChunkIndex, bytes]:
    rows = [record(first_offset + number, value.encode()) for number, value in enumerate(values)]
    return chunk_of(rows, "text", block_bytes, ZlibCompressor(6))


def fields(blocks: Sequence[BlockEntry]) -> list[list[int]]:
    return [[getattr(block, field) for field in ANCESTOR_FIELDS] for block in blocks]


@same_zlib
@pytest.mark.parametrize("case", GOLDEN["chunks"], ids=lambda case: str(case["blocks"]))
def test_chunks_of_one_block(case: dict[str, Any]) -> None:
    values = [GOLDEN["value"] % counter for counter in range(*case["counters"])]
    index, data = chunk(values, case["first_offset"])
    assert fields(index.blocks) == case["blocks"]
    assert len(data) == case["blocks"][-1][2]
    assert gzip.decompress(data).decode().splitlines() == values
    if case is GOLDEN["chunks"][0]:
        assert ancestor_index(index.blocks).decode() == GOLDEN["index_of_the_first"]


@same_zlib
@pytest.mark.parametrize("case", GOLDEN["rolls"], ids=lambda case: str(case["values"]))
def test_blocks_roll_where_the_ancestors_did(case: dict[str, Any]) -> None:
    index, _ = chunk(case["values"], case["first_offset"], case["block_bytes"])
    empty = len(bytes.fromhex(GOLDEN["empty_member"]))
    expected, shift = [], 0
    for raw, count, length, position, first in case["blocks"]:
        if count:
            expected.append([raw, count, length, position - shift, first])
        else:
            shift += empty
    assert fields(index.blocks) == expected


def test_the_empty_member() -> None:
    assert ZlibCompressor(6).compress(b"").hex() == GOLDEN["empty_member"]


def test_the_index_text() -> None:
    raw, count, length, position, first = GOLDEN["chunks"][0]["blocks"][0]
    block = block_at(
        0,
        byte_length_uncompressed=raw,
        num_records=count,
        byte_length=length,
        byte_offset=position,
        first_record_offset=first,
        last_record_offset=first + count - 1,
    )
    assert ancestor_index([block]).decode() == GOLDEN["index_of_the_first"]


def test_the_marker() -> None:
    marker = GOLDEN["marker"]
    keys = SeedLayoutKeys(TopicFolder(marker["topic"]), marker["partition"])
    start = ChunkStart(marker["first_offset"], marker["first_offset"], marker["first_timestamp"])
    assert marker["prefix"] + keys.ancestor_marker == marker["key"]
    assert marker["prefix"] + keys.ancestor_index_name(start) == marker["body"]
    assert keys.ancestor_position(marker["body"].encode()) == marker["first_offset"]


def test_where_the_ancestor_resumes() -> None:
    blocks = [
        block_at(number, num_records=count, first_record_offset=first, last_record_offset=first + count - 1)
        for number, (first, count) in enumerate(GOLDEN["resume"]["first_offsets_and_counts"])
    ]
    assert index_of(blocks, bytes(300)).next_offset == GOLDEN["resume"]["next_offset"]
    last = json.loads(ancestor_index(blocks))["chunks"][-1]
    assert last["first_record_offset"] + last["num_records"] == GOLDEN["resume"]["next_offset"]
