"""The marker, the only mutable object of a partition, and the catalogs that its older chunks fold into.

All functions are pure: they take a marker and give the next one. FORMAT.md, "Marker".
"""

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, ClassVar, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from index_format import objects
from index_format.errors import MalformedObject
from index_format.keys import PartitionKeys, catalog_name

FAN_OUT = 64
MAX_GAPS_IN_MARKER = 256
MAX_LEVELS = 16
MAX_RETIRED = 64

LeaderEpoch = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class ChunkEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A committed chunk: name and sha256 of its index, and its fields; next_offset may pass the index's."""

    name: objects.Name
    start_offset: objects.Offset
    next_offset: objects.Offset
    first_offset: objects.Offset
    last_offset: objects.Offset
    num_records: objects.Count
    bytes: objects.Count
    raw_bytes: objects.Count
    min_timestamp: objects.Timestamp
    max_timestamp: objects.Timestamp
    sha256: objects.Sha256

    def __post_init__(self) -> None:
        if not self.start_offset <= self.first_offset <= self.last_offset < self.next_offset:
            raise ValueError(f"{self.name}: offsets lie outside [{self.start_offset}, {self.next_offset})")
        if not 1 <= self.num_records <= self.last_offset - self.first_offset + 1:
            raise ValueError(f"{self.name}: {self.num_records} records do not fit in its offsets")


class CatalogReference(msgspec.Struct, frozen=True, kw_only=True):
    """One folded catalog; counts and bytes are sums over its chunks."""

    name: objects.Name
    start_offset: objects.Offset
    next_offset: objects.Offset
    min_timestamp: objects.Timestamp
    max_timestamp: objects.Timestamp
    num_records: objects.Count
    num_chunks: objects.Count
    bytes: objects.Count
    sha256: objects.Sha256

    def __post_init__(self) -> None:
        if not self.start_offset < self.next_offset:
            raise ValueError(f"{self.name} spans no offset: [{self.start_offset}, {self.next_offset})")


# A named object over offsets [start_offset, next_offset).
Span = ChunkEntry | CatalogReference
S = TypeVar("S", bound=Span)


def _check_order(entries: Sequence[Span], what: str) -> None:
    for before, after in pairwise(entries):
        if before.next_offset > after.start_offset:
            raise ValueError(f"{what}: {after.name} starts before {before.name} ends")


@objects.stored
class ChunkCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog of level 1: its entries are chunks. Write-once."""

    format: str = "block-gzip-catalog"
    version: int = objects.VERSION
    level: Annotated[int, msgspec.Meta(ge=1, le=1)]
    entries: Annotated[tuple[ChunkEntry, ...], msgspec.Meta(max_length=FAN_OUT)]
    """Empty if every record below was erased: then a gap represents them."""
    gaps: tuple[objects.Gap, ...] = ()

    def __post_init__(self) -> None:
        if not (self.entries or self.gaps):
            raise ValueError("a catalog lists neither chunks nor gaps")
        _check_order(self.entries, "catalog")


@objects.stored
class ReferenceCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog of level 2 or above: its entries are catalogs one level down. Write-once."""

    format: str = "block-gzip-catalog"
    version: int = objects.VERSION
    level: Annotated[int, msgspec.Meta(ge=2, le=MAX_LEVELS)]
    entries: Annotated[tuple[CatalogReference, ...], msgspec.Meta(min_length=1, max_length=FAN_OUT)]
    gaps: tuple[objects.Gap, ...] = ()

    def __post_init__(self) -> None:
        _check_order(self.entries, "catalog")


Catalog = ChunkCatalog | ReferenceCatalog


class Continues(msgspec.Struct, frozen=True):
    """The folder whose chunks hold a partition below `offset`, its records from there on being in the marker's own."""

    folder: objects.Name
    offset: objects.Offset


