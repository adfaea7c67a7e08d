"""Replace the chunks of neighbouring catalogs: read them, store new chunks, lay out new catalogs, commit."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple, cast

from msgspec.structs import replace

from archiver.commit.operations import Compute, Now, Protocol
from archiver.maintain.rewrite import chunks, intent
from archiver.maintain.rewrite.tree import CatalogRun, References, commit, read_all, read_catalogs
from index_format import marker as markers
from index_format import objects
from index_format.keys import ChunkStart, PartitionKeys, catalog_name, data_suffix
from index_format.marker import CatalogReference, ChunkCatalog, ChunkEntry
from index_format.objects import LOST, Gap

INDEXES_AT_ONCE = 64


class OldCatalog(NamedTuple):
    """A catalog of level 1, and the reference to it."""

    reference: CatalogReference
    catalog: ChunkCatalog


class NewCatalog(NamedTuple):
    """A catalog of level 1 without a name, and the offsets that it spans."""

    catalog: ChunkCatalog
    start: int
    end: int


def check_replacement(old: Sequence[chunks.OldChunk], replacement: chunks.Replacement) -> None:
    """Raise ValueError unless the replacement covers exactly the old chunks, in order, and no gap."""
    todo = list(old)
    for item in replacement:
        if isinstance(item, chunks.OldChunk):
            if not todo or todo.pop(0).entry != item.entry:
                raise ValueError(f"{item.entry.name} is not the next chunk of the run")
            continue
        replaced = taken(todo, item)
        del todo[: len(replaced)]
        if not replaced or (replaced[0].entry.start_offset, replaced[-1].entry.next_offset) != item_span(item):
            raise ValueError(f"{item_span(item)} are not the offsets of whole chunks of the run")
        if any(a.entry.next_offset != b.entry.start_offset for a, b in pairwise(replaced)):
            raise ValueError(f"{item_span(item)} has a gap between chunks")
    if todo:
        raise ValueError(f"nothing replaces {todo[0].entry.name}")


def item_span(item: chunks.NewChunk | chunks.EmptiedRun) -> tuple[int, int]:
    """Return the offsets [start, end) of an item."""
    return item.start_offset, item.next_offset


def taken(old: Sequence[chunks.OldChunk], item: chunks.ChangedItem) -> list[chunks.OldChunk]:
    """Return the old chunks that an item replaces."""
    if isinstance(item, chunks.RewrappedChunk):
        return [each for each in old if each.entry == item.entry]
    return [each for each in old if item.start_offset <= each.entry.start_offset < item.next_offset]


def apart_from_gaps(item: chunks.EmptiedRun, old: Sequence[chunks.OldChunk]) -> list[chunks.EmptiedRun]:
    """Return the run without the gaps inside its old chunks, which marker or catalogs list already."""
    # Of a run that was lost, the ranges that were erased before are runs of their own.
    gaps = [gap for each in old for gap in each.index.gaps if gap.end > each.entry.start_offset]
    listed = chunks.OffsetRanges(range(gap.start, gap.end) for gap in gaps)
    left = chunks.OffsetRanges([range(item.start_offset, item.next_offset)]) - listed
    erased = [range(each.start, each.end) for chunk in old for each in chunk.index.erased or ()]
    others = left - chunks.OffsetRanges(erased if item.reason == LOST else ())
    pieces = [chunks.EmptiedRun(each.start, each.stop, item.reason) for each in others]
    return sorted([*pieces, *(chunks.EmptiedRun(each.start, each.stop) for each in left - others)])


def new_catalogs(
    old: Sequence[OldCatalog], items: Sequence[ChunkEntry | chunks.EmptiedRun], *, at: int, is_repacked: bool
) -> list[OldCatalog | NewCatalog]:
    """Return the catalogs of level 1 that replace old ones, never more; `at` is the time of new gaps."""
    result: list[OldCatalog | NewCatalog] = []
    # Catalogs keep their bounds unless a new chunk spans them, or all become as few as possible.
    for group in [list(old)] if is_repacked else list(_groups(old, items)):
        start, end = group[0].reference.start_offset, group[-1].reference.next_offset
        inside = [item for item in items if start <= item.start_offset < end]
        is_unchanged = inside == [entry for each in group for entry in each.catalog.entries]
        if is_unchanged and (not is_repacked or num_catalogs(len(inside)) >= len(group)):
            result += group
            continue
        gaps = [gap for each in group for gap in each.catalog.gaps]
        gone = [item for item in inside if isinstance(item, chunks.EmptiedRun)]
        gaps += [Gap(item.start_offset, item.next_offset, item.reason, at=at) for item in gone]
        entries = [item for item in inside if isinstance(item, ChunkEntry)]
        result += _packed(entries, sorted(gaps, key=lambda gap: gap.start), start, end)
    return result


def num_catalogs(num_entries: int) -> int:
    """Return the number of catalogs for a number of entries."""
    return max(1, -(-num_entries // markers.FAN_OUT))


def _groups(old: Sequence[OldCatalog], items: Sequence[ChunkEntry | chunks.EmptiedRun]) -> Iterator[list[OldCatalog]]:
    """Yield the old catalogs, in groups whose inner bounds an item spans."""
    group: list[OldCatalog] = []
    for each in old:
        if group and not any(item.start_offset < each.reference.start_offset < item.next_offset for item in items):
            yield group
            group = []
        group.append(each)
    if group:
        yield group


def _packed(entries: Sequence[ChunkEntry], gaps: Sequence[Gap], start: int, end: int) -> Iterator[NewCatalog]:
    """Yield catalogs of as many entries as fit; a gap goes with the entries behind it, or with the last ones."""
    if not entries:
        yield NewCatalog(ChunkCatalog(level=1, entries=(), gaps=tuple(gaps)), start, end)
    rest = list(gaps)
    for first in range(0, len(entries), markers.FAN_OUT):
        inside = tuple(entries[first : first + markers.FAN_OUT])
        is_last = first + markers.FAN_OUT >= len(entries)
        upto = end if is_last else inside[-1].next_offset
        own = tuple(gap for gap in rest if is_last or gap.start < upto)
        rest = rest[len(own) :]
        bounds = (start, upto) if own else (inside[0].start_offset, inside[-1].next_offset)
        yield NewCatalog(ChunkCatalog(level=1, entries=inside, gaps=own), *bounds)
        start = upto


# Return the chunks of these entries, in order.
ReadChunks = Callable[[PartitionKeys, Sequence[ChunkEntry]], Protocol[list[chunks.OldChunk]]]


@dataclass(frozen=True)
class Rewrite:
    """The work of a rewrite on the chunks of its run."""

    kind: str
    """merge, convert, erase, rewrap, refetch or accept-loss, for the marker."""
    contents: Callable[[Sequence[chunks.OldChunk]], Iterator[chunks.Item]]
    """Yield the replacement of chunks, item by item; may read the store."""
    check: Callable[[Sequence[chunks.OldChunk], chunks.ChangedItem], None]
    """Raise a BlockgzError if an item does not hold what it must of the chunks that it replaces."""
    is_repacked: bool = False
    """True if the chunks move to as few catalogs as possible."""
    read: ReadChunks | None = None
    """Read chunks of which indexes may be missing; without it, a missing one is an error."""


def rewrite(
    keys: PartitionKeys, choose: intent.Choose[CatalogRun], what: Rewrite, *, lease_ms: int = intent.LEASE_MS
) -> Protocol[intent.RewriteOutcome]:
    """Replace the chunks of the run that `choose` returns; NOTHING if they stay as they are.

    Raises RewriteRefused, and errors of reading old chunks and storing new ones. Then nothing has changed except for
    objects that no marker references.
    """
    begun = yield from intent.begin(keys, what.kind, choose, lease_ms=lease_ms)
    if isinstance(begun, intent.RewriteOutcome):
        return begun
    attempt, run = begun
    return (yield from intent.given_up_on_failure(attempt, _replace(attempt, run, what)))


def _replace(attempt: intent.RewriteAttempt, run: CatalogRun, what: Rewrite) -> Protocol[intent.RewriteOutcome]:
    references = yield from _stored(attempt, run, what)
    if references == run.references:
        yield from attempt.give_up()
        return intent.RewriteOutcome.NOTHING
    return (yield from commit(attempt, references))


def _stored(attempt: intent.RewriteAttempt, run: CatalogRun, what: Rewrite) -> Protocol[References]:
    """Store the replacement of the run, and return the references to its catalogs."""
    catalogs = yield from old_catalogs(attempt.keys, run.references)
    old = yield from old_chunks(attempt.keys, catalogs, attempt, what.read)
    replacement = yield from _replacement(attempt, old, what)
    items = yield from _stored_chunks(attempt, old, replacement)
    at: int = yield Now()
    references = []
    for each in new_catalogs(catalogs, items, at=at, is_repacked=what.is_repacked):
        new = (yield from _store_catalog(attempt, each)) if isinstance(each, NewCatalog) else each.reference
        references.append(new)
    return tuple(references)


def stored_rest(
    attempt: intent.RewriteAttempt, reference: CatalogReference, floor: int, what: Rewrite | None
) -> Protocol[References]:
    """Store what a prune leaves of a catalog of level 1, and return the reference to it.

    `what` makes the new chunk if the floor is inside one, at the beginning of a block.
    """
    ((_, catalog),) = yield from old_catalogs(attempt.keys, (reference,))
    items: list[ChunkEntry | chunks.EmptiedRun] = [each for each in catalog.entries if each.next_offset > floor]
    if items and items[0].start_offset < floor:
        assert what is not None
        (chunk,) = yield from chunks_of(attempt.keys, catalog.entries[-len(items) :][:1])
        old = [chunk.from_offset(floor)]
        replacement = yield from _replacement(attempt, old, what)
        items[:1] = yield from _stored_chunks(attempt, old, replacement)
    gaps = [gap for gap in catalog.gaps if gap.end > floor]
    (rest,) = _packed([each for each in items if isinstance(each, ChunkEntry)], gaps, floor, reference.next_offset)
    return ((yield from _store_catalog(attempt, rest)),)


def _replacement(
    attempt: intent.RewriteAttempt, old: Sequence[chunks.OldChunk], what: Rewrite
) -> Protocol[chunks.Replacement]:
    """Return the replacement of the chunks, after checking it; renews the intent after each item."""
    replacement = list[chunks.Item]()
    contents = what.contents(old)
    while (item := (yield Compute(partial(next, contents, None)))) is not None:
        replacement.append(item)
        yield from attempt.keep()
    check_replacement(old, replacement)
    for item in replacement:
        if isinstance(item, chunks.ChangedItem):
            yield Compute(partial(what.check, taken(old, item), item))
            yield from attempt.keep()
    return replacement


def old_catalogs(keys: PartitionKeys, references: References) -> Protocol[list[OldCatalog]]:
    """Return catalogs of level 1; raises ObjectMissing or a FormatError."""
    catalogs = yield from read_catalogs(keys, references, 1)
    return [OldCatalog(*each) for each in zip(references, cast(list[ChunkCatalog], catalogs), strict=True)]


def old_chunks(
    keys: PartitionKeys,
    catalogs: Sequence[OldCatalog],
    attempt: intent.RewriteAttempt | None = None,
    read: ReadChunks | None = None,
) -> Protocol[list[chunks.OldChunk]]:
    """Return the chunks of catalogs, with their indexes, in order; renews the intent of an attempt, if one is given."""
    old: list[chunks.OldChunk] = []
    for some in parts_of([entry for each in catalogs for entry in each.catalog.entries]):
        if attempt is not None:
            yield from attempt.keep()
        old += yield from (read or chunks_of)(keys, some)
    return old


def parts_of(entries: Sequence[ChunkEntry]) -> Iterator[Sequence[ChunkEntry]]:
    """Yield the entries in parts whose indexes are read at once."""
    return (entries[first : first + INDEXES_AT_ONCE] for first in range(0, len(entries), INDEXES_AT_ONCE))


def chunks_of(keys: PartitionKeys, entries: Sequence[ChunkEntry]) -> Protocol[list[chunks.OldChunk]]:
    """Return the chunks of these entries with their indexes, in order; raises ObjectMissing or a FormatError."""
    bodies = yield from read_all(tuple(map(keys.index_key, entries)))
    return [
        chunks.OldChunk(entry, markers.decode_index(body, entry, keys.folder.topic, keys.partition))
        for body, entry in zip(bodies, entries, strict=True)
    ]


def _stored_chunks(
    attempt: intent.RewriteAttempt, old: Sequence[chunks.OldChunk], replacement: chunks.Replacement
) -> Protocol[list[ChunkEntry | chunks.EmptiedRun]]:
    """Store the new chunks; return the entries of all chunks for the catalogs, and erased runs."""
    items: list[ChunkEntry | chunks.EmptiedRun] = []
    previous: str | None = None
    for item in replacement:
        if isinstance(item, chunks.NewChunk):
            entry = yield from _store_chunk(attempt, item, previous)
        elif isinstance(item, chunks.RewrappedChunk):
            entry = yield from _store_index(attempt, item)
        elif isinstance(item, chunks.OldChunk):
            entry = item.entry
        else:
            items += apart_from_gaps(item, taken(old, item))
            continue
        items.append(entry)
        previous = entry.name
        if isinstance(item, chunks.NewChunk):
            known = {gap for each in taken(old, item) for gap in each.index.gaps}
            items += [chunks.EmptiedRun(gap.start, gap.end, gap.reason) for gap in item.index.gaps if gap not in known]
    return items


def _store_chunk(attempt: intent.RewriteAttempt, new: chunks.NewChunk, previous: str | None) -> Protocol[ChunkEntry]:
    """Store data and index of a new chunk, and return its entry; `previous` is the index before it in the run."""
    keys, mark, index = attempt.keys, attempt.mark(), new.index
    start = ChunkStart(index.start_offset, index.first_offset, index.blocks[0].min_timestamp)
    suffix = data_suffix(index.record_format, index.codec, encrypted=bool(index.encryption))
    name = keys.data_name(start, suffix, mark)
    yield from attempt.store(keys.chunks + name, new.body)
    index = replace(index, data=replace(index.data, name=name), previous=previous or index.previous)
    body = objects.encode(index)
    yield from attempt.store(keys.chunks + keys.index_name(start, mark), body)
    return markers.entry_of(index, keys.index_name(start, mark), body)


def _store_index(attempt: intent.RewriteAttempt, chunk: chunks.RewrappedChunk) -> Protocol[ChunkEntry]:
    """Store the index of a chunk whose data stays, and return its entry."""
    keys, index = attempt.keys, chunk.index
    name = keys.index_name(ChunkStart(index.start_offset, index.first_offset, index.min_timestamp), attempt.mark())
    body = objects.encode(index)
    yield from attempt.store(keys.chunks + name, body)
    return replace(chunk.entry, name=name, sha256=hashlib.sha256(body).hexdigest())


def _store_catalog(attempt: intent.RewriteAttempt, new: NewCatalog) -> Protocol[markers.CatalogReference]:
    body = markers.encode(new.catalog)
    name = catalog_name(1, new.start, attempt.mark())
    yield from attempt.store(attempt.keys.home + name, body)
    return markers.reference_to(new.catalog, name, body, (new.start, new.end))
