"""Objects above a marker: of a running writer, left by dead ones, or proof that an older marker was put back.

Objects are listed first and markers read after that. What a marker led to when an object was stored, a marker that is
read later leads to as well, unless an older one was put back. FORMAT.md, "Above the marker", says what proves that.
"""

import asyncio
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.partition import ArchivedPartition, Damage, Damaged, LostRange, prefetched, streamed
from blockgz.errors import ObjectMissing
from index_format import objects
from index_format.keys import ObjectKey, ObjectKind, PartitionKeys, TopicFolder, conflict_in, parse_key
from index_format.marker import MAX_LEVELS, ChunkCatalog, Marker, ReferenceCatalog, Span
from index_format.objects import ChunkIndex
from replayer.verify.chunk_checks import ChunkFindings
from replayer.verify.report import Orphan

PARTITIONS_AT_ONCE = 8
READS_AT_ONCE = 16
# The most objects above one marker that are looked at, apart from the newest index.
MOST_OBJECTS = 10_000


class Written(NamedTuple):
    """An index or a catalog above a marker; a catalog has only the first three fields."""

    key: str
    start_offset: int
    next_offset: int | None
    """None for a damaged object, whose name alone is known."""
    epoch: int = 0
    previous: str | None = None
    data: str | None = None

    @property
    def is_catalog(self) -> bool:
        return self.data is None


class _AbovePartition:
    """The objects of one partition above its marker, as far as the marker was known when they were listed."""

    def __init__(self, marker: Marker) -> None:
        self.chain_end = marker.chain_end or 0
        levels: list[Sequence[Span]] = [marker.tail, *marker.catalogs]
        # The start of the next catalog of each level, or of a later one; level 1 comes first.
        self._unfolded = [
            next((spans[0].start_offset for spans in levels[level::-1] if spans), self.chain_end)
            for level in range(MAX_LEVELS)
        ]
        self.keys: list[ObjectKey] = []
        # An index, where not all are among `keys`.
        self.newest: ObjectKey | None = None

    def may_hold(self, key: ObjectKey) -> bool:
        """Return whether the object may be one that the marker leads to nothing of."""
        if key.kind is ObjectKind.CATALOG:
            return key.number >= self._unfolded[min(key.level, len(self._unfolded)) - 1]
        return key.kind is not ObjectKind.ANCESTOR_INDEX and key.number >= self.chain_end

    def offer(self, key: ObjectKey) -> None:
        if not self.may_hold(key):
            return
        if len(self.keys) < MOST_OBJECTS:
            self.keys.append(key)
        elif key.kind is ObjectKind.INDEX and (self.newest is None or key.number > self.newest.number):
            self.newest = key


class AboveListing:
    """A listing of the objects above the markers of some partitions, and on request of all chunks."""

    def __init__(self, *, has_chunks: bool) -> None:
        # Bytes of data in these partitions.
        self.bytes = 0
        # Hashes of the names of all indexes and data objects: of a chunk 16 bytes are kept.
        kinds = (ObjectKind.INDEX, ObjectKind.DATA) if has_chunks else ()
        self.chunks = {kind: array("q") for kind in kinds} or None
        self.kept: dict[tuple[TopicFolder, int], _AbovePartition] = {}

    def note(self, key: ObjectKey) -> None:
        """Keep that a chunk's index or data exists."""
        if self.chunks is not None and key.kind in self.chunks:
            self.chunks[key.kind].append(hash(key.stem))

    def lacks(self, layout: str, index_key: str) -> bool:
        """Return whether the index, or data of the same name, was not listed: it may be missing."""
        key = parse_key(layout, index_key)
        return self.chunks is not None and not all(
            key is not None and (at := bisect_left(names, hash(key.stem))) < len(names) and names[at] == hash(key.stem)
            for names in self.chunks.values()
        )

    def of(self, partition: ArchivedPartition) -> list[ObjectKey]:
        """Return the objects above its marker; none if the partition was not listed."""
        kept = self.kept.get((partition.keys.folder, partition.partition))
        return [] if kept is None else kept.keys + ([kept.newest] if kept.newest else [])


