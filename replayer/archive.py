"""Opening an archive and its partitions: marker, catalogs and indexes, each checked against what led to it."""

import asyncio
import re
from collections import OrderedDict, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from index_format import objects
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES, ChunkIndex, Gap
from index_format.errors import BadName, BlockgzError, MalformedObject
from index_format.identity import TopicConfig
from index_format.keys import (
    INDEX_SUFFIXES,
    LAYOUTS,
    MARKER_OBJECT,
    SEED_HOME,
    TOPIC_CONFIG_OBJECT,
    PartitionKeys,
    TopicFolder,
    ancestor_marker_partition,
    ancestor_marker_prefix,
    archive_key,
    data_suffix,
    is_catalog_name,
    parse_topic_folder,
    topic_home,
)
from index_format.marker import (
    Catalog,
    CatalogReference,
    ChunkCatalog,
    ChunkEntry,
    Marker,
    ReferenceCatalog,
    Span,
    decode_catalog,
    decode_index,
    decode_marker,
)
from index_format.seek import TimeBounded, span_at_or_after, span_for_time

from .damage import Damaged, Unreadable
from .errors import AccessDenied, NoArchiveThere, NotInArchive, ObjectMissing
from .findings import Damage
from .prefetch import prefetched
from .stores import ObjectReader

CONCURRENT_CATALOGS = 16
CONCURRENT_MARKERS = 32
REMEMBERED_CHUNKS = 16

_PARTITION = re.compile(r"partition=([0-9]{5,10})")


@dataclass(frozen=True)
class Chunk:
    """A committed chunk: its entry in the chain, its index, and the key of its data."""

    entry: ChunkEntry
    index: ChunkIndex
    data_key: str


