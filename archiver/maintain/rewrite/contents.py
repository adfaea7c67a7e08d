"""New contents of chunks: copy, compress or encode blocks again, leave records out, and compare with the old ones."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.operations import Driver, Protocol
from archiver.errors import ContentsDiffer
from archiver.ingest.chunk_builder import BufferFile, BufferFolder
from archiver.maintain.rewrite.chunks import (
    NO_OFFSETS,
    TEXT,
    Block,
    BlockWriter,
    ChangedItem,
    ChunkData,
    DataOf,
    EmptiedRun,
    Item,
    NewChunk,
    OffsetRanges,
    OldChunk,
    RangeStore,
    RewrappedChunk,
    RewriteKeys,
    data_in,
    opened_blocks,
    size_and_hash,
    whole_data,
)
from archiver.maintain.rewrite.intent import RewriteOutcome
from archiver.maintain.rewrite.replace import Rewrite, chunks_of
from blockgz.encryption.keyring import ChunkSeal
from blockgz.errors import UsageError
from index_format import objects
from index_format.blocks import (
    COMPRESSORS,
    BlockBuilder,
    Compressor,
    RawBlock,
    decode_block,
    decode_parts,
    inflate_block,
)
from index_format.key_filter import bits_of, column_hashes, holds_all
from index_format.keys import PartitionKeys
from index_format.marker import ChunkEntry, block_at_or_after
from index_format.record_formats import record_format
from index_format.records import TIMESTAMP_TYPE_IDS, RecordsDigest

# Fields of an index that have to be equal in chunks that become one, however they are encoded.
SAME_PARTITION = ("timestamp_type", "isolation_level", "topic_id", "archive_id")
# Fields of an index that have to be equal in chunks whose blocks are copied into one.
ALIKE = ("record_format", "codec", *SAME_PARTITION)

# Bytes that may be copied every day.
CHEAP_BYTES = 1 << 20


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
    span_ms: int | None = None
    """Milliseconds that the timestamps of chunks that become one span at most; None for any time."""

    def times_of(self, entry: ChunkEntry) -> tuple[int, int]:
        """Return a chunk's lowest and highest timestamps; the highest alone if it spans more than a merged one may."""
        # So late records, and those with wrong or no timestamps, do not keep their chunks from being merged.
        is_wide = self.span_ms is not None and entry.max_timestamp - entry.min_timestamp > self.span_ms
        return entry.max_timestamp if is_wide else entry.min_timestamp, entry.max_timestamp

    def may_span(self, start_ms: int, end_ms: int) -> bool:
        """Return whether chunks may become one whose timestamps are in these bounds, both included."""
        return self.span_ms is None or end_ms - start_ms <= self.span_ms


def may_be_merged(before: ChunkEntry, after: ChunkEntry, limits: MergeLimits) -> bool:
    """Return whether two chunks, one after the other, are small and near enough to merge, with no gap between them."""
    follows = before.next_offset == after.start_offset
    are_small = max(before.bytes, after.bytes) < limits.small_bytes
    times = limits.times_of(before) + limits.times_of(after)
    are_near = limits.may_span(min(times), max(times))
    return follows and are_small and are_near and before.bytes + after.bytes <= limits.chunk_bytes


def merge_groups(entries: Sequence[ChunkEntry], limits: MergeLimits, num_blocks: Sequence[int] = ()) -> list[range]:
    """Return the neighbours to merge, as ranges of places in `entries`; at least two in each, none over a gap."""
    groups: list[range] = []
    start, size, blocks = 0, 0, 0
    oldest_ms = newest_ms = 0
    for place, entry in enumerate(entries):
        own = num_blocks[place] if num_blocks else 0
        own_oldest_ms, own_newest_ms = limits.times_of(entry)
        fits = size + entry.bytes <= limits.chunk_bytes and blocks + own <= limits.max_blocks
        fits &= place - start < limits.max_chunks
        fits &= limits.may_span(min(oldest_ms, own_oldest_ms), max(newest_ms, own_newest_ms))
        if place > start and fits and may_be_merged(entries[place - 1], entry, limits):
            size, blocks = size + entry.bytes, blocks + own
            oldest_ms, newest_ms = min(oldest_ms, own_oldest_ms), max(newest_ms, own_newest_ms)
            continue
        groups.append(range(start, place))
        start, size, blocks = (place, entry.bytes, own) if entry.bytes < limits.small_bytes else (place + 1, 0, 0)
        oldest_ms, newest_ms = own_oldest_ms, own_newest_ms
    groups.append(range(start, len(entries)))
    return [part for group in groups for part in _worth_copying(entries, group)]


