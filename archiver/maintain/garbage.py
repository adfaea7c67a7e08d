"""Decide what garbage collection may delete: pure rules over marker chains and a listing.

docs/garbage.md says why nothing is deleted that is or may still be committed, whoever works beside the collector. What
the code below rests on:

- A chunk starts at the `chain_end` of the marker that its writer holds, and `chain_end` never falls. So an object below
  the `chain_end` of any version of the marker belongs to a committed chunk or never will. `next_offset` is no bound:
  progress without records behind a gap raises it alone.
- What a chain holds, every later chain holds: entries only fold into catalogs, and catalogs into catalogs. So an old
  version of the marker gives a smaller bound and misses nothing below it.
- No live writer uses a name below that bound again: it asks for plain names at its own `chain_end`, and a conflict name
  is random. A Spark task that read an old marker may, but its batch is never committed: the driver refuses chunks cut
  for another `chain_end`.
- Objects are listed before markers are read: in layout `seed` the incarnations of a topic share their names, so all of
  their chains count, and the lowest bound. An object's writer settled its incarnation before it stored anything; one
  without a marker yet keeps all.
- A catalog in progress starts at the oldest entry that is still unfolded one level down, which rises too. Only one that
  ends there or below is deleted.
- An orphan that reaches into a gap may be the only object that holds the records there. It is spared, and `archiver
  repair salvage` brings it back. What salvage stores lies inside a gap until it is committed, so that it stays too.
- Leftovers (temporary files, uploads, probe objects) have no position, so their age decides: deleting one of a living
  writer costs it a repeated request, never a record.

What lies before a chain's start stays: it is the chain before, whose marker was lost. Layout `seed` may lie over an
archive of kafka-connect-s3, whose chunks are named like ours: there only chunks go whose first record the chain holds.

Of a partition that is rewritten (marker version 2), docs/lifecycle.md says what readers are promised:

- Objects are listed before the marker is read, and all is spared that the marker leads to, or the references that it
  lists as retired. These are dropped a grace after a collector first saw them: the commit itself does not say when it
  happened, since a swap may arrive late. A retired catalog shares chunks and catalogs with others, so nothing is
  deleted because it lists them, only because nothing leads to them.
- What a rewrite stores has its token in the name. No token is drawn twice, and who lost the intent never commits. So
  what nothing leads to goes, unless its token is that of the intent in force.
- A writer's chunk is dead below the chain's end, as under version 1. One that was begun under version 1 may start where
  the last gap does, if that one is `empty`.
- A writer's catalog starts where the catalogs of its level or of higher ones end, which never falls.
- Records that a gap lists as lost may be in an orphan. It is spared as long as the gap lies behind all catalogs, where
  it can be filled, and for a grace after it was recorded; for ever where it does not say when that was.

Each of these is final: what one marker calls dead, no later one leads to. So a plan may be carried out late.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from archiver.commit.objects import read_marker, try_swap
from archiver.commit.operations import Now, Protocol
from blockgz.store.writer import ListedObject, Store
from index_format import groups
from index_format.chunk_index import EMPTY, ERASED, Gap
from index_format.errors import FormatError
from index_format.keys import (
    ObjectKey,
    ObjectKind,
    PartitionKeys,
    TopicFolder,
    dated_key,
    groups_home,
    parse_configs_key,
    parse_groups_key,
)
from index_format.marker import ChunkEntry, Maintenance, Marker, Span

SHORTEST_GRACE_SECONDS = 3600.0
DELETION_ORDER = (ObjectKind.CATALOG, ObjectKind.INDEX, ObjectKind.ANCESTOR_INDEX, ObjectKind.DATA)
"""An index goes before its data, so that no index names what is not there."""


class Found(NamedTuple):
    """An object of a partition in a listing."""

    name: ObjectKey
    listed: ListedObject


@dataclass(frozen=True)
class Chain:
    """Everything that one version of a marker leads to, for garbage collection what it retired included."""

    keys: PartitionKeys
    marker: Marker
    entries: Sequence[ChunkEntry]
    catalogs: frozenset[str]
    """The keys of all catalogs, whatever their level."""
    gaps: Sequence[Gap]
    """Those in the catalogs included."""

    @property
    def end(self) -> int | None:
        """Where the next chunk starts; None before the first."""
        return self.marker.chain_end

    @property
    def has_own_names(self) -> bool:
        """Whether nothing but this chain's chunks has such names."""
        return self.keys.layout != "seed"

    @cached_property
    def by_number(self) -> Mapping[int, Sequence[ChunkEntry]]:
        """Entries by the number that the names of their objects have; several where chunks were rewritten."""
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
        """Where the next catalog of that level starts, or a later one; None while there is no chunk."""
        below: list[Sequence[Span]] = [*reversed(self.marker.catalogs[: level - 1]), self.marker.tail]
        return next((spans[0].start_offset for spans in below if spans), self.end)

    def holds(self, offset: int) -> bool:
        """Whether the offset lies inside the chain and in no gap: its record, if there is one, is archived."""
        start, end = self.marker.start_offset, self.end
        if start is None or end is None or not start <= offset < end:
            return False
        return not any(offset in gap for gap in self.gaps)


