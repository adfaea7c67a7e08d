"""Lost indexes of a current archive, rebuilt from the data next to them.

A marker has the sha256 of each chunk's index: a rebuilt index is stored only if it is that index byte for byte, so that
it may be done at any time, next to running archivers. Without a marker, the index is as good as the data, for `markers`
to use.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import TypeVar

from archiver.commit.archive import archive_info, archived_topic_id
from archiver.maintain.gc import pieces, scan
from archiver.maintain.planned import Problem
from archiver.maintain.repair.plan import RepairPlan, RepairTarget, objects_of, stored_marker, storing
from archiver.maintain.rewrite.tree import StoredChain, read_chain
from blockgz.errors import BlockgzError, CorruptBlock, FormatError, KeyMissing, MalformedObject
from blockgz.errors import listed as listed_names
from blockgz.store.writer import ListedObject, StoredObject, ToolStore
from index_format import objects
from index_format.key_filter import probes_of
from index_format.keys import (
    ENCRYPTED_SUFFIX,
    INDEX_SUFFIX,
    LAYOUTS,
    SEED_INDEX_SUFFIX,
    ObjectKey,
    ObjectKind,
    PartitionKeys,
)
from index_format.marker import ChunkEntry
from index_format.objects import (
    MAX_KEY_FILTER_BITS,
    UNVERIFIED,
    BlockEntry,
    ChunkIndex,
    DataObject,
    Gap,
    ancestor_index,
    fields_of_blocks,
)
from index_format.old_members import Scanned
from index_format.old_objects import decode_old_index
from index_format.rebuild import FROM_DATA_ALONE, Past, blocks_of, committed_index, text_blocks_of
from index_format.records import TIMESTAMP_TYPES

T = TypeVar("T")
REQUESTS_AT_ONCE = 8
MOST_NEXT_OFFSETS = 64
# A writer that stored an object longer ago has committed it by now, or is dead.
BEING_WRITTEN_SECONDS = 60.0
# Chunks that may have taken the place of one gap.
MOST_FILLED = 4
# Bits a key.
USUAL_KEY_FILTERS = (10, 8, 12)
GAP_REASONS = ("retention", "skipped", UNVERIFIED)
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


@dataclass(frozen=True)
class ListedPartition:
    """One partition, and what is listed of it."""

    target: RepairTarget
    archive_id: str
    listed: list[tuple[ObjectKey, ListedObject]]

    def of_kind(self, kind: ObjectKind) -> list[tuple[ObjectKey, ListedObject]]:
        return sorted((each for each in self.listed if each[0].kind is kind), key=lambda each: each[0].number)

    @cached_property
    def data_at(self) -> Mapping[int, Sequence[tuple[ObjectKey, ListedObject]]]:
        found: dict[int, list[tuple[ObjectKey, ListedObject]]] = {}
        for each in self.of_kind(ObjectKind.DATA):
            found.setdefault(each[0].number, []).append(each)
        return found

    def scan(self, key: ObjectKey, size: int) -> Iterator[Scanned]:
        return scan(self.target.store, key, size, self.target.max_block_bytes)


def list_partition(target: RepairTarget) -> ListedPartition:
    store, keys = target.store, target.keys
    archive_id = archive_info(store, keys.layout).archive_id
    place = ListedPartition(target, archive_id, objects_of(store, keys))
    first_epoch = _first_epoch(store, keys)
    if not first_epoch:
        return place
    foreign = set[str]()
    for name, (_, index) in stored_indexes(place).items():
        if index is not None and index.epoch < first_epoch:
            data = keys.chunks + index.data.name
            foreign |= {keys.chunks + name, data, data.removesuffix(".gz") + INDEX_SUFFIX}
    return dataclasses.replace(place, listed=[each for each in place.listed if each[0].key not in foreign])


def _first_epoch(store: ToolStore, keys: PartitionKeys) -> int:
    """Return the marker's epoch with which this folder of a truncated log began; 0 for other folders and layouts."""
    # In layout seed, folders of one topic share their names: only epochs tell a truncated log's folders apart.
    if keys.layout != "seed" or keys.folder.incarnation == 1:
        return 0
    older = keys.folder._replace(incarnation=keys.folder.incarnation - 1)
    if archived_topic_id(store, keys.layout, older) != archived_topic_id(store, keys.layout, keys.folder):
        return 0
    # The older folder's last swap raised its epoch to the one in which the next folder began.
    _, marker = stored_marker(store, LAYOUTS[keys.layout](older, keys.partition))
    return marker.epoch if marker is not None and marker.successor == str(keys.folder) else 0


