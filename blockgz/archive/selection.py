"""A part of one partition, pinned to one version of its marker, and the selected records in it."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from blockgz.archive.archive import Archive
from blockgz.archive.blocks import (
    READ_AHEAD,
    ReadAhead,
    StoredBlock,
    decoded_parts,
    readable_chunks,
    stored_blocks,
    worked,
)
from blockgz.archive.cuts import PARTITIONS_SHOWN, Cut, behind_note, find_cut
from blockgz.archive.damage import MOST_REWRITES, STOP, Damaged, DamagePolicy, Unreadable
from blockgz.archive.group_tables import EndsAround, ends_around
from blockgz.archive.partition import END, ArchivedPartition, Chunk
from blockgz.archive.positions import (
    AT_START,
    AtOffset,
    AtTime,
    BeforeTime,
    End,
    Ends,
    OffsetRange,
    Position,
    Rule,
    resolve_position,
    resolve_range,
)
from blockgz.errors import NotInArchive, UsageError
from blockgz.record_filter import RecordFilter
from blockgz.units import timestamp_text
from index_format.chunk_index import ERASED
from index_format.keys import TopicFolder
from index_format.marker import ChunkCatalog, ChunkEntry, ReferenceCatalog, TimeBounded


class Selection(NamedTuple):
    """Offsets of one partition; what is committed later is not in it."""

    partition: ArchivedPartition
    offsets: OffsetRange
    cut: Cut | None = None
    """How the end was found, if it is as of a time."""
    notes: tuple[str, ...] = ()
    """Sentences about records on the wrong side of times that start or end the offsets."""


@dataclass(frozen=True)
class Positions:
    """The start and end of each partition's range; None means the archive's own, and partitions may have theirs."""

    start: Position | None = None
    end: End | None = None
    of_partitions: Mapping[int, Ends] = field(default_factory=dict)
    asked: tuple[str, ...] = field(default=(), compare=False)
    """How start and end were written."""

    def __post_init__(self) -> None:
        """Raise UsageError for a start behind the end."""
        match self.start, self.end:
            case AtOffset(start), AtOffset(end) if start > end:
                self._refuse(start, end)
            case (AtTime(start), AtTime(end)) | (AtTime(start), BeforeTime(end)) if start > end:
                self._refuse(timestamp_text(start), timestamp_text(end))

    @staticmethod
    def _refuse(start: object, end: object) -> NoReturn:
        raise UsageError(
            f"the records are to start at {start} and to end before {end}",
            why="the start is after the end, so there are none",
            remedy="swap --from and --to",
        )

    @property
    def notes(self) -> Iterator[str]:
        """The requested times, as sentences for people."""
        if isinstance(self.start, AtTime):
            yield f"begins at {timestamp_text(self.start.timestamp)}"
        if isinstance(self.end, AtTime | BeforeTime):
            yield f"ends before {timestamp_text(self.end.timestamp)}"

    def of(self, number: int) -> Ends:
        """Return the start and the end for a partition."""
        start, end = self.of_partitions.get(number, (None, None))
        return start or self.start, end or self.end

    @property
    def cut_bytes(self) -> int:
        """Return how many stored bytes were read to find the ends as of a time."""
        return self.end.budget.used if isinstance(self.end, BeforeTime) else 0

    @property
    def as_first(self) -> "Positions | None":
        """Return the same positions by Kafka's rule, as jobs that were begun without a rule had them."""
        return self.ruled("first") if isinstance(self.end, BeforeTime) and self.end.rule is None else None

    def ruled(self, rule: Rule | None) -> "Positions":
        """Return the same positions with a rule for their end as of a time."""
        if not isinstance(self.end, BeforeTime) or rule is None:
            return self
        return replace(self, end=replace(self.end, rule=rule), asked=self.asked[:2] if rule == "first" else self.asked)


def positions_before(start: Position | None, end: BeforeTime, asked: tuple[str, ...]) -> Positions:
    """Return what `--at` means. `asked` gets the rule, unless it is the one of jobs that had none."""
    return Positions(start, end, asked=asked if end.rule == "first" else (*asked, "majority"))


async def select(
    archive: Archive, topic: str, partitions: Sequence[int] | None, positions: Positions
) -> list[Selection]:
    """Return the selected offsets in the named partitions, or in all, each as of one version of its marker.

    Raises NotInArchive if positions are given for a partition that is not among them.
    """
    return await resolved(archive, await archive.open_topic(topic, partitions), positions)


def cuts_of(chosen: Iterable[Selection]) -> tuple[tuple[str, int, Cut], ...]:
    """Return by topic and partition how ends as of a time were found."""
    return tuple((each.partition.topic, each.partition.partition, each.cut) for each in chosen if each.cut is not None)


