"""`replayer coverage`: what is archived over time as a table, as JSON, and drawn as SVG or an HTML page."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, NamedTuple

import click
import msgspec

from blockgz_runtime.errors import NotInArchive
from blockgz_runtime.program.main import closing
from blockgz_runtime.program.tables import print_rows, print_table, range_text, timestamp_text
from blockgz_runtime.store.cache import DiskCache
from replayer.cli.options.archive_options import archive_options, cache_option, open_archive
from replayer.cli.options.options import format_option
from replayer.place import ArchivePlace
from replayer.read.coverage import PartitionCoverage, Timeline, sliced, timeline, topic_coverage
from replayer.read.topics import parse_topic

SHADES = " .:-=+*#%@"
"""For a terminal, from no record to the most."""
GAP = "!"

_LEFT, _TOP, _ROW, _PAD = 220, 36, 22, 4
_CHART = 900
_TICKS = 4
_STYLE = (
    "text{font:12px sans-serif;fill:#222}.r{fill:#1f6fb4}.g{fill:#d1242f}.n{fill:#f2f2f2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.n{fill:#333}}"
)
JSON_SLICES = 60
TEXT_SLICES = 30
"""Fits 80 columns."""
PICTURE_SLICES = 180


class CoverageRow(NamedTuple):
    """A partition of a topic."""

    topic: str
    coverage: PartitionCoverage

    @property
    def label(self) -> str:
        return f"{self.topic}:{self.coverage.partition}"


@click.command(
    "coverage",
    epilog=closing(
        "replayer coverage -a ./archive",
        "replayer coverage orders payments:0-3 --format svg -a ./archive > coverage.svg",
        "replayer coverage --format html -a s3://bucket/prefix > coverage.html",
    ),
)
@click.argument("topics", metavar="[TOPIC[:P[,P-P]]...]", nargs=-1)
@format_option("svg", "html")
@cache_option
@archive_options
def command(topics: tuple[str, ...], form: str, cache: DiskCache | None, archive: ArchivePlace) -> None:
    """Show what is archived of each partition over time, and where the gaps are.

    The default is all topics.

    In the table, darker symbols mean more records, and ! means a gap. Reads only markers and catalogs: within a chunk,
    records are assumed to be spread evenly over time.
    """
    rows = asyncio.run(_coverage(archive, topics, cache))
    match form:
        case "svg" | "html":
            _print_picture(rows, form, str(archive.address))
        case _:
            over = timeline([row.coverage for row in rows], TEXT_SLICES if form == "table" else JSON_SLICES)
            listing = [_json(row, over) for row in rows]
            bounds = {"from_ms": None, "to_ms": None, "slices": 0}
            if over is not None:
                bounds = {"from_ms": over.start, "to_ms": over.end, "slices": over.slices}
            print_rows(form, {"archive": str(archive.address), **bounds, "partitions": listing}, listing)
            if form == "table":
                _print_table(rows, over)


async def _coverage(options: ArchivePlace, topics: Sequence[str], cache: DiskCache | None) -> list[CoverageRow]:
    async with open_archive(options, cache) as archive:
        wanted = [parse_topic(topic) for topic in topics or await archive.topics()]
        return [
            CoverageRow(topic.topic, coverage)
            for topic in wanted
            for coverage in await topic_coverage(await archive.open_topic(topic.topic, topic.partitions))
        ]


def _print_picture(rows: Sequence[CoverageRow], form: str, address: str) -> None:
    over = timeline([row.coverage for row in rows], PICTURE_SLICES)
    if form == "html":
        click.echo(html(f"Coverage of {address}", rows, over), nl=False)
        return
    if over is None:
        raise NotInArchive("there is nothing to draw", why="no record is archived, or none has a timestamp")
    click.echo(svg(rows, over), nl=False)


def _print_table(rows: Sequence[CoverageRow], over: Timeline | None) -> None:
    if over is not None:
        click.echo(f"{timestamp_text(over.start)} .. {timestamp_text(over.end - 1)}")
    cells = [
        (
            row.label,
            row.coverage.records,
            range_text(row.coverage.start_offset, row.coverage.next_offset),
            f"|{text_row(row.coverage, over)}|" if over is not None else "-",
            len(row.coverage.gaps),
        )
        for row in rows
    ]
    droppable = ("OFFSETS", "GAPS", "RECORDS")
    print_table(("PARTITION", "RECORDS", "OFFSETS", "COVERAGE", "GAPS"), cells, droppable=droppable)
    for row in rows:
        for gap in row.coverage.gaps:
            between = " and ".join(timestamp_text(time) for time in (gap.after, gap.before) if time is not None)
            click.echo(
                f"{row.label}: gap [{gap.gap.start}..{gap.gap.end}) ({gap.gap.reason}), at {between or 'no time'}"
            )


def _json(row: CoverageRow, over: Timeline | None) -> dict[str, Any]:
    """`records_by_slice` are estimates; a gap's times are those of the records beside it."""
    coverage = row.coverage
    return {
        "topic": row.topic,
        "partition": coverage.partition,
        "records": coverage.records,
        "records_without_timestamp": coverage.untimed,
        "start_offset": coverage.start_offset,
        "next_offset": coverage.next_offset,
        "min_timestamp_ms": min((each.start for each in coverage.stretches), default=None),
        "max_timestamp_ms": max((each.end for each in coverage.stretches), default=None),
        "gaps": [
            {**msgspec.to_builtins(each.gap), "after_ms": each.after, "before_ms": each.before}
            for each in coverage.gaps
        ],
        "records_by_slice": [round(each.records) for each in sliced(coverage, over)] if over is not None else [],
    }