class Rewriting(msgspec.Struct, frozen=True, kw_only=True, rename={"start": "from", "end": "to"}):
    """A maintainer's intent: it replaces what a run of neighbours in one list of catalogs of `level` leads to."""

    token: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    """New with each attempt; the names of all that the maintainer stores hold it."""
    kind: objects.Word
    level: Annotated[int, msgspec.Meta(ge=1, le=MAX_LEVELS)]
    start: objects.Offset
    end: objects.Offset
    since: objects.Timestamp
    """When it was taken or last renewed."""


class Retired(msgspec.Struct, frozen=True, kw_only=True):
    """References that a rewrite took out of the marker: what they lead to is kept for a grace."""

    references: Annotated[tuple[CatalogReference, ...], msgspec.Meta(min_length=1)]
    token: objects.Name
    at: objects.Timestamp | None = None
    """When garbage collection first saw them here, from which the grace counts."""

    @property
    def num_chunks(self) -> int:
        """Chunks that they lead to; those that stayed in place count too."""
        return sum(reference.num_chunks for reference in self.references)

    @property
    def num_bytes(self) -> int:
        """Bytes of these chunks' data as stored."""
        return sum(reference.bytes for reference in self.references)


class Maintenance(msgspec.Struct, frozen=True, kw_only=True):
    """The maintainers' part of a marker; the catalogs are theirs too, but that writers fold into them."""

    revision: objects.Count = 0
    """Raised by one with every swap, by whomever, so that no two versions of a marker are equal."""
    pruned_before: objects.Offset = 0
    """The offset below which nothing is archived any longer."""
    rewriting: Rewriting | None = None
    retired: Annotated[tuple[Retired, ...], msgspec.Meta(max_length=MAX_RETIRED)] = ()
    fold_before: objects.Offset = 0
    """The writer's next swap folds the entries of the tail that end at or below it."""