async def resolved(archive: Archive, partitions: Sequence[ArchivedPartition], positions: Positions) -> list[Selection]:
    """Return the offsets that positions mean in opened partitions; raises as `select`."""
    unknown = sorted(positions.of_partitions.keys() - {partition.partition for partition in partitions})
    if unknown:
        raise NotInArchive(
            f"positions are given for partition {unknown[0]} of {partitions[0].topic}, which is not selected"
            if partitions
            else f"positions are given for partition {unknown[0]}, and none is selected",
            why="it is not in the archive, or another option excludes it",
            remedy="remove it from the positions file",
        )
    seen = await _seen(archive, partitions, positions)
    return await asyncio.gather(*(_select(each, positions, seen.get(each.partition)) for each in partitions))


async def _seen(
    archive: Archive, partitions: Sequence[ArchivedPartition], positions: Positions
) -> dict[int, EndsAround]:
    wanted: dict[tuple[TopicFolder, str | None, int], dict[int, int]] = {}
    for each in partitions if archive.other is None else ():
        end = positions.of(each.partition)[1]
        if isinstance(end, BeforeTime):
            limits = [begin for _, begin in each.folders[1:]] + [END]
            for (keys, _), limit in zip(each.folders, limits, strict=True):
                wanted.setdefault((keys.folder, each.marker.topic_id, end.timestamp), {})[each.partition] = limit
    found = await asyncio.gather(
        *(
            ends_around(archive.reader, archive.layout, folder, topic_id, limits, at_ms)
            for (folder, topic_id, at_ms), limits in wanted.items()
        )
    )
    seen: dict[int, EndsAround] = {}
    for ends, limit_of in zip(found, wanted.values(), strict=True):
        for number, around in ends.items():
            seen[number] = seen.get(number, EndsAround()).and_in(around, limit_of[number])
    return seen


async def _select(partition: ArchivedPartition, positions: Positions, seen: EndsAround | None) -> Selection:
    start, end = positions.of(partition.partition)
    if not isinstance(end, BeforeTime):
        found = await resolve_range(partition, start, end)
        return Selection(partition, found, None, tuple(notes_behind(partition, found, start, end)))
    cut = await find_cut(partition, end, seen or EndsAround())
    first = await resolve_position(start or AT_START, partition)
    found = OffsetRange(first, max(first, cut.end))
    return Selection(partition, found, cut, tuple(notes_behind(partition, found, start, end)))


def notes_behind(
    partition: ArchivedPartition, offsets: OffsetRange, start: Position | None, end: End | None
) -> Iterator[str]:
    """Yield a note for each end of a range that is a time, if records from before it are known to lie behind it."""
    places = ((start, *offsets, ", and included"), (end, offsets.end, END, ", and left out"))
    for position, found, last, outcome in places:
        if isinstance(position, AtTime):
            note = behind_note(partition, position.timestamp, found, last, outcome)
            yield from [note] if note else []


def notes_of(chosen: Iterable[Selection]) -> list[str]:
    """Return the notes of selections, the first few of them."""
    return first_notes([note for each in chosen for note in each.notes])


def first_notes(notes: Sequence[str]) -> list[str]:
    """Return the first few notes, and how many more there are."""
    more = len(notes) - PARTITIONS_SHOWN
    return [*notes[:PARTITIONS_SHOWN], *([f"{more} more such partitions"] if more > 0 else [])]


class Reading(NamedTuple):
    """The records to read of selections, and the behaviour of each partition's scan at damage."""

    filter: RecordFilter = RecordFilter()
    on_damage: Callable[[ArchivedPartition], DamagePolicy] = lambda _: STOP


async def selected(
    selection: Selection, record_filter: RecordFilter, on_damage: DamagePolicy = STOP, ahead: ReadAhead = READ_AHEAD
) -> AsyncGenerator[pa.RecordBatch]:
    """Yield the selected records as non-empty batches, in offset order; close it (`aclosing`) when you stop early.

    Blocks without such a record, by their timestamps and key filters, are not read. Raises as `scan` does, and
    UsageError if records are selected by timestamps that the archive does not have.
    """
    partition, offsets = selection[:2]
    wanted = None if record_filter.passes_all else record_filter.may_match
    if record_filter.by_time:
        await _check_timestamps(partition)
    async with aclosing(scan(partition, *offsets, wanted, on_damage=on_damage, ahead=ahead)) as batches:
        async for batch in batches:
            part = record_filter.apply(batch)
            del batch
            if part.num_rows:
                yield part
            del part


