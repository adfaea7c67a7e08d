"""Garbage collection of an archive: what to delete is found out and shown first, then deleted (see `garbage`)."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import NamedTuple

from archiver.commit.archive import layout_of
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
from archiver.maintain.old_tables import GroupTableObject, find_superfluous, group_table
from archiver.maintain.orphans import held_offsets
from blockgz_runtime.errors import NoSuchTopic
from blockgz_runtime.store.writer import PROBE_FOLDER, Leftover, ToolStore
from blockgz_runtime.topic_patterns import TopicSelection
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
    TopicFolder,
    data_suffix,
    is_catalog_name,
    parse_key,
    topic_home,
    topic_of,
)
from index_format.marker import CatalogReference, ChunkCatalog, ChunkEntry, ReferenceCatalog

REQUESTS_AT_ONCE = 8


class Problem(NamedTuple):
    """Something that could not be read or deleted; the rest is done without it."""

    where: str
    error: BlockgzError


@dataclass(frozen=True)
class SweepPlan:
    """What would be deleted."""

    garbage: tuple[Found, ...]
    leftovers: tuple[Leftover, ...]
    problems: tuple[Problem, ...]
    spared: tuple[Found, ...] = ()
    """What no marker leads to, and may hold records that a gap lists as lost."""
    tables: tuple[GroupTableObject, ...] = ()
    """Tables of consumer groups that are thinned out."""

    @property
    def count(self) -> int:
        """Objects, files and uploads."""
        return len(self.garbage) + len(self.leftovers) + len(self.tables)

    @property
    def bytes(self) -> int:
        """What that frees, as far as the store tells."""
        listed = [*(found.listed for found in self.garbage), *(table.listed for table in self.tables)]
        return sum(each.size for each in listed) + sum(each.size or 0 for each in self.leftovers)


@dataclass(frozen=True)
class SweepResult:
    """What was deleted."""

    deleted: int
    problems: tuple[Problem, ...]


def plan_sweep(store: ToolStore, patterns: Sequence[str], grace: float) -> SweepPlan:
    """Everything that `garbage` lets go, of all topics or of those that the patterns select; `grace` in seconds.

    Raises NoArchiveThere, NoSuchTopic for a name that is not in the archive, and what keeps the listing from being
    read. Trouble with one partition is a problem of the plan, and nothing of that partition is deleted.
    """
    layout = layout_of(store)
    now = store.clock()
    selection = TopicSelection(patterns) if patterns else None
    garbage: list[Found] = []
    kept: list[Found] = []
    problems: list[Problem] = []
    topics: set[str] = set()
    tables: list[GroupTableObject] = []
    for name, chains_of, found in _partitions(store, layout, selection, tables):
        topics.add(name[0])
        try:
            dead, may_be_needed = _garbage_of(store, chains_of(), found, now=now, grace=grace)
        except BlockgzError as error:
            problems.append(Problem(f"{name[0]}:{name[1]}", error))
            continue
        garbage += dead
        kept += may_be_needed
    leftovers = []
    try:
        for leftover in store.leftovers():
            if now - leftover.modified >= grace and _is_ours(layout, leftover, selection):
                leftovers.append(leftover)
    except BlockgzError as error:
        problems.append(Problem("leftovers", error))
    _check_names(selection, topics, store)
    superfluous = find_superfluous(tables, now=now, grace=grace)
    return SweepPlan(tuple(garbage), tuple(leftovers), tuple(problems), tuple(kept), tuple(superfluous))


def sweep(store: ToolStore, plan: SweepPlan, on_deleted: Callable[[int], None]) -> SweepResult:
    """Carry a plan out, however old it is; `on_deleted` gets the number of objects that are newly gone."""
    problems: list[Problem] = []
    num_attempted = 0
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="delete") as pool:
        for kind in DELETION_ORDER:
            failed = {problem.where for problem in problems}
            spared = {_chunk_of(found.name) for found in plan.garbage if found.name.key in failed}
            keys = [
                each.name.key for each in plan.garbage if each.name.kind is kind and _chunk_of(each.name) not in spared
            ]
            problems += _problems(keys, pool.map(_outcome, [partial(store.delete, key) for key in keys]), on_deleted)
            num_attempted += len(keys)
        keys = [table.listed.key for table in plan.tables]
        problems += _problems(keys, pool.map(_outcome, [partial(store.delete, key) for key in keys]), on_deleted)
        num_attempted += len(keys)
        keys = [leftover.key for leftover in plan.leftovers]
        outcomes = pool.map(_outcome, [partial(store.discard, leftover) for leftover in plan.leftovers])
        problems += _problems(keys, outcomes, on_deleted)
    return SweepResult(num_attempted + len(keys) - len(problems), tuple(problems))


def _outcome(action: Callable[[], None]) -> BlockgzError | None:
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


ChainsOf = Callable[[], list[Chain]]
PartitionName = tuple[str, int]
"""Topic or incarnation, and partition."""


def _partitions(
    store: ToolStore, layout: str, selection: TopicSelection | None, tables: list[GroupTableObject]
) -> Iterator[tuple[PartitionName, ChainsOf, list[Found]]]:
    """The objects of each partition, listed; its chains are to be read only then. Adds to `tables` those it meets."""
    if layout == "seed":
        # Any folder of dates may hold chunks of any partition.
        shared: dict[PartitionName, list[Found]] = {}
        for found in _objects(store, layout, "", selection, tables):
            shared.setdefault((found.name.folder.topic, found.name.partition), []).append(found)
        for name, objects_of in shared.items():
            yield name, partial(_read_chains, store, layout, _incarnations(store, layout, name[0]), name[1]), objects_of
        return
    for prefix in _topic_prefixes(selection):
        listing = _objects(store, layout, prefix, selection, tables)
        for (folder, partition), group in groupby(listing, lambda found: (found.name.folder, found.name.partition)):
            objects_of = list(group)
            yield (str(folder), partition), partial(_read_chains, store, layout, [folder], partition), objects_of


def _topic_prefixes(selection: TopicSelection | None) -> list[str]:
    """What the keys of the selected topics start with, their incarnations' included."""
    if selection is None or not selection.is_of_names:
        return ["topic="]
    return [f"topic={name}{end}" for name in sorted(selection.names) for end in "/~"]


