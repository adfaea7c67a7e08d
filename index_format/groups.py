"""Tables of consumer groups: where the groups of a cluster stood on a topic (FORMAT.md, "Consumer groups")."""

import zlib
from itertools import pairwise
from typing import Annotated

import msgspec

from index_format import objects
from index_format.blocks import GZIP_WINDOW, ZlibCompressor
from index_format.errors import MalformedObject
from index_format.inventory import PartitionNumber
from index_format.objects import Name, Offset, Sealed, Timestamp

MAX_METADATA_BYTES = 256
"""Of UTF-8; longer metadata of an offset is stored as null."""
MAX_GROUP_ID_CHARACTERS = 32767

GroupId = Annotated[str, msgspec.Meta(max_length=MAX_GROUP_ID_CHARACTERS)]
"""As Kafka has it: it may be empty or hold control characters."""


class GroupPosition(msgspec.Struct, frozen=True):
    """The offset that a group committed for a partition: the next one that it reads."""

    partition: PartitionNumber
    offset: Offset
    metadata: str | None
    """What the group committed with it; None where that is empty (the same to Kafka), no text, or too long to keep."""

    def __post_init__(self) -> None:
        if self.metadata is not None and len(self.metadata.encode()) > MAX_METADATA_BYTES:
            raise ValueError(f"metadata of more than {MAX_METADATA_BYTES} bytes")


class Group(msgspec.Struct, frozen=True):
    """A consumer group that has a position in the topic."""

    group_id: GroupId
    asked_at: Timestamp
    """When the cluster answered, in ms."""
    positions: tuple[GroupPosition, ...]
    """By partition, each once; at least one."""

    def __post_init__(self) -> None:
        if not self.positions:
            raise ValueError(f"group {self.group_id[:80]!r} has no position")
        if any(after.partition <= before.partition for before, after in pairwise(self.positions)):
            raise ValueError(f"the partitions of group {self.group_id[:80]!r} are not in order")


@objects.stored
class ConsumerGroups(Sealed, frozen=True, kw_only=True):
    """`_groups/{slot}.json`, write-once: all groups that have a position in the topic, by id, each once."""

    format: str = "block-gzip-groups"
    version: int = objects.VERSION
    archive_id: Name
    topic: Name
    topic_id: str | None
    """Null where the broker did not tell it."""
    interval: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    """The grid of slots, in ms."""
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        if any(after.group_id <= before.group_id for before, after in pairwise(self.groups)):
            raise ValueError("the groups are not in order")

    @property
    def asked_until(self) -> int | None:
        """When the last answer came, in ms; None without a group."""
        return max((group.asked_at for group in self.groups), default=None)


def slot_of(at_ms: int, interval: int) -> int:
    """The first point of the grid that is not before a time."""
    return -(-at_ms // interval) * interval


def encode(groups: ConsumerGroups) -> bytes:
    """The table as stored; raises TooLarge for one that `decode` would refuse."""
    return ZlibCompressor(6).compress(objects.encode(groups))


def decode(body: bytes, key: str, slot: int) -> ConsumerGroups:
    """The table in `body`, stored under the name of that slot; `key` is what errors call it. Raises FormatError."""
    inflater = zlib.decompressobj(GZIP_WINDOW)
    try:
        plain = inflater.decompress(body, objects.MAX_OBJECT_BYTES + 1)
    except zlib.error as error:
        raise MalformedObject(f"{key} is damaged", why=str(error)) from error
    if len(plain) <= objects.MAX_OBJECT_BYTES and (inflater.unused_data or not inflater.eof):
        raise MalformedObject(f"{key} is damaged", why="it is not one complete gzip member")
    groups = objects.decode(plain, ConsumerGroups, key)
    if groups.asked_until is not None and groups.asked_until > slot:
        raise MalformedObject(
            f"{key} is damaged", why=f"it holds an answer of {groups.asked_until}, after the time in its name"
        )
    return groups
