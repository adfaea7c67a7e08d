"""The marker of a current archive, rebuilt from its indexes."""

import dataclasses
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from archiver.commit.archive import archived_topic_id
from archiver.commit.commit import Held, fold_tail, store_catalogs, swap_marker
from archiver.commit.operations import Driver, NewToken, Protocol
from archiver.maintain.planned import Problem
from archiver.maintain.repair.catalogs import plan_catalogs
from archiver.maintain.repair.chunk_indexes import ListedPartition, list_partition, stored_indexes, without_begun
from archiver.maintain.repair.plan import RepairPlan, RepairStep, RepairTarget, stored_marker
from archiver.maintain.repair.salvage import last_record
from archiver.maintain.rewrite.tree import read_chain, read_current
from blockgz.encryption.keyring import Keyring, keyring_of
from blockgz.errors import BlockgzError, FormatError, KeyMissing, MalformedObject
from blockgz.store.writer import ContentTag, ToolStore
from index_format import marker as markers
from index_format import objects
from index_format.keys import (
    CATALOGS_FOLDER,
    FLOORS_FOLDER,
    LAYOUTS,
    TOPIC_OBJECT,
    ObjectKind,
    PartitionKeys,
    TopicFolder,
    catalog_level,
    conflict_in,
    is_rewritten,
    parse_floor_key,
    topic_home,
)
from index_format.marker import ChunkCatalog, Continues, Maintenance, Marker
from index_format.objects import ERASED, UNVERIFIED, Gap, WrappedKey
from index_format.rebuild import Link, RebuiltChain, StoredIndex, rebuilt_chain, rebuilt_rewritten
from index_format.records import record_hash


def store_marker(
    keys: PartitionKeys, chain: RebuiltChain, draft: Marker, expected: ContentTag | None
) -> Protocol[Held]:
    """Replace version `expected` of the marker by the draft with the chain, after storing the catalogs that it needs.

    Nothing but the marker is replaced. Raises Fenced if another writer's marker is there by now.
    """
    nonce: str = yield NewToken()
    # With an older log to continue, progress would not move the start to the first chunk.
    marker = replace(draft, continues=UNSET)
    for chunk, gaps_before in chain.links:
        index = chunk.index
        if marker.next_offset is None or marker.next_offset < index.start_offset:
            marker = markers.advanced(marker, index.start_offset, nonce=nonce, leader_epoch=None, gaps=gaps_before)
        marker = yield from fold_tail(keys, marker, {})
        marker = markers.appended(
            marker,
            markers.entry_of(index, chunk.name, chunk.body),
            [gap for gap in index.gaps if gap.start >= index.start_offset],
            nonce=nonce,
            leader_epoch=None,
            tail_hash=draft.tail_hash,
            tail_key=draft.tail_key,
        )
    if chain.gaps_behind:
        gaps = chain.gaps_behind
        marker = markers.advanced(marker, gaps[-1].end, nonce=nonce, leader_epoch=None, gaps=gaps)
        # The next repair finds them in a catalog, though what was erased is gone by then, and this marker too.
        folded = markers.with_gaps_folded(marker, len(marker.tail), marker.next_offset)
        marker = yield from store_catalogs(keys, *folded, {})
    return (yield from swap_marker(keys.marker, replace(marker, nonce=nonce, continues=draft.continues), expected))


