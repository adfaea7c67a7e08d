"""Prune an archive: the floor rises, and everything below goes, in whole catalogs, chunks and blocks."""

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple, cast

from archiver.commit.operations import Driver, Protocol
from archiver.maintain.planned import FREED, Cell, PlannedRewrite, RewriteResult, rewritable_partitions
from archiver.maintain.rewrite.chunks import NO_KEYS, Item, OffsetRanges, OldChunk, RewriteKeys
from archiver.maintain.rewrite.contents import ChunkRewrite, RewriteTools, rest_of
from archiver.maintain.rewrite.intent import (
    LEASE_MS,
    RewriteAttempt,
    RewriteOutcome,
    begin,
    fold_tail,
    given_up_on_failure,
    maintenance_of,
)
from archiver.maintain.rewrite.replace import Rewrite, chunks_of, stored_rest
from archiver.maintain.rewrite.tree import commit, level_1_lists, read_catalogs, read_known
from blockgz.errors import listed
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import bytes_text, timestamp_text
from index_format.keys import LAYOUTS, PartitionKeys, parse_topic_folder
from index_format.marker import CatalogReference, ChunkEntry, Marker, Span, span_at_or_after
from index_format.objects import BlockEntry

# A part of a partition that goes or stays as a whole.
Part = Span | BlockEntry
# Partitions that a note names.
SHOWN_PARTITIONS = 4


@dataclass(frozen=True)
class Keep:
    """The records of a partition that stay: from `since_ms` on, or the newest `newest_bytes` of data."""

    since_ms: int | None = None
    newest_bytes: int | None = None

    def __post_init__(self) -> None:
        if (self.since_ms is None) == (self.newest_bytes is None):
            raise ValueError("either a time or a size says what stays")


class WhyOlder(StrEnum):
    """The reason why records stay that are older than what is kept."""

    MIXED = "in a block that holds younger records too"
    BEHIND = "behind a younger record"
    UNDATED = "behind records without a timestamp, which have no age"
    LOCKED = "in or behind an encrypted chunk whose key was not given, and which is pruned only as a whole"
    CONTINUED = "because an older folder, which the partition continues, holds younger records or undated ones"


class OlderRecords(NamedTuple):
    """Records that stay although they are older than what is kept."""

    least: int
    """How many there are at least: more may be in parts that hold younger ones too."""
    most: int
    offset: int
    """The first offset that stays."""
    newest_ms: int
    """The highest timestamp in the first part that stays."""
    why: WhyOlder

    @property
    def text(self) -> str:
        if self.least == self.most:
            return f"{self.most:,}"
        return f"{self.least:,} to {self.most:,}" if self.least else f"up to {self.most:,}"


