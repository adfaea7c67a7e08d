"""Rules of docs/lifecycle.md that are broken on purpose, one at a time, in the product's own code.

Each is a context manager. `python -m tests.support.campaign lifecycle --planted all` shows after how many schedules the
simulation notices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace as with_changes
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from archiver.commit import commit
from archiver.commit.commit import Held, read_marker, try_swap
from archiver.commit.operations import GetAll, NewToken, Now, Protocol
from archiver.maintain import garbage, gc, prune
from archiver.maintain.rewrite import intent
from archiver.maintain.rewrite import replace as replacing
from archiver.maintain.rewrite import tree as commits
from archiver.maintain.rewrite.chunks import NewChunk
from archiver.maintain.rewrite.tree import CatalogRun as Neighbours
from archiver.maintain.rewrite.tree import read_catalogs
from blockgz.archive import partition
from index_format import marker as markers
from index_format import objects
from index_format.keys import ObjectKind, catalog_level
from index_format.marker import MAX_RETIRED, CatalogReference, ChunkEntry, Maintenance, Marker, Rewriting
from index_format.objects import ChunkIndex
from tests.support.lifecycle import maintainers
from tests.support.lifecycle.world import GRACE

Broken = Callable[[], AbstractContextManager[Any]]
GRACE_MS = round(GRACE * 1000)


@contextmanager
def all_of(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    """Several patches."""
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        yield


class Unseen(intent.RewriteAttempt):
    """A rewrite that nobody was told of."""

    def is_in_force(self, marker: Marker) -> bool:
        """As if it were."""
        return not self.is_committed(marker)

    def keep(self) -> Protocol[None]:
        """There is nothing to renew."""
        yield from ()

    def give_up(self) -> Protocol[intent.RewriteOutcome | None]:
        """Nor to clear."""
        yield from ()
        return None


sound_begin = intent.begin


def begin_unseen(only: str | None, keys: Any, kind: str, choose: Any, *, lease_ms: int) -> Protocol[Any]:
    """As `begin`, without a swap."""
    if only is not None and kind != only:
        return (yield from sound_begin(keys, kind, choose, lease_ms=lease_ms))
    held = yield from read_marker(keys.marker)
    if held is None or held.marker.next_offset is None:
        return intent.RewriteOutcome.NOTHING
    if len(intent.maintenance_of(held.marker).retired) >= MAX_RETIRED:
        return intent.RewriteOutcome.FULL
    chosen = yield from choose(held.marker)
    if chosen is None:
        return intent.RewriteOutcome.NOTHING
    token: str = yield NewToken()
    now: int = yield Now()
    mine = Rewriting(token=token.replace("-", ""), kind=kind, level=1, start=chosen.start, end=chosen.stop, since=now)
    return Unseen(keys, mine, lease_ms), chosen


def without_intent(only: str | None = None) -> AbstractContextManager[Any]:
    begin = partial(begin_unseen, only)
    return all_of(patch.object(prune, "begin", begin), patch.object(intent, "begin", begin))


def grace_from_object_age() -> AbstractContextManager[Any]:
    """Retired references are as old as their objects may be."""

    def update_books(body: Maintenance, *, now: int, grace_ms: int) -> Maintenance:
        old = [each if each.at is not None else replace(each, at=max(0, now - grace_ms)) for each in body.retired]
        return maintained_booked(replace(body, retired=tuple(old)), now=now, grace_ms=grace_ms)

    maintained_booked = garbage.update_books
    return patch.object(garbage, "update_books", update_books)


def token_reused() -> AbstractContextManager[Any]:
    """Two tokens serve all attempts; what is stored under a name already is taken for one's own."""

    def rewriting(**fields: Any) -> Rewriting:
        return Rewriting(**(fields | {"token": f"{int(fields['token'], 16) % 2:032x}"}))

    def store_at(key: str, body: Any, attempt: str) -> Protocol[bool]:
        yield from real(key, body, attempt)
        return True

    real = intent.store_at
    return all_of(patch.object(intent, "Rewriting", rewriting), patch.object(intent, "store_at", store_at))


def token_unchecked() -> AbstractContextManager[Any]:
    """The commit does not ask whether the intent is in force."""

    def commit(attempt: intent.RewriteAttempt, new: Any) -> Protocol[Any]:
        attempt.__class__ = Unseen
        return (yield from real(attempt, new))

    real = commits.commit
    return all_of(patch.object(prune, "commit", commit), patch.object(replacing, "commit", commit))


