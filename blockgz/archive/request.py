"""A request for records of an archive: which ones of a topic, and what happens at damage."""

import csv
import hashlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from blockgz.archive.archive import Archive, TopicPartitions
from blockgz.archive.blocks import READ_AHEAD, ReadAhead
from blockgz.archive.damage import STOP, DamagePolicy, LostRange, SkipDamage
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import Ends, Position, Rule, parse_position
from blockgz.archive.selection import Positions, Selection, resolved, selected
from blockgz.errors import UsageError
from blockgz.record_filter import Condition, RecordFilter
from index_format.keys import parse_topic_folder

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

    async def select(self, archive: Archive, topic: TopicPartitions) -> list[Selection]:
        """Return the selected offsets of a topic; raises UsageError, NotInArchive, or what opening raises."""
        return await self.resolve(archive, topic, await self.open(archive, topic))

    async def open(self, archive: Archive, topic: TopicPartitions) -> tuple[ArchivedPartition, ...]:
        """Open the selected partitions of a topic; raises as `select`."""
        wanted = topic.narrow(self.partitions)
        return await archive.open_topic(wanted.topic, wanted.partitions)

    async def resolve(
        self, archive: Archive, topic: TopicPartitions, opened: Sequence[ArchivedPartition]
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


class SelectedBatch(NamedTuple):
    """Records of one partition, in offset order; never empty."""

    partition: ArchivedPartition
    batch: pa.RecordBatch


async def selected_batches(
    chosen: Iterable[Selection],
    record_filter: RecordFilter,
    limit: int | None,
    damage: "DamagePolicies",
    ahead: ReadAhead = READ_AHEAD,
) -> AsyncGenerator[SelectedBatch]:
    """Yield at most `limit` selected records, partition after partition.

    Close it (`aclosing`) when you stop early. Raises as `selected` does.
    """
    left = limit
    for each in chosen:
        if left == 0:
            return
        async with aclosing(selected(each, record_filter, damage.of(each.partition), ahead)) as batches:
            async for batch in batches:
                part = batch if left is None else batch.slice(0, left)
                left = None if left is None else left - part.num_rows
                yield SelectedBatch(each.partition, part)
                del batch, part
                if left == 0:
                    return


class DamagePolicies:
    """The behaviour of each partition's scan at damage (`stop` or `skip`), and what all of them skipped."""

    def __init__(self, on_damage: str = STOPS) -> None:
        self._skips = on_damage == SKIPS
        self._partitions: list[tuple[ArchivedPartition, SkipDamage]] = []

    def of(self, partition: ArchivedPartition) -> DamagePolicy:
        if not self._skips:
            return STOP
        policy = SkipDamage()
        self._partitions.append((partition, policy))
        return policy

    @property
    def skipped(self) -> list[tuple[ArchivedPartition, LostRange]]:
        """The offsets skipped so far, once if several scans came to them."""
        return list(
            dict.fromkeys((partition, each) for partition, policy in self._partitions for each in policy.skipped)
        )
