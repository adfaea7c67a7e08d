"""Collect garbage: list an archive, read its markers, and delete what `garbage` lets go."""

import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from msgspec.structs import replace

from archiver.commit.archive import layout_of, refuse_lost_marker
from archiver.commit.driver import Driver, UnreadLog, Wait
from archiver.maintain.garbage import (
    DELETION_ORDER,
    SHORTEST_GRACE_SECONDS,
    Chain,
    DatedObject,
    ListedPart,
    catalogs_in_doubt,
    dated_config,
    entries_in_doubt,
    find_dead,
    find_dead_maintained,
    find_guarded_gaps,
    find_pruned,
    find_spared,
    find_superfluous,
    group_table,
    keep_books,
    may_meet_a_gap,
    oldest_record,
    update_books,
    without_needed_tables,
)
from archiver.maintain.planned import REQUESTS_AT_ONCE, Cell, PlannedCommand, Problem, check_names
from blockgz.errors import BlockgzError, FormatError, MalformedObject, UsageError
from blockgz.store.retry import bounded_backoff
from blockgz.store.writer import PROBE_FOLDER, Leftover, ListedObject, ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import bytes_text
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES, ChunkIndex, Gap
from index_format.keys import (
    ENCRYPTED_SUFFIX,
    INDEX_SUFFIX,
    LAYOUTS,
    SEED_INDEX_SUFFIX,
    TOPIC_OBJECT,
    ObjectKey,
    ObjectKind,
    PartitionKeys,
    TopicFolder,
    catalog_level,
    data_suffix,
    floor_name,
    is_catalog_name,
    parse_floor_key,
    parse_key,
    topic_home,
    topic_of,
)
from index_format.marker import CatalogReference, ChunkCatalog, ChunkEntry, Floor, Marker, ReferenceCatalog
from index_format.old_members import MemberScanner, Scanned
from index_format.old_objects import decode_old_index
from index_format.rebuild import blocks_of, scan_frames

READ_BYTES = 4 * 1024 * 1024


def read_offsets(
    store: ToolStore, keys: PartitionKeys, asked: Iterable[ListedPart], listed: Iterable[ListedPart]
) -> dict[str, list[range]]:
    """Return by key the ranges of offsets of each object's records; without those that cannot be read.

    `listed` is everything there is of the partition, for the indexes.
    """
    asked = list(asked)
    numbers = {found.name.number for found in asked}
    held: dict[str, list[range]] = {}
    for found in listed:
        if found.name.kind is ObjectKind.INDEX and found.name.number in numbers:
            index = read_index(store, found.name.key)
            if index is not None:
                held[found.name.key] = held[keys.chunks + index.data.name] = offsets_of(index)
    for found in asked:
        if found.name.kind is ObjectKind.DATA and found.name.key not in held:
            scanned = _scanned_offsets(store, found)
            if scanned is not None:
                held[found.name.key] = scanned
    by_stem = {found.name.stem: held[found.name.key] for found in asked if found.name.key in held}
    for found in asked:
        if found.name.kind is ObjectKind.ANCESTOR_INDEX and found.name.stem in by_stem:
            held[found.name.key] = by_stem[found.name.stem]
    return held


def read_index(store: ToolStore, key: str) -> ChunkIndex | None:
    """Return the index with a key; None if it is missing or damaged."""
    stored = store.get(key)
    try:
        return objects.decode(stored.body, ChunkIndex, key) if stored is not None else None
    except FormatError:
        return None


def offsets_of(index: ChunkIndex) -> list[range]:
    """Return the ranges of a chunk's records: those of its blocks, without the gaps inside it."""
    blocks = [range(block.first_record_offset, block.last_record_offset + 1) for block in index.blocks]
    return [piece for block in blocks for piece in _without(block, index.gaps)]


def scan(store: ToolStore, key: ObjectKey, size: int, max_block_bytes: int) -> Iterator[Scanned]:
    """Yield the members or frames of a data object of `size` bytes."""
    if key.key.endswith(".zst"):
        yield from scan_frames(store.get_range(key.key, 0, size), max_block_bytes)
        return
    scanner = MemberScanner(max_block_bytes)
    for piece in pieces(store, key.key, size):
        yield from scanner.feed(piece)
    yield from scanner.finish()


