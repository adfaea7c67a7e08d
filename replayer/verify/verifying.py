"""Verify an archive: its objects of identity, its partitions, and what is missing.

Every damage is found in one run, and reported as the offsets that it costs.
"""

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.archive.inventory import Compared, Wanted, compare
from blockgz.archive.partition import MOST_REWRITES, ArchivedPartition, Damage, Damaged, LostRange, Unreadable, streamed
from blockgz.archive.selection import joined_ranges
from blockgz.errors import NotInArchive, ObjectMissing, marker_remedy
from index_format import objects
from index_format.keys import (
    INDEX_SUFFIXES,
    LAYOUTS,
    TOPIC_CONFIG_OBJECT,
    PartitionKeys,
    TopicFolder,
    TopicPartition,
    archive_key,
    parse_topic_folder,
    topic_home,
)
from index_format.marker import ChunkEntry, Marker
from index_format.objects import EMPTY, ERASED, ArchiveInfo, ChunkIndex, Gap, TopicConfig, TopicInfo
from replayer.verify.above_marker import AboveListing, list_above, look_above
from replayer.verify.chunk_checks import (
    END,
    EVERY_CHUNK,
    ChunkChain,
    ChunkChoice,
    ChunkFindings,
    Progress,
    check_chunks,
    joined,
    unwatched,
)
from replayer.verify.earlier import compare_with
from replayer.verify.report import ArchiveReport, Depth, PartitionFindings, StoredReport

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Identity:
    """The ids and partition counts in the objects of identity; None or absent if these cannot be read."""

    archive_id: str | None = None
    topic_ids: Mapping[TopicFolder, str] = field(default_factory=dict)
    partitions: Mapping[TopicFolder, int] = field(default_factory=dict)
    """How many partitions a topic has."""
    damage: tuple[Damage, ...] = ()

    def objections(self, folder: TopicFolder, marker: Marker) -> list[str]:
        """Return why a marker of that folder is not of this archive and topic; ids that are not known never differ."""
        found = []
        if self.archive_id is not None and marker.archive_id != self.archive_id:
            found.append(f"it is of archive {marker.archive_id}, not {self.archive_id}")
        topic_id = self.topic_ids.get(folder)
        if None not in (topic_id, marker.topic_id) and marker.topic_id != topic_id:
            found.append(f"it is of the topic with id {marker.topic_id}, not {topic_id}")
        return found


async def read_identity(archive: ArchiveReader, topics: Iterable[str]) -> Identity:
    """Check the objects that say whose the archive and its topics are, and the topics' configurations if any."""
    # An old archive has none.
    folders = [await archive.folder_of(topic) for topic in topics]
    if archive.other is not None:
        return Identity()
    damage: list[Damage] = []
    topic_ids: dict[TopicFolder, str] = {}
    partitions: dict[TopicFolder, int] = {}
    info = await _checked(archive, archive_key(archive.layout), ArchiveInfo, damage)
    for folder in dict.fromkeys(folders):
        home = topic_home(archive.layout, folder)
        topic = await _checked(archive, home + "_topic.json", TopicInfo, damage)
        if topic is not None and (topic.topic, topic.incarnation) != folder:
            reason = f"it names another topic: {topic.topic}~{topic.incarnation}"
            damage.append(Damage(home + "_topic.json", reason))
        elif topic is not None and topic.topic_id is not None:
            topic_ids[folder] = topic.topic_id
        config = await _checked(archive, home + TOPIC_CONFIG_OBJECT, TopicConfig, damage)
        if config is not None and config.topic != folder.topic:
            damage.append(Damage(home + TOPIC_CONFIG_OBJECT, f"it is of another topic: {config.topic}"))
        elif config is not None:
            partitions[folder] = config.partitions
    return Identity(None if info is None else info.archive_id, topic_ids, partitions, tuple(damage))


NOTHING_CHECKED = "nothing was checked: the archive holds no partition"
NO_INVENTORY = "no inventory lists what the archive should hold: archiver repair inventory builds one from what exists"