def commit_with_old_tree() -> AbstractContextManager[Any]:
    """The change is put into the tree once, whatever a writer folds meanwhile."""

    def place(attempt: intent.RewriteAttempt, marker: Marker, change: Any, copies: Any) -> Protocol[Any]:
        if attempt not in first:
            first[attempt] = yield from real(attempt, marker, change, copies)
        return first[attempt]

    first: dict[intent.RewriteAttempt, Any] = {}
    real = commits.place
    return patch.object(commits, "place", place)


def prune_by_start_offset() -> AbstractContextManager[Any]:
    """A prune raises the writer's start_offset."""

    def changed(attempt: intent.RewriteAttempt, marker: Marker, catalogs: Any, *, floor: int | None) -> Marker:
        result = real(attempt, marker, catalogs, floor=None)
        return result if floor is None else replace(result, start_offset=floor)

    real = commits.changed
    return patch.object(commits, "changed", changed)


def at_stamped_by_the_commit() -> AbstractContextManager[Any]:
    """The commit says when it happened."""

    def changed(attempt: intent.RewriteAttempt, marker: Marker, catalogs: Any, *, floor: int | None) -> Marker:
        result = real(attempt, marker, catalogs, floor=floor)
        body = intent.maintenance_of(result)
        newest = replace(body.retired[-1], at=attempt.intent.since)
        return replace(result, maintenance=replace(body, retired=(*body.retired[:-1], newest)))

    real = commits.changed
    return patch.object(commits, "changed", changed)


def more_references_than_before() -> AbstractContextManager[Any]:
    """Every new catalog has one entry."""

    def packed(entries: Sequence[Any], gaps: Sequence[Any], start: int, end: int) -> Iterator[Any]:
        if gaps or len(entries) < 2:
            yield from real(entries, gaps, start, end)
            return
        for entry in entries:
            yield from real([entry], (), entry.start_offset, entry.next_offset)

    real = replacing._packed
    return patch.object(replacing, "_packed", packed)


def range_from_the_index() -> AbstractContextManager[Any]:
    """A new chunk ends where the last old index does, not where its entry does."""

    def stored(attempt: intent.RewriteAttempt, old: Sequence[Any], items: Sequence[Any]) -> Protocol[Any]:
        return (yield from real(attempt, old, [shorter(old, item) for item in items]))

    def shorter(old: Sequence[Any], item: Any) -> Any:
        if not isinstance(item, NewChunk):
            return item
        end = replacing.taken(old, item)[-1].index.next_offset
        return NewChunk(replace(item.index, next_offset=end), item.body)

    real = replacing._stored_chunks
    return patch.object(replacing, "_stored_chunks", stored)


def nonce_overwritten_by_maintainer() -> AbstractContextManager[Any]:
    """A maintainer's swap has a nonce of its own."""

    def changed(marker: Marker, body: Maintenance) -> Marker:
        return replace(real(marker, body), nonce=f"maintainer-{body.revision}")

    real = intent.maintained
    return all_of(patch.object(intent, "maintained", changed), patch.object(commits, "maintained", changed))


def rebase_ignores_epoch() -> AbstractContextManager[Any]:
    """A writer whose swap was refused puts its part into whatever marker it finds."""

    def swap(key: str, held: Held, change: Callable[[Marker], Protocol[Marker]]) -> Protocol[Held]:
        mine = held.marker
        while True:
            marker = yield from change(markers.rebased(mine, held.marker))
            held = yield from try_swap(key, marker, held.etag)
            if held.marker.nonce == marker.nonce:
                return held

    return patch.object(commit, "swap_own_marker", swap)


def fold_not_computed_again() -> AbstractContextManager[Any]:
    """A writer folds once for a commit, whatever maintainers put in the place of the catalogs meanwhile."""

    def fold_tail(keys: Any, marker: Marker, stored: commit.StoredCatalogs) -> Protocol[Marker]:
        known = next((folded for kept, folded in folds if kept is stored), None)
        if known is None:
            known = yield from real(keys, marker, stored)
            folds.append((stored, known))
        return replace(marker, tail=known.tail, gaps=known.gaps, catalogs=known.catalogs)

    folds: list[tuple[commit.StoredCatalogs, Marker]] = []
    real = commit.fold_tail
    return patch.object(commit, "fold_tail", fold_tail)


def progress_swallows_gap() -> AbstractContextManager[Any]:
    """Progress without records raises the newest entry, even over a gap."""

    def advanced(marker: Marker, next_offset: int, **rest: Any) -> Marker:
        result = real(marker, next_offset, **rest)
        if not marker.tail or rest.get("gaps"):
            return result
        return replace(result, tail=(*marker.tail[:-1], replace(marker.tail[-1], next_offset=next_offset)))

    real = markers.advanced
    return patch.object(markers, "advanced", advanced)


