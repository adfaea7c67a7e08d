"""A small archive as this release writes it, in the folder `current`: bytes that change by accident fail here.

What an earlier release wrote must stay readable: a change that is meant gets a new folder beside this one.
"""

import gzip
import hashlib
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from index_format import groups, objects
from index_format.blocks import ZlibCompressor, decode_block
from index_format.groups import ConsumerGroups, Group, GroupPosition
from index_format.keys import ChunkStart, TopicFolder, TopicLayoutKeys, catalog_name
from index_format.marker import (
    ChunkCatalog,
    Marker,
    appended,
    claimed,
    decode_index,
    decode_marker,
    encode,
    entry_of,
    reference_to,
)
from index_format.objects import ArchiveInfo, ChunkIndex, Gap, TopicInfo
from index_format.records import Record, canonical_bytes, iter_records, record_hash
from tests.golden.test_ancestor import same_zlib
from tests.index_format.builders import normal
from tests.support.format_objects import chunk_entry, chunk_of

CURRENT = Path(__file__).parent / "current"
UNSEALED = Path(__file__).parent / "unsealed"
"""What was written before objects carried a checksum of their own."""
KEYS = TopicLayoutKeys(TopicFolder("orders"), 3)
GROUPS, SLOT = "_groups/00000001760000040000.json", 1_760_000_040_000
START = ChunkStart(100, 102, 1_760_000_000_102)
DATA, INDEX, CATALOG = KEYS.data_name(START, ".gz"), KEYS.index_name(START), catalog_name(1, 0)
MARKER, ARCHIVE, TOPIC = "last_chunk_index.json", "_archive.json", "_topic.json"
RECORDS = [
    Record(102, 1_760_000_000_102, 0, b"42", b'{"total":7}', [("trace", b"a1"), ("trace", None), ("bin", b"\xff\x00")]),
    Record(103, 1_760_000_000_090, 0, None, b"", []),
    Record(104, -1, -1, b"", None, []),
    Record(107, 1_760_000_000_107, 1, b"\xff\xfe", bytes(range(0x20)), []),
    Record(108, 0, 0, "schlüssel😀".encode(), b'quote " backslash \\ slash /\x7f\xef\xbb\xbf', [("", b"")]),
]


def stored(name: str) -> bytes:
    return (CURRENT / name).read_bytes()


def chunk() -> tuple[ChunkIndex, bytes]:
    index, data = chunk_of(
        RECORDS,
        block_bytes=300,
        compressor=ZlibCompressor(6),
        topic_id="q7nLzvZ1S9uWJb0c9m2kXw",
        epoch=7,
        start_offset=START.position,
        next_offset=110,
        previous="00000000000000000064.index.json",
        gaps=(Gap(98, 100, "retention"), Gap(105, 106, "skipped")),
    )
    return replace(index, data=replace(index.data, name=DATA)), data


def catalog() -> ChunkCatalog:
    return ChunkCatalog(level=1, entries=(chunk_entry(0, 64), chunk_entry(64, 98)))


def marker() -> Marker:
    """As it stands after the chunk above, whose index is taken as stored."""
    body = encode(catalog())
    before = Marker(
        archive_id="archive-1",
        topic="orders",
        topic_id="q7nLzvZ1S9uWJb0c9m2kXw",
        partition=3,
        group_id="blockgz",
        isolation_level="read_committed",
        epoch=6,
        writer="1f0e6c9a-2b2f-4d57-9b0a-5a9d3d1a7c10",
        nonce="5b8a3f0e-5a55-4c1e-8a53-0f6f2f9f3c11",
        start_offset=0,
        next_offset=98,
        leader_epoch=3,
        last_chunk_index="00000000000000000064.index.json",
        catalogs=((reference_to(catalog(), CATALOG, body),),),
    )
    claim = claimed(
        before,
        writer="0d2c9d0e-7f64-4a1c-9a53-6a1f0c7de512",
        nonce="8c1f7a52-3c0e-4f6b-bb1d-2f6f5f0b9d13",
        group_id="blockgz",
        isolation_level="read_committed",
        gap=Gap(98, 100, "retention"),
    )
    index_body = stored(INDEX)
    return appended(
        claim,
        entry_of(objects.decode(index_body, ChunkIndex, INDEX), INDEX, index_body),
        (Gap(105, 106, "skipped"),),
        nonce="f3a1d0c4-9e0b-47d5-8a7e-3b7c1e2d4f14",
        leader_epoch=4,
        tail_hash=record_hash(RECORDS[-1]),
    )


