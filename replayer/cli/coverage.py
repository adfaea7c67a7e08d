"""`replayer coverage`."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec

from blockgz_runtime.errors import NotInArchive
from blockgz_runtime.program.main import closing
from blockgz_runtime.program.tables import print_rows, print_table, timestamp_text
from blockgz_runtime.store.cache import DiskCache
from replayer.cli.coverage_chart import html, svg, text_row
from replayer.cli.ls import offsets_text
from replayer.cli.options.archive_options import ArchiveOptions, archive_options, cache_option, open_archive
from replayer.cli.options.options import format_option
from replayer.read.coverage import PartitionCoverage, Timeline, sliced, timeline, topic_coverage
from replayer.read.topics import parse_topic

TEXT_SLICES = 60
PICTURE_SLICES = 180


class Row(NamedTuple):
    """A partition of a topic."""

    topic: str
    coverage: PartitionCoverage

    @property
    def label(self) -> str:
        """For pictures."""
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
def command(topics: tuple[str, ...], form: str, cache: DiskCache | None, archive: ArchiveOptions) -> None:
    """Show what is archived of each partition over time, and where the gaps are.

    All topics where none is named.

    In the table darker signs stand for more records and ! for a gap. Read from markers and catalogs alone: within a
    chunk, records count as spread evenly over its time.
    """
    rows = asyncio.run(_coverage(archive, topics, cache))
    match form:
        case "svg" | "html":
            _print_picture(rows, form, str(archive.address))
        case _:
            over = timeline([row.coverage for row in rows], TEXT_SLICES)
            listing = [_json(row, over) for row in rows]
            print_rows(form, {"archive": str(archive.address), **_bounds(over), "partitions": listing}, listing)
            if form == "table":
                _print_table(rows, over)


async def _coverage(options: ArchiveOptions, topics: Sequence[str], cache: DiskCache | None) -> list[Row]:
    async with open_archive(options, cache) as archive:
        wanted = [parse_topic(topic) for topic in topics or await archive.topics()]
        return [
            Row(topic.topic, coverage)
            for topic in wanted
            for coverage in await topic_coverage(await archive.open_topic(topic.topic, topic.partitions))
        ]


def _print_picture(rows: Sequence[Row], form: str, address: str) -> None:
    labelled = [(row.label, row.coverage) for row in rows]
    over = timeline([row.coverage for row in rows], PICTURE_SLICES)
    if form == "html":
        click.echo(html(f"Coverage of {address}", labelled, over), nl=False)
        return
    if over is None:
        raise NotInArchive("there is nothing to draw", why="no record is archived, or none has a timestamp")
    click.echo(svg(labelled, over), nl=False)


def _print_table(rows: Sequence[Row], over: Timeline | None) -> None:
    if over is not None:
        click.echo(f"{timestamp_text(over.start)} .. {timestamp_text(over.end - 1)}")
    cells = [
        (
            row.label,
            row.coverage.records,
            offsets_text(row.coverage.start_offset, row.coverage.next_offset),
            f"|{text_row(row.coverage, over)}|" if over is not None else "-",
            len(row.coverage.gaps),
        )
        for row in rows
    ]
    print_table(("PARTITION", "RECORDS", "OFFSETS", "COVERAGE", "GAPS"), cells)
    for row in rows:
        for gap in row.coverage.gaps:
            between = " and ".join(timestamp_text(time) for time in (gap.after, gap.before) if time is not None)
            click.echo(f"{row.label}: gap {gap.gap.start}..{gap.gap.end} ({gap.gap.reason}), at {between or 'no time'}")


def _bounds(over: Timeline | None) -> dict[str, Any]:
    return {
        "from_ms": over.start if over is not None else None,
        "to_ms": over.end if over is not None else None,
        "slices": over.slices if over is not None else 0,
    }


def _json(row: Row, over: Timeline | None) -> dict[str, Any]:
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
