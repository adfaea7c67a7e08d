"""Positions as people write them, and the offsets they mean in one partition."""

import asyncio
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from blockgz.archive.blocks import read_block
from blockgz.archive.partition import ArchivedPartition, Chunk, across_rewrites
from blockgz.errors import UsageError
from blockgz.units import timestamp_text
from index_format.marker import block_for_time

TIME_FORMS = (
    "a time (2026-11-20T12:00:00Z, 2026-11-20, 05:27 for today, now), "
    "a duration before now (-1h), or @ and 10 or 13 digits of Unix time"
)
FORMS = f"an offset (12345), earliest, latest, +N, -N, {TIME_FORMS}"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION = re.compile(r"-((?:[0-9]{1,12}(?:ms|s|m|h|d|w))+)")
_DURATION_PART = re.compile(r"([0-9]+)(ms|s|m|h|d|w)")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9].*)?")
_CLOCK = re.compile(r"[0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?", re.ASCII)
_MAX_OFFSET = 2**63 - 1
# More than the calendar has; times of 64 bits reach further.
_MAX_DURATION_MS = 10_000 * 366 * _UNITS_MS["d"]

# `majority` leaves the fewest records on the wrong side; `first` is Kafka's: the first record of the time or later.
Rule = Literal["majority", "first"]


@dataclass(frozen=True)
class AtOffset:
    offset: int


@dataclass(frozen=True)
class AtTime:
    """The first record, in offset order, whose timestamp is at or after this one (ms since the epoch)."""

    timestamp: int


@dataclass(frozen=True)
class AfterStart:
    """`+N`: N offsets above the start (of the partition for --from, of the range for --to)."""

    count: int


@dataclass(frozen=True)
class BeforeEnd:
    """`-N`: N offsets below the end of the partition."""

    count: int


@dataclass
class Budget:
    """Stored bytes of blocks that one command may still read for its cuts, or to count records by time."""

    left: int = 20 * 2**30
    used: int = 0
    limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(8))
    """For partitions at once."""

    def take(self, num_bytes: int) -> bool:
        """Return whether that many bytes may be read, and count them if so."""
        if num_bytes > self.left:
            return False
        self.left -= num_bytes
        self.used += num_bytes
        return True


@dataclass(frozen=True)
class BeforeTime:
    """The end of everything before a time, ms since the epoch: `--at`. Without a `rule`, nobody chose one: majority."""

    timestamp: int
    rule: Rule | None = None
    budget: Budget = field(default_factory=Budget, compare=False, repr=False)


Position = AtOffset | AtTime | AfterStart | BeforeEnd
End = Position | BeforeTime
# The start and end of a partition's range; None means the archive's own.
Ends = tuple[Position | None, End | None]
# The first archived position, and the one after the last archived record.
AT_START, AT_END = AfterStart(0), BeforeEnd(0)


class OffsetRange(NamedTuple):
    """Offsets [start, end); empty where start == end."""

    start: int
    end: int


def parse_position(text: str, now: int, zone: tzinfo | None = None) -> Position:
    """Return the position that `text` names, `now` in ms, in `zone` or UTC; raises UsageError with all forms."""
    words: dict[str, Position] = {"earliest": AT_START, "latest": AT_END}
    position = words.get(text) or _parse_number(text) or _parse_time(text, now, zone)
    if position is None:
        raise _unknown(text, "a position", FORMS, now, zone)
    return position


def parse_time(text: str, now: int, zone: tzinfo | None = None) -> AtTime:
    """Return the time that `text` names, as parse_position does; raises UsageError for other positions."""
    time = _parse_time(text, now, zone)
    if time is None:
        raise _unknown(text, "a time", TIME_FORMS, now, zone)
    return time


def _unknown(text: str, what: str, forms: str, now: int, zone: tzinfo | None) -> UsageError:
    why, remedy = "it has none of the known forms", f"write {forms}"
    if text in ("today", "yesterday"):
        day = _here(now, zone).date() - timedelta(days=text == "yesterday")
        why, remedy = "it is a day and not a time", f"write {day} for its midnight, or a duration before now: -1d"
    elif text in ("earliest", "latest"):
        why, remedy = "it is a position", "leave the option out to set no bound, or write now"
    elif re.fullmatch(r"[0-9]{10}|[0-9]{13}", text, re.ASCII):
        why, remedy = "Unix time needs a sign before it", f"write @{text}"
    return UsageError(f"{text[:80]!r} is not {what}", why=why, remedy=remedy)


def position_text(text: str, position: Position | None, zone: tzinfo | None) -> str:
    """Return what a job stores of a position: a time that a zone or today decides becomes RFC 3339."""
    # All other texts stay as they were written: jobs are found by them.
    if not isinstance(position, AtTime) or text[:1] in ("@", "-"):
        return text
    is_naive = zone is not None and _DATE.fullmatch(text) and datetime.fromisoformat(text.upper()).tzinfo is None
    return timestamp_text(position.timestamp) if is_naive or not _DATE.fullmatch(text) else text


def position_of(place: int | str | datetime, now: int) -> Position:
    """Return a position, as parse_position does, from an offset (-N as well) or time that may be a value."""
    return _at(place) if isinstance(place, datetime) else parse_position(str(place), now)


def time_of(time: str | datetime, now: int) -> AtTime:
    """Return a time, as parse_time does, that may be a value already."""
    return _at(time) if isinstance(time, datetime) else parse_time(time, now)