def pieces(store: ToolStore, key: str, size: int) -> Iterator[bytes]:
    """Yield an object of `size` bytes, a few MiB at a time."""
    for start in range(0, size, READ_BYTES):
        yield store.get_range(key, start, min(size, start + READ_BYTES))


def _scanned_offsets(store: ToolStore, found: ListedPart) -> list[range] | None:
    key = found.name
    if key.key.endswith(ENCRYPTED_SUFFIX):
        return None
    sidecar = store.get(key.stem + INDEX_SUFFIX)
    try:
        if sidecar is not None:
            counted = decode_old_index(sidecar.body, key.key, key.number)
            return [range(block.first_offset, block.next_offset) for block in counted]
        form = "arrow" if ".arrows." in key.key else "json"
        blocks = blocks_of(scan(store, key, found.listed.size, DEFAULT_MAX_BLOCK_BYTES), form)
    except FormatError:
        return None
    return [range(block.first_record_offset, block.last_record_offset + 1) for block in blocks]


def _without(span: range, gaps: Sequence[Gap]) -> Iterator[range]:
    start = span.start
    for gap in gaps:
        if start < gap.start < span.stop:
            yield range(start, gap.start)
        if gap.start < span.stop and gap.end > start:
            start = gap.end
    if start < span.stop:
        yield range(start, span.stop)


class FloorObject(NamedTuple):
    """The object that records that nothing is archived below an offset of a partition."""

    keys: PartitionKeys
    pruned_before: int
    listed: ListedObject | None = None
    """None if it is not stored yet."""

    @property
    def key(self) -> str:
        return self.keys.home + floor_name(self.pruned_before)


class Garbage(NamedTuple):
    """The objects of one partition to delete, keep or store; see PlannedSweep."""

    dead: Sequence[ListedPart]
    spared: Sequence[ListedPart] = ()
    floors: Sequence[FloorObject] = ()
    old_floors: Sequence[FloorObject] = ()


