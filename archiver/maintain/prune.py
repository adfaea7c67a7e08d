"""Prune an archive: the floor rises to the end of a catalog of level 1, and everything below goes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from archiver.commit.operations import Driver, Protocol
from archiver.maintain.planned import FREED, Cell, PlannedRewrite, one_by_one, rewritable_partitions
from archiver.maintain.rewrite.intent import LEASE_MS, RewriteOutcome, begin, given_up_on_failure
from archiver.maintain.rewrite.tree import commit, level_1_lists, read_known
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import bytes_text
from index_format.keys import LAYOUTS, PartitionKeys, parse_topic_folder
from index_format.marker import CatalogReference, Marker, Span


@dataclass(frozen=True)
class Keep:
    """The records of a partition that stay: from `since_ms` on, or the newest `newest_bytes` of data."""

    since_ms: int | None = None
    newest_bytes: int | None = None

    def __post_init__(self) -> None:
        if (self.since_ms is None) == (self.newest_bytes is None):
            raise ValueError("either a time or a size says what stays")


@dataclass(frozen=True)
class PartitionPruning:
    """The plan for one partition."""

    keys: PartitionKeys
    marker: Marker
    going: Sequence[CatalogReference]
    """References to the catalogs of level 1 that go."""

    @property
    def pruned_before(self) -> int:
        """The new floor."""
        return self.going[-1].next_offset

    @property
    def num_chunks(self) -> int:
        return sum(each.num_chunks for each in self.going)

    @property
    def num_records(self) -> int:
        return sum(each.num_records for each in self.going)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data that goes, as stored."""
        return sum(each.bytes for each in self.going)

    @property
    def left_bytes(self) -> int:
        return self.marker.num_bytes - self.num_bytes

    @property
    def cells(self) -> tuple[Cell, ...]:
        sizes = (self.num_records, self.num_chunks, bytes_text(self.num_bytes))
        return (*sizes, self.pruned_before, self.marker.next_offset, bytes_text(self.left_bytes))

    @property
    def as_json(self) -> dict[str, Any]:
        return {
            "pruned_before": self.pruned_before,
            "records": self.num_records,
            "chunks": self.num_chunks,
            "bytes": self.num_bytes,
            "left_records": self.marker.num_records - self.num_records,
            "left_chunks": self.marker.num_chunks - self.num_chunks,
            "left_bytes": self.left_bytes,
            "next_offset": self.marker.next_offset,
        }


class PlannedPruning(PlannedRewrite[PartitionPruning]):
    """A prune of an archive."""

    participle = "pruned"
    after = FREED
    nothing = "nothing to prune"
    undone = "nothing was pruned"
    columns = ("topic", "partition", "records", "chunks", "size", "readable from", "next offset", "stays")
    droppable = ("next offset", "chunks", "stays")

    def __init__(self, store: ToolStore, selection: TopicSelection | None, keep: Keep, driver: Driver) -> None:
        """Plan the selected topics, or all, as the markers are now.

        Raises NoArchiveThere, NotInArchive, UsageError for layout seed, and the errors of a listing.
        """

        def prune_one(plan: PartitionPruning) -> RewriteOutcome:
            return driver.run(prune(plan.keys, plan.pruned_before))

        partitions = rewritable_partitions(store, selection, "pruned", "let a rule of the store delete what is old")
        super().__init__(partitions, lambda keys: driver.run(plan_partition(keys, keep)), one_by_one(prune_one))

    @property
    def question(self) -> str | None:
        totals = self.totals()
        return f"Prune {totals['chunks']:,} chunks ({totals['bytes']:,} bytes)?" if self.partitions else None

    def totals(self) -> dict[str, int]:
        chunks = sum(plan.num_chunks for plan in self.partitions)
        return {"chunks": chunks, "bytes": sum(plan.num_bytes for plan in self.partitions)}

    def num_tried(self, *, dry_run: bool) -> int | None:
        return None if dry_run else self._num_tried


def plan_partition(keys: PartitionKeys, keep: Keep) -> Protocol[PartitionPruning | None]:
    """Return what goes of one partition under its current marker; None if all of it stays."""
    marker = (yield from read_known(keys)).marker
    if marker.next_offset is None:
        return None
    lists = yield from level_1_lists(keys, marker, 0, marker.next_offset)
    if keep.since_ms is not None and (yield from _older_stays(keys, marker, keep.since_ms)):
        return None
    going = prunable([each for references in lists for each in references], marker.num_bytes, keep)
    return PartitionPruning(keys, marker, going) if going else None


def _older_stays(keys: PartitionKeys, marker: Marker, since_ms: int) -> Protocol[bool]:
    """Return whether a folder that the partition continues holds a record that is to stay."""
    # The floor of a folder hides everything below it, in older folders as well; late records, and those of clocks that
    # are ahead, may be in any of them.
    while marker.continues:
        offset = marker.continues.offset
        keys = LAYOUTS[keys.layout](parse_topic_folder(marker.continues.folder), keys.partition)
        marker = (yield from read_known(keys)).marker
        for span in marker.spans:
            if span.start_offset < offset and (span.max_timestamp >= since_ms or has_no_age(span)):
                return True
    return False


def has_no_age(reference: Span) -> bool:
    """Return whether there are records, and none of them has a timestamp (Kafka: -1)."""
    return reference.num_records > 0 and reference.max_timestamp < 0


def prunable(references: Sequence[CatalogReference], num_bytes: int, keep: Keep) -> list[CatalogReference]:
    """Return the catalogs of level 1, from the oldest on, that go of a partition with `num_bytes` of data."""
    going: list[CatalogReference] = []
    left = num_bytes
    for reference in references:
        left -= reference.bytes
        # A catalog goes as a whole, or stays; so does one of which no record has a timestamp.
        if keep.since_ms is not None and (reference.max_timestamp >= keep.since_ms or has_no_age(reference)):
            break
        if keep.newest_bytes is not None and left < keep.newest_bytes:
            break
        going.append(reference)
    return going


def prune(keys: PartitionKeys, pruned_before: int, *, lease_ms: int = LEASE_MS) -> Protocol[RewriteOutcome]:
    """Raise a partition's floor to the end of a catalog of level 1; NOTHING if none ends there.

    Raises RewriteRefused, and the errors of reading catalogs.
    """

    def choose(marker: Marker) -> Protocol[range | None]:
        start = max(marker.start_offset or 0, marker.pruned_before)
        if pruned_before <= start:
            return None
        lists = yield from level_1_lists(keys, marker, start, pruned_before)
        ends = {each.next_offset for references in lists for each in references}
        return range(start, pruned_before) if pruned_before in ends else None

    begun = yield from begin(keys, "prune", choose, lease_ms=lease_ms)
    if isinstance(begun, RewriteOutcome):
        return begun
    attempt, _ = begun
    return (yield from given_up_on_failure(attempt, commit(attempt, None)))
