"""`replayer ls`."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import msgspec

from blockgz_runtime.errors import PARTLY_FAILED, exit_code
from blockgz_runtime.program.main import closing, print_failure
from blockgz_runtime.program.tables import bytes_text, print_rows, print_table, timestamp_text
from replayer.cli.options.archive_options import ArchiveOptions, archive_options, open_archive
from replayer.cli.options.options import format_option
from replayer.read.archive import DamagedPartition
from replayer.read.partition import PartitionSummary, summarize


@click.command("ls", epilog=closing("replayer ls -a ./archive", "replayer ls --json -a s3://bucket/prefix"))
@format_option()
@archive_options
def command(form: str, archive: ArchiveOptions) -> int:
    """List the topics of the archive, with what is archived of each.

    A partition whose marker is damaged or missing is named on stderr, left out of the sums, and makes the exit code 3.
    """
    topics = asyncio.run(_topics(archive))
    listing = [
        {
            "topic": topic.name,
            **totals(topic.partitions),
            "partitions": msgspec.to_builtins(topic.partitions),
            "damaged": damaged_json(topic.damaged),
        }
        for topic in topics
    ]
    print_rows(form, {"archive": str(archive.address), "topics": listing}, listing)
    if form == "table":
        columns = ("TOPIC", "PARTITIONS", "RECORDS", "CHUNKS", "SIZE", "OFFSETS", "FROM", "TO")
        print_table(columns, [_row(topic) for topic in topics])
    return print_damaged([each for topic in topics for each in topic.damaged], others=True)


class ListedTopic(NamedTuple):
    """What there is of one topic."""

    name: str
    partitions: Sequence[PartitionSummary]
    damaged: Sequence[DamagedPartition]


async def _topics(options: ArchiveOptions) -> list[ListedTopic]:
    async with open_archive(options) as archive:
        found = [(name, await archive.survey_topic(name)) for name in await archive.topics()]
    return [ListedTopic(name, [summarize(each) for each in topic.partitions], topic.damaged) for name, topic in found]


def totals(partitions: Sequence[PartitionSummary]) -> dict[str, Any]:
    """Sums and bounds over partitions."""
    earliest = [p.min_timestamp_ms for p in partitions if p.min_timestamp_ms is not None]
    latest = [p.max_timestamp_ms for p in partitions if p.max_timestamp_ms is not None]
    return {
        "records": sum(p.records for p in partitions),
        "chunks": sum(p.chunks for p in partitions),
        "bytes": sum(p.bytes for p in partitions),
        "min_timestamp_ms": min(earliest, default=None),
        "max_timestamp_ms": max(latest, default=None),
    }


def offsets_text(start_offset: int | None, next_offset: int | None) -> str:
    """Archived positions as `0..301`, the end excluded."""
    return "-" if start_offset is None else f"{start_offset}..{next_offset}"


def time_text(timestamp_ms: int | None) -> str:
    """A timestamp for a table."""
    return "-" if timestamp_ms is None else timestamp_text(timestamp_ms)


def _row(topic: ListedTopic) -> tuple[str | int, ...]:
    partitions = topic.partitions
    sums = totals(partitions)
    starts = [p.start_offset for p in partitions if p.start_offset is not None]
    ends = [p.next_offset for p in partitions if p.next_offset is not None]
    return (
        topic.name,
        len(partitions) + len(topic.damaged),
        sums["records"],
        sums["chunks"],
        bytes_text(sums["bytes"]),
        offsets_text(min(starts, default=None), max(ends, default=None)),
        time_text(sums["min_timestamp_ms"]),
        time_text(sums["max_timestamp_ms"]),
    )


def print_damaged(damaged: Sequence[DamagedPartition], *, others: bool) -> int:
    """Says on stderr what cannot be read; the exit code that this means where there are `others` or none."""
    for each in damaged:
        print_failure(each.error)
    return 0 if not damaged else PARTLY_FAILED if others else exit_code(damaged[0].error)


def damaged_json(damaged: Sequence[DamagedPartition]) -> list[dict[str, Any]]:
    """Partitions that cannot be read, for `--json`."""
    return [{"partition": each.partition, "error": each.error.reason} for each in damaged]