@dataclass
class PlannedSweep(PlannedCommand):
    """A garbage collection of an archive."""

    nothing = "nothing to delete"
    undone = "nothing was deleted"
    columns = ("topic", "partition", "what", "count", "size")
    droppable = ("size",)

    store: ToolStore
    garbage: tuple[ListedPart, ...]
    leftovers: tuple[Leftover, ...]
    problems: list[Problem]
    spared: tuple[ListedPart, ...] = ()
    """Objects that no marker leads to, and that may hold records which a gap lists as lost."""
    tables: tuple[DatedObject, ...] = ()
    """Tables of consumer groups that are thinned out, or older than the oldest record."""
    configs: tuple[DatedObject, ...] = ()
    """Versions of topics' configurations older than the oldest record."""
    floors: tuple[FloorObject, ...] = ()
    """Floors that are stored before anything else is deleted of their partitions."""
    old_floors: tuple[FloorObject, ...] = ()
    """Lower floors, which are deleted last."""
    deleted: int | None = None
    """Objects that were deleted, once the plan is carried out."""

    @property
    def count(self) -> int:
        """Objects, files and uploads that are deleted."""
        return len(self.garbage) + len(self.leftovers) + len(self.dated) + len(self.old_floors)

    @property
    def dated(self) -> tuple[DatedObject, ...]:
        """Tables and configurations."""
        return (*self.tables, *self.configs)

    @property
    def bytes(self) -> int:
        """Bytes freed, if the store reports sizes."""
        listed = [*(found.listed for found in self.garbage), *(each.listed for each in self.dated)]
        listed += [floor.listed for floor in self.old_floors if floor.listed is not None]
        return sum(each.size for each in listed) + sum(each.size or 0 for each in self.leftovers)

    @property
    def question(self) -> str | None:
        return f"Delete {self.count:,} objects ({self.bytes:,} bytes)?" if self.count else None

    def rows(self) -> list[tuple[Cell, ...]]:
        pieces: list[tuple[tuple[Cell, ...], int]] = []
        for found in self.garbage:
            name = found.name
            pieces.append(((str(name.folder), name.partition, name.kind.value), found.listed.size))
        for dated, what in ((self.tables, "group table"), (self.configs, "config")):
            pieces += [((str(each.folder), None, what), each.listed.size) for each in dated]
        for floor in self.old_floors:
            keys = floor.keys
            pieces.append(((str(keys.folder), keys.partition, "floor"), floor.listed.size if floor.listed else 0))
        pieces += [((None, None, leftover.kind), leftover.size or 0) for leftover in self.leftovers]
        sizes = defaultdict[tuple[Cell, ...], list[int]](list)
        for kind, size in pieces:
            sizes[kind].append(size)
        if self.count:
            sizes["all", None, ""] = [size for _, size in pieces]
        return [(*kind, len(of_kind), bytes_text(sum(of_kind))) for kind, of_kind in sizes.items()]

    def notes(self) -> list[str]:
        if not self.spared:
            return []
        partitions = sorted({f"{found.name.folder}:{found.name.partition}" for found in self.spared})
        return [
            f"{len(self.spared):,} objects of dead writers are kept, because they may hold records that a gap "
            f"lists as lost; to recover them: archiver repair salvage {' '.join(partitions)}"
        ]

    def carry_out(self) -> None:
        """Delete what was planned, no matter how old the plan is."""
        store, num_attempted = self.store, 0
        problems = _store_floors(store, self.floors)
        without_floor = {floor.keys.home for floor in self.floors if floor.key in {each.where for each in problems}}
        garbage = [each for each in self.garbage if not any(each.name.key.startswith(home) for home in without_floor)]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="delete") as pool:

            def delete(keys: Sequence[str]) -> None:
                nonlocal num_attempted
                outcomes = pool.map(_outcome, [partial(store.delete, key) for key in keys])
                problems.extend(_problems(keys, outcomes))
                num_attempted += len(keys)

            for kind in DELETION_ORDER:
                failed = {problem.where for problem in problems}
                spared = {_chunk_of(found.name) for found in garbage if found.name.key in failed}
                of_kind = (each.name for each in garbage if each.name.kind is kind)
                delete([name.key for name in of_kind if _chunk_of(name) not in spared])
            delete([each.listed.key for each in self.dated])
            delete([floor.key for floor in self.old_floors if floor.keys.home not in without_floor])
            outcomes = pool.map(_outcome, [partial(store.discard, leftover) for leftover in self.leftovers])
            problems += _problems([leftover.key for leftover in self.leftovers], outcomes)
        self.deleted = num_attempted + len(self.leftovers) - (len(problems) - len(without_floor))
        self.problems += problems

    def summary(self) -> str | None:
        return None if self.deleted is None else f"deleted {self.deleted:,} of {self.count:,}"

    def as_json(self, *, dry_run: bool) -> dict[str, Any]:
        """See PlannedCommand; bytes are null if the store does not report them."""

        def entry(listed: ListedObject | Leftover, **fields: Any) -> dict[str, Any]:
            named = {**fields, "key": listed.key, "bytes": listed.size}
            return named | {"modified_ms": round(listed.modified * 1000)}

        return {
            "dry_run": dry_run,
            "planned": self.count,
            "bytes": self.bytes,
            "deleted": self.deleted or 0,
            "garbage": [
                entry(
                    each.listed, kind=each.name.kind.value, topic=str(each.name.folder), partition=each.name.partition
                )
                for each in self.garbage
            ],
            "group_tables": [entry(each.listed, topic=str(each.folder)) for each in self.tables],
            "topic_configs": [entry(each.listed, topic=str(each.folder)) for each in self.configs],
            "floors": [{"key": e.key, "bytes": e.listed.size if e.listed else None} for e in self.old_floors],
            "leftovers": [entry(each, kind=each.kind) for each in self.leftovers],
            "spared": [{"key": found.name.key, "bytes": found.listed.size} for found in self.spared],
        }