def _worth_copying(entries: Sequence[ChunkEntry], group: range) -> list[range]:
    """Return the parts of a group without chunks that are larger than the rest of their part."""
    if len(group) < 2:
        return []
    # Otherwise a daily run would copy everything that it merged the days before, for a few new chunks.
    largest = max(group, key=lambda place: entries[place].bytes)
    most = entries[largest].bytes
    if most < CHEAP_BYTES or 2 * most <= sum(entries[place].bytes for place in group):
        return [group]
    parts = (range(group.start, largest), range(largest + 1, group.stop))
    return [found for part in parts for found in _worth_copying(entries, part)]


def runs_alike(chunks: Sequence[OldChunk], fields: Sequence[str] = ALIKE) -> list[Sequence[OldChunk]]:
    """Return neighbours, cut where the next one cannot be part of the same chunk; see `are_alike`."""
    cuts = [place for place, (a, b) in enumerate(pairwise(chunks), 1) if not are_alike(a, b, fields)]
    return [chunks[start:end] for start, end in pairwise([0, *cuts, len(chunks)])]


def are_alike(before: OldChunk, after: OldChunk, fields: Sequence[str] = ALIKE) -> bool:
    """Return whether two chunks can become one; `fields` of their indexes have to be equal."""
    is_same_kind = bool(before.index.encryption) == bool(after.index.encryption)
    follows = before.entry.next_offset == after.entry.start_offset
    return follows and is_same_kind and all(getattr(before.index, f) == getattr(after.index, f) for f in fields)


def merged(old: Sequence[OldChunk], data_of: DataOf, buffer: BufferFile, seal: ChunkSeal | None = None) -> NewChunk:
    """Copy the blocks of neighbours into one chunk, encrypted with `seal`; raises CorruptBlock, BufferFull."""
    writer = BlockWriter(buffer, seal)
    for chunk in old:
        for block in whole_data(data_of(chunk.index), chunk.index):
            # Members and frames concatenate. Those of encrypted chunks are decrypted and encrypted again: the chunk
            # that a block belongs to is authenticated with it.
            writer.copy(*block)
    return new_chunk(old, writer)


def rest_of(old: OldChunk, data_of: DataOf, buffer: BufferFile, seal: ChunkSeal | None = None) -> NewChunk:
    """Copy the blocks that a prune leaves of a chunk, encrypted with `seal`; raises CorruptBlock, BufferFull."""
    writer = BlockWriter(buffer, seal)
    for block in opened_blocks(data_of(old.index), old.index.blocks, old.block_numbers):
        writer.copy(*block)
    return new_chunk([old], writer)


def new_chunk(
    old: Sequence[OldChunk],
    writer: BlockWriter,
    *,
    erased: OffsetRanges | None = None,
    settings: "ConvertSettings | None" = None,
) -> NewChunk:
    """Return what a writer wrote as the chunk that replaces neighbours, encoded by `settings` if they are given."""
    first, body = old[0].index, writer.finish()
    index = replace(
        first,
        version=2 if writer.seal else objects.VERSION,
        start_offset=old[0].entry.start_offset,
        next_offset=old[-1].entry.next_offset,
        epoch=max(chunk.index.epoch for chunk in old),
        record_format=settings.record_format if settings else first.record_format,
        codec=settings.codec if settings else first.codec,
        data=objects.DataObject(first.data.name, *size_and_hash(body)),
        gaps=gaps_of(old),
        erased=(erased_of(old) if erased is None else erased).erased() or UNSET,
        encryption=writer.seal.encryption if writer.seal else UNSET,
        **objects.fields_of_blocks(writer.blocks),
    )
    return NewChunk(index, body)


def gaps_of(old: Sequence[OldChunk]) -> tuple[objects.Gap, ...]:
    """Return the gaps before neighbours, and inside them."""
    first = old[0]
    gaps = [gap for gap in first.index.gaps if not first.is_cut or gap.start >= first.entry.start_offset]
    for chunk in old[1:]:
        # A gap below the start of its chunk was filled by the chunk before it in the meantime.
        gaps += [gap for gap in chunk.index.gaps if gap.start >= chunk.entry.start_offset]
    return tuple(gaps)


