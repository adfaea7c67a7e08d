"""Checking a partition: every damage is found in one run, and reported as the offsets that it costs."""

import hashlib
import struct
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from blockgz.archive.archive import Archive
from blockgz.archive.damage import MOST_REWRITES, Damage, Damaged, LostRange, Unreadable
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import OffsetRange
from blockgz.archive.prefetch import streamed
from blockgz.archive.selection import joined_ranges
from index_format import objects
from index_format.chunk_index import EMPTY, ERASED, ChunkIndex, Gap
from index_format.keys import INDEX_SUFFIXES, PartitionKeys
from index_format.marker import ChunkEntry
from replayer.verify.above_marker import AboveListing, AboveMarker, list_above, look_above
from replayer.verify.chunk_checks import (
    END,
    EVERY_CHUNK,
    ChunkChoice,
    ChunkFindings,
    Depth,
    Progress,
    check_chunks,
    joined,
    unwatched,
)
from replayer.verify.findings import PartitionReport
from replayer.verify.survey import Identity


class Joint(NamedTuple):
    """A place where the chain does not go on where it stopped: `key` is what stands at `start`."""

    stop: int
    start: int
    key: str


class ChainDigest:
    """A SHA-256 over the chunks of a partition: what was committed once has the same for ever (docs/verify.md)."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, entry: ChunkEntry) -> None:
        """A chunk, in the order of offsets; its entry's `next_offset` may still rise, and does not count."""
        facts = struct.pack(">QQQ", entry.first_offset, entry.last_offset, entry.num_records)
        self._digest.update(facts + bytes.fromhex(entry.sha256))

    @property
    def sha256(self) -> str:
        """Of the chunks so far, as lower-case hex."""
        return self._digest.hexdigest()


@dataclass
class ChunkChain:
    """What marker and catalogs say of a partition's chunks, and what is wrong with it; of a chunk 8 bytes are kept."""

    choice: ChunkChoice
    records: int = 0
    candidates: int = 0
    """Chunks among which `choice` takes its share."""
    first_candidate: str = ""
    first_offset: int | None = None
    last_is_candidate: bool = False
    checked: int = 0
    """Chunks that were chosen and could be read once more."""
    checked_offsets: list[OffsetRange] = field(default_factory=list)
    """The offsets of these, each from the end of the chunk before it: in order and apart."""
    unlisted: list[ChunkEntry] = field(default_factory=list)
    """Chunks that were not chosen, and of which a listing lacks the index or the data."""
    last_offsets: "array[int]" = field(default_factory=lambda: array("q"))
    gaps: set[Gap] = field(default_factory=set)
    lost: list[LostRange] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    digest: ChainDigest = field(default_factory=ChainDigest)
    is_whole: bool = True
    """Whether all catalogs could be read."""

    @property
    def chunks(self) -> int:
        return len(self.last_offsets)

    def add(self, entry: ChunkEntry) -> None:
        self.last_offsets.append(entry.last_offset)
        self.digest.add(entry)
        self.records += entry.num_records
        self.first_offset = entry.first_offset if self.first_offset is None else self.first_offset
        self.last_is_candidate = self.choice.considers(entry)
        if self.last_is_candidate:
            self.candidates += 1
            self.first_candidate = self.first_candidate or entry.name

    def check(self, start: int, end: int) -> None:
        """Note that all there is at offsets [start, end), at or above those before, is checked."""
        if self.checked_offsets and self.checked_offsets[-1].end == start:
            start = self.checked_offsets.pop().start
        if start < end:
            self.checked_offsets.append(OffsetRange(start, end))

    def lose(self, catalog: Unreadable) -> None:
        self.is_whole = False
        self.damage.append(Damage(catalog.key, catalog.reason))
        self.lost.append(LostRange(catalog.start, catalog.end, catalog.reason))

    @property
    def chosen(self) -> Sequence[int]:
        """The numbers of the chosen chunks among the candidates, rising."""
        return self.choice.numbers(self.candidates, self.first_candidate)


async def verify_partition(
    archive: Archive,
    topic: str,
    partition: int,
    depth: Depth,
    progress: Progress,
    *,
    choice: ChunkChoice = EVERY_CHUNK,
    identity: Identity | None = None,
    listing: AboveListing | None = None,
) -> PartitionReport:
    """Checks one partition: marker, catalogs, what lies above it, and the chosen chunks.

    `listing` was made before, of this partition too; without one it is made here. Where something is damaged, and was
    rewritten since the marker was read, what it leads to now is verified. Raises only for what is not damage.
    """
    listing = listing or await list_above(archive, [(topic, partition)], chunks=not choice.takes_all)
    opened = await open_to_verify(archive, topic, partition)
    if isinstance(opened, PartitionReport):
        return opened
    for _ in range(MOST_REWRITES):
        chain = await read_chain(opened, choice)
        above = await look_above(opened, listing)
        parts = [await check_chunks(opened, chosen_chunks(opened, chain, progress, listing), depth, progress)]
        if chain.unlisted:
            parts.insert(0, await check_chunks(opened, streamed(chain.unlisted), depth, unwatched))
        report = assembled(opened, topic, chain, parts, identity, above)
        lost = [each.start for each in (*chain.lost, *(lost for part in parts for lost in part.lost))]
        newer = await opened.newer(*lost[:1]) if lost or any(part.damage for part in parts) else None
        if newer is None:
            break
        opened, progress = newer, unwatched
    return report


