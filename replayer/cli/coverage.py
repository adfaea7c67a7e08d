"""`replayer coverage`: what is archived over time as a table, as JSON, and drawn as SVG or an HTML page."""

import asyncio
from collections.abc import Callable, Sequence

import click

from blockgz.archive.archive import ArchivePlace, parse_topic
from blockgz.errors import PARTLY_FAILED, NotInArchive
from blockgz.process import run_async
from blockgz.program.main import closing, print_failure
from blockgz.program.terminal import print_rows, print_table, range_text
from blockgz.store.reader import DiskCache
from replayer.cli.options import options as common
from replayer.coverage import Axis, PartitionCoverage, axis_of, coverage_document, html, partition_coverage, sliced, svg

# For a terminal, from no record to the most.
SHADES = " .:-=+*#%@"
GAP = "!"

JSON_SLICES = 60
# Fits 80 columns.
TEXT_SLICES = 30
PICTURE_SLICES = 180


@click.command(
    "coverage",
    epilog=closing(
        "replayer coverage -a ./archive",
        "replayer coverage orders payments:0-3 --format svg -a ./archive > coverage.svg",
        "replayer coverage --format html -a s3://bucket/prefix > coverage.html",
    ),
)
@click.argument("topics", metavar="[TOPIC[:P[,P-P]]...]", nargs=-1)
@common.format_option("svg", "html")
@common.times_option
@common.cache_option
@common.archive_options
def command(topics: tuple[str, ...], form: str, as_times: str, cache: DiskCache | None, archive: ArchivePlace) -> int:
    """Show what is archived of each partition over time, and where the gaps are.

    The default is all topics.

    In the table, darker symbols mean more records, and ! means a gap. Reads only markers and catalogs: within a chunk,
    records are assumed to be spread evenly over time. If a catalog is damaged, it is named on stderr, its chunks are
    left out, and the exit code is 3.
    """
    rows = run_async(_coverage(archive, topics, cache))
    match form:
        case "svg" | "html":
            _print_picture(rows, form, str(archive.address))
        case _:
            axis = axis_of(rows, TEXT_SLICES if form == "table" else JSON_SLICES)
            document = coverage_document(rows, axis)
            print_rows(form, {"archive": str(archive.address), **document}, document["partitions"])
            if form == "table":
                _print_table(rows, axis, common.time_printer(as_times))
    errors = [error for row in rows for error in row.errors]
    for error in errors:
        print_failure(error)
    return PARTLY_FAILED if errors else 0


async def _coverage(options: ArchivePlace, topics: Sequence[str], cache: DiskCache | None) -> list[PartitionCoverage]:
    async with common.open_archive(options, cache) as archive:
        wanted = [parse_topic(topic) for topic in topics or await archive.topics()]
        opened = [
            (topic.topic, each) for topic in wanted for each in await archive.open_topic(topic.topic, topic.partitions)
        ]
        return await asyncio.gather(*(partition_coverage(partition, name) for name, partition in opened))


def _print_picture(rows: Sequence[PartitionCoverage], form: str, address: str) -> None:
    axis = axis_of(rows, PICTURE_SLICES)
    if form == "html":
        click.echo(html(f"Coverage of {address}", rows, axis), nl=False)
        return
    if axis is None:
        raise NotInArchive("there is nothing to draw", why="no record is archived, or none has a timestamp")
    click.echo(svg(rows, axis), nl=False)


def _print_table(rows: Sequence[PartitionCoverage], axis: Axis | None, time: Callable[[int], str]) -> None:
    if axis is not None:
        click.echo(f"{time(axis.start)} .. {time(axis.end - 1)}")
    cells = [
        (
            row.label,
            row.records,
            range_text(row.start_offset, row.next_offset),
            f"|{text_row(row, axis)}|" if axis is not None else "-",
            len(row.gaps),
        )
        for row in rows
    ]
    droppable = ("OFFSETS", "GAPS", "RECORDS")
    print_table(("PARTITION", "RECORDS", "OFFSETS", "COVERAGE", "GAPS"), cells, droppable=droppable)
    for row in rows:
        if row.pruned_before is not None:
            click.echo(f"{row.label}: pruned, nothing below offset {row.pruned_before} is kept")
        for gap in row.erased:
            click.echo(f"{row.label}: all records of [{gap.gap.start}..{gap.gap.end}) were erased")
        for gap in row.gaps:
            between = " and ".join(time(each) for each in (gap.after, gap.before) if each is not None)
            click.echo(
                f"{row.label}: gap [{gap.gap.start}..{gap.gap.end}) ({gap.gap.reason}), at {between or 'no time'}"
            )


def text_row(partition: PartitionCoverage, axis: Axis) -> str:
    """Return one partition as one character for each slice of time."""
    slices = sliced(partition, axis)
    most = slices.records.max()
    shades = (max(1, int(each / most * (len(SHADES) - 1))) if each else 0 for each in slices.records)
    return "".join(GAP if gap else SHADES[shade] for gap, shade in zip(slices.has_gap, shades, strict=True))
