"""Commit a rewrite: one swap that replaces old references, even if writers have moved these to higher catalogs."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from archiver.commit.objects import read_marker, try_swap
from archiver.commit.operations import Protocol
from archiver.errors import RewriteOvertaken, RewriteRefused
from archiver.maintain.rewrite.intent import RewriteAttempt, RewriteOutcome, maintained, maintenance_of, read_existing
from archiver.maintain.rewrite.tree import References, read_catalogs
from blockgz.errors import FormatError, ObjectMissing
from index_format import marker as markers
from index_format.keys import catalog_name
from index_format.marker import CatalogReference, Marker, ReferenceCatalog, Retired


class TreeChange(NamedTuple):
    """The references to catalogs of level 1 that replace a rewrite's run, over the same offsets.

    A prune has none: what ends at or below the run's end goes, and that becomes the floor.
    """

    references: References
    is_prune: bool = False


class Placed(NamedTuple):
    """The catalogs of a marker after a change, and the references that were removed from it."""

    catalogs: tuple[References, ...]
    gone: References


Copies = dict[CatalogReference, CatalogReference]
"""Copies of catalogs of level 2 and above with the change in them, by original, as long as that is referenced."""


def commit(attempt: RewriteAttempt, change: TreeChange) -> Protocol[RewriteOutcome]:
    """Commit a rewrite whose objects are stored, no matter how often a writer swaps the marker in between.

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
            placed = yield from place(attempt, held.marker, change, copies)
        except (ObjectMissing, FormatError):
            again = yield from read_marker(attempt.keys.marker)
            if again is not None and again.etag == held.etag:
                raise
            continue
        found = yield from try_swap(attempt.keys.marker, changed(attempt, held.marker, change, placed), held.etag)
        if attempt.is_committed(found.marker):
            return RewriteOutcome.COMMITTED


def changed(attempt: RewriteAttempt, marker: Marker, change: TreeChange, placed: Placed) -> Marker:
    """Return the marker after the rewrite."""
    before = maintenance_of(marker)
    retired = (*before.retired, Retired(references=placed.gone, token=attempt.token))
    body = replace(before, rewriting=None, retired=retired)
    if change.is_prune:
        body = replace(body, pruned_before=attempt.intent.end)
    return maintained(replace(marker, catalogs=placed.catalogs), body)


def place(attempt: RewriteAttempt, marker: Marker, change: TreeChange, copies: Copies) -> Protocol[Placed]:
    """Put the change into the current tree; stores copies of the catalogs above it under new names."""
    placing = _Placing(attempt, change, copies)
    catalogs = []
    for level, references in enumerate(marker.catalogs, 1):
        catalogs.append((yield from placing.changed(references, level)))
    if not placing.is_placed:
        raise _not_there(attempt)
    while catalogs and not catalogs[-1]:
        catalogs.pop()
    kept = {each for references in catalogs for each in references}
    gone = tuple(each for references in marker.catalogs for each in references if each not in kept)
    return Placed(tuple(catalogs), gone)


class _Placing:
    """One attempt to put a change into one version of the tree."""

    def __init__(self, attempt: RewriteAttempt, change: TreeChange, copies: Copies) -> None:
        self.is_placed = False
        self._attempt = attempt
        self._change = change
        self._copies = copies

    def changed(self, references: Sequence[CatalogReference], level: int) -> Protocol[References]:
        """Return the references of a list of that level, with the change in it and in everything below it."""
        replaced = [each for each in references if self._is_replaced(each, level)]
        if replaced:
            self._check(replaced)
        result: list[CatalogReference] = []
        for each in references:
            if each in replaced:
                result += self._change.references if each is replaced[0] else ()
            elif self._reaches_in(each):
                result.append((yield from self._copied(each, level)))
            else:
                result.append(each)
        return tuple(result)

    def _is_replaced(self, reference: CatalogReference, level: int) -> bool:
        intent = self._attempt.intent
        if self._change.is_prune:
            return reference.next_offset <= intent.end
        return level == 1 and intent.start <= reference.start_offset and reference.next_offset <= intent.end

    def _reaches_in(self, reference: CatalogReference) -> bool:
        intent = self._attempt.intent
        start = 0 if self._change.is_prune else intent.start
        return reference.start_offset < intent.end and start < reference.next_offset

    def _check(self, replaced: Sequence[CatalogReference]) -> None:
        bounds = (replaced[0].start_offset, replaced[-1].next_offset)
        if not self._change.is_prune and bounds != (self._attempt.intent.start, self._attempt.intent.end):
            raise _not_there(self._attempt)
        self.is_placed = True

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