def erased_of(old: Sequence[OldChunk]) -> OffsetRanges:
    """Return the offsets that were erased inside neighbours before."""
    return OffsetRanges(
        erased for chunk in old for erased in erased_in(chunk.index) if erased.start >= chunk.entry.start_offset
    )


def erased_in(index: objects.ChunkIndex) -> tuple[objects.Erased, ...]:
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
    """Encode the records of neighbours into one chunk, encrypted with `seal`; raises UsageError, BufferFull."""
    for chunk in old:
        check_convertible(chunk.index, settings)
    writer = BlockWriter(buffer, seal)
    if settings.record_format == TEXT:
        for chunk in old:  # as blocks: only their index has timestamps
            _compress_again(chunk.index, settings.compressor, data_of, writer, max_block_bytes)
    else:
        _encode_again(old, settings, data_of, writer, max_block_bytes)
    return new_chunk(old, writer, settings=settings)


def check_convertible(index: objects.ChunkIndex, settings: ConvertSettings) -> None:
    """Raise UsageError if the records would lose something."""
    before, after = index.record_format, settings.record_format
    if before != after and TEXT in (before, after):
        raise UsageError(
            f"a chunk of record format {before} cannot be converted to {after}",
            why=f"{TEXT} holds neither keys nor headers nor timestamps",
            remedy=f"leave the record format as it is: --record-format {before}",
        )


def is_as_asked(index: objects.ChunkIndex, settings: ConvertSettings) -> bool:
    """Return whether a chunk has this encoding already, as far as its index shows: it does not show the level."""
    if (index.record_format, index.codec) != (settings.record_format, settings.codec):
        return False
    if index.record_format == TEXT:
        return True
    sizes = [block.byte_length_uncompressed for block in index.blocks]
    too_large = any(b.num_records > 1 and b.byte_length_uncompressed > settings.block_bytes for b in index.blocks)
    # Its blocks may be smaller than asked for, but not twice as many as are needed.
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
        for member, entry in whole_data(data_of(chunk.index), chunk.index):
            for batch in decode_parts(member, entry, chunk.index, max_block_bytes):
                for raw in builder.add(batch):
                    writer.encode(raw, compressor)
    last = builder.finish()
    if last is not None:
        writer.encode(last, compressor)


def _compress_again(
    index: objects.ChunkIndex, compressor: Compressor, data_of: DataOf, writer: BlockWriter, max_block_bytes: int
) -> None:
    """Compress the blocks of a chunk again, without decoding them."""
    for member, entry in whole_data(data_of(index), index):
        raw = RawBlock(
            inflate_block(member, entry, index, max_block_bytes),
            entry.num_records,
            entry.first_record_offset,
            entry.last_record_offset,
            entry.min_timestamp,
            entry.max_timestamp,
            entry.key_filter,
        )
        writer.encode(raw, compressor)


LEVEL_OF_CUT_BLOCKS = 2


def compressor_of_rest(index: objects.ChunkIndex) -> Compressor:
    """Return the compressor for blocks of which a part is left out."""
    return COMPRESSORS["zstd" if index.codec == "zstd" else "isal"](LEVEL_OF_CUT_BLOCKS)


def without(
    old: OldChunk,
    drop: OffsetRanges,
    data_of: DataOf,
    buffer: BufferFile,
    max_block_bytes: int,
    seal: ChunkSeal | None = None,
) -> NewChunk | EmptiedRun:
    """Write a chunk without the records at these offsets, encrypted with `seal`; raises a FormatError, BufferFull."""
    index = old.index
    writer = BlockWriter(buffer, seal)
    compressor = compressor_of_rest(index)
    erased = list(erased_of([old]))
    for block in whole_data(data_of(index), index):
        erased += _without_block(block, index, drop, writer, compressor, max_block_bytes)
    if not writer.blocks:
        return EmptiedRun(old.entry.start_offset, old.entry.next_offset)
    return new_chunk([old], writer, erased=OffsetRanges(erased))


