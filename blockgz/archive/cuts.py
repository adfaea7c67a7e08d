"""Cuts by time: where a partition ends as of a time, although clocks differ (FORMAT.md, "Cuts by time")."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from blockgz.archive.blocks import RANGE_BYTES, StoredBlock, decoded, fetch_blocks
from blockgz.archive.group_tables import EndsAround
from blockgz.archive.partition import END, ArchivedPartition, Chunk, Damaged, across_rewrites
from blockgz.archive.positions import BeforeTime, Rule
from blockgz.errors import CutUndecided
from blockgz.units import time_text
from index_format.blocks import decode_block
from index_format.marker import CatalogReference, ChunkEntry, Span, TimeBounded, range_groups
from index_format.objects import BlockEntry

# A cut is settled when this many more records of the time or later than before it follow.
SETTLED = 1000
# Stored bytes of blocks that are read in front of the range, only to count.
FRONT_BYTES = 64 * 2**20
PARTITION_BYTES = 2**30
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
# This many records within a minute of the time are no difference: producers send from several threads.
FEW_RECORDS = 10
MOST_SHARE = 0.01
PARTITIONS_SHOWN = 10
CHOOSE_BY_ARGUMENT = 'look at the records around both offsets, and pass at_rule="majority" or at_rule="first"'


class Cut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a partition as of a time, and the records on the wrong side of it."""

    at: int
    """The requested time, ms since the epoch."""
    end: int
    """The first offset that is left out."""
    first: int
    """The end by Kafka's rule: the offset of the first record of the time or later."""
    majority: int
    """The end by majority."""
    rule: Rule
    is_chosen: bool = False
    """True if a person chose the rule."""
    later: int = 0
    """Records of the time or later in front of the end."""
    earlier: int = 0
    """Records from before the time behind the end."""
    at_least: bool = False
    """True if blocks that were not read may hold more of both."""
    first_timestamp: int | None = None
    """The timestamp of the record at `first`; None if that record does not exist, or its block was not read."""
    latest: int | None = None
    """The greatest timestamp in front of the end, if `later`."""
    first_left_out: int | None = None
    """The offset of the first record from before the time behind the end."""
    earliest: int | None = None
    """The smallest timestamp behind the end, if `earlier`."""
    between: int = 0
    """Records between `first` and `majority`."""
    backfilled: bool = False
    """True if most records from before the time between both ends are much older than those in front of them."""
    undecided: str | None = None
    """Why the majority could not be counted to its end."""
    seen: EndsAround = EndsAround()
    lacks: int = 0
    """Offsets that the log held before the time and the archive does not."""
    reaches: bool = True
    """True if the archive is known to hold what came up to the time."""

    @property
    def differs(self) -> bool:
        """Return whether a person would notice the records on the wrong side."""
        num_records = self.later + self.earlier
        is_near = (self.latest is None or self.latest - self.at <= MINUTE_MS) and (
            self.earliest is None or self.at - self.earliest <= MINUTE_MS
        )
        return num_records > FEW_RECORDS or (num_records > 0 and not is_near)

    @property
    def is_decided(self) -> bool:
        """Return whether the log's end was seen in the hour around the time."""
        return self.seen.span_ms is not None and self.seen.span_ms <= HOUR_MS

    @property
    def doubt(self) -> str | None:
        """Return why a person has to choose the rule; None if evidence decided, or nothing speaks against the cut."""
        is_majority = self.rule == "majority"
        doubts = (
            (self.undecided is not None, f"the cut is undecided: {self.undecided}"),
            (
                is_majority and self.later > max(FEW_RECORDS, MOST_SHARE * self.between) and self.differs,
                f"{self.later} of the {self.between} records from offset {self.first} on are of the time or later",
            ),
            (
                is_majority and self.earlier > 0 and self.differs,
                f"{counted(self.earlier)} stamped before the time would be left out, "
                f"from offset {self.first_left_out} on",
            ),
            (self.backfilled, "most records between both ends are over an hour older than those in front of them"),
        )
        return None if self.is_decided else next((why for applies, why in doubts if applies), None)

    def text(self, name: str) -> str:
        """Say in one line where the partition ends, what lies on the wrong side, and how far the log is known."""
        kafka = "Kafka's rule" if self.rule == "majority" else "majority"
        other = self.first if self.rule == "majority" else self.majority
        more = "at least " if self.at_least else ""
        parts = [f"{name}  ends before offset {self.end} ({kafka}: {other})."]
        if self.later:
            which = f"offset {self.first}"
            stamp = "" if self.first_timestamp is None else f", stamped {time_text(self.first_timestamp)}"
            included = f"{more}{counted(self.later)} stamped {time_text(self.at)} or later"
            verb = "is" if self.later == 1 else "are"
            parts.append(f"{included} {verb} included ({'' if self.later == 1 else 'the first is '}{which}{stamp});")
        else:
            parts.append(f"no record stamped {time_text(self.at)} or later is included;")
        verb = "is" if self.earlier == 1 else "are"
        place = "" if self.first_left_out is None else f" (from offset {self.first_left_out} on)"
        parts.append(f"{more}{self.earlier} stamped before it {verb} left out{place}.")
        if self.undecided is not None:
            parts.append(f"Undecided: {self.undecided}.")
        if (seen := self.seen.text()) is not None:
            parts.append(seen)
        return " ".join(parts)

    def document(self, partition: int) -> dict[str, object]:
        return {"partition": partition, **msgspec.to_builtins(self), "doubt": self.doubt}


