"""Garbage collection of an archive: what to delete is found out and shown first, then deleted (see `garbage`)."""

import dataclasses
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from archiver.commit.archive import layout_of
from archiver.commit.driver import Driver, NoLog, Wait
from archiver.commit.lost_markers import refuse_lost_marker
from archiver.maintain.garbage import (
    DELETION_ORDER,
    Chain,
    Found,
    catalogs_in_doubt,
    entries_in_doubt,
    find_dead,
    may_meet_a_gap,
    spared,
)
from archiver.maintain.maintained import booked, find_dead_maintained, guarded_gaps, keep_books
from archiver.maintain.old_tables import (
    DatedObject,
    dated_config,
    find_pruned,
    find_superfluous,
    group_table,
    oldest_record,
    spared_for_groups,
)
from archiver.maintain.orphans import held_offsets
from archiver.maintain.partitions import REQUESTS_AT_ONCE, Problem
from blockgz.errors import NotInArchive
from blockgz.store.retry import bounded_backoff
from blockgz.store.writer import PROBE_FOLDER, Leftover, ListedObject, ToolStore
from blockgz.topic_patterns import TopicSelection, nothing_matches
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import Gap
from index_format.errors import BlockgzError, FormatError, MalformedObject
from index_format.keys import (
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


class FloorObject(NamedTuple):
    """The object that says that nothing is archived below an offset of a partition."""

    keys: PartitionKeys
    pruned_before: int
    listed: ListedObject | None = None
    """None where it is not stored yet."""

    @property
    def key(self) -> str:
        return self.keys.home + floor_name(self.pruned_before)


class Garbage(NamedTuple):
    """What there is to do for one partition; see SweepPlan."""

    dead: Sequence[Found]
    spared: Sequence[Found] = ()
    floors: Sequence[FloorObject] = ()
    old_floors: Sequence[FloorObject] = ()


@dataclass(frozen=True)
class SweepPlan:
    """What would be deleted."""

    garbage: tuple[Found, ...]
    leftovers: tuple[Leftover, ...]
    problems: tuple[Problem, ...]
    spared: tuple[Found, ...] = ()
    """What no marker leads to, and may hold records that a gap lists as lost."""
    tables: tuple[DatedObject, ...] = ()
    """Tables of consumer groups that are thinned out, or of a time before the oldest record."""
    configs: tuple[DatedObject, ...] = ()
    """Versions of topics' configurations of a time before the oldest record."""
    floors: tuple[FloorObject, ...] = ()
    """Stored before anything else is deleted of their partitions."""
    old_floors: tuple[FloorObject, ...] = ()
    """Lower ones, which are deleted last."""

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
        """What that frees, as far as the store tells."""
        listed = [*(found.listed for found in self.garbage), *(each.listed for each in self.dated)]
        listed += [floor.listed for floor in self.old_floors if floor.listed is not None]
        return sum(each.size for each in listed) + sum(each.size or 0 for each in self.leftovers)


@dataclass(frozen=True)
class SweepResult:
    """What was deleted."""

    deleted: int
    problems: tuple[Problem, ...]


def plan_sweep(
    store: ToolStore, patterns: Sequence[str], grace: float, *, keeps_books: bool = True, wait: Wait | None = None
) -> SweepPlan:
    """Everything that `garbage` lets go, of all topics or of those that the patterns select; `grace` in seconds.

    Of partitions that are rewritten the marker is brought up to date (see `maintained`), unless not `keeps_books`:
    then the plan is made as if it had been.

    Raises NoArchiveThere, NotInArchive for a name that is not in the archive, and what keeps the listing from being
    read. Trouble with one partition is a problem of the plan, and nothing of that partition is deleted.
    """
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
    _check_names(selection, topics, store)
    superfluous = find_superfluous(beside.tables, collector.oldest, now=now, grace=grace)
    return SweepPlan(
        garbage=tuple(found for each in garbage for found in each.dead),
        leftovers=tuple(leftovers),
        problems=tuple(problems),
        spared=tuple(found for each in garbage for found in each.spared),
        tables=tuple(spared_for_groups(store, layout, beside.tables, superfluous)),
        configs=tuple(find_pruned(beside.configs, collector.oldest, now=now, grace=grace)),
        floors=tuple(floor for each in garbage for floor in each.floors),
        old_floors=tuple(floor for each in garbage for floor in each.old_floors),
    )


def sweep(store: ToolStore, plan: SweepPlan, on_deleted: Callable[[int], None]) -> SweepResult:
    """Carry a plan out, however old it is; `on_deleted` gets the number of objects that are newly gone."""
    num_attempted = 0
    problems = _store_floors(store, plan.floors)
    without_floor = {floor.keys.home for floor in plan.floors if floor.key in {each.where for each in problems}}
    garbage = [found for found in plan.garbage if not any(found.name.key.startswith(home) for home in without_floor)]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="delete") as pool:
        for kind in DELETION_ORDER:
            failed = {problem.where for problem in problems}
            spared = {_chunk_of(found.name) for found in garbage if found.name.key in failed}
            keys = [each.name.key for each in garbage if each.name.kind is kind and _chunk_of(each.name) not in spared]
            problems += _problems(keys, pool.map(_outcome, [partial(store.delete, key) for key in keys]), on_deleted)
            num_attempted += len(keys)
        keys = [each.listed.key for each in plan.dated]
        keys += [floor.key for floor in plan.old_floors if floor.keys.home not in without_floor]
        problems += _problems(keys, pool.map(_outcome, [partial(store.delete, key) for key in keys]), on_deleted)
        num_attempted += len(keys)
        keys = [leftover.key for leftover in plan.leftovers]
        outcomes = pool.map(_outcome, [partial(store.discard, leftover) for leftover in plan.leftovers])
        problems += _problems(keys, outcomes, on_deleted)
    not_deleted = len(problems) - len(without_floor)
    return SweepResult(num_attempted + len(keys) - not_deleted, tuple(problems))


