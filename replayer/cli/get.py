"""`replayer get`."""

import asyncio
import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

import click
import msgspec

from index_format.keys import parse_topic_folder
from index_format.record_formats.json_lines import json_object
from index_format.records import TIMESTAMP_TYPES, Record, batch_from_records

from ..archive import Archive, ArchivedPartition
from ..errors import NotInArchive, UsageError
from ..formatting import Printer, header_text, template_printer
from ..lookup import Found, look_up
from ..stores.counting import CountingReader
from .options import ArchiveOptions, archive_options, json_option, open_counted_archive
from .program import closing, print_failure
from .tables import bytes_text


class Place(NamedTuple):
    """Where a record is to be found."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}:{self.offset}"


class Stats(NamedTuple):
    """What one look-up cost; the time in seconds, without connecting."""

    requests: int
    bytes_fetched: int
    data_bytes_fetched: int
    chunk_bytes: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {bytes_text(self.bytes_fetched)} fetched, "
            f"{bytes_text(self.data_bytes_fetched)} of them data of a chunk of {bytes_text(self.chunk_bytes)}, "
            f"{self.seconds * 1000:.1f} ms"
        )


@click.command(
    "get",
    epilog=closing(
        "replayer get orders:3:17 -a ./archive",
        "replayer get orders:3:17 --stats --json -a s3://bucket/prefix",
        "replayer get orders:3:17 orders:3:18 -f '%o %k\\n' -a ./archive",
    ),
)
@click.argument("places", metavar="TOPIC:PARTITION:OFFSET...", nargs=-1, required=True)
@click.option("--stats", is_flag=True, envvar="BLOCKGZ_STATS", show_envvar=True, help="Show what the look-up cost.")
@click.option(
    "-f",
    "template",
    envvar="BLOCKGZ_TEMPLATE",
    show_envvar=True,
    metavar="FORMAT",
    help="Print in kcat's format tokens.",
)
@json_option
@archive_options
def command(places: tuple[str, ...], stats: bool, template: str | None, as_json: bool, archive: ArchiveOptions) -> int:
    """Fetch single records, each by one range read.

    Prints the value and a newline; on a terminal, what else the record has comes first. Where there is no such
    record, says why and exits 4.
    """
    if as_json and template is not None:
        raise click.UsageError("--json and -f exclude each other")
    wanted = [parse_place(text) for text in places]
    printer = template_printer(template) if template is not None else None
    return asyncio.run(_get(wanted, archive, stats, as_json, printer))


def parse_place(text: str) -> Place:
    """The record that `orders:3:17` names; raises UsageError or BadName."""
    match = re.fullmatch(r"([^:]+):([0-9]{1,10}):([0-9]{1,19})", text, re.ASCII)
    if match is None:
        raise UsageError(
            f"{text[:300]!r} names no record", why="it is not TOPIC:PARTITION:OFFSET", remedy="write orders:3:17"
        )
    parse_topic_folder(match[1])
    return Place(match[1], int(match[2]), int(match[3]))


async def _get(
    places: list[Place], options: ArchiveOptions, with_stats: bool, as_json: bool, printer: Printer | None
) -> int:
    exit_code = 0
    async with open_counted_archive(options) as (archive, counting):
        partitions: dict[tuple[str, int], ArchivedPartition] = {}
        for place in places:
            try:
                record, stats = await _fetch(archive, counting, partitions, place)
            except NotInArchive as error:
                if len(places) == 1:
                    raise
                print_failure(error)
                exit_code = error.exit_code
                continue
            _print(place, record, stats if with_stats else None, as_json, printer)
    return exit_code


async def _fetch(
    archive: Archive, counting: CountingReader, partitions: dict[tuple[str, int], ArchivedPartition], place: Place
) -> tuple[Record, Stats]:
    before = (counting.requests, counting.bytes_fetched, counting.data_bytes_fetched)
    began = time.perf_counter()
    partition = partitions.get(place[:2])
    if partition is None:
        partition = partitions[place[:2]] = await archive.open_partition(place.topic, place.partition)
    outcome = await look_up(partition, place.offset)
    if not isinstance(outcome, Found):
        raise NotInArchive(f"there is no record {place}", why=outcome.why, remedy="see `replayer describe TOPIC`")
    seconds = time.perf_counter() - began
    after = (counting.requests, counting.bytes_fetched, counting.data_bytes_fetched)
    requests, fetched, data = (now - then for now, then in zip(after, before, strict=True))
    return outcome.record, Stats(requests, fetched, data, outcome.chunk_bytes, seconds)


def _print(place: Place, record: Record, stats: Stats | None, as_json: bool, printer: Printer | None) -> None:
    out = sys.stdout.buffer
    if as_json:
        fields: dict[str, Any] = json_object(record, topic=_plain(place.topic), partition=place.partition)
        whole = fields if stats is None else {"record": fields, "stats": stats._asdict()}
        out.write(msgspec.json.encode(whole) + b"\n")
    elif printer is not None:
        out.write(printer(_plain(place.topic), place.partition, batch_from_records([record])))
    else:
        if sys.stdout.isatty():
            out.write(card(place, record))
        out.write((record.value or b"") + b"\n")
    out.flush()
    if stats is not None and not as_json:
        click.echo(str(stats), err=True)


def card(place: Place, record: Record) -> bytes:
    """What a record has beside its value, for people."""
    lines = [f"{place}  {timestamp_text(record.timestamp)}  {TIMESTAMP_TYPES[record.timestamp_type]}".encode()]
    lines.append(b"key:     " + (b"(null)" if record.key is None else record.key))
    if record.headers:
        lines.append(b"headers: " + header_text(record.headers))
    lines.append(b"value:   " + (b"(null)" if record.value is None else b"%d bytes" % len(record.value)))
    return b"\n".join(lines) + b"\n"


def timestamp_text(timestamp: int) -> str:
    """A timestamp (ms) as RFC 3339, or its number where the calendar has no such day."""
    try:
        return datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):
        return str(timestamp)


def _plain(topic: str) -> str:
    return parse_topic_folder(topic).topic