def counted(num_records: int) -> str:
    return f"{num_records} record{'' if num_records == 1 else 's'}"


# Offsets, counts or timestamps by row.
Numbers = npt.NDArray[np.int64]


class _Passed(NamedTuple):
    offset: int
    later: int
    earlier: int
    num_records: int
    old: int
    """Records from before the time that are over an hour older than one of those in front of them."""
    latest: int
    """The greatest timestamp, at or after the time; -1 without such a record."""


class _Behind(NamedTuple):
    first: int | None = None
    earliest: int = END

    def and_rows(self, offsets: Numbers, stamps: Numbers) -> "_Behind":
        rows = np.flatnonzero(stamps < END)
        if not len(rows):
            return self
        first = int(offsets[rows[0]]) if self.first is None else self.first
        return _Behind(first, min(self.earliest, int(stamps.min())))


class CutTally:
    """Counts the records of a partition on both sides of a time, in offset order, and finds the cut in a range."""

    def __init__(self, at: int, start: int, end: int) -> None:
        """`at` is the time, ms since the epoch; the cut is sought in offsets [start, end]."""
        self.at, self.start, self.end = at, start, end
        # The first record of the time or later, inside the range or not.
        self.first: _Passed | None = None
        self.first_timestamp: int | None = None
        self.best: _Passed | None = None
        # True if the cut is settled, or the range is over.
        self.is_done = False
        self.passed = _Passed(0, 0, 0, 0, 0, -1)
        self.behind_first = self.behind_best = _Behind()
        self._sum = self._lowest = 0
        # The greatest timestamp from before the time so far.
        self._newest = -1

    def side(self, span: TimeBounded) -> int | None:
        """Return 1 if all records are of the time or later, -1 if all are from before, 0 without timestamps."""
        if span.max_timestamp < 0:
            return 0
        if span.min_timestamp >= self.at:
            return 1
        return -1 if span.min_timestamp >= 0 and span.max_timestamp < self.at else None

    @property
    def takes_candidate(self) -> bool:
        """Return whether a record of the time or later would be the first, or the best candidate, if it came next."""
        return self.first is None or (not self.is_done and (self.best is None or self._sum < self._lowest))

    def records(self, offsets: Numbers, timestamps: Numbers) -> None:
        sides = np.where(timestamps >= self.at, 1, np.where(timestamps >= 0, -1, 0))
        self._count(offsets, sides, np.ones_like(offsets), timestamps, timestamps)

    def whole(self, first_offset: int, num_records: int, side: int, span: TimeBounded) -> None:
        columns = (first_offset, side, num_records, span.min_timestamp, span.max_timestamp)
        self._count(*(np.array([value], np.int64) for value in columns))

    def unknown(self, first_offset: int, num_records: int) -> None:
        """Pass a block that may hold records of both sides, without knowing which: it may begin behind the cut."""
        columns = (first_offset, 0, num_records, -1, -1)
        self._count(*(np.array([value], np.int64) for value in columns), is_candidate=True)

    def finish(self) -> None:
        """End the range: the cut is its end, if the sum is lowest there."""
        if not self.is_done and (self.best is None or self._sum < self._lowest):
            self.best, self.behind_best = self.passed._replace(offset=self.end), _Behind()
        self.is_done = True

    def _count(
        self,
        offsets: Numbers,
        sides: Numbers,
        counts: Numbers,
        low: Numbers,
        high: Numbers,
        *,
        is_candidate: bool = False,
    ) -> None:
        inside = len(offsets) if self.is_done else int(np.searchsorted(offsets, self.end))
        if inside < len(offsets) and not self.is_done:
            columns = (offsets, sides, counts, low, high)
            if inside:
                self._count(*(column[:inside] for column in columns), is_candidate=is_candidate)
            self.finish()
            self._count(*(column[inside:] for column in columns), is_candidate=is_candidate)
            return
        is_later, is_earlier = sides > 0, sides < 0
        newest = np.maximum.accumulate(np.concatenate(([self._newest], np.where(is_earlier, high, -1))))
        latest = np.maximum.accumulate(np.concatenate(([self.passed.latest], np.where(is_later, high, -1))))
        old = np.where(is_earlier & (high < newest[:-1] - HOUR_MS), counts, 0)
        summed = (np.where(is_later, counts, 0), np.where(is_earlier, counts, 0), counts, old)
        before = [
            start + np.concatenate(([0], np.cumsum(column)))
            for start, column in zip(self.passed[1:5], summed, strict=True)
        ]
        sums = self._sum + np.concatenate(([0], np.cumsum(sides * counts)))
        stamps = np.where(is_earlier, low, END)

        def passed(row: int, offset: int) -> _Passed:
            later, earlier, num_records, older = (int(column[row]) for column in before)
            return _Passed(offset, later, earlier, num_records, older, int(latest[row]))

        rows = np.flatnonzero(is_later | is_candidate)
        if self.first is None and len(rows):
            row = int(rows[0])
            self.first = passed(row, int(offsets[row]))
            self.first_timestamp = int(low[row]) if counts[row] == 1 and not is_candidate else None
            self.behind_first = _Behind().and_rows(offsets[row:], stamps[row:])
        elif self.first is not None:
            self.behind_first = self.behind_first.and_rows(offsets, stamps)
        if self.best is not None:
            self.behind_best = self.behind_best.and_rows(offsets, stamps)
        if not self.is_done:
            best = self._best(rows[offsets[rows] >= self.start], sums)
            if best is not None:
                self.best = passed(best, int(offsets[best]))
                self.behind_best = _Behind().and_rows(offsets[best:], stamps[best:])
        self.passed = passed(len(offsets), 0)
        self._sum, self._newest = int(sums[-1]), int(newest[-1])

    def _best(self, rows: Numbers, sums: Numbers) -> int | None:
        if not len(rows) and self.best is None:
            return None
        here = sums[rows]
        start = END if self.best is None else self._lowest
        lowest = np.minimum.accumulate(np.concatenate(([start], here)))
        # The sum is highest behind a record of the time or later, which is a candidate itself.
        settled = np.flatnonzero(sums[rows + 1] >= lowest[1:] + SETTLED)
        if len(settled):
            here, self.is_done = here[: settled[0] + 1], True
        if not len(here) or here.min() >= start:
            return None
        self._lowest = int(here.min())
        return int(rows[int(here.argmin())])


