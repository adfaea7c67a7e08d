"""Small valid values of the format, each with one field changed at will."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

from index_format.blocks import BlockBuilder, Compressor, RawBlock, ZlibCompressor
from index_format.chunk_index import BlockEntry, ChunkIndex, DataObject
from index_format.groups import ConsumerGroups, Group, GroupPosition
from index_format.marker import ChunkEntry, Marker
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPES, Headers, Record, batch_from_records

MIN_INT64, MAX_INT64 = -(2**63), 2**63 - 1
SHA256 = hashlib.sha256(b"").hexdigest()


def record(
    offset: int,
    value: bytes | None = b"v",
    key: bytes | None = None,
    headers: Headers = (),
    timestamp: int = 1_000,
    timestamp_type: int = 0,
) -> Record:
    return Record(offset, timestamp, timestamp_type, key, value, headers)


NASTY = [
    b"",
    b"\x00",
    b"\n",
    b"\r\n",
    b'"\\/',
    b"\xff",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xef\xbb\xbfbom",
    "é😀\u2028".encode(),
]
contents = st.one_of(st.none(), st.sampled_from(NASTY), st.binary(max_size=24), st.text(max_size=12).map(str.encode))
timestamps = st.one_of(
    st.sampled_from([-1, 0, MIN_INT64, MAX_INT64]), st.integers(0, 2_000_000_000_000), st.integers(MIN_INT64, MAX_INT64)
)
header_lists = st.lists(st.tuples(st.sampled_from(["a", "a", "", "é", "\x00"]), contents), max_size=4)


@st.composite
def record_lists(draw: st.DrawFn, min_size: int = 1, max_size: int = 20) -> list[Record]:
    """Records at strictly rising offsets, with holes, of every class of content."""
    count = draw(st.integers(min_size, max_size))
    offset = draw(st.sampled_from([0, 1, 2**40, MAX_INT64 - 1_000]))
    rows = []
    for _ in range(count):
        rows.append(
            record(
                offset,
                draw(contents),
                draw(contents),
                draw(header_lists),
                draw(timestamps),
                draw(st.sampled_from(sorted(TIMESTAMP_TYPES))),
            )
        )
        offset += draw(st.sampled_from([1, 1, 1, 2, 7]))
    return rows


@st.composite
def text_record_lists(draw: st.DrawFn, max_size: int = 30) -> list[Record]:
    """Records that the format `text` can hold."""
    offset, rows = draw(st.integers(0, 50)), []
    for value in draw(st.lists(st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"")), max_size=max_size)):
        rows.append(record(offset, value, timestamp=-1, timestamp_type=-1))
        offset += draw(st.sampled_from([1, 1, 1, 3]))
    return rows


def normal(rows: Sequence[Record]) -> list[Record]:
    """Records with their headers as lists of pairs, so that equal ones compare equal."""
    return [row._replace(headers=[(key, value) for key, value in row.headers]) for row in rows]


def cut(
    rows: Sequence[Record], format_name: str = "json", block_bytes: int = 1 << 20, batches: Sequence[int] = ()
) -> list[RawBlock]:
    """The blocks of records that arrive in batches of the given sizes, the rest in one."""
    builder = BlockBuilder(record_format(format_name), rows[0].timestamp_type if rows else 0, block_bytes)
    blocks: list[RawBlock] = []
    for part in _parts(rows, batches):
        blocks += builder.add(batch_from_records(part))
    last = builder.finish()
    return blocks if last is None else [*blocks, last]


def _parts(rows: Sequence[Record], sizes: Sequence[int]) -> Iterator[Sequence[Record]]:
    start = 0
    for size in sizes:
        yield rows[start : start + size]
        start += size
    yield rows[start:]


def chunk_of(
    rows: Sequence[Record],
    format_name: str = "json",
    block_bytes: int = 200,
    compressor: Compressor | None = None,
    **fields: Any,
) -> tuple[ChunkIndex, bytes]:
    """A chunk of records: its index and its data."""
    compressor = compressor or ZlibCompressor(6)
    entries: list[BlockEntry] = []
    data = b""
    for block in cut(rows, format_name, block_bytes):
        member = compressor.compress(block.raw)
        entries.append(block.entry(len(data), len(member)))
        data += member
    return index_of(
        entries, data, record_format=format_name, timestamp_type=TIMESTAMP_TYPES[rows[0].timestamp_type], **fields
    ), data


def index_of(entries: Sequence[BlockEntry], data: bytes, **fields: Any) -> ChunkIndex:
    """A chunk index over blocks; every other field may be given."""
    first, last = entries[0].first_record_offset, entries[-1].last_record_offset
    values: dict[str, Any] = {
        "archive_id": "archive-1",
        "topic": "orders",
        "topic_id": None,
        "partition": 3,
        "epoch": 1,
        "record_format": "json",
        "codec": "gzip",
        "isolation_level": "read_committed",
        "timestamp_type": "CreateTime",
        "start_offset": first,
        "next_offset": last + 1,
        "first_offset": first,
        "last_offset": last,
        "num_records": sum(entry.num_records for entry in entries),
        "min_timestamp": min(entry.min_timestamp for entry in entries),
        "max_timestamp": max(entry.max_timestamp for entry in entries),
        "data": DataObject(f"{first:020d}.gz", len(data), hashlib.sha256(data).hexdigest()),
        "previous": None,
        "blocks": tuple(entries),
    }
    return ChunkIndex(**(values | fields))


def block_at(number: int, **fields: Any) -> BlockEntry:
    """Block `number` of 10 records and 100 bytes each, contiguous in bytes and offsets."""
    values = {
        "byte_length_uncompressed": 500,
        "num_records": 10,
        "byte_length": 100,
        "byte_offset": 100 * number,
        "first_record_offset": 10 * number,
        "last_record_offset": 10 * number + 9,
        "min_timestamp": 0,
        "max_timestamp": 0,
        "crc32": 0,
    }
    return BlockEntry(**(values | fields))


def chunk_entry(start: int, end: int, **fields: Any) -> ChunkEntry:
    """The entry of a chunk that holds every offset of [start, end)."""
    values: dict[str, Any] = {
        "name": f"{start:020d}.index.json",
        "start_offset": start,
        "next_offset": end,
        "first_offset": start,
        "last_offset": end - 1,
        "num_records": end - start,
        "bytes": 100,
        "raw_bytes": 500,
        "min_timestamp": start,
        "max_timestamp": end,
        "sha256": SHA256,
    }
    return ChunkEntry(**(values | fields))


def marker_of(**fields: Any) -> Marker:
    """A marker as a first claim leaves it."""
    values: dict[str, Any] = {
        "archive_id": "archive-1",
        "topic": "orders",
        "topic_id": None,
        "partition": 3,
        "group_id": "blockgz",
        "epoch": 1,
        "writer": "writer-1",
        "nonce": "nonce-0",
    }
    return Marker(**(values | fields))


def group(group_id: str, *partitions: int, asked_at: int = 39_300, offset: int = 41) -> Group:
    return Group(group_id, asked_at, tuple(GroupPosition(number, offset + number, "") for number in partitions))


def groups_of(*groups: Group, **changes: Any) -> ConsumerGroups:
    fields = {"archive_id": "archive-1", "topic": "orders", "topic_id": None, "interval": 60_000, "groups": groups}
    return ConsumerGroups(**fields | changes)
