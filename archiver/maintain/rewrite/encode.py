"""Write new chunks from old ones: copy, compress or encode blocks again, and leave records out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa

from archiver.ingest.buffer import BufferFile
from archiver.maintain.rewrite.chunks import (
    TEXT,
    BlockWriter,
    DataOf,
    ErasedRun,
    NewChunk,
    OffsetRanges,
    OldChunk,
    OpenedBlock,
    whole_data,
)
from blockgz.encryption.keyring import ChunkSeal
from blockgz.errors import UsageError
from index_format.blocks import (
    COMPRESSORS,
    BlockBuilder,
    BlockSummary,
    Compressor,
    RawBlock,
    decode_block,
    decode_parts,
    inflate_block,
)
from index_format.chunk_index import BlockEntry, ChunkIndex, Erased, Gap
from index_format.key_filter import bits_of
from index_format.marker import ChunkEntry
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPE_IDS

SAME_PARTITION = ("timestamp_type", "isolation_level", "topic_id", "archive_id")
"""Fields of an index that have to be equal in chunks that become one, however they are encoded."""
ALIKE = ("record_format", "codec", *SAME_PARTITION)
"""Fields of an index that have to be equal in chunks whose blocks are copied into one."""

CHEAP_BYTES = 1 << 20
"""Bytes that may be copied every day."""


class MergeLimits(NamedTuple):
    """The limits of a merge, in bytes of data as stored."""

    small_bytes: int
    """Only chunks with fewer bytes are merged."""
    chunk_bytes: int
    """Bytes of a merged chunk at most."""
    max_chunks: int = 4096
    """Chunks that become one at most."""
    max_blocks: int = 16_384
    """Blocks of a merged chunk at most, if they are copied: its index has some 220 bytes for each."""


def may_be_merged(before: ChunkEntry, after: ChunkEntry, limits: MergeLimits) -> bool:
    """Return whether two chunks, one after the other, are small enough to merge, with no gap between them."""
    follows = before.next_offset == after.start_offset
    are_small = max(before.bytes, after.bytes) < limits.small_bytes
    return follows and are_small and before.bytes + after.bytes <= limits.chunk_bytes


def merge_groups(entries: Sequence[ChunkEntry], limits: MergeLimits, num_blocks: Sequence[int] = ()) -> list[range]:
    """Return the neighbours to merge, as ranges of places in `entries`; at least two in each, none over a gap.

    The blocks of each entry, `num_blocks`, count towards the limit, if given. A chunk of CHEAP_BYTES or more that has
    more bytes than the rest of its group is left out: otherwise a daily run would copy everything that it merged the
    days before, for the few new chunks.
    """
    groups: list[range] = []
    start, size, blocks = 0, 0, 0
    for place, entry in enumerate(entries):
        own = num_blocks[place] if num_blocks else 0
        fits = size + entry.bytes <= limits.chunk_bytes and blocks + own <= limits.max_blocks
        fits &= place - start < limits.max_chunks
        if place > start and fits and may_be_merged(entries[place - 1], entry, limits):
            size, blocks = size + entry.bytes, blocks + own
            continue
        groups.append(range(start, place))
        start, size, blocks = (place, entry.bytes, own) if entry.bytes < limits.small_bytes else (place + 1, 0, 0)
    groups.append(range(start, len(entries)))
    return [part for group in groups for part in _worth_copying(entries, group)]


def _worth_copying(entries: Sequence[ChunkEntry], group: range) -> list[range]:
    """Return the parts of a group without chunks that are larger than the rest of their part."""
    if len(group) < 2:
        return []
    largest = max(group, key=lambda place: entries[place].bytes)
    most = entries[largest].bytes
    if most < CHEAP_BYTES or 2 * most <= sum(entries[place].bytes for place in group):
        return [group]
    parts = (range(group.start, largest), range(largest + 1, group.stop))
    return [found for part in parts for found in _worth_copying(entries, part)]


def runs_alike(chunks: Sequence[OldChunk], fields: Sequence[str] = ALIKE) -> list[Sequence[OldChunk]]:
    """Return neighbours, cut where the next one cannot be part of the same chunk; see `why_apart`."""
    cuts = [place for place, (a, b) in enumerate(pairwise(chunks), 1) if why_apart(a, b, fields)]
    return [chunks[start:end] for start, end in pairwise([0, *cuts, len(chunks)])]


def why_apart(before: OldChunk, after: OldChunk, fields: Sequence[str] = ALIKE) -> str | None:
    """Return why two chunks cannot become one, or None; `fields` of their indexes have to be equal."""
    if before.entry.next_offset != after.entry.start_offset:
        return f"offsets {before.entry.next_offset} to {after.entry.start_offset} lie between them"
    if bool(before.index.encryption) != bool(after.index.encryption):
        return "one of them is encrypted"
    for what in fields:
        if getattr(before.index, what) != getattr(after.index, what):
            return f"{what} is {getattr(before.index, what)!r} in one and {getattr(after.index, what)!r} in the other"
    return None


def check_neighbours(old: Sequence[OldChunk], fields: Sequence[str] = ALIKE) -> None:
    """Raise ValueError if chunks cannot become one; see `why_apart`."""
    for before, after in pairwise(old):
        if (why := why_apart(before, after, fields)) is not None:
            raise ValueError(f"{before.entry.name} and {after.entry.name} cannot become one chunk: {why}")


def merged(old: Sequence[OldChunk], data_of: DataOf, buffer: BufferFile, seal: ChunkSeal | None = None) -> NewChunk:
    """Copy the blocks of neighbours into one chunk, encrypted with `seal`; a few MiB are in memory at a time.

    Members and frames concatenate; those of encrypted chunks are decrypted and encrypted again, since the chunk that a
    block belongs to is authenticated with it. Raises ValueError if they cannot become one, CorruptBlock if data does
    not match its index, and BufferFull or a StoreError.
    """
    check_neighbours(old)
    writer = BlockWriter(buffer, seal)
    for chunk in old:
        for block in whole_data(data_of(chunk.index), chunk.index):
            writer.copy(block)
    return new_chunk(old, writer)


def new_chunk(
    old: Sequence[OldChunk],
    writer: BlockWriter,
    *,
    erased: tuple[Erased, ...] | None = None,
    record_format: str | None = None,
    codec: str | None = None,
) -> NewChunk:
    """Return what a writer wrote as the chunk that replaces neighbours; some properties may be given.

    Raises BufferFailed.
    """
    first = old[0].index
    return NewChunk(
        start_offset=old[0].entry.start_offset,
        next_offset=old[-1].entry.next_offset,
        body=writer.finish(),
        blocks=tuple(writer.blocks),
        encryption=writer.encryption,
        topic_id=first.topic_id,
        epoch=max(chunk.index.epoch for chunk in old),
        record_format=first.record_format if record_format is None else record_format,
        codec=first.codec if codec is None else codec,
        isolation_level=first.isolation_level,
        timestamp_type=first.timestamp_type,
        previous=first.previous,
        gaps=gaps_of(old),
        erased=erased_of(old).erased() if erased is None else erased,
    )


def gaps_of(old: Sequence[OldChunk]) -> tuple[Gap, ...]:
    """Return the gaps before neighbours, and inside them.

    A gap that a later index lists below its own start was filled by the chunk before it in the meantime.
    """
    gaps = list(old[0].index.gaps)
    for chunk in old[1:]:
        gaps += [gap for gap in chunk.index.gaps if gap.start >= chunk.entry.start_offset]
    return tuple(gaps)


def erased_of(old: Sequence[OldChunk]) -> OffsetRanges:
    """Return the offsets that were erased inside neighbours before."""
    return OffsetRanges(erased for chunk in old for erased in erased_in(chunk.index))


def erased_in(index: ChunkIndex) -> tuple[Erased, ...]:
    return index.erased if isinstance(index.erased, tuple) else ()


@dataclass(frozen=True)
class ConvertSettings:
    """The encoding of a new chunk."""

    record_format: str
    compression_library: str
    """isal, zlib or zstd; it determines the codec."""
    compression_level: int
    block_bytes: int
    key_filter_bits: int | None = None
    """Bits for each key; None gives new blocks filters like those of the old ones, if these have any."""

    @property
    def codec(self) -> str:
        return "zstd" if self.compression_library == "zstd" else "gzip"

    @property
    def compressor(self) -> Compressor:
        return COMPRESSORS[self.compression_library](self.compression_level)


def converted(
    old: Sequence[OldChunk],
    settings: ConvertSettings,
    data_of: DataOf,
    buffer: BufferFile,
    max_block_bytes: int,
    seal: ChunkSeal | None = None,
) -> NewChunk:
    """Encode the records of neighbours into one chunk, encrypted with `seal`; one old and one new block are in memory.

    Chunks of record format `text` keep their blocks, since only their index has timestamps. Raises ValueError if they
    cannot become one chunk, UsageError if the record format cannot be changed, a FormatError if a block is damaged, and
    BufferFull or a StoreError.
    """
    check_neighbours(old, SAME_PARTITION)
    for chunk in old:
        check_convertible(chunk.index, settings)
    writer = BlockWriter(buffer, seal)
    if settings.record_format == TEXT:
        for chunk in old:
            _compress_again(chunk.index, settings.compressor, data_of, writer, max_block_bytes)
    else:
        _encode_again(old, settings, data_of, writer, max_block_bytes)
    return new_chunk(old, writer, record_format=settings.record_format, codec=settings.codec)


def check_convertible(index: ChunkIndex, settings: ConvertSettings) -> None:
    """Raise UsageError if the records would lose something."""
    before, after = index.record_format, settings.record_format
    if before != after and TEXT in (before, after):
        raise UsageError(
            f"a chunk of record format {before} cannot be converted to {after}",
            why=f"{TEXT} holds neither keys nor headers nor timestamps",
            remedy=f"leave the record format as it is: --record-format {before}",
        )


def is_as_asked(index: ChunkIndex, settings: ConvertSettings) -> bool:
    """Return whether a chunk has this encoding already, as far as its index shows: it does not show the level.

    Its blocks may be smaller than `block_bytes`, but not twice as many as are needed.
    """
    if (index.record_format, index.codec) != (settings.record_format, settings.codec):
        return False
    if index.record_format == TEXT:
        return True
    sizes = [block.byte_length_uncompressed for block in index.blocks]
    too_large = any(b.num_records > 1 and b.byte_length_uncompressed > settings.block_bytes for b in index.blocks)
    needed = -(-sum(sizes) // settings.block_bytes)
    return not too_large and len(sizes) < max(2, 2 * needed)


def _encode_again(
    old: Sequence[OldChunk], settings: ConvertSettings, data_of: DataOf, writer: BlockWriter, max_block_bytes: int
) -> None:
    bits = settings.key_filter_bits
    if bits is None:
        bits = next((bits_of(b.key_filter) for chunk in old for b in chunk.index.blocks[:1]), None)
    timestamp_type = TIMESTAMP_TYPE_IDS[old[0].index.timestamp_type]
    builder = BlockBuilder(record_format(settings.record_format), timestamp_type, settings.block_bytes, bits)
    compressor = settings.compressor
    for chunk in old:
        for entry, member in whole_data(data_of(chunk.index), chunk.index):
            for batch in decode_parts(member, entry, chunk.index, max_block_bytes):
                for raw in builder.add(batch):
                    writer.encode(raw, compressor)
    last = builder.finish()
    if last is not None:
        writer.encode(last, compressor)


def _compress_again(
    index: ChunkIndex, compressor: Compressor, data_of: DataOf, writer: BlockWriter, max_block_bytes: int
) -> None:
    """Compress the blocks of a chunk again, without decoding them."""
    for entry, member in whole_data(data_of(index), index):
        first, last = entry.first_record_offset, entry.last_record_offset
        summary = BlockSummary(entry.num_records, first, last, entry.min_timestamp, entry.max_timestamp)
        raw = inflate_block(member, entry, index, max_block_bytes)
        writer.encode(RawBlock(raw, summary, entry.key_filter), compressor)


LEVEL_OF_CUT_BLOCKS = 2


def without(
    old: OldChunk,
    drop: OffsetRanges,
    data_of: DataOf,
    buffer: BufferFile,
    max_block_bytes: int,
    seal: ChunkSeal | None = None,
) -> NewChunk | ErasedRun:
    """Write a chunk without the records at these offsets, encrypted with `seal`; one block is in memory at a time.

    Blocks without such a record are copied. Offsets without a record are not listed as erased. Raises a FormatError if
    a block is damaged, and BufferFull or a StoreError.
    """
    index = old.index
    writer = BlockWriter(buffer, seal)
    compressor = COMPRESSORS["zstd" if index.codec == "zstd" else "isal"](LEVEL_OF_CUT_BLOCKS)
    erased = list(erased_of([old]))
    for block in whole_data(data_of(index), index):
        erased += _without_block(block, index, drop, writer, compressor, max_block_bytes)
    if not writer.blocks:
        return ErasedRun(old.entry.start_offset, old.entry.next_offset)
    return new_chunk([old], writer, erased=OffsetRanges(erased).erased())


def _without_block(
    block: OpenedBlock,
    index: ChunkIndex,
    drop: OffsetRanges,
    writer: BlockWriter,
    compressor: Compressor,
    max_block_bytes: int,
) -> OffsetRanges:
    """Write the rest of a block, and return the offsets of the records that were left out."""
    entry = block.entry
    if not drop.meets(entry.first_record_offset, entry.last_record_offset + 1):
        writer.copy(block)
        return OffsetRanges()
    batch = decode_block(block.member, entry, index, max_block_bytes)
    offsets = batch.column("offset").to_numpy()
    mask = drop.mask(offsets)
    if not mask.any():
        writer.copy(block)
        return OffsetRanges()
    _encode(batch.filter(pa.array(~mask)), entry, index, writer, compressor)
    return OffsetRanges.of_offsets(offsets[mask])


def _encode(
    batch: pa.RecordBatch, whole: BlockEntry, index: ChunkIndex, writer: BlockWriter, compressor: Compressor
) -> None:
    """Encode the rest of a block as one block; in record format `text`, as one for each run without a hole."""
    builder = BlockBuilder(
        record_format(index.record_format),
        TIMESTAMP_TYPE_IDS[index.timestamp_type],
        whole.byte_length_uncompressed + 1,
        bits_of(whole.key_filter),
    )
    bounds = whole if index.record_format == TEXT else None
    for raw in [*builder.add(batch), builder.finish()]:
        if raw is not None:
            writer.encode(raw, compressor, bounds)
