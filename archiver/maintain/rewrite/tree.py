"""The tree of catalogs that a marker leads to: read it whole or in part, and replace a run of it by one swap."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace

from archiver.commit.archive import lost_marker
from archiver.commit.commit import Held, read_marker, try_swap
from archiver.commit.operations import Driver, GetAll, Protocol, retrying
from archiver.errors import RewriteOvertaken, RewriteRefused
from archiver.maintain.rewrite.intent import RewriteAttempt, RewriteOutcome, maintained, maintenance_of, read_existing
from blockgz.errors import FormatError, MalformedObject, ObjectMissing, catalog_remedy
from blockgz.store.writer import StoredObject, ToolStore
from index_format import marker as markers
from index_format.keys import PartitionKeys, catalog_level, catalog_name
from index_format.marker import Catalog, CatalogReference, ChunkEntry, Marker, ReferenceCatalog, Retired, Span
from index_format.objects import Gap

References = tuple[CatalogReference, ...]


class CatalogRun(NamedTuple):
    """Neighbouring catalogs of level 1 in one list: the marker's, or the entries of one catalog of level 2."""

    references: References

    @property
    def start(self) -> int:
        return self.references[0].start_offset

    @property
    def stop(self) -> int:
        return self.references[-1].next_offset


class RunLimits(NamedTuple):
    """The limits of one rewrite, unless a single catalog has more: the indexes of all its chunks are read."""

    chunks: int = 1024
    records: int = 200_000_000
    bytes: int = 2**63
    """Bytes of data as stored."""


def first_run(references: References, is_meant: Callable[[CatalogReference], bool], limits: RunLimits) -> References:
    """Return the references from the first that `is_meant` to the last one within the limits, if there is one."""
    chosen, last, chunks, records, size = list(references[:0]), 0, 0, 0, 0
    for reference in references:
        is_it = is_meant(reference)
        if not (chosen or is_it):
            continue
        chunks, records = chunks + reference.num_chunks, records + reference.num_records
        size += reference.bytes
        if chosen and (chunks > limits.chunks or records > limits.records or size > limits.bytes):
            break
        chosen.append(reference)
        last = len(chosen) if is_it else last
    return tuple(chosen[:last])


def runs_of(
    references: References, is_meant: Callable[[CatalogReference], bool], limits: RunLimits
) -> Iterator[References]:
    """Yield the runs of all rewrites that are needed for the catalogs that `is_meant`, in order."""
    while run := first_run(references, is_meant, limits):
        references = references[references.index(run[-1]) + 1 :]
        yield run


def read_known(keys: PartitionKeys) -> Protocol[Held]:
    """Return the marker of a partition that was archived; raises MalformedObject if it is missing."""
    held = yield from read_marker(keys.marker)
    if held is None:
        raise lost_marker(keys)
    return held


def level_1_lists(keys: PartitionKeys, marker: Marker, start: int, end: int) -> Protocol[list[References]]:
    """Return the lists of references to catalogs of level 1 that overlap [start, end), in the order of offsets.

    Each list is whole. Reads the catalogs above. Raises ObjectMissing or a FormatError for one that does not match its
    reference.
    """
    found: list[References] = []
    above: list[CatalogReference] = []
    for level in range(len(marker.catalogs), 0, -1):
        if level == 1:
            return found + ([marker.catalogs[0]] if meeting(marker.catalogs[0], start, end) else [])
        above = meeting([*above, *marker.catalogs[level - 1]], start, end)
        catalogs = yield from read_catalogs(keys, above, level)
        lists = [tuple(entry for entry in each.entries if isinstance(entry, CatalogReference)) for each in catalogs]
        if level == 2:
            found += lists
        above = [reference for each in lists for reference in each]
    return found


def meeting(references: Sequence[CatalogReference], start: int, end: int) -> list[CatalogReference]:
    """Return the references that overlap [start, end)."""
    return [each for each in references if each.start_offset < end and start < each.next_offset]


def find_run(keys: PartitionKeys, marker: Marker, start: int, end: int) -> Protocol[CatalogRun | None]:
    """Return the neighbours of one list that span exactly [start, end), or None."""
    for references in (yield from level_1_lists(keys, marker, start, end)):
        inside = tuple(each for each in references if start <= each.start_offset and each.next_offset <= end)
        if inside and (inside[0].start_offset, inside[-1].next_offset) == (start, end):
            return CatalogRun(inside)
    return None


def read_catalogs(keys: PartitionKeys, references: Sequence[CatalogReference], level: int) -> Protocol[list[Catalog]]:
    """Return the catalogs, in order, checked against their references; raises ObjectMissing or a FormatError."""
    names = tuple(keys.catalog_key(reference, level) for reference in references)
    if not names:
        return []
    try:
        bodies = yield from read_all(names)
        return [markers.decode_catalog(body, each, level) for body, each in zip(bodies, references, strict=True)]
    except (ObjectMissing, MalformedObject) as error:
        error.remedy = catalog_remedy(keys)
        raise


