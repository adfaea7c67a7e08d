"""`replayer get`."""

import asyncio
import re
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from blockgz_runtime.errors import NotInArchive, StoreUnavailable, UsageError
from blockgz_runtime.program.main import announce_retry, closing, print_failure
from blockgz_runtime.program.tables import bytes_text, timestamp_text
from blockgz_runtime.store.cache import DiskCache
from blockgz_runtime.store.reader import CountingReader
from index_format.errors import BlockgzError
from index_format.keys import parse_topic_folder
from index_format.record_formats.json_lines import json_object
from index_format.records import TIMESTAMP_TYPES, Record, batch_from_records
from replayer.cli.options.archive_options import ArchiveOptions, archive_options, cache_option, open_counted_archive
from replayer.cli.options.options import interval_option
from replayer.cli.options.selection_options import Printing, printing_options
from replayer.read.archive import Archive
from replayer.read.damage import Damaged
from replayer.read.formatting import header_text
from replayer.read.lookup import Found, Lost, NotYet, Outcome, look_up_all, look_up_position
from replayer.read.positions import AtOffset, Position, parse_position

TOGETHER = 500
"""Records that are looked up at once, and held in memory at once."""
PARTITIONS_AT_ONCE = 8
_PLACE = re.compile(r"([^:]+):([0-9]{1,10}):(.+)", re.ASCII)


class Place(NamedTuple):
    """Where a record is to be found."""

    topic: str
    partition: int
    position: Position
    text: str

    def __str__(self) -> str:
        return self.text


class Stats(NamedTuple):
    """What a look-up cost, or all that were made together; the time in seconds, without connecting."""

    requests: int
    bytes_fetched: int
    index_bytes_fetched: int
    """Of markers, catalogs and indexes."""
    data_bytes_fetched: int
    """Of blocks."""
    cached_bytes: int
    """Of catalogs and indexes, not fetched because this machine's cache had them."""
    chunk_bytes: int
    """The whole chunk that the record is in."""
    seconds: float

    def since(self, before: "Stats") -> "Stats":
        """What was added to running totals."""
        return Stats(*(now - then for now, then in zip(self, before, strict=True)))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {bytes_text(self.data_bytes_fetched)} of data fetched from a chunk of "
            f"{bytes_text(self.chunk_bytes)}, {bytes_text(self.index_bytes_fetched)} of marker and index "
            f"({bytes_text(self.cached_bytes)} more from the cache), {self.seconds * 1000:.1f} ms"
        )


class Answer(NamedTuple):
    """What became of one place."""

    place: Place
    outcome: Outcome | NotInArchive


@click.command(
    "get",
    epilog=closing(
        "replayer get orders:3:17 -a ./archive",
        "replayer get orders:3:17 --stats --json -a s3://bucket/prefix",
        "replayer get orders:3:17 orders:3:18 -f '%o %k\\n' -a ./archive",
        "replayer get orders:3:2026-11-20T12:00:00Z orders:3:-1 -a ./archive",
        "replayer get - --json -a ./archive < places.txt",
        "replayer get orders:3:1000000 --follow -a ./archive",
    ),
)
@click.argument("places", metavar="TOPIC:PARTITION:POSITION...", nargs=-1, required=True)
@click.option("--stats", is_flag=True, help="Show what the look-up cost.")
@click.option("-F", "--follow", is_flag=True, help="Wait for what is not archived yet.")
@interval_option
@printing_options
@cache_option
@archive_options
def command(
    places: tuple[str, ...],
    stats: bool,
    follow: bool,
    interval: float,
    printing: Printing,
    cache: DiskCache | None,
    archive: ArchiveOptions,
) -> int:
    """Fetch single records, each by one range read; several are fetched together.

    A position that is no plain offset, such as a time, means the first record at or after it. A dash reads places from
    stdin, one a line. Prints the value and a newline; on a terminal, what else the record has comes first. Where there
    is no such record, says why and exits 4.
    """
    now = time.time_ns() // 1_000_000
    wanted = [parse_place(text, now) for text in _texts(places)]
    fetching = _Get(wanted, stats, interval if follow else None, printing, cache)
    try:
        return asyncio.run(fetching.run(archive))
    except KeyboardInterrupt:
        if follow:
            return 130
        raise


def _texts(places: Sequence[str]) -> Iterator[str]:
    """The places, and where one is a dash the lines of stdin."""
    for place in places:
        if place == "-":
            yield from filter(None, map(str.strip, sys.stdin))
        else:
            yield place


def parse_place(text: str, now: int) -> Place:
    """The record that `orders:3:17` names, `now` in ms since the epoch; raises UsageError or BadName."""
    match = _PLACE.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text[:300]!r} names no record", why="it is not TOPIC:PARTITION:OFFSET", remedy="write orders:3:17"
        )
    parse_topic_folder(match[1])
    return Place(match[1], int(match[2]), parse_position(match[3], now), text)