@objects.stored
class Marker(objects.Sealed, frozen=True, kw_only=True):
    """The committed state of one partition, swapped as a whole: the newest chunks, and what leads to older ones.

    `maintenance` and `catalogs` are the maintainers' part, all else the writer's; writers add to `catalogs` what they
    fold. One that was ever maintained, or whose newest chunk is encrypted, is of version 2, which former releases
    refuse.
    """

    VERSIONS: ClassVar = (objects.VERSION, 2)

    format: str = "block-gzip-marker"
    version: int = objects.VERSION
    archive_id: objects.Name
    topic: objects.Name
    topic_id: str | None
    partition: objects.Count
    group_id: str
    isolation_level: objects.Word | None = None
    """The level at which its chunks were consumed; None if the claim was written without it."""
    epoch: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    writer: objects.Name
    nonce: objects.Name
    start_offset: objects.Offset | None = None
    """None, like the next one, from the first claim until the first commit."""
    next_offset: objects.Offset | None = None
    leader_epoch: LeaderEpoch | None = None
    tail_hash: objects.Sha256 | None = None
    last_chunk_index: objects.Name | None = None
    tail: Annotated[tuple[ChunkEntry, ...], msgspec.Meta(max_length=FAN_OUT)] = ()
    """The newest chunks, oldest first."""
    catalogs: Annotated[
        tuple[Annotated[tuple[CatalogReference, ...], msgspec.Meta(max_length=FAN_OUT)], ...],
        msgspec.Meta(max_length=MAX_LEVELS),
    ] = ()
    """References to catalogs of level 1, 2, …, oldest first; deeper levels hold older chunks."""
    gaps: tuple[objects.Gap, ...] = ()
    successor: objects.Name | None = None
    continues: Continues | msgspec.UnsetType = msgspec.UNSET
    """Only where the log was truncated; left out elsewhere."""
    tail_key: objects.WrappedKey | msgspec.UnsetType = msgspec.UNSET
    """The key of the HMAC `tail_hash`, if the newest record is in an encrypted chunk; only in version 2."""
    last_offset: objects.Offset | msgspec.UnsetType = msgspec.UNSET
    """The offset of the record of `tail_hash`; only in version 2, where the tail may be empty."""
    maintenance: Maintenance | msgspec.UnsetType = msgspec.UNSET
    """Only in version 2."""

    def __post_init__(self) -> None:
        if self.version != (2 if self.maintenance or self.tail_key else objects.VERSION):
            raise ValueError("a marker is of version 2 if it has maintenance or tail_key, and only there")
        if (self.next_offset is None) != (self.start_offset is None):
            raise ValueError("start_offset and next_offset must both be set or both be null")
        spans = self.spans
        _check_order(spans, "marker")
        if self.start_offset is not None and self.next_offset is not None and self.start_offset > self.next_offset:
            raise ValueError("start_offset is above next_offset")
        if spans and (self.next_offset is None or self.next_offset < spans[-1].next_offset):
            raise ValueError("next_offset is below the newest chunk's")
        if spans and (self.start_offset is None or self.start_offset > spans[0].start_offset):
            raise ValueError("start_offset is above the oldest chunk's")
        if self.pruned_before > (spans[0].start_offset if spans else self.next_offset or 0):
            raise ValueError("pruned_before is above the oldest chunk's start_offset, or above next_offset")
        objects.check_gaps(self.gaps, self.next_offset)
        if self.tail and self.last_chunk_index != self.tail[-1].name:
            raise ValueError("last_chunk_index is not the newest chunk's")

    @property
    def pruned_before(self) -> int:
        """The offset below which nothing is archived any longer; 0 if nothing was pruned."""
        return self.maintenance.pruned_before if self.maintenance else 0

    @property
    def retired(self) -> tuple[Retired, ...]:
        """Rewrites whose replaced references are kept for a grace."""
        return self.maintenance.retired if self.maintenance else ()

    @property
    def newest_offset(self) -> int | None:
        """The offset of the record of `tail_hash`; None if it is unknown."""
        if self.tail:
            return self.tail[-1].last_offset
        return self.last_offset if isinstance(self.last_offset, int) else None

    @property
    def spans(self) -> tuple[Span, ...]:
        """References and entries in offset order: the deepest catalogs first, the tail last."""
        references = [reference for level in reversed(self.catalogs) for reference in level]
        return (*references, *self.tail)

    @property
    def num_records(self) -> int:
        return sum(reference.num_records for reference in self._folded) + sum(entry.num_records for entry in self.tail)

    @property
    def num_chunks(self) -> int:
        return sum(reference.num_chunks for reference in self._folded) + len(self.tail)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data of all committed chunks, as stored."""
        return sum(reference.bytes for reference in self._folded) + sum(entry.bytes for entry in self.tail)

    @property
    def newest_timestamp(self) -> int | None:
        """The highest timestamp in the newest chunk, or in its catalog if it was folded; None without one."""
        return self.spans[-1].max_timestamp if self.spans else None

    @property
    def _folded(self) -> list[CatalogReference]:
        return [reference for level in self.catalogs for reference in level]

    @property
    def chain_end(self) -> int | None:
        """The start of the next chunk: the newest chunk's next_offset, or the end of a gap behind it."""
        ends = [span.next_offset for span in self.spans[-1:]] + [gap.end for gap in self.gaps[-1:]]
        ends += [self.pruned_before] if self.pruned_before else []
        return max(ends, default=self.start_offset)

    def cover(self, level: int) -> int | None:
        """Return where the next fold into that level begins: the end of what it or deeper ones hold. It never falls."""
        held = [references[-1].next_offset for references in self.catalogs[level - 1 :] if references]
        return held[0] if held else self.pruned_before or self.start_offset


@objects.stored
class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """A declaration that nothing is archived below an offset, valid even if the marker is lost. Write-once."""

    format: str = "block-gzip-floor"
    version: int = objects.VERSION
    pruned_before: objects.Offset


class PendingCatalog(NamedTuple):
    """A catalog that must be stored before the marker that references it."""

    level: int
    position: int
    body: bytes
    reference: CatalogReference
    """Its name is still the plain one; see `with_catalog_name`."""


