"""Blocks that inflate alone, cut from encoded records at a size limit; under codec `gzip` GZIP members (RFC 1952)."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from isal import igzip, isal_zlib

from index_format import zstd_frames
from index_format.errors import CorruptBlock, KeyMissing, TooLarge, UnsupportedVersion
from index_format.key_filter import Hashes, column_hashes, key_filter
from index_format.objects import AUTHENTICATED, BlockEntry, Encryption, Stored, block_crc32
from index_format.record_formats import Piece, RecordFormat, record_format
from index_format.records import TIMESTAMP_TYPE_IDS, small_slices
from index_format.zstd_frames import ZstdCompressor

# Deflate, no flags, MTIME 0, XFL 0, OS 255: what both compressors below write (ISA-L with XFL 4 at level 0).
GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
GZIP_TRAILER_BYTES = 8
GZIP_WINDOW = 31
# Pieces of an open block are merged up to this size: larger ones are worth their footprint, and not copied again.
MERGED_BYTES = 64 * 1024
# Bytes that a decoded record takes in addition to its content, at least: this too bounds a block's records.
RECORD_FOOTPRINT = 32

# A larger block is inflated step by step, and decoded part by part.
LARGE_BLOCK_BYTES = 4 * 1024 * 1024
STEP_BYTES = 128 * 1024
FED_BYTES = 64 * 1024

# Records that finding a single one may decode: for more than their share of a block, all of it is decoded.
DECODED_FOR_ONE = 32

Int64Array = npt.NDArray[np.int64]


class RawBlock(NamedTuple):
    """The encoded records of one block before compression; timestamps in ms, both bounds inclusive."""

    raw: bytes
    num_records: int
    first_offset: int
    last_offset: int
    min_timestamp: int
    max_timestamp: int
    key_filter: bytes | msgspec.UnsetType = msgspec.UNSET

    def entry(self, byte_offset: int, byte_length: int, crc32: int | None = None) -> BlockEntry:
        """Return the block's entry in an index, if these bytes of the data hold it; `crc32` if it is known."""
        return BlockEntry(
            byte_length_uncompressed=len(self.raw),
            num_records=self.num_records,
            byte_length=byte_length,
            byte_offset=byte_offset,
            first_record_offset=self.first_offset,
            last_record_offset=self.last_offset,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            crc32=block_crc32(self.raw) if crc32 is None else crc32,
            key_filter=self.key_filter,
        )


class Compressor(Protocol):
    """Makes one gzip member or zstd frame of a block; releases the GIL, so it may run in threads."""

    def compress(self, raw: bytes) -> bytes:
        """Return one complete member, with MTIME 0, or frame."""


class IsalCompressor:
    """ISA-L: ten times as fast as zlib at a few per cent more bytes. Levels 0 to 3."""

    def __init__(self, level: int) -> None:
        if not 0 <= level <= 3:
            raise ValueError(f"ISA-L has the levels 0 to 3, not {level}")
        self._level = level

    def compress(self, raw: bytes) -> bytes:
        return bytes(igzip.compress(raw, self._level, mtime=0))


class ZlibCompressor:
    """zlib, levels 0 to 9. Level 6 gives the ancestor's bytes."""

    def __init__(self, level: int) -> None:
        if not 0 <= level <= 9:
            raise ValueError(f"zlib has the levels 0 to 9, not {level}")
        self._level = level

    def compress(self, raw: bytes) -> bytes:
        deflater = zlib.compressobj(self._level, zlib.DEFLATED, -zlib.MAX_WBITS, 8, zlib.Z_DEFAULT_STRATEGY)
        trailer = zlib.crc32(raw).to_bytes(4, "little") + (len(raw) & 0xFFFFFFFF).to_bytes(4, "little")
        return GZIP_HEADER + deflater.compress(raw) + deflater.flush() + trailer


COMPRESSORS: dict[str, type[IsalCompressor] | type[ZlibCompressor] | type[ZstdCompressor]] = {
    "isal": IsalCompressor,
    "zlib": ZlibCompressor,
    "zstd": ZstdCompressor,
}