def plan_marker(target: RepairTarget, group_id: str) -> RepairPlan:
    """Plan the marker of a partition that lost it, or whose marker is damaged or empty; or only its lost catalogs."""
    store, keys = target.store, target.keys
    stored, claimed = stored_marker(store, keys)
    end = claimed.next_offset if claimed else None
    if end is not None and not (catalogs := plan_catalogs(target)).problems:
        if not catalogs.steps:
            catalogs.notes.append(f"{target}: its marker can be read; nothing to repair")
        return catalogs
    place, plan = list_partition(target), RepairPlan()
    if end is not None:
        place = dataclasses.replace(place, listed=[each for each in place.listed if each[0].number < end])
    elif claimed:
        place = without_begun(place, None, plan)
    indexes = stored_indexes(place)
    found = [StoredIndex(name, each.body, index) for name, (each, index) in indexes.items() if index is not None]
    if claimed and not indexes and not list(place.of_kind(ObjectKind.DATA)):
        plan.notes.append(f"{target}: nothing was committed yet; nothing to repair")
        return plan
    floor, reach, known = _catalogued(store, keys, found, claimed.gaps if claimed else ())
    chain = rebuilt_chain(found) if floor is None else rebuilt_rewritten(found, floor, known)
    damaged = [f"{keys.chunks}{name} is damaged" for name, (_, index) in indexes.items() if index is None]
    # After a prune of all that there was, the floor alone is left of the chain.
    is_pruned = (
        bool(floor) and not damaged and not any(gap.reason == ERASED and gap.end > (floor or 0) for gap in known)
    )
    try:
        _check(place, chain, found, floor or 0, is_pruned=is_pruned)
        if claimed and end is not None:
            plan.notes += _counted(target, chain, claimed)
        successor, notes = _successor(target)
        # Above all of them, so that every writer of these objects is fenced.
        conflicts = [conflict.epoch for key, _ in place.listed if (conflict := conflict_in(key.key)) is not None]
        epoch = max([claimed.epoch if claimed else 0, *conflicts, *(each.index.epoch for each in found)]) + 1
        draft = _draft(place, chain, floor, group_id=group_id, epoch=epoch, successor=successor)
    except BlockgzError as error:
        plan.notes += [*damaged, *chain.notes]
        plan.problems.append(Problem(keys.marker, error))
        return plan
    state = "damaged" if claimed is None else "its catalogs are lost" if end is not None else "without a chunk"
    state = "missing" if stored is None else state
    carry_out = partial(_store, target, chain, draft, stored.etag if stored else None)
    plan.steps.append(RepairStep(str(target), "marker", keys.marker, f"{state}; {_detail(chain, floor)}", carry_out))
    lost = [*_lost(place, chain, found), *damaged]
    if end is None and not (lost or _is_cut(chain, floor, reach)):
        below = chain.links[-1].chunk.index.next_offset if chain.links else floor
        lost = [f"{target}: nothing is lost below offset {below}, only the marker: all offsets and objects are there"]
    plan.notes += [*_notes(place, chain, found), *lost, *notes]
    return plan


def _is_cut(chain: RebuiltChain, floor: int | None, reach: int) -> bool:
    """Return whether the chain lacks offsets: of a catalog, before its first chunk, or between two."""
    links, end = chain.links, max(floor or 0, *(link.chunk.index.next_offset for link in chain.links), 0)
    is_begun = floor is not None or links[0].chunk.index.previous is None
    unknown = any(gap.reason == UNVERIFIED for link in links for gap in link.gaps_before)
    return not is_begun or unknown or end < reach


def _draft(
    place: ListedPartition, chain: RebuiltChain, floor: int | None, *, group_id: str, epoch: int, successor: str | None
) -> Marker:
    """Return the rebuilt marker without its chunks and gaps; `floor` is None in an archive without maintenance."""
    target, keys = place.target, place.target.keys
    newest = chain.links[-1].chunk.index if chain.links else None
    tail_hash, tail_key = _tail_hash(target, chain.links[-1:], keyring_of(target.encrypt))
    maintenance = UNSET if floor is None else Maintenance(pruned_before=floor)
    return Marker(
        version=2 if maintenance or tail_key else objects.VERSION,
        archive_id=place.archive_id,
        topic=keys.folder.topic,
        topic_id=newest.topic_id if newest else archived_topic_id(target.store, keys.layout, keys.folder),
        partition=keys.partition,
        group_id=group_id,
        isolation_level=newest.isolation_level if newest else None,
        epoch=epoch,
        writer=str(uuid.uuid4()),
        nonce="",
        start_offset=floor or None,
        next_offset=floor or None,
        tail_hash=tail_hash,
        successor=successor,
        continues=_continues(target, chain.links[0]) if newest else UNSET,
        tail_key=tail_key,
        maintenance=maintenance,
    )


def _counted(target: RepairTarget, chain: RebuiltChain, marker: Marker) -> list[str]:
    """Note the records that the marker counts beyond those of the chain; raises MalformedObject if that has more."""
    count = sum(link.chunk.index.num_records for link in chain.links)
    if count > marker.num_records:
        raise MalformedObject(
            f"the chain of {target} cannot be rebuilt without its catalogs",
            why=f"its indexes hold {count:,} records, its marker counts {marker.num_records:,}: erased ones may return",
            remedy="restore the catalog from a copy; without one, delete the objects that were erased or replaced",
        )
    less = marker.num_records - count
    return [f"{target}: {less:,} of {marker.num_records:,} records are in no index and are omitted"] if less else []