class ObjectCache(Protocol):
    """Keeps write-once objects at hand."""

    async def through(self, archive_id: str, key: str, sha256: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:
        """The object's bytes: those kept, which have that sha256, or what `fetch` gives."""


class NoCache:
    """Keeps nothing."""

    async def through(self, archive_id: str, key: str, sha256: str, fetch: Callable[[], Awaitable[bytes]]) -> bytes:  # noqa: ARG002
        """See ObjectCache."""
        return await fetch()


class LeveledSpan(NamedTuple):
    """A chunk entry (level 0) or a reference to a catalog of that level."""

    span: Span
    level: int


class ArchivedPartition:
    """One partition as one version of its marker describes it; later commits are not seen.

    `topic` is the plain name, `keys.folder` the incarnation (`orders~2`).
    """

    def __init__(
        self, reader: ObjectReader, keys: PartitionKeys, marker: Marker, max_block_bytes: int, cache: ObjectCache
    ) -> None:
        self.reader = reader
        self.keys = keys
        self.marker = marker
        self.max_block_bytes = max_block_bytes
        self.damage: Sequence[Damage] = ()
        """What was found damaged on opening it, and is in no chunk."""
        self._cache = cache
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._levels = {ref.name: level for level, refs in enumerate(marker.catalogs, 1) for ref in refs}
        self._catalogs: dict[str, Catalog] = {}
        self._chunks: OrderedDict[str, Chunk] = OrderedDict()

    def __str__(self) -> str:
        return f"{self.keys.folder}:{self.partition}"

    @property
    def topic(self) -> str:
        """The topic's name in Kafka."""
        return self.keys.folder.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self.keys.partition

    @property
    def start_offset(self) -> int:
        """The first archived position; 0 where nothing is archived yet."""
        return self.marker.start_offset or 0

    @property
    def next_offset(self) -> int:
        """The position after the last archived one; 0 where nothing is archived yet."""
        return self.marker.next_offset or 0

    @property
    def num_records(self) -> int:
        """See Marker."""
        return self.marker.num_records

    @property
    def num_bytes(self) -> int:
        """See Marker."""
        return self.marker.num_bytes

    @property
    def num_chunks(self) -> int:
        """See Marker."""
        return self.marker.num_chunks

    @property
    def spans(self) -> tuple[LeveledSpan, ...]:
        """What the marker itself lists, in offset order."""
        return tuple(LeveledSpan(span, self._levels.get(span.name, 0)) for span in self.marker.spans)

    async def entries(
        self, start: int, end: int, wanted: Callable[[TimeBounded], bool] | None = None
    ) -> AsyncIterator[ChunkEntry]:
        """The chunks that may hold records of offsets [start, end), in order; reads the catalogs on the way.

        A chunk or catalog that `wanted` refuses is left out, with all below it.
        Raises a FormatError or ObjectMissing at the first catalog that cannot be read.
        """
        async for opened in self.walk(start, end, wanted):
            if isinstance(opened, ChunkEntry):
                yield opened
            elif isinstance(opened, Unreadable):
                raise opened.error

    async def walk(
        self, start: int, end: int, wanted: Callable[[TimeBounded], bool] | None = None
    ) -> AsyncIterator[ChunkEntry | Catalog | Unreadable]:
        """The same with what is met on the way: each catalog before its entries, and those that cannot be read."""
        async for opened in self._walk(self.spans, start, end, wanted):
            yield opened

    async def gaps(self) -> tuple[Gap, ...]:
        """All recorded gaps in offset order; reads all catalogs, because old gaps fold into them."""
        references = [span for span in self.spans if span.level]
        folded = await asyncio.gather(*(self._gaps_below(span) for span in references))
        return tuple(sorted({*self.marker.gaps, *(gap for gaps in folded for gap in gaps)}, key=lambda gap: gap.start))

    async def chunk(self, entry: ChunkEntry) -> Chunk:
        """The chunk of an entry with its index, checked against it; the newest few are remembered."""
        remembered = self._chunks.get(entry.name)
        if remembered is not None:
            self._chunks.move_to_end(entry.name)
            return remembered
        name = self.keys.check_name(entry.name, entry.start_offset, INDEX_SUFFIXES[self.keys.layout])
        index = decode_index(await self._get(self.keys.chunks + name, entry.sha256), entry, self.topic, self.partition)
        suffix = data_suffix(index.record_format, index.codec)
        data_name = self.keys.check_name(index.data.name, index.start_offset, suffix)
        chunk = Chunk(entry, index, self.keys.chunks + data_name)
        self._chunks[entry.name] = chunk
        if len(self._chunks) > REMEMBERED_CHUNKS:
            self._chunks.popitem(last=False)
        return chunk

    async def chunk_at_or_after(self, offset: int) -> ChunkEntry | None:
        """The first chunk that ends above `offset`."""
        return await self._descend(lambda spans: span_at_or_after(spans, offset))

    async def chunk_before(self, offset: int) -> ChunkEntry | None:
        """The last chunk that starts below `offset`."""
        return await self._descend(lambda spans: next((s for s in reversed(spans) if s.start_offset < offset), None))

    async def chunk_for_time(self, timestamp: int) -> ChunkEntry | None:
        """The first chunk with a record at or after `timestamp` (ms)."""
        return await self._descend(lambda spans: span_for_time(spans, timestamp))

    async def catalog(self, reference: CatalogReference, level: int) -> Catalog:
        """The catalog of a reference, checked against it and remembered; asked for at once, it is read once."""
        async with self._locks[reference.name]:
            if reference.name not in self._catalogs:
                self._catalogs[reference.name] = await self._read_catalog(reference, level)
            return self._catalogs[reference.name]

    async def _read_catalog(self, reference: CatalogReference, level: int) -> Catalog:
        if not is_catalog_name(reference.name, level, reference.start_offset):
            raise MalformedObject(
                f"the name {reference.name[:120]!r} does not belong into {self.keys.home}",
                why="names in an archive are derived, never free",
            )
        return decode_catalog(await self._get(self.keys.home + reference.name, reference.sha256), reference, level)

    async def _get(self, key: str, sha256: str) -> bytes:
        """A write-once object; its sha256 is for the caller to check."""

        async def fetch() -> bytes:
            return (await self.reader.get(key, objects.MAX_OBJECT_BYTES)).body

        return await self._cache.through(self.marker.archive_id, key, sha256, fetch)

    async def _descend(self, pick: Callable[[Sequence[Span]], Span | None]) -> ChunkEntry | None:
        span = pick(self.marker.spans)
        level = self._levels.get(span.name, 0) if span is not None else 0
        while isinstance(span, CatalogReference):
            catalog = await self.catalog(span, level)
            reference, span = span, pick(catalog.entries)
            if span is None:
                raise MalformedObject(f"catalog {reference.name} is not what its reference says", why="bounds differ")
            level -= 1
        assert span is None or isinstance(span, ChunkEntry)
        return span

    async def _walk(
        self, spans: Iterable[LeveledSpan], start: int, end: int, wanted: Callable[[TimeBounded], bool] | None
    ) -> AsyncIterator[ChunkEntry | Catalog | Unreadable]:
        inside = [each for each in spans if each.span.next_offset > start and each.span.start_offset < end]
        chosen = [each for each in inside if wanted is None or wanted(each.span)]
        opened = prefetched(_each(chosen), self._opened, cost=lambda _: 1, budget=CONCURRENT_CATALOGS)
        async for each in opened:
            yield each
            if isinstance(each, ChunkCatalog | ReferenceCatalog):
                async for below in self._walk(_below(each), start, end, wanted):
                    yield below

    async def _opened(self, leveled: LeveledSpan) -> ChunkEntry | Catalog | Unreadable:
        span, level = leveled
        if isinstance(span, CatalogReference):
            try:
                return await self.catalog(span, level)
            except Damaged as error:
                key = self.keys.home + span.name
                return Unreadable(span.start_offset, span.next_offset, span.num_records, key, error)
        assert isinstance(span, ChunkEntry)
        return span

    async def _gaps_below(self, leveled: LeveledSpan) -> list[Gap]:
        assert isinstance(leveled.span, CatalogReference)
        catalog = await self.catalog(leveled.span, leveled.level)
        gaps = list(catalog.gaps)
        if leveled.level > 1:
            for below in await asyncio.gather(*(self._gaps_below(span) for span in _below(catalog))):
                gaps += below
        return gaps


def _below(catalog: Catalog) -> list[LeveledSpan]:
    return [LeveledSpan(entry, catalog.level - 1) for entry in catalog.entries]


async def _each(spans: Iterable[LeveledSpan]) -> AsyncIterator[LeveledSpan]:
    for span in spans:
        yield span


class DamagedPartition(NamedTuple):
    """A partition that is there and cannot be opened."""

    partition: int
    error: BlockgzError


class SurveyedTopic(NamedTuple):
    """The partitions of a topic, in order of their numbers."""

    partitions: tuple[ArchivedPartition, ...]
    damaged: tuple[DamagedPartition, ...]


class OtherArchive(Protocol):
    """An archive of another kind that can be read as if it were a current one."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What its reader should know, for people."""

    def folders(self) -> tuple[TopicFolder, ...]:
        """Its topics, in order."""

    def partitions(self, folder: TopicFolder) -> tuple[int, ...]:
        """The numbers of a topic's partitions, in order."""

    async def open_partition(self, folder: TopicFolder, partition: int) -> ArchivedPartition | None:
        """One of its partitions; None where it has no such."""


class Archive:
    """An archive at one address."""

    def __init__(
        self,
        reader: ObjectReader,
        max_block_bytes: int = DEFAULT_MAX_BLOCK_BYTES,
        find_other: Callable[[ObjectReader], Awaitable[OtherArchive | None]] | None = None,
        cache: ObjectCache | None = None,
    ) -> None:
        """`find_other` looks for an archive of another kind, once, where there is no current one."""
        self.reader = reader
        self.max_block_bytes = max_block_bytes
        self._cache = cache or NoCache()
        self._layouts = tuple(LAYOUTS)
        self._find_other = find_other
        self._finding = asyncio.Lock()
        self.other: OtherArchive | None = None
        """The archive of another kind that was found."""

    @property
    def layout(self) -> str:
        """The archive's layout, once something of it has been found; the default one before."""
        return self._layouts[0]

    async def topics(self) -> tuple[str, ...]:
        """The names of all archived topics, without older incarnations; raises NoArchiveThere."""
        return tuple(sorted({folder.topic for folder in await self._topic_folders()}))

    async def all_incarnations(self) -> tuple[str, ...]:
        """Every incarnation of every topic, by a name that means it: `orders`, or `orders~1` where there are more."""
        folders = await self._topic_folders()
        several = {folder.topic for folder in folders if folder.incarnation > 1}
        return tuple(f"{topic}~{incarnation}" if topic in several else topic for topic, incarnation in sorted(folders))

    async def incarnations(self, topic: str) -> tuple[TopicFolder, ...]:
        """The archived incarnations of a plain topic name, oldest first; raises NotInArchive or NoArchiveThere."""
        folders = await self._topic_folders()
        mine = sorted(folder for folder in folders if folder.topic == topic)
        if not mine:
            raise NotInArchive(
                f"topic {topic} is not in the archive",
                why=f"{self.reader.address} holds {_listed(sorted({folder.topic for folder in folders}))}",
                remedy="name one of those, or archive the topic first: archiver run TOPIC --once",
            )
        return tuple(mine)

    async def partitions(self, topic: str) -> tuple[int, ...]:
        """The numbers of the topic's archived partitions; raises NotInArchive or NoArchiveThere.

        A plain name means the newest incarnation that has a partition.
        """
        return await self._partitions_in(await self.folder_of(topic))

    async def folder_of(self, topic: str) -> TopicFolder:
        """The incarnation that `orders` or `orders~2` means; raises NotInArchive or NoArchiveThere."""
        folder = parse_topic_folder(topic)
        incarnations = await self.incarnations(folder.topic)
        if "~" not in topic:
            for newest in reversed(incarnations):
                if await self._partitions_in(newest):
                    return newest
        if folder not in incarnations:
            raise NotInArchive(f"{topic} is not in the archive", why=f"there is {_listed(map(str, incarnations))}")
        return folder

    async def topic_config(self, topic: str) -> TopicConfig | None:
        """What the topic was like when it was last archived, None where that was not kept; raises as `folder_of`."""
        key = topic_home(self.layout, await self.folder_of(topic)) + TOPIC_CONFIG_OBJECT
        try:
            stored = await self.reader.get(key, objects.MAX_OBJECT_BYTES)
        except ObjectMissing:
            return None
        return objects.decode(stored.body, TopicConfig, key)

    async def partition_keys(self, topic: str, partition: int) -> PartitionKeys:
        """Where the objects of a partition are, whether or not it has a marker."""
        return LAYOUTS[self.layout](await self.folder_of(topic), partition)

    async def open_partition(self, topic: str, partition: int) -> ArchivedPartition:
        """The partition of `orders`, the newest incarnation, or of the one that `orders~2` names. One request.

        Raises NotInArchive or NoArchiveThere (found out by listing, then only), ObjectMissing where there is a
        partition without its marker, AccessDenied, or a FormatError.
        """
        folder, pinned = parse_topic_folder(topic), "~" in topic
        found = await self._read_marker(folder, partition)
        if found is None and not pinned:
            found = await self._read_marker(folder._replace(incarnation=2), partition)
            if found is None:
                newest = (await self.incarnations(folder.topic))[-1]
                is_unread = newest.incarnation > 2 or self.other is not None
                found = await self._read_marker(newest, partition) if is_unread else None
        while found is not None and not pinned and found.marker.successor is not None:
            successor = _successor(found)
            found = await self._read_marker(successor, partition)
            if found is None:
                raise NotInArchive(
                    f"partition {partition} of {topic} is not in the archive",
                    why=f"the topic was created again as {successor}, and nothing of this partition is archived since",
                    remedy=f"name the incarnation before, such as {folder.topic}~{successor.incarnation - 1}",
                )
        if found is None:
            raise await self._no_partition(topic, partition)
        return found

    async def open_topic(self, topic: str, partitions: Sequence[int] | None = None) -> tuple[ArchivedPartition, ...]:
        """The named partitions, or all that are archived, in order of their numbers; raises as `open_partition`."""
        opened = await self.survey_topic(topic, partitions)
        for damaged in opened.damaged:
            raise damaged.error
        return opened.partitions

    async def survey_topic(self, topic: str, partitions: Sequence[int] | None = None) -> SurveyedTopic:
        """The same, with those apart whose marker is damaged or missing."""
        numbers = await self.partitions(topic) if partitions is None else sorted(set(partitions))
        limit = asyncio.Semaphore(CONCURRENT_MARKERS)

        async def opened(number: int) -> ArchivedPartition | DamagedPartition:
            async with limit:
                try:
                    return await self.open_partition(topic, number)
                except Damaged as error:
                    return DamagedPartition(number, error)

        found = await asyncio.gather(*(opened(number) for number in numbers))
        return SurveyedTopic(
            tuple(each for each in found if isinstance(each, ArchivedPartition)),
            tuple(each for each in found if isinstance(each, DamagedPartition)),
        )

    async def _read_marker(self, folder: TopicFolder, partition: int) -> ArchivedPartition | None:
        if self.other is not None:
            return await self.other.open_partition(folder, partition)
        denied: AccessDenied | None = None
        for layout in self._layouts:
            keys: PartitionKeys = LAYOUTS[layout](folder, partition)
            try:
                stored = await self.reader.get(keys.marker, objects.MAX_OBJECT_BYTES)
            except ObjectMissing:
                continue
            except AccessDenied as error:
                denied = denied or error
                continue
            self._layouts = (layout,)
            marker = decode_marker(stored.body, keys.marker)
            if (marker.topic, marker.partition) != (folder.topic, partition):
                raise MalformedObject(
                    f"{keys.marker} is not this partition's marker", why=f"it says {marker.topic}:{marker.partition}"
                )
            return ArchivedPartition(self.reader, keys, marker, self.max_block_bytes, self._cache)
        if denied is not None:
            raise denied
        return None

    async def _topic_folders(self) -> tuple[TopicFolder, ...]:
        if self.other is not None:
            return self.other.folders()
        for layout in self._layouts:
            home = SEED_HOME if layout == "seed" else ""
            names = await self.reader.folders(home)
            folders = tuple(folder for name in names if (folder := _topic_folder(name)) is not None)
            if folders or await self._has_archive_object(layout):
                self._layouts = (layout,)
                return folders
        async with self._finding:
            if self.other is None and self._find_other is not None:
                self.other = await self._find_other(self.reader)
        if self.other is not None:
            return self.other.folders()
        raise NoArchiveThere(
            f"there is no archive at {self.reader.address}",
            why="it holds neither _archive.json nor a topic",
            remedy="check -a/--archive, or make one: archiver run TOPIC --once -a ADDRESS",
        )

    async def _has_archive_object(self, layout: str) -> bool:
        try:
            await self.reader.size(archive_key(layout))
        except ObjectMissing:
            return False
        return True

    async def _partitions_in(self, folder: TopicFolder) -> tuple[int, ...]:
        if self.other is not None:
            return self.other.partitions(folder)
        names = await self.reader.folders(topic_home(self.layout, folder))
        numbers = {int(match[1]) for name in names if (match := _PARTITION.fullmatch(name))}
        if self.layout == "seed" and folder == max(await self.incarnations(folder.topic)):
            numbers |= await self._seed_partitions(folder)
        return tuple(sorted(numbers))

    async def _seed_partitions(self, folder: TopicFolder) -> set[int]:
        """Layout `seed`: those that the ancestor's markers tell of, our own being gone perhaps."""
        keys = [key async for key in self.reader.list(ancestor_marker_prefix(folder.topic))]
        numbers = (ancestor_marker_partition(key, folder.topic) for key in keys)
        return {number for number in numbers if number is not None}

    async def _no_partition(self, topic: str, partition: int) -> BlockgzError:
        numbers = await self.partitions(topic)
        if partition in numbers:
            return ObjectMissing(f"{MARKER_OBJECT} of {topic}:{partition}")
        return NotInArchive(
            f"partition {partition} of {topic} is not in the archive",
            why=f"there is {_listed(map(str, numbers))}",
            remedy="name one of those",
        )


def _successor(partition: ArchivedPartition) -> TopicFolder:
    name = partition.marker.successor or ""
    try:
        folder = parse_topic_folder(name)
    except BadName as error:
        raise MalformedObject(f"{partition.keys.marker} names a successor that is none", why=error.what) from error
    here = partition.keys.folder
    if folder.topic != here.topic or folder.incarnation <= here.incarnation:
        raise MalformedObject(f"{partition.keys.marker} names a successor that is none", why=f"it says {name[:80]!r}")
    return folder


def _topic_folder(name: str) -> TopicFolder | None:
    try:
        return parse_topic_folder(name.removeprefix("topic=")) if name.startswith("topic=") else None
    except BadName:
        return None


def _listed(names: Iterable[str], limit: int = 20) -> str:
    """Names for an error's reason, not too many."""
    all_names = list(names)
    shown = ", ".join(all_names[:limit])
    more = f" and {len(all_names) - limit} more" if len(all_names) > limit else ""
    return f"{shown}{more}" if shown else "nothing yet"
