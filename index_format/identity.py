"""The objects that say who an archive and its topics are: identities, configurations with ACLs, and the inventory."""

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec.structs import replace

from index_format import objects
from index_format.keys import TopicFolder, check_topic
from index_format.objects import Count, Name, Sealed, Timestamp, Word

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


@objects.stored
class ArchiveInfo(Sealed, frozen=True, kw_only=True):
    """`_archive.json`, write-once: one cluster an archive; null if the broker did not tell its id."""

    format: str = "block-gzip-archive"
    version: int = objects.VERSION
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


@objects.stored
class TopicInfo(Sealed, frozen=True, kw_only=True):
    """`_topic.json`, write-once: which topic id lives in this folder; null if the broker did not tell it."""

    format: str = "block-gzip-topic"
    version: int = objects.VERSION
    topic: Name
    topic_id: str | None
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=2**31)]


@objects.stored
class TopicConfig(Sealed, frozen=True, kw_only=True):
    """`_topic_config.json`: a topic as last seen, to make it again; null if the broker did not tell."""

    # A dated copy of each version is in `_configs/`.
    format: str = "block-gzip-topic-config"
    version: int = objects.VERSION
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
        )


@objects.stored
class Inventory(Sealed, frozen=True, kw_only=True):
    """The incarnations of all topics, by name and number."""

    format: str = "block-gzip-inventory"
    version: int = objects.VERSION
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
    return objects.decode(body, Inventory, key)


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