def _detail(chain: RebuiltChain, floor: int | None) -> str:
    links = chain.links
    if not links:
        return f"no chunk, nothing below offset {floor}"
    first, last = links[0].chunk.index, links[-1].chunk.index
    gaps = [gap for link in links for gap in link.gaps_before if gap.reason == UNVERIFIED]
    missing = f", {len(gaps)} gaps of unknown offsets" if gaps else ""
    pruned = f", nothing below offset {floor}" if floor else ""
    return f"{len(links)} chunks, offsets [{first.start_offset}..{last.next_offset}){missing}{pruned}"


def _store(target: RepairTarget, chain: RebuiltChain, draft: Marker, expected: ContentTag | None) -> None:
    try:
        Driver(target.store).run(store_marker(target.keys, chain, draft, expected))
    except ValueError as error:
        if isinstance(error, BlockgzError):
            raise
        raise MalformedObject(f"the indexes of {target} do not form a chain", why=str(error)) from error


def _catalogued(
    store: ToolStore, keys: PartitionKeys, found: Sequence[StoredIndex], known: Sequence[Gap]
) -> tuple[int | None, int, list[Gap]]:
    """Return the floor, None if nothing was ever rewritten, and the end and the gaps of all catalogs."""
    listed = [each.key for each in store.list(keys.home + FLOORS_FOLDER)]
    floors = [place[2] for key in listed if (place := parse_floor_key(keys.layout, key)) is not None]
    names = [each.key for each in store.list(keys.home + CATALOGS_FOLDER)]
    was_rewritten = any(is_rewritten(name) for name in (*names, *(each.name for each in found)))
    gaps, reach = list(known), 0
    for key in names:
        stored = store.get(key) if catalog_level(key.removeprefix(keys.home)) == 1 else None
        with suppress(FormatError):
            catalog = objects.decode(stored.body if stored else b"", ChunkCatalog, key)
            gaps += catalog.gaps
            reach = max([reach, *(entry.next_offset for entry in catalog.entries)])
    return max(floors, default=0) if floors or was_rewritten else None, reach, gaps


def _check(
    place: ListedPartition, chain: RebuiltChain, found: Sequence[StoredIndex], floor: int, *, is_pruned: bool
) -> None:
    """Raise MalformedObject if the chain is empty, or if it would omit data that can be indexed again."""
    target = place.target
    if not (chain.links or is_pruned):
        rebuild = f"rebuild them from the data first: archiver repair index {target}"
        forget = f"restore its objects from a copy; if there is none, delete {target.keys.home} and run: "
        raise MalformedObject(
            f"{target} has no index to rebuild a marker from",
            why="only the indexes describe the chain" + (f", and none is above the floor, {floor}" if floor else ""),
            remedy=rebuild if place.of_kind(ObjectKind.DATA) else f"{forget}archiver forget {target}",
        )
    if target.keys.layout == "seed" and target.store.head(topic_home("seed", _following(target)) + TOPIC_OBJECT):
        raise MalformedObject(
            f"the chunks of {target} cannot be distinguished from those of its successor",
            why="in layout seed the incarnations of a topic share their folders",
        )
    named = {target.keys.chunks + each.index.data.name for each in found}
    spans = [range(link.chunk.index.start_offset, link.chunk.index.next_offset) for link in chain.links]
    rewritten = [span for span, link in zip(spans, chain.links, strict=True) if is_rewritten(link.chunk.name)]
    end = spans[-1].stop if spans else 2**63
    gaps = [gap for link in chain.links for gap in link.gaps_before]
    spans += [range(floor), *(range(gap.start, gap.end) for gap in gaps if gap.reason == ERASED)]
    for key, _ in place.of_kind(ObjectKind.DATA):
        if key.key not in named and key.number < end and not any(key.number in span for span in spans):
            raise MalformedObject(
                f"{key.key} has no index, and no other chunk holds its offsets",
                why="a marker without it would omit its records",
                remedy=f"rebuild its index first: archiver repair index {key.key}",
            )
        if key.token is not None and key.key not in named and not any(key.number in each for each in rewritten):
            raise MalformedObject(
                f"{key.key} has no index, and replaced a chunk that is still there",
                why="a marker with the replaced chunk would bring back what may have been erased",
                remedy=f"rebuild its index first: archiver repair index {key.key}",
            )


