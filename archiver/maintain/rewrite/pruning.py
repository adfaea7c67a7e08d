"""Pruning: the floor rises to the end of a catalog of level 1, and what lies below goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from archiver.commit.operations import Protocol
from archiver.maintain.rewrite.committing import Change, commit
from archiver.maintain.rewrite.intent import LEASE_MS, Outcome, begin, given_up_on_failure
from archiver.maintain.rewrite.tree import level_1_lists
from index_format.keys import PartitionKeys
from index_format.marker import CatalogReference, Marker, Span


@dataclass(frozen=True)
class Keep:
    """What of a partition stays: records from `since_ms` on, or the newest `newest_bytes` of data."""

    since_ms: int | None = None
    newest_bytes: int | None = None

    def __post_init__(self) -> None:
        if (self.since_ms is None) == (self.newest_bytes is None):
            raise ValueError("either a time or a size says what stays")


class PrunePlan(NamedTuple):
    """What of a partition goes."""

    pruned_before: int
    """The new floor."""
    num_chunks: int
    num_records: int
    num_bytes: int
    """Of the data that goes, as stored."""


class Below(NamedTuple):
    """The offsets [start, end) that a prune takes away."""

    start: int
    end: int


def has_no_age(reference: Span) -> bool:
    """Whether there are records, and none of them has a timestamp: -1, as Kafka has it."""
    return reference.num_records > 0 and reference.max_timestamp < 0


def prune_plan(references: Sequence[CatalogReference], num_bytes: int, keep: Keep) -> PrunePlan | None:
    """What goes of a partition with `num_bytes` of data; None where all of it stays.

    `references`: those to catalogs of level 1, in order. A catalog goes, as a whole, where all records up to its end
    are older than `since_ms`, or where at least `newest_bytes` are left without it. What is not in a catalog stays, and
    what has no age: a catalog of which no record has a timestamp.
    """
    going: list[CatalogReference] = []
    left = num_bytes
    for reference in references:
        left -= reference.bytes
        if keep.since_ms is not None and (reference.max_timestamp >= keep.since_ms or has_no_age(reference)):
            break
        if keep.newest_bytes is not None and left < keep.newest_bytes:
            break
        going.append(reference)
    if not going:
        return None
    return PrunePlan(
        going[-1].next_offset,
        sum(each.num_chunks for each in going),
        sum(each.num_records for each in going),
        sum(each.bytes for each in going),
    )


def prune(keys: PartitionKeys, pruned_before: int, *, lease_ms: int = LEASE_MS) -> Protocol[Outcome]:
    """Raise a partition's floor to the end of a catalog of level 1; NOTHING where none ends there.

    Raises RewriteRefused, and what keeps catalogs from being read.
    """

    def choose(marker: Marker) -> Protocol[Below | None]:
        start = max(marker.start_offset or 0, marker.pruned_before)
        if pruned_before <= start:
            return None
        lists = yield from level_1_lists(keys, marker, start, pruned_before)
        ends = {each.next_offset for references in lists for each in references}
        return Below(start, pruned_before) if pruned_before in ends else None

    begun = yield from begin(keys, "prune", choose, lease_ms=lease_ms)
    if isinstance(begun, Outcome):
        return begun
    attempt, _ = begun
    return (yield from given_up_on_failure(attempt, commit(attempt, Change((), is_prune=True))))