def parse_kcat_offset(text: str) -> tuple[Position | None, Position | None]:
    """Return the start or the end of a range that kcat's `-o` means; raises UsageError."""
    words: dict[str, Position] = {"beginning": AT_START, "end": AT_END}
    if match := re.fullmatch(r"([se])@([0-9]{1,15})", text, re.ASCII):
        time = AtTime(int(match[2]))
        return (time, None) if match[1] == "s" else (None, time)
    number = _parse_number(text)
    position = words.get(text) or (None if isinstance(number, AfterStart) else number)
    if position is None:
        raise UsageError(
            f"-o {text[:80]} is not an offset",
            why="it has none of kcat's forms",
            remedy="write beginning, end, N, -N, s@MILLISECONDS or e@MILLISECONDS, or use --from and --to",
        )
    return position, None


def _parse_number(text: str) -> AtOffset | AfterStart | BeforeEnd | None:
    found = re.fullmatch(r"([+-]?)([0-9]{1,19})", text, re.ASCII)
    if found is None or int(found[2]) > _MAX_OFFSET:
        return None
    number = int(found[2])
    match found[1]:
        case "+":
            return AfterStart(number)
        case "-":
            return BeforeEnd(number)
    return AtOffset(number)


def _parse_time(text: str, now: int, zone: tzinfo | None) -> AtTime | None:
    if text == "now":
        return AtTime(now)
    if match := re.fullmatch(r"@([0-9]{10}|[0-9]{13})", text, re.ASCII):
        return AtTime(int(match[1]) * (1000 if len(match[1]) == 10 else 1))
    if match := _DURATION.fullmatch(text):
        before = sum(int(count) * _UNITS_MS[unit] for count, unit in _DURATION_PART.findall(match[1]))
        return AtTime(now - before) if before <= _MAX_DURATION_MS else None
    is_clock = _CLOCK.fullmatch(text) is not None
    if not is_clock and not _DATE.fullmatch(text):
        return None
    here = _here(now, zone)
    try:
        time = datetime.fromisoformat(f"{here.date()}T{text}" if is_clock else text.upper())
    except ValueError:
        return None
    found = _at(_once(text, time, zone))
    if is_clock and found.timestamp > now:
        raise UsageError(
            f"{text} of today is still to come",
            why=f"it is {here:%H:%M} now ({zone or UTC})",
            remedy=f"write {here.date() - timedelta(days=1)}T{text} for yesterday's, or {here.date()}T{text}",
        )
    return found


def _here(now: int, zone: tzinfo | None) -> datetime:
    return (_EPOCH + now * _MILLISECOND).astimezone(zone or UTC)


def _once(text: str, time: datetime, zone: tzinfo | None) -> datetime:
    """Return a time in its zone; raises UsageError for a local time that a change of the clocks doubles or skips."""
    if time.tzinfo is not None or zone is None:
        return time
    first, second = (time.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    before, after = first.utcoffset(), second.utcoffset()
    if before != after and before is not None and after is not None:
        either = " or ".join(sorted(timestamp_text(_at(each).timestamp) for each in (first, second)))
        raise UsageError(
            f"{text[:80]!r} {'is two times' if before > after else 'does not exist'} in {zone}",
            why=f"the clocks are changed there; it may mean {either}",
            remedy=f"write {either}",
        )
    return first


def _at(time: datetime) -> AtTime:
    aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time
    return AtTime(-((_EPOCH - aware) // _MILLISECOND))


async def resolve_position(position: Position, partition: ArchivedPartition, range_start: int | None = None) -> int:
    """Return the offset that a position means within a partition; `+N` counts from `range_start`, if given."""
    first, end = partition.start_offset, partition.next_offset
    match position:
        case AtOffset(offset):
            wanted = offset
        case AtTime(timestamp):
            wanted = await seek_time(partition, timestamp)
        case AfterStart(count):
            wanted = (first if range_start is None else range_start) + count
        case BeforeEnd(count):
            wanted = end - count
    return min(max(wanted, first), end)


async def resolve_range(partition: ArchivedPartition, start: Position | None, end: Position | None) -> OffsetRange:
    """Return the offsets from `start` (None: the beginning) to `end` (None: the end), excluded."""
    first = await resolve_position(start or AT_START, partition)
    last = await resolve_position(end or AT_END, partition, first)
    return OffsetRange(first, max(first, last))


async def seek_time(partition: ArchivedPartition, timestamp: int) -> int:
    """Return the first offset whose record is at or after `timestamp` (ms); next_offset if none is."""
    # Format `text` holds no timestamps: the answer is the first offset of a block. One catalog per level is read.
    return await across_rewrites(partition, lambda newest: _seek_time(newest, timestamp))


async def _seek_time(partition: ArchivedPartition, timestamp: int) -> int:
    place = await block_at_time(partition, timestamp)
    if place is None:
        return partition.next_offset
    chunk, number = place
    block = chunk.index.blocks[number]
    if block.min_timestamp >= timestamp:
        return block.first_record_offset
    batch = await read_block(partition, chunk, number)
    return int(batch.column("offset")[first_row_since(batch, timestamp)].as_py())


def first_row_since(batch: pa.RecordBatch, timestamp: int) -> int:
    """Return the first row at or after `timestamp` (ms); 0 if none is, as in a block that holds no timestamps."""
    return int(np.argmax(batch.column("timestamp").to_numpy() >= timestamp))


async def block_at_time(partition: ArchivedPartition, timestamp: int) -> tuple[Chunk, int] | None:
    """Return the first block with a record at or after `timestamp` (ms), by its number; None if there is none."""
    entry = await partition.chunk_for_time(timestamp)
    if entry is None:
        return None
    chunk = await partition.chunk(entry)
    number = block_for_time(chunk.index.blocks, timestamp)
    assert number is not None, "the index was checked against its entry"
    return chunk, number
