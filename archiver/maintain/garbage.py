"""Decide what garbage collection may delete: pure rules over marker chains and a listing.

docs/garbage.md and docs/lifecycle.md explain why nothing is deleted that is or may still be committed, no matter who
works at the same time. Objects are listed before markers are read. The decisions are final: no later marker references
what one marker calls dead, so a plan may be carried out late.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.commit import read_marker, try_swap
from archiver.commit.operations import Now, Protocol
from archiver.maintain.rewrite.tree import StoredChain
from blockgz.errors import FormatError
from blockgz.store.writer import ListedObject, Store
from index_format import groups
from index_format.keys import ObjectKey, ObjectKind, PartitionKeys, TopicFolder, dated_key, groups_home
from index_format.marker import ChunkEntry, Maintenance, Marker
from index_format.objects import EMPTY, ERASED, LOST, Gap

SHORTEST_GRACE_SECONDS = 3600.0
# The order of deletion: an index before its data, so that no index names missing data.
DELETION_ORDER = (ObjectKind.CATALOG, ObjectKind.INDEX, ObjectKind.ANCESTOR_INDEX, ObjectKind.DATA)


class ListedPart(NamedTuple):
    """An object of a partition in a listing."""

    name: ObjectKey
    listed: ListedObject


def entries_in_doubt(
    chains: Sequence[StoredChain], objects: Iterable[ListedPart]
) -> Iterator[tuple[StoredChain, ChunkEntry]]:
    """Yield committed chunks with other data under the same number: only their index shows which data is theirs.

    `chains` share the names; it is one, except in layout `seed`.
    """
    stems: dict[int, set[str]] = defaultdict(set)
    for found in objects:
        if found.name.kind in (ObjectKind.DATA, ObjectKind.ANCESTOR_INDEX):
            stems[found.name.number].add(found.name.stem)
    for number, names in stems.items():
        if len(names) > 1:
            yield from ((chain, entry) for chain in chains for entry in chain.by_number.get(number, ()))


def catalogs_in_doubt(chains: Sequence[StoredChain], objects: Iterable[ListedPart]) -> Iterator[ListedPart]:
    """Yield catalogs that are not referenced and not in progress: they have to be read to know where they end."""
    for found in objects:
        chain = _chain_of(chains, found)
        if chain is not None and found.name.kind is ObjectKind.CATALOG and found.name.key not in chain.catalogs:
            bound = chain.unfolded_from(found.name.level)
            if bound is not None and found.name.number < bound:
                yield found


def find_dead(
    chains: Sequence[StoredChain],
    objects: Collection[ListedPart],
    data_stems: Mapping[str, str],
    catalog_ends: Mapping[str, int],
    *,
    now: float,
    grace: float,
) -> list[ListedPart]:
    """Return what is not committed and never will be, in the order of deletion; `find_spared` returns what stays of it.

    `data_stems` maps index keys to the stem of their data, for `entries_in_doubt`; without an entry, all data at its
    number is kept. `catalog_ends` maps keys to next_offset, for `catalogs_in_doubt`; without an entry, the catalog is
    kept. `now` and the objects' times are in seconds of the store's clock, `grace` in seconds.
    """
    old = [found for found in objects if now - found.listed.modified >= grace]
    dead = [
        found
        for found in old
        if (
            _is_dead_catalog(chains, found, catalog_ends)
            if found.name.kind is ObjectKind.CATALOG
            else _is_dead_chunk(chains, found, data_stems)
        )
    ]
    return in_order(dead)


def in_order(dead: Iterable[ListedPart]) -> list[ListedPart]:
    return sorted(dead, key=lambda found: (DELETION_ORDER.index(found.name.kind), found.name.key))


def may_meet_a_gap(chains: Sequence[StoredChain], found: ListedPart) -> bool:
    """Return whether a gap ends above the object's number: then it has to be read to know its offsets."""
    is_catalog = found.name.kind is ObjectKind.CATALOG
    return not is_catalog and any(gap.end > found.name.number for chain in chains for gap in chain.gaps)


def find_spared(
    chains: Sequence[StoredChain], dead: Iterable[ListedPart], held: Mapping[str, Sequence[range]]
) -> list[ListedPart]:
    """Return the dead objects that stay, because they may hold records which a gap lists as lost.

    `held` maps keys to the ranges of an object's records, for `may_meet_a_gap`; without an entry, the object stays.
    """
    return [
        found
        for found in dead
        if may_meet_a_gap(chains, found)
        and (found.name.key not in held or any(gaps_met(chain.gaps, held[found.name.key]) for chain in chains))
    ]


def gaps_met(gaps: Iterable[Gap], held: Sequence[range]) -> list[Gap]:
    return [gap for gap in gaps if any(max(gap.start, each.start) < min(gap.end, each.stop) for each in held)]


