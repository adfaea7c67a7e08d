"""Checking an archive: every damage is found in one go, and each is told as the offsets that it costs."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

import numpy as np

from index_format import objects
from index_format.chunk_index import ChunkIndex, Gap
from index_format.errors import BlockgzError, CorruptBlock, FormatError, MalformedObject
from index_format.identity import ArchiveInfo, TopicInfo
from index_format.keys import PartitionKeys, archive_key, topic_home
from index_format.marker import CatalogReference, ChunkEntry, Span
from index_format.record_formats import record_format
from index_format.records import iter_records, record_hash
from index_format.seek import merged_ranges

from .archive import INDEX_SUFFIXES, Archive, ArchivedPartition, Chunk, LeveledSpan
from .block_reader import StoredBlock, decoded, fetch_blocks, inflated
from .errors import ObjectMissing
from .prefetch import prefetched
from .scan import RANGE_BYTES

CHUNKS_AT_ONCE = 8
DEEP_CHUNKS_AT_ONCE = 2

Damaged = (FormatError, ObjectMissing)
"""The errors that mean damage; all others (denied, unavailable) end a verification."""


class Depth(IntEnum):
    """How much is read: each level includes those before."""

    STRUCTURE = 0
    """Chain, catalogs, indexes, and the sizes of data objects."""
    BLOCKS = 1
    """All data: checksums of objects and blocks, counts of records."""
    RECORDS = 2
    """Every record is decoded."""


class Verdict(Enum):
    """FAILURE is damage; WARNING is gaps that were recorded when they happened."""

    OK = "OK"
    WARNING = "WARNING"
    FAILURE = "FAILURE"


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """The worst of several verdicts; OK of none."""
    return next((each for each in (Verdict.FAILURE, Verdict.WARNING) if each in verdicts), Verdict.OK)


@dataclass(frozen=True)
class Lost:
    """Offsets [start, end) whose records cannot be read."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True)
class Damage:
    """An object that is not what it must be, whether or not records are lost by it."""

    key: str
    reason: str


@dataclass
class PartitionReport:
    """What was found of one partition; `records` are those that can be read, as far as was checked."""

    topic: str
    partition: int
    records: int = 0
    chunks: int = 0
    first_offset: int | None = None
    next_offset: int | None = None
    gaps: Sequence[Gap] = ()
    lost: list[Lost] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        if self.lost or self.damage:
            return Verdict.FAILURE
        return Verdict.WARNING if self.gaps else Verdict.OK


@dataclass
class ArchiveReport:
    """What was found of the whole; `damage` is that of objects above the partitions."""

    partitions: list[PartitionReport] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst of what was found."""
        return worst([report.verdict for report in self.partitions] + [Verdict.FAILURE for _ in self.damage[:1]])


@dataclass(frozen=True)
class ChunkFindings:
    """What was found of one chunk."""

    entry: ChunkEntry
    gaps: Sequence[Gap] = ()
    lost_records: int = 0
    lost: Sequence[Lost] = ()
    damage: Sequence[Damage] = ()
    last_hash: str | None = None
    """The hash of the chunk's last record, where it was decoded from a lossless format."""


Progress = Callable[[int], None]
"""Told the bytes of data that each finished chunk accounts for."""


async def verify_identity(archive: Archive, topics: Iterable[str]) -> list[Damage]:
    """Checks the objects that say whose the archive and its topics are."""
    damage: list[Damage] = []
    folders = [await archive.folder_of(topic) for topic in topics]
    if archive.other is not None:
        return damage  # an archive of another kind has no such objects
    key = archive_key(archive.layout)
    try:
        objects.decode((await archive.reader.get(key, objects.MAX_OBJECT_BYTES)).body, ArchiveInfo, key)
    except Damaged as error:
        damage.append(Damage(key, _reason(error)))
    for folder in folders:
        key = topic_home(archive.layout, folder) + "_topic.json"
        try:
            info = objects.decode((await archive.reader.get(key, objects.MAX_OBJECT_BYTES)).body, TopicInfo, key)
            if (info.topic, info.incarnation) != folder:
                raise MalformedObject(f"{key} names another topic", why=f"{info.topic}~{info.incarnation}")
        except Damaged as error:
            damage.append(Damage(key, _reason(error)))
    return damage


async def expected_bytes(archive: Archive, topic: str, partition: int) -> int:
    """The bytes of data that a verification of the partition will account for; 0 where its marker is damaged."""
    try:
        return (await archive.open_partition(topic, partition)).num_bytes
    except Damaged:
        return 0


