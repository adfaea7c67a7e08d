"""One partition of an archive as its marker describes it; each catalog and index checked against what led to it."""

import asyncio
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from blockgz.encryption.keyring import Keyring, missing_key, required
from blockgz.errors import (
    BlockgzError,
    FormatError,
    KeyMissing,
    MalformedObject,
    NotInArchive,
    ObjectMissing,
    catalog_remedy,
)
from blockgz.store.reader import ObjectReader
from index_format import objects
from index_format.keys import PartitionKeys, catalog_level
from index_format.marker import (
    Catalog,
    CatalogReference,
    ChunkCatalog,
    ChunkEntry,
    Marker,
    ReferenceCatalog,
    Span,
    TimeBounded,
    decode_catalog,
    decode_index,
    gap_at,
    span_at_or_after,
)
from index_format.objects import EMPTY, ChunkIndex, Erased, Gap

# Errors that mean damage; all others (denied, unavailable) end the work.
Damaged = (FormatError, ObjectMissing)

# Rereads of a marker, each leading to another unreadable object, before that counts as damage.
MOST_REWRITES = 5


R = TypeVar("R")


async def across_rewrites(partition: "ArchivedPartition", work: Callable[["ArchivedPartition"], Awaitable[R]]) -> R:
    """Return the result of `work`, which can start over: after damage, if the marker now leads elsewhere."""
    # `blockgz.archive.selection.scan` does it for records, of which some were handed out already.
    for _ in range(MOST_REWRITES):
        try:
            return await work(partition)
        except Damaged:
            newer = await partition.newer()
            if newer is None:
                raise
            partition = newer
    return await work(partition)


class Unreadable(NamedTuple):
    """A damaged block, chunk or catalog in its place among those that can be read."""

    start: int
    end: int
    """Offsets [start, end): its first record's and the one after its last's."""
    num_records: int
    """How many records it had."""
    key: str
    """The damaged object."""
    error: BlockgzError

    @property
    def reason(self) -> str:
        # Without the object's name, so that neighbours with one key are one range.
        return f"its key is missing: {self.error.why}" if isinstance(self.error, KeyMissing) else self.error.reason


@dataclass(frozen=True)
class Damage:
    """An object that is not what it must be; who reads the chunks at [start, end), if given, finds it again."""

    key: str
    reason: str
    start: int | None = field(default=None, compare=False)
    end: int | None = field(default=None, compare=False)


class LostRange(NamedTuple):
    """Offsets [start, end) whose records cannot be read."""

    start: int
    end: int
    reason: str


def add_range(ranges: list[LostRange], found: LostRange) -> None:
    """Append a range, or extend the last one if it has the same reason and ends there."""
    if ranges and ranges[-1].end == found.start and ranges[-1].reason == found.reason:
        ranges[-1] = ranges[-1]._replace(end=found.end)
    else:
        ranges.append(found)


class DamagePolicy:
    """A scan's behaviour when it comes to something that it cannot read: it ends with the error that says what."""

    def meet(self, unreadable: Unreadable) -> None:
        """Raise to end the scan there; called in offset order, between the records before and behind it."""
        raise unreadable.error


class SkipDamage(DamagePolicy):
    """Skips what is damaged, and remembers it: one object for each scan."""

    def __init__(self, *, skips_closed: bool = False) -> None:
        """`skips_closed`: skip blocks whose key is missing too, though they are not damaged."""
        # In offset order and apart; damage of one object for one reason is one range.
        self.skipped: list[LostRange] = []
        self._skips_closed = skips_closed

    def meet(self, unreadable: Unreadable) -> None:
        if isinstance(unreadable.error, KeyMissing) and not self._skips_closed:
            raise unreadable.error
        add_range(self.skipped, LostRange(unreadable.start, unreadable.end, unreadable.reason))


STOP = DamagePolicy()


T = TypeVar("T")


async def prefetched(
    items: AsyncIterator[T], work: Callable[[T], Coroutine[Any, Any, R]], *, cost: Callable[[T], int], budget: int
) -> AsyncGenerator[R]:
    """Yield the result of `work` for each item, in order; those run at once that fit `budget`, at least one."""
    # An error of `items` or `work` is raised in its place, behind all results before it.
    pending: deque[tuple[asyncio.Task[R], int]] = deque()
    spent = 0
    exhausted = False
    failure: Exception | None = None
    try:
        while True:
            while not exhausted and (not pending or spent < budget):
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    exhausted = True
                except Exception as error:  # raised below, behind the results before it
                    exhausted, failure = True, error
                else:
                    pending.append((asyncio.create_task(work(item)), cost(item)))
                    spent += pending[-1][1]
            if not pending:
                break
            task, price = pending.popleft()
            result = await task
            spent -= price
            yield result
            # A large result must not live on while the next one is made.
            del result, task
        if failure is not None:
            raise failure
    finally:
        for task, _ in pending:
            task.cancel()
        await asyncio.gather(*(task for task, _ in pending), return_exceptions=True)


