"""Small valid values of the format, each with any field changed at will."""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

from index_format.blocks import BlockBuilder, Compressor, RawBlock, ZlibCompressor
from index_format.marker import ChunkEntry, Marker
from index_format.objects import BlockEntry, ChunkIndex, DataObject
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPES, Record, batch_from_records

SHA256 = hashlib.sha256(b"").hexdigest()


def cut(
    rows: Sequence[Record],
    format_name: str = "json",
    block_bytes: int = 1 << 20,
    batches: Sequence[int] = (),
    filter_bits: int | None = None,
) -> list[RawBlock]:
    """The blocks of records that arrive in batches of the given sizes, the rest in one."""
    builder = BlockBuilder(record_format(format_name), rows[0].timestamp_type if rows else 0, block_bytes, filter_bits)
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


def index_of(entries: Sequence[BlockEntry], body: bytes, **fields: Any) -> ChunkIndex:
    """A chunk index over blocks, of which `body` is the data; every other field may be given."""
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
        "data": DataObject(f"{first:020d}.gz", len(body), hashlib.sha256(body).hexdigest()),
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
