"""The commit of a rewrite: one swap that replaces old references, wherever writers have moved these by now."""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from archiver.commit.objects import read_marker, try_swap
from archiver.commit.operations import Protocol
from archiver.errors import RewriteOvertaken, RewriteRefused
from archiver.maintain.rewrite.intent import Attempt, Outcome, maintained, maintenance_of, read_existing
from archiver.maintain.rewrite.tree import References, read_catalogs
from blockgz.errors import ObjectMissing
from index_format import marker as markers
from index_format.errors import FormatError
from index_format.keys import catalog_name
from index_format.marker import CatalogReference, Marker, ReferenceCatalog, Retired


class Change(NamedTuple):
    """What stands in the place of a rewrite's run: references to catalogs of level 1 over the same offsets.

    Of a prune nothing does: what ends at or below the run's end goes, and that becomes the floor.
    """

    references: References
    is_prune: bool = False


class Placed(NamedTuple):
    """The catalogs of a marker after a change, and the references that went from it."""

    catalogs: tuple[References, ...]
    gone: References


Copies = dict[CatalogReference, CatalogReference]
"""Catalogs of level 2 and above that were copied with the change in them: good as long as the original stands."""


def commit(attempt: Attempt, change: Change) -> Protocol[Outcome]:
    """Commit a rewrite whose objects are stored, however often a writer swaps the marker in between.

    Raises RewriteRefused where its run is not in the tree, though nobody else may take it out, RewriteOvertaken where
    the folder was closed meanwhile: no chunk may lie on both sides of where the partition continues.
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
            return Outcome.COMMITTED


def changed(attempt: Attempt, marker: Marker, change: Change, placed: Placed) -> Marker:
    """The marker as the rewrite leaves it."""
    before = maintenance_of(marker)
    retired = (*before.retired, Retired(references=placed.gone, token=attempt.token))
    body = replace(before, rewriting=None, retired=retired)
    if change.is_prune:
        body = replace(body, pruned_before=attempt.intent.end)
    return maintained(replace(marker, catalogs=placed.catalogs), body)


def place(attempt: Attempt, marker: Marker, change: Change, copies: Copies) -> Protocol[Placed]:
    """Put the change into the tree as it is now; catalogs above it are copied, which are stored under new names."""
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
    """Puts a change into one version of the tree."""

    def __init__(self, attempt: Attempt, change: Change, copies: Copies) -> None:
        self.is_placed = False
        self._attempt = attempt
        self._change = change
        self._copies = copies

    def changed(self, references: Sequence[CatalogReference], level: int) -> Protocol[References]:
        """A list of references of that level with the change in it and in all that is below it."""
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


def _not_there(attempt: Attempt) -> RewriteRefused:
    intent = attempt.intent
    return RewriteRefused(
        f"{attempt.keys.marker}: no neighbouring catalogs span the offsets [{intent.start}..{intent.end})",
        why=f"the {intent.kind} under way is about these, and nobody else may change them meanwhile",
        remedy="check the archive with replayer verify",
    )