def encode(value: Marker | Catalog) -> bytes:
    return objects.encode(value)


def decode_marker(body: bytes, name: str = "the marker") -> Marker:
    """Return the marker in `body`; raises a FormatError if it breaks the format."""
    return objects.decode(body, Marker, name)


def decode_own_marker(body: bytes, keys: PartitionKeys) -> Marker:
    """Return a partition's marker; raises a FormatError if it breaks the format, or is another partition's."""
    marker = decode_marker(body, keys.marker)
    if (marker.topic, marker.partition) != (keys.folder.topic, keys.partition):
        raise MalformedObject(
            f"{keys.marker} is not this partition's marker", why=f"it names {marker.topic}:{marker.partition}"
        )
    return marker


def decode_catalog(body: bytes, reference: CatalogReference, level: int) -> Catalog:
    """Return the catalog in `body`, checked against the reference that led to it; raises a FormatError."""
    if hashlib.sha256(body).hexdigest() != reference.sha256:
        raise MalformedObject(f"catalog {reference.name} is damaged", why="its sha256 is not the one in its reference")
    kind: type[Catalog] = ChunkCatalog if level == 1 else ReferenceCatalog
    catalog = objects.decode(body, kind, reference.name)
    bounds = (reference.start_offset, reference.next_offset) if level == 1 and catalog.gaps else None
    try:
        agrees = catalog.level == level and reference_to(catalog, reference.name, body, bounds) == reference
    except ValueError:
        agrees = False
    if not agrees:
        raise MalformedObject(
            f"catalog {reference.name} is not what its reference says", why="level, offsets, times or counts differ"
        )
    return catalog


def reference_to(catalog: Catalog, name: str, body: bytes, bounds: tuple[int, int] | None = None) -> CatalogReference:
    """Return the reference to a catalog stored as `body`; raises ValueError if `bounds` enclose less than it holds."""
    entries = catalog.entries
    start, end = bounds or (entries[0].start_offset, entries[-1].next_offset)
    # The gaps of a catalog of level 1 may reach beyond its chunks.
    if entries and not start <= entries[0].start_offset < entries[-1].next_offset <= end:
        raise ValueError(f"catalog {name} holds offsets outside [{start}, {end})")
    timed = [entry for entry in entries if entry.num_records]
    return CatalogReference(
        name=name,
        start_offset=start,
        next_offset=end,
        min_timestamp=min((entry.min_timestamp for entry in timed), default=-1),
        max_timestamp=max((entry.max_timestamp for entry in timed), default=-1),
        num_records=sum(entry.num_records for entry in entries),
        num_chunks=sum(entry.num_chunks if isinstance(entry, CatalogReference) else 1 for entry in entries),
        bytes=sum(entry.bytes for entry in entries),
        sha256=hashlib.sha256(body).hexdigest(),
    )


def entry_of(index: objects.ChunkIndex, name: str, body: bytes) -> ChunkEntry:
    """Return the entry of a chunk whose index is stored as `body` under `name`."""
    return ChunkEntry(
        name=name,
        start_offset=index.start_offset,
        next_offset=index.next_offset,
        first_offset=index.first_offset,
        last_offset=index.last_offset,
        num_records=index.num_records,
        bytes=index.data.bytes,
        raw_bytes=index.raw_bytes,
        min_timestamp=index.min_timestamp,
        max_timestamp=index.max_timestamp,
        sha256=hashlib.sha256(body).hexdigest(),
    )


def decode_index(body: bytes, entry: ChunkEntry, topic: str, partition: int) -> objects.ChunkIndex:
    """Return the chunk index in `body`, checked against the entry that led to it; raises a FormatError."""
    if hashlib.sha256(body).hexdigest() != entry.sha256:
        raise MalformedObject(f"index {entry.name} is damaged", why="its sha256 is not the one in its entry")
    index = objects.decode(body, objects.ChunkIndex, entry.name)
    same = replace(entry_of(index, entry.name, body), next_offset=entry.next_offset) == entry
    if not same or index.next_offset > entry.next_offset or (index.topic, index.partition) != (topic, partition):
        raise MalformedObject(f"index {entry.name} is not what its entry says", why="topic, offsets or counts differ")
    return index