async def open_to_verify(archive: Archive, topic: str, partition: int) -> ArchivedPartition | PartitionReport:
    """The partition, or the report on it where its marker is damaged."""
    try:
        return await archive.open_partition(topic, partition)
    except Damaged as error:
        keys = await archive.partition_keys(topic, partition)
        lost = await _unreachable(archive, keys)
        damage = [Damage(keys.marker, error.reason)]
        return PartitionReport(topic, partition, lost=lost, damage=damage, incarnation=keys.folder.incarnation)


async def read_chain(partition: ArchivedPartition, choice: ChunkChoice = EVERY_CHUNK) -> ChunkChain:
    """Reads all catalogs: what one held that cannot be read, and what no one names, is lost."""
    chain = ChunkChain(choice, gaps={gap for gap in partition.marked_gaps if gap.end > partition.floor})
    joints: list[Joint] = []
    position = partition.start_offset
    async for opened in partition.walk(0, END):
        if isinstance(opened, ChunkEntry):
            chain.add(opened)
            start, end, key = opened.start_offset, opened.next_offset, partition.index_key(opened)
        elif isinstance(opened, Unreadable):
            chain.lose(opened)
            start, end, key = opened.start, opened.end, opened.key
        else:
            chain.gaps.update(gap for gap in opened.gaps if gap.end > partition.floor)
            continue
        if start != position:
            joints.append(Joint(position, start, key))
        position = end
    turns = frozenset(offset for _, offset in partition.folders[1:])
    _check_joints(chain, joints, turns)
    if position not in turns:
        _check_end(chain, position, partition)
    return chain


async def chosen_chunks(
    partition: ArchivedPartition,
    chain: ChunkChain,
    progress: Progress = unwatched,
    listing: AboveListing | None = None,
) -> AsyncIterator[ChunkEntry]:
    """The chosen chunks of a chain that was read, in order; `progress` gets the bytes of the others.

    A catalog that cannot be read any more becomes damage of the chain. Those of the others that a `listing` lacks are
    noted there.
    """
    known = {each.key for each in chain.damage}
    chosen = iter(chain.chosen)
    wanted, number = next(chosen, None), 0
    behind, is_checked = partition.floor, True
    chain.check(0, behind)
    async for entry in partition.walk(0, END):
        if isinstance(entry, Unreadable) and entry.key not in known:
            chain.lose(entry)
            chain.records -= entry.num_records
            chain.last_is_candidate = False  # which of the others are chosen is another question now
        if isinstance(entry, Unreadable):
            behind, is_checked = entry.end, False
        if not isinstance(entry, ChunkEntry):
            continue
        is_candidate = chain.choice.considers(entry)
        is_checked = is_candidate and number == wanted
        if is_checked:
            wanted = next(chosen, None)
            chain.checked += 1
            chain.check(behind, entry.next_offset)
            yield entry
        else:
            if listing is not None and listing.lacks(partition.keys_of(entry).layout, partition.index_key(entry)):
                chain.unlisted.append(entry)
            progress(0, entry.bytes)
        behind, number = entry.next_offset, number + is_candidate
    if is_checked:
        chain.check(behind, partition.next_offset)


def _check_joints(chain: ChunkChain, joints: Sequence[Joint], turns: Collection[int]) -> None:
    """Gaps explain a joint if the first begins where the chain stopped, and the last ends where it goes on.

    `turns` is where the chain goes on in another folder: holes may follow, up to the first gap there or the next turn.
    Known at the end only: a catalog may name gaps among the chunks of those before it.
    """
    gaps = sorted(chain.gaps, key=lambda gap: gap.start)
    for stop, start, key in joints:
        unexplained = list(_unexplained(gaps, stop, start, turns))
        before = bisect_left(gaps, start, key=lambda gap: gap.start)
        if before and gaps[before - 1].end > start > gaps[before - 1].start >= stop:
            chain.damage.append(Damage(key, f"it begins at {start}, inside the recorded gap before it"))
        if unexplained or start < stop:
            reason = f"no chunk and no recorded gap: the chain breaks before {key}"
            chain.damage.append(Damage(key, reason))
            chain.lost += [LostRange(*offsets, reason) for offsets in unexplained]