async def verify_partition(
    archive: Archive, topic: str, partition: int, depth: Depth, progress: Progress
) -> PartitionReport:
    """Checks one partition; raises only for what is not damage."""
    try:
        opened = await archive.open_partition(topic, partition)
    except Damaged as error:
        keys = await archive.partition_keys(topic, partition)
        damage = [Damage(keys.marker, _reason(error))]
        lost = await _unreachable(archive, keys)
        return PartitionReport(topic, partition, lost=lost, damage=damage)
    return await _Verification(opened, topic, depth, progress).run()


class _Verification:
    """One partition under verification."""

    def __init__(self, partition: ArchivedPartition, topic: str, depth: Depth, progress: Progress) -> None:
        self._partition = partition
        self._depth = depth
        self._progress = progress
        marker = partition.marker
        self._report = PartitionReport(topic, partition.partition, next_offset=marker.next_offset)
        self._gaps: set[Gap] = set(marker.gaps)
        self._lost_spans: list[CatalogReference] = []

    async def run(self) -> PartitionReport:
        report, marker = self._report, self._partition.marker
        entries = [entry async for entry in self._entries(self._partition.spans)]
        concurrency = DEEP_CHUNKS_AT_ONCE if self._depth else CHUNKS_AT_ONCE
        findings = prefetched(_each(entries), self._chunk, cost=lambda _: 1, budget=concurrency)
        last: ChunkFindings | None = None
        async for last in findings:
            report.chunks += 1
            report.records += last.entry.num_records - last.lost_records
            report.lost += last.lost
            report.damage += last.damage
            self._gaps.update(last.gaps)
            self._progress(last.entry.bytes)
        self._check_chain(entries)
        if last is not None and None not in (last.last_hash, marker.tail_hash) and last.last_hash != marker.tail_hash:
            report.damage.append(Damage(self._partition.keys.marker, "its tail_hash is not that of the last record"))
        report.first_offset = entries[0].first_offset if entries else None
        report.gaps = sorted(self._gaps, key=lambda gap: gap.start)
        report.lost.sort(key=lambda lost: lost.start)
        return report

    async def _entries(self, spans: Iterable[LeveledSpan]) -> AsyncIterator[ChunkEntry]:
        """The chunks of all catalogs that can be read; what the others held is lost."""
        for span, level in spans:
            if isinstance(span, ChunkEntry):
                yield span
                continue
            assert isinstance(span, CatalogReference)
            try:
                catalog = await self._partition.catalog(span, level)
            except Damaged as error:
                self._report.damage.append(Damage(self._partition.keys.home + span.name, _reason(error)))
                self._report.lost.append(Lost(span.start_offset, span.next_offset, _reason(error)))
                self._lost_spans.append(span)
                continue
            self._gaps.update(catalog.gaps)
            async for entry in self._entries([LeveledSpan(entry, level - 1) for entry in catalog.entries]):
                yield entry

    def _check_chain(self, entries: Sequence[ChunkEntry]) -> None:
        """Each chunk starts where the one before ends, or at the end of a recorded gap."""
        gap_ends = {gap.end for gap in self._gaps}
        position = self._partition.start_offset
        spans: list[Span] = [*entries, *self._lost_spans]
        for span in sorted(spans, key=lambda span: span.start_offset):
            if span.start_offset != position and span.start_offset not in gap_ends:
                reason = f"no chunk and no recorded gap: the chain breaks before {span.name}"
                self._report.damage.append(Damage(self._partition.keys.home + span.name, reason))
                if position < span.start_offset:
                    self._report.lost.append(Lost(position, span.start_offset, reason))
            position = span.next_offset

    async def _chunk(self, entry: ChunkEntry) -> ChunkFindings:
        keys = self._partition.keys
        try:
            chunk = await self._partition.chunk(entry)
        except Damaged as error:
            return _all_lost(entry, keys.chunks + entry.name, _reason(error))
        try:
            size = await self._partition.reader.size(chunk.data_key)
        except ObjectMissing as error:
            return _all_lost(entry, chunk.data_key, _reason(error))
        lost: dict[int, str] = {
            number: f"{chunk.data_key} ends at byte {size}, before the end of the block"
            for number, block in enumerate(chunk.index.blocks)
            if block.byte_end > size
        }
        damage = []
        if size != chunk.index.data.bytes:
            damage.append(Damage(chunk.data_key, f"it has {size} bytes, its index says {chunk.index.data.bytes}"))
        last_hash = None
        if self._depth:
            sha256, found, last_hash = await self._blocks(chunk, len(chunk.index.blocks) - len(lost))
            lost |= found
            if sha256 != chunk.index.data.sha256 and not damage:
                damage.append(Damage(chunk.data_key, "its sha256 is not the one in its index"))
        return ChunkFindings(
            chunk.entry,
            chunk.index.gaps,
            sum(chunk.index.blocks[number].num_records for number in lost),
            _runs(chunk.index, lost),
            damage,
            last_hash,
        )

    async def _blocks(self, chunk: Chunk, count: int) -> tuple[str, dict[int, str], str | None]:
        """Of the first `count` blocks: the sha256 of their bytes, those that cannot be read, the last record's hash."""
        digest = hashlib.sha256()
        bad: dict[int, str] = {}
        last_hash = None
        blocks = chunk.index.blocks[:count]
        for group in merged_ranges(blocks, RANGE_BYTES) if blocks else ():
            for fetched in await self._fetched(chunk, group, bad):
                try:
                    last_hash = await asyncio.to_thread(self._checked, fetched, digest.update)
                except Damaged as error:
                    bad[fetched.number] = _reason(error)
                    last_hash = None
        return digest.hexdigest(), bad, last_hash if count == len(chunk.index.blocks) else None

    async def _fetched(self, chunk: Chunk, group: range, bad: dict[int, str]) -> list[StoredBlock]:
        """The blocks of a group, one by one where they cannot be had together."""
        try:
            return await fetch_blocks(self._partition, chunk, group)
        except Damaged as error:
            if len(group) == 1:
                bad[group.start] = _reason(error)
                return []
        return [block for n in group for block in await self._fetched(chunk, range(n, n + 1), bad)]

    def _checked(self, block: StoredBlock, hash_bytes: Callable[[bytes], None]) -> str | None:
        """Checks a block as deep as asked for; the hash of its last record where it was decoded losslessly."""
        hash_bytes(block.member)
        limit = self._partition.max_block_bytes
        encoding = record_format(block.chunk.index.record_format)
        if self._depth < Depth.RECORDS:
            count = encoding.count(inflated(block, limit))
            if count != block.entry.num_records:
                raise CorruptBlock(
                    f"block {block.number} of {block.chunk.data_key} holds {count} records",
                    why=f"its index says {block.entry.num_records}",
                )
            return None
        batch = decoded(block, limit)
        if encoding.name == "text":
            return None
        timestamps = batch.column("timestamp").to_numpy()
        if (int(np.min(timestamps)), int(np.max(timestamps))) != (block.entry.min_timestamp, block.entry.max_timestamp):
            raise CorruptBlock(
                f"block {block.number} of {block.chunk.data_key} has other timestamps than its index says",
                why="seeks by time would miss records",
            )
        is_last = block.number == len(block.chunk.index.blocks) - 1
        return record_hash(next(iter_records(batch.slice(batch.num_rows - 1)))) if is_last else None