def plan_sweep(
    store: ToolStore, patterns: Sequence[str], grace: float, *, keeps_books: bool = True, wait: Wait | None = None
) -> PlannedSweep:
    """Plan to delete everything that `garbage` releases, of all topics or of the patterns'; `grace` in seconds.

    The markers of partitions that are rewritten are updated (see `keep_books`); unless `keeps_books`, the plan is made
    as if they had been. An error of one partition is a problem of the plan, and nothing of that partition is deleted.
    Raises UsageError for too short a grace, NoArchiveThere, NotInArchive for a name that is not in the archive, and the
    errors of a listing.
    """
    if grace < SHORTEST_GRACE_SECONDS:
        raise UsageError(
            f"--grace of {grace:g} s is too short",
            why="listings may lag and readers may be active, so nothing younger than an hour is deleted",
            remedy="give 1h or more; the default is 7d",
        )
    layout = layout_of(store)
    now = store.clock()
    selection = TopicSelection(patterns) if patterns else None
    garbage: list[Garbage] = []
    problems: list[Problem] = []
    topics: set[str] = set()
    beside = Beside([], [], [])
    collector = _Collector(store, layout, now=now, grace=grace, keeps_books=keeps_books, wait=wait)
    for name, folders, found in _partitions(store, layout, selection, beside):
        topics.add(name[0])
        try:
            garbage.append(collector.garbage_of(folders, name[1], found, beside.floors))
        except BlockgzError as error:
            problems.append(Problem(f"{name[0]}:{name[1]}", error))
    leftovers = []
    try:
        for leftover in store.leftovers():
            if now - leftover.modified >= grace and _is_ours(layout, leftover, selection):
                leftovers.append(leftover)
    except BlockgzError as error:
        problems.append(Problem("leftovers", error))
    if selection is not None:
        topics = {topic.partition("~")[0] for topic in topics}
        topics |= {name for name in selection.names - topics if _is_declared(store, layout, name)}
        check_names(selection, topics, store.url)
    superfluous = find_superfluous(beside.tables, collector.oldest, now=now, grace=grace)
    return PlannedSweep(
        store,
        garbage=tuple(found for each in garbage for found in each.dead),
        leftovers=tuple(leftovers),
        problems=problems,
        spared=tuple(found for each in garbage for found in each.spared),
        tables=tuple(without_needed_tables(store, layout, beside.tables, superfluous)),
        configs=tuple(find_pruned(beside.configs, collector.oldest, now=now, grace=grace)),
        floors=tuple(floor for each in garbage for floor in each.floors),
        old_floors=tuple(floor for each in garbage for floor in each.old_floors),
    )


def _store_floors(store: ToolStore, floors: Sequence[FloorObject]) -> list[Problem]:
    """Store floors, and return those that could not be stored."""
    problems = []
    for floor in floors:
        body = objects.encode(Floor(pruned_before=floor.pruned_before))
        error = _outcome(partial(store.put_if_absent, floor.key, body, str(uuid.uuid4())))
        if error is not None:
            problems.append(Problem(floor.key, error))
    return problems


def _outcome(action: Callable[[], object]) -> BlockgzError | None:
    try:
        action()
    except BlockgzError as error:
        return error
    return None


def _problems(keys: Iterable[str], outcomes: Iterable[BlockgzError | None]) -> list[Problem]:
    return [Problem(key, error) for key, error in zip(keys, outcomes, strict=True) if error is not None]


def _chunk_of(name: ObjectKey) -> tuple[str, int, int]:
    """Return a key of the object's chunk: its data stays if its index could not be deleted."""
    return (str(name.folder), name.partition, -1 if name.kind is ObjectKind.CATALOG else name.number)


PartitionName = tuple[str, int]
"""The topic or incarnation, and the partition."""


class Beside(NamedTuple):
    """The objects of a listing that are not chunks or catalogs."""

    tables: list[DatedObject]
    configs: list[DatedObject]
    floors: list[FloorObject]


