"""Telling an archived record that comes again from another one in its place."""

from blockgz_runtime.errors import StoreError
from blockgz_runtime.store.writer import ToolStore
from index_format import marker as markers
from index_format.blocks import decode_block
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES, ChunkIndex
from index_format.errors import MalformedObject
from index_format.keys import INDEX_SUFFIXES, PartitionKeys, data_suffix, is_catalog_name
from index_format.marker import CatalogReference, ChunkEntry, Marker
from index_format.records import Record, iter_records, record_hash
from index_format.seek import span_at_or_after


def differs(store: ToolStore, keys: PartitionKeys, marker: Marker, record: Record) -> bool:
    """Whether the archive holds another record at that offset; False where it holds none there.

    Record format `text` keeps values, so no more is compared. Raises StoreError, AccessDenied or FormatError.
    """
    entry = _entry_at(store, keys, marker, record.offset)
    if entry is None:
        return False
    index = _index(store, keys, marker, entry)
    block = next((each for each in index.blocks if each.last_record_offset >= record.offset), None)
    if block is None or block.first_record_offset > record.offset:
        return False
    name = keys.check_name(index.data.name, index.start_offset, data_suffix(index.record_format, index.codec))
    member = store.get_range(keys.chunks + name, block.byte_offset, block.byte_end)
    batch = decode_block(member, block, index, DEFAULT_MAX_BLOCK_BYTES)
    archived = next((each for each in iter_records(batch) if each.offset == record.offset), None)
    if archived is None:
        return False
    if index.record_format == "text":
        return archived.value != record.value
    return record_hash(archived) != record_hash(record)


def _entry_at(store: ToolStore, keys: PartitionKeys, marker: Marker, offset: int) -> ChunkEntry | None:
    levels = {reference.name: level for level, each in enumerate(marker.catalogs, 1) for reference in each}
    span = span_at_or_after(marker.spans, offset)
    level = levels.get(span.name, 0) if span is not None else 0
    while isinstance(span, CatalogReference):
        if not is_catalog_name(span.name, level, span.start_offset):
            raise MalformedObject(f"the name {span.name[:120]!r} does not belong into {keys.home}")
        catalog = markers.decode_catalog(_get(store, keys.home + span.name), span, level)
        span, level = span_at_or_after(catalog.entries, offset), level - 1
    return span if isinstance(span, ChunkEntry) else None


def _index(store: ToolStore, keys: PartitionKeys, marker: Marker, entry: ChunkEntry) -> ChunkIndex:
    name = keys.check_name(entry.name, entry.start_offset, INDEX_SUFFIXES[keys.layout])
    return markers.decode_index(_get(store, keys.chunks + name), entry, marker.topic, marker.partition)


def _get(store: ToolStore, key: str) -> bytes:
    found = store.get(key)
    if found is None:
        raise StoreError(
            f"the object {key} is gone",
            why="the marker leads to it",
            remedy="find out who deleted it and restore it, or see archiver repair",
        )
    return found.body