def member_crc32(member: Stored) -> int:
    """Return the CRC-32 of the uncompressed bytes, from the trailer of a complete gzip member."""
    return int.from_bytes(member[-GZIP_TRAILER_BYTES:-4], "little")


def inflate(member: Stored, expected_bytes: int, max_bytes: int) -> bytes:
    """Return the uncompressed bytes of exactly one gzip member, never more than `max_bytes` of them.

    Raises TooLarge before anything is allocated if `expected_bytes` exceeds `max_bytes`, CorruptBlock if the member is
    cut short, followed by other bytes, fails its checksum or is not `expected_bytes` long.
    """
    _refuse_larger(expected_bytes, max_bytes)
    inflater = isal_zlib.decompressobj(GZIP_WINDOW)
    try:
        raw = bytes(inflater.decompress(member, expected_bytes + 1))
    except (isal_zlib.error, zlib.error) as error:  # type: ignore[misc]
        raise CorruptBlock("a block does not decompress", why=str(error)) from error
    if len(raw) != expected_bytes or inflater.unused_data or not inflater.eof:
        raise CorruptBlock(
            "a block is not one complete gzip member of its recorded length",
            why=f"expected {expected_bytes} bytes, found {len(raw)}{'' if inflater.eof else ' and no end'}"
            f"{' and bytes after the end' if inflater.unused_data else ''}",
        )
    return raw


class BlockBuilder:
    """Cuts a stream of batches into blocks of at most `block_bytes` encoded bytes; a record is never split.

    A larger record gets a block of its own. If the record format needs it, a block ends at a hole. Blocks get a filter
    of `key_filter_bits` for each key, if any are given.
    """

    def __init__(
        self, record_format: RecordFormat, timestamp_type: int, block_bytes: int, key_filter_bits: int | None = None
    ) -> None:
        self._format = record_format
        self._timestamp_type = timestamp_type
        self._limit = block_bytes - record_format.framing_bytes
        self._key_filter_bits = key_filter_bits
        self._key_hashes: list[Hashes] = []
        self._pieces: list[Piece] = []
        self._sizes: list[int] = []
        # The open block, whose bytes are the pieces.
        self._open: RawBlock | None = None
        # Encoded bytes waiting in the open block.
        self.open_bytes = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[RawBlock]:
        """Yield the blocks that end within this batch; iterate to the end before the next call."""
        if batch.num_rows == 0:
            return
        encoded, ends = self._format.encode(batch, self._timestamp_type)
        offsets = batch.column("offset").to_numpy()
        timestamps = batch.column("timestamp").to_numpy()
        row = 0
        for stop in self._ends_of_runs(offsets):
            follows = self._open is None or offsets[row] == self._open.last_offset + 1
            # The format stores only the first offset of a block.
            if self._format.needs_contiguous_blocks and not follows:
                yield self._end_block()
            while row < stop:
                start = int(ends[row - 1]) if row else 0
                cut = int(np.searchsorted(ends[:stop], start + self._limit - self.open_bytes, side="right"))
                if cut <= row:
                    if self.open_bytes:
                        yield self._end_block()
                        continue
                    cut = row + 1
                self._hold(self._format.piece(encoded, ends, row, cut), int(ends[cut - 1]) - start)
                if self._key_filter_bits is not None:
                    self._key_hashes.append(column_hashes(batch.column("key").slice(row, cut - row)))
                added = raw_block(b"", offsets[row:cut], timestamps[row:cut])
                self._open = _joined(self._open, added) if self._open else added
                row = cut

    def finish(self) -> RawBlock | None:
        return self._end_block() if self._open else None

    def _ends_of_runs(self, offsets: Int64Array) -> Iterator[int]:
        if self._format.needs_contiguous_blocks:
            yield from (int(hole) + 1 for hole in np.flatnonzero(np.diff(offsets) != 1))
        yield len(offsets)

    def _hold(self, piece: Piece, num_bytes: int) -> None:
        self.open_bytes += num_bytes
        kept = len(self._pieces)
        while kept and self._sizes[kept - 1] <= 2 * num_bytes and self._sizes[kept - 1] + num_bytes <= MERGED_BYTES:
            kept -= 1
            num_bytes += self._sizes[kept]
        if kept < len(self._pieces):
            piece = self._format.merge([*self._pieces[kept:], piece])
        self._pieces[kept:], self._sizes[kept:] = [piece], [num_bytes]

    def _end_block(self) -> RawBlock:
        assert self._open is not None
        bits = self._key_filter_bits
        keys = msgspec.UNSET if bits is None else key_filter(np.concatenate(self._key_hashes), bits)
        block = self._open._replace(raw=self._format.join(self._pieces), key_filter=keys)
        self._pieces, self._sizes, self._open, self.open_bytes = [], [], None, 0
        self._key_hashes = []
        return block


