"""The coverage of partitions by time and offset: records, gaps and damage, as JSON values and as pictures."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from blockgz.archive.partition import END, ArchivedPartition, Unreadable
from blockgz.errors import BlockgzError
from blockgz.units import time_text
from index_format.marker import ChunkEntry
from index_format.objects import ERASED, Gap

Column: TypeAlias = npt.NDArray[np.int64]
Scale = Literal["time", "offset"]
PRUNED = "pruned"


class ChunkColumns(NamedTuple):
    """The chunks of a partition in offset order, a row each; times are ms, -1 if no record has one."""

    first_offset: Column
    next_offset: Column
    min_timestamp: Column
    max_timestamp: Column
    records: Column
    bytes: Column

    @property
    def timed(self) -> "ChunkColumns":
        """The chunks that hold a record with a timestamp."""
        has_time = self.max_timestamp >= 0
        return ChunkColumns(*(column[has_time] for column in self))


@dataclass(frozen=True)
class TimedGap:
    """A recorded gap and the time around it (ms): the records before it end at `after`, those behind begin at `before`.

    None if there are none, or none with a timestamp. As timestamps may go backwards, `before` may be below `after`.
    """

    gap: Gap
    after: int | None
    before: int | None


@dataclass(frozen=True)
class PartitionCoverage:
    """One partition in offset order.

    `damage` are the offsets of catalogs that cannot be read, whose chunks are not in `chunks`; `errors` say why.
    `erased` are gaps in which every record was erased; only indexes list records erased inside a chunk.
    """

    topic: str
    partition: int
    start_offset: int | None
    next_offset: int | None
    chunks: ChunkColumns
    gaps: tuple[TimedGap, ...]
    damage: tuple[TimedGap, ...] = ()
    errors: tuple[BlockgzError, ...] = ()
    erased: tuple[TimedGap, ...] = ()
    pruned: TimedGap | None = None
    """The offsets below the floor, where the partition was pruned."""

    @property
    def label(self) -> str:
        return f"{self.topic}:{self.partition}"

    @cached_property
    def timed(self) -> ChunkColumns:
        """The chunks that can be placed in time."""
        return self.chunks.timed

    @property
    def records(self) -> int:
        return int(self.chunks.records.sum())

    @property
    def untimed(self) -> int:
        """Return records of chunks in which none has a timestamp."""
        return self.records - int(self.timed.records.sum())

    @property
    def pruned_before(self) -> int | None:
        """The floor; None if nothing was pruned."""
        return None if self.pruned is None else self.pruned.gap.end

    @property
    def times(self) -> tuple[int, int] | None:
        """The earliest and the latest timestamp (ms)."""
        if not len(self.timed.records):
            return None
        return int(np.maximum(self.timed.min_timestamp, 0).min()), int(self.timed.max_timestamp.max())


@dataclass(frozen=True)
class Axis:
    """Times (ms) or offsets [start, end) in equal slices."""

    start: int
    end: int
    slices: int
    scale: Scale = "time"

    def __post_init__(self) -> None:
        if not (self.start < self.end and self.slices > 0):
            raise ValueError(f"nothing between {self.start} and {self.end} in {self.slices} slices")

    def position(self, place: int) -> float:
        """Return the share of the axis before a place, from 0 to 1; places outside move to the nearer end."""
        return min(max((place - self.start) / (self.end - self.start), 0.0), 1.0)

    def slice_of(self, place: int) -> int:
        return min(int(self.position(place) * self.slices), self.slices - 1)

    def slices_of(self, places: npt.NDArray[np.float64]) -> Column:
        within = np.clip(places, self.start, self.end)
        numbers = ((within - self.start) / (self.end - self.start) * self.slices).astype(np.int64)
        return np.minimum(numbers, self.slices - 1)

    def start_of(self, number: int) -> int:
        """Return the place where a slice begins."""
        return self.start + -(-(self.end - self.start) * number // self.slices)


@dataclass(frozen=True)
class Slices:
    """One partition in each slice of an axis: about how many records and chunks, as if a chunk's were spread evenly."""

    records: npt.NDArray[np.float64]
    chunks: Column
    has_gap: npt.NDArray[np.bool_]


async def partition_coverage(partition: ArchivedPartition, topic: str | None = None) -> PartitionCoverage:
    """Return the coverage of a partition from its marker and catalogs; no index and no data is read.

    It is shown under `topic`, by default the name without an incarnation.
    """
    topic = topic or partition.topic
    coverage = await _coverage(partition, topic)
    newer = await partition.newer() if coverage.damage else None
    return coverage if newer is None else await _coverage(newer, topic)