def text_row(partition: PartitionCoverage, over: Timeline) -> str:
    """One partition as one character for each slice of time."""
    slices = sliced(partition, over)
    most = max(each.records for each in slices)
    shades = (max(1, int(each.records / most * (len(SHADES) - 1))) if each.records else 0 for each in slices)
    return "".join(GAP if each.has_gap else SHADES[shade] for each, shade in zip(slices, shades, strict=True))


def svg(rows: Sequence[CoverageRow], over: Timeline) -> str:
    """A picture of partitions under their labels; hovering over a part shows what it is."""
    width, height = _LEFT + _CHART + 20, _TOP + _ROW * len(rows) + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">',
        f"<style>{_STYLE}</style>",
        *_axis(over),
    ]
    for number, row in enumerate(rows):
        parts += _row(row, over, _TOP + _ROW * number)
    return "\n".join([*parts, "</svg>"]) + "\n"


def html(title: str, rows: Sequence[CoverageRow], over: Timeline | None) -> str:
    """A page with the picture and a table of all gaps; it needs no other file."""
    gaps = [
        f"<tr><td>{escape(row.label)}</td><td>{each.gap.start}</td><td>{each.gap.end}</td><td>{escape(each.gap.reason)}</td>"
        f"<td>{_when(each.after)}</td><td>{_when(each.before)}</td></tr>"
        for row in rows
        for each in row.coverage.gaps
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
            svg(rows, over) if over is not None else "<p>No record has a timestamp.</p>",
            f"<h2>Gaps</h2>{table}</body></html>\n",
        ]
    )


def _axis(over: Timeline) -> list[str]:
    parts = []
    for tick in range(_TICKS + 1):
        time = over.start + (over.end - 1 - over.start) * tick // _TICKS
        anchor = "start" if tick == 0 else "end" if tick == _TICKS else "middle"
        position = _LEFT + _CHART * tick / _TICKS
        parts.append(f'<text x="{position:.1f}" y="16" text-anchor="{anchor}">{_when(time)}</text>')
    return parts


def _row(row: CoverageRow, over: Timeline, top: int) -> list[str]:
    height = _ROW - _PAD
    slices = sliced(row.coverage, over)
    most = max(each.records for each in slices)
    width = _CHART / over.slices
    parts = [
        f'<text x="4" y="{top + height - 4}">{escape(row.label)}</text>',
        f'<rect class="n" x="{_LEFT}" y="{top}" width="{_CHART}" height="{height}"/>',
    ]
    for number, each in enumerate(slices):
        if each.records:
            opacity = 0.25 + 0.75 * each.records / most
            parts.append(
                f'<rect class="r" x="{_LEFT + width * number:.2f}" y="{top}" width="{width:.2f}" height="{height}" '
                f'fill-opacity="{opacity:.2f}"><title>about {each.records:,.0f} records</title></rect>'
            )
    for gap in row.coverage.gaps:
        known = [over.position(time) for time in (gap.after, gap.before) if time is not None]
        if known:
            start, end = _LEFT + _CHART * min(known), _LEFT + _CHART * max(known)
            reason = f"gap: offsets [{gap.gap.start}..{gap.gap.end}) ({gap.gap.reason})"
            parts.append(
                f'<rect class="g" x="{start:.2f}" y="{top}" width="{max(end - start, 2):.2f}" height="{height}">'
                f"<title>{escape(reason)}</title></rect>"
            )
    return parts


def _when(timestamp: int | None) -> str:
    if timestamp is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(timestamp / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError):
        return str(timestamp)