def plan_indexes(target: RepairTarget) -> RepairPlan:
    """Plan to rebuild the lost and damaged indexes of a partition, or of one chunk of it."""
    _, marker = stored_marker(target.store, target.keys)
    try:
        chain = read_chain(target.store, target.keys) if marker is not None and marker.next_offset is not None else None
    except MalformedObject:
        # Where catalogs are lost for good, `repair marker` asks for the index of one chunk, and replaces the chain.
        if target.key is None or marker is None:
            raise
        in_tail = any(target.key.number in (each.start_offset, each.first_offset) for each in marker.tail)
        chain = StoredChain(target.keys, marker, marker.tail, frozenset(), marker.gaps) if in_tail else None
    # Listed after the chain is read: a chunk that is committed in between is missing in the chain only.
    place, plan = list_partition(target), RepairPlan()
    if marker is not None:
        place = without_begun(place, chain, plan)
    if chain is not None and chain.entries:
        _plan_of_chain(place, chain, plan)
    else:
        _plan_without_chain(place, plan)
    _plan_sidecars(place, plan)
    return plan


def without_begun(place: ListedPartition, chain: StoredChain | None, plan: RepairPlan) -> ListedPartition:
    """Leave out what the partition's owner may be writing, and note it: objects not in its chain that are new."""
    numbers = () if chain is None else chain.by_number
    others = [(key.key, listed.modified) for key, listed in place.listed if key.number not in numbers]
    # A writer stores data, index and marker in this order, seconds apart. Nothing else shows whether it is alive.
    oldest = place.target.store.clock() - BEING_WRITTEN_SECONDS if others else 0.0
    begun = {key for key, modified in others if modified > oldest}
    if not begun:
        return place
    plan.notes.append(
        f"{place.target}: {listed_names(sorted(begun))}: being written, stored less than {BEING_WRITTEN_SECONDS:.0f} s "
        "ago and not committed yet; if no archiver is running, run this again in a minute"
    )
    return dataclasses.replace(place, listed=[each for each in place.listed if each[0].key not in begun])


def stored_indexes(place: ListedPartition) -> dict[str, tuple[StoredObject, ChunkIndex | None]]:
    """Return every index object by its name relative to the partition's chunks; None for one that is damaged."""
    found = {}
    listed = [key.key for key, _ in place.of_kind(ObjectKind.INDEX)]
    with ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="index") as pool:
        for key, stored in zip(listed, pool.map(place.target.store.get, listed), strict=True):
            if stored is not None:
                found[key.removeprefix(place.target.keys.chunks)] = (stored, _decoded(place, key, stored.body))
    return found


def _decoded(place: ListedPartition, key: str, body: bytes) -> ChunkIndex | None:
    keys = place.target.keys
    try:
        index = objects.decode(body, ChunkIndex, key)
        keys.check_name(key.removeprefix(keys.chunks), index.start_offset, _suffix(place))
    except FormatError:
        return None
    same = (index.archive_id, index.topic, index.partition) == (place.archive_id, keys.folder.topic, keys.partition)
    return index if same else None


def _plan_of_chain(place: ListedPartition, chain: StoredChain, plan: RepairPlan) -> None:
    keys, stored = place.target.keys, stored_indexes(place)
    entries = sorted(chain.entries, key=lambda entry: entry.start_offset)
    for position, entry in enumerate(entries):
        found = stored.get(entry.name)
        if found is not None and hashlib.sha256(found[0].body).hexdigest() == entry.sha256:
            continue
        if not _is_wanted(place, entry.first_offset if keys.layout == "seed" else entry.start_offset):
            continue
        beside = [
            neighbour[1]
            for each in (*entries[max(0, position - 1) : position], *entries[position + 1 : position + 2])
            if (neighbour := stored.get(each.name)) is not None and neighbour[1] is not None
        ]
        try:
            body = _committed(place, chain, entry, entries[:position], beside)
        except BlockgzError as error:
            plan.problems.append(Problem(keys.chunks + entry.name, error))
            continue
        etag = found[0].etag if found else None
        detail = f"offsets [{entry.first_offset}..{entry.last_offset + 1}), as committed"
        plan.steps.append(
            storing(place.target.store, place.target, "index", keys.chunks + entry.name, body, etag, detail)
        )