@dataclass(frozen=True)
class PartitionPruning:
    keys: PartitionKeys
    marker: Marker
    going: Sequence[Part]
    """The catalogs, chunks and blocks that go, in order."""
    floor: int | None
    """The new floor; None if nothing goes."""
    older: OlderRecords | None = None
    """The older records that stay."""

    @property
    def pruned_before(self) -> int:
        """The new floor."""
        assert self.floor is not None
        return self.floor

    @property
    def folds_before(self) -> int | None:
        """The end of the newest chunk that has to be in a catalog first; None if it is in one already."""
        reached = [entry.next_offset for entry in self.marker.tail if entry.start_offset < (self.floor or 0)]
        return max(reached, default=None)

    @property
    def is_silent(self) -> bool:
        """True if all chunks go, and nobody has folded the newest ones since that was requested."""
        requested = maintenance_of(self.marker).fold_before
        return (self.floor or 0) >= self.marker.spans[-1].next_offset and (self.folds_before or 0) <= requested

    def without_tail(self) -> "PartitionPruning":
        """Return the plan for what is in catalogs."""
        if self.folds_before is None:
            return self
        going = [part for part in self.going if isinstance(part, CatalogReference)]
        return replace(self, going=going, floor=going[-1].next_offset if going else None)

    @property
    def num_chunks(self) -> int:
        counts = (part.num_chunks if isinstance(part, CatalogReference) else 1 for part in self.going)
        return sum(counts) - sum(isinstance(part, BlockEntry) for part in self.going)

    @property
    def num_records(self) -> int:
        return sum(part.num_records for part in self.going)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data that goes, as stored."""
        return sum(map(bytes_of, self.going))

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
            "claimed": self.folds_before is not None,
        }


class PlannedPruning(PlannedRewrite[PartitionPruning]):
    participle = "pruned"
    after = FREED
    nothing = "nothing to prune"
    undone = "nothing was pruned"
    columns = ("topic", "partition", "records", "chunks", "size", "readable from", "next offset", "stays")
    droppable = ("next offset", "chunks", "stays")

    def __init__(
        self,
        store: ToolStore,
        selection: TopicSelection | None,
        keep: Keep,
        driver: Driver,
        rewrite: Callable[[Sequence[PartitionPruning]], Iterable[RewriteResult[PartitionPruning]]],
        rewrite_keys: RewriteKeys = NO_KEYS,
    ) -> None:
        """Plan the selected topics, or all, as the markers are now; `rewrite` carries plans out."""
        # Older records that stay, by partition.
        self.older = dict[PartitionKeys, OlderRecords]()

        def plan_one(keys: PartitionKeys) -> PartitionPruning | None:
            plan = driver.run(plan_partition(keys, keep, rewrite_keys))
            if plan is not None and plan.older is not None:
                self.older[keys] = plan.older
            return plan if plan is not None and plan.floor is not None else None

        partitions = rewritable_partitions(store, selection, "pruned", "let a rule of the store delete what is old")
        super().__init__(partitions, plan_one, rewrite)
        if self.older:
            self.nothing = "no older record can be pruned"
        self.notes = [*self._notes_about_claims(), *self._notes_about_older()]

    def _notes_about_claims(self) -> Iterator[str]:
        claimed = [str(plan.keys) for plan in self.partitions if plan.folds_before is not None]
        if claimed:
            where = listed(claimed, most=SHOWN_PARTITIONS)
            yield (
                f"the newest chunks of {where} are in no catalog yet: prune claims the partition to change "
                "that, and an archiver that is at work there claims it again"
            )

    def _notes_about_older(self) -> Iterator[str]:
        for why in WhyOlder:
            stays = {keys: older for keys, older in self.older.items() if older.why is why}
            if stays:
                places = [
                    f"{keys} ({older.text} from offset {older.offset} on, beside {timestamp_text(older.newest_ms)})"
                    if older.newest_ms >= 0
                    else f"{keys} ({older.text} from offset {older.offset} on)"
                    for keys, older in stays.items()
                ]
                yield f"older records stay {why}: {listed(places, most=SHOWN_PARTITIONS)}"

    @property
    def question(self) -> str | None:
        totals = self.totals()
        return f"Prune {totals['records']:,} records ({totals['bytes']:,} bytes)?" if self.partitions else None

    def totals(self) -> dict[str, int]:
        names = {"records": "num_records", "chunks": "num_chunks", "bytes": "num_bytes"}
        return {name: sum(getattr(plan, field) for plan in self.partitions) for name, field in names.items()}

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        older = [
            {
                "topic": str(keys.folder),
                "partition": keys.partition,
                "at_least": stays.least,
                "at_most": stays.most,
                "from_offset": stays.offset,
                "why": stays.why.value,
            }
            for keys, stays in self.older.items()
        ]
        return super().as_json(dry_run=dry_run) | {"older_records": older}

    def num_tried(self, *, dry_run: bool) -> int | None:
        return None if dry_run else self._num_tried


def plan_partition(
    keys: PartitionKeys, keep: Keep, rewrite_keys: RewriteKeys = NO_KEYS, *, is_thrifty: bool = False
) -> Protocol[PartitionPruning | None]:
    """Return what goes of one partition under its current marker, and which older records stay.

    Returns None if it has no chunk. With `is_thrifty`, a chunk is cut only if at least half of it goes.
    """
    marker = (yield from read_known(keys)).marker
    if marker.next_offset is None or not marker.spans:
        return None
    lists = yield from level_1_lists(keys, marker, 0, marker.next_offset)
    parts: list[Part] = [*(each for references in lists for each in references), *marker.tail]
    if keep.since_ms is not None and (yield from _older_stays(keys, marker, keep.since_ms)):
        return PartitionPruning(keys, marker, (), None, older_records(parts, keep, WhyOlder.CONTINUED))
    going, staying = divided(parts, marker.num_bytes, keep)
    floor = cast(Span, going[-1]).next_offset if going else None
    is_locked = False
    # From the first catalog that stays to its first chunk that stays, and to that chunk's blocks.
    while staying and not isinstance(staying[0], BlockEntry):
        if keep.since_ms is not None and staying[0].min_timestamp >= keep.since_ms:
            break  # it holds nothing older
        if isinstance(staying[0], CatalogReference):
            (catalog,) = yield from read_catalogs(keys, [staying[0]], 1)
            inside: Sequence[Part] = catalog.entries
        else:
            (chunk,) = yield from chunks_of(keys, [staying[0]])
            if is_locked := not rewrite_keys.opens(chunk.index):
                break
            inside = chunk.index.blocks
        more, rest = divided(inside, marker.num_bytes - sum(map(bytes_of, going)), keep)
        if is_thrifty and isinstance(inside[0], BlockEntry) and sum(map(bytes_of, more)) < sum(map(bytes_of, rest)):
            break
        if more:
            floor = start_of(rest[0])
        going, staying = [*going, *more], [*rest, *staying[1:]]
    older = older_records(staying, keep, WhyOlder.LOCKED if is_locked else None)
    return PartitionPruning(keys, marker, going, floor, older)


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


def has_no_age(part: Part) -> bool:
    """Return whether there are records, and none of them has a timestamp (Kafka: -1)."""
    return part.num_records > 0 and part.max_timestamp < 0


def bytes_of(part: Part) -> int:
    """Return the bytes of a part's data, as stored."""
    return part.byte_length if isinstance(part, BlockEntry) else part.bytes