async def survey(
    archive: ArchiveReader, wanted: Sequence[Wanted], expected: Sequence[str] = ()
) -> tuple[Identity, list[tuple[str, int]], ArchiveReport]:
    """Return whose the archive is, the topics and partitions to verify in order, and a report of what is missing.

    These are all partitions of a wanted topic if none are named, everything if no topic is wanted.
    What the inventory has beyond that is missing; of each of the `expected` topics, something has to be there.
    """
    compared = await compare(archive, wanted)
    every = wanted or [(topic, None) for topic in await archive.all_incarnations()]
    asked = [each for each in every if not (wanted and await _is_lost(archive, each[0], compared))]
    identity = await read_identity(archive, [topic for topic, _ in asked])
    report = ArchiveReport(damage=list(identity.damage), archive_id=identity.archive_id)
    places = list[tuple[str, int]]()
    for topic, partitions in asked:
        numbers = partitions or await archive.partitions(topic)
        if partitions and any(each.partition in partitions for each in compared.missing):
            numbers = sorted({*partitions} & {*await archive.partitions(topic)})
        places += [(topic, number) for number in numbers]
        if partitions is None:
            numbered = range(identity.partitions.get(await archive.folder_of(topic), 0))
            report.absent += [TopicPartition(topic, number) for number in numbered if number not in numbers]
    _note(report, compared)
    if not places and not archive.other:
        report.warnings.append(NOTHING_CHECKED)
    report.unmet = [each for each in expected if not await _is_held(archive, each)]
    return identity, places, report


async def _is_held(archive: ArchiveReader, topic: str) -> bool:
    try:
        return bool(await archive.partitions(topic))
    except NotInArchive:
        return False


async def _is_lost(archive: ArchiveReader, topic: str, compared: Compared) -> bool:
    """Return whether the archive has no folder of the topic, though it had one."""
    folder = parse_topic_folder(topic)
    if folder.topic not in {each.topic for each in compared.missing}:
        return False
    held = await archive.find()
    return folder not in held if "~" in topic else folder.topic not in {each.topic for each in held}


def _note(report: ArchiveReport, compared: Compared) -> None:
    """Add the data that the inventory misses to the report, or that no inventory exists."""
    report.missing = list(compared.missing)
    claimed = {(str(each.folder), each.partition) for each in compared.missing}
    claimed |= {(each.topic, each.partition) for each in compared.missing}
    report.absent = [each for each in report.absent if each not in claimed]
    if compared.damage is not None:
        report.damage.append(compared.damage)
    elif compared.inventory is not None:
        report.inventory_rebuilt_ms = compared.inventory.rebuilt_at
    elif compared.is_expected:
        report.warnings.append(NO_INVENTORY)


async def _checked(archive: ArchiveReader, key: str, kind: type[T], damage: list[Damage]) -> T | None:
    """Return the object; None if it is damaged, which is noted, or missing, which is damage unless it is a
    configuration.
    """
    try:
        return objects.decode(await archive.reader.get(key, objects.MAX_OBJECT_BYTES), kind, key)
    except Damaged as error:
        if kind is not TopicConfig or not isinstance(error, ObjectMissing):
            damage.append(Damage(key, error.reason))
        return None


# A break in the chain: the offset at which it stopped, the one at which it continues, and the object there.
Joint = tuple[int, int, str]


async def verify_partition(
    archive: ArchiveReader,
    topic: str,
    partition: int,
    depth: Depth,
    progress: Progress,
    *,
    choice: ChunkChoice = EVERY_CHUNK,
    identity: Identity | None = None,
    listing: AboveListing | None = None,
) -> PartitionFindings:
    """Check one partition: marker, catalogs, objects above the marker, and the chosen chunks.

    `listing` was made before, of this partition too; without one it is made here. If damage is found and the marker was
    rewritten since it was read, the chain of the new marker is verified. Raise only for errors other than damage.
    """
    listing = listing or await list_above(archive, [(topic, partition)], chunks=not choice.takes_all)
    opened = await open_to_verify(archive, topic, partition)
    if isinstance(opened, PartitionFindings):
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


async def open_to_verify(archive: ArchiveReader, topic: str, partition: int) -> ArchivedPartition | PartitionFindings:
    """Return the partition, or the findings if its marker is damaged."""
    try:
        return await archive.open_partition(topic, partition)
    except Damaged as error:
        keys = LAYOUTS[archive.layout](await archive.folder_of(topic), partition)
        lost = await _unreachable(archive, keys)
        damage = [Damage(keys.marker, error.reason)]
        return PartitionFindings(topic, partition, lost=lost, damage=damage, incarnation=keys.folder.incarnation)


async def read_chain(partition: ArchivedPartition, choice: ChunkChoice = EVERY_CHUNK) -> ChunkChain:
    """Read all catalogs: what one held that cannot be read, and what no one names, is lost."""
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
            joints.append((position, start, key))
        position = end
    turns = frozenset(offset for _, offset in partition.folders[1:])
    _check_joints(chain, joints, turns)
    if position not in turns:
        _check_end(chain, position, partition)
    return chain