def claimed(
    marker: Marker,
    *,
    writer: str,
    nonce: str,
    group_id: str,
    isolation_level: str | None,
    gap: objects.Gap | None = None,
) -> Marker:
    """Return the marker as its next owner claims it; a gap moves next_offset to the gap's end."""
    owner = {"writer": writer, "nonce": nonce, "group_id": group_id, "isolation_level": isolation_level}
    claim = replace(marker, epoch=marker.epoch + 1, **owner)
    if gap is None:
        return claim
    chain_end, gaps = marker.chain_end, [gap]
    # Progress without records, of version 1 and in no entry, becomes an empty gap of version 2.
    if marker.maintenance and chain_end is not None and chain_end < gap.start:
        gaps = [replace(gap, start=chain_end, end=gap.start, reason=objects.EMPTY), gap]
    return replace(claim, next_offset=gap.end, gaps=_with_gaps(marker, gaps))


def revised(marker: Marker) -> Marker:
    """Return the marker as it is swapped in: version 2 counts its swaps."""
    if not marker.maintenance:
        return marker
    return replace(marker, maintenance=replace(marker.maintenance, revision=marker.maintenance.revision + 1))


def rebased(marker: Marker, found: Marker) -> Marker:
    """Return a writer's marker with the maintainers' part of the marker that was found in its place."""
    version = 2 if found.maintenance or marker.tail_key else objects.VERSION
    return replace(marker, version=version, catalogs=found.catalogs, maintenance=found.maintenance)


def recorded_at(gaps: Sequence[objects.Gap], at: int | None) -> tuple[objects.Gap, ...]:
    """Return the gaps with the time at which they are recorded; without a time in version 1."""
    return tuple(gaps) if at is None else tuple(replace(gap, at=at) for gap in gaps)


def advanced(
    marker: Marker,
    next_offset: int,
    *,
    nonce: str,
    leader_epoch: int | None,
    gaps: Sequence[objects.Gap] = (),
    at: int | None = None,
) -> Marker:
    """Return the marker after progress without records, up to the first of new `gaps`; `at`: see `recorded_at`."""
    if marker.next_offset is not None and next_offset <= marker.next_offset:
        raise ValueError(f"next_offset may not move from {marker.next_offset} to {next_offset}")
    if gaps and marker.next_offset is not None and gaps[0].start < marker.next_offset:
        raise ValueError(f"a gap from {gaps[0].start} is below next_offset {marker.next_offset}")
    end = gaps[0].start if gaps else next_offset
    start_offset, tail, chain_end = marker.start_offset, marker.tail, marker.chain_end
    new_gaps = recorded_at(gaps, at)
    # Behind a gap there is nothing to raise: the next chunk will start at its end, or behind an empty gap.
    if not (marker.spans or marker.gaps or marker.pruned_before):
        start_offset = start_offset if marker.continues else end
    elif tail and chain_end == tail[-1].next_offset:
        tail = (*tail[:-1], replace(tail[-1], next_offset=end))
    elif marker.maintenance and chain_end is not None and chain_end < end:
        new_gaps = (*recorded_at([objects.Gap(chain_end, end, objects.EMPTY)], at), *new_gaps)
    return replace(
        marker,
        nonce=nonce,
        leader_epoch=leader_epoch,
        start_offset=start_offset,
        next_offset=next_offset,
        tail=tail,
        gaps=_with_gaps(marker, new_gaps),
    )