def read_all(names: tuple[str, ...]) -> Protocol[list[bytes]]:
    """Return the objects with these keys; raises ObjectMissing."""
    found: list[StoredObject | None] = yield from retrying(GetAll(names))
    bodies = [each.body for each in found if each is not None]
    if len(bodies) < len(names):
        raise ObjectMissing(next(name for name, each in zip(names, found, strict=True) if each is None))
    return bodies


@dataclass(frozen=True)
class StoredChain:
    """Everything that one version of a marker references; for garbage collection, including what it retired."""

    keys: PartitionKeys
    marker: Marker
    entries: Sequence[ChunkEntry]
    catalogs: frozenset[str]
    """The keys of all catalogs, of every level."""
    gaps: Sequence[Gap]
    """The gaps of the marker and of the catalogs."""

    @property
    def end(self) -> int | None:
        """The start of the next chunk; None before the first."""
        return self.marker.chain_end

    @property
    def has_own_names(self) -> bool:
        """True if only this chain's chunks have such names."""
        return self.keys.layout != "seed"

    @cached_property
    def by_number(self) -> Mapping[int, Sequence[ChunkEntry]]:
        """Entries by the number in the names of their objects; several if chunks were rewritten."""
        found: dict[int, list[ChunkEntry]] = defaultdict(list)
        for entry in dict.fromkeys(self.entries):
            found[entry.start_offset if self.has_own_names else entry.first_offset].append(entry)
        return dict(found)

    @cached_property
    def indexes(self) -> frozenset[str]:
        return frozenset(self.index_key(entry) for entry in self.entries)

    def index_key(self, entry: ChunkEntry) -> str:
        return self.keys.chunks + entry.name

    def unfolded_from(self, level: int) -> int | None:
        """Return the start of the next catalog of that level, or of a later one; None while there is no chunk."""
        below: list[Sequence[Span]] = [*reversed(self.marker.catalogs[: level - 1]), self.marker.tail]
        return next((spans[0].start_offset for spans in below if spans), self.end)

    def holds(self, offset: int) -> bool:
        """Return whether the offset is inside the chain and in no gap: its record, if there is one, is archived."""
        start, end = self.marker.start_offset, self.end
        if start is None or end is None or not start <= offset < end:
            return False
        return not any(offset in gap for gap in self.gaps)


def read_current(store: ToolStore, keys: PartitionKeys) -> Held | None:
    """Return a partition's current marker, if there is one; raises a FormatError if it is damaged or another's."""
    stored = store.get(keys.marker)
    return None if stored is None else Held(markers.decode_own_marker(stored.body, keys), stored.etag)


def read_chain(store: ToolStore, keys: PartitionKeys) -> StoredChain | None:
    """Return the chain as the marker is now; None without a marker. Raises a FormatError if it cannot be trusted."""
    held = read_current(store, keys)
    return None if held is None else Driver(store).run(follow(keys, held.marker))


def follow(keys: PartitionKeys, marker: Marker, retired: Sequence[CatalogReference] = ()) -> Protocol[StoredChain]:
    """Return the chain of a marker, and of references that it retired; raises a FormatError if it cannot be trusted."""
    roots: dict[int, list[CatalogReference]] = defaultdict(list)
    for reference in retired:
        roots[catalog_level(reference.name)].append(reference)
    for level, found in enumerate(marker.catalogs, 1):
        roots[level] += found
    spans: list[Span] = list(marker.tail)
    gaps: list[Gap] = list(marker.gaps)
    names: set[str] = set()
    for level in range(max(roots, default=0), 0, -1):
        below = [span for span in spans if isinstance(span, CatalogReference)]
        references = list(dict.fromkeys([*below, *roots[level]]))
        names.update(keys.home + reference.name for reference in references)
        spans = [span for span in spans if isinstance(span, ChunkEntry)]
        try:
            catalogs = yield from read_catalogs(keys, references, level)
        except ObjectMissing as error:
            raise MalformedObject(
                f"catalog {error.key} is missing", why="without it, the chain cannot be followed", remedy=error.remedy
            ) from error
        for catalog in catalogs:
            gaps += catalog.gaps
            spans += catalog.entries
    entries = [span for span in spans if isinstance(span, ChunkEntry)]
    return StoredChain(keys, marker, entries, frozenset(names), gaps)


# The references of a marker, by level.
Levels = tuple[References, ...]
# Copies of catalogs of level 2 and above with the change in them, by original, as long as that is referenced.
Copies = dict[CatalogReference, CatalogReference]