async def _unreachable(archive: Archive, keys: PartitionKeys) -> list[Lost]:
    """The offsets of a partition without a marker, as far as the indexes beside it tell."""
    lost = []
    suffix = INDEX_SUFFIXES[keys.layout]
    async for key in archive.reader.list(keys.chunks):
        if not key.endswith(suffix):
            continue
        try:
            index = objects.decode((await archive.reader.get(key, objects.MAX_OBJECT_BYTES)).body, ChunkIndex, key)
        except Damaged:
            continue
        if (index.topic, index.partition) == (keys.folder.topic, keys.partition):
            lost.append(Lost(index.first_offset, index.last_offset + 1, "no marker leads to its chunk"))
    return sorted(set(lost), key=lambda each: each.start)


def _all_lost(entry: ChunkEntry, key: str, reason: str) -> ChunkFindings:
    lost = Lost(entry.first_offset, entry.last_offset + 1, reason)
    return ChunkFindings(entry, (), entry.num_records, (lost,), (Damage(key, reason),))


def _runs(index: ChunkIndex, bad: dict[int, str]) -> list[Lost]:
    """The offsets of damaged blocks, neighbours with the same reason as one."""
    runs: list[Lost] = []
    previous: int | None = None
    for number in sorted(bad):
        block, reason = index.blocks[number], bad[number]
        end = block.last_record_offset + 1
        if previous == number - 1 and runs[-1].reason == reason:
            runs[-1] = Lost(runs[-1].start, end, reason)
        else:
            runs.append(Lost(block.first_record_offset, end, reason))
        previous = number
    return runs


def _reason(error: BlockgzError) -> str:
    return f"{error.what}: {error.why}" if error.why else error.what


async def _each(entries: Iterable[ChunkEntry]) -> AsyncIterator[ChunkEntry]:
    for entry in entries:
        yield entry