class _Get(NamedTuple):
    """One run of the command; `interval` in seconds where it waits for what is not archived yet."""

    places: Sequence[Place]
    with_stats: bool
    interval: float | None
    printing: Printing
    cache: DiskCache | None

    async def run(self, options: ArchiveOptions) -> int:
        """Prints what is found and says why something is not; returns the exit code."""
        codes: list[int] = []
        async with open_counted_archive(options, self.cache) as (archive, counting):
            for first in range(0, len(self.places), TOGETHER):
                places = self.places[first : first + TOGETHER]
                before = self._costs(counting)
                answers = await self._answers(archive, places)
                codes += self._report(answers, self._costs(counting).since(before))
        return min(codes, default=0)

    def _costs(self, counting: CountingReader) -> Stats:
        fetched, data = counting.bytes_fetched, counting.data_bytes_fetched
        cached = self.cache.bytes_found if self.cache else 0
        return Stats(counting.requests, fetched, fetched - data, data, cached, 0, time.perf_counter())

    async def _answers(self, archive: Archive, places: Sequence[Place]) -> list[Answer]:
        answers = await _look_up_together(archive, places)
        is_silent = False
        while self.interval is not None and any(isinstance(answer.outcome, NotYet) for answer in answers):
            await asyncio.sleep(self.interval)
            waiting = [answer.place for answer in answers if isinstance(answer.outcome, NotYet)]
            try:
                newer = iter(await _look_up_together(archive, waiting))
            except StoreUnavailable as error:
                if not is_silent:
                    announce_retry(error)
                is_silent = True
                continue
            is_silent = False
            answers = [next(newer) if isinstance(answer.outcome, NotYet) else answer for answer in answers]
        return answers

    def _report(self, answers: Sequence[Answer], stats: Stats) -> list[int]:
        codes = []
        for place, outcome in answers:
            if isinstance(outcome, Found):
                self._print(place, outcome.record, stats._replace(chunk_bytes=outcome.chunk_bytes))
                continue
            error = _failure(place, outcome)
            if len(self.places) == 1:
                raise error
            codes.append(print_failure(error))
        sys.stdout.buffer.flush()
        found = [outcome.chunk_bytes for _, outcome in answers if isinstance(outcome, Found)]
        if self.with_stats and not self.printing.as_json and found:
            several = f"{len(found)} records: " if len(answers) > 1 else ""
            click.echo(f"{several}{stats._replace(chunk_bytes=max(found))}", err=True)
        return codes

    def _print(self, place: Place, record: Record, stats: Stats) -> None:
        out = sys.stdout.buffer
        topic = parse_topic_folder(place.topic).topic
        if self.printing.as_json and self.with_stats:
            fields: dict[str, Any] = json_object(record, topic=topic, partition=place.partition)
            out.write(msgspec.json.encode({"record": fields, "stats": stats._asdict()}) + b"\n")
        elif self.printing.printer is not None:
            out.write(self.printing.printer(topic, place.partition, batch_from_records([record])))
        else:
            if sys.stdout.isatty():
                out.write(card(f"{place.topic}:{place.partition}:{record.offset}", record))
            out.write((record.value or b"") + b"\n")


async def _look_up_together(archive: Archive, places: Sequence[Place]) -> list[Answer]:
    """The answers in the order of the places: one look at each marker, and what lies together is read together."""
    limit = asyncio.Semaphore(PARTITIONS_AT_ONCE)

    async def in_partition(topic: str, number: int, positions: Sequence[Position]) -> list[Outcome | NotInArchive]:
        async with limit:
            try:
                partition = await archive.open_partition(topic, number)
            except NotInArchive as error:
                return [error] * len(positions)
            except Damaged as error:
                return [Lost(error)] * len(positions)
            exact = await look_up_all(partition, [each.offset for each in positions if isinstance(each, AtOffset)])
            return [
                exact[position.offset]
                if isinstance(position, AtOffset)
                else await look_up_position(partition, position)
                for position in positions
            ]

    groups: dict[tuple[str, int], list[int]] = {}
    for number, place in enumerate(places):
        groups.setdefault((place.topic, place.partition), []).append(number)
    results = await asyncio.gather(
        *(in_partition(*where, [places[n].position for n in numbers]) for where, numbers in groups.items())
    )
    outcomes = {
        n: outcome for pair in zip(groups.values(), results, strict=True) for n, outcome in zip(*pair, strict=True)
    }
    return [Answer(place, outcomes[number]) for number, place in enumerate(places)]


def _failure(place: Place, outcome: Outcome | NotInArchive) -> BlockgzError:
    assert not isinstance(outcome, Found)
    if isinstance(outcome, NotInArchive):
        return outcome
    if isinstance(outcome, Lost):
        return outcome.error
    return NotInArchive(f"there is no record {place}", why=outcome.why, remedy="see `replayer describe TOPIC`")


def card(place: str, record: Record) -> bytes:
    """What a record has beside its value, for people."""
    lines = [f"{place}  {timestamp_text(record.timestamp)}  {TIMESTAMP_TYPES[record.timestamp_type]}".encode()]
    lines.append(b"key:     " + (b"(null)" if record.key is None else record.key))
    if record.headers:
        lines.append(b"headers: " + header_text(record.headers))
    lines.append(b"value:   " + (b"(null)" if record.value is None else b"%d bytes" % len(record.value)))
    return b"\n".join(lines) + b"\n"
