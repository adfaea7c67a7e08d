"""Coverage as a picture: partitions over time or offsets as SVG, alone or on a page of its own."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

import numpy as np

from blockgz.units import time_text
from replayer.coverage.partition_coverage import Axis, PartitionCoverage, Slices, TimedGap, gap_extent, sliced

LEFT, WIDTH = 220, 900
"""Of the part of the picture that shows the axis, in its own units."""
_TOP, _ROW, _PAD, _STRIP = 24, 22, 4, 44
_TICKS = 4
_SHADES = 8
_SHORT_MS = 10_000
"""Times of an axis that is shorter are told to the millisecond."""
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.r{fill:#1f6fb4}.g{fill:#d1242f}.d{fill:#8b0000}.n{fill:#f2f2f2}"
    ".e{fill:#8250df}.p{fill:#9a9a9a}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.n{fill:#333}}"
)


class CoverageRow(NamedTuple):
    """A partition of a topic."""

    topic: str
    coverage: PartitionCoverage

    @property
    def label(self) -> str:
        return f"{self.topic}:{self.coverage.partition}"


def svg(rows: Sequence[CoverageRow], axis: Axis, *, style: bool = True) -> str:
    """A picture of partitions under their labels, all records together above; hovering over a part tells what it is.

    Its attributes `data-…` say what the axis shows. Without `style` the page that it becomes a part of has to bring
    colours for its classes.
    """
    width, height = LEFT + WIDTH + 20, _TOP + _STRIP + _ROW * len(rows) + 8
    found = [sliced(row.coverage, axis) for row in rows]
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


def html(title: str, rows: Sequence[CoverageRow], axis: Axis | None) -> str:
    """A page with the picture and a table of all gaps; it needs no other file."""
    gaps = [
        f"<tr><td>{escape(row.label)}</td><td>{each.gap.start}</td><td>{each.gap.end}</td><td>{escape(each.gap.reason)}</td>"
        f"<td>{_when(each.after)}</td><td>{_when(each.before)}</td></tr>"
        for row in rows
        for each in (*row.coverage.damage, *row.coverage.gaps, *row.coverage.erased, row.coverage.pruned)
        if each is not None
    ]
    header = "<tr><th>partition</th><th>from offset</th><th>to</th><th>reason</th><th>after</th><th>before</th></tr>"
    table = f"<table>{header}{''.join(gaps)}</table>" if gaps else "<p>No gaps.</p>"
    records = sum(row.coverage.records for row in rows)
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
    """All records over the axis, as bars."""
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


def _row(row: CoverageRow, slices: Slices, axis: Axis, top: int) -> Iterator[str]:
    height = _ROW - _PAD
    yield f'<g class="row" data-partition="{row.coverage.partition}" data-topic="{escape(row.topic)}">'
    yield f'<text x="4" y="{top + height - 4}">{escape(row.label)}</text>'
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
    coverage = row.coverage
    marks: list[tuple[str, str, Sequence[TimedGap]]] = [
        ("p", "nothing below the floor", [coverage.pruned] if coverage.pruned else []),
        ("e", "no record left", coverage.erased),
        ("g", "gap", coverage.gaps),
        ("d", "damage", coverage.damage),
    ]
    for kind, word, gaps in marks:
        for gap in _first_of_each_slice(gaps, axis):
            yield from _gap(gap, kind, word, axis, top)
    yield "</g>"


def _first_of_each_slice(gaps: Sequence[TimedGap], axis: Axis) -> Iterator[TimedGap]:
    """The gaps that show where there are more than can be told apart."""
    seen: tuple[int, int] | None = None
    for gap in gaps:
        extent = gap_extent(gap, axis)
        place = extent and (axis.slice_of(extent[0]), axis.slice_of(extent[1]))
        if place is not None and (place != seen or len(gaps) <= axis.slices):
            yield gap
        seen = place


def _gap(gap: TimedGap, kind: str, word: str, axis: Axis, top: int) -> Iterator[str]:
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
    """From where to where some slices reach, as text."""
    return f"{_place(axis.start_of(first), axis)} to {_place(axis.start_of(last + 1), axis)}"


def _place(place: int, axis: Axis) -> str:
    if axis.scale == "offset":
        return f"{place:,}"
    text = _when(place)
    is_short = axis.end - axis.start < _SHORT_MS and ":" in text
    return f"{text}.{place % 1000:03}" if is_short else text


def _when(timestamp: int | None) -> str:
    return time_text(timestamp).replace("T", " ").removesuffix("Z")