def _store_floors(store: ToolStore, floors: Sequence[FloorObject]) -> list[Problem]:
    """The floors that could not be stored."""
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


def _problems(
    keys: Iterable[str], outcomes: Iterable[BlockgzError | None], on_deleted: Callable[[int], None]
) -> Iterator[Problem]:
    for key, error in zip(keys, outcomes, strict=True):
        if error is None:
            on_deleted(1)
        else:
            yield Problem(key, error)


def _chunk_of(name: ObjectKey) -> tuple[str, int, int]:
    """Data is spared where an index of the same number could not be deleted."""
    return (str(name.folder), name.partition, -1 if name.kind is ObjectKind.CATALOG else name.number)


PartitionName = tuple[str, int]
"""Topic or incarnation, and partition."""


class Beside(NamedTuple):
    """What a listing meets beside chunks and catalogs."""

    tables: list[DatedObject]
    configs: list[DatedObject]
    floors: list[FloorObject]


def _partitions(
    store: ToolStore, layout: str, selection: TopicSelection | None, beside: Beside
) -> Iterator[tuple[PartitionName, list[TopicFolder], list[Found]]]:
    """The objects of each partition, listed, and the folders whose chains share their names; these are to be read then.

    Adds to `beside` what it meets.
    """
    if layout == "seed":
        # Any folder of dates may hold chunks of any partition.
        shared: dict[PartitionName, list[Found]] = {}
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
    """What the keys of the selected topics start with, their incarnations' included."""
    if selection is None or not selection.is_of_names:
        return ["topic="]
    return [f"topic={name}{end}" for name in sorted(selection.names) for end in "/~"]


def _objects(
    store: ToolStore, layout: str, prefix: str, selection: TopicSelection | None, beside: Beside
) -> Iterator[Found]:
    for listed in store.list(prefix):
        topic = topic_of(listed.key)
        if topic is None or (selection is not None and not selection([topic])):
            continue
        if (name := parse_key(layout, listed.key)) is not None:
            yield Found(name, listed)
        elif (table := group_table(layout, listed)) is not None:
            beside.tables.append(table)
        elif (config := dated_config(layout, listed)) is not None:
            beside.configs.append(config)
        elif (floor := parse_floor_key(layout, listed.key)) is not None:
            folder, partition, pruned_before = floor
            beside.floors.append(FloorObject(LAYOUTS[layout](folder, partition), pruned_before, listed))


def _incarnations(store: ToolStore, layout: str, topic: str) -> list[TopicFolder]:
    """All incarnations of a topic; asked for one by one, because a listing may lag."""
    folders = [TopicFolder(topic)]
    while store.head(topic_home(layout, folders[-1]) + TOPIC_OBJECT) is not None:
        folders.append(folders[-1]._replace(incarnation=folders[-1].incarnation + 1))
    return folders[:-1]