async def list_above(
    archive: ArchiveReader, places: Iterable[tuple[str, int]], *, chunks: bool = False
) -> AboveListing:
    """List the objects above the markers of partitions. Done before the markers are read that the list is compared
    with.

    With `chunks` everything is listed, so that missing chunks are found without reading those that are there. A
    partition whose marker is damaged is left out. Layout `topic` takes one listing a partition, from the chain's end
    on, layout `seed` one of the whole archive. The list of one partition takes at most a few MB.
    """
    listing, limit = AboveListing(has_chunks=chunks and archive.other is None), asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def look(topic: str, number: int) -> None:
        async with limit:
            try:
                partition = await archive.open_partition(topic, number)
            except Damaged:
                return
            listing.bytes += partition.num_bytes
            # In layout seed the incarnations share the names of chunks, and only the newest is written to.
            if archive.other is None and (archive.layout != "seed" or partition.marker.successor is None):
                kept = listing.kept[partition.keys.folder, number] = _AbovePartition(partition.marker)
                if archive.layout != "seed":
                    await _list_partition(archive, partition, kept, listing)

    await asyncio.gather(*(look(*place) for place in places))
    if archive.layout == "seed" and (listing.kept or listing.chunks):
        await _list_all(archive, listing)
    if listing.chunks is not None:
        listing.chunks = {kind: array("q", sorted(names)) for kind, names in listing.chunks.items()}
    return listing


async def _list_partition(
    archive: ArchiveReader, partition: ArchivedPartition, kept: _AbovePartition, listing: AboveListing
) -> None:
    for keys, _ in partition.folders:
        is_newest = keys.home == partition.keys.home
        if not (is_newest or listing.chunks is not None):
            continue
        # Catalogs are named _catalog/: behind it too.
        start = "" if listing.chunks is not None else f"{keys.home}{kept.chain_end:020d}"
        async for name in archive.reader.list(keys.home, start):
            key = parse_key(keys.layout, name)
            if key is not None:
                listing.note(key)
                if is_newest:
                    kept.offer(key)


async def _list_all(archive: ArchiveReader, listing: AboveListing) -> None:
    newest = {(folder.topic, number): kept for (folder, number), kept in listing.kept.items()}
    async for name in archive.reader.list(""):
        key = parse_key("seed", name)
        if key is None:
            continue
        listing.note(key)
        place = key.folder, key.partition
        is_catalog = key.kind is ObjectKind.CATALOG
        kept = listing.kept.get(place) if is_catalog else newest.get((key.folder.topic, key.partition))
        if kept is not None:
            kept.offer(key)


async def look_above(partition: ArchivedPartition, listing: AboveListing) -> ChunkFindings:
    """Return what a listing from before the partition was opened shows above its marker."""
    # Reads the indexes and catalogs there, of which a partition at rest has none.
    # The marker may have moved on since the listing.
    above = _AbovePartition(partition.marker)
    keys = [key for key in listing.of(partition) if above.may_hold(key)]
    is_shared = partition.keys.layout == "seed"
    # Layout seed: data without an index of ours may be kafka-connect-s3's.
    data = [key for key in keys if key.kind is ObjectKind.DATA and not is_shared]
    asked = [key for key in keys if key.kind is not ObjectKind.DATA]
    read = prefetched(streamed(asked), partial(_read_above, partition), cost=lambda _: 1, budget=READS_AT_ONCE)
    written = [found async for found in read if found is not None]
    return judged(partition.keys, partition.marker, written, data)