def _check_end(chain: ChunkChain, position: int, partition: ArchivedPartition) -> None:
    """Behind the newest chunk the log may have gone on without records, but only behind a gap."""
    behind = min((gap.start for gap in chain.gaps if gap.start >= position), default=partition.next_offset)
    if position < behind:
        reason = "no chunk and no recorded gap: the chain breaks before its end"
        chain.damage.append(Damage(partition.keys.marker, reason))
        chain.lost.append(LostRange(position, behind, reason))


def _unexplained(gaps: Sequence[Gap], stop: int, start: int, turns: Collection[int]) -> Iterator[tuple[int, int]]:
    """The edges of offsets [stop, start) that gaps in order do not cover; between two gaps may be holes."""
    first = bisect_left(gaps, stop, key=lambda gap: gap.start)
    behind = bisect_left(gaps, start, key=lambda gap: gap.start)
    if first == behind:
        if stop < start and not (stop in turns and start in turns):
            yield stop, start
        return
    if stop < gaps[first].start and stop not in turns:
        yield stop, gaps[first].start
    if gaps[behind - 1].end < start:
        yield gaps[behind - 1].end, start


def assembled(
    partition: ArchivedPartition,
    topic: str,
    chain: ChunkChain,
    parts: Sequence[ChunkFindings],
    identity: Identity | None,
    above: AboveMarker | None = None,
) -> PartitionReport:
    """The report: `parts` are of the chosen chunks, in order; only where it is one there are digests."""
    above = above or AboveMarker()
    found = joined(parts)
    marker, chosen = partition.marker, chain.chosen
    lost = sorted([*chain.lost, *found.lost], key=lambda each: each.start)
    reasons = [] if identity is None else identity.objections(partition.keys.folder, marker)
    about_tail = list[Damage]()
    has_last = chain.last_is_candidate and chosen[-1] == chain.candidates - 1 and _has_newest(partition, chain)
    if has_last and found.last_hash != marker.tail_hash and found.last_hash and marker.tail_hash:
        reason, last = "its tail_hash is not that of the last record", chain.last_offsets[-1]
        about_tail.append(Damage(partition.keys.marker, reason, last, last + 1))
    named = [gap for gap in found.gaps if gap.end > partition.floor]
    # Markers tell when a gap was recorded, and indexes do not.
    gaps = {(gap.start, gap.end, gap.reason): gap for gap in (*named, *chain.gaps)}.values()
    erased = [(each.start, each.end) for each in found.erased]
    erased += [(gap.start, gap.end) for gap in gaps if gap.reason == ERASED]
    return PartitionReport(
        topic,
        partition.partition,
        records=chain.records + found.recounted - found.lost_records,
        chunks=chain.chunks,
        checked_chunks=chain.checked,
        first_offset=chain.first_offset,
        next_offset=marker.next_offset,
        gaps=sorted((gap for gap in gaps if gap.reason not in (EMPTY, ERASED)), key=lambda gap: gap.start),
        pruned_before=partition.floor or None,
        erased=joined_ranges(erased),
        lost=[*lost, *above.lost],
        damage=[
            *chain.damage,
            *found.damage,
            *partition.damage,
            *about_tail,
            *(Damage(partition.keys.marker, reason) for reason in reasons),
            *above.damage,
        ],
        digests=found.digests if len(chosen) == chain.chunks and not lost else None,
        orphans=above.orphans,
        incarnation=partition.keys.folder.incarnation,
        chain=chain.digest.sha256 if chain.is_whole else None,
        unopened=found.unopened,
        checked=chain.checked_offsets,
    )


def _has_newest(partition: ArchivedPartition, chain: ChunkChain) -> bool:
    """Whether the last record is the one that the marker's tail_hash is of: it may have been erased."""
    newest = partition.marker.newest_offset
    return not partition.is_maintained if newest is None else newest == chain.last_offsets[-1]


async def _unreachable(archive: Archive, keys: PartitionKeys) -> list[LostRange]:
    """The offsets of a partition without a marker, as far as the indexes beside it tell."""
    lost = []
    suffix = INDEX_SUFFIXES[keys.layout]
    async for key in archive.reader.list(keys.chunks):
        if not key.endswith(suffix):
            continue
        try:
            index = objects.decode(await archive.reader.get(key, objects.MAX_OBJECT_BYTES), ChunkIndex, key)
        except Damaged:
            continue
        if (index.topic, index.partition) == (keys.folder.topic, keys.partition):
            lost.append(LostRange(index.first_offset, index.last_offset + 1, "no marker leads to its chunk"))
    return sorted(set(lost), key=lambda each: each.start)