def _partitions(
    store: ToolStore, layout: str, selection: TopicSelection | None, beside: Beside
) -> Iterator[tuple[PartitionName, list[TopicFolder], list[ListedPart]]]:
    """Yield the objects of each partition, and the folders whose chains share their names.

    The markers of these folders are to be read after that. Adds other objects to `beside`.
    """
    if layout == "seed":
        # Any folder of dates may hold chunks of any partition.
        shared: dict[PartitionName, list[ListedPart]] = {}
        for found in _objects(store, layout, "", selection, beside):
            shared.setdefault((found.name.folder.topic, found.name.partition), []).append(found)
        for name, objects_of in shared.items():
            yield name, _incarnations(store, layout, name[0]), objects_of
        return
    listed: set[tuple[TopicFolder, int]] = set()
    for prefix in _topic_prefixes(selection):
        listing = _objects(store, layout, prefix, selection, beside)
        for (folder, partition), group in groupby(listing, lambda found: (found.name.folder, found.name.partition)):
            objects_of = list(group)
            listed.add((folder, partition))
            yield (str(folder), partition), [folder], objects_of
    for floor in beside.floors:  # of partitions of which nothing else is left
        if (floor.keys.folder, floor.keys.partition) not in listed:
            listed.add((floor.keys.folder, floor.keys.partition))
            yield (str(floor.keys.folder), floor.keys.partition), [floor.keys.folder], []


def _topic_prefixes(selection: TopicSelection | None) -> list[str]:
    """Return the prefixes of the keys of the selected topics and their incarnations."""
    if selection is None or not selection.is_of_names:
        return ["topic="]
    return [f"topic={name}{end}" for name in sorted(selection.names) for end in "/~"]


def _objects(
    store: ToolStore, layout: str, prefix: str, selection: TopicSelection | None, beside: Beside
) -> Iterator[ListedPart]:
    for listed in store.list(prefix):
        topic = topic_of(listed.key)
        if topic is None or (selection is not None and not selection([topic])):
            continue
        if (name := parse_key(layout, listed.key)) is not None:
            yield ListedPart(name, listed)
        elif (table := group_table(layout, listed)) is not None:
            beside.tables.append(table)
        elif (config := dated_config(layout, listed)) is not None:
            beside.configs.append(config)
        elif (floor := parse_floor_key(layout, listed.key)) is not None:
            folder, partition, pruned_before = floor
            beside.floors.append(FloorObject(LAYOUTS[layout](folder, partition), pruned_before, listed))


def _is_declared(store: ToolStore, layout: str, topic: str) -> bool:
    return store.head(topic_home(layout, TopicFolder(topic)) + TOPIC_OBJECT) is not None


def _incarnations(store: ToolStore, layout: str, topic: str) -> list[TopicFolder]:
    """Return all incarnations of a topic, with one request for each, because a listing may lag."""
    folders = [TopicFolder(topic)]
    while store.head(topic_home(layout, folders[-1]) + TOPIC_OBJECT) is not None:
        folders.append(folders[-1]._replace(incarnation=folders[-1].incarnation + 1))
    return folders[:-1]