def _committed(
    place: ListedPartition,
    chain: StoredChain,
    entry: ChunkEntry,
    before: Sequence[ChunkEntry],
    beside: Sequence[ChunkIndex],
) -> bytes:
    """Return the index that an entry names, `before` being those below it; raises CorruptBlock or MalformedObject."""
    keys, marker = place.target.keys, chain.marker
    number = entry.first_offset if keys.layout == "seed" else entry.start_offset
    failure: BlockgzError = MalformedObject(
        f"no data object of {entry.bytes} bytes is at offset {number}", why="the chunk's data is lost or has changed"
    )
    likely_pasts, other_pasts = _pasts(chain, entry, before)
    reach = range(entry.last_offset + 1, entry.next_offset)
    formats = {index.record_format for index in beside}
    for (key, listed), bits in product(place.data_at.get(number, ()), _key_filter_bits(beside)):
        if listed.size != entry.bytes:
            continue
        times = (entry.min_timestamp, entry.max_timestamp)
        try:
            blocks, form = _blocks(place, key, listed.size, formats, times, bits)
        except FormatError as error:
            failure = error
            continue
        like = _index(place, key, listed.size, blocks, form, entry.start_offset, entry.next_offset)
        epochs = _likely([index.epoch for index in beside], range(1, marker.epoch + 1))
        committed = partial(
            committed_index,
            entry,
            like,
            epochs=epochs,
            topic_ids=_likely([index.topic_id for index in beside], [marker.topic_id, None]),
            isolation_levels=_likely([index.isolation_level for index in beside], ISOLATION_LEVELS),
            timestamp_types=_likely([index.timestamp_type for index in beside], TIMESTAMP_TYPES.values()),
        )
        body = committed(pasts=likely_pasts, next_offsets=(entry.next_offset, *reach[:MOST_NEXT_OFFSETS]))
        body = body or committed(pasts=other_pasts, next_offsets=(entry.next_offset,))
        if body is not None:
            return body
        failure = MalformedObject(
            f"the index of {key.key} cannot be rebuilt byte for byte",
            why="the data is complete, but the committed index held something that cannot be derived from it",
            remedy=f"restore the index from a copy; without one: archiver repair accept-loss {keys} keeps the records",
        )
    raise failure


def _key_filter_bits(beside: Sequence[ChunkIndex]) -> Sequence[int | None]:
    if not beside:
        return [None, *USUAL_KEY_FILTERS]
    filters = {index.blocks[0].key_filter for index in beside}
    bits = [
        bits for bits in range(1, MAX_KEY_FILTER_BITS + 1) for each in filters if each and each[0] == probes_of(bits)
    ]
    return _likely(bits, [None])


def _pasts(chain: StoredChain, entry: ChunkEntry, before: Sequence[ChunkEntry]) -> tuple[list[Past], list[Past]]:
    newest = before[-1] if before else None
    after = newest.next_offset if newest else 0
    between = {gap for gap in chain.gaps if after <= gap.start < entry.next_offset}
    gaps = tuple(sorted(between, key=lambda gap: gap.start))
    inside = tuple(gap for gap in gaps if gap.start >= entry.start_offset)
    others: list[Past] = [
        (older.name, (Gap(older.next_offset, entry.start_offset, reason), *inside))
        for older in reversed(before[-1 - MOST_FILLED : -1])
        for reason in GAP_REASONS
    ]
    return [(newest.name, gaps), (None, gaps)] if newest else [(None, gaps)], others


def _plan_without_chain(place: ListedPartition, plan: RepairPlan) -> None:
    keys = place.target.keys
    stored = stored_indexes(place)
    indexes = [index for _, index in stored.values() if index is not None]
    named = {keys.chunks + index.data.name for index in indexes}
    data = [(key, listed) for key, listed in place.of_kind(ObjectKind.DATA) if key.key not in named]
    for key, listed in data:
        if not _is_wanted(place, key.number):
            continue
        try:
            blocks, form = _blocks(place, key, listed.size, {index.record_format for index in indexes}, None)
            name = key.stem.removeprefix(keys.chunks) + _suffix(place)
            start = key.number
            followers = [index for index in indexes if index.previous == name and index.start_offset > start]
            ends = [
                next((gap.start for gap in each.gaps if gap.end <= each.start_offset), each.start_offset)
                for each in followers
            ]
            end = max(ends, default=blocks[-1].last_record_offset + 1)
            index = _index(place, key, listed.size, blocks, form, start, end, like=indexes)
        except BlockgzError as error:
            plan.problems.append(Problem(key.key, error))
            continue
        found = stored.get(name)
        if found is not None and found[1] is not None:
            plan.notes.append(f"{key.key}: {name} names other data; a dead writer left this")
            continue
        detail = f"offsets [{index.first_offset}..{index.last_offset + 1}), no marker"
        body, etag = objects.encode(index), found[0].etag if found else None
        plan.steps.append(storing(place.target.store, place.target, "index", keys.chunks + name, body, etag, detail))