def rewrite_touches_tail() -> AbstractContextManager[Any]:
    """A merge is about the newest entries, which the writer holds as well."""

    def choose(marker: Marker) -> Protocol[Neighbours | None]:
        yield Now()
        return Neighbours(marker.tail) if len(marker.tail) > 1 else None

    def rewrite(keys: Any, chosen: Any, what: replacing.Rewrite, *, lease_ms: int) -> Protocol[intent.RewriteOutcome]:
        if what.kind != "merge":
            return (yield from real(keys, chosen, what, lease_ms=lease_ms))
        begun = yield from intent.begin(keys, what.kind, choose, lease_ms=lease_ms)
        if isinstance(begun, intent.RewriteOutcome):
            return begun
        attempt, (tail,) = begun
        old = yield from replacing.chunks_of(keys, tail)
        new = yield from replacing._replacement(attempt, old, what)
        items = yield from replacing._stored_chunks(attempt, old, new)
        held = yield from attempt.read_own()
        if held.marker.tail[: len(tail)] != tail:
            return intent.RewriteOutcome.OVERTAKEN
        merged = replace(held.marker, tail=(*items, *held.marker.tail[len(tail) :]))
        body = replace(intent.maintenance_of(merged), rewriting=None)
        yield from try_swap(keys.marker, intent.maintained(merged, body), held.etag)
        return intent.RewriteOutcome.COMMITTED

    real = maintainers.rewrite
    return patch.object(maintainers, "rewrite", rewrite)


def writer_swaps_its_old_catalogs() -> AbstractContextManager[Any]:
    """A writer takes the maintainers' part as it was read, but not the catalogs."""

    def rebased(marker: Marker, found: Marker) -> Marker:
        return replace(marker, version=found.version, maintenance=found.maintenance)

    return patch.object(markers, "rebased", rebased)


def young_objects_not_kept() -> AbstractContextManager[Any]:
    """Garbage collection does not look at the age of objects. This alone must do no harm, under version 2."""

    def find_dead(*arguments: Any, now: float, grace: float) -> list[Any]:
        return real(*arguments, now=now + 1e9, grace=grace)

    real = garbage.find_dead_maintained
    return patch.object(garbage, "find_dead_maintained", find_dead)


def gc_reads_before_listing() -> AbstractContextManager[Any]:
    """Garbage collection lists what was stored since it read the markers, and does not look at its age."""

    def partitions(search: Any) -> Iterator[Any]:
        homes = [f"topic=orders/partition={number:05d}/last_chunk_index.json" for number in range(2)]
        search.store.early = {key: search.store.get(key) for key in homes}
        yield from real(search)

    def read(store: Any, keys: Any) -> Any:
        return real_read(_Early(store), keys)

    real, real_read = gc._GarbageSearch.partitions, gc.read_current
    early = all_of(patch.object(gc._GarbageSearch, "partitions", partitions), patch.object(gc, "read_current", read))
    return all_of(early, young_objects_not_kept())


class _Early:
    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str) -> Any:
        return self._store.early[key] if key in self._store.early else self._store.get(key)


def retired_not_spared() -> AbstractContextManager[Any]:
    """What the marker lists as retired leads nowhere."""

    def follow(keys: Any, marker: Marker, _retired: Any) -> Any:
        return real(keys, marker)

    real = gc.follow
    return patch.object(gc, "follow", follow)


def all_that_a_retired_catalog_lists() -> AbstractContextManager[Any]:
    """What dropped references led to is deleted, whoever else leads there."""

    def keep_books(keys: Any, grace: float) -> Protocol[None]:
        before = yield from read_marker(keys.marker)
        yield from real(keys, grace)
        after = yield from read_marker(keys.marker)
        assert before is not None
        assert after is not None
        left = {each.token for each in intent.maintenance_of(after.marker).retired}
        for retired in intent.maintenance_of(before.marker).retired:
            for reference in retired.references if retired.token not in left else ():
                dropped.update((yield from _names_below(keys, reference)))

    def find_dead(chain: Any, objects: Any, *rest: Any, **times: Any) -> list[Any]:
        listed = [found for found in objects if found.name.key in dropped]
        return [*real_find(chain, objects, *rest, **times), *listed]

    dropped: set[str] = set()
    real, real_find = garbage.keep_books, garbage.find_dead_maintained
    return all_of(
        patch.object(garbage, "keep_books", keep_books), patch.object(garbage, "find_dead_maintained", find_dead)
    )