class _Collector:
    """A search for the garbage of partitions whose objects were listed."""

    def __init__(
        self, store: ToolStore, layout: str, *, now: float, grace: float, keeps_books: bool, wait: Wait | None
    ) -> None:
        self._store = store
        self._layout = layout
        self._now = now
        self._grace = grace
        self._keeps_books = keeps_books
        self._wait = wait or bounded_backoff(store.url)
        self._markers: dict[TopicFolder, list[Marker | None]] = defaultdict(list)
        """Markers of the partitions seen so far; None for a marker that is missing or cannot be followed."""

    @property
    def oldest(self) -> dict[TopicFolder, int]:
        """The times of the oldest records, if all partitions of a topic are known; see `Oldest`."""
        known = {
            folder: oldest_record(each for each in markers if each is not None)
            for folder, markers in self._markers.items()
            if None not in markers
        }
        return {folder: oldest for folder, oldest in known.items() if oldest is not None}

    def garbage_of(
        self, folders: Sequence[TopicFolder], partition: int, found: list[ListedPart], floors: Sequence[FloorObject]
    ) -> Garbage:
        """Return the garbage of a partition, after reading its marker, which has to follow the listing.

        Raises MalformedObject if the marker is missing, and errors of following the chain.
        """
        read = [self._noted(LAYOUTS[self._layout](folder, partition)) for folder in folders]
        chains = [chain for chain in read if chain is not None]
        if not chains:
            refuse_lost_marker(self._store, LAYOUTS[self._layout](folders[0], partition))
        if len(chains) < len(read):
            # A missing marker may be a lost one, whose chunks have the names of the others' orphans.
            return Garbage([])
        if len(chains) == 1 and chains[0].marker.maintenance:
            return self._of_maintained(chains[0], found, floors)
        return Garbage(*_garbage_of(self._store, chains, found, now=self._now, grace=self._grace))

    def _noted(self, keys: PartitionKeys) -> Chain | None:
        chain = None
        try:
            chain = self._chain(keys)
        finally:
            self._markers[keys.folder].append(chain.marker if chain else None)
        return chain

    def _chain(self, keys: PartitionKeys) -> Chain | None:
        """Return the chain, and what its marker retired, after updating the marker, even if the chain is broken."""
        marker = read_current(self._store, keys)
        if marker is not None and (updated := self._with_books(marker)) != marker:
            marker = updated
            if self._keeps_books:
                driver = Driver(self._store, UnreadLog(), self._wait, lambda: True, clock=self._store.clock)
                driver.run(keep_books(keys, self._grace))
                marker = read_current(self._store, keys)
        if marker is None:
            return None
        retired = marker.maintenance.retired if marker.maintenance else ()
        return follow(self._store, keys, marker, [reference for each in retired for reference in each.references])

    def _with_books(self, marker: Marker) -> Marker:
        if not marker.maintenance:
            return marker
        now, grace_ms = round(self._store.clock() * 1000), round(self._grace * 1000)
        return replace(marker, maintenance=update_books(marker.maintenance, now=now, grace_ms=grace_ms))

    def _of_maintained(self, chain: Chain, found: list[ListedPart], floors: Sequence[FloorObject]) -> Garbage:
        stems = _data_stems(self._store, [chain], found)
        dead = find_dead_maintained(chain, found, stems, now=self._now, grace=self._grace)
        guarded = dataclasses.replace(chain, gaps=find_guarded_gaps(chain, now=self._now, grace=self._grace))
        going, kept = _without_spared(self._store, [guarded], dead, found)
        floor, mine = chain.marker.pruned_before, [each for each in floors if each.keys.home == chain.keys.home]
        lower = [each for each in mine if each.pruned_before < floor]
        is_new = floor > 0 and bool(going or lower) and all(each.pruned_before != floor for each in mine)
        return Garbage(going, kept, [FloorObject(chain.keys, floor)] if is_new else [], lower)


def read_chain(store: ToolStore, keys: PartitionKeys) -> Chain | None:
    """Return the chain as the marker is now; None without a marker. Raises a FormatError if it cannot be trusted."""
    marker = read_current(store, keys)
    return None if marker is None else follow(store, keys, marker)


def read_current(store: ToolStore, keys: PartitionKeys) -> Marker | None:
    """Return a partition's current marker, if there is one; raises a FormatError if it is damaged."""
    stored = store.get(keys.marker)
    if stored is None:
        return None
    marker = markers.decode_marker(stored.body, keys.marker)
    if (marker.topic, marker.partition) != (keys.folder.topic, keys.partition):
        raise MalformedObject(
            f"{keys.marker} is not this partition's marker", why=f"it names {marker.topic}:{marker.partition}"
        )
    return marker


def follow(store: ToolStore, keys: PartitionKeys, marker: Marker, retired: Sequence[CatalogReference] = ()) -> Chain:
    """Return the chain of a marker, and of references that it retired; raises a FormatError if it cannot be trusted."""
    roots: dict[int, list[CatalogReference]] = defaultdict(list)
    for reference in retired:
        roots[catalog_level(reference.name)].append(reference)
    for level, found in enumerate(marker.catalogs, 1):
        roots[level] += found
    entries: list[ChunkEntry] = list(marker.tail)
    gaps: list[Gap] = list(marker.gaps)
    names: set[str] = set()

    def read(reference: CatalogReference, level: int) -> ChunkCatalog | ReferenceCatalog:
        if not is_catalog_name(reference.name, level, reference.start_offset):
            raise MalformedObject(
                f"the name {reference.name[:120]!r} does not belong in {keys.home}",
                why="names in an archive are always derived",
            )
        found = store.get(keys.home + reference.name)
        if found is None:
            raise MalformedObject(
                f"catalog {keys.home}{reference.name} is missing",
                why="without it, the chain cannot be followed",
                remedy=f"archiver repair marker {keys.folder}:{keys.partition} shows what to do",
            )
        return markers.decode_catalog(found.body, reference, level)

    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="catalog") as pool:
        references: list[CatalogReference] = []
        for level in range(max(roots, default=0), 0, -1):
            references = list(dict.fromkeys([*references, *roots[level]]))
            names.update(reference.name for reference in references)
            catalogs = list(pool.map(read, references, [level] * len(references)))
            references = []
            for catalog in catalogs:
                gaps += catalog.gaps
                if isinstance(catalog, ChunkCatalog):
                    entries += catalog.entries
                else:
                    references += catalog.entries
    return Chain(keys, marker, entries, frozenset(keys.home + name for name in names), gaps)