async def _coverage(partition: ArchivedPartition, topic: str) -> PartitionCoverage:
    rows: list[tuple[int, ...]] = []
    recorded = set(partition.marked_gaps)
    damage: list[Unreadable] = []
    async for opened in partition.walk(0, END):
        if isinstance(opened, ChunkEntry):
            rows.append(
                (
                    opened.first_offset,
                    opened.last_offset + 1,
                    opened.min_timestamp,
                    opened.max_timestamp,
                    opened.num_records,
                    opened.bytes,
                )
            )
        elif isinstance(opened, Unreadable):
            damage.append(opened)
        else:
            recorded.update(opened.gaps)
    columns = np.array(rows, np.int64).reshape(-1, len(ChunkColumns._fields)).T
    chunks = ChunkColumns(*map(np.ascontiguousarray, columns))
    gaps = sorted(partition.telling(recorded), key=lambda gap: gap.start)
    pruned = [Gap(partition.began_at, partition.floor, PRUNED)] if partition.began_at < partition.floor else []
    return PartitionCoverage(
        topic,
        partition.partition,
        partition.start_offset if partition.marker.next_offset is not None else None,
        partition.marker.next_offset,
        chunks,
        timed_gaps([gap for gap in gaps if gap.reason != ERASED], chunks.timed),
        timed_gaps([Gap(each.start, each.end, each.reason) for each in damage], chunks.timed),
        tuple(each.error for each in damage),
        timed_gaps([gap for gap in gaps if gap.reason == ERASED], chunks.timed),
        next(iter(timed_gaps(pruned, chunks.timed)), None),
    )


def timed_gaps(gaps: Sequence[Gap], timed: ChunkColumns) -> tuple[TimedGap, ...]:
    """Return gaps with the times of the chunks next to them; `timed` are those that hold a timestamp."""
    has_start = timed.min_timestamp >= 0
    starts = timed.min_timestamp[has_start]
    before = np.searchsorted(timed.first_offset, [gap.start for gap in gaps])
    behind = np.searchsorted(timed.next_offset[has_start], [gap.end for gap in gaps], side="right")
    return tuple(
        TimedGap(
            gap,
            int(timed.max_timestamp[last - 1]) if last else None,
            int(starts[first]) if first < len(starts) else None,
        )
        for gap, last, first in zip(gaps, before, behind, strict=True)
    )


def axis_of(partitions: Sequence[PartitionCoverage], slices: int, scale: Scale = "time") -> Axis | None:
    """Return the axis from the earliest to the latest record, or the lowest to the highest offset; None without any."""
    if scale == "offset":
        spans = [
            (each.start_offset if each.pruned is None else each.pruned.gap.start, each.next_offset)
            for each in partitions
        ]
        known = [(start, end) for start, end in spans if start is not None and end is not None and start < end]
        return Axis(min(start for start, _ in known), max(end for _, end in known), slices, scale) if known else None
    times = [each.times for each in partitions if each.times is not None]
    return Axis(min(low for low, _ in times), max(high for _, high in times) + 1, slices) if times else None


def sliced(partition: PartitionCoverage, axis: Axis) -> Slices:
    """Return a partition in each slice of an axis. A gap without a known time is placed at its known neighbour."""
    chunks = partition.timed if axis.scale == "time" else partition.chunks
    if axis.scale == "time":
        starts, ends = np.maximum(chunks.min_timestamp, 0), chunks.max_timestamp
    else:
        starts, ends = chunks.first_offset, chunks.next_offset - 1
    inside = (ends >= axis.start) & (starts < axis.end)
    # Floats, as the end of an axis may be 2^63; they round such times, so a span of one may come out as none.
    low, high = starts[inside].astype(np.float64), ends[inside].astype(np.float64)
    first, last = axis.slices_of(low), axis.slices_of(high)
    # Of a chunk that reaches beyond the axis, the share inside.
    within = np.maximum(np.minimum(high + 1, axis.end) - np.maximum(low, axis.start), 1)
    share = chunks.records[inside] * within / np.maximum(high + 1 - low, within) / (last - first + 1)
    records = _spread(first, last, share, axis.slices)
    has_gap = np.zeros(axis.slices, np.bool_)
    for gap in partition.gaps:
        extent = gap_extent(gap, axis)
        if extent is not None:
            has_gap[axis.slice_of(extent[0]) : axis.slice_of(extent[1]) + 1] = True
    counts = _spread(first, last, np.ones(len(first)), axis.slices)
    return Slices(np.where(counts > 0.5, records, 0.0), np.rint(counts).astype(np.int64), has_gap)


def _spread(first: Column, last: Column, amount: npt.NDArray[Any], slices: int) -> npt.NDArray[np.float64]:
    steps = np.zeros(slices + 1)
    np.add.at(steps, first, amount)
    np.subtract.at(steps, last + 1, amount)
    return np.cumsum(steps)[:-1]