def _names_below(keys: Any, reference: CatalogReference) -> Protocol[set[str]]:
    level, names = catalog_level(reference.name), {keys.home + reference.name}
    (catalog,) = yield from read_catalogs(keys, [reference], level)
    for entry in catalog.entries:
        names.add(keys.home + entry.name)
        if isinstance(entry, CatalogReference):
            names |= yield from _names_below(keys, entry)
    return names


def catalog_by_next_offset() -> AbstractContextManager[Any]:
    """A writer's catalog is dead below the end of the chain."""

    def is_final(chain: Any, found: Any) -> bool:
        if found.name.token is None and found.name.kind is ObjectKind.CATALOG:
            return bool(found.name.number < (chain.marker.next_offset or 0))
        return real(chain, found)

    real = garbage._is_final
    return patch.object(garbage, "_is_final", is_final)


def walk_goes_on_at_404() -> AbstractContextManager[Any]:
    """Garbage collection takes a catalog that is gone for one that leads nowhere."""

    def follow(*arguments: Any) -> Protocol[Any]:
        steps, answer = real(*arguments), None
        while True:
            try:
                operation = steps.send(answer)
            except StopIteration as end:
                return end.value
            answer = yield operation
            if isinstance(operation, GetAll):
                answer = [each or SimpleNamespace(body=b"gone") for each in answer]

    def decode(body: bytes, *rest: Any) -> Any:
        return SimpleNamespace(gaps=(), entries=()) if body == b"gone" else real_decode(body, *rest)

    real, real_decode = gc.follow, markers.decode_catalog
    return all_of(patch.object(gc, "follow", follow), patch.object(markers, "decode_catalog", decode))


def reader_trusts_names() -> AbstractContextManager[Any]:
    """Readers do not look at the SHA-256 of what an entry names, nor at what else the entry says of it."""

    def decode(body: bytes, entry: ChunkEntry, *_: Any) -> ChunkIndex:
        return objects.decode(body, ChunkIndex, entry.name)

    return patch.object(partition, "decode_index", decode)


def repair_without_floor() -> AbstractContextManager[Any]:
    """No floor is stored before records are deleted."""
    return patch.object(gc, "_store_floors", lambda store, floors: [])


def token_of_an_intent_not_spared() -> AbstractContextManager[Any]:
    """Garbage collection does not look at the intent in force."""

    def find_dead(chain: Any, *rest: Any, **times: Any) -> list[Any]:
        body = replace(intent.maintenance_of(chain.marker), rewriting=None)
        return real(with_changes(chain, marker=replace(chain.marker, maintenance=body)), *rest, **times)

    real = garbage.find_dead_maintained
    return patch.object(garbage, "find_dead_maintained", find_dead)


def no_revision() -> AbstractContextManager[Any]:
    """Swaps are not counted: a marker that becomes what it was has its old ETag."""
    return patch.object(markers, "revised", lambda marker: marker)


BROKEN: dict[str, Broken] = {
    "no_intent": without_intent,
    "prune_without_intent": partial(without_intent, "prune"),
    "grace_from_object_age": grace_from_object_age,
    "token_reused": token_reused,
    "token_unchecked": token_unchecked,
    "token_of_an_intent_not_spared": token_of_an_intent_not_spared,
    "commit_with_old_tree": commit_with_old_tree,
    "prune_by_start_offset": prune_by_start_offset,
    "at_stamped_by_the_commit": at_stamped_by_the_commit,
    "more_references_than_before": more_references_than_before,
    "range_from_the_index": range_from_the_index,
    "nonce_overwritten_by_maintainer": nonce_overwritten_by_maintainer,
    "rebase_ignores_epoch": rebase_ignores_epoch,
    "fold_not_computed_again": fold_not_computed_again,
    "progress_swallows_gap": progress_swallows_gap,
    "rewrite_touches_tail": rewrite_touches_tail,
    "writer_swaps_its_old_catalogs": writer_swaps_its_old_catalogs,
    "gc_reads_before_listing": gc_reads_before_listing,
    "retired_not_spared": retired_not_spared,
    "all_that_a_retired_catalog_lists": all_that_a_retired_catalog_lists,
    "catalog_by_next_offset": catalog_by_next_offset,
    "walk_goes_on_at_404": walk_goes_on_at_404,
    "reader_trusts_names": reader_trusts_names,
    "repair_without_floor": repair_without_floor,
    "no_revision": no_revision,
}