def _garbage_of(
    store: ToolStore, chains: Sequence[Chain], found: list[ListedPart], *, now: float, grace: float
) -> tuple[list[ListedPart], list[ListedPart]]:
    """Return what is to be deleted, and what is kept because of a gap."""
    stems = _data_stems(store, chains, found)
    ends = {each.name.key: end for each in catalogs_in_doubt(chains, found) if (end := _catalog_end(store, each.name))}
    dead = find_dead(chains, found, stems, ends, now=now, grace=grace)
    return _without_spared(store, chains, dead, found)


def _without_spared(
    store: ToolStore, chains: Sequence[Chain], dead: list[ListedPart], found: list[ListedPart]
) -> tuple[list[ListedPart], list[ListedPart]]:
    in_doubt = [each for each in dead if may_meet_a_gap(chains, each)]
    kept = find_spared(chains, dead, read_offsets(store, chains[0].keys, in_doubt, found) if in_doubt else {})
    keys = {each.name.key for each in kept}
    return [each for each in dead if each.name.key not in keys], kept


def _data_stems(store: ToolStore, chains: Sequence[Chain], found: list[ListedPart]) -> dict[str, str]:
    """Return the stems of the data of indexes by their keys, if several data objects have one number."""
    in_doubt = entries_in_doubt(chains, found)
    stems = {chain.index_key(entry): _data_stem(store, chain, entry) for chain, entry in in_doubt}
    return {index: stem for index, stem in stems.items() if stem is not None}


def _data_stem(store: ToolStore, chain: Chain, entry: ChunkEntry) -> str | None:
    """Return the data's name in a committed index, without its suffix; None if the index is damaged or missing."""
    suffix = INDEX_SUFFIX if chain.has_own_names else SEED_INDEX_SUFFIX
    try:
        name = chain.keys.check_name(entry.name, entry.start_offset, suffix)
        stored = store.get(chain.keys.chunks + name)
        if stored is None:
            return None
        index = markers.decode_index(stored.body, entry, chain.marker.topic, chain.marker.partition)
        ending = data_suffix(index.record_format, index.codec, encrypted=bool(index.encryption))
        data = chain.keys.check_name(index.data.name, index.start_offset, ending)
    except FormatError:
        return None
    return (chain.keys.chunks + data).removesuffix(ending)


def _catalog_end(store: ToolStore, name: ObjectKey) -> int | None:
    """Return the end of the last entry of a catalog; None if it is damaged or missing."""
    stored = store.get(name.key)
    if stored is None:
        return None
    try:
        kind: type[ChunkCatalog] | type[ReferenceCatalog] = ChunkCatalog if name.level == 1 else ReferenceCatalog
        catalog = objects.decode(stored.body, kind, name.key)
    except FormatError:
        return None
    return catalog.entries[-1].next_offset


def _is_ours(layout: str, leftover: Leftover, selection: TopicSelection | None) -> bool:
    """Return whether an archiver left it, and it belongs to a selected topic."""
    if leftover.kind == "unfinished upload":
        name = parse_key(layout, leftover.key)
        ours = PROBE_FOLDER.match(leftover.key) or (name is not None and name.kind is ObjectKind.DATA)
        if not ours:
            return False
    if selection is None:
        return True
    topic = topic_of(leftover.key)
    return topic is not None and bool(selection([topic]))
