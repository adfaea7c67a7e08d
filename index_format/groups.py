"""Tables of consumer groups: where the groups of a cluster stood on a topic (FORMAT.md, "Consumer groups")."""

import zlib
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from index_format import objects
from index_format.blocks import GZIP_WINDOW, ZlibCompressor
from index_format.errors import MalformedObject
from index_format.objects import Name, Offset, PartitionNumber, Sealed, Timestamp

# The most bytes of UTF-8 that an offset's metadata may have; longer metadata is stored as null.
MAX_METADATA_BYTES = 256
MAX_GROUP_ID_CHARACTERS = 32767

# A group id as Kafka allows it: it may be empty or hold control characters.
GroupId = Annotated[str, msgspec.Meta(max_length=MAX_GROUP_ID_CHARACTERS)]


class GroupPosition(msgspec.Struct, frozen=True):
    """The offset that a group committed for a partition: the next one that it reads."""

    partition: PartitionNumber
    offset: Offset
    metadata: str | None
    """The group's metadata; None if that is empty (the same to Kafka), not text, or too long to keep."""

    def __post_init__(self) -> None:
        if self.metadata is not None and len(self.metadata.encode()) > MAX_METADATA_BYTES:
            raise ValueError(f"metadata of more than {MAX_METADATA_BYTES} bytes")


class Group(msgspec.Struct, frozen=True):
    """A consumer group that has a position in the topic."""

    group_id: GroupId
    asked_at: Timestamp
    """When the cluster answered, in ms."""
    positions: tuple[GroupPosition, ...]
    """Positions by partition, each once; at least one."""

    def __post_init__(self) -> None:
        if not self.positions:
            raise ValueError(f"group {self.group_id[:80]!r} has no position")
        if any(after.partition <= before.partition for before, after in pairwise(self.positions)):
            raise ValueError(f"the partitions of group {self.group_id[:80]!r} are not in order")


class LogEnd(msgspec.Struct, frozen=True):
    """The end of a partition's log: its high watermark."""

    partition: PartitionNumber
    offset: Offset


class LogEnds(msgspec.Struct, frozen=True):
    """The ends of a topic's logs: records below them were there by `answered_at`, others came after `asked_at`."""

    asked_at: Timestamp
    """A time before the first request, in ms."""
    answered_at: Timestamp
    """A time after the last answer, in ms."""
    partitions: tuple[LogEnd, ...]
    """In order, each once; at least one."""

    def __post_init__(self) -> None:
        if self.asked_at > self.answered_at:
            raise ValueError(f"the ends were answered at {self.answered_at}, before the request at {self.asked_at}")
        if not self.partitions:
            raise ValueError("the ends name no partition")
        if any(after.partition <= before.partition for before, after in pairwise(self.partitions)):
            raise ValueError("the partitions of the ends are not in order")


class GoneGroup(msgspec.Struct, frozen=True):
    """A consumer group that no longer has a position in the topic, as its coordinator confirmed."""

    group_id: GroupId
    at: Timestamp
    """Time of the confirmation, in ms."""


@objects.stored
class ConsumerGroups(Sealed, frozen=True, kw_only=True):
    """`_groups/{slot}.json`, write-once: all groups that have a position in the topic, by id, each once."""

    format: str = "block-gzip-groups"
    version: int = objects.VERSION
    archive_id: Name
    topic: Name
    topic_id: str | None
    """Null if the broker did not tell it."""
    interval: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    """The grid of slots, in ms."""
    groups: tuple[Group, ...]
    gone: tuple[GoneGroup, ...] | UnsetType = UNSET
    """The groups that left in the two days before, by id, each once; unset if none did, and in older archives."""
    groups_asked: bool | UnsetType = UNSET
    """False if the cluster was not asked for groups, or did not answer: `groups` is empty then. Otherwise unset."""
    groups_slot: Timestamp | UnsetType = UNSET
    """Only if `groups_asked` is false: the slot of the newest older table with groups; unset if there is none."""
    ends: LogEnds | UnsetType = UNSET
    """Unset if the brokers did not answer, and in older archives."""

    def __post_init__(self) -> None:
        for ids in ([group.group_id for group in self.groups], [gone.group_id for gone in self.gone or ()]):
            if any(after <= before for before, after in pairwise(ids)):
                raise ValueError("the groups are not in order")
        if self.groups_asked is False and (self.groups or self.gone):
            raise ValueError("it holds groups and says that they were not asked for")

    @property
    def has_groups(self) -> bool:
        """Return whether the table lists the groups; otherwise it has the ends alone."""
        return self.groups_asked is not False

    @property
    def last_answer(self) -> int | None:
        """The time of the last answer, in ms; None for a table without any."""
        times = [*(group.asked_at for group in self.groups), *(group.at for group in self.gone or ())]
        return max([*times, self.ends.answered_at] if self.ends else times, default=None)


def slot_of(at_ms: int, interval: int) -> int:
    """Return the first point of the grid that is not before a time."""
    return -(-at_ms // interval) * interval


def encode(groups: ConsumerGroups) -> bytes:
    """Return the table as stored; raises TooLarge for one that `decode` would refuse."""
    return ZlibCompressor(6).compress(objects.encode(groups))


def decode(body: bytes, key: str, slot: int) -> ConsumerGroups:
    """Return the table of a slot, which errors call `key`; raises FormatError."""
    inflater = zlib.decompressobj(GZIP_WINDOW)
    try:
        plain = inflater.decompress(body, objects.MAX_OBJECT_BYTES + 1)
    except zlib.error as error:
        raise MalformedObject(f"{key} is damaged", why=str(error)) from error
    if len(plain) <= objects.MAX_OBJECT_BYTES and (inflater.unused_data or not inflater.eof):
        raise MalformedObject(f"{key} is damaged", why="it is not one complete gzip member")
    groups = objects.decode(plain, ConsumerGroups, key)
    if groups.last_answer is not None and groups.last_answer > slot:
        raise MalformedObject(
            f"{key} is damaged", why=f"it holds an answer of {groups.last_answer}, after the time in its name"
        )
    if groups.groups_slot is not UNSET and groups.groups_slot >= slot:
        raise MalformedObject(f"{key} is damaged", why=f"it names {groups.groups_slot} as an older table")
    return groups
