"""Collect garbage: list an archive, read its markers, and delete what `garbage` lets go."""

import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from msgspec.structs import replace

from archiver.commit.archive import layout_of, refuse_lost_marker
from archiver.commit.operations import BackOff, Driver
from archiver.maintain import garbage as rules
from archiver.maintain.garbage import DatedObject, ListedPart
from archiver.maintain.planned import Cell, PlannedCommand, Problem, check_names, try_each
from archiver.maintain.rewrite.tree import StoredChain, follow, read_current
from blockgz.errors import BlockgzError, FormatError, UsageError
from blockgz.store.writer import PROBE_FOLDER, Leftover, ListedObject, ToolStore
from blockgz.topic_patterns import TopicSelection
from blockgz.units import bytes_text
from index_format import marker as markers
from index_format import objects
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
    data_suffix,
    floor_name,
    parse_configs_key,
    parse_floor_key,
    parse_groups_key,
    parse_key,
    topic_home,
    topic_of,
    topic_prefixes,
)
from index_format.marker import ChunkCatalog, ChunkEntry, Floor, Marker, ReferenceCatalog
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES, ChunkIndex, Gap
from index_format.old_members import MemberScanner, Scanned
from index_format.old_objects import decode_old_index
from index_format.rebuild import blocks_of, scan_frames

READ_BYTES = 4 * 1024 * 1024


def read_offsets(
    store: ToolStore, keys: PartitionKeys, asked: Iterable[ListedPart], listed: Iterable[ListedPart]
) -> dict[str, list[range]]:
    """Return the ranges of offsets of objects that can be read, by key; `listed` is all there is of the partition."""
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