def gap_extent(gap: TimedGap, axis: Axis) -> tuple[int, int] | None:
    """Return the first and last place of a gap on an axis, both included; None if it is outside, or has no place."""
    if axis.scale == "offset":
        places = [gap.gap.start, gap.gap.end - 1]
    else:
        places = [time for time in (gap.after, gap.before) if time is not None]
    if not places or max(places) < axis.start or min(places) >= axis.end:
        return None
    return min(places), max(places)


def coverage_document(rows: Sequence[PartitionCoverage], axis: Axis | None) -> dict[str, Any]:
    """Return the partitions over an axis; None if there is nothing to place on one."""
    unit = "offset" if axis is not None and axis.scale == "offset" else "ms"
    start, end, slices = (None, None, 0) if axis is None else (axis.start, axis.end, axis.slices)
    return {
        f"from_{unit}": start,
        f"to_{unit}": end,
        "slices": slices,
        "partitions": [_partition(row, axis) for row in rows],
    }


def _partition(coverage: PartitionCoverage, axis: Axis | None) -> dict[str, Any]:
    earliest, latest = coverage.times or (None, None)
    # Rounded after they are added up, so that the whole numbers have the right sum.
    sums = np.rint(np.cumsum(sliced(coverage, axis).records if axis else [])).astype(np.int64)
    return {
        "topic": coverage.topic,
        "partition": coverage.partition,
        "records": coverage.records,
        "records_without_timestamp": coverage.untimed,
        "start_offset": coverage.start_offset,
        "next_offset": coverage.next_offset,
        "pruned_before": coverage.pruned_before,
        "min_timestamp_ms": earliest,
        "max_timestamp_ms": latest,
        "gaps": list(map(_gap, coverage.gaps)),
        "erased": list(map(_gap, coverage.erased)),
        "damage": list(map(_gap, coverage.damage)),
        "records_by_slice": np.diff(sums, prepend=0).tolist(),
    }


def _gap(gap: TimedGap) -> dict[str, Any]:
    return {**msgspec.to_builtins(gap.gap), "after_ms": gap.after, "before_ms": gap.before}


# The part of the picture that shows the axis, in its own units.
LEFT, WIDTH = 220, 900
_TOP, _ROW, _PAD, _STRIP = 24, 22, 4, 44
_TICKS = 4
_SHADES = 8
# Times of a shorter axis have milliseconds.
_SHORT_MS = 10_000
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.r{fill:#1f6fb4}.g{fill:#d1242f}.d{fill:#8b0000}.n{fill:#f2f2f2}"
    ".e{fill:#8250df}.p{fill:#9a9a9a}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.n{fill:#333}}"
)


def svg(rows: Sequence[PartitionCoverage], axis: Axis, *, style: bool = True) -> str:
    """Return a picture of partitions under their labels, all records together above, with tooltips for its parts.

    Its attributes `data-…` describe the axis. Without `style` the page around it must have colours for its classes.
    """
    width, height = LEFT + WIDTH + 20, _TOP + _STRIP + _ROW * len(rows) + 8
    found = [sliced(row, axis) for row in rows]
    facts = f'data-scale="{axis.scale}" data-start="{axis.start}" data-end="{axis.end}" '
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'class="coverage" role="img" {facts}data-left="{LEFT}" data-width="{WIDTH}">',
        f"<title>Coverage of {len(rows)} partitions</title>",
        *([f"<style>{_STYLE}</style>"] if style else []),
        *_ticks(axis),
        *_strip(found, axis),
    ]
    for number, (row, slices) in enumerate(zip(rows, found, strict=True)):
        parts += _row(row, slices, axis, _TOP + _STRIP + _ROW * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def html(title: str, rows: Sequence[PartitionCoverage], axis: Axis | None) -> str:
    """Return a page with the picture and a table of all gaps; it needs no other file."""
    gaps = [
        f"<tr><td>{escape(row.label)}</td><td>{each.gap.start}</td><td>{each.gap.end}</td><td>{escape(each.gap.reason)}</td>"
        f"<td>{_when(each.after)}</td><td>{_when(each.before)}</td></tr>"
        for row in rows
        for each in (*row.damage, *row.gaps, *row.erased, row.pruned)
        if each is not None
    ]
    header = "<tr><th>partition</th><th>from offset</th><th>to</th><th>reason</th><th>after</th><th>before</th></tr>"
    table = f"<table>{header}{''.join(gaps)}</table>" if gaps else "<p>No gaps.</p>"
    records = sum(row.records for row in rows)
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>{escape(title)}</title>",
            '<meta name="color-scheme" content="light dark">',
            "<style>body{font:14px sans-serif;margin:2em}td,th{padding:2px 12px 2px 0;text-align:left}</style>",
            f"</head><body><h1>{escape(title)}</h1><p>{records:,} records in {len(rows)} partitions.</p>",
            svg(rows, axis) if axis is not None else "<p>No record has a timestamp.</p>",
            f"<h2>Gaps</h2>{table}</body></html>\n",
        ]
    )


