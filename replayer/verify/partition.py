"""Checking a partition: every damage is found in one run, and reported as the offsets that it costs."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from index_format import objects
from index_format.chunk_index import ChunkIndex, Gap
from index_format.keys import INDEX_SUFFIXES, PartitionKeys
from index_format.marker import ChunkEntry
from replayer.read.archive import Archive
from replayer.read.damage import Damage, Damaged, LostRange, Unreadable
from replayer.read.partition import ArchivedPartition
from replayer.verify.chunk_checks import (
    END,
    EVERY_CHUNK,
    ChunkChoice,
    ChunkFindings,
    Depth,
    Progress,
    check_chunks,
    joined,
)
from replayer.verify.findings import PartitionReport
from replayer.verify.survey import Identity


@dataclass
class ChunkChain:
    """The chunks of a partition as its marker and catalogs name them, and what is wrong with those."""

    entries: list[ChunkEntry] = field(default_factory=list)
    gaps: set[Gap] = field(default_factory=set)
    lost: list[LostRange] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)


async def expected_bytes(archive: Archive, topic: str, partition: int) -> int:
    """The bytes of data that a verification of the partition will account for; 0 where its marker is damaged."""
    try:
        return (await archive.open_partition(topic, partition)).marker.num_bytes
    except Damaged:
        return 0


async def verify_partition(
    archive: Archive,
    topic: str,
    partition: int,
    depth: Depth,
    progress: Progress,
    *,
    choice: ChunkChoice = EVERY_CHUNK,
    identity: Identity | None = None,
) -> PartitionReport:
    """Checks one partition: marker and catalogs, and the chosen chunks; raises only for what is not damage."""
    opened = await open_to_verify(archive, topic, partition)
    if isinstance(opened, PartitionReport):
        return opened
    chain = await read_chain(opened)
    chosen = choice.of(chain.entries)
    progress(sum(entry.bytes for entry in chain.entries) - sum(entry.bytes for entry in chosen))
    found = await check_chunks(opened, chosen, depth, progress)
    return assembled(opened, topic, chain, chosen, [found], identity)


async def open_to_verify(archive: Archive, topic: str, partition: int) -> ArchivedPartition | PartitionReport:
    """The partition, or the report on it where its marker is damaged."""
    try:
        return await archive.open_partition(topic, partition)
    except Damaged as error:
        keys = await archive.partition_keys(topic, partition)
        lost = await _unreachable(archive, keys)
        return PartitionReport(topic, partition, lost=lost, damage=[Damage(keys.marker, error.reason)])


async def read_chain(partition: ArchivedPartition) -> ChunkChain:
    """The chunks of all catalogs that can be read; what the others held, and what no one names, is lost."""
    chain = ChunkChain(gaps=set(partition.marker.gaps))
    spans: list[tuple[int, int, str]] = []
    async for opened in partition.walk(0, END):
        if isinstance(opened, ChunkEntry):
            chain.entries.append(opened)
            spans.append((opened.start_offset, opened.next_offset, partition.keys.chunks + opened.name))
        elif isinstance(opened, Unreadable):
            chain.damage.append(Damage(opened.key, opened.reason))
            chain.lost.append(LostRange(opened.start, opened.end, opened.reason))
            spans.append((opened.start, opened.end, opened.key))
        else:
            chain.gaps.update(opened.gaps)
    _check_chain(chain, partition.start_offset, spans)
    return chain


def _check_chain(chain: ChunkChain, position: int, spans: Sequence[tuple[int, int, str]]) -> None:
    """Each chunk starts where the one before ends, or at the end of a recorded gap."""
    gap_ends = {gap.end for gap in chain.gaps}
    for start, end, key in spans:
        if start != position and start not in gap_ends:
            reason = f"no chunk and no recorded gap: the chain breaks before {key}"
            chain.damage.append(Damage(key, reason))
            if position < start:
                chain.lost.append(LostRange(position, start, reason))
        position = end


def assembled(
    partition: ArchivedPartition,
    topic: str,
    chain: ChunkChain,
    chosen: Sequence[ChunkEntry],
    parts: Sequence[ChunkFindings],
    identity: Identity | None,
) -> PartitionReport:
    """The report: `parts` are of the chosen chunks, in order; only where it is one there are digests."""
    found = joined(parts)
    entries, marker = chain.entries, partition.marker
    counts = {entry.name: entry.num_records for entry in entries} | found.recounted
    lost = sorted([*chain.lost, *found.lost], key=lambda each: each.start)
    reasons = [] if identity is None else identity.objections(partition.keys.folder, marker)
    if chosen[-1:] == entries[-1:] and found.last_hash != marker.tail_hash and found.last_hash and marker.tail_hash:
        reasons.insert(0, "its tail_hash is not that of the last record")
    return PartitionReport(
        topic,
        partition.partition,
        records=sum(counts.values()) - found.lost_records,
        chunks=len(entries),
        checked_chunks=len(chosen),
        first_offset=entries[0].first_offset if entries else None,
        next_offset=marker.next_offset,
        gaps=sorted(chain.gaps.union(_unfilled(found.gaps, entries)), key=lambda gap: gap.start),
        lost=lost,
        damage=[
            *chain.damage,
            *found.damage,
            *partition.damage,
            *(Damage(partition.keys.marker, reason) for reason in reasons),
        ],
        digests=found.digests if len(chosen) == len(entries) and not lost else None,
    )


def _unfilled(gaps: Sequence[Gap], entries: Sequence[ChunkEntry]) -> list[Gap]:
    """The gaps that indexes name, without those that a chunk took the place of later: the marker knows what is left."""
    unfilled = []
    for gap in gaps:
        position = bisect_left(entries, gap.start, key=lambda entry: entry.start_offset)
        if position == len(entries) or entries[position].last_offset >= gap.end:
            unfilled.append(gap)
    return unfilled


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
