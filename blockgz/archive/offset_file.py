"""Positions per partition from a file: CSV as `kafka-consumer-groups --from-file` takes it, or JSON."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import msgspec

from blockgz.archive.positions import Position, parse_position
from blockgz.errors import UsageError

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

Ends = tuple[Position | None, Position | None]
"""Where a partition's range begins and ends; None where the file does not say."""


class _Row(msgspec.Struct, forbid_unknown_fields=True):
    """One partition of the JSON form; `offset` is what kafka-delete-records calls `from`."""

    topic: str
    partition: int
    start: int | str | None = msgspec.field(name="from", default=None)
    end: int | str | None = msgspec.field(name="to", default=None)
    offset: int | None = None


class _Document(msgspec.Struct):
    partitions: list[_Row]


@dataclass(frozen=True)
class _Line:
    """A row of the file, its texts not yet understood."""

    number: int
    topic: str
    partition: str
    start: str | None
    end: str | None


def parse_offset_file(body: bytes, topic: str, now: int, zone: tzinfo | None = None) -> Mapping[int, Ends]:
    """The ends of each partition of `topic` that the file names; lines of other topics do not matter.

    `now` is ms since the epoch, `zone` that of times without one, UTC if None. Raises UsageError with the line where
    the file cannot be understood, names a partition twice, or names none of the topic.
    """
    if len(body) > MAX_FILE_BYTES:
        raise UsageError(f"the positions file has {len(body)} bytes", why=f"at most {MAX_FILE_BYTES} are allowed")
    found: dict[int, Ends] = {}
    lines = _json_lines(body) if body.lstrip()[:1] in (b"{", b"[") else _csv_lines(body)
    for line in lines:
        if line.topic != topic:
            continue
        partition = _partition(line)
        if partition in found:
            raise _unusable(line.number, f"partition {partition} appears twice")
        start, end = (None if text is None else _position(line, text, now, zone) for text in (line.start, line.end))
        found[partition] = (start, end)
    if not found:
        raise UsageError(f"the positions file names no partition of {topic}", why="no line has this topic")
    return found


def _partition(line: _Line) -> int:
    if not (line.partition.isascii() and line.partition.isdigit() and len(line.partition) < 10):
        raise _unusable(line.number, f"{line.partition[:40]!r} is not a partition")
    return int(line.partition)


def _position(line: _Line, text: str, now: int, zone: tzinfo | None) -> Position:
    try:
        return parse_position(text, now, zone)
    except UsageError as error:
        raise _unusable(line.number, error.what) from error


def _csv_lines(body: bytes) -> Iterator[_Line]:
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
        yield _Line(number, topic, partition, offset, None)


def _with_header(header: Sequence[str], numbered: Sequence[tuple[int, Sequence[str]]]) -> Iterator[_Line]:
    starts = [name for name in ("from", "offset") if name in header]
    if not starts and "to" not in header:
        raise _unusable(1, "the header has neither from nor to")
    for number, row in numbered:
        if len(row) != len(header):
            raise _unusable(number, f"it has {len(row)} columns, the header {len(header)}")
        cells: dict[str, str] = dict(zip(header, row, strict=True))
        start = cells[starts[0]] if starts else ""
        yield _Line(number, cells["topic"], cells["partition"], start or None, cells.get("to") or None)


def _json_lines(body: bytes) -> Iterator[_Line]:
    try:
        shape: Any = _Document if body.lstrip().startswith(b"{") else list[_Row]
        decoded = msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError as error:
        raise UsageError("the positions file is not valid JSON of positions", why=str(error), remedy=REMEDY) from error
    for number, row in enumerate(decoded.partitions if isinstance(decoded, _Document) else decoded, 1):
        start = row.offset if row.start is None else row.start
        yield _Line(
            number,
            row.topic,
            str(row.partition),
            None if start is None else str(start),
            None if row.end is None else str(row.end),
        )


def _unusable(number: int, why: str) -> UsageError:
    return UsageError(f"line {number} of the positions file cannot be used", why=why, remedy=REMEDY)
