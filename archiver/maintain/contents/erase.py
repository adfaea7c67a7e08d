"""A chunk without some of its records, whose offsets its new index lists as erased."""

import pyarrow as pa

from archiver.commit.sealing import ChunkSeal
from archiver.ingest.buffer import BufferFile
from archiver.maintain.contents.chunks import TEXT, ErasedRun, NewChunk, OldChunk
from archiver.maintain.contents.data import BlockWriter, DataOf, OpenedBlock, whole_data
from archiver.maintain.contents.merge import erased_of, new_chunk
from archiver.maintain.contents.offset_ranges import OffsetRanges
from index_format.blocks import COMPRESSORS, BlockBuilder, Compressor, decode_block
from index_format.chunk_index import BlockEntry, ChunkIndex
from index_format.key_filter import bits_of
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPE_IDS

LEVEL_OF_CUT_BLOCKS = 2


def without(
    old: OldChunk,
    drop: OffsetRanges,
    data_of: DataOf,
    buffer: BufferFile,
    max_block_bytes: int,
    seal: ChunkSeal | None = None,
) -> NewChunk | ErasedRun:
    """The chunk without the records at those offsets, its data in `buffer`, encrypted with `seal`.

    One block is in memory at a time.

    Blocks without such a record are copied as they are. Offsets at which there is no record do not become erased ones.
    Raises a FormatError where a block is damaged, and BufferFull or a StoreError.
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
    """Writes what stays of a block; gives the offsets of the records that do not."""
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
    """What is left of a block, as one of its own; under `text`, one for each run without a hole."""
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