def consumer_groups() -> ConsumerGroups:
    billing = (GroupPosition(0, 0, ""), GroupPosition(3, 2**62, "schlüssel😀"), GroupPosition(70_000, 7, None))
    return ConsumerGroups(
        archive_id="archive-1",
        topic="orders",
        topic_id="q7nLzvZ1S9uWJb0c9m2kXw",
        interval=60_000,
        groups=(Group("billing", SLOT - 700, billing), Group("suche\t", SLOT, (GroupPosition(3, 47, "host-7"),))),
    )


JSON_OBJECTS: dict[str, msgspec.Struct] = {
    ARCHIVE: ArchiveInfo(archive_id="archive-1", cluster_id="MkU3OEVBNTcwNTJENDM2Qg", layout="topic"),
    TOPIC: TopicInfo(topic="orders", topic_id="q7nLzvZ1S9uWJb0c9m2kXw", incarnation=1),
    CATALOG: catalog(),
    MARKER: marker(),
}


@same_zlib
def test_data_is_written_byte_for_byte() -> None:
    index, data = chunk()
    assert data == stored(DATA)
    assert objects.encode(index) == stored(INDEX)


@same_zlib
def test_groups_are_written_byte_for_byte() -> None:
    assert groups.encode(consumer_groups()) == stored(GROUPS)


def test_groups_are_read() -> None:
    assert groups.decode(stored(GROUPS), GROUPS, SLOT) == consumer_groups()


@pytest.mark.parametrize("name", JSON_OBJECTS)
def test_objects_are_written_byte_for_byte(name: str) -> None:
    assert objects.encode(JSON_OBJECTS[name]) == stored(name)


@pytest.mark.parametrize("name", [INDEX, *JSON_OBJECTS])
def test_objects_are_read(name: str) -> None:
    kind = type(JSON_OBJECTS[name]) if name in JSON_OBJECTS else ChunkIndex
    assert objects.encode(objects.decode(stored(name), kind, name)) == stored(name)


@pytest.mark.parametrize("name", [ARCHIVE, TOPIC, MARKER])
def test_objects_without_a_checksum_are_read(name: str) -> None:
    assert objects.decode((UNSEALED / name).read_bytes(), type(JSON_OBJECTS[name]), name) == JSON_OBJECTS[name]


def test_records_are_read() -> None:
    entry = decode_marker(stored(MARKER)).tail[-1]
    index = decode_index(stored(entry.name), entry, "orders", 3)
    data = stored(KEYS.check_name(index.data.name, index.start_offset, ".gz"))
    assert hashlib.sha256(data).hexdigest() == index.data.sha256
    back = [
        row
        for block in index.blocks
        for row in iter_records(decode_block(data[block.byte_offset : block.byte_end], block, index, 1 << 20))
    ]
    assert normal(back) == normal(RECORDS)
    assert len(index.blocks) > 1


def test_lines_are_held_byte_for_byte() -> None:
    assert gzip.decompress(stored(DATA)) == stored("lines.jsonl")


def test_tail_hash_is_held() -> None:
    assert canonical_bytes(RECORDS[2]).hex() == "0000000000000068ffffffffffffffffff0100000000000000000000000000"
    assert record_hash(RECORDS[2]) == hashlib.sha256(canonical_bytes(RECORDS[2])).hexdigest()
    assert decode_marker(stored(MARKER)).tail_hash == record_hash(RECORDS[-1])
