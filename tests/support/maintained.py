"""What maintainers make of an archive, with nothing but the format: pruned, merged, erased, old objects deleted."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from msgspec.structs import replace

from index_format import objects
from index_format.keys import FLOORS_FOLDER, ChunkStart, PartitionKeys, Rewritten, catalog_name, data_suffix
from index_format.marker import (
    CatalogReference,
    ChunkCatalog,
    ChunkEntry,
    Maintenance,
    Marker,
    Retired,
    Rewriting,
    encode,
    entry_of,
    folded,
    reference_to,
    revised,
)
from index_format.objects import ERASED, ChunkIndex, Erased, Gap
from index_format.records import Record
from tests.support.archives import PartitionWriter, records


@dataclass
class Maintainer:
    """Rewrites what a partition's writer committed; every change stores the marker."""

    writer: PartitionWriter
    deletes: bool = True
    """Whether what a rewrite replaced goes at once."""
    erased: set[int] = field(default_factory=set)
    """The offsets of all records that were erased."""
    rewrites: int = 0

    @property
    def keys(self) -> PartitionKeys:
        return self.writer.keys

    @property
    def marker(self) -> Marker:
        return self.writer.marker

    @property
    def maintenance(self) -> Maintenance:
        return self.marker.maintenance or Maintenance()

    def fold(self) -> None:
        """The whole tail becomes a catalog of level 1."""
        end = self.marker.chain_end
        assert end is not None
        self._swap(replace(self.maintenance, fold_before=end))
        marker, pending = folded(self.marker)
        for catalog in pending:
            self._put(self.keys.home + catalog.reference.name, catalog.body)
        self.writer.marker = marker
        self._swap(self.maintenance)

    def rewrite(self, groups: Sequence[int] = (), erase: Collection[int] = ()) -> None:
        """Rewrites all catalogs: `groups` says how many neighbouring chunks become one, in turn, gaps permitting."""
        self.erased |= set(erase)
        self.rewrites += 1
        self._numbers = iter(range(10**6))
        sizes = list(groups) or [1]
        dead: list[str] = []
        self._swap(self.maintenance, tuple(self._rewritten(each, sizes, dead) for each in self._catalogs))
        self._delete(dead)

    def prune(self, count: int) -> int:
        """The oldest catalogs go; gives the floor."""
        gone, left = self._catalogs[:count], self._catalogs[count:]
        floor = gone[-1].next_offset
        self._put(f"{self.keys.home}{FLOORS_FOLDER}{floor:020d}", b'{"format":"block-gzip-floor"}')
        self._swap(replace(self.maintenance, pruned_before=floor), left)
        self._delete(self.keys.home + reference.name for reference in gone)
        return floor

    def begin(self, kind: str) -> None:
        """A rewrite of the first catalog is under way; an earlier one waits for garbage collection."""
        first = self._catalogs[0]
        bounds = {"start": first.start_offset, "end": first.next_offset}
        rewriting = Rewriting(token="1" * 32, kind=kind, level=1, since=0, **bounds)
        retired = Retired(references=(first,), token="0" * 32)
        self._swap(replace(self.maintenance, rewriting=rewriting, retired=(retired,)))

    @property
    def chunks(self) -> list[ChunkEntry]:
        return [entry for each in self._catalogs for entry in self._read(each).entries]

    def index(self, entry: ChunkEntry) -> ChunkIndex:
        return objects.decode(self.writer.archive.stored(self.keys.chunks + entry.name), ChunkIndex, entry.name)

    @property
    def _catalogs(self) -> tuple[CatalogReference, ...]:
        """All are of level 1."""
        assert len(self.marker.catalogs) < 2
        return self.marker.catalogs[0] if self.marker.catalogs else ()

    def _rewritten(self, reference: CatalogReference, sizes: list[int], dead: list[str]) -> CatalogReference:
        catalog = self._read(reference)
        dead.append(self.keys.home + reference.name)
        entries: list[ChunkEntry] = []
        gaps = list(catalog.gaps)
        for group in _groups(catalog.entries, sizes):
            dead += [self.keys.chunks + each.name for each in group]
            dead += [self.keys.chunks + self.index(each).data.name for each in group]
            made = self._chunk(group)
            if made is None:
                gaps += _erased_around(catalog.gaps, group[0].start_offset, group[-1].next_offset)
            else:
                entries.append(made)
        copied = ChunkCatalog(level=1, entries=tuple(entries), gaps=tuple(sorted(gaps, key=lambda gap: gap.start)))
        name = catalog_name(1, reference.start_offset, self._mark())
        body = encode(copied)
        self._put(self.keys.home + name, body)
        bounds = (reference.start_offset, reference.next_offset)
        return reference_to(copied, name, body, bounds if copied.gaps else None)

    def _chunk(self, group: Sequence[ChunkEntry]) -> ChunkEntry | None:
        """The chunk that stands for some; None where no record is left of them."""
        first, last = group[0], group[-1]
        indexes = [self.index(each) for each in group]
        start, end = first.start_offset, last.next_offset
        kept = [each for each in self.records_at(start, end) if each.offset not in self.erased]
        if not kept:
            return None
        like, data = self.writer._chunk(kept, start, end, [gap for each in indexes for gap in each.gaps], 200)
        mark, chunk_start = self._mark(), ChunkStart(start, kept[0].offset, kept[0].timestamp)
        name = self.keys.data_name(chunk_start, data_suffix(self.writer.record_format, "gzip"), mark)
        gone = runs(offset for offset in self.erased if start <= offset < end)
        index = replace(
            like,
            data=replace(like.data, name=name, sha256=hashlib.sha256(data).hexdigest()),
            previous=None,
            epoch=max(each.epoch for each in indexes),
            erased=tuple(Erased(*each) for each in gone) or like.erased,
        )
        body = objects.encode(index)
        self._put(self.keys.chunks + name, data)
        index_name = self.keys.index_name(chunk_start, mark)
        self._put(self.keys.chunks + index_name, body)
        return entry_of(index, index_name, body)

    def records_at(self, start: int, end: int) -> list[Record]:
        """What was committed at offsets [start, end)."""
        return [each for each in self.writer.records if start <= each.offset < end]

    def _mark(self) -> Rewritten:
        return Rewritten(f"{self.rewrites:032x}", next(self._numbers))

    def _swap(self, maintenance: Maintenance, catalogs: tuple[CatalogReference, ...] | None = None) -> None:
        levels = self.marker.catalogs if catalogs is None else (catalogs,)
        after = replace(self.marker, version=2, maintenance=maintenance, catalogs=levels)
        self.writer.marker = revised(after)
        self.writer.store_marker()

    def _read(self, reference: CatalogReference) -> ChunkCatalog:
        return objects.decode(self.writer.archive.stored(self.keys.home + reference.name), ChunkCatalog, reference.name)

    def _put(self, key: str, body: bytes) -> None:
        self.writer.archive.put(key, body)

    def _delete(self, keys: Iterable[str]) -> None:
        for key in keys if self.deletes else ():
            self.writer.archive.remove(key)