async def _read_above(partition: ArchivedPartition, key: ObjectKey) -> Written | None:
    """Read the object; return None if it is gone by now, or belongs to another incarnation."""
    keys, marker = partition.keys, partition.marker
    try:
        body = await partition.reader.get(key.key, objects.MAX_OBJECT_BYTES)
        if key.kind is ObjectKind.CATALOG:
            kind: type[ChunkCatalog] | type[ReferenceCatalog] = ChunkCatalog if key.level == 1 else ReferenceCatalog
            catalog = objects.decode(body, kind, key.key)
            if not catalog.entries:  # all of its records were erased
                return Written(key.key, catalog.gaps[0].start, catalog.gaps[-1].end)
            return Written(key.key, catalog.entries[0].start_offset, catalog.entries[-1].next_offset)
        index = objects.decode(body, ChunkIndex, key.key)
    except ObjectMissing:
        return None
    except Damaged:
        return Written(key.key, key.number, None, data="" if key.kind is ObjectKind.INDEX else None)
    if keys.layout == "seed" and index.topic_id != marker.topic_id:
        return None
    data = keys.chunks + index.data.name
    return Written(key.key, index.start_offset, index.next_offset, index.epoch, index.previous, data)


def judged(
    keys: PartitionKeys, marker: Marker, written: Sequence[Written], data: Sequence[ObjectKey] = ()
) -> ChunkFindings:
    """Judge a marker by the indexes, catalogs and data above it that were stored before it was read."""
    above = {each.key for each in written}
    proofs = [(each, why) for each in written if (why := _proof(keys, marker, each, above)) is not None]
    if not proofs:
        # The chunks of the folder that this one continues lie among its own.
        is_mixed = keys.layout == "seed" and bool(marker.continues)
        return ChunkFindings(orphans=[] if is_mixed else _orphans(written, data, 0))
    end = max(each.next_offset or 0 for each, _ in proofs)
    start = marker.next_offset
    if start is None or start >= end:
        start = min(each.start_offset for each in written)
    first, why = proofs[0]
    more = f"; {len(proofs) - 1} more objects prove the same" if len(proofs) > 1 else ""
    damage = Damage(keys.marker, f"an older marker was put back: {first.key} {why}{more}")
    lost = LostRange(start, end, "stored, but above the end of a marker that was put back")
    return ChunkFindings([lost], [damage], orphans=_orphans(written, data, end))


def _proof(keys: PartitionKeys, marker: Marker, each: Written, above: Collection[str]) -> str | None:
    """Return why a later marker must have existed when the object was stored; None if that is uncertain."""
    end = marker.chain_end
    if each.next_offset is None:
        return None
    if each.is_catalog:
        reaches_above = each.next_offset > (end or 0)
        return f"lists chunks up to {each.next_offset}, above the chain's end at {end or 0}" if reaches_above else None
    if each.epoch > marker.epoch and not _is_copy(marker, each):
        return f"is of epoch {each.epoch}, the marker of epoch {marker.epoch}"
    if keys.layout == "seed" and marker.continues:
        return None  # it may be the older folder's, whose chunks have the same names
    if end is not None and each.start_offset > end:
        return f"begins where the chain ended, at {each.start_offset}, and the marker ends it at {end}"
    is_behind = each.previous is not None and (end is None or keys.chunks + each.previous in above)
    return f"continues {each.previous}, which the marker does not lead to" if is_behind else None


def _is_copy(marker: Marker, each: Written) -> bool:
    """Return whether it is of the chunk that a folder begins with after a truncation: stored before the folder's marker
    is.
    """
    # An attempt that died may have left a marker without chunks.
    begun = bool(marker.continues) and not marker.spans
    return begun and each.start_offset == marker.chain_end and conflict_in(each.key) is not None


def _orphans(written: Sequence[Written], data: Sequence[ObjectKey], start: int) -> list[Orphan]:
    """Return the chunks at and above an offset, in order; data that an index names is not named again."""
    named = {each.data for each in written}
    found = [Orphan(each.key, each.start_offset, each.next_offset) for each in written if not each.is_catalog]
    found += [Orphan(each.key, each.number, None) for each in data if each.key not in named]
    return sorted((each for each in found if each.start >= start), key=lambda each: (each.start, each.key))