async def chosen_chunks(
    partition: ArchivedPartition, chain: ChunkChain, progress: Progress = unwatched, listing: AboveListing | None = None
) -> AsyncIterator[ChunkEntry]:
    """Yield the chosen chunks of a chain that was read, in order; `progress` gets the bytes of the others.

    A catalog that has become unreadable is recorded as damage of the chain, as are chunks that were not chosen and that
    a `listing` lacks.
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
    """Check that gaps explain each joint: the first begins where the chain stopped, the last ends at the next chunk."""
    # `turns` are the offsets at which the chain continues in another folder: holes may follow, up to the first gap
    # there or the next turn. This is known only at the end, because a catalog may name gaps among the chunks of earlier
    # ones.
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
    """Check the end of the chain: after the newest chunk the log may have advanced without records, but only after a
    gap.
    """
    behind = min((gap.start for gap in chain.gaps if gap.start >= position), default=partition.next_offset)
    if position < behind:
        reason = "no chunk and no recorded gap: the chain breaks before its end"
        chain.damage.append(Damage(partition.keys.marker, reason))
        chain.lost.append(LostRange(position, behind, reason))


def _unexplained(gaps: Sequence[Gap], stop: int, start: int, turns: Collection[int]) -> Iterator[tuple[int, int]]:
    """Yield the edges of offsets [stop, start) that gaps in order do not cover; between two gaps may be holes."""
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
    above: ChunkFindings | None = None,
) -> PartitionFindings:
    """Return the report: `parts` are of the chosen chunks, in order; digests exist only for one part."""
    above = above or ChunkFindings()
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
    return PartitionFindings(
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
        unopened_chunks=found.unopened,
        unopened=found.closed,
        checked=chain.checked_offsets,
    )


def _has_newest(partition: ArchivedPartition, chain: ChunkChain) -> bool:
    """Return whether the last record is the one that the marker's tail_hash is of: it may have been erased."""
    newest = partition.marker.newest_offset
    return not partition.is_maintained if newest is None else newest == chain.last_offsets[-1]


async def _unreachable(archive: ArchiveReader, keys: PartitionKeys) -> list[LostRange]:
    """Return the offsets of a partition without a marker, as far as the indexes in its folder show.

    Chunks that touch are one range: they are all lost for the same reason.
    """
    chunks = list[tuple[int, int]]()
    suffix = INDEX_SUFFIXES[keys.layout]
    async for key in archive.reader.list(keys.chunks):
        if not key.endswith(suffix):
            continue
        try:
            index = objects.decode(await archive.reader.get(key, objects.MAX_OBJECT_BYTES), ChunkIndex, key)
        except Damaged:
            continue
        if (index.topic, index.partition) == (keys.folder.topic, keys.partition):
            chunks.append((index.start_offset, index.next_offset))
    why = f"no marker leads to its chunks; {marker_remedy(keys)}"
    return [LostRange(start, end, why) for start, end in joined_ranges(chunks)]


@dataclass
class VerifyWork:
    """The work of a verification: partitions by name, and `left` bytes of data; `report` grows."""

    names: Sequence[str]
    left: int
    report: ArchiveReport
    share: float = 1.0
    """The share of the chunks that is chosen."""
    done: int = 0
    """Bytes that were checked."""

    @property
    def bytes(self) -> int:
        """Bytes to check in all: an estimate until every chunk was chosen or passed over."""
        return self.done + round(self.share * max(self.left, 0))


# Gets the work before it begins; what that gives is called after each chunk.
Watched = Callable[[VerifyWork], AbstractContextManager[Callable[[], None]]]


def _unwatched(_: VerifyWork) -> AbstractContextManager[Callable[[], None]]:
    return nullcontext(lambda: None)


async def verify_archive(
    archive: ArchiveReader,
    wanted: Sequence[TopicPartitions],
    depth: Depth,
    *,
    choice: ChunkChoice = EVERY_CHUNK,
    earlier: StoredReport | None = None,
    expected: Sequence[str] = (),
    watched: Watched = _unwatched,
) -> ArchiveReport:
    """Verify the wanted topics, all of them if none is named, and return the findings; compare with an `earlier` report
    if any.

    Of each of the `expected` topics, something has to be there. The work is done within `watched`.
    """
    identity, places, report = await survey(archive, [(each.topic, each.partitions) for each in wanted], expected)
    listing = await list_above(archive, places, chunks=not choice.takes_all)
    names = [f"{topic}:{number}" for topic, number in places]
    work = VerifyWork(names, listing.bytes, report, choice.share)
    with watched(work) as advanced:

        def on_progress(checked: int, passed: int) -> None:
            work.done += checked
            work.left -= checked + passed
            advanced()

        for topic, number in places:
            checked = verify_partition(
                archive, topic, number, depth, on_progress, choice=choice, identity=identity, listing=listing
            )
            report.partitions.append(await checked)
    if earlier is not None:
        report.since_report = await compare_with(archive, identity.archive_id, earlier, wanted)
    return report
