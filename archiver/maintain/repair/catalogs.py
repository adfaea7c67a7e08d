"""Lost catalogs, rebuilt from the indexes and the lower catalogs that they listed.

A reference has the sha256 of its catalog: a rebuilt one is stored only if it is that catalog byte for byte, so that it
may be done at any time, next to running archivers.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import count

from msgspec.structs import replace

from archiver.commit.archive import lost_marker
from archiver.maintain.planned import Problem
from archiver.maintain.repair.chunk_indexes import ListedPartition, list_partition, stored_indexes
from archiver.maintain.repair.plan import RepairPlan, RepairTarget, storing
from archiver.maintain.rewrite.tree import read_current
from blockgz.errors import FormatError, MalformedObject
from index_format import marker as markers
from index_format import objects
from index_format.keys import CATALOGS_FOLDER, parse_key
from index_format.marker import CatalogReference, ChunkCatalog, ChunkEntry, ReferenceCatalog, Span
from index_format.objects import Gap

# Lists of spans that are looked at for one catalog: dead writers and rewrites may leave several of the same offsets.
MOST_LISTS = 100_000


def plan_catalogs(target: RepairTarget) -> RepairPlan:
    """Plan to store each lost or damaged catalog that the marker of a partition leads to."""
    store, keys, plan = target.store, target.keys, RepairPlan()
    try:
        held = read_current(store, keys)
        if held is None:
            raise lost_marker(keys)
    except MalformedObject as error:
        return RepairPlan(problems=[Problem(keys.marker, error)])
    wanted = [(level, each) for level, found in enumerate(held.marker.catalogs, 1) for each in found]
    listed = cache(partial(list_partition, target))
    while wanted:
        level, reference = wanted.pop()
        key = keys.catalog_key(reference, level)
        stored = store.get(key)
        body = stored.body if stored and _is_named(reference, stored.body) else None
        if body is None:
            body = _rebuilt(listed, target, reference, level)
            if body is None:
                refusal = MalformedObject(
                    f"{key} cannot be rebuilt byte for byte",
                    why="no list of what is there has its hash: an index or catalog is lost too, or it listed gaps",
                    remedy=f"restore it from a copy; if there is none: archiver repair marker {target}",
                )
                plan.problems.append(Problem(key, refusal))
                continue
            detail = f"offsets [{reference.start_offset}..{reference.next_offset}), as committed"
            plan.steps.append(storing(store, target, "catalog", key, body, stored.etag if stored else None, detail))
        catalog = markers.decode_catalog(body, reference, level)
        wanted += [(level - 1, each) for each in catalog.entries if isinstance(each, CatalogReference)]
    return plan


def _is_named(reference: CatalogReference, body: bytes) -> bool:
    return hashlib.sha256(body).hexdigest() == reference.sha256


def _rebuilt(
    listed: Callable[[], ListedPartition], target: RepairTarget, reference: CatalogReference, level: int
) -> bytes | None:
    inside, token = range(reference.start_offset, reference.next_offset), reference.name.partition("~")[2][:32]
    spans, gaps = list[Span](), set[Gap]()
    if level > 1:
        spans += _lower_catalogs(target, inside, level - 1)
    else:
        here = dataclasses.replace(listed(), listed=[each for each in listed().listed if each[0].number in inside])
        for name, (stored, index) in stored_indexes(here).items():
            if index is not None:
                spans.append(markers.entry_of(index, name, stored.body))
                gaps |= {gap for gap in index.gaps if gap.start in inside}
    # Of those that begin together, what the same rewrite stored is tried first.
    spans.sort(key=lambda span: (span.start_offset, span.name.partition("~")[2][:32] != token, span.name))
    left = (reference.num_chunks, reference.num_records, reference.bytes)
    # A catalog of no chunk lists only gaps, which no index has.
    for chosen in filter(None, _lists(spans, inside.start, left, count())):
        for catalog in _catalogs_of(chosen, sorted(gaps, key=lambda gap: gap.start), reference.next_offset, level):
            if _is_named(reference, body := markers.encode(catalog)):
                return body
    return None


def _lower_catalogs(target: RepairTarget, inside: range, level: int) -> Iterator[CatalogReference]:
    store, keys = target.store, target.keys
    listed = [parse_key(keys.layout, each.key) for each in store.list(keys.home + CATALOGS_FOLDER)]
    named = [each for each in listed if each and each.level == level and each.number in inside]
    for key in named:
        stored = store.get(key.key)
        with suppress(FormatError, ValueError):
            kind: type[markers.Catalog] = ChunkCatalog if level == 1 else ReferenceCatalog
            catalog = objects.decode(stored.body if stored else b"", kind, key.key)
            # A catalog with gaps spans all up to the next one.
            end = min([each.number for each in named if each.number > key.number], default=inside.stop)
            bounds = (key.number, end) if catalog.gaps else None
            yield markers.reference_to(catalog, key.key.removeprefix(keys.home), stored.body if stored else b"", bounds)


def _lists(
    spans: Sequence[Span], start: int, left: tuple[int, int, int], tries: Iterator[int]
) -> Iterator[tuple[Span, ...]]:
    """Yield the lists of spans apart, from offset `start` on, with these sums of chunks, records and bytes."""
    if left == (0, 0, 0):
        yield ()
        return
    for number, span in enumerate(spans):
        if next(tries) > MOST_LISTS or sum(each.num_records for each in spans[number:]) < left[1]:
            return
        chunks = span.num_chunks if isinstance(span, CatalogReference) else 1
        rest = (left[0] - chunks, left[1] - span.num_records, left[2] - span.bytes)
        if span.start_offset >= start and min(rest) >= 0:
            for others in _lists(spans[number + 1 :], span.next_offset, rest, tries):
                yield (span, *others)


def _catalogs_of(chosen: Sequence[Span], gaps: Sequence[Gap], end: int, level: int) -> Iterator[markers.Catalog]:
    """Yield the catalogs that list these spans up to an offset: without gaps, and with all that indexes know."""
    if level > 1:
        yield ReferenceCatalog(
            level=level, entries=tuple(each for each in chosen if isinstance(each, CatalogReference))
        )
        return
    entries = [each for each in chosen if isinstance(each, ChunkEntry)]
    for number, reach in enumerate([*(each.start_offset for each in entries[1:]), end]):
        # Progress without records raised the end of an entry, up to the next chunk or the first gap.
        between = [gap.start for gap in gaps if entries[number].next_offset <= gap.start < reach]
        entries[number] = replace(entries[number], next_offset=min([*between, reach]))
    for some in {(), tuple(gaps)}:
        yield ChunkCatalog(level=1, entries=tuple(entries), gaps=some)
