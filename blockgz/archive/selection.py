"""A part of one partition, pinned to one version of its marker, and the selected records in it."""

import asyncio
import csv
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
import pyarrow as pa

from blockgz.archive.archive import ArchiveReader, TopicPartitions
from blockgz.archive.blocks import READ_AHEAD, ReadAhead, StoredBlock, decoded, readable_chunks, stored_blocks, worked
from blockgz.archive.cuts import PARTITIONS_SHOWN, Cut, behind_note, find_cut
from blockgz.archive.group_tables import EndsAround, ends_around
from blockgz.archive.partition import (
    END,
    MOST_REWRITES,
    STOP,
    ArchivedPartition,
    Chunk,
    Damaged,
    DamagePolicy,
    LostRange,
    SkipDamage,
    Unreadable,
)
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
    parse_position,
    resolve_position,
    resolve_range,
)
from blockgz.errors import NotInArchive, UsageError
from blockgz.record_filter import Condition, RecordFilter
from blockgz.units import timestamp_text
from index_format.blocks import decode_parts
from index_format.keys import TopicFolder, parse_topic_folder
from index_format.marker import ChunkCatalog, ChunkEntry, ReferenceCatalog, TimeBounded
from index_format.objects import ERASED, disjoint


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

    def ruled(self, rule: Rule | None) -> "Positions":
        """Return the same positions with a rule for their end as of a time."""
        if not isinstance(self.end, BeforeTime) or rule is None:
            return self
        return replace(self, end=replace(self.end, rule=rule), asked=self.asked[:2] if rule == "first" else self.asked)


def positions_before(start: Position | None, end: BeforeTime, asked: tuple[str, ...]) -> Positions:
    """Return what `--at` means. `asked` gets the rule, unless it is the one of jobs that had none."""
    return Positions(start, end, asked=asked if end.rule == "first" else (*asked, "majority"))


async def select(
    archive: ArchiveReader, topic: str, partitions: Sequence[int] | None, positions: Positions
) -> list[Selection]:
    """Return the selected offsets in the named partitions, or in all, each as of one version of its marker."""
    return await resolved(archive, await archive.open_topic(topic, partitions), positions)


def cuts_of(chosen: Iterable[Selection]) -> tuple[tuple[str, int, Cut], ...]:
    """Return by topic and partition how ends as of a time were found."""
    return tuple((each.partition.topic, each.partition.partition, each.cut) for each in chosen if each.cut is not None)


async def resolved(
    archive: ArchiveReader, partitions: Sequence[ArchivedPartition], positions: Positions
) -> list[Selection]:
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
    archive: ArchiveReader, partitions: Sequence[ArchivedPartition], positions: Positions
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
    """Yield the selected records as `scan` does; raises UsageError for timestamps that the archive does not have."""
    # Blocks without such a record, by their timestamps and key filters, are not read.
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
    """Yield the records of [start_offset, end_offset) in order, as batches that are small, or of a single record.

    What `wanted` refuses of catalogs, chunks and blocks is not read. `on_damage` meets what is damaged or pruned in its
    place; by default the scan ends there with a FormatError, ObjectMissing or NotInArchive. Close it with `aclosing`.
    """
    at, rewrites = start_offset, 0
    while True:
        if at < min(partition.floor, end_offset):
            on_damage.meet(_pruned(partition, at, min(partition.floor, end_offset)))
            at = partition.floor
        # Objects rewritten since the marker was read are read through the current one, from the same offset on.
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
        return deque(decoded(decode_parts, block, partition.max_block_bytes))

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
    """Return which of [start, end) were erased, in order and apart, as far as catalogs and indexes are whole."""
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
    return [OffsetRange(*each) for each in disjoint(ranges)]


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


MAX_FILE_BYTES = 64 * 1024 * 1024
CSV_FORMS = (
    "topic,partition,offset",
    "group,topic,partition,offset",
    "a header line with topic, partition, and from or to or both",
)
REMEDY = (
    f"write CSV lines {CSV_FORMS[0]} or {CSV_FORMS[1]}, or {CSV_FORMS[2]}; "
    'or JSON {"partitions":[{"topic":"orders","partition":3,"from":17,"to":"latest"}]}'
)


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    partition: int | str
    """A text in CSV."""
    start: int | str | None = msgspec.field(name="from", default=None)
    end: int | str | None = msgspec.field(name="to", default=None)
    offset: int | None = None