def commit(attempt: RewriteAttempt, new: References) -> Protocol[RewriteOutcome]:
    """Commit a rewrite whose objects are stored, no matter how often a writer swaps the marker in between.

    The references `new` to catalogs of level 1 replace its run, over the same offsets, even if writers have moved that
    into higher catalogs. In a prune, what ends at or below the floor goes, and `new` is what stays of a catalog across
    it, if there is one.
    Raises RewriteRefused if its run is not in the tree, although nobody else may remove it, and RewriteOvertaken if the
    folder was closed: no chunk may span the offset where the partition continues in another folder.
    """
    copies: Copies = {}
    while True:
        held = yield from read_existing(attempt.keys)
        if not attempt.is_in_force(held.marker):
            return attempt.outcome(held.marker)
        if held.marker.successor != attempt.successor:
            raise RewriteOvertaken(
                f"{attempt.keys.marker} was closed",
                why=f"the partition has continued in {held.marker.successor} since this {attempt.intent.kind} began",
                remedy="run the command again",
            )
        try:
            catalogs = yield from place(attempt, held.marker, new, copies)
        except (ObjectMissing, FormatError):
            again = yield from read_marker(attempt.keys.marker)
            if again is not None and again.etag == held.etag:
                raise
            continue
        found = yield from try_swap(
            attempt.keys.marker, changed(attempt, held.marker, catalogs, floor=attempt.floor), held.etag
        )
        if attempt.is_committed(found.marker):
            return RewriteOutcome.COMMITTED


def changed(attempt: RewriteAttempt, marker: Marker, catalogs: Levels, *, floor: int | None) -> Marker:
    """Return the marker with other catalogs, and without the intent; it retires the references that are gone.

    `floor` is the new floor, None to leave it as it is.
    """
    before = maintenance_of(marker)
    kept = {each for references in catalogs for each in references}
    gone = tuple(each for references in marker.catalogs for each in references if each not in kept)
    body = replace(before, rewriting=None, retired=(*before.retired, Retired(references=gone, token=attempt.token)))
    if floor is not None:
        body = replace(body, pruned_before=floor)
    return maintained(replace(marker, catalogs=catalogs), body)


def place(attempt: RewriteAttempt, marker: Marker, new: References, copies: Copies) -> Protocol[Levels]:
    """Return the marker's catalogs with the change in them; stores copies of those above it under new names."""
    placing = _Placing(attempt, new, copies)
    catalogs = []
    for level, references in enumerate(marker.catalogs, 1):
        catalogs.append((yield from placing.changed(references, level)))
    if not placing.is_placed:
        raise _not_there(attempt)
    while catalogs and not catalogs[-1]:
        catalogs.pop()
    return tuple(catalogs)


class _Placing:
    """One attempt to put a change into one version of the tree."""

    def __init__(self, attempt: RewriteAttempt, new: References, copies: Copies) -> None:
        self.is_placed = False
        self._attempt, self._new, self._copies = attempt, new, copies

    def changed(self, references: Sequence[CatalogReference], level: int) -> Protocol[References]:
        """Return the references of a list of that level, with the change in it and in everything below it."""
        replaced = [each for each in references if self._is_replaced(each, level)]
        if replaced:
            self._check(replaced, level)
        result: list[CatalogReference] = []
        for each in references:
            if each in replaced:
                result += self._new if level == 1 and each is replaced[-1] else ()
            elif self._reaches_in(each):
                result.append((yield from self._copied(each, level)))
            else:
                result.append(each)
        return tuple(result)

    def _is_replaced(self, reference: CatalogReference, level: int) -> bool:
        intent, floor = self._attempt.intent, self._attempt.floor
        if floor is not None and reference.next_offset <= floor:
            return True
        return level == 1 and intent.start <= reference.start_offset and reference.next_offset <= intent.end

    def _reaches_in(self, reference: CatalogReference) -> bool:
        intent = self._attempt.intent
        start = intent.start if self._attempt.floor is None else 0
        return reference.start_offset < intent.end and start < reference.next_offset

    def _check(self, replaced: Sequence[CatalogReference], level: int) -> None:
        """Note that the run was found; raises RewriteRefused for another one."""
        intent, floor = self._attempt.intent, self._attempt.floor
        if floor is not None and not self._new:
            self.is_placed = True
            return
        # A prune may drop higher catalogs before it comes to the one that it cuts.
        start = replaced[0].start_offset if floor is None else intent.start
        if level == 1 and (start, replaced[-1].next_offset) != (intent.start, intent.end):
            raise _not_there(self._attempt)
        self.is_placed |= level == 1

    def _copied(self, reference: CatalogReference, level: int) -> Protocol[CatalogReference]:
        if level == 1:  # a catalog of chunks is replaced whole or not at all
            raise _not_there(self._attempt)
        if reference in self._copies:
            self.is_placed = True
            return self._copies[reference]
        keys = self._attempt.keys
        (catalog,) = yield from read_catalogs(keys, [reference], level)
        assert isinstance(catalog, ReferenceCatalog)
        entries = yield from self.changed(catalog.entries, level - 1)
        copy = replace(catalog, entries=entries)
        body = markers.encode(copy)
        name = catalog_name(level, entries[0].start_offset, self._attempt.mark())
        yield from self._attempt.store(keys.home + name, body)
        self._copies[reference] = markers.reference_to(copy, name, body)
        return self._copies[reference]


def _not_there(attempt: RewriteAttempt) -> RewriteRefused:
    intent = attempt.intent
    return RewriteRefused(
        f"{attempt.keys.marker}: no neighbouring catalogs span the offsets [{intent.start}..{intent.end})",
        why=f"the {intent.kind} under way is about these, and nobody else may change them at the same time",
        remedy="check the archive with replayer verify",
    )