def start_of(part: Part) -> int:
    """Return the first offset of a part."""
    return part.first_record_offset if isinstance(part, BlockEntry) else part.start_offset


def divided(parts: Sequence[Part], num_bytes: int, keep: Keep) -> tuple[list[Part], list[Part]]:
    """Return the parts that go, from the oldest on, and the others, of a partition of which `num_bytes` are left."""
    left = num_bytes
    for number, part in enumerate(parts):
        left -= bytes_of(part)
        # A part goes as a whole, or stays; so does one of which no record has a timestamp.
        if keep.since_ms is not None and (part.max_timestamp >= keep.since_ms or has_no_age(part)):
            return list(parts[:number]), list(parts[number:])
        if keep.newest_bytes is not None and left < keep.newest_bytes:
            return list(parts[:number]), list(parts[number:])
    return list(parts), []


def older_records(staying: Sequence[Part], keep: Keep, why: WhyOlder | None = None) -> OlderRecords | None:
    """Return how many records of parts that stay are older than what is kept, and why; None if there are none."""
    if keep.since_ms is None:
        return None
    least = most = behind = 0
    for number, part in enumerate(staying):
        if has_no_age(part) or part.min_timestamp >= keep.since_ms:
            continue
        is_whole = part.max_timestamp < keep.since_ms
        # The lowest timestamp is -1 if some records have none.
        certain = part.num_records if is_whole and part.min_timestamp >= 0 else int(is_whole or part.min_timestamp >= 0)
        possible = part.num_records if is_whole else part.num_records - 1
        least, most, behind = least + certain, most + possible, behind + (possible if number else 0)
    if not most:
        return None
    first = staying[0]
    if why is None:
        why = WhyOlder.UNDATED if has_no_age(first) else WhyOlder.BEHIND if behind else WhyOlder.MIXED
    return OlderRecords(least, most, start_of(first), first.max_timestamp, why)