def entries_in_doubt(chains: Sequence[Chain], objects: Iterable[Found]) -> Iterator[tuple[Chain, ChunkEntry]]:
    """Committed chunks beside which other data lies under their number: their index has to be read to tell which.

    `chains`: those that share the names; one but in layout `seed`.
    """
    stems: dict[int, set[str]] = defaultdict(set)
    for found in objects:
        if found.name.kind in (ObjectKind.DATA, ObjectKind.ANCESTOR_INDEX):
            stems[found.name.number].add(found.name.stem)
    for number, names in stems.items():
        if len(names) > 1:
            yield from ((chain, entry) for chain in chains for entry in chain.by_number.get(number, ()))


def catalogs_in_doubt(chains: Sequence[Chain], objects: Iterable[Found]) -> Iterator[Found]:
    """Catalogs that nothing references and that are not in progress: they have to be read to tell where they end."""
    for found in objects:
        chain = _chain_of(chains, found)
        if chain is not None and found.name.kind is ObjectKind.CATALOG and found.name.key not in chain.catalogs:
            bound = chain.unfolded_from(found.name.level)
            if bound is not None and found.name.number < bound:
                yield found


def find_dead(
    chains: Sequence[Chain],
    objects: Collection[Found],
    data_stems: Mapping[str, str],
    catalog_ends: Mapping[str, int],
    *,
    now: float,
    grace: float,
) -> list[Found]:
    """What is not committed and never will be, in the order in which it must be deleted; `spared` says what stays.

    `data_stems`: index key -> stem of the data that it names, for `entries_in_doubt`; one that is missing keeps all
    data at its number. `catalog_ends`: key -> next_offset, for `catalogs_in_doubt`; one that is missing is kept. `now`
    and the objects' times in seconds of the store's clock, `grace` in seconds.
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


def in_order(dead: Iterable[Found]) -> list[Found]:
    """In the order in which they must be deleted."""
    return sorted(dead, key=lambda found: (DELETION_ORDER.index(found.name.kind), found.name.key))


def may_meet_a_gap(chains: Sequence[Chain], found: Found) -> bool:
    """Whether a gap ends above the object's number: it has to be read to tell which offsets it holds."""
    is_catalog = found.name.kind is ObjectKind.CATALOG
    return not is_catalog and any(gap.end > found.name.number for chain in chains for gap in chain.gaps)


def spared(chains: Sequence[Chain], dead: Iterable[Found], held: Mapping[str, Sequence[range]]) -> list[Found]:
    """The dead objects that stay, because they may hold records which a gap lists as lost.

    `held`: key -> offsets between which the object holds records, for `may_meet_a_gap`; one that is missing stays.
    """
    return [
        found
        for found in dead
        if may_meet_a_gap(chains, found)
        and (found.name.key not in held or any(gaps_met(chain.gaps, held[found.name.key]) for chain in chains))
    ]