def _objects(
    store: ToolStore, layout: str, prefix: str, selection: TopicSelection | None, tables: list[GroupTableObject]
) -> Iterator[Found]:
    for listed in store.list(prefix):
        name = parse_key(layout, listed.key)
        table = group_table(layout, listed) if name is None else None
        folder = name.folder if name is not None else table.folder if table is not None else None
        if folder is None or (selection is not None and not selection([folder.topic])):
            continue
        if name is not None:
            yield Found(name, listed)
        elif table is not None:
            tables.append(table)


def _incarnations(store: ToolStore, layout: str, topic: str) -> list[TopicFolder]:
    """All incarnations of a topic; asked for one by one, because a listing may lag."""
    folders = [TopicFolder(topic)]
    while store.head(topic_home(layout, folders[-1]) + TOPIC_OBJECT) is not None:
        folders.append(folders[-1]._replace(incarnation=folders[-1].incarnation + 1))
    return folders[:-1]


def _read_chains(store: ToolStore, layout: str, folders: Sequence[TopicFolder], partition: int) -> list[Chain]:
    read = [read_chain(store, layout, folder, partition) for folder in folders]
    chains = [chain for chain in read if chain is not None]
    # A missing marker may be a lost one, whose chunks have the names of the others' orphans.
    return chains if len(chains) == len(read) else []


def read_chain(store: ToolStore, layout: str, folder: TopicFolder, partition: int) -> Chain | None:
    """The chain as the marker is now; None without a marker. Raises a FormatError where it cannot be trusted."""
    keys = LAYOUTS[layout](folder, partition)
    stored = store.get(keys.marker)
    if stored is None:
        return None
    marker = markers.decode_marker(stored.body, keys.marker)
    if (marker.topic, marker.partition) != (folder.topic, partition):
        raise MalformedObject(
            f"{keys.marker} is not this partition's marker", why=f"it names {marker.topic}:{marker.partition}"
        )
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
                f"catalog {keys.home}{reference.name} is missing", why="without it, the chain cannot be followed"
            )
        return markers.decode_catalog(found.body, reference, level)

    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="catalog") as pool:
        references: list[CatalogReference] = []
        for level in range(len(marker.catalogs), 0, -1):
            references += marker.catalogs[level - 1]
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
    data_stems = {}
    for chain, entry in entries_in_doubt(chains, found):
        stem = _data_stem(store, chain, entry)
        if stem is not None:
            data_stems[chain.index_key(entry)] = stem
    ends = {each.name.key: end for each in catalogs_in_doubt(chains, found) if (end := _catalog_end(store, each.name))}
    dead = find_dead(chains, found, data_stems, ends, now=now, grace=grace)
    in_doubt = [each for each in dead if may_meet_a_gap(chains, each)]
    kept = spared(chains, dead, held_offsets(store, chains[0].keys, in_doubt, found) if in_doubt else {})
    keys = {each.name.key for each in kept}
    return [each for each in dead if each.name.key not in keys], kept


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
    missing = selection.names - {name.partition("~")[0] for name in found} if selection else set()
    for name in sorted(missing):
        layout = layout_of(store)
        if store.head(topic_home(layout, TopicFolder(name)) + TOPIC_OBJECT) is None:
            raise NoSuchTopic(
                f"topic {name!r} is not in the archive",
                why=f"{store.url} has no {TOPIC_OBJECT} of it",
                remedy="check the name and -a; replayer ls shows what is archived",
            )