def _is_dead_chunk(chains: Sequence[StoredChain], found: ListedPart, data_stems: Mapping[str, str]) -> bool:
    number = found.name.number
    # A chunk starts at the chain_end of its writer's marker, which never falls: below it, an object is committed or
    # never will be. next_offset is not a bound: progress without records behind a gap raises it alone.
    # In layout seed the incarnations of a topic share their names: the lowest bound counts.
    if not chains or any(chain.end is None or number >= chain.end for chain in chains):
        return False
    # What lies before a chain's start belongs to the chain before, whose marker was lost.
    if any(chain.marker.start_offset is None or number < chain.marker.start_offset for chain in chains):
        return False
    # kafka-connect-s3 names chunks alike in the same folders: only chunks go whose record the chain holds.
    if any(not chain.has_own_names and not chain.holds(number) for chain in chains):
        return False
    if found.name.kind is ObjectKind.INDEX:
        return not any(found.name.key in chain.indexes for chain in chains)
    committed = [chain.index_key(entry) for chain in chains for entry in chain.by_number.get(number, ())]
    return all(data_stems.get(index, found.name.stem) != found.name.stem for index in committed)


def _is_dead_catalog(chains: Sequence[StoredChain], found: ListedPart, catalog_ends: Mapping[str, int]) -> bool:
    chain = _chain_of(chains, found)
    if chain is None or found.name.key in chain.catalogs or found.name.key not in catalog_ends:
        return False
    # A catalog in progress starts at the oldest entry that is not folded yet one level down, which only rises.
    bound = chain.unfolded_from(found.name.level)
    return bound is not None and catalog_ends[found.name.key] <= bound


def _chain_of(chains: Sequence[StoredChain], found: ListedPart) -> StoredChain | None:
    return next((chain for chain in chains if chain.keys.folder == found.name.folder), None)


def keep_books(keys: PartitionKeys, grace: float) -> Protocol[None]:
    """Update the retired references and the intent in a marker; `grace` in seconds."""
    while True:
        held = yield from read_marker(keys.marker)
        if held is None or not held.marker.maintenance:
            return
        # The commit cannot record when it happened, since a swap may arrive late: the grace begins when gc sees it.
        now: int = yield Now()
        body = update_books(held.marker.maintenance, now=now, grace_ms=round(grace * 1000))
        if body == held.marker.maintenance:
            return
        yield from try_swap(keys.marker, replace(held.marker, maintenance=body), held.etag)


def update_books(body: Maintenance, *, now: int, grace_ms: int) -> Maintenance:
    """Return the maintainers' part with times for new retired references, without old and abandoned ones."""
    # A time further in the future than a grace period was written by a wrong clock.
    stamped = [
        each if each.at is not None and each.at <= now + grace_ms else replace(each, at=now) for each in body.retired
    ]
    kept = tuple(each for each in stamped if each.at is not None and now <= each.at + grace_ms)
    is_abandoned = body.rewriting is not None and abs(now - body.rewriting.since) > grace_ms
    return replace(body, retired=kept, rewriting=None if is_abandoned else body.rewriting)


def find_dead_maintained(
    chain: StoredChain, objects: Collection[ListedPart], data_stems: Mapping[str, str], *, now: float, grace: float
) -> list[ListedPart]:
    """Return the dead objects of a partition of version 2; its `chain` includes what its marker retired."""
    # A retired catalog shares chunks and catalogs with others: nothing goes because it lists them, only what nothing
    # references any longer.
    old = [found for found in objects if now - found.listed.modified >= grace]
    return in_order(found for found in old if not is_reached(chain, found, data_stems) and _is_final(chain, found))


def is_reached(chain: StoredChain, found: ListedPart, data_stems: Mapping[str, str]) -> bool:
    """Return whether the marker, or references that it retired, lead to the object."""
    if found.name.kind is ObjectKind.CATALOG:
        return found.name.key in chain.catalogs
    if found.name.kind is ObjectKind.INDEX:
        return found.name.key in chain.indexes
    indexes = [chain.index_key(entry) for entry in chain.by_number.get(found.name.number, ())]
    return any(data_stems.get(index, found.name.stem) == found.name.stem for index in indexes)


def _is_final(chain: StoredChain, found: ListedPart) -> bool:
    """Return whether no later marker leads to an object that this one does not lead to."""
    marker, name = chain.marker, found.name
    if name.token is not None:
        # No token is used twice, and a rewrite without its intent never commits.
        rewriting = marker.maintenance.rewriting if marker.maintenance else None
        return rewriting is None or rewriting.token != name.token
    if name.kind is ObjectKind.CATALOG:
        # A writer's catalog starts at the end of the catalogs of its level or of higher ones, which never falls.
        cover = marker.cover(name.level)
        return cover is not None and name.number < cover
    end = next_start(marker)
    return marker.start_offset is not None and end is not None and marker.start_offset <= name.number < end


def next_start(marker: Marker) -> int | None:
    """Return the lowest offset at which the next chunk may start."""
    # A chunk from before the first rewrite may start at the start of the last gap, if that gap is empty.
    last = marker.gaps[-1] if marker.gaps else None
    if last is not None and last.reason == EMPTY and last.end == marker.chain_end:
        return last.start
    return marker.chain_end