def _with_gaps(marker: Marker, gaps: Sequence[objects.Gap]) -> tuple[objects.Gap, ...]:
    """Return the marker's gaps and new ones behind its newest chunk; two of one reason become one."""
    # Without a chunk nothing folds: a log of records that cannot be archived would make gaps without end.
    last = marker.gaps[-1] if marker.gaps else None
    newest = marker.spans[-1].next_offset if marker.spans else 0
    if not gaps or last is None or last.start < newest or last.reason != gaps[0].reason:
        return (*marker.gaps, *gaps)
    return (*marker.gaps[:-1], replace(gaps[0], start=last.start), *gaps[1:])


def folded(marker: Marker) -> tuple[Marker, tuple[PendingCatalog, ...]]:
    """Return the marker with room for one more chunk, and the catalogs to store for it, lowest level first."""
    # In version 2 a catalog takes the gaps before its end with it, and a maintainer may have requested a fold.
    # A full tail, or one with too many gaps, folds into a level-1 catalog; a full level into the next, and so on.
    if marker.maintenance:
        asked = sum(entry.next_offset <= marker.maintenance.fold_before for entry in marker.tail)
        count = len(marker.tail) if len(marker.tail) >= FAN_OUT else asked
        return with_gaps_folded(marker, count) if count else (marker, ())
    gaps, folded_gaps = marker.gaps, tuple[objects.Gap, ...]()
    if len(gaps) > MAX_GAPS_IN_MARKER and marker.tail:
        folded_gaps = tuple(gap for gap in gaps if gap.end <= marker.tail[-1].next_offset)
        gaps = gaps[len(folded_gaps) :]
    if len(marker.tail) < FAN_OUT and not folded_gaps:
        return marker, ()
    return _with_tail_folded(
        replace(marker, gaps=gaps), _pending(ChunkCatalog(level=1, entries=marker.tail, gaps=folded_gaps))
    )


def with_gaps_folded(marker: Marker, count: int, end: int | None = None) -> tuple[Marker, tuple[PendingCatalog, ...]]:
    """Return marker and catalogs once the oldest `count` entries fold with the gaps up to them, or to `end`."""
    entries, start = marker.tail[:count], marker.cover(1) or 0
    end = end or entries[-1].next_offset
    gaps = tuple(gap for gap in marker.gaps if start <= gap.start < end)
    catalog = _pending(
        ChunkCatalog(level=1, entries=entries, gaps=gaps), (start if gaps else entries[0].start_offset, end)
    )
    after, pending = _with_tail_folded(replace(marker, last_offset=marker.newest_offset), catalog)
    kept = tuple(gap for gap in marker.gaps if gap not in gaps)
    return replace(after, tail=marker.tail[count:], gaps=kept), pending


def _with_tail_folded(marker: Marker, catalog: PendingCatalog) -> tuple[Marker, tuple[PendingCatalog, ...]]:
    pending = [catalog]
    catalogs = list(marker.catalogs)
    for level in range(len(catalogs) + 1):
        if level == len(catalogs):
            catalogs.append(())
        full = catalogs[level]
        if len(full) < FAN_OUT:
            catalogs[level] = (*full, catalog.reference)
            break
        catalogs[level] = (catalog.reference,)
        catalog = _pending(ReferenceCatalog(level=level + 2, entries=full))
        pending.append(catalog)
    return replace(marker, tail=(), catalogs=tuple(catalogs)), tuple(pending)


def with_catalog_name(marker: Marker, pending: PendingCatalog, name: str) -> Marker:
    """Return the marker after a pending catalog was stored under another name than the plain one."""
    catalogs = tuple(
        tuple(replace(ref, name=name) if ref == pending.reference else ref for ref in level)
        for level in marker.catalogs
    )
    return replace(marker, catalogs=catalogs)