class _Collector:
    """Finds the garbage of partitions whose objects were listed."""

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
        """Of the partitions looked at; None for one whose marker is missing or cannot be followed."""

    @property
    def oldest(self) -> dict[TopicFolder, int]:
        """See `old_tables.Oldest`; of topics of which all partitions are known."""
        known = {
            folder: oldest_record(each for each in markers if each is not None)
            for folder, markers in self._markers.items()
            if None not in markers
        }
        return {folder: oldest for folder, oldest in known.items() if oldest is not None}

    def garbage_of(
        self, folders: Sequence[TopicFolder], partition: int, found: list[Found], floors: Sequence[FloorObject]
    ) -> Garbage:
        """What there is to do for a partition: its marker is read now, after the listing.

        Raises MalformedObject where the marker is missing, and what keeps the chain from being followed.
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
        """The chain and what its marker retired, once that is up to date, whether or not it can be followed."""
        marker = read_current(self._store, keys)
        if marker is not None and (booked := self._booked(marker)) != marker:
            marker = booked
            if self._keeps_books:
                driver = Driver(self._store, NoLog(), self._wait, lambda: True, clock=self._store.clock)
                driver.run(keep_books(keys, self._grace))
                marker = read_current(self._store, keys)
        if marker is None:
            return None
        retired = marker.maintenance.retired if marker.maintenance else ()
        return follow(self._store, keys, marker, [reference for each in retired for reference in each.references])

    def _booked(self, marker: Marker) -> Marker:
        if not marker.maintenance:
            return marker
        now, grace_ms = round(self._store.clock() * 1000), round(self._grace * 1000)
        return replace(marker, maintenance=booked(marker.maintenance, now=now, grace_ms=grace_ms))

    def _of_maintained(self, chain: Chain, found: list[Found], floors: Sequence[FloorObject]) -> Garbage:
        stems = _data_stems(self._store, [chain], found)
        dead = find_dead_maintained(chain, found, stems, now=self._now, grace=self._grace)
        guarded = dataclasses.replace(chain, gaps=guarded_gaps(chain, now=self._now, grace=self._grace))
        going, kept = _without_spared(self._store, [guarded], dead, found)
        floor, mine = chain.marker.pruned_before, [each for each in floors if each.keys.home == chain.keys.home]
        lower = [each for each in mine if each.pruned_before < floor]
        is_new = floor > 0 and bool(going or lower) and all(each.pruned_before != floor for each in mine)
        return Garbage(going, kept, [FloorObject(chain.keys, floor)] if is_new else [], lower)


def read_chain(store: ToolStore, layout: str, folder: TopicFolder, partition: int) -> Chain | None:
    """The chain as the marker is now; None without a marker. Raises a FormatError where it cannot be trusted."""
    keys = LAYOUTS[layout](folder, partition)
    marker = read_current(store, keys)
    return None if marker is None else follow(store, keys, marker)


def read_current(store: ToolStore, keys: PartitionKeys) -> Marker | None:
    """A partition's marker as it is now; None where there is none. Raises a FormatError where it is not that."""
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
    """The chain of a marker, and of references that it retired; raises a FormatError where it cannot be trusted."""
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
                remedy=f"archiver repair marker {keys.folder}:{keys.partition} tells what to do",
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
    store: ToolStore, chains: Sequence[Chain], found: list[Found], *, now: float, grace: float
) -> tuple[list[Found], list[Found]]:
    """What is to be deleted, and what of the rest only a gap keeps."""
    stems = _data_stems(store, chains, found)
    ends = {each.name.key: end for each in catalogs_in_doubt(chains, found) if (end := _catalog_end(store, each.name))}
    dead = find_dead(chains, found, stems, ends, now=now, grace=grace)
    return _without_spared(store, chains, dead, found)


def _without_spared(
    store: ToolStore, chains: Sequence[Chain], dead: list[Found], found: list[Found]
) -> tuple[list[Found], list[Found]]:
    in_doubt = [each for each in dead if may_meet_a_gap(chains, each)]
    kept = spared(chains, dead, held_offsets(store, chains[0].keys, in_doubt, found) if in_doubt else {})
    keys = {each.name.key for each in kept}
    return [each for each in dead if each.name.key not in keys], kept


def _data_stems(store: ToolStore, chains: Sequence[Chain], found: list[Found]) -> dict[str, str]:
    """Index key -> stem of the data that it names, where several lie under one number."""
    in_doubt = entries_in_doubt(chains, found)
    stems = {chain.index_key(entry): _data_stem(store, chain, entry) for chain, entry in in_doubt}
    return {index: stem for index, stem in stems.items() if stem is not None}


def _data_stem(store: ToolStore, chain: Chain, entry: ChunkEntry) -> str | None:
    """What the committed index names, without its suffix; None where the index is damaged or gone."""
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
    """Where the last entry of a catalog ends; None for one that is damaged or gone."""
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
    """Whether the archiver made it, and the topics that are meant."""
    if leftover.kind == "unfinished upload":
        name = parse_key(layout, leftover.key)
        ours = PROBE_FOLDER.match(leftover.key) or (name is not None and name.kind is ObjectKind.DATA)
        if not ours:
            return False
    if selection is None:
        return True
    topic = topic_of(leftover.key)
    return topic is not None and bool(selection([topic]))


def _check_names(selection: TopicSelection | None, found: set[str], store: ToolStore) -> None:
    if selection is None:
        return
    topics = {name.partition("~")[0] for name in found}
    for name in sorted(selection.names - topics):
        layout = layout_of(store)
        if store.head(topic_home(layout, TopicFolder(name)) + TOPIC_OBJECT) is None:
            raise NotInArchive(
                f"topic {name!r} is not in the archive",
                why=f"{store.url} has no {TOPIC_OBJECT} of it",
                remedy="check the name and -a; replayer ls shows what is archived",
            )
    if selection.patterns and not selection(topics | selection.names):
        raise nothing_matches(selection.patterns, sorted(topics))