def _ticks(axis: Axis) -> Iterator[str]:
    for tick in range(_TICKS + 1):
        place = axis.start + (axis.end - 1 - axis.start) * tick // _TICKS
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        yield f'<text x="{LEFT + WIDTH * tick / _TICKS:.1f}" y="16" text-anchor="{anchor}">{_place(place, axis)}</text>'


def _strip(found: Sequence[Slices], axis: Axis) -> Iterator[str]:
    records = np.sum([each.records for each in found], axis=0) if found else np.zeros(axis.slices)
    most, height, bottom = records.max(), _STRIP - 2 * _PAD, _TOP + _STRIP - 2 * _PAD
    yield f'<text x="4" y="{bottom - 4}">all records</text>'
    for number in map(int, np.flatnonzero(records)):
        tall = max(height * records[number] / most, 1.0)
        told = f"about {records[number]:,.0f} records, {_run(number, number, axis)}"
        yield (
            f'<rect class="r" x="{_x(number, axis):.2f}" y="{bottom - tall:.2f}" width="{WIDTH / axis.slices:.2f}" '
            f'height="{tall:.2f}"><title>{told}</title></rect>'
        )


def _row(coverage: PartitionCoverage, slices: Slices, axis: Axis, top: int) -> Iterator[str]:
    height = _ROW - _PAD
    yield f'<g class="row" data-partition="{coverage.partition}" data-topic="{escape(coverage.topic)}">'
    yield f'<text x="4" y="{top + height - 4}">{escape(coverage.label)}</text>'
    yield f'<rect class="n" x="{LEFT}" y="{top}" width="{WIDTH}" height="{height}"/>'
    most = max(float(slices.records.max()), 1e-9)
    shades = np.ceil(slices.records / most * _SHADES).astype(int)
    for shade, run in groupby(range(axis.slices), key=shades.__getitem__):
        if shade:
            numbers = list(run)
            first, last = numbers[0], numbers[-1]
            records = slices.records[first : last + 1].sum()
            chunks = int(slices.chunks[first : last + 1].max())
            told = f"about {records:,.0f} records, {_run(first, last, axis)}, up to {chunks} chunks at once"
            yield (
                f'<rect class="r" x="{_x(first, axis):.2f}" y="{top}" width="{WIDTH / axis.slices * len(numbers):.2f}" '
                f'height="{height}" fill-opacity="{0.2 + 0.8 * shade / _SHADES:.2f}"><title>{told}</title></rect>'
            )
    marks: list[tuple[str, str, Sequence[TimedGap]]] = [
        ("p", "nothing below the floor", [coverage.pruned] if coverage.pruned else []),
        ("e", "no record left", coverage.erased),
        ("g", "gap", coverage.gaps),
        ("d", "damage", coverage.damage),
    ]
    for kind, word, gaps in marks:
        for gap in _first_of_each_slice(gaps, axis):
            yield from _mark(gap, kind, word, axis, top)
    yield "</g>"


def _first_of_each_slice(gaps: Sequence[TimedGap], axis: Axis) -> Iterator[TimedGap]:
    seen: tuple[int, int] | None = None
    for gap in gaps:
        extent = gap_extent(gap, axis)
        place = extent and (axis.slice_of(extent[0]), axis.slice_of(extent[1]))
        if place is not None and (place != seen or len(gaps) <= axis.slices):
            yield gap
        seen = place


def _mark(gap: TimedGap, kind: str, word: str, axis: Axis, top: int) -> Iterator[str]:
    extent = gap_extent(gap, axis)
    if extent is not None:
        start, end = (LEFT + WIDTH * axis.position(place) for place in extent)
        told = f"{word}: offsets [{gap.gap.start}..{gap.gap.end}) ({gap.gap.reason})"
        yield (
            f'<rect class="{kind}" x="{start:.2f}" y="{top}" width="{max(end - start, 2):.2f}" height="{_ROW - _PAD}">'
            f"<title>{escape(told)}</title></rect>"
        )


def _x(number: int, axis: Axis) -> float:
    return LEFT + WIDTH / axis.slices * number


def _run(first: int, last: int, axis: Axis) -> str:
    return f"{_place(axis.start_of(first), axis)} to {_place(axis.start_of(last + 1), axis)}"


def _place(place: int, axis: Axis) -> str:
    if axis.scale == "offset":
        return f"{place:,}"
    text = _when(place)
    is_short = axis.end - axis.start < _SHORT_MS and ":" in text
    return f"{text}.{place % 1000:03}" if is_short else text


def _when(timestamp: int | None) -> str:
    return time_text(timestamp).replace("T", " ").removesuffix("Z")