def gaps_met(gaps: Iterable[Gap], held: Sequence[range]) -> list[Gap]:
    """The gaps in which some of those offsets lie."""
    return [gap for gap in gaps if any(max(gap.start, each.start) < min(gap.end, each.stop) for each in held)]


def _is_dead_chunk(chains: Sequence[Chain], found: Found, data_stems: Mapping[str, str]) -> bool:
    number = found.name.number
    if not chains or any(chain.end is None or number >= chain.end for chain in chains):
        return False
    if any(chain.marker.start_offset is None or number < chain.marker.start_offset for chain in chains):
        return False
    if any(not chain.has_own_names and not chain.holds(number) for chain in chains):
        return False
    if found.name.kind is ObjectKind.INDEX:
        return not any(found.name.key in chain.indexes for chain in chains)
    committed = [chain.index_key(entry) for chain in chains for entry in chain.by_number.get(number, ())]
    return all(data_stems.get(index, found.name.stem) != found.name.stem for index in committed)


def _is_dead_catalog(chains: Sequence[Chain], found: Found, catalog_ends: Mapping[str, int]) -> bool:
    chain = _chain_of(chains, found)
    if chain is None or found.name.key in chain.catalogs or found.name.key not in catalog_ends:
        return False
    bound = chain.unfolded_from(found.name.level)
    return bound is not None and catalog_ends[found.name.key] <= bound


def _chain_of(chains: Sequence[Chain], found: Found) -> Chain | None:
    return next((chain for chain in chains if chain.keys.folder == found.name.folder), None)


def keep_books(keys: PartitionKeys, grace: float) -> Protocol[None]:
    """Bring what the marker says of retired references and of an intent up to date; `grace` in seconds."""
    while True:
        held = yield from read_marker(keys.marker)
        if held is None or not held.marker.maintenance:
            return
        now: int = yield Now()
        body = booked(held.marker.maintenance, now=now, grace_ms=round(grace * 1000))
        if body == held.marker.maintenance:
            return
        yield from try_swap(keys.marker, replace(held.marker, maintenance=body), held.etag)


def booked(body: Maintenance, *, now: int, grace_ms: int) -> Maintenance:
    """References that were just retired get the time; those whose grace is over go, and so does an abandoned intent.

    What is further in the future than a grace, a clock wrote that was wrong.
    """
    stamped = [
        each if each.at is not None and each.at <= now + grace_ms else replace(each, at=now) for each in body.retired
    ]
    kept = tuple(each for each in stamped if each.at is not None and now <= each.at + grace_ms)
    is_abandoned = body.rewriting is not None and abs(now - body.rewriting.since) > grace_ms
    return replace(body, retired=kept, rewriting=None if is_abandoned else body.rewriting)


def find_dead_maintained(
    chain: Chain, objects: Collection[Found], data_stems: Mapping[str, str], *, now: float, grace: float
) -> list[Found]:
    """As `garbage.find_dead` for a partition of version 2, whose `chain` holds what its marker retired, too."""
    old = [found for found in objects if now - found.listed.modified >= grace]
    return in_order(found for found in old if not is_reached(chain, found, data_stems) and _is_final(chain, found))


def is_reached(chain: Chain, found: Found, data_stems: Mapping[str, str]) -> bool:
    """Whether the marker leads to the object, or references that it retired."""
    if found.name.kind is ObjectKind.CATALOG:
        return found.name.key in chain.catalogs
    if found.name.kind is ObjectKind.INDEX:
        return found.name.key in chain.indexes
    indexes = [chain.index_key(entry) for entry in chain.by_number.get(found.name.number, ())]
    return any(data_stems.get(index, found.name.stem) == found.name.stem for index in indexes)


def _is_final(chain: Chain, found: Found) -> bool:
    """Whether no later marker leads to an object that this one does not lead to."""
    marker, name = chain.marker, found.name
    if name.token is not None:
        rewriting = marker.maintenance.rewriting if marker.maintenance else None
        return rewriting is None or rewriting.token != name.token
    if name.kind is ObjectKind.CATALOG:
        cover = marker.cover(name.level)
        return cover is not None and name.number < cover
    end = next_start(marker)
    return marker.start_offset is not None and end is not None and marker.start_offset <= name.number < end