async def find_cut(partition: ArchivedPartition, before: BeforeTime, seen: EndsAround) -> Cut:
    """Return where a partition ends as of a time; `seen` is the end of its log around that time, if known."""
    # Blocks with records of both sides are read until the budget is used; a damaged one leaves the cut undecided.
    async with before.budget.limit:
        return await across_rewrites(partition, lambda newest: _Walk(newest, before, seen).cut())


class _Walk:
    def __init__(self, partition: ArchivedPartition, before: BeforeTime, seen: EndsAround) -> None:
        self._partition = partition
        self._before = before
        self._seen = seen
        first, last = partition.start_offset, partition.next_offset
        start, end = first, last
        if seen.lower is not None:  # without it, the topic may have been mirrored later: then timestamps alone count
            start = min(max(seen.lower, first), last)
            end = last if seen.upper is None else min(max(seen.upper, first), last)
        self._tally = CutTally(before.timestamp, min(start, end), max(start, end))
        self._left = PARTITION_BYTES
        self._left_in_front = FRONT_BYTES
        self._at_least = False
        self._undecided: str | None = None

    async def cut(self) -> Cut:
        partition, tally, before = self._partition, self._tally, self._before
        await self._over(partition.spans)
        tally.finish()
        best, first, passed = tally.best, tally.first, tally.passed
        assert best is not None
        rule: Rule = before.rule or "majority"
        kafka = self._clipped(partition.next_offset if first is None else first.offset)
        majority = self._clipped(best.offset)
        front = first or passed
        if rule == "first":
            best = front
        behind = tally.behind_best if rule == "majority" else tally.behind_first
        old, earlier = best.old - front.old, best.earlier - front.earlier
        upper = self._seen.upper
        return Cut(
            at=before.timestamp,
            end=majority if rule == "majority" else kafka,
            first=kafka,
            majority=majority,
            rule=rule,
            is_chosen=before.rule is not None,
            later=best.later,
            earlier=passed.earlier - best.earlier,
            at_least=self._at_least,
            first_timestamp=tally.first_timestamp,
            latest=best.latest if best.later else None,
            earliest=None if behind.first is None else behind.earliest,
            first_left_out=behind.first,
            between=max(0, best.num_records - front.num_records),
            backfilled=2 * old > earlier,
            undecided=self._undecided,
            seen=self._seen,
            lacks=max(0, (self._seen.lower or 0) - partition.next_offset),
            reaches=first is not None
            if self._seen.lower is None
            else upper is not None and upper <= partition.next_offset,
        )

    def _clipped(self, offset: int) -> int:
        return min(max(offset, self._partition.start_offset), self._partition.next_offset)

    async def _over(self, spans: Iterable[Span]) -> None:
        for span in spans:
            if span.next_offset <= self._partition.floor or not span.num_records:
                continue
            if isinstance(span, CatalogReference):
                if not self._counted(span, span.start_offset, span.next_offset, is_exact=False):
                    await self._over((await self._partition.catalog(span)).entries)
            elif isinstance(span, ChunkEntry) and not self._counted(span, span.first_offset, span.next_offset):
                await self._chunk(span)

    def _counted(self, span: Span | BlockEntry, first_offset: int, next_offset: int, *, is_exact: bool = True) -> bool:
        tally = self._tally
        side = tally.side(span)
        if side is None:
            if not (tally.is_done and tally.first is not None and is_exact):
                return False
            # Behind the end no block is read, except for Kafka's answer: at least one record is on each side.
            self._at_least = True
            if span.min_timestamp >= 0:
                tally.whole(first_offset, 1, -1, span)
            return True
        if not tally.is_done and self._is_cut(side, first_offset, next_offset):
            return False
        if side == 1 and not is_exact and tally.takes_candidate:
            return False
        tally.whole(first_offset, span.num_records, side, span)
        return True

    def _is_cut(self, side: int, first_offset: int, next_offset: int) -> bool:
        bound = self._tally.start if side == 1 else self._tally.end
        return side != 0 and first_offset < bound < next_offset

    async def _chunk(self, entry: ChunkEntry) -> None:
        try:
            chunk = await self._partition.chunk(entry)
        except Damaged as error:
            await self._unreadable(entry.first_offset, entry.num_records, error)
            return
        blocks = chunk.index.blocks
        opened = [number for number, block in enumerate(blocks) if not self._is_one_sided(block)]
        groups = {group.start: group for group in range_groups(blocks, opened, RANGE_BYTES)}
        stored: dict[int, StoredBlock] = {}
        for number, block in enumerate(blocks):
            if self._counted(block, block.first_record_offset, block.last_record_offset + 1):
                continue
            if chunk.index.record_format == "text":  # it holds no timestamps to split the block by
                self._tally.unknown(block.first_record_offset, block.num_records)
            elif number in groups and not self._may_read(blocks[number : groups[number].stop]):
                self._pass_over(block)
            else:
                await self._read(chunk, number, groups, stored)

    def _is_one_sided(self, block: BlockEntry) -> bool:
        side, first, end = self._tally.side(block), block.first_record_offset, block.last_record_offset + 1
        return side is not None and not self._is_cut(side, first, end)

    def _may_read(self, blocks: Sequence[BlockEntry]) -> bool:
        num_bytes = sum(block.byte_length for block in blocks)
        is_in_front = blocks[-1].last_record_offset < self._tally.start and self._tally.first is not None
        if num_bytes > (self._left_in_front if is_in_front else self._left):
            return False
        if not self._before.budget.take(num_bytes):
            return False
        if is_in_front:
            self._left_in_front -= num_bytes
        else:
            self._left -= num_bytes
        return True

    def _pass_over(self, block: BlockEntry) -> None:
        self._at_least = True
        self._tally.unknown(block.first_record_offset, block.num_records)
        if block.last_record_offset >= self._tally.start:
            self._undecided = "it takes more blocks than one look may read (1 GiB a partition, 20 GiB a command)"
            self._tally.is_done = True

    async def _read(
        self, chunk: Chunk, number: int, groups: Mapping[int, range], stored: dict[int, StoredBlock]
    ) -> None:
        block = chunk.index.blocks[number]
        try:
            if number in groups:
                stored.update(
                    (each.number, each) for each in await fetch_blocks(self._partition, chunk, groups[number])
                )
            batch = await asyncio.to_thread(decoded, decode_block, stored.pop(number), self._partition.max_block_bytes)
        except (*Damaged, KeyError) as error:
            await self._unreadable(block.first_record_offset, block.num_records, error)
            return
        self._tally.records(batch.column("offset").to_numpy(), batch.column("timestamp").to_numpy())

    async def _unreadable(self, first_offset: int, num_records: int, error: Exception) -> None:
        """Count what is damaged as unknown; raises if it was rewritten in the meantime, to begin again."""
        if await self._partition.newer() is not None:
            raise error
        self._undecided = "a block that would decide is damaged"
        self._tally.unknown(first_offset, num_records)