class _Document(msgspec.Struct):
    partitions: list[_Row]


def parse_offset_file(body: bytes, topic: str, now: int, zone: tzinfo | None = None) -> Mapping[int, Ends]:
    """Return the ends of each partition of `topic` that the file names; lines of other topics do not matter.

    `now` is ms since the epoch, `zone` that of times without one, UTC if None. Raises UsageError with the line if the
    file cannot be understood, names a partition twice, or names none of the topic.
    """
    if len(body) > MAX_FILE_BYTES:
        raise UsageError(f"the positions file has {len(body)} bytes", why=f"at most {MAX_FILE_BYTES} are allowed")
    found: dict[int, Ends] = {}
    rows = _json_rows(body) if body.lstrip()[:1] in (b"{", b"[") else _csv_rows(body)
    for number, row in rows:
        if row.topic != topic:
            continue
        partition = _partition(number, str(row.partition))
        if partition in found:
            raise _unusable(number, f"partition {partition} appears twice")
        texts = (row.offset if row.start is None else row.start, row.end)
        start, end = (None if text is None else _position(number, str(text), now, zone) for text in texts)
        found[partition] = (start, end)
    if not found:
        raise UsageError(f"the positions file names no partition of {topic}", why="no line has this topic")
    return found


def _partition(number: int, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise _unusable(number, f"{text[:40]!r} is not a partition")
    return int(text)


def _position(number: int, text: str, now: int, zone: tzinfo | None) -> Position:
    try:
        return parse_position(text, now, zone)
    except UsageError as error:
        raise _unusable(number, error.what) from error


def _csv_rows(body: bytes) -> Iterator[tuple[int, _Row]]:
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(body.decode("utf-8-sig").splitlines())]
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError("the positions file is neither CSV nor JSON", why=str(error), remedy=REMEDY) from error
    numbered = [(number, row) for number, row in enumerate(rows, 1) if any(row)]
    header = [name.lower() for name in numbered[0][1]] if numbered else []
    if "topic" in header and "partition" in header:
        yield from _with_header(header, numbered[1:])
        return
    for number, row in numbered:
        if len(row) not in (3, 4):
            raise _unusable(number, f"it has {len(row)} columns")
        topic, partition, offset = row[-3:]
        yield number, _Row(topic, partition, offset)


def _with_header(header: Sequence[str], numbered: Sequence[tuple[int, Sequence[str]]]) -> Iterator[tuple[int, _Row]]:
    starts = [name for name in ("from", "offset") if name in header]
    if not starts and "to" not in header:
        raise _unusable(1, "the header has neither from nor to")
    for number, row in numbered:
        if len(row) != len(header):
            raise _unusable(number, f"it has {len(row)} columns, the header {len(header)}")
        cells: dict[str, str] = dict(zip(header, row, strict=True))
        start = cells[starts[0]] if starts else ""
        yield number, _Row(cells["topic"], cells["partition"], start or None, cells.get("to") or None)


def _json_rows(body: bytes) -> Iterator[tuple[int, _Row]]:
    try:
        shape: Any = _Document if body.lstrip().startswith(b"{") else list[_Row]
        decoded = msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError as error:
        raise UsageError("the positions file is not valid JSON of positions", why=str(error), remedy=REMEDY) from error
    return enumerate(decoded.partitions if isinstance(decoded, _Document) else decoded, 1)


def _unusable(number: int, why: str) -> UsageError:
    return UsageError(f"line {number} of the positions file cannot be used", why=why, remedy=REMEDY)


STOPS, SKIPS = "stop", "skip"