async def scan(
    partition: ArchivedPartition,
    start_offset: int,
    end_offset: int,
    wanted: Callable[[TimeBounded], bool] | None = None,
    *,
    on_damage: DamagePolicy = STOP,
    ahead: ReadAhead = READ_AHEAD,
) -> AsyncGenerator[pa.RecordBatch]:
    """Yield the archived records of offsets [start_offset, end_offset) in order, as batches of `records.SCHEMA`.

    Batches are never empty; each is (a part of) one block, small or of a single record. Close the iterator (`aclosing`)
    when you stop early.

    `wanted` decides about catalogs, chunks and blocks: what it refuses is not read, nor is anything below it.
    `on_damage` meets each damaged block, chunk or catalog in its place, with the offsets that it costs within the
    wanted ones; by default the scan ends there with a FormatError or ObjectMissing. What came before is right.

    Objects rewritten since the marker was read are read through the current marker, from the same offset on. Pruned
    offsets are damage as well: NotInArchive by default.
    """
    at, rewrites = start_offset, 0
    while True:
        if at < min(partition.floor, end_offset):
            on_damage.meet(_pruned(partition, at, min(partition.floor, end_offset)))
            at = partition.floor
        newer: ArchivedPartition | None = None
        async with aclosing(_scan(partition, at, end_offset, wanted, ahead)) as items:
            async for item in items:
                if not isinstance(item, Unreadable):
                    yield item
                    del item
                    continue
                # Only rereads without progress count.
                rewrites = rewrites if item.start == at else 0
                at = item.start
                newer = await partition.newer(at) if rewrites < MOST_REWRITES else None
                if newer is not None:
                    break
                on_damage.meet(item)
        if newer is None:
            return
        partition, rewrites = newer, rewrites + 1


def _pruned(partition: ArchivedPartition, start: int, end: int) -> Unreadable:
    error = NotInArchive(
        f"offsets [{start}..{end}) of {partition} were pruned",
        why=f"the archive keeps nothing of it below offset {partition.floor}",
        remedy=f"begin at offset {partition.floor}, or at earliest",
    )
    return Unreadable(start, end, 0, partition.keys.marker, error)


async def _scan(
    partition: ArchivedPartition,
    start_offset: int,
    end_offset: int,
    wanted: Callable[[TimeBounded], bool] | None,
    ahead: ReadAhead,
) -> AsyncGenerator[pa.RecordBatch | Unreadable]:

    def decode(block: StoredBlock) -> deque[pa.RecordBatch]:
        return deque(decoded_parts(block, partition.max_block_bytes))

    chunks = readable_chunks(partition, chosen_entries(partition, start_offset, end_offset, wanted))
    blocks = stored_blocks(partition, chunks, start_offset, end_offset, wanted, ahead.fetched)
    async for item in worked(blocks, decode, ahead.decoded):
        if isinstance(item, Unreadable):
            start, end = max(item.start, start_offset), min(item.end, end_offset)
            if start < end:
                yield item._replace(start=start, end=end)
        elif isinstance(item, deque):
            while item:
                part = trimmed(item.popleft(), start_offset, end_offset)
                if part.num_rows:
                    yield part
                del part


def trimmed(batch: pa.RecordBatch, start_offset: int, end_offset: int) -> pa.RecordBatch:
    """Return the rows of a batch whose offsets lie in [start_offset, end_offset)."""
    offsets = batch.column("offset").to_numpy()
    first, last = np.searchsorted(offsets, [start_offset, end_offset])
    return batch.slice(int(first), int(last - first))


async def chosen_entries(
    partition: ArchivedPartition, start: int, end: int, wanted: Callable[[TimeBounded], bool] | None = None
) -> AsyncGenerator[ChunkEntry | Unreadable]:
    """Yield the chunks that may hold records of offsets [start, end), in order, and catalogs that cannot be read."""
    async for opened in partition.walk(start, end, wanted):
        if isinstance(opened, ChunkEntry | Unreadable):
            yield opened


async def erased_ranges(partition: ArchivedPartition, start: int, end: int) -> list[OffsetRange]:
    """Return the offsets of [start, end) whose records were erased, in order and apart; reads catalogs and indexes.

    Damaged ones are passed over.
    """
    if not partition.is_maintained:
        return []
    found = [(gap.start, gap.end) for gap in partition.listed_gaps if gap.reason == ERASED]
    async for opened in partition.walk(start, end):
        if isinstance(opened, ChunkCatalog | ReferenceCatalog):
            found += [(gap.start, gap.end) for gap in partition.telling(opened.gaps) if gap.reason == ERASED]
    async for chunk in readable_chunks(partition, chosen_entries(partition, start, end)):
        if isinstance(chunk, Chunk):
            found += [(each.start, each.end) for each in chunk.erased]
    return joined_ranges((max(low, start), min(high, end)) for low, high in found if low < end and high > start)


def joined_ranges(ranges: Iterable[tuple[int, int]]) -> list[OffsetRange]:
    """Return the offsets of ranges, in order and apart."""
    found: list[OffsetRange] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1].end:
            found[-1] = OffsetRange(found[-1].start, max(found[-1].end, end))
        else:
            found.append(OffsetRange(start, end))
    return found


async def _check_timestamps(partition: ArchivedPartition) -> None:
    newest = await _newest_readable(partition)
    if newest is not None and newest.index.record_format == "text":
        raise UsageError(
            f"records of {partition} cannot be selected by timestamp",
            why="chunks of record format text hold none",
            remedy="use --from and --to with times, which are exact to the block",
        )


async def _newest_readable(partition: ArchivedPartition) -> Chunk | None:
    for entry in reversed(partition.spans):
        if not isinstance(entry, ChunkEntry):
            return None
        try:
            return await partition.chunk(entry)
        except Damaged:
            continue
    return None
