"""Chunks in another record format, codec, level or block size: decoded and encoded again."""

from collections.abc import Sequence
from dataclasses import dataclass

from archiver.commit.sealing import ChunkSeal
from archiver.ingest.buffer import BufferFile
from archiver.maintain.contents.chunks import TEXT, NewChunk, OldChunk
from archiver.maintain.contents.data import BlockWriter, DataOf, whole_data
from archiver.maintain.contents.merge import SAME_PARTITION, check_neighbours, new_chunk
from blockgz.errors import UsageError
from index_format.blocks import (
    COMPRESSORS,
    BlockBuilder,
    BlockSummary,
    Compressor,
    RawBlock,
    decode_parts,
    inflate_block,
)
from index_format.chunk_index import ChunkIndex
from index_format.key_filter import bits_of
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPE_IDS


@dataclass(frozen=True)
class ConvertSettings:
    """How the new chunk is encoded."""

    record_format: str
    compression_library: str
    """isal, zlib or zstd; it determines the codec."""
    compression_level: int
    block_bytes: int
    key_filter_bits: int | None = None
    """Bits for each key; None gives the new blocks filters only if the old ones have some, and then like theirs."""

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
    """One chunk of the records of neighbours, its data in `buffer`, encrypted with `seal`.

    An old and a new block are in memory at a time.

    Chunks of record format `text` keep their blocks, since only their index tells timestamps. Raises ValueError where
    they cannot become one chunk, UsageError where the record format cannot be changed, a FormatError where a block is
    damaged, and BufferFull or a StoreError.
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
    """Raises UsageError where the records would lose something."""
    before, after = index.record_format, settings.record_format
    if before != after and TEXT in (before, after):
        raise UsageError(
            f"a chunk of record format {before} cannot be converted to {after}",
            why=f"{TEXT} holds neither keys nor headers nor timestamps",
            remedy=f"leave the record format as it is: --record-format {before}",
        )


def is_as_asked(index: ChunkIndex, settings: ConvertSettings) -> bool:
    """Whether a chunk is encoded so already, as far as its index tells: the level shows nowhere.

    Its blocks may be smaller than asked for, but not twice as many as are needed.
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
    """Block by block, without decoding."""
    for entry, member in whole_data(data_of(index), index):
        first, last = entry.first_record_offset, entry.last_record_offset
        summary = BlockSummary(entry.num_records, first, last, entry.min_timestamp, entry.max_timestamp)
        raw = inflate_block(member, entry, index, max_block_bytes)
        writer.encode(RawBlock(raw, summary, entry.key_filter), compressor)
