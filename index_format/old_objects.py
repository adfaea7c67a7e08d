"""The objects of an old archive: their names, indexes, and the formats of records.

Names are `{date}/{topic}-{partition}-{first offset}.gz`, `.index.json` next to it, and the marker.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import msgspec

from index_format import objects
from index_format.errors import CorruptBlock, MalformedObject, TooLarge
from index_format.keys import INDEX_SUFFIX, SEED_HOME, TopicPartition, archive_key
from index_format.objects import ANCESTOR_FIELDS, Count, Offset

DATA_SUFFIX = ".gz"
_TOPIC = r"[a-zA-Z0-9._-]{1,249}"
# Numbers have at least the ancestor's digits, its forks' have more. A date is in the writer's zone,
# and may carry the suffix of a name that was taken (profile seed).
_OBJECT = re.compile(
    r"(?P<folder>[0-9]{4}-[0-9]{2}-[0-9]{2}(?:~e[0-9]{1,19}-[0-9a-f]{8})?)/"
    rf"(?P<topic>{_TOPIC})-(?P<partition>[0-9]{{5,10}})-(?P<offset>[0-9]{{12,20}})(?P<suffix>\.gz|\.index\.json)"
)
_MARKER = re.compile(rf"last_chunk_index\.(?P<topic>{_TOPIC})-(?P<partition>[0-9]{{5,10}})\.txt")
_MARKER_BODY = re.compile(rb"(?:.*-)?([0-9]{1,20})(?:\.index\.json|\.gz)?", re.DOTALL)
MAX_OFFSET = 2**63 - 1


class FoundData(NamedTuple):
    """A data object and the indexes that may belong to it, the one with the same name first."""

    key: str
    first_offset: int
    index_keys: tuple[str, ...]

    @property
    def own_index_key(self) -> str:
        return self.key.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX


@dataclass
class FoundPartition:
    """One partition, as a listing shows it."""

    data: list[FoundData] = field(default_factory=list)
    marker_key: str | None = None
    indexes_without_data: list[str] = field(default_factory=list)


def marker_offset(body: bytes) -> int | None:
    """Return the first offset of the chunk that a marker names, by its key or as a plain number; None without one."""
    match = _MARKER_BODY.fullmatch(body.strip())
    return int(match[1]) if match and int(match[1]) <= MAX_OFFSET else None


def has_current_objects(keys: Iterable[str]) -> bool:
    """Return whether a listing is that of a current archive of either layout."""
    identities = {archive_key("topic"), archive_key("seed")}
    return any(key in identities or key.startswith((SEED_HOME, "topic=", "t~")) for key in keys)


def group_by_partition(keys: Iterable[str]) -> dict[TopicPartition, FoundPartition]:
    """Return the partitions in a listing of an old archive, in order; other names are ignored."""
    found: dict[TopicPartition, FoundPartition] = {}
    data: dict[tuple[TopicPartition, int], list[str]] = {}
    indexes: dict[tuple[TopicPartition, int], list[str]] = {}
    for key in keys:
        if match := _OBJECT.fullmatch(key):
            place, offset = TopicPartition(match["topic"], int(match["partition"])), int(match["offset"])
            if place.topic not in (".", "..") and offset <= MAX_OFFSET:
                kind = data if match["suffix"] == DATA_SUFFIX else indexes
                kind.setdefault((place, offset), []).append(key)
                found.setdefault(place, FoundPartition())
        elif match := _MARKER.fullmatch(key):
            place = TopicPartition(match["topic"], int(match["partition"]))
            if place.topic not in (".", ".."):
                found.setdefault(place, FoundPartition()).marker_key = key
    for (place, offset), names in sorted(data.items()):
        # They belong together by topic, partition and offset, even if midnight put them into two folders.
        candidates = sorted(indexes.pop((place, offset), []))
        beside = {name.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX for name in names}
        strays = tuple(key for key in candidates if key not in beside)
        for name in sorted(names):
            own = name.removesuffix(DATA_SUFFIX) + INDEX_SUFFIX
            found[place].data.append(FoundData(name, offset, (own,) if own in candidates else strays))
    for (place, _), names in sorted(indexes.items()):
        found[place].indexes_without_data += sorted(names)
    return dict(sorted(found.items()))


class OldBlock(NamedTuple):
    """One block as its index says; it may hold no record. Its offsets are [first_offset, next_offset), counted."""

    byte_offset: int
    byte_length: int
    first_offset: int
    num_records: int
    raw_bytes: int | None = None
    """Inflated bytes; None in what was read, because writers left it out or counted characters."""

    @property
    def byte_end(self) -> int:
        return self.byte_offset + self.byte_length

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.num_records


class _Entry(msgspec.Struct):
    num_records: Count
    byte_length: Count
    byte_offset: Offset
    first_record_offset: Offset


class _Index(msgspec.Struct):
    chunks: list[_Entry]


_decoder = msgspec.json.Decoder(_Index, strict=False)


def decode_old_index(body: bytes, name: str, first_offset: int) -> tuple[OldBlock, ...]:
    """Return the blocks that an index lists for an object's first offset; raises TooLarge or MalformedObject."""
    if len(body) > objects.MAX_OBJECT_BYTES:
        raise TooLarge(f"{name} has {len(body)} bytes", why=f"an index has at most {objects.MAX_OBJECT_BYTES} bytes")
    try:
        entries = _decoder.decode(body).chunks
    except (ValueError, RecursionError) as error:
        raise MalformedObject(f"{name} is not an index", why=str(error)[:300]) from error
    blocks = tuple(
        OldBlock(entry.byte_offset, entry.byte_length, entry.first_record_offset, entry.num_records)
        for entry in entries
    )
    # Blocks without records stay, and so does a byte_offset above 0 of the first one.
    if blocks and blocks[0].first_offset != first_offset:
        raise MalformedObject(
            f"{name} is another chunk's index", why=f"its first offset is {blocks[0].first_offset}, not {first_offset}"
        )
    if any(a.byte_end != b.byte_offset for a, b in pairwise(blocks)) or any(not b.byte_length for b in blocks):
        raise MalformedObject(f"{name} is damaged", why="its blocks are not contiguous")
    if any(a.next_offset > b.first_offset for a, b in pairwise(blocks)):
        raise MalformedObject(f"{name} is damaged", why="its blocks' offsets do not rise")
    if blocks and max(blocks[-1].next_offset, blocks[-1].byte_end) > MAX_OFFSET:
        raise MalformedObject(f"{name} is damaged", why="its numbers are out of range")
    return blocks


