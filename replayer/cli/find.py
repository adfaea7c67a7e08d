"""`replayer find`."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
import msgspec
import pyarrow as pa

from blockgz.archive.archive import ArchivePlace, TopicPartitions, parse_topic
from blockgz.archive.cuts import behind_note
from blockgz.archive.formatting import Printer
from blockgz.archive.lookup import TimedOffset, offset_at
from blockgz.archive.positions import AtTime, parse_time
from blockgz.archive.selection import DamagePolicies, SelectionRequest
from blockgz.errors import UsageError
from blockgz.process import run_async
from blockgz.program.main import closing
from blockgz.program.options import TimeOption, option_zone
from blockgz.program.terminal import print_rows, print_table
from blockgz.store.reader import DiskCache
from blockgz.units import wall_clock
from replayer.cli.cat import NOTHING_FOUND, print_records
from replayer.cli.options import options as common
from replayer.cli.options.selection_options import damage_option, print_skipped, selection_options

Row = dict[str, Any]
# The output format, and what prints its times.
Form = tuple[str, Callable[[int], str]]


@click.command(
    "find",
    epilog=closing(
        "replayer find orders --time 2026-11-20T12:00:00Z -a ./archive",
        "replayer find orders --time -1h --format csv -a ./archive > offsets.csv",
        "replayer find orders --key 42 --since -1d --json -a s3://bucket/prefix",
    ),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@click.option(
    "--time",
    "times",
    cls=TimeOption,
    multiple=True,
    metavar="TIME",
    help="Find the offsets for this time; may be repeated.",
)
@selection_options
@common.limit_option
@common.format_option()
@common.times_option
@damage_option
@common.cache_option
@common.archive_options
def command(
    topic: str,
    times: tuple[str, ...],
    selection: SelectionRequest,
    limit: int | None,
    form: str,
    as_times: str,
    on_damage: str,
    cache: DiskCache | None,
    archive: ArchivePlace,
) -> int:
    """Find the offsets for a time, or of records with a key, a header or a pattern.

    Give either --time, or one or more of --key, --null-key, --header and --grep.

    The offset for a time is that of the first record, in offset order, with this or a later timestamp. If there is
    none, it is the offset where the partition ends. With --format csv, the output is what kafka-consumer-groups
    --from-file takes: topic, partition and offset, without a header. Searching for records reads blocks; --from, --to,
    --since and --until limit which. Exits with 4 if no record is found.
    """
    wanted = parse_topic(topic)
    if times and (selection.narrows or limit is not None):
        raise click.UsageError("of the selection options, only --partitions can be combined with --time")
    if times:
        instants = [parse_time(text, wall_clock(), option_zone()) for text in times]
        asked_form = (form, common.time_printer(as_times))
        return run_async(_find_times(archive, cache, wanted.narrow(selection.partitions), instants, asked_form))
    if selection.filter.passes_all:
        raise UsageError(
            "there is nothing to find", why="neither a time nor a condition is given", remedy="add --time or --key"
        )
    return _find_records(
        archive, wanted, selection, limit, (form, common.time_printer(as_times)), DamagePolicies(on_damage)
    )


async def _find_times(
    options: ArchivePlace, cache: DiskCache | None, topic: TopicPartitions, times: Sequence[AtTime], form: Form
) -> int:
    async with common.open_archive(options, cache) as archive:
        partitions = await archive.open_topic(topic.topic, topic.partitions)
        offsets = [
            each
            for at in times
            for each in await asyncio.gather(*(offset_at(partition, at) for partition in partitions))
        ]
    for partition, each in zip(partitions * len(times), offsets, strict=True):
        if note := behind_note(partition, each.time, each.offset):
            click.echo(f"note: {note}", err=True)
    _print_offsets(offsets, *form)
    return 0 if any(each.found for each in offsets) else NOTHING_FOUND


def _print_offsets(offsets: Sequence[TimedOffset], form: str, time_text: Callable[[int], str]) -> None:
    match form:
        case "csv":
            for each in offsets:
                click.echo(f"{each.topic},{each.partition},{each.offset}")
        case "table":
            cells = []
            for each in offsets:
                found = _exact(each.timestamp, time_text) if each.found else "(its end)"
                cells.append((each.partition, time_text(each.time), each.offset, found))
            print_table(("PARTITION", "TIME", "OFFSET", "RECORD'S TIME"), cells)
        case _:
            rows = [each.document for each in offsets]
            print_rows(form, rows, rows)


def _find_records(
    options: ArchivePlace,
    topic: TopicPartitions,
    selection: SelectionRequest,
    limit: int | None,
    asked_form: Form,
    policies: DamagePolicies,
) -> int:
    out, (form, time_text) = sys.stdout.buffer, asked_form
    if form == "csv":
        out.write(b"topic,partition,offset,timestamp_ms\n")
    if form == "table":
        out.write(_table_line("PARTITION", "OFFSET", "TIMESTAMP"))
    printer = _PRINTERS.get(form) or partial(_as_table, time_text)
    number = run_async(print_records(options, topic, selection, limit, printer, policies))
    return print_skipped(policies) or (0 if number else NOTHING_FOUND)


def _places_of(topic: str, partition: int, batch: pa.RecordBatch) -> list[Row]:
    offsets, timestamps = (batch.column(name).to_pylist() for name in ("offset", "timestamp"))
    return [
        {"topic": topic, "partition": partition, "offset": offset, "timestamp_ms": time if time >= 0 else None}
        for offset, time in zip(offsets, timestamps, strict=True)
    ]


def _as_csv(topic: str, partition: int, batch: pa.RecordBatch) -> list[bytes]:
    rows = [
        ["" if value is None else str(value) for value in row.values()] for row in _places_of(topic, partition, batch)
    ]
    return [(",".join(row) + "\n").encode() for row in rows]


def _as_json(topic: str, partition: int, batch: pa.RecordBatch) -> list[bytes]:
    return [msgspec.json.Encoder().encode_lines(_places_of(topic, partition, batch))]


def _as_table(time_text: Callable[[int], str], topic: str, partition: int, batch: pa.RecordBatch) -> list[bytes]:
    rows = _places_of(topic, partition, batch)
    return [_table_line(partition, row["offset"], _exact(row["timestamp_ms"], time_text)) for row in rows]


def _exact(timestamp: int | None, time_text: Callable[[int], str]) -> str:
    return "-" if timestamp is None else time_text(timestamp)


def _table_line(partition: int | str, offset: int | str, timestamp: str) -> bytes:
    return f"{partition:>9}  {offset:>19}  {timestamp}\n".encode()


_PRINTERS: dict[str, Printer] = {"csv": _as_csv, "json": _as_json, "jsonl": _as_json}