class _PruneRun(NamedTuple):
    """Offsets [start, stop) of the catalogs that go, and of the one that is cut."""

    start: int
    stop: int
    cut: CatalogReference | None


def prune(
    keys: PartitionKeys, pruned_before: int, what: Rewrite | None = None, *, lease_ms: int = LEASE_MS
) -> Protocol[RewriteOutcome]:
    """Raise a partition's floor to where a catalog of level 1 ends, or a chunk, block or gap in one begins.

    NOTHING if none does. `what` makes the rest of a chunk; without it, none is cut. Raises RewriteRefused, and the
    errors of reading catalogs and chunks, and of storing new ones.
    """

    def choose(marker: Marker) -> Protocol[_PruneRun | None]:
        start = max(marker.start_offset or 0, marker.pruned_before)
        if pruned_before <= start:
            return None
        lists = yield from level_1_lists(keys, marker, start, pruned_before)
        references = [each for references in lists for each in references]
        if any(each.next_offset == pruned_before for each in references):
            return _PruneRun(start, pruned_before, None)
        cut = next((each for each in references if each.start_offset < pruned_before < each.next_offset), None)
        if cut is None or not (yield from _may_cut(keys, cut, pruned_before, may_cut_chunk=what is not None)):
            return None
        return _PruneRun(start, cut.next_offset, cut)

    begun = yield from begin(keys, "prune", choose, lease_ms=lease_ms)
    if isinstance(begun, RewriteOutcome):
        return begun
    attempt, run = begun
    attempt.floor = pruned_before
    return (yield from given_up_on_failure(attempt, _pruned(attempt, run, pruned_before, what)))


def _may_cut(keys: PartitionKeys, reference: CatalogReference, floor: int, *, may_cut_chunk: bool) -> Protocol[bool]:
    """Return whether a chunk of the catalog, a block of one, or a gap behind one begins at the offset."""
    (catalog,) = yield from read_catalogs(keys, [reference], 1)
    entry = cast(ChunkEntry | None, span_at_or_after(catalog.entries, floor))
    if entry is None or entry.start_offset >= floor:
        return any(floor in (each.start_offset, each.next_offset) for each in catalog.entries)
    (chunk,) = yield from chunks_of(keys, [entry])
    return may_cut_chunk and any(block.first_record_offset == floor for block in chunk.index.blocks)


def _pruned(attempt: RewriteAttempt, run: _PruneRun, floor: int, what: Rewrite | None) -> Protocol[RewriteOutcome]:
    new = () if run.cut is None else (yield from stored_rest(attempt, run.cut, floor, what))
    return (yield from commit(attempt, new))


class _PartialPrune(ChunkRewrite):
    """A prune, which copies what stays of one chunk."""

    kind = "prune"

    def __init__(self, tools: RewriteTools, keys: PartitionKeys, rewrite_keys: RewriteKeys, pruned_before: int) -> None:
        super().__init__(tools, keys, rewrite_keys)
        self._pruned_before = pruned_before

    def steps(self, what: Rewrite) -> Protocol[RewriteOutcome]:
        return prune(self.keys, self._pruned_before, what)

    def contents(self, old: Sequence[OldChunk]) -> Iterator[Item]:
        (chunk,) = old
        buffer = self.new_file(chunk.entry.bytes)
        assert buffer is not None
        yield rest_of(chunk, self.data_of, buffer, self.rewrite_keys.seal(chunk))


def prune_partition(plan: PartitionPruning, tools: RewriteTools, rewrite_keys: RewriteKeys = NO_KEYS) -> RewriteOutcome:
    """Prune a partition as planned; if its newest chunks go, claim it first to fold them into a catalog.

    A running writer is fenced by that, and claims the partition again. Raises what `prune` raises.
    """
    if plan.folds_before is not None:
        offsets = OffsetRanges([range(plan.pruned_before)])
        tools.driver.run(fold_tail(plan.keys, offsets, str(uuid.uuid4())))
    return _PartialPrune(tools, plan.keys, rewrite_keys, plan.pruned_before).run()
