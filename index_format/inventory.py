"""`_inventory.json`: which partitions were ever claimed, so that a lost one is missed (FORMAT.md, "Inventory")."""

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec.structs import replace

from index_format import objects
from index_format.keys import TopicFolder, check_topic
from index_format.objects import Name, Sealed, Timestamp

PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Incarnation(msgspec.Struct, frozen=True, rename={"seen_from": "from", "seen_until": "until"}):
    """One folder of a topic, and the partitions of it that were ever claimed, in order."""

    topic: Name
    incarnation: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    topic_id: str | None
    """Null where the broker did not tell it."""
    seen_from: Timestamp
    """When a partition was first claimed, in ms."""
    seen_until: Timestamp | None
    """When the cluster said that the topic is gone or has another id, in ms; null where it did not."""
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
        """The incarnation in that folder; None where nothing of it was ever claimed."""
        return next((each for each in self.incarnations if each.folder == folder), None)


def parse(body: bytes, key: str) -> Inventory:
    """The inventory in `body`; `key` is what errors call it. Raises FormatError."""
    return objects.decode(body, Inventory, key)


def united(inventory: Inventory, claims: Iterable[Incarnation]) -> Inventory:
    """The inventory with what was claimed; equal to it where nothing is new."""
    known = {each.folder: each for each in inventory.incarnations}
    for claim in claims:
        before = known.get(claim.folder)
        known[claim.folder] = claim if before is None else before.united(claim)
    return replace(inventory, incarnations=tuple(known[folder] for folder in sorted(known)))


def ended(inventory: Inventory, newest: TopicFolder, topic_id: str | None, at: int) -> Inventory:
    """The inventory after the cluster said at that time, in ms, that a topic is gone, or has another id: `topic_id`.

    Ends the incarnations of the topic up to `newest` that are another one; an id that is null never differs from one.
    """

    def is_over(each: Incarnation) -> bool:
        differs = topic_id is None or each.topic_id not in (None, topic_id)
        return each.topic == newest.topic and each.folder <= newest and each.seen_until is None and differs

    changed = (replace(each, seen_until=at) if is_over(each) else each for each in inventory.incarnations)
    return replace(inventory, incarnations=tuple(changed))


def without(inventory: Inventory, folder: TopicFolder, partitions: Collection[int] | None = None) -> Inventory:
    """The inventory without some partitions of an incarnation, or without all of it."""
    kept = []
    for each in inventory.incarnations:
        left = () if partitions is None else tuple(sorted({*each.partitions} - {*partitions}))
        if each.folder != folder:
            kept.append(each)
        elif left:
            kept.append(replace(each, partitions=left))
    return replace(inventory, incarnations=tuple(kept))
