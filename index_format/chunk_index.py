"""The chunk index: where each block of a chunk begins and which records it holds (FORMAT.md, "Chunk index")."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import msgspec

from index_format import objects
from index_format.objects import Count, Name, Offset, Sha256, Timestamp, Word

# To what a reader lets a block inflate by default: a record of Kafka's largest usual size many times over.
DEFAULT_MAX_BLOCK_BYTES = 256 * 1024 * 1024

# The reason of a gap in which there may have been records or not (FORMAT.md).
UNVERIFIED = "unverified"

# The most bits that a key filter has for each key, and the most bits to look at for one key.
MAX_KEY_FILTER_BITS = 32


# Takes the place of the CRC-32 in the entry of a decrypted block, whose bytes are proved; no index holds it.
AUTHENTICATED = -1

# One member or frame as stored; a part of what was read serves without a copy.
Stored = bytes | memoryview

# The reason of a gap in which the log held nothing to archive: holes, which no chunk's entry spans.
EMPTY = "empty"

# The reason of a gap whose records were all erased.
ERASED = "erased"


class Gap(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """A run of offsets [start, end) that the archive lost or never saw; the reason is an open enumeration."""

    start: Offset
    end: Offset
    reason: Word
    at: Timestamp | msgspec.UnsetType = msgspec.UNSET
    """When it was recorded; not known in archives that nobody rewrites."""

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError(f"a gap from {self.start} to {self.end} is empty")

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end


class Erased(msgspec.Struct, frozen=True, rename={"start": "from", "end": "to"}):
    """Offsets [start, end) whose records were erased."""

    start: Offset
    end: Offset

    def __post_init__(self) -> None:
        if self.end <= self.start:
            raise ValueError(f"an erased range from {self.start} to {self.end} is empty")

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.end


def check_gaps(gaps: Sequence[Gap], end: int | None) -> None:
    """Raise ValueError unless the gaps are in order, apart from each other, and below `end`."""
    if any(before.end > after.start for before, after in pairwise(gaps)):
        raise ValueError("the gaps are not in order")
    if gaps and (end is None or gaps[-1].end > end):
        raise ValueError(f"the last gap ends at {gaps[-1].end}, above next_offset")


class BlockEntry(msgspec.Struct, frozen=True):
    """One block; the first five fields are the ancestor's, in its order. Lengths and positions in bytes."""

    byte_length_uncompressed: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    num_records: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    byte_length: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    byte_offset: Offset
    first_record_offset: Offset
    last_record_offset: Offset
    min_timestamp: Timestamp
    max_timestamp: Timestamp
    crc32: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
    key_filter: bytes | msgspec.UnsetType = msgspec.UNSET
    """A filter of the keys in the block; any key without it."""

    def __post_init__(self) -> None:
        if self.key_filter is not msgspec.UNSET:
            _check_key_filter(self.key_filter)
        if not 1 <= self.num_records <= self.last_record_offset - self.first_record_offset + 1:
            raise ValueError(
                f"{self.num_records} records do not fit in {self.first_record_offset}..{self.last_record_offset}"
            )
        if self.max_timestamp < self.min_timestamp:
            raise ValueError("a block's max_timestamp is below its min_timestamp")

    @property
    def byte_end(self) -> int:
        return self.byte_offset + self.byte_length


def _check_key_filter(stored: bytes) -> None:
    if not stored or not 1 <= stored[0] <= MAX_KEY_FILTER_BITS:
        raise ValueError(f"a key filter does not begin with a number from 1 to {MAX_KEY_FILTER_BITS}")


def block_crc32(raw: Stored) -> int:
    """Return the CRC-32 in an index entry: of a block's uncompressed bytes, or of an encrypted block as stored."""
    # Here, because commands that read no block import this module, too.
    from isal import isal_zlib  # noqa: PLC0415

    return int(isal_zlib.crc32(raw))


class WrappedKey(msgspec.Struct, frozen=True):
    """A key as it is stored: encrypted with another one, which is not in the archive."""

    id: Name
    """The id of that other key."""
    wrapped: bytes
    session: bytes | msgspec.UnsetType = msgspec.UNSET
    """The key service's form of the key that wraps `wrapped`, if a key service has the key of that id."""


class Encryption(msgspec.Struct, frozen=True):
    """How the blocks of a chunk are encrypted; the cipher is an open enumeration."""

    cipher: Word
    key: WrappedKey


