"""The JSON objects of an archive: bounded before parsing, checked, versions refused by name.

Kinds: the chunk index; identities of the archive and its topics, configurations with ACLs, the inventory. Markers and
tables of groups have modules of their own.
"""

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec.structs import replace

from index_format.errors import MalformedObject, TooLarge, UnsupportedVersion
from index_format.keys import TopicFolder, check_topic

VERSION = 1
# No JSON object larger than this is parsed. 64 MiB hold the index of 300,000 blocks.
MAX_OBJECT_BYTES = 64 * 1024 * 1024

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Timestamp = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
# Printed in errors and made into keys, so it holds no control characters.
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024, pattern=r"^[^\x00-\x1f\x7f-\x9f]+\Z")]
# A value of an open enumeration; the suffix of a data name is made of two of them.
Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]

T = TypeVar("T", bound=msgspec.Struct)


class FormatHead(msgspec.Struct):
    """The two fields that every object of the format opens with, and the one that may close it."""

    format: str
    version: Count
    crc32: Count | None = None


class Sealed(msgspec.Struct, frozen=True):
    """Objects that no other one vouches for by its hash: as stored they end with a checksum of their own."""


_encoder = msgspec.json.Encoder()
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {FormatHead: msgspec.json.Decoder(FormatHead)}


def stored(kind: type[T]) -> type[T]:
    """Register a kind of object, and make its decoder where the kind is defined."""
    # msgspec describes a type on first use and without a lock: two threads that decode at once crash the process.
    _decoders[kind] = msgspec.json.Decoder(kind)
    return kind


_SEAL = re.compile(rb',"crc32":([0-9]{1,10})}\Z')
_SEAL_RENAMED = re.compile(rb',"(.*)":[0-9]{1,10}}', re.DOTALL)
_SEAL_BYTES = 32


def encode(value: msgspec.Struct) -> bytes:
    """Return the object as compact JSON in its fields' order; raises TooLarge if `decode` would refuse it."""
    body = _encoder.encode(value)
    if isinstance(value, Sealed):
        body = b'%b,"crc32":%d}' % (body[:-1], zlib.crc32(body[:-1]))
    if len(body) > MAX_OBJECT_BYTES:
        raise TooLarge(
            f"a {type(value).__name__} of {len(body)} bytes cannot be stored",
            why=f"readers refuse objects of more than {MAX_OBJECT_BYTES} bytes",
        )
    return body


def decode(body: bytes, kind: type[T], name: str) -> T:
    """Return an object, which errors call `name`; raises TooLarge, UnsupportedVersion or MalformedObject."""
    if len(body) > MAX_OBJECT_BYTES:
        raise TooLarge(f"{name} has {len(body)} bytes", why=f"such objects have at most {MAX_OBJECT_BYTES} bytes")
    expected = kind.__struct_defaults__[0]
    try:
        head: FormatHead = _decoders[FormatHead].decode(body)
        if head.format != expected:
            raise MalformedObject(f"{name} is not a {expected} object", why=f"its format says {head.format[:80]!r}")
        versions: Sequence[int] = getattr(kind, "VERSIONS", (VERSION,))
        # The version is checked before the fields: a newer one may have changed them.
        if head.version not in versions:
            raise UnsupportedVersion(
                f"{name} has version {head.version}",
                why=f"this release reads version {' and '.join(map(str, versions))}",
                remedy="use a newer release of blockgz",
            )
        if head.crc32 is not None:
            _check_seal(body, name)
        elif issubclass(kind, Sealed):
            _check_unsealed(body, kind, name)
        value: T = _decoders[kind].decode(body)
    except (ValueError, RecursionError) as error:
        if isinstance(error, MalformedObject | UnsupportedVersion):
            raise
        raise MalformedObject(f"{name} is damaged", why=str(error)[:300]) from error
    return value


def _check_seal(body: bytes, name: str) -> None:
    seal = _SEAL.search(body, max(0, len(body) - _SEAL_BYTES))
    if seal is None or int(seal[1]) != zlib.crc32(body[: seal.start()]):
        raise MalformedObject(
            f"{name} is damaged",
            why="its crc32 is not that of the bytes before it",
            remedy="if it was edited by hand, remove the field crc32",
        )


def _check_unsealed(body: bytes, kind: type[Sealed], name: str) -> None:
    # Damage in the name of the checksum would make an unknown field of it, which is ignored.
    last = _SEAL_RENAMED.fullmatch(body, max(0, body.rfind(b',"')))
    if last is not None and last[1].decode(errors="replace") not in kind.__struct_encode_fields__:
        raise MalformedObject(
            f"{name} is damaged", why=f"it ends with a number under {last[1]!r} where its crc32 should be"
        )


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