def appended(
    marker: Marker,
    entry: ChunkEntry,
    gaps: Sequence[objects.Gap],
    *,
    nonce: str,
    leader_epoch: int | None,
    tail_hash: str | None,
    tail_key: objects.WrappedKey | msgspec.UnsetType = msgspec.UNSET,
    at: int | None = None,
) -> Marker:
    """Return the marker with one more chunk, and the gaps inside it, in a tail with room: see `folded`.

    Raises ValueError for a chunk that does not start where the chain ends, or that holds what was passed already.
    """
    marker = _without_empty_gap(marker, entry.start_offset)
    if len(marker.tail) >= FAN_OUT:
        raise ValueError("the tail is full: fold it first")
    if marker.chain_end is not None and entry.start_offset != marker.chain_end:
        raise ValueError(f"chunk {entry.name} starts at {entry.start_offset}, not at {marker.chain_end}")
    if marker.next_offset is not None and entry.first_offset < marker.next_offset:
        raise ValueError(f"chunk {entry.name} begins at {entry.first_offset}, below next_offset {marker.next_offset}")
    return replace(
        marker,
        version=2 if marker.maintenance or tail_key else objects.VERSION,
        nonce=nonce,
        start_offset=entry.start_offset if marker.start_offset is None else marker.start_offset,
        next_offset=entry.next_offset,
        leader_epoch=leader_epoch,
        tail_hash=tail_hash,
        tail_key=tail_key,
        last_chunk_index=entry.name,
        tail=(*marker.tail, entry),
        gaps=(*marker.gaps, *recorded_at(gaps, at)),
    )


def _without_empty_gap(marker: Marker, start_offset: int) -> Marker:
    last = marker.gaps[-1] if marker.gaps else None
    if last is None or last.reason != objects.EMPTY or last.start != start_offset:
        return marker
    return replace(marker, gaps=marker.gaps[:-1])


def replaceable_gap(marker: Marker, start: int, end: int) -> objects.Gap | None:
    """Return the gap whose offsets [start, end) a chunk can take: behind catalogs and floor, in no chunk; or None."""
    gap = next((gap for gap in marker.gaps if gap.start <= start < end <= gap.end), None)
    if gap is None or gap.reason == objects.ERASED or start < marker.pruned_before:
        return None
    if any(reference.next_offset > gap.start for level in marker.catalogs for reference in level):
        return None
    if any(entry.start_offset < gap.end and entry.next_offset > gap.start for entry in marker.tail):
        return None
    # The tail has space for one more, or something to fold below it.
    has_room = len(marker.tail) < FAN_OUT or marker.tail[0].next_offset <= gap.start
    # The chain must stop at `start` without it: another gap and a hole may not come between.
    follows = before_gap(marker, start).chain_end == start
    return gap if has_room and follows else None


def before_gap(marker: Marker, start: int) -> Marker:
    """Return the marker without what is above `start`, an offset in a gap: as a chunk finds it that takes its place."""
    tail = tuple(entry for entry in marker.tail if entry.next_offset <= start)
    gaps = [replace(gap, end=min(gap.end, start)) for gap in marker.gaps if gap.start < start]
    name = tail[-1].name if tail else None
    return replace(marker, next_offset=start, tail=tail, gaps=tuple(gaps), last_chunk_index=name)


