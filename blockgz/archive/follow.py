"""Following an archive: the newest records, and those that are committed from now on."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial

import pyarrow as pa

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.partition import ArchivedPartition, across_rewrites
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, selected
from blockgz.errors import MalformedObject, NotInArchive, StoreUnavailable
from blockgz.record_filter import RecordFilter


async def last_records(selection: Selection, record_filter: RecordFilter, count: int) -> list[pa.RecordBatch]:
    """Return the last `count` selected records as batches in offset order; raises as `selected` does."""
    start, stop = selection.offsets
    found: deque[pa.RecordBatch] = deque()
    missing = records = count
    # Without conditions one run of blocks is read; with them runs twice as long each, until there are enough.
    while missing and stop > start:
        find = partial(_start_of_last, offsets=OffsetRange(start, stop), record_filter=record_filter, records=records)
        middle = await across_rewrites(selection.partition, find)
        part = await _last_of(selection._replace(offsets=OffsetRange(middle, stop)), record_filter, missing)
        found.extendleft(reversed(part))
        missing -= sum(batch.num_rows for batch in part)
        stop, records = middle, 2 * records
    return list(found)


async def _last_of(selection: Selection, record_filter: RecordFilter, count: int) -> list[pa.RecordBatch]:
    batches: deque[pa.RecordBatch] = deque()
    held = 0
    async with aclosing(selected(selection, record_filter)) as parts:
        async for batch in parts:
            batches.append(batch)
            held += batch.num_rows
            while held - batches[0].num_rows >= count:
                held -= batches.popleft().num_rows
    if held > count:
        batches[0] = batches[0].slice(held - count)
    return list(batches)


async def _start_of_last(
    partition: ArchivedPartition, offsets: OffsetRange, record_filter: RecordFilter, records: int
) -> int:
    start, stop = offsets
    entry = await partition.chunk_before(stop)
    while entry is not None and entry.next_offset > start:
        if record_filter.may_match(entry):
            for block in reversed((await partition.chunk(entry)).index.blocks):
                if block.first_record_offset < stop and record_filter.may_match(block):
                    # A block that reaches beyond the range may hold but one record inside.
                    records -= block.num_records if block.last_record_offset < stop else 1
                    if records <= 0:
                        return max(start, block.first_record_offset)
        entry = await partition.chunk_before(entry.start_offset)
    return start


CONCURRENT_POLLS = 32
# Polls between two looks for new partitions, which take a listing.
POLLS_PER_LISTING = 10


# A partition as last seen, and the offset from which on its records are new.
FollowedPartition = tuple[ArchivedPartition, int]


class Follower:
    """Finds at each poll what was committed since the one before, and announces gaps and other turns to people."""

    def __init__(
        self,
        archive: ArchiveReader,
        topic: str,
        followed: Sequence[FollowedPartition],
        announce: Callable[[str], None],
        *,
        watch_for_partitions: bool,
    ) -> None:
        self._archive = archive
        self._topic = topic
        self._followed = {partition.partition: (partition, position) for partition, position in followed}
        self._announce = announce
        self._watches = watch_for_partitions
        self._polls = 0
        self._silent = False

    async def poll(self) -> list[Selection]:
        """Return the new offsets of each partition, each offset once; raises MalformedObject for an older marker."""
        limit = asyncio.Semaphore(CONCURRENT_POLLS)

        async def seen(known: ArchivedPartition) -> list[ArchivedPartition]:
            async with limit:
                return await self._reread(known)

        try:
            # A listing costs more than a poll of all known partitions.
            if self._watches and self._polls % POLLS_PER_LISTING == 0:
                await self._find_partitions()
            numbers = sorted(self._followed)
            versions = await asyncio.gather(*(seen(self._followed[number][0]) for number in numbers))
        except StoreUnavailable as error:
            # A store that cannot be reached is announced once, and the result is empty.
            if not self._silent:
                self._announce(f"{error.what} ({error.why}); retrying")
            self._silent = True
            return []
        self._polls += 1
        self._silent = False
        return [
            selection
            for number, newer in zip(numbers, versions, strict=True)
            for version in newer
            if (selection := self._news(number, version)) is not None
        ]

    async def _find_partitions(self) -> None:
        for number in await self._archive.partitions(self._topic):
            if number not in self._followed:
                opened = await self._archive.open_partition(self._topic, number)
                self._announce(f"partition {opened} is new")
                self._followed[number] = opened, opened.start_offset

    async def _reread(self, known: ArchivedPartition) -> list[ArchivedPartition]:
        here = known.keys.folder.incarnation
        try:
            newest = await self._archive.open_partition(self._topic, known.partition)
        except NotInArchive:
            return [await self._archive.open_partition(f"{known.topic}~{here}", known.partition)]
        if known.keys.folder in {keys.folder for keys, _ in newest.folders}:
            return [newest]
        older = [await self._archive.open_partition(f"{known.topic}~{here}", known.partition)]
        for between in range(here + 1, newest.keys.folder.incarnation):
            try:
                older.append(await self._archive.open_partition(f"{known.topic}~{between}", known.partition))
            except NotInArchive:  # that incarnation had fewer partitions
                continue
        return [*older, newest]

    def _news(self, number: int, newer: ArchivedPartition) -> Selection | None:
        before, position = self._followed[number]
        if newer.keys.folder != before.keys.folder and before.keys.folder in {keys.folder for keys, _ in newer.folders}:
            # There may be several folders behind the one that was followed: the last need not begin lowest.
            begin = min(start for keys, start in newer.folders if keys.folder > before.keys.folder)
            self._announce(f"partition {before} continues as {newer} from offset {begin}: its log was truncated there")
            position = min(position, begin)
        elif newer.keys.folder != before.keys.folder:
            self._announce(f"partition {before} continues as {newer}: the topic was created again")
            position = newer.start_offset
        elif newer.next_offset < before.next_offset:
            raise MalformedObject(
                f"{newer.keys.marker} went back from offset {before.next_offset} to {newer.next_offset}",
                why="another archive, or an old copy of this one, has replaced it",
                remedy="start again if that was intended",
            )
        if before.floor <= position < newer.floor:
            self._announce(f"partition {newer} was pruned: offsets [{position}..{newer.floor}) are gone unread")
            position = newer.floor
        for gap in newer.listed_gaps:
            if gap.end > max(position, before.next_offset) and gap not in before.listed_gaps:
                self._announce(f"partition {newer} has a gap [{gap.start}..{gap.end}): {gap.reason}")
        self._followed[number] = newer, max(position, newer.next_offset)
        return Selection(newer, OffsetRange(position, newer.next_offset)) if newer.next_offset > position else None