# The reason of a gap whose records were archived, and whose loss an operator accepted.
LOST = "lost"


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


def disjoint(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the same offsets as ranges [start, end) in order and apart: those that overlap or touch are joined."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


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
        if self.key_filter is not msgspec.UNSET and not 1 <= ord(self.key_filter[:1] or b"\0") <= MAX_KEY_FILTER_BITS:
            raise ValueError(f"a key filter does not begin with a number from 1 to {MAX_KEY_FILTER_BITS}")
        if not 1 <= self.num_records <= self.last_record_offset - self.first_record_offset + 1:
            raise ValueError(
                f"{self.num_records} records do not fit in {self.first_record_offset}..{self.last_record_offset}"
            )
        if self.max_timestamp < self.min_timestamp:
            raise ValueError("a block's max_timestamp is below its min_timestamp")

    @property
    def byte_end(self) -> int:
        return self.byte_offset + self.byte_length


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


@stored
class ChunkIndex(msgspec.Struct, frozen=True, kw_only=True, rename={"blocks": "chunks"}):
    """One chunk of a topic-partition, in Kafka's offsets; of version 2, which former releases refuse, if encrypted."""

    VERSIONS: ClassVar = (VERSION, 2)

    format: str = "block-gzip"
    version: int = VERSION
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
        if self.version != (2 if self.encryption else VERSION):
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


LITERAL, PREFIXED = "LITERAL", "PREFIXED"
# A literal name that means all topics.
EVERY_TOPIC = "*"


class Acl(msgspec.Struct, frozen=True, order=True):
    """One ACL on topics, with Kafka's words in capitals: who may do what, or may not, from which host.

    `pattern` says whether `name` is that of a topic (LITERAL; `*` means all topics), or what names begin with
    (PREFIXED). `permission` is ALLOW or DENY.
    """

    pattern: Word
    name: str
    principal: str
    host: str
    operation: Word
    permission: Word


class AclsOfTopics:
    """The ACLs of a cluster, by what they name: a topic's are found without going through all."""

    def __init__(self, acls: Iterable[Acl]) -> None:
        self._by_name: dict[tuple[str, str], list[Acl]] = {}
        for each in acls:
            self._by_name.setdefault((each.pattern, each.name), []).append(each)

    def concerning(self, topic: str) -> tuple[Acl, ...]:
        """Return the ACLs that name the topic, the beginning of its name, or all topics; in order, each once."""
        return tuple(sorted({acl for name in _names(topic) for acl in self._by_name.get(name, ())}))


def _names(topic: str) -> Iterator[tuple[str, str]]:
    yield LITERAL, topic
    yield LITERAL, EVERY_TOPIC
    for length in range(len(topic) + 1):
        yield PREFIXED, topic[:length]


# The group of archives that name none.
FORMER_GROUP = "blockgz-archiver"

# The first digits of a key's SHA-256.
Fingerprint = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


@stored
class ArchiveInfo(Sealed, frozen=True, kw_only=True):
    """`_archive.json`, write-once: one cluster an archive; null if the broker did not tell its id."""

    format: str = "block-gzip-archive"
    version: int = VERSION
    archive_id: Name
    cluster_id: str | None
    layout: Word
    group_id: Name | msgspec.UnsetType | None = msgspec.UNSET
    """The consumer group of its writers; archives of earlier writers do not name it."""
    inventory: bool | msgspec.UnsetType = msgspec.UNSET
    """True if there is an `_inventory.json`, whose absence is a loss; archives of earlier writers do not say so."""

    customer_key: Fingerprint | msgspec.UnsetType = msgspec.UNSET
    """The fingerprint of the key that S3 encrypts all other objects with (SSE-C), if there is one."""

    def group(self, chosen: str | None = None) -> str:
        """Return the consumer group to use: the chosen one, or the archive's own."""
        return chosen or self.group_id or FORMER_GROUP


@stored
class TopicInfo(Sealed, frozen=True, kw_only=True):
    """`_topic.json`, write-once: which topic id lives in this folder; null if the broker did not tell it."""

    format: str = "block-gzip-topic"
    version: int = VERSION
    topic: Name
    topic_id: str | None
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=2**31)]


