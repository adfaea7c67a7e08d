"""What garbage collection may delete: a pure decision over marker chains and a listing.

docs/commit.md says why nothing is deleted that is or may still be committed, whoever works beside the collector. What
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
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from blockgz.store.writer import ListedObject
from index_format.chunk_index import Gap
from index_format.keys import ObjectKey, ObjectKind, PartitionKeys
from index_format.marker import ChunkEntry, Marker, Span

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
    and the objects' times in seconds of the store's clock, `grace` in seconds. Raises ValueError for too short a grace.
    """
    if grace < SHORTEST_GRACE_SECONDS:
        raise ValueError(f"a grace of {grace} s is too short")
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