@dataclass(frozen=True)
class SelectionRequest:
    """The selected records: positions, a file with some for single partitions, partitions, and a filter.

    `now` is what durations before now count from, ms since the epoch; `zone` is that of times in the file that name
    none, UTC if None.
    """

    positions: Positions = field(default_factory=Positions)
    offset_file: bytes | None = None
    partitions: str | None = None
    filter: RecordFilter = field(default_factory=RecordFilter)
    now: int = 0
    zone: tzinfo | None = None

    async def select(self, archive: ArchiveReader, topic: TopicPartitions) -> list[Selection]:
        """Return the selected offsets of a topic; raises UsageError, NotInArchive, or what opening raises."""
        return await self.resolve(archive, topic, await self.open(archive, topic))

    async def open(self, archive: ArchiveReader, topic: TopicPartitions) -> tuple[ArchivedPartition, ...]:
        """Open the selected partitions of a topic; raises as `select`."""
        wanted = topic.narrow(self.partitions)
        return await archive.open_topic(wanted.topic, wanted.partitions)

    async def resolve(
        self, archive: ArchiveReader, topic: TopicPartitions, opened: Sequence[ArchivedPartition]
    ) -> list[Selection]:
        """Return the selected offsets in the partitions that `open` returned; raises as `select`."""
        positions = self.positions
        if self.offset_file is not None:
            plain = parse_topic_folder(topic.topic).topic
            named = parse_offset_file(self.offset_file, plain, self.now, self.zone)
            positions = replace(positions, of_partitions=named)
        return await resolved(archive, opened, positions)

    @property
    def asked(self) -> tuple[str, ...]:
        """Everything that decides which offsets and records are selected, as it was written, except partitions."""
        zone = "" if self.zone is None else f" in {self.zone}"
        file = () if self.offset_file is None else (f"positions {hashlib.sha256(self.offset_file).hexdigest()}{zone}",)
        only = () if self.filter.passes_all else (f"records {self.filter}",)
        return (*self.positions.asked, *file, *only)

    @property
    def narrows(self) -> bool:
        """Return whether anything but partitions is chosen."""
        return self.positions != Positions() or self.offset_file is not None or not self.filter.passes_all

    @property
    def ends(self) -> bool:
        """Return whether the selection has an end before the archive's."""
        return self.positions.end is not None or self.filter.until is not None

    def ruled(self, rule: Rule | None) -> "SelectionRequest":
        return replace(self, positions=self.positions.ruled(rule))

    def narrow(self, *conditions: Condition) -> "SelectionRequest":
        return replace(self, filter=replace(self.filter, conditions=(*self.filter.conditions, *conditions)))


# Records of one partition, in offset order; never empty.
SelectedBatch = tuple[ArchivedPartition, pa.RecordBatch]


async def selected_batches(
    chosen: Iterable[Selection],
    record_filter: RecordFilter,
    limit: int | None,
    damage: "DamagePolicies",
    ahead: ReadAhead = READ_AHEAD,
) -> AsyncGenerator[SelectedBatch]:
    """Yield at most `limit` selected records, partition after partition, as `selected` does; close it too."""
    left = limit
    for each in chosen:
        if left == 0:
            return
        async with aclosing(selected(each, record_filter, damage.of(each.partition), ahead)) as batches:
            async for batch in batches:
                part = batch if left is None else batch.slice(0, left)
                left = None if left is None else left - part.num_rows
                yield each.partition, part
                del batch, part
                if left == 0:
                    return


class DamagePolicies:
    """The behaviour of each partition's scan at damage (`stop` or `skip`), and what all of them skipped."""

    def __init__(self, on_damage: str = STOPS) -> None:
        self._skips = on_damage == SKIPS
        self._partitions: list[tuple[ArchivedPartition, SkipDamage]] = []
        # Offsets that earlier runs of a job skipped.
        self.earlier: list[tuple[ArchivedPartition, LostRange]] = []

    def of(self, partition: ArchivedPartition) -> DamagePolicy:
        if not self._skips:
            return STOP
        policy = SkipDamage(skips_closed=True)
        self._partitions.append((partition, policy))
        return policy

    @property
    def skipped(self) -> list[tuple[ArchivedPartition, LostRange]]:
        """The offsets skipped so far, once if several scans came to them."""
        found: dict[tuple[ArchivedPartition, int], LostRange] = {}
        met = ((partition, each) for partition, policy in self._partitions for each in policy.skipped)
        for partition, each in (*self.earlier, *met):  # a range may have grown since it was noted
            known = found.setdefault((partition, each.start), each)
            found[partition, each.start] = max(known, each)
        return [(partition, each) for (partition, _), each in found.items()]