def _without_block(
    block: Block,
    index: objects.ChunkIndex,
    drop: OffsetRanges,
    writer: BlockWriter,
    compressor: Compressor,
    max_block_bytes: int,
) -> OffsetRanges:
    """Write the rest of a block, and return the offsets of the records that were left out."""
    member, entry = block
    if not drop.meets(entry.first_record_offset, entry.last_record_offset + 1):
        writer.copy(member, entry)
        return OffsetRanges()
    batch = decode_block(member, entry, index, max_block_bytes)
    offsets = batch.column("offset").to_numpy()
    mask = drop.mask(offsets)
    if not mask.any():
        writer.copy(member, entry)
        return OffsetRanges()
    encode_rest(batch.filter(pa.array(~mask)), entry, index, writer, compressor, bits_of(entry.key_filter))
    return OffsetRanges.of_offsets(offsets[mask])


def encode_rest(
    batch: pa.RecordBatch,
    whole: objects.BlockEntry,
    index: objects.ChunkIndex,
    writer: BlockWriter,
    compressor: Compressor,
    key_filter_bits: int | None = None,
) -> None:
    """Encode the rest of a block as one block; in record format `text`, as one for each run without a hole."""
    builder = BlockBuilder(
        record_format(index.record_format),
        TIMESTAMP_TYPE_IDS[index.timestamp_type],
        whole.byte_length_uncompressed + 1,
        key_filter_bits,
    )
    bounds = whole if index.record_format == TEXT else None
    for raw in [*builder.add(batch), builder.finish()]:
        if raw is not None:
            writer.encode(raw, compressor, bounds)


@dataclass(frozen=True)
class RewriteTools:
    """The means of rewriting chunks."""

    driver: Driver
    ranges: RangeStore
    """Reads old data, perhaps at a limited rate."""
    buffers: BufferFolder
    """The folder for new data."""
    buffer_bytes: int
    """Bytes of old chunks that are stored again at once, unless a single new chunk has more."""
    max_block_bytes: int = objects.DEFAULT_MAX_BLOCK_BYTES


class ChunkRewrite(ABC):
    """One rewrite of chunks, whose new data is in files of the buffer until it ends."""

    kind: str
    """The kind of rewrite, for the marker."""
    is_repacked = False
    """True if the chunks move to as few catalogs as possible."""

    def __init__(
        self, tools: RewriteTools, keys: PartitionKeys, rewrite_keys: RewriteKeys, drop: OffsetRanges = NO_OFFSETS
    ) -> None:
        """`drop` are the offsets of the records that are left out."""
        self.keys, self.rewrite_keys, self.drop, self._tools = keys, rewrite_keys, drop, tools
        self.max_block_bytes = tools.max_block_bytes
        self.data_of = data_in(tools.ranges, keys, rewrite_keys.keyring)
        self._files: list[BufferFile] = []
        self._used = 0

    @abstractmethod
    def steps(self, what: Rewrite) -> Protocol[RewriteOutcome]:
        """Choose what to rewrite, and do `what` with it."""

    @abstractmethod
    def contents(self, old: Sequence[OldChunk]) -> Iterator[Item]:
        """Yield what replaces the chunks; chunks for which the buffer has no room stay."""

    def read(self, keys: PartitionKeys, entries: Sequence[ChunkEntry]) -> Protocol[list[OldChunk]]:
        """Return the chunks of these entries; raises ObjectMissing or a FormatError."""
        return chunks_of(keys, entries)

    def run(self) -> RewriteOutcome:
        """Do it; raises what `rewrite` raises."""
        what = Rewrite(self.kind, self.contents, self.check, is_repacked=self.is_repacked, read=self.read)
        try:
            return self._tools.driver.run(self.steps(what))
        finally:
            self.discard()

    def discard(self) -> None:
        while self._files:
            self._files.pop().discard()

    def new_file(self, num_bytes: int) -> BufferFile | None:
        """Return a file for old chunks of this size; None if the budget is spent, unless it is the first file."""
        # New data takes about as many bytes as the old.
        if self._files and self._used + num_bytes > self._tools.buffer_bytes:
            return None
        self._used += num_bytes
        self._files.append(self._tools.buffers.new_file())
        return self._files[-1]

    def check(self, old: Sequence[OldChunk], new: ChangedItem) -> None:
        """Raise ContentsDiffer unless every record is in its place, but for those that are left out."""
        assert not isinstance(new, RewrappedChunk)
        data = self.rewrite_keys.data_of(new, old[0])
        check_contents(old, new, self.data_of, data, self.max_block_bytes, self.drop)