def find_guarded_gaps(chain: StoredChain, *, now: float, grace: float) -> list[Gap]:
    """Return the gaps whose lost records may be in unreferenced objects, which salvage brings back."""
    # Behind all catalogs a gap can still be filled; its orphans may be the only objects with its records.
    cover = chain.marker.cover(1) or 0
    return [
        gap
        for gap in chain.gaps
        if gap.reason not in (EMPTY, ERASED, LOST)
        and gap.end > chain.marker.pruned_before
        and (gap.start >= cover or gap.at is UNSET or now < gap.at / 1000 + grace)
    ]


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MONTH_MS = 30 * DAY_MS


class DatedObject(NamedTuple):
    """A table of consumer groups, or a version of a topic's configuration, in a listing."""

    folder: TopicFolder
    at: int
    """The time in its name, in ms."""
    listed: ListedObject


# The time of the oldest readable record in ms, by topic, if a prune has removed older ones.
Oldest = Mapping[TopicFolder, int]


def oldest_record(markers: Iterable[Marker]) -> int | None:
    """Return the time of the oldest readable record of these markers in ms; None if none was pruned or is known."""
    oldest, is_pruned = list[int](), False
    for marker in markers:
        is_pruned |= marker.pruned_before > 0
        references = [each for level in marker.catalogs for each in level]
        # Retired references can be read until their grace is over.
        references += [each for retired in marker.retired for each in retired.references]
        oldest += [each.min_timestamp for each in references if each.num_records]
        oldest += [entry.min_timestamp for entry in marker.tail]
    return min(oldest) if is_pruned and oldest and min(oldest) >= 0 else None


def find_superfluous(tables: Iterable[DatedObject], oldest: Oldest, *, now: float, grace: float) -> list[DatedObject]:
    """Return the tables that may go, in order; `now` in seconds of the store's clock, `grace` in seconds.

    Of each topic, all tables of the last day stay, the newest of each hour up to a month, and of each day before that.
    The newest of all stays, and what is younger than the grace. Tables older than the oldest record go.
    """
    found: list[DatedObject] = []
    for folder, of_folder in _by_folder(tables):
        going = {*_thinned(of_folder, round(now * 1000)), *_below(of_folder, oldest.get(folder))}
        found += [table for table in of_folder if table in going and now - table.listed.modified >= grace]
    return found


def without_needed_tables(
    store: Store, layout: str, tables: Iterable[DatedObject], going: Sequence[DatedObject]
) -> list[DatedObject]:
    """Return `going` without the newest table with groups of each topic, if its newest table refers to it."""
    folders = {table.folder for table in going}
    found: list[DatedObject] = []
    for folder, of_folder in _by_folder(table for table in tables if table.folder in folders):
        newest = of_folder[-1]
        key = dated_key(groups_home(layout, folder), newest.at)
        stored = store.get(key)
        # Nothing goes of a topic whose newest table cannot be read.
        with suppress(FormatError):
            table = None if stored is None else groups.decode(stored.body, key, newest.at)
            if table is None or table.has_groups:
                needed = None
            else:
                until = table.groups_slot or 0
                needed = max((each.at for each in of_folder if each.at <= until), default=None)
            found += [each for each in going if each.folder == folder and each.at != needed]
    return found


def find_pruned(configs: Iterable[DatedObject], oldest: Oldest, *, now: float, grace: float) -> list[DatedObject]:
    """Return the versions of configurations that were replaced before the oldest record, and whose grace is over."""
    return [
        each
        for folder, of_folder in _by_folder(configs)
        for each in _below(of_folder, oldest.get(folder))
        if now - each.listed.modified >= grace
    ]


def _by_folder(objects: Iterable[DatedObject]) -> list[tuple[TopicFolder, list[DatedObject]]]:
    by_folder: dict[TopicFolder, list[DatedObject]] = {}
    for each in sorted(objects, key=lambda each: (each.folder, each.at)):
        by_folder.setdefault(each.folder, []).append(each)
    return list(by_folder.items())


def _thinned(tables: Sequence[DatedObject], now_ms: int) -> list[DatedObject]:
    newest = {_bucket(table.at, now_ms): table for table in tables}
    kept = {table.at for table in newest.values()}
    return [table for table in tables if table.at not in kept]


def _below(objects: Sequence[DatedObject], oldest_ms: int | None) -> list[DatedObject]:
    """Return the objects that a newer one replaced before that time."""
    before = [each for each in objects if oldest_ms is not None and each.at <= oldest_ms]
    return before[:-1]


def _bucket(at: int, now_ms: int) -> tuple[int, int]:
    """Return the bucket of a table; the newest table of each bucket stays."""
    age = now_ms - at
    width = 1 if age < DAY_MS else HOUR_MS if age < MONTH_MS else DAY_MS
    return width, at // width