def inserted(
    marker: Marker,
    entry: ChunkEntry,
    gaps: Sequence[objects.Gap],
    *,
    nonce: str,
    tail_hash: str | None,
    tail_key: objects.WrappedKey | msgspec.UnsetType = msgspec.UNSET,
) -> tuple[Marker, tuple[PendingCatalog, ...]]:
    """Return the marker with a chunk in a `replaceable_gap`, and catalogs to store; ValueError without one."""
    gap = replaceable_gap(marker, entry.start_offset, entry.next_offset)
    if gap is None:
        raise ValueError(f"no chunk can take the offsets {entry.start_offset} to {entry.next_offset - 1}")
    # Without room in the tail, the entries below the chunk fold.
    below, pending = before_gap(marker, entry.start_offset), tuple[PendingCatalog, ...]()
    above = marker.tail[len(below.tail) :]
    if len(marker.tail) >= FAN_OUT and marker.maintenance:
        below, pending = with_gaps_folded(below, len(below.tail))
    elif len(marker.tail) >= FAN_OUT:
        below, pending = _with_tail_folded(below, _pending(ChunkCatalog(level=1, entries=below.tail)))
    end = entry.next_offset
    rest = [replace(each, start=max(each.start, end)) for each in marker.gaps if each.end > end]
    # Behind the gap the log may have continued without records.
    following = [
        *(each.start for each in rest[:1]),
        *(each.start_offset for each in above[:1]),
        marker.next_offset or end,
    ]
    longer = replace(entry, next_offset=min(following))
    newest, newest_key = (marker.tail_hash, marker.tail_key) if above else (tail_hash, tail_key)
    epoch = marker.leader_epoch
    chain = appended(below, longer, gaps, nonce=nonce, leader_epoch=epoch, tail_hash=newest, tail_key=newest_key)
    joined = replace(
        chain,
        next_offset=marker.next_offset,
        tail=(*chain.tail, *above),
        gaps=(*chain.gaps, *rest),
        last_chunk_index=above[-1].name if above else entry.name,
    )
    return joined, pending


def _pending(catalog: Catalog, bounds: tuple[int, int] | None = None) -> PendingCatalog:
    body = encode(catalog)
    position = bounds[0] if bounds else catalog.entries[0].start_offset
    name = catalog_name(catalog.level, position)
    return PendingCatalog(catalog.level, position, body, reference_to(catalog, name, body, bounds))


class TimeBounded(Protocol):
    """Bounds (ms, inclusive) of records' timestamps: a catalog reference, a chunk entry or a block."""

    @property
    def min_timestamp(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...


def span_at_or_after(spans: Sequence[S], offset: int) -> S | None:
    """Return the first span that ends above `offset`: it holds the offset, or the first record after it."""
    position = bisect_right(spans, offset, key=lambda span: span.next_offset)
    return spans[position] if position < len(spans) else None


def block_at_or_after(blocks: Sequence[objects.BlockEntry], offset: int) -> int | None:
    """Return the number of the first block with a record at or above `offset`."""
    position = bisect_right(blocks, offset - 1, key=lambda block: block.last_record_offset)
    return position if position < len(blocks) else None


def block_for_time(blocks: Sequence[objects.BlockEntry], timestamp: int) -> int | None:
    """Return the number of the first block with a record at or after `timestamp` (ms)."""
    return next((number for number, block in enumerate(blocks) if block.max_timestamp >= timestamp), None)


def blocks_between(blocks: Sequence[objects.BlockEntry], start: int, end: int) -> range:
    """Return the numbers of the blocks that may hold records of offsets [start, end)."""
    first = bisect_right(blocks, start - 1, key=lambda block: block.last_record_offset)
    last = bisect_right(blocks, end - 1, key=lambda block: block.first_record_offset)
    return range(first, max(first, last))


def merged_ranges(blocks: Sequence[objects.BlockEntry], max_bytes: int) -> list[range]:
    """Group consecutive blocks, so that each group is one range read of at most `max_bytes`, or of one block."""
    groups: list[range] = []
    start = 0
    for number, (block, following) in enumerate(pairwise([*blocks, None])):
        assert block is not None
        too_long = following is not None and following.byte_end - blocks[start].byte_offset > max_bytes
        if following is None or too_long or following.byte_offset != block.byte_end:
            groups.append(range(start, number + 1))
            start = number + 1
    return groups


def range_groups(blocks: Sequence[objects.BlockEntry], numbers: Sequence[int], max_bytes: int) -> list[range]:
    """Group some blocks, by their rising numbers, into range reads; blocks between them are never read along."""
    groups = merged_ranges([blocks[number] for number in numbers], max_bytes)
    return [range(numbers[group.start], numbers[group.stop - 1] + 1) for group in groups]


def gap_at(gaps: Sequence[objects.Gap], offset: int) -> objects.Gap | None:
    return next((gap for gap in gaps if offset in gap), None)