@stored
class TopicConfig(Sealed, frozen=True, kw_only=True):
    """`_topic_config.json`: a topic as last seen, to make it again; null if the broker did not tell."""

    # A dated copy of each version is in `_configs/`.
    format: str = "block-gzip-topic-config"
    version: int = VERSION
    topic: Name
    topic_id: str | None
    partitions: Count
    replication_factor: Count | None
    config: dict[str, str] | None
    """The settings of the topic itself."""
    defaults: dict[str, str] | None
    """The other settings in effect: the cluster's and Kafka's own defaults."""
    acls: tuple[Acl, ...] | msgspec.UnsetType = msgspec.UNSET
    """The ACLs on the topic, in order; unset if the broker did not report them, and by earlier writers."""
    seen_at: Timestamp | msgspec.UnsetType = msgspec.UNSET
    """When it was first seen like that, in ms; in the copies below `_configs/`."""


PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Incarnation(msgspec.Struct, frozen=True, rename={"seen_from": "from", "seen_until": "until"}):
    """One folder of a topic, and the partitions of it that were ever claimed, in order."""

    topic: Name
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    topic_id: str | None
    """Null if the broker did not tell it."""
    seen_from: Timestamp
    """When a partition was first claimed, in ms."""
    seen_until: Timestamp | None
    """When the cluster said that the topic is gone or has another id, in ms; null if it did not."""
    partitions: tuple[PartitionNumber, ...]
    undone: Timestamp | msgspec.UnsetType = msgspec.UNSET
    """When the topic, a copy, was deleted by undoing the replay or restore that made it, in ms."""

    def __post_init__(self) -> None:
        check_topic(self.topic)
        if any(after <= before for before, after in pairwise(self.partitions)):
            raise ValueError(f"the partitions of {self.topic} are not in order")

    @property
    def folder(self) -> TopicFolder:
        return TopicFolder(self.topic, self.incarnation)

    def united(self, other: "Incarnation") -> "Incarnation":
        """Both: an id over null, the earliest `from`, the latest `until`, all partitions."""
        known = [each for each in (self.seen_until, other.seen_until) if each is not None]
        return replace(
            self,
            topic_id=other.topic_id if self.topic_id is None else self.topic_id,
            seen_from=min(self.seen_from, other.seen_from),
            seen_until=max(known, default=None),
            partitions=tuple(sorted({*self.partitions, *other.partitions})),
            undone=self.undone or other.undone,
        )


@stored
class Inventory(Sealed, frozen=True, kw_only=True):
    """The incarnations of all topics, by name and number."""

    format: str = "block-gzip-inventory"
    version: int = VERSION
    rebuilt_at: Timestamp | None = None
    """When it was made from a listing, in ms: what was lost before that is not in it."""
    incarnations: tuple[Incarnation, ...] = ()

    def __post_init__(self) -> None:
        folders = [each.folder for each in self.incarnations]
        if any(after <= before for before, after in pairwise(folders)):
            raise ValueError("the incarnations are not in order")

    def of(self, folder: TopicFolder) -> Incarnation | None:
        """Return the incarnation in that folder, or None if nothing of it was ever claimed."""
        return next((each for each in self.incarnations if each.folder == folder), None)


def parse_inventory(body: bytes, key: str) -> Inventory:
    """Return the inventory in `body`; `key` is what errors call it. Raises FormatError."""
    return decode(body, Inventory, key)


def united(inventory: Inventory, claims: Iterable[Incarnation]) -> Inventory:
    """Return the inventory with these claims; equal to it if nothing is new."""
    known = {each.folder: each for each in inventory.incarnations}
    for claim in claims:
        before = known.get(claim.folder)
        known[claim.folder] = claim if before is None else before.united(claim)
    return replace(inventory, incarnations=tuple(known[folder] for folder in sorted(known)))


def ended(inventory: Inventory, newest: TopicFolder, topic_id: str | None, at: int) -> Inventory:
    """End the incarnations up to `newest`, of which the cluster reported that they are gone or have another id."""

    def is_over(each: Incarnation) -> bool:
        # An unknown id never differs.
        differs = topic_id is None or each.topic_id not in (None, topic_id)
        return each.topic == newest.topic and each.folder <= newest and each.seen_until is None and differs

    changed = (replace(each, seen_until=at) if is_over(each) else each for each in inventory.incarnations)
    return replace(inventory, incarnations=tuple(changed))


def without(inventory: Inventory, folder: TopicFolder, partitions: Collection[int] | None = None) -> Inventory:
    kept = []
    for each in inventory.incarnations:
        left = () if partitions is None else tuple(sorted({*each.partitions} - {*partitions}))
        if each.folder != folder:
            kept.append(each)
        elif left:
            kept.append(replace(each, partitions=left))
    return replace(inventory, incarnations=tuple(kept))
