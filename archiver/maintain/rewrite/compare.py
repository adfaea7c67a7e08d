"""Compare new chunks record by record with those that they replace, before anything is committed."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from archiver.errors import ContentsDiffer
from archiver.maintain.rewrite.chunks import (
    NO_OFFSETS,
    TEXT,
    ChunkData,
    DataOf,
    ErasedRun,
    NewChunk,
    OffsetRanges,
    OldChunk,
    opened_blocks,
)
from archiver.maintain.rewrite.encode import erased_of, gaps_of
from index_format.blocks import decode_parts
from index_format.chunk_index import BlockEntry
from index_format.key_filter import column_hashes, holds_all
from index_format.marker import block_at_or_after
from index_format.records import RecordsDigest


def check_contents(
    old: Sequence[OldChunk],
    new: NewChunk | ErasedRun,
    data_of: DataOf,
    data: ChunkData | None,
    max_block_bytes: int,
    drop: OffsetRanges = NO_OFFSETS,
) -> RecordsDigest:
    """Raise ContentsDiffer unless `new` holds the records of `old`, and only those at the offsets `drop` are missing.

    `data` is the data of `new`; None for an ErasedRun. Return the digest of the missing records. Raises a FormatError
    for a block that is not what its entry says.
    """
    if (new.start_offset, new.next_offset) != (old[0].entry.start_offset, old[-1].entry.next_offset):
        raise _differ(old, f"it spans offsets [{new.start_offset}..{new.next_offset})")
    digest, dropped = RecordsDigest(), list[range]()

    def leave_out(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets = batch.column("offset").to_numpy()
        mask = drop.mask(offsets)
        if not mask.any():
            return batch
        dropped.extend(OffsetRanges.of_offsets(offsets[mask]))
        digest.update(batch.filter(pa.array(mask)))
        return batch.filter(pa.array(~mask))

    left = (leave_out(batch) for chunk in old for batch in _old_records(chunk, data_of, max_block_bytes))
    right: Iterator[pa.RecordBatch] = iter(())
    if isinstance(new, NewChunk) and data is not None:
        if not new.encryption and any(chunk.index.encryption for chunk in old):
            raise _differ(old, "its blocks are not encrypted")
        right = _new_records(old, new, data, max_block_bytes)
    offset = _first_difference(left, right)
    if offset is not None:
        raise _differ(old, f"the record at offset {offset} is another one, or only one of them holds it")
    if isinstance(new, NewChunk):
        if new.gaps != gaps_of(old):
            raise _differ(old, "it lists other gaps")
        if new.erased != (erased_of(old) | OffsetRanges(dropped)).erased():
            raise _differ(old, "it lists other offsets as erased")
    return digest


def _old_records(chunk: OldChunk, data_of: DataOf, max_block_bytes: int) -> Iterator[pa.RecordBatch]:
    for entry, member in opened_blocks(data_of(chunk.index), chunk.index.blocks):
        yield from decode_parts(member, entry, chunk.index, max_block_bytes)


def _new_records(
    old: Sequence[OldChunk], new: NewChunk, data: ChunkData, max_block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the new chunk; compare what the entry of each block says with the block."""
    end = 0
    for stored, (entry, member) in zip(new.blocks, opened_blocks(data, new.blocks), strict=True):
        parts = decode_parts(member, entry, new, max_block_bytes)
        if stored.byte_offset != end:
            raise _differ(old, f"a block is at byte {stored.byte_offset}, not at {end}")
        end = stored.byte_end
        if _timestamps(old, new, entry, parts) != (entry.min_timestamp, entry.max_timestamp):
            raise _differ(old, f"the block at offset {entry.first_record_offset} has other timestamps than its entry")
        if isinstance(entry.key_filter, bytes):
            key_filter = entry.key_filter
            if not all(holds_all(key_filter, column_hashes(part.column("key"))) for part in parts):
                raise _differ(old, f"the filter of the block at offset {entry.first_record_offset} misses a key")
        yield from parts
    size = len(new.body) if isinstance(new.body, bytes) else new.body.size
    if end != size:
        raise _differ(old, f"its blocks end at byte {end}, its data at {size}")


def _timestamps(
    old: Sequence[OldChunk], new: NewChunk, entry: BlockEntry, parts: Sequence[pa.RecordBatch]
) -> tuple[int, int]:
    """Return the bounds of a block's timestamps; in record format `text` only the old index has them."""
    if new.record_format == TEXT:
        for chunk in old:
            number = block_at_or_after(chunk.index.blocks, entry.first_record_offset)
            if number is not None:
                return chunk.index.blocks[number].min_timestamp, chunk.index.blocks[number].max_timestamp
    columns = [part.column("timestamp").to_numpy() for part in parts]
    return min(int(column.min()) for column in columns), max(int(column.max()) for column in columns)


def _first_difference(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> int | None:
    """Return the offset near which two streams of records differ first, by digests; None if they are equal."""
    mine, other = _next(left), _next(right)
    while mine is not None and other is not None:
        rows = min(mine.num_rows, other.num_rows)
        if _digests(mine.slice(0, rows)) != _digests(other.slice(0, rows)):
            return min(int(each.column("offset")[0].as_py()) for each in (mine, other))
        mine = mine.slice(rows) if rows < mine.num_rows else _next(left)
        other = other.slice(rows) if rows < other.num_rows else _next(right)
    rest = mine if mine is not None else other
    return None if rest is None else int(rest.column("offset")[0].as_py())


def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return next((batch for batch in batches if batch.num_rows), None)


def _digests(batch: pa.RecordBatch) -> tuple[str, str]:
    digest = RecordsDigest()
    digest.update(batch)
    return digest.content, digest.positions


def _differ(old: Sequence[OldChunk], why: str) -> ContentsDiffer:
    start, end = old[0].entry.start_offset, old[-1].entry.next_offset
    return ContentsDiffer(
        f"the rewritten chunk of offsets [{start}..{end}) does not hold what it is to replace",
        why=why,
        remedy="nothing was committed; check the disk of the buffer, and run `replayer verify --deep`",
    )