def next_start(marker: Marker) -> int | None:
    """The lowest offset at which the next chunk may start."""
    last = marker.gaps[-1] if marker.gaps else None
    if last is not None and last.reason == EMPTY and last.end == marker.chain_end:
        return last.start
    return marker.chain_end


def guarded_gaps(chain: Chain, *, now: float, grace: float) -> list[Gap]:
    """The gaps whose lost records may be in objects that nothing leads to; see above."""
    cover = chain.marker.cover(1) or 0
    return [
        gap
        for gap in chain.gaps
        if gap.reason not in (EMPTY, ERASED)
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
    """The time that names it, in ms."""
    listed: ListedObject


Oldest = Mapping[TopicFolder, int]
"""By topic, the time of the oldest record that can be read, in ms, where a prune has made that later than it was."""


def group_table(layout: str, listed: ListedObject) -> DatedObject | None:
    """The table of consumer groups that an object of a listing is; None for all others."""
    parsed = parse_groups_key(layout, listed.key)
    return None if parsed is None else DatedObject(*parsed, listed)


def dated_config(layout: str, listed: ListedObject) -> DatedObject | None:
    """The version of a configuration that an object of a listing is; None for all others."""
    parsed = parse_configs_key(layout, listed.key)
    return None if parsed is None else DatedObject(*parsed, listed)


def oldest_record(markers: Iterable[Marker]) -> int | None:
    """The time of the oldest record in the partitions of these markers, in ms; None where none was pruned.

    None, too, where a record has no timestamp. What a marker retired can be read until its grace is over.
    """
    oldest, is_pruned = list[int](), False
    for marker in markers:
        is_pruned |= marker.pruned_before > 0
        references = [each for level in marker.catalogs for each in level]
        references += [each for retired in marker.retired for each in retired.references]
        oldest += [each.min_timestamp for each in references if each.num_records]
        oldest += [entry.min_timestamp for entry in marker.tail]
    return min(oldest) if is_pruned and oldest and min(oldest) >= 0 else None


def find_superfluous(tables: Iterable[DatedObject], oldest: Oldest, *, now: float, grace: float) -> list[DatedObject]:
    """The tables that may go, in order; `now` in seconds of the store's clock, `grace` in seconds.

    Of each topic there stay all of the last day, the newest of each hour up to a month, and of each day before that.
    The newest of all always stays, and what is younger than the grace. What is below the oldest record goes as well.
    """
    found: list[DatedObject] = []
    for folder, of_folder in _by_folder(tables):
        going = {*_thinned(of_folder, round(now * 1000)), *_below(of_folder, oldest.get(folder))}
        found += [table for table in of_folder if table in going and now - table.listed.modified >= grace]
    return found


def spared_for_groups(
    store: Store, layout: str, tables: Iterable[DatedObject], going: Sequence[DatedObject]
) -> list[DatedObject]:
    """Return those of `going` but for the newest table with groups of each topic, which its newest table of all names.

    Nothing goes of a topic whose newest table cannot be read. Raises the errors of the store.
    """
    folders = {table.folder for table in going}
    found: list[DatedObject] = []
    for folder, of_folder in _by_folder(table for table in tables if table.folder in folders):
        newest = of_folder[-1]
        key = dated_key(groups_home(layout, folder), newest.at)
        stored = store.get(key)
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
    """The versions of configurations that were replaced before the oldest record, in order, and the grace is over."""
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
    """Those that say nothing of that time or later: another one was newer by then."""
    before = [each for each in objects if oldest_ms is not None and each.at <= oldest_ms]
    return before[:-1]


def _bucket(at: int, now_ms: int) -> tuple[int, int]:
    """Of the tables in one, the newest stays."""
    age = now_ms - at
    width = 1 if age < DAY_MS else HOUR_MS if age < MONTH_MS else DAY_MS
    return width, at // width