def check_contents(
    old: Sequence[OldChunk],
    new: NewChunk | EmptiedRun,
    data_of: DataOf,
    data: ChunkData | None,
    max_block_bytes: int,
    drop: OffsetRanges = NO_OFFSETS,
    renewed: OffsetRanges = NO_OFFSETS,
) -> None:
    """Raise ContentsDiffer unless `new` holds the records of `old`, and only those at the offsets `drop` are missing.

    `data` is the data of `new`, None for an EmptiedRun. Old blocks that begin at the offsets `renewed` are not read,
    and what is new there is not compared: records, and gaps with reason `lost`. Raises a FormatError for a block that
    differs from its entry.
    """
    if (new.start_offset, new.next_offset) != (old[0].entry.start_offset, old[-1].entry.next_offset):
        raise _differ(old, f"it spans offsets [{new.start_offset}..{new.next_offset})")
    dropped = list[range]()

    def leave_out(batch: pa.RecordBatch) -> pa.RecordBatch:
        offsets = batch.column("offset").to_numpy()
        mask = drop.mask(offsets)
        if not mask.any():
            return batch
        dropped.extend(OffsetRanges.of_offsets(offsets[mask]))
        return batch.filter(pa.array(~mask))

    left = (
        leave_out(batch)
        for chunk in old
        for numbers in [blocks_outside(chunk, renewed)]
        for member, entry in (opened_blocks(data_of(chunk.index), chunk.index.blocks, numbers) if numbers else ())
        for batch in decode_parts(member, entry, chunk.index, max_block_bytes)
    )
    right: Iterator[pa.RecordBatch] = iter(())
    if isinstance(new, NewChunk) and data is not None:
        if not new.index.encryption and any(chunk.index.encryption for chunk in old):
            raise _differ(old, "its blocks are not encrypted")
        right = (_outside(batch, renewed) for batch in _new_records(old, new, data, max_block_bytes))
    offset = _first_difference(left, right)
    if offset is not None:
        raise _differ(old, f"the record at offset {offset} is another one, or only one of them holds it")
    if isinstance(new, NewChunk):
        accepted = [gap for gap in new.index.gaps if gap.reason == objects.LOST and renewed.meets(gap.start, gap.end)]
        if tuple(gap for gap in new.index.gaps if gap not in accepted) != gaps_of(old):
            raise _differ(old, "it lists other gaps")
        if erased_in(new.index) != (erased_of(old) | OffsetRanges(dropped)).erased():
            raise _differ(old, "it lists other offsets as erased")


def blocks_outside(chunk: OldChunk, offsets: OffsetRanges) -> list[int]:
    """Return the numbers of the blocks of a chunk that do not begin at one of these offsets."""
    starts = [(number, chunk.index.blocks[number].first_record_offset) for number in chunk.block_numbers]
    return [number for number, start in starts if not offsets.meets(start, start + 1)]


def _outside(batch: pa.RecordBatch, offsets: OffsetRanges) -> pa.RecordBatch:
    return batch.filter(pa.array(~offsets.mask(batch.column("offset").to_numpy()))) if len(offsets) else batch


def _new_records(
    old: Sequence[OldChunk], new: NewChunk, data: ChunkData, max_block_bytes: int
) -> Iterator[pa.RecordBatch]:
    """Yield the records of the new chunk; compare what the entry of each block says with the block."""
    index = new.index
    for member, entry in opened_blocks(data, index.blocks):
        parts = decode_parts(member, entry, index, max_block_bytes)
        if _timestamps(old, index, entry, parts) != (entry.min_timestamp, entry.max_timestamp):
            raise _differ(old, f"the block at offset {entry.first_record_offset} has other timestamps than its entry")
        if isinstance(entry.key_filter, bytes):
            key_filter = entry.key_filter
            if not all(holds_all(key_filter, column_hashes(part.column("key"))) for part in parts):
                raise _differ(old, f"the filter of the block at offset {entry.first_record_offset} misses a key")
        yield from parts
    size, _ = size_and_hash(new.body)
    if index.data.bytes != size:
        raise _differ(old, f"its blocks end at byte {index.data.bytes}, its data at {size}")


def _timestamps(
    old: Sequence[OldChunk], new: objects.ChunkIndex, entry: objects.BlockEntry, parts: Sequence[pa.RecordBatch]
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