def raw_block(raw: bytes, offsets: Int64Array, timestamps: Int64Array) -> RawBlock:
    """Return the block of encoded records that have these offsets and timestamps."""
    bounds = int(timestamps.min()), int(timestamps.max())
    return RawBlock(raw, len(offsets), int(offsets[0]), int(offsets[-1]), *bounds)


def _joined(first: RawBlock, second: RawBlock) -> RawBlock:
    return RawBlock(
        b"",
        first.num_records + second.num_records,
        first.first_offset,
        second.last_offset,
        min(first.min_timestamp, second.min_timestamp),
        max(first.max_timestamp, second.max_timestamp),
    )


class IndexEncoding(Protocol):
    """How the blocks of a chunk are encoded, such as its index says."""

    @property
    def record_format(self) -> str: ...
    @property
    def codec(self) -> str: ...
    @property
    def timestamp_type(self) -> str: ...
    @property
    def encryption(self) -> Encryption | msgspec.UnsetType: ...


def decode_block(member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> pa.RecordBatch:
    """Return the records of an opened block, checked against its entry; raises FormatError or KeyMissing."""
    parts = decode_parts(member, entry, index, max_bytes)
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)


def decode_parts(member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> list[pa.RecordBatch]:
    """Return the records of a block as batches, small or of one record each; raises as `decode_block`."""
    # Decoded part by part, a large block takes little more memory than its raw and stored bytes.
    if entry.byte_length_uncompressed > LARGE_BLOCK_BYTES:
        return list(_large_parts(member, entry, index, max_bytes))
    encoding, timestamp_type = _how_encoded(entry, index, max_bytes)
    return [_all_records([inflate_block(member, entry, index, max_bytes)], entry, encoding, timestamp_type)]


def _large_parts(member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> Iterator[pa.RecordBatch]:
    encoding, timestamp_type = _how_encoded(entry, index, max_bytes)
    found, last = 0, entry.first_record_offset - 1
    for raw in encoding.parts(_inflated_steps(member, entry, index, max_bytes)):
        before, found = found, found + encoding.count(raw)
        if found > entry.num_records:
            raise _other_records(entry, f"{found} or more")
        batch = encoding.decode(raw, entry.first_record_offset + before, timestamp_type)
        offsets = batch.column("offset").to_numpy()
        if batch.num_rows != found - before or offsets[0] <= last or bool((offsets[1:] <= offsets[:-1]).any()):
            raise _other_records(entry, f"others up to {last}")
        if not before and offsets[0] != entry.first_record_offset:
            raise _other_records(entry, f"{offsets[0]} as the first")
        last = int(offsets[-1])
        del raw
        yield from small_slices(batch)
    if (found, last) != (entry.num_records, entry.last_record_offset):
        raise _other_records(entry, f"{found} up to {last}")


def decode_block_near(
    member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int, offsets: Sequence[int]
) -> pa.RecordBatch:
    """Return the records at some offsets of a block, or their neighbours; raises as `decode_block` does."""
    if entry.byte_length_uncompressed > LARGE_BLOCK_BYTES:
        return _near(_large_parts(member, entry, index, max_bytes), offsets)
    encoding, timestamp_type = _how_encoded(entry, index, max_bytes)
    raw = inflate_block(member, entry, index, max_bytes)
    # Others may be among them, and the number of records is not checked.
    few = len(offsets) * DECODED_FOR_ONE <= entry.num_records
    batch = encoding.decode_near(raw, offsets, timestamp_type) if few else None
    if batch is None:
        held = [raw]
        del raw
        return _all_records(held, entry, encoding, timestamp_type)
    _check_offsets(batch, entry)
    return batch


def _near(parts: Iterable[pa.RecordBatch], offsets: Sequence[int]) -> pa.RecordBatch:
    kept: list[pa.RecordBatch] = []
    newest: pa.RecordBatch | None = None
    reached = -1
    for part in parts:
        present = part.column("offset").to_numpy()
        inside = [offset for offset in offsets if reached < offset <= present[-1]]
        places = np.searchsorted(present, inside)
        holes = places[present[places] != inside] if inside else places
        if newest is not None and bool((holes == 0).any()):
            kept.append(newest)
        rows = sorted({*places.tolist(), *(int(place) - 1 for place in holes if place)})
        newest = None if rows[-1:] == [len(present) - 1] else part.slice(part.num_rows - 1)
        if rows:
            kept.append(part if len(rows) == part.num_rows else part.take(rows))
        reached = int(present[-1])
    return kept[0] if len(kept) == 1 else pa.concat_batches(kept)


def _all_records(raw: list[bytes], entry: BlockEntry, encoding: RecordFormat, timestamp_type: int) -> pa.RecordBatch:
    # Counted before decoding: a few bytes of gzip make hundreds of millions of empty lines.
    if (count := encoding.count(raw[0])) != entry.num_records:
        raise _other_records(entry, str(count))
    # The bytes are taken out of their list, so that they are in memory no longer than they are needed.
    batch = encoding.decode(raw.pop(), entry.first_record_offset, timestamp_type)
    if batch.num_rows != entry.num_records:
        raise _other_records(entry, str(batch.num_rows))
    _check_offsets(batch, entry)
    return batch


def _how_encoded(entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> tuple[RecordFormat, int]:
    if entry.num_records * RECORD_FOOTPRINT > max_bytes:
        raise TooLarge(
            f"a block claims to hold {entry.num_records} records",
            why=f"this reader accepts at most {max_bytes // RECORD_FOOTPRINT}",
            remedy="raise the limit on block sizes if you trust the archive and expect such blocks",
        )
    encoding = record_format(index.record_format)
    try:
        return encoding, TIMESTAMP_TYPE_IDS[index.timestamp_type]
    except KeyError:
        raise UnsupportedVersion(f"timestamp type {index.timestamp_type!r} is unknown") from None


def _check_offsets(batch: pa.RecordBatch, entry: BlockEntry) -> None:
    offsets = batch.column("offset").to_numpy()
    bounds = (int(offsets[0]), int(offsets[-1])) if len(offsets) else None
    if bounds != (entry.first_record_offset, entry.last_record_offset) or bool((offsets[1:] <= offsets[:-1]).any()):
        raise _other_records(entry, f"[{bounds[0]}..{bounds[1] + 1})" if bounds else "none")


def _other_records(entry: BlockEntry, found: str) -> CorruptBlock:
    return CorruptBlock(
        "a block does not hold the records that its index says",
        why=f"the index says {entry.num_records} records at offsets "
        f"[{entry.first_record_offset}..{entry.last_record_offset + 1}); found {found}",
    )


def inflate_block(member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> bytes:
    """Return the uncompressed bytes of one stored block, checked against its entry; raises as `decode_block` does."""
    whole, _ = _codec(member, entry, index, max_bytes)
    return whole(member, entry)


def _inflated_steps(member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> Iterator[bytes]:
    found = crc32 = 0
    _, steps = _codec(member, entry, index, max_bytes)
    for piece in steps(member, entry):
        found += len(piece)
        if found > entry.byte_length_uncompressed:
            raise _other_length(entry, f"{found} or more")
        crc32 = isal_zlib.crc32(piece, crc32)
        yield piece
    if found != entry.byte_length_uncompressed:
        raise _other_length(entry, str(found))
    _check_crc32(crc32, entry)


def count_records(member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> int:
    """Return the number of records in a stored block, without decoding them; raises as `decode_block` does."""
    encoding = record_format(index.record_format)
    if entry.byte_length_uncompressed <= LARGE_BLOCK_BYTES:
        return encoding.count(inflate_block(member, entry, index, max_bytes))
    return sum(map(encoding.count, encoding.parts(_inflated_steps(member, entry, index, max_bytes))))


# How a member or frame of the right length gives the bytes that its entry describes: all, or at most STEP_BYTES each.
# The second compares neither length nor checksum with the entry.
_Codec = tuple[Callable[[Stored, BlockEntry], bytes], Callable[[Stored, BlockEntry], Iterator[bytes]]]


def _codec(member: Stored, entry: BlockEntry, index: IndexEncoding, max_bytes: int) -> _Codec:
    codec = CODECS.get(index.codec)
    if codec is None:
        raise UnsupportedVersion(f"codec {index.codec!r} is unknown", remedy="use a newer release of blockgz")
    if index.encryption and entry.crc32 != AUTHENTICATED:
        raise KeyMissing("a block is encrypted", why="it was not opened with its key")
    if len(member) != entry.byte_length:
        raise CorruptBlock("a block is not the one its index describes", why="its length differs")
    _refuse_larger(entry.byte_length_uncompressed, max_bytes)
    return codec


def _from_gzip(member: Stored, entry: BlockEntry) -> bytes:
    # The trailer tells before anything is inflated; inflating checks the trailer.
    _check_crc32(member_crc32(member), entry)
    return inflate(member, entry.byte_length_uncompressed, entry.byte_length_uncompressed)


def _gzip_steps(member: Stored, entry: BlockEntry) -> Iterator[bytes]:
    _check_crc32(member_crc32(member), entry)
    inflater = isal_zlib.decompressobj(GZIP_WINDOW)
    view, fed = memoryview(member), 0
    try:
        while fed < len(view) and not inflater.eof:
            # Fed a little at a time: an inflater copies what it is given and does not consume.
            piece = inflater.decompress(view[fed : fed + FED_BYTES], STEP_BYTES)
            fed += FED_BYTES
            while piece:
                yield piece
                piece = b"" if inflater.eof else inflater.decompress(inflater.unconsumed_tail, STEP_BYTES)
    except (isal_zlib.error, zlib.error) as error:  # type: ignore[misc]
        raise CorruptBlock("a block does not decompress", why=str(error)) from error
    if not inflater.eof or inflater.unused_data or fed < len(view):
        what = "bytes after its end" if inflater.eof else "no end"
        raise CorruptBlock("a block is not one complete gzip member of its recorded length", why=f"it has {what}")


def _from_zstd(frame: Stored, entry: BlockEntry) -> bytes:
    raw = zstd_frames.decompress(frame, entry.byte_length_uncompressed)
    if entry.crc32 != AUTHENTICATED:
        _check_crc32(block_crc32(raw), entry)
    return raw


def _zstd_steps(frame: Stored, entry: BlockEntry) -> Iterator[bytes]:
    return zstd_frames.steps(frame, entry.byte_length_uncompressed, STEP_BYTES)


CODECS: dict[str, _Codec] = {"gzip": (_from_gzip, _gzip_steps), "zstd": (_from_zstd, _zstd_steps)}


def _other_length(entry: BlockEntry, found: str) -> CorruptBlock:
    expected = entry.byte_length_uncompressed
    return CorruptBlock("a block does not have its recorded length", why=f"expected {expected} bytes, found {found}")


def _check_crc32(crc32: int, entry: BlockEntry) -> None:
    if entry.crc32 not in (crc32, AUTHENTICATED):
        raise CorruptBlock("a block is not the one its index describes", why="its CRC-32 differs")


def _refuse_larger(expected_bytes: int, max_bytes: int) -> None:
    if expected_bytes > max_bytes:
        raise TooLarge(
            f"a block claims to decompress to {expected_bytes} bytes",
            why=f"this reader accepts at most {max_bytes}",
            remedy="raise the limit on block sizes if you trust the archive and expect such records",
        )