class DataObject(msgspec.Struct, frozen=True):
    """The chunk's data as stored; `name` is relative like an entry's."""

    name: Name
    bytes: Count
    sha256: Sha256


@objects.stored
class ChunkIndex(msgspec.Struct, frozen=True, kw_only=True, rename={"blocks": "chunks"}):
    """One chunk of a topic-partition, in Kafka's offsets; of version 2, which former releases refuse, if encrypted."""

    VERSIONS: ClassVar = (objects.VERSION, 2)

    format: str = "block-gzip"
    version: int = objects.VERSION
    archive_id: Name
    topic: Name
    topic_id: str | None
    partition: Count
    epoch: Count
    record_format: Word
    codec: Word
    isolation_level: Word
    timestamp_type: Word
    start_offset: Offset
    next_offset: Offset
    first_offset: Offset
    last_offset: Offset
    num_records: Count
    min_timestamp: Timestamp
    max_timestamp: Timestamp
    data: DataObject
    previous: Name | None
    gaps: tuple[Gap, ...] = ()
    """The gaps recorded since the chunk before: right before this chunk, or inside it."""
    erased: tuple[Erased, ...] | msgspec.UnsetType = msgspec.UNSET
    """The ranges erased inside this chunk, in order; omitted if nothing was erased."""
    encryption: Encryption | msgspec.UnsetType = msgspec.UNSET
    """Left out where the chunk is not encrypted."""
    blocks: Annotated[tuple[BlockEntry, ...], msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        blocks = self.blocks
        if self.version != (2 if self.encryption else objects.VERSION):
            raise ValueError("an index is of version 2 if it has the field encryption, and only there")
        if blocks[0].byte_offset != 0 or any(a.byte_end != b.byte_offset for a, b in pairwise(blocks)):
            raise ValueError("the blocks are not contiguous from byte 0")
        if blocks[-1].byte_end != self.data.bytes:
            raise ValueError(f"the blocks end at byte {blocks[-1].byte_end}, the data at {self.data.bytes}")
        if any(a.last_record_offset >= b.first_record_offset for a, b in pairwise(blocks)):
            raise ValueError("the blocks' offsets do not rise")
        if (self.first_offset, self.last_offset) != (blocks[0].first_record_offset, blocks[-1].last_record_offset):
            raise ValueError("first_offset and last_offset are not those of the blocks")
        if not self.start_offset <= self.first_offset <= self.last_offset < self.next_offset:
            raise ValueError(f"offsets lie outside [{self.start_offset}, {self.next_offset})")
        if self.num_records != sum(block.num_records for block in blocks):
            raise ValueError("num_records is not the sum of the blocks'")
        if self.min_timestamp != min(block.min_timestamp for block in blocks) or self.max_timestamp != max(
            block.max_timestamp for block in blocks
        ):
            raise ValueError("min_timestamp and max_timestamp are not those of the blocks")
        check_gaps(self.gaps, self.next_offset)
        erased = self.erased or ()
        if any(before.end >= after.start for before, after in pairwise(erased)):
            raise ValueError("the erased ranges are not in order")
        if erased and not self.start_offset <= erased[0].start < erased[-1].end <= self.next_offset:
            raise ValueError(f"erased ranges lie outside [{self.start_offset}, {self.next_offset})")

    @property
    def raw_bytes(self) -> int:
        return sum(block.byte_length_uncompressed for block in self.blocks)


def fields_of_blocks(blocks: Sequence[BlockEntry]) -> dict[str, Any]:
    """Return the fields of an index that its blocks give, and the blocks."""
    return {
        "first_offset": blocks[0].first_record_offset,
        "last_offset": blocks[-1].last_record_offset,
        "num_records": sum(block.num_records for block in blocks),
        "min_timestamp": min(block.min_timestamp for block in blocks),
        "max_timestamp": max(block.max_timestamp for block in blocks),
        "blocks": tuple(blocks),
    }


ANCESTOR_FIELDS = ("byte_length_uncompressed", "num_records", "byte_length", "byte_offset", "first_record_offset")


def ancestor_index(blocks: Sequence[BlockEntry]) -> bytes:
    """Return the `.index.json` of layout `seed`: only `chunks` with the ancestor's five fields, in its order."""
    chunks = [{field: getattr(block, field) for field in ANCESTOR_FIELDS} for block in blocks]
    return msgspec.json.encode({"chunks": chunks})