async def streamed(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items as an async iterator, for `prefetched`."""
    for item in items:
        yield item


CONCURRENT_CATALOGS = 16
# Some 10 MB.
REMEMBERED_CATALOGS = 256
REMEMBERED_CHUNKS = 16
END = 2**63 - 1


@dataclass(frozen=True)
class Chunk:
    """A committed chunk: its entry in the chain, its index, and the key of its data."""

    entry: ChunkEntry
    index: ChunkIndex
    data_key: str
    keyring: Keyring | None = None
    """The keys that open its blocks if it is encrypted."""

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps inside the chunk. Markers and catalogs list those before it, which may have been filled since."""
        return tuple(gap for gap in self.index.gaps if self.entry.start_offset <= gap.start < self.entry.next_offset)

    @property
    def missing_key(self) -> KeyMissing | None:
        """The error of opening its blocks if that takes a master key that is not here."""
        return missing_key(self.index, self.data_key, self.keyring)

    @property
    def erased(self) -> tuple[Erased, ...]:
        """The ranges of records erased from it, up to where the next folder continues."""
        end = self.entry.next_offset
        return tuple(Erased(each.start, min(each.end, end)) for each in self.index.erased or () if each.start < end)


class ObjectCache(Protocol):
    """A cache of write-once objects."""

    async def through(self, archive_id: str, key: str, sha256: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the object's bytes: cached ones with that sha256, or those that `fetch` returns."""


class OlderFolder(NamedTuple):
    """The part of a partition with a truncated log that an older folder holds."""

    keys: PartitionKeys
    offset: int
    """The first offset that the next folder holds."""
    start_offset: int
    pruned_before: int
    """At most `offset`."""
    is_maintained: bool
    spans: tuple[Span, ...]
    """All below `offset`."""
    gaps: tuple[Gap, ...]
    """The gaps that are not in the catalogs of `spans`."""
    originals: Mapping[str, ChunkEntry]
    """Entries that `spans` has cut, by name: holes of the old log reached beyond `offset`."""


class ArchivedPartition:
    """A partition (`topic` is plain, `keys.folder` the incarnation) as one version of its marker describes it."""

    def __init__(
        self,
        reader: ObjectReader,
        keys: PartitionKeys,
        marker: Marker,
        max_block_bytes: int,
        cache: ObjectCache | None = None,
        older: Sequence[OlderFolder] = (),
        reopen: Callable[[ObjectReader], Awaitable["ArchivedPartition"]] | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        """`older`: the folders that it continues, oldest first. `reopen` reads its marker again, as `newer` asks."""
        self.reader = reader
        self.keyring = keyring
        self.keys = keys
        self.marker = marker
        self.max_block_bytes = max_block_bytes
        # Damage that was found on opening it, and is in no chunk.
        self.damage: Sequence[Damage] = ()
        self._cache = cache
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._older = older
        self._reopen = reopen
        # The offset below which nothing is archived any longer; 0 if nothing was pruned.
        self.floor = max(marker.pruned_before, *(folder.pruned_before for folder in older), 0)
        # The spans that the markers list, in offset order.
        self.spans: tuple[Span, ...] = (*(span for folder in older for span in folder.spans), *marker.spans)
        self._levels = {each.name: level for level, found in enumerate(marker.catalogs, 1) for each in found}
        self._catalogs: OrderedDict[str, Catalog] = OrderedDict()
        self._chunks: OrderedDict[str, Chunk] = OrderedDict()

    def __str__(self) -> str:
        return f"{self.keys.folder}:{self.partition}"

    @property
    def topic(self) -> str:
        return self.keys.folder.topic

    @property
    def partition(self) -> int:
        return self.keys.partition

    @property
    def start_offset(self) -> int:
        """The first position that is archived, the floor if it was pruned; 0 if nothing is archived yet."""
        return max(self.began_at, self.floor)

    @property
    def began_at(self) -> int:
        """The first position that ever was archived."""
        starts = [folder.start_offset for folder in self._older if folder.start_offset < folder.offset]
        return starts[0] if starts else self.own_start

    @property
    def own_start(self) -> int:
        """The first position in its newest folder."""
        return self.marker.start_offset or 0

    @property
    def next_offset(self) -> int:
        """The position after the last archived one; 0 if nothing is archived yet."""
        return self.marker.next_offset or 0

    @property
    def is_maintained(self) -> bool:
        """Return whether its chunks may have been rewritten."""
        return bool(self.marker.maintenance) or any(folder.is_maintained for folder in self._older)

    @property
    def folders(self) -> tuple[tuple[PartitionKeys, int], ...]:
        """The folders that hold it, oldest first, each with the offset where its part begins."""
        starts = [folder.start_offset for folder in self._older[:1]] + [folder.offset for folder in self._older]
        return tuple(
            zip([*(folder.keys for folder in self._older), self.keys], starts or [self.own_start], strict=True)
        )

    def is_unchanged(self, newer: "ArchivedPartition") -> bool:
        """Return whether a newer look at the partition found the same marker and the same folders."""
        return self.marker == newer.marker and self.folders == newer.folders

    async def check_keys(self) -> None:
        """Raise KeyMissing before a long work if its newest chunk is encrypted and its key is missing."""
        if self.marker.tail_key:
            keyring = required(self.keyring, str(self))
            await asyncio.to_thread(keyring.unwrap, self.marker.tail_key, str(self))

    def tail_secret(self) -> bytes | None:
        """Return the key of the marker's `tail_hash`, if any and if its master key was given."""
        wrapped, keyring = self.marker.tail_key, self.keyring
        return keyring.unwrap(wrapped, str(self)) if wrapped and keyring and keyring.has(wrapped) else None

    @cached_property
    def listed_gaps(self) -> tuple[Gap, ...]:
        """The gaps that are known without reading a catalog, as far as they tell a reader something."""
        return self.telling(self.marked_gaps)

    @cached_property
    def marked_gaps(self) -> tuple[Gap, ...]:
        return (*(gap for folder in self._older for gap in folder.gaps), *self.marker.gaps)

    @property
    def read_gaps(self) -> tuple[Gap, ...]:
        """The gaps that are known from markers and the catalogs that are remembered, in no order."""
        return self.telling((*self.marked_gaps, *(gap for each in self._catalogs.values() for gap in each.gaps)))

    def telling(self, gaps: Iterable[Gap]) -> tuple[Gap, ...]:
        """Return the gaps that are not mere holes, and end above the floor."""
        return tuple(gap for gap in gaps if gap.reason != EMPTY and gap.end > self.floor)

    @property
    def num_records(self) -> int:
        return sum(span.num_records for span in self.spans)

    @property
    def num_chunks(self) -> int:
        return sum(span.num_chunks if isinstance(span, CatalogReference) else 1 for span in self.spans)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data of all committed chunks, as stored."""
        return sum(span.bytes for span in self.spans)

    def keys_of(self, span: Span) -> PartitionKeys:
        """Return the folder that holds a chunk or a catalog."""
        return next((folder.keys for folder in self._older if span.start_offset < folder.offset), self.keys)

    def index_key(self, entry: ChunkEntry) -> str:
        return self.keys_of(entry).chunks + entry.name

    def as_stored(self, entry: ChunkEntry) -> ChunkEntry:
        """Return the entry as its own folder's chain has it."""
        return next((folder.originals[entry.name] for folder in self._older if entry.name in folder.originals), entry)

    async def append_folder(self, newer: "ArchivedPartition", offset: int) -> "ArchivedPartition":
        """Return this partition below `offset` and the newer one above as one; raises MalformedObject."""
        # A chunk may not lie on both sides: catalogs around the offset are read to see that none does.
        older = [await self._cut(folder.keys, folder, offset) for folder in self._older]
        older.append(await self._cut(self.keys, None, offset))
        limit, cache, reopen = self.max_block_bytes, self._cache, newer._reopen
        return ArchivedPartition(self.reader, newer.keys, newer.marker, limit, cache, older, reopen, self.keyring)

    async def newer(self, offset: int | None = None) -> "ArchivedPartition | None":
        """Return the partition by its current marker, if that leads elsewhere: at an offset, or in its catalogs."""
        # An object that a reader finds damaged may have been rewritten, and deleted, since this marker was read.
        if self._reopen is None:
            return None
        try:
            found = await self._reopen(self.reader)
        except (*Damaged, NotInArchive):
            return None
        return None if found._led_to(offset) == self._led_to(offset) else found

    def _led_to(self, offset: int | None) -> tuple[int, Sequence[tuple[str, str]]]:
        if offset is None:
            return self.floor, [(span.name, span.sha256) for span in self.spans if isinstance(span, CatalogReference)]
        span = span_at_or_after(self.spans, offset)
        return max(0, self.floor - offset), [] if span is None else [(span.name, span.sha256)]

    async def _cut(self, keys: PartitionKeys, folder: OlderFolder | None, offset: int) -> OlderFolder:
        spans = [span for span in self.spans if self.keys_of(span) is keys]
        gaps = list(folder.gaps if folder else self.marker.gaps)
        originals = dict(folder.originals) if folder else {}
        offset = min(offset, folder.offset) if folder else offset
        kept: list[Span] = []
        while spans:
            span = spans.pop(0)
            if span.next_offset <= offset:
                kept.append(span)
            elif isinstance(span, CatalogReference) and span.start_offset < offset:
                catalog = await self.catalog(span)
                gaps += catalog.gaps
                spans[:0] = catalog.entries
            elif isinstance(span, ChunkEntry) and span.first_offset < offset:
                if span.last_offset >= offset:
                    raise MalformedObject(
                        f"the chunk {span.name} of {self} lies on both sides of offset {offset}",
                        why="the marker that continues it starts inside a chunk",
                    )
                originals[span.name] = self.as_stored(span)
                kept.append(replace(span, next_offset=offset))
        inside = [replace(gap, end=min(gap.end, offset)) for gap in gaps if gap.start < offset]
        start = folder.start_offset if folder else self.own_start
        floor = min(folder.pruned_before if folder else self.marker.pruned_before, offset)
        is_maintained = folder.is_maintained if folder else bool(self.marker.maintenance)
        return OlderFolder(keys, offset, start, floor, is_maintained, tuple(kept), tuple(inside), originals)

    async def entries(
        self, start: int, end: int, wanted: Callable[[TimeBounded], bool] | None = None
    ) -> AsyncIterator[ChunkEntry]:
        """Yield the wanted chunks with offsets of [start, end), in order; raises at an unreadable catalog."""
        async for opened in self.walk(start, end, wanted):
            if isinstance(opened, ChunkEntry):
                yield opened
            elif isinstance(opened, Unreadable):
                raise opened.error

    def walk(
        self, start: int, end: int, wanted: Callable[[TimeBounded], bool] | None = None
    ) -> AsyncIterator[ChunkEntry | Catalog | Unreadable]:
        """Yield the chunks as `entries` does, each catalog before its entries, unreadable ones in their place."""
        return self._walk(self.spans, max(start, self.floor), end, wanted)

    async def gaps(self) -> tuple[Gap, ...]:
        """Return all recorded gaps in offset order, without mere holes; reads all catalogs, into which they fold."""
        return await across_rewrites(self, ArchivedPartition._gaps)

    async def _gaps(self) -> tuple[Gap, ...]:
        found = set(self.marked_gaps)
        async for opened in self.walk(0, END):
            if isinstance(opened, Unreadable):
                raise opened.error
            if not isinstance(opened, ChunkEntry):
                found.update(opened.gaps)
        return tuple(sorted(self.telling(found), key=lambda gap: gap.start))

    async def gap_at(self, offset: int) -> Gap | None:
        """Return the listed gap at an offset, unless it is a mere hole; reads one catalog per level."""
        gap = gap_at(self.listed_gaps, offset)
        span: Span | None = None if gap is not None else span_at_or_after(self.spans, offset)
        while isinstance(span, CatalogReference) and span.start_offset <= offset:
            catalog = await self.catalog(span)
            gap = gap_at(self.telling(catalog.gaps), offset)
            span = None if gap is not None else span_at_or_after(catalog.entries, offset)
        return gap

    async def chunk(self, entry: ChunkEntry) -> Chunk:
        """Return the chunk of an entry with its index, checked against it; the newest few are cached."""
        remembered = self._chunks.get(entry.name)
        if remembered is not None:
            self._chunks.move_to_end(entry.name)
            return remembered
        keys, stored = self.keys_of(entry), self.as_stored(entry)
        body = await self._get(keys.index_key(entry), entry.sha256)
        index = decode_index(body, stored, self.topic, self.partition)
        chunk = Chunk(entry, index, keys.data_key(index), self.keyring)
        self._chunks[entry.name] = chunk
        if len(self._chunks) > REMEMBERED_CHUNKS:
            self._chunks.popitem(last=False)
        return chunk

    def forget(self) -> None:
        """Drop the cached catalogs and indexes: for callers that keep many partitions."""
        self._catalogs.clear()
        self._chunks.clear()

    async def chunk_at_or_after(self, offset: int) -> ChunkEntry | None:
        """Return the first chunk that ends above `offset`."""
        offset = max(offset, self.floor)

        def candidates(spans: Sequence[Span]) -> Iterator[Span]:
            first = bisect_right(spans, offset, key=lambda span: span.next_offset)
            return (spans[number] for number in range(first, len(spans)))

        return await self._descend(self.spans, candidates)

    async def chunk_before(self, offset: int) -> ChunkEntry | None:
        """Return the last chunk that starts below `offset`."""
        floor = self.floor
        return await self._descend(
            self.spans, lambda spans: (s for s in reversed(spans) if s.start_offset < offset and s.next_offset > floor)
        )

    async def chunk_for_time(self, timestamp: int) -> ChunkEntry | None:
        """Return the first chunk with a record at or after `timestamp` (ms)."""
        floor = self.floor
        return await self._descend(
            self.spans, lambda spans: (s for s in spans if s.max_timestamp >= timestamp and s.next_offset > floor)
        )

    async def catalog(self, reference: CatalogReference) -> Catalog:
        """Return the catalog of a reference, checked against it; concurrent callers share one read. Many are cached."""
        # Weak values: the lock goes with the last caller that waits for it.
        lock = self._locks.setdefault(reference.name, asyncio.Lock())
        async with lock:
            if reference.name not in self._catalogs:
                self._catalogs[reference.name] = await self._read_catalog(reference)
            catalog = self._catalogs[reference.name]
            self._catalogs.move_to_end(reference.name)
            if len(self._catalogs) > REMEMBERED_CATALOGS:
                self._catalogs.popitem(last=False)
            return catalog

    async def _read_catalog(self, reference: CatalogReference) -> Catalog:
        # Only the list that holds a reference says its level: the marker's, or the catalog above, which checks it here.
        keys, level = self.keys_of(reference), catalog_level(reference.name)
        key = keys.catalog_key(reference, self._levels.get(reference.name, level))
        try:
            catalog = decode_catalog(await self._get(key, reference.sha256), reference, level)
        except (ObjectMissing, MalformedObject) as error:
            error.remedy = catalog_remedy(keys)
            raise
        for entry in catalog.entries if isinstance(catalog, ReferenceCatalog) else ():
            keys.catalog_key(entry, self._levels.get(entry.name, level - 1))
        return catalog

    async def _get(self, key: str, sha256: str) -> bytes:

        async def fetch() -> bytes:
            return await self.reader.get(key, objects.MAX_OBJECT_BYTES)

        if self._cache is None:
            return await fetch()
        return await self._cache.through(self.marker.archive_id, key, sha256, fetch)

    async def _descend(
        self, spans: Sequence[Span], candidates: Callable[[Sequence[Span]], Iterator[Span]]
    ) -> ChunkEntry | None:
        for span in candidates(spans):
            if isinstance(span, ChunkEntry):
                return span
            found = await self._descend((await self.catalog(span)).entries, candidates)
            if found is not None:
                return found
        return None

    async def _walk(
        self, spans: Iterable[Span], start: int, end: int, wanted: Callable[[TimeBounded], bool] | None
    ) -> AsyncIterator[ChunkEntry | Catalog | Unreadable]:
        inside = (span for span in spans if span.next_offset > start and span.start_offset < end)
        chosen = [span for span in inside if wanted is None or wanted(span)]
        if all(isinstance(span, ChunkEntry) for span in chosen):
            for span in chosen:
                assert isinstance(span, ChunkEntry)
                yield span
            return
        opened = prefetched(streamed(chosen), self._opened, cost=lambda _: 1, budget=CONCURRENT_CATALOGS)
        async for each in opened:
            yield each
            if isinstance(each, ChunkCatalog | ReferenceCatalog):
                async for lower in self._walk(each.entries, start, end, wanted):
                    yield lower

    async def _opened(self, span: Span) -> ChunkEntry | Catalog | Unreadable:
        if isinstance(span, CatalogReference):
            try:
                return await self.catalog(span)
            except Damaged as error:
                key = self.keys_of(span).home + span.name
                return Unreadable(span.start_offset, span.next_offset, span.num_records, key, error)
        return span