def _plan_sidecars(place: ListedPartition, plan: RepairPlan) -> None:
    if place.target.keys.layout != "seed":
        return
    there = {key.stem for key, _ in place.of_kind(ObjectKind.ANCESTOR_INDEX)}
    data = {key.key: key for key, _ in place.of_kind(ObjectKind.DATA)}
    for _, index in stored_indexes(place).values():
        key = data.get(index.data.name) if index is not None else None
        if index is None or key is None or key.stem in there or not _is_wanted(place, key.number):
            continue
        name, body = key.stem + INDEX_SUFFIX, ancestor_index(index.blocks)
        detail = "for readers of the ancestor"
        plan.steps.append(storing(place.target.store, place.target, "index", name, body, None, detail))


def _blocks(
    place: ListedPartition,
    key: ObjectKey,
    size: int,
    formats: set[str],
    timestamps: tuple[int, int] | None,
    key_filter_bits: int | None = None,
) -> tuple[tuple[BlockEntry, ...], str]:
    """Return the blocks of a data object and their record format; raises a FormatError, or KeyMissing."""
    if key.key.endswith(ENCRYPTED_SUFFIX):
        raise KeyMissing(
            f"{key.key} cannot be indexed again",
            why="it is encrypted, and only its index had its key",
            remedy="restore the index from a copy: nothing else opens the chunk. If there is none: archiver repair "
            f"refetch {place.target.keys} -b HOST:PORT, or accept-loss",
        )
    others = sorted(formats - {"arrow"})
    usual = others[0] if others else "text" if place.target.keys.layout == "seed" else "json"
    form = "arrow" if ".arrows." in key.key else usual
    if form != "text":
        return blocks_of(place.scan(key, size), form, key_filter_bits), form
    sidecar = place.target.store.get(key.stem + INDEX_SUFFIX)
    if sidecar is None:
        raise CorruptBlock(
            f"{key.key} cannot be indexed again",
            why="its format has no offsets, and the ancestor's index is missing too",
        )
    counted = decode_old_index(sidecar.body, key.stem + INDEX_SUFFIX, key.number)
    return text_blocks_of(place.scan(key, size), counted, timestamps or (-1, -1)), form


def _index(
    place: ListedPartition,
    key: ObjectKey,
    size: int,
    blocks: Sequence[BlockEntry],
    form: str,
    start_offset: int,
    next_offset: int,
    *,
    like: Sequence[ChunkIndex] = (),
) -> ChunkIndex:
    """Return an index of those blocks, with what their data does not tell as in the indexes `like` it.

    Raises MalformedObject if the blocks are not those of a chunk with this name.
    """
    keys, digest = place.target.keys, hashlib.sha256()
    for piece in pieces(place.target.store, key.key, size):
        digest.update(piece)
    nearest = max(like, key=lambda index: (index.start_offset <= start_offset, index.start_offset), default=None)
    timestamp_type = nearest.timestamp_type if nearest else TIMESTAMP_TYPES[0]
    if all(block.max_timestamp == -1 for block in blocks):
        timestamp_type = TIMESTAMP_TYPES[-1]
    try:
        return ChunkIndex(
            archive_id=place.archive_id,
            topic=keys.folder.topic,
            topic_id=nearest.topic_id if nearest else None,
            partition=keys.partition,
            epoch=FROM_DATA_ALONE,
            record_format=form,
            codec="zstd" if key.key.endswith(".zst") else "gzip",
            isolation_level=nearest.isolation_level if nearest else ISOLATION_LEVELS[0],
            timestamp_type=timestamp_type,
            start_offset=start_offset,
            next_offset=next_offset,
            data=DataObject(key.key.removeprefix(keys.chunks), size, digest.hexdigest()),
            previous=None,
            **fields_of_blocks(blocks),
        )
    except (ValueError, IndexError) as error:
        raise MalformedObject(f"{key.key} is not the chunk that its name says", why=str(error)) from error


def _is_wanted(place: ListedPartition, number: int) -> bool:
    return place.target.key is None or place.target.key.number == number


def _suffix(place: ListedPartition) -> str:
    return SEED_INDEX_SUFFIX if place.target.keys.layout == "seed" else INDEX_SUFFIX


def _likely(first: Iterable[T], others: Iterable[T]) -> list[T]:
    return list(dict.fromkeys([*first, *others]))