@dataclass
class PlannedSweep(PlannedCommand):
    """A garbage collection of an archive."""

    nothing = "nothing to delete"
    undone = "nothing was deleted"
    columns = ("topic", "partition", "what", "count", "size")
    droppable = ("size",)

    store: ToolStore
    garbage: list[ListedPart] = field(default_factory=list)
    leftovers: list[Leftover] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    spared: list[ListedPart] = field(default_factory=list)
    """Objects that no marker leads to, and that may hold records which a gap lists as lost."""
    tables: list[DatedObject] = field(default_factory=list)
    """Tables of consumer groups that are thinned out, or older than the oldest record."""
    configs: list[DatedObject] = field(default_factory=list)
    """Versions of topics' configurations older than the oldest record."""
    floors: list[FloorObject] = field(default_factory=list)
    """Floors that are stored before anything else is deleted of their partitions."""
    old_floors: list[FloorObject] = field(default_factory=list)
    """Lower floors, which are deleted last."""
    deleted: int | None = None
    """Objects that were deleted, once the plan is carried out."""

    @property
    def count(self) -> int:
        """Objects, files and uploads that are deleted."""
        return len(self._pieces())

    @property
    def bytes(self) -> int:
        """Bytes freed, if the store reports sizes."""
        return sum(size for _, size in self._pieces())

    @property
    def question(self) -> str | None:
        return f"Delete {self.count:,} objects ({self.bytes:,} bytes)?" if self.count else None

    def _pieces(self) -> list[tuple[tuple[Cell, ...], int]]:
        """Return topic, partition and kind of each object that goes, and its size."""
        pieces: list[tuple[tuple[Cell, ...], int]] = []
        for found in self.garbage:
            name = found.name
            pieces.append(((str(name.folder), name.partition, name.kind.value), found.listed.size))
        for dated, what in ((self.tables, "group table"), (self.configs, "config")):
            pieces += [((str(each.folder), None, what), each.listed.size) for each in dated]
        for floor in self.old_floors:
            keys = floor.keys
            pieces.append(((str(keys.folder), keys.partition, "floor"), floor.listed.size if floor.listed else 0))
        return pieces + [((None, None, leftover.kind), leftover.size or 0) for leftover in self.leftovers]

    def rows(self) -> list[tuple[Cell, ...]]:
        sizes = defaultdict[tuple[Cell, ...], list[int]](list)
        for kind, size in self._pieces():
            sizes[kind].append(size)
        if self.count:
            sizes["all", None, ""] = [size for _, size in self._pieces()]
        return [(*kind, len(of_kind), bytes_text(sum(of_kind))) for kind, of_kind in sizes.items()]

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
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
        # Without its new floor, a lost marker would be rebuilt with records that were pruned.
        without_floor = {floor.keys.home for floor in self.floors if floor.key in {each.where for each in problems}}
        garbage = [each for each in self.garbage if not any(each.name.key.startswith(home) for home in without_floor)]

        def delete(keys: Sequence[str]) -> None:
            nonlocal num_attempted
            problems.extend(try_each(keys, [partial(store.delete, key) for key in keys]))
            num_attempted += len(keys)

        for kind in rules.DELETION_ORDER:
            failed = {problem.where for problem in problems}
            spared = {_chunk_of(found.name) for found in garbage if found.name.key in failed}
            of_kind = (each.name for each in garbage if each.name.kind is kind)
            delete([name.key for name in of_kind if _chunk_of(name) not in spared])
        delete([each.listed.key for each in (*self.tables, *self.configs)])
        delete([floor.key for floor in self.old_floors if floor.keys.home not in without_floor])
        names = [leftover.key for leftover in self.leftovers]
        problems += try_each(names, [partial(store.discard, leftover) for leftover in self.leftovers])
        self.deleted = num_attempted + len(names) - (len(problems) - len(without_floor))
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
    store: ToolStore, patterns: Sequence[str], grace: float, *, keeps_books: bool = True, wait: BackOff | None = None
) -> PlannedSweep:
    """Plan to delete everything that `garbage` releases, of all topics or of the patterns'; `grace` in seconds.

    The markers of partitions that are rewritten are updated (see `keep_books`); unless `keeps_books`, the plan is made
    as if they had been. An error of one partition is a problem of the plan, and nothing of that partition is deleted.
    Raises UsageError for too short a grace, NoArchiveThere, NotInArchive for a name that is not in the archive, and the
    errors of a listing.
    """
    if grace < rules.SHORTEST_GRACE_SECONDS:
        raise UsageError(
            f"--grace of {grace:g} s is too short",
            why="listings may lag and readers may be active, so nothing younger than an hour is deleted",
            remedy="give 1h or more; the default is 7d",
        )
    layout, now = layout_of(store), store.clock()
    selection = TopicSelection(patterns) if patterns else None
    plan, topics = PlannedSweep(store), set[str]()
    search = _GarbageSearch(store, layout, selection, now=now, grace=grace, keeps_books=keeps_books, wait=wait)
    for (topic, partition), folders, found in search.partitions():
        topics.add(topic)
        try:
            search.add_garbage(plan, folders, partition, found)
        except BlockgzError as error:
            plan.problems.append(Problem(f"{topic}:{partition}", error))
    try:
        for leftover in store.leftovers():
            if now - leftover.modified >= grace and _is_ours(layout, leftover, selection):
                plan.leftovers.append(leftover)
    except BlockgzError as error:
        plan.problems.append(Problem("leftovers", error))
    if selection is not None:
        topics = {topic.partition("~")[0] for topic in topics}
        homes = {name: topic_home(layout, TopicFolder(name)) for name in selection.names - topics}
        topics |= {name for name, home in homes.items() if store.head(home + TOPIC_OBJECT) is not None}
        check_names(selection, topics, store.url)
    superfluous = rules.find_superfluous(search.tables, search.oldest, now=now, grace=grace)
    plan.tables = rules.without_needed_tables(store, layout, search.tables, superfluous)
    plan.configs = rules.find_pruned(search.configs, search.oldest, now=now, grace=grace)
    return plan


def _store_floors(store: ToolStore, floors: Sequence[FloorObject]) -> list[Problem]:
    """Store floors, and return those that could not be stored."""
    bodies = {floor.key: objects.encode(Floor(pruned_before=floor.pruned_before)) for floor in floors}
    attempt = str(uuid.uuid4())
    return try_each(list(bodies), [partial(store.put_if_absent, key, body, attempt) for key, body in bodies.items()])


def _chunk_of(name: ObjectKey) -> tuple[str, int, int]:
    """Return a key of the object's chunk: its data stays if its index could not be deleted."""
    return (str(name.folder), name.partition, -1 if name.kind is ObjectKind.CATALOG else name.number)