def encode_old_index(blocks: Sequence[OldBlock]) -> bytes:
    """Return the index as the ancestor wrote it; for blocks whose `raw_bytes` are known."""
    rows = [(b.raw_bytes, b.num_records, b.byte_length, b.byte_offset, b.first_offset) for b in blocks]
    return msgspec.json.encode({"chunks": [dict(zip(ANCESTOR_FIELDS, row, strict=True)) for row in rows]})


OLD_FORMATS = ("lines", "delimited", "binary", "binary-keys")
_ESCAPE = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|([t\\]))")
# In one block: a few bytes of gzip make hundreds of millions of empty lines.
MAX_RECORDS = 8 * 1024 * 1024
_LENGTH = struct.Struct(">i")

Field = bytes | None


# The keys and the values of one block, in order.
KeysAndValues = tuple[Sequence[Field], Sequence[Field]]


@dataclass(frozen=True)
class OldFormat:
    """One of OLD_FORMATS: `lines` are values, `delimited` are lines of key, delimiter and value.

    `binary` is a 4-byte big-endian length and the value, over and over; `binary-keys` the same with the key first.
    """

    name: str = "lines"
    delimiter: bytes = b"\t"

    def __post_init__(self) -> None:
        if self.name not in OLD_FORMATS:
            raise ValueError(f"{self.name!r} is not one of {', '.join(OLD_FORMATS)}")
        if not self.delimiter or b"\n" in self.delimiter:
            raise ValueError("a key delimiter has at least one byte and no newline")

    @classmethod
    def of_options(cls, name: str, delimiter: str) -> "OldFormat":
        """Return the format that options name, with escapes in the delimiter resolved; raises ValueError."""

        def byte(escape: re.Match[bytes]) -> bytes:
            return bytes.fromhex(escape[1].decode()) if escape[1] else {b"t": b"\t"}.get(escape[2], escape[2])

        return cls(name, _ESCAPE.sub(byte, delimiter.encode()))

    def count(self, raw: bytes) -> int:
        """Return the number of records in a block without decoding them; raises CorruptBlock."""
        if self._is_of_lines:
            return raw.count(b"\n") + (bool(raw) and not raw.endswith(b"\n"))
        fields = sum(1 for _ in _binary_fields(raw))
        if self.name == "binary":
            return fields
        if fields % 2:
            raise CorruptBlock("a block ends after a key", why="each key is followed by a value in this format")
        return fields // 2

    def parse(self, raw: bytes, num_records: int) -> KeysAndValues:
        """Return the records of a block of known number; raises CorruptBlock if ambiguous, TooLarge if too many."""
        if num_records == 1 and self._is_of_lines and raw:
            return self._of_lines([raw.removesuffix(b"\n")])
        if (count := self.count(raw)) != num_records:
            raise CorruptBlock(
                "a block does not hold the records that its index says",
                why=f"the index says {num_records} records, found {count}: their offsets are unknown",
            )
        if count > MAX_RECORDS:
            raise TooLarge(f"a block claims to hold {count} records", why=f"a reader accepts at most {MAX_RECORDS}")
        if self._is_of_lines:
            return self._of_lines(raw.removesuffix(b"\n").split(b"\n") if raw else [])
        fields = list(_binary_fields(raw))
        return ([None] * count, fields) if self.name == "binary" else (fields[::2], fields[1::2])

    def doubt(self, lines: int, delimited: int) -> str | None:
        """Return why this may be the wrong format, by the number of lines and of those with the delimiter, or None."""
        delimiter = self.delimiter.decode(errors="backslashreplace")
        if self.name == "lines" and 0 < lines == delimited:
            return f"every line holds {delimiter!r}: if it separates key and value, read with --old-format delimited"
        if self.name == "delimited" and lines and not delimited:
            return f"no line holds {delimiter!r}: without keys, use --old-format lines; otherwise check --key-delimiter"
        return None

    @property
    def _is_of_lines(self) -> bool:
        return self.name in ("lines", "delimited")

    def _of_lines(self, lines: Sequence[bytes]) -> KeysAndValues:
        if self.name == "lines":
            return [None] * len(lines), lines
        parted = [line.partition(self.delimiter) for line in lines]
        keys: list[Field] = [key if found else None for key, found, _ in parted]
        return keys, [value if found else key for key, found, value in parted]


ANCESTORS_FORMAT = OldFormat()


def _binary_fields(raw: bytes) -> Iterator[Field]:
    """Length-prefixed fields; an empty one was null, and some forks wrote -1 for it. Raises CorruptBlock."""
    position = 0
    while position < len(raw):
        end = position + _LENGTH.size
        (length,) = _LENGTH.unpack_from(raw, position) if end <= len(raw) else (-2,)
        position, end = end, end + max(0, length)
        if length < -1 or end > len(raw):
            raise CorruptBlock(
                "a block does not consist of length-prefixed fields",
                why=f"the length at byte {position - 4} leads nowhere",
            )
        yield raw[position:end] if length > 0 else None
        position = end