def _groups(entries: Sequence[ChunkEntry], sizes: list[int]) -> list[list[ChunkEntry]]:
    """Neighbours, as many as `sizes` say in turn, none of them across a gap."""
    groups: list[list[ChunkEntry]] = []
    for entry in entries:
        group = groups[-1] if groups else []
        if group and len(group) < sizes[(len(groups) - 1) % len(sizes)] and group[-1].next_offset == entry.start_offset:
            group.append(entry)
        else:
            groups.append([entry])
    return groups


def _erased_around(gaps: Sequence[Gap], start: int, end: int) -> list[Gap]:
    """All of offsets [start, end) but what gaps inside tell of."""
    found = []
    for gap in [*(each for each in gaps if start <= each.start < end), None]:
        here = end if gap is None else gap.start
        if start < here:
            found.append(Gap(start, here, ERASED, at=1))
        start = end if gap is None else gap.end
    return found


def runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    numbered = enumerate(sorted(offsets))
    found = [[offset for _, offset in run] for _, run in groupby(numbered, key=lambda each: each[1] - each[0])]
    return [(run[0], run[-1] + 1) for run in found]


def three_catalogs(writer: PartitionWriter) -> Maintainer:
    """Commit six chunks of ten records, in three catalogs, and one in the tail."""
    maintainer = Maintainer(writer)
    for start in range(0, 60, 20):
        writer.commit(records(range(start, start + 10)))
        writer.commit(records(range(start + 10, start + 20)))
        maintainer.fold()
    writer.commit(records(range(60, 70)))
    return maintainer