# The topic or incarnation, and the partition.
PartitionName = tuple[str, int]


def _topic_prefixes(selection: TopicSelection | None) -> list[str]:
    """Return the prefixes of the keys of the selected topics and their incarnations."""
    if selection is None or not selection.is_of_names:
        return ["t"]
    return list(dict.fromkeys(prefix for name in sorted(selection.names) for prefix in topic_prefixes(name)))


def _incarnations(store: ToolStore, layout: str, topic: str) -> list[TopicFolder]:
    """Return all incarnations of a topic, with one request for each, because a listing may lag."""
    folders = [TopicFolder(topic)]
    while store.head(topic_home(layout, folders[-1]) + TOPIC_OBJECT) is not None:
        folders.append(folders[-1]._replace(incarnation=folders[-1].incarnation + 1))
    return folders[:-1]


class _GarbageSearch:
    """A search for garbage: the objects of a listing, and the markers that are read after it."""

    def __init__(
        self,
        store: ToolStore,
        layout: str,
        selection: TopicSelection | None,
        *,
        now: float,
        grace: float,
        keeps_books: bool,
        wait: BackOff | None,
    ) -> None:
        self.store, self._layout, self._selection, self._now, self._grace = store, layout, selection, now, grace
        self._keeps_books = keeps_books
        self._driver = Driver(store, wait=wait, clock=store.clock)
        self.tables: list[DatedObject] = []
        self.configs: list[DatedObject] = []
        self._floors: list[FloorObject] = []
        # Markers of the partitions seen so far; None for a marker that is missing or cannot be followed.
        self._markers: dict[TopicFolder, list[Marker | None]] = defaultdict(list)

    def partitions(self) -> Iterator[tuple[PartitionName, list[TopicFolder], list[ListedPart]]]:
        """Yield the objects of each partition, and the folders whose chains share their names.

        The markers of these folders are to be read after that. Other objects are kept.
        """
        if self._layout == "seed":
            # Any folder of dates may hold chunks of any partition.
            shared: dict[PartitionName, list[ListedPart]] = {}
            for found in self._objects(""):
                shared.setdefault((found.name.folder.topic, found.name.partition), []).append(found)
            for name, objects_of in shared.items():
                yield name, _incarnations(self.store, self._layout, name[0]), objects_of
            return
        listed: set[tuple[TopicFolder, int]] = set()
        for prefix in _topic_prefixes(self._selection):
            listing = self._objects(prefix)
            for (folder, partition), group in groupby(listing, lambda found: (found.name.folder, found.name.partition)):
                objects_of = list(group)
                listed.add((folder, partition))
                yield (str(folder), partition), [folder], objects_of
        for folder, partition in dict.fromkeys((each.keys.folder, each.keys.partition) for each in self._floors):
            if (folder, partition) not in listed:  # nothing but the floor is left of it
                yield (str(folder), partition), [folder], []

    def _objects(self, prefix: str) -> Iterator[ListedPart]:
        layout = self._layout
        for listed in self.store.list(prefix):
            topic = topic_of(listed.key)
            if topic is None or (self._selection is not None and not self._selection([topic])):
                continue
            if (name := parse_key(layout, listed.key)) is not None:
                yield ListedPart(name, listed)
            elif (table := parse_groups_key(layout, listed.key)) is not None:
                self.tables.append(DatedObject(*table, listed))
            elif (config := parse_configs_key(layout, listed.key)) is not None:
                self.configs.append(DatedObject(*config, listed))
            elif (floor := parse_floor_key(layout, listed.key)) is not None:
                folder, partition, pruned_before = floor
                self._floors.append(FloorObject(LAYOUTS[layout](folder, partition), pruned_before, listed))

    @property
    def oldest(self) -> dict[TopicFolder, int]:
        """The times of the oldest records, if all partitions of a topic are known; see `Oldest`."""
        known = {
            folder: rules.oldest_record(each for each in markers if each is not None)
            for folder, markers in self._markers.items()
            if None not in markers
        }
        return {folder: oldest for folder, oldest in known.items() if oldest is not None}

    def add_garbage(
        self, plan: PlannedSweep, folders: Sequence[TopicFolder], partition: int, found: list[ListedPart]
    ) -> None:
        """Add the garbage of a partition to the plan, after reading its marker, which has to follow the listing.

        Raises MalformedObject if the marker is missing, and errors of following the chain.
        """
        read = [self._noted(LAYOUTS[self._layout](folder, partition)) for folder in folders]
        chains = [chain for chain in read if chain is not None]
        if not chains:
            refuse_lost_marker(self.store, LAYOUTS[self._layout](folders[0], partition))
        if len(chains) < len(read):
            return  # a missing marker may be a lost one, whose chunks have the names of the others' orphans
        stems = _data_stems(self.store, chains, found)
        if len(chains) == 1 and chains[0].marker.maintenance:
            dead = rules.find_dead_maintained(chains[0], found, stems, now=self._now, grace=self._grace)
            gaps = rules.find_guarded_gaps(chains[0], now=self._now, grace=self._grace)
            going = self._without_spared(plan, [dataclasses.replace(chains[0], gaps=gaps)], dead, found)
            self._add_floors(plan, chains[0], is_needed=bool(going))
        else:
            in_doubt = (each.name for each in rules.catalogs_in_doubt(chains, found))
            ends = {name.key: end for name in in_doubt if (end := _catalog_end(self.store, name))}
            dead = rules.find_dead(chains, found, stems, ends, now=self._now, grace=self._grace)
            self._without_spared(plan, chains, dead, found)

    def _without_spared(
        self, plan: PlannedSweep, chains: Sequence[StoredChain], dead: list[ListedPart], found: list[ListedPart]
    ) -> list[ListedPart]:
        """Add dead objects to the plan, as garbage or as spared; return the garbage."""
        in_doubt = [each for each in dead if rules.may_meet_a_gap(chains, each)]
        held = read_offsets(self.store, chains[0].keys, in_doubt, found) if in_doubt else {}
        spared = rules.find_spared(chains, dead, held)
        keys = {each.name.key for each in spared}
        going = [each for each in dead if each.name.key not in keys]
        plan.garbage += going
        plan.spared += spared
        return going

    def _add_floors(self, plan: PlannedSweep, chain: StoredChain, *, is_needed: bool) -> None:
        floor, mine = chain.marker.pruned_before, [each for each in self._floors if each.keys.home == chain.keys.home]
        lower = [each for each in mine if each.pruned_before < floor]
        if floor > 0 and (is_needed or lower) and all(each.pruned_before != floor for each in mine):
            plan.floors.append(FloorObject(chain.keys, floor))
        plan.old_floors += lower

    def _noted(self, keys: PartitionKeys) -> StoredChain | None:
        chain = None
        try:
            chain = self._chain(keys)
        finally:
            self._markers[keys.folder].append(chain.marker if chain else None)
        return chain

    def _chain(self, keys: PartitionKeys) -> StoredChain | None:
        """Return the chain, and what its marker retired, after updating the marker, even if the chain is broken."""
        held = read_current(self.store, keys)
        if held is None:
            return None
        marker = held.marker
        now, grace_ms = round(self.store.clock() * 1000), round(self._grace * 1000)
        body = marker.maintenance and rules.update_books(marker.maintenance, now=now, grace_ms=grace_ms)
        if body != marker.maintenance:
            marker = replace(marker, maintenance=body)
            if self._keeps_books:
                self._driver.run(rules.keep_books(keys, self._grace))
                if (held := read_current(self.store, keys)) is None:
                    return None
                marker = held.marker
        retired = [reference for each in marker.retired for reference in each.references]
        return self._driver.run(follow(keys, marker, retired))


def _data_stems(store: ToolStore, chains: Sequence[StoredChain], found: list[ListedPart]) -> dict[str, str]:
    """Return the stems of the data of indexes by their keys, if several data objects have one number."""
    in_doubt = rules.entries_in_doubt(chains, found)
    stems = {chain.index_key(entry): _data_stem(store, chain, entry) for chain, entry in in_doubt}
    return {index: stem for index, stem in stems.items() if stem is not None}


def _data_stem(store: ToolStore, chain: StoredChain, entry: ChunkEntry) -> str | None:
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