def cut_lines(cuts: Sequence[tuple[str, int, Cut]]) -> list[str]:
    """Say which partitions end elsewhere than a person may expect: by topic, the ones that differ most first."""
    lines = []
    for topic in dict.fromkeys(topic for topic, _, _ in cuts):
        mine = [(number, cut) for name, number, cut in cuts if name == topic]
        told = [(number, cut) for number, cut in mine if cut.differs or cut.undecided or cut.doubt]
        told.sort(key=lambda each: -(each[1].later + each[1].earlier))
        lines += [cut.text(f"{topic}:{number}") for number, cut in told[:PARTITIONS_SHOWN]]
        if len(told) > PARTITIONS_SHOWN:
            lines.append(
                f"{topic}  {len(told)} of {len(mine)} partitions have records on the wrong side of the time; "
                "--json shows all of them"
            )
        lines += [
            f"{topic}:{number}  the archive lacks {cut.lacks} offsets from before {time_text(cut.at)}"
            for number, cut in mine
            if cut.lacks
        ]
    return lines


def behind_note(partition: ArchivedPartition, at: int, found: int, end: int = END, outcome: str = "") -> str | None:
    """Return a sentence on records from before a time behind `found`, the first of the time, and their `outcome`."""
    # Only bounds that are loaded are looked at.
    spans = [span for span in partition.spans if found <= span.start_offset < end]
    stamped = [span for span in spans if 0 <= span.min_timestamp < at]
    # If a span reaches the time, at least one of its records is from before it.
    count = sum(span.num_records if span.max_timestamp < at else 1 for span in stamped)
    is_near = all(at - span.min_timestamp <= MINUTE_MS for span in stamped)
    if not count or (count <= FEW_RECORDS and is_near):
        return None
    return (
        f"{partition.topic}:{partition.partition}  offset {found} is the first record stamped {time_text(at)} or "
        f"later: at least {counted(count)} stamped before that {'is' if count == 1 else 'are'} behind it{outcome}"
    )


def refuse_doubtful(cuts: Sequence[tuple[str, int, Cut]], remedy: str = CHOOSE_BY_ARGUMENT) -> None:
    """Raise CutUndecided if a person has to choose by which rule a partition ends, and did not."""
    doubtful = [each for each in cuts if each[2].doubt is not None and not each[2].is_chosen]
    if not doubtful:
        return
    topic, number, cut = doubtful[0]
    more = f", and {len(doubtful) - 1} more partitions" if len(doubtful) > 1 else ""
    raise CutUndecided(
        f"it is not certain which records of {topic}:{number}{more} are from before {time_text(cut.at)}",
        why=f"{cut.doubt}; by majority it ends before offset {cut.majority}, by Kafka's rule before {cut.first}",
        remedy=remedy,
    )