def _notes(place: ListedPartition, chain: RebuiltChain, found: Sequence[StoredIndex]) -> list[str]:
    keys = place.target.keys
    notes = [f"{place.target}: {note}" for note in chain.notes]
    rewritten = any(is_rewritten(each.name) for each in found)
    left_by = "replaced, or left by who died," if rewritten else "left by a dead writer"
    return [*notes, *(f"{keys.chunks}{name} was {left_by} and is omitted" for name in chain.left_out)]


def _lost(place: ListedPartition, chain: RebuiltChain, found: Sequence[StoredIndex]) -> list[str]:
    keys = place.target.keys
    sizes = {key.key: listed.size for key, listed in place.of_kind(ObjectKind.DATA)}
    notes = []
    for link in chain.links:
        data = link.chunk.index.data
        if sizes.get(keys.chunks + data.name) != data.bytes:
            notes.append(f"{keys.chunks}{data.name} is missing or has the wrong size: its records are lost")
    named = {keys.chunks + each.index.data.name for each in found}
    notes += [
        f"{key.key} has no index and lies after the chain: it is omitted; if Kafka no longer has its more, make its "
        f"index first: archiver repair index {key.key}"
        for key, _ in place.of_kind(ObjectKind.DATA)
        if chain.links and key.key not in named and key.number >= chain.links[-1].chunk.index.next_offset
    ]
    return notes


def _tail_hash(
    target: RepairTarget, last: Sequence[Link], keyring: Keyring | None
) -> tuple[str | None, WrappedKey | UnsetType]:
    """Return the hash of the last record, if it is known, and its key if the chunk is encrypted; raises KeyMissing."""
    if not last:
        return None, UNSET
    index = last[0].chunk.index
    tail = keyring.tail if keyring and index.encryption else None
    tail_key = tail.wrapped if tail else UNSET
    try:
        record = last_record(target, index, keyring)
    except KeyMissing:
        raise
    except BlockgzError:
        return None, tail_key
    if index.record_format == "text":
        return None, tail_key
    return record_hash(record, tail.secret if tail else None), tail_key


def _successor(target: RepairTarget) -> tuple[str | None, list[str]]:
    store, layout, following = target.store, target.keys.layout, _following(target)
    notes: list[str] = []
    while store.head(topic_home(layout, following) + TOPIC_OBJECT) is not None:
        stored, marker = stored_marker(store, LAYOUTS[layout](following, target.keys.partition))
        here = marker.continues.folder if marker and marker.continues else None
        is_only_begun = marker and here == str(target.keys.folder) and not (marker.spans or marker.gaps)
        if stored is not None and not is_only_begun:
            return str(following), notes
        if stored is not None:
            notes.append(
                f"{target}: {following} continues it but is empty; it is not named as the successor. If the "
                f"log was truncated, repeat: archiver repair diverged {target}"
            )
        following = following._replace(incarnation=following.incarnation + 1)
    return None, notes


def _continues(target: RepairTarget, first: Link) -> Continues | UnsetType:
    store, layout, here = target.store, target.keys.layout, target.keys.folder
    topic_id = archived_topic_id(store, layout, here)
    for incarnation in range(here.incarnation - 1, 0, -1):
        older = TopicFolder(here.topic, incarnation)
        keys = LAYOUTS[layout](older, target.keys.partition)
        held = read_current(store, keys)
        leads_here = held is not None and held.marker.successor == str(here)
        if leads_here and archived_topic_id(store, layout, older) == topic_id:
            start = first.gaps_before[0].start if first.gaps_before else first.chunk.index.start_offset
            # Holes right behind the turn are in no index, and the turn cut no chunk.
            chain = read_chain(store, keys)
            entries = chain.entries if chain else ()
            around = [each.start_offset for each in entries if each.start_offset < start <= each.last_offset]
            return Continues(str(older), min(around, default=start))
    return UNSET


def _following(target: RepairTarget) -> TopicFolder:
    folder = target.keys.folder
    return folder._replace(incarnation=folder.incarnation + 1)
