"""`replayer get`."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from typing import NamedTuple

import click
import msgspec
import pyarrow as pa

from blockgz.archive.archive import ArchivePlace, ArchiveReader
from blockgz.archive.formatting import DEFAULT_TEMPLATE, header_text, json_printer, template_printer
from blockgz.archive.lookup import Absent, FoundRecord, Outcome, RecordQuery, failure, look_up_together, parse_query
from blockgz.errors import NotInArchive, StoreUnavailable
from blockgz.process import ended_soon_after_signals, run_async
from blockgz.program.main import ENDED_BY, INTERRUPTED, announce_retry, closing, print_failure
from blockgz.program.options import option_zone, zone_option
from blockgz.store.reader import CountingReader, DiskCache
from blockgz.units import bytes_text, wall_clock
from index_format.keys import parse_topic_folder
from index_format.records import TIMESTAMP_TYPES, Record, record_at
from replayer.cli.options import options as common

# Records that are looked up at once, and held in memory at once.
TOGETHER = 500


class Stats(NamedTuple):
    """The cost of a look-up, or of all that were made together; the time in seconds, without connecting."""

    requests: int
    bytes_fetched: int
    index_bytes_fetched: int
    """Bytes of markers, catalogs and indexes."""
    data_bytes_fetched: int
    """Bytes of blocks."""
    cached_bytes: int
    """Bytes of catalogs and indexes that came from this machine's cache."""
    chunk_bytes: int
    """The whole chunk that the record is in."""
    seconds: float

    def since(self, before: "Stats") -> "Stats":
        """Return the difference to earlier totals."""
        return Stats(*(now - then for now, then in zip(self, before, strict=True)))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {bytes_text(self.data_bytes_fetched)} of data fetched from a chunk of "
            f"{bytes_text(self.chunk_bytes)}, {bytes_text(self.index_bytes_fetched)} of marker and index "
            f"({bytes_text(self.cached_bytes)} more from the cache), {self.seconds * 1000:.1f} ms"
        )


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
@click.option("--stats", is_flag=True, help="Show the cost of the look-up: requests and bytes.")
@click.option("-F", "--follow", is_flag=True, help="Wait until the records are archived.")
@common.interval_option
@common.printing_options
@common.cache_option
@common.times_option
@zone_option
@common.archive_options
def command(
    places: tuple[str, ...],
    stats: bool,
    follow: bool,
    interval: float,
    printing: common.Printing,
    cache: DiskCache | None,
    as_times: str,
    archive: ArchivePlace,
) -> int:
    """Fetch single records, each with one range read; several are fetched together.

    A position other than an offset, such as a time, means the first record at or after it; a time without an offset is
    in UTC, or --timezone. `latest`, or -N if the last N offsets hold no record, means the newest one. A dash reads
    places from stdin, one per line. Prints the value and a newline; on a terminal, the record's other fields come
    first. If a record does not exist, says why and exits with 4.
    """
    now = wall_clock()
    wanted = [parse_query(text, now, option_zone()) for text in _texts(places)]
    fetching = _Lookups(wanted, stats, interval if follow else None, printing, cache, common.time_printer(as_times))
    try:
        return run_async(fetching.run(archive))
    except KeyboardInterrupt:
        if follow:
            return INTERRUPTED
        raise


def _texts(places: Sequence[str]) -> Iterator[str]:
    for place in places:
        if place == "-":
            yield from filter(None, map(str.strip, sys.stdin))
        else:
            yield place


class _Lookups(NamedTuple):
    queries: Sequence[RecordQuery]
    with_stats: bool
    interval: float | None
    printing: common.Printing
    cache: DiskCache | None
    time: Callable[[int], str]

    async def run(self, options: ArchivePlace) -> int:
        codes: list[int] = []
        async with AsyncExitStack() as stack:
            stack.enter_context(ended_soon_after_signals(ENDED_BY))
            archive, counting = await stack.enter_async_context(common.open_counted_archive(options, self.cache))
            # In groups, because all outcomes of a group are held in memory.
            for first in range(0, len(self.queries), TOGETHER):
                queries = self.queries[first : first + TOGETHER]
                before = self._costs(counting)
                outcomes = await self._outcomes(archive, queries)
                answers = [(query, outcomes[query]) for query in queries]
                codes += self._report(answers, self._costs(counting).since(before))
        return min(codes, default=0)

    def _costs(self, counting: CountingReader) -> Stats:
        fetched, data = counting.bytes_fetched, counting.data_bytes_fetched
        cached = self.cache.bytes_found if self.cache else 0
        return Stats(counting.requests, fetched, fetched - data, data, cached, 0, time.perf_counter())

    async def _outcomes(
        self, archive: ArchiveReader, queries: Sequence[RecordQuery]
    ) -> dict[RecordQuery, Outcome | NotInArchive]:
        outcomes = await look_up_together(archive, queries)
        is_silent = False
        while self.interval is not None and (
            waiting := [q for q, each in outcomes.items() if isinstance(each, Absent) and each.kind == "not yet"]
        ):
            await asyncio.sleep(self.interval)
            try:
                outcomes |= await look_up_together(archive, waiting)
                is_silent = False
            except StoreUnavailable as error:
                if not is_silent:
                    announce_retry(error)
                is_silent = True
        return outcomes

    def _report(self, answers: Sequence[tuple[RecordQuery, Outcome | NotInArchive]], stats: Stats) -> list[int]:
        codes = []
        for query, outcome in answers:
            if isinstance(outcome, FoundRecord):
                self._print(query, outcome.batch, stats._replace(chunk_bytes=outcome.chunk_bytes))
                continue
            error = failure(query, outcome)
            if len(self.queries) == 1:
                raise error
            codes.append(print_failure(error))
        sys.stdout.buffer.flush()
        found = [outcome.chunk_bytes for _, outcome in answers if isinstance(outcome, FoundRecord)]
        if self.with_stats and not self.printing.as_json and found:
            several = f"{len(found)} records: " if len(answers) > 1 else ""
            click.echo(f"{several}{stats._replace(chunk_bytes=max(found))}", err=True)
        return codes

    def _print(self, query: RecordQuery, batch: pa.RecordBatch, stats: Stats) -> None:
        out = sys.stdout.buffer
        topic = parse_topic_folder(query.topic).topic
        printer = self.printing.printer or template_printer(DEFAULT_TEMPLATE)
        if self.printing.as_json and self.with_stats:
            out.write(b'{"record":')
            printer = json_printer(b',"stats":%b}\n' % msgspec.json.encode(stats._asdict()))
        elif self.printing.printer is None and sys.stdout.isatty():
            record = record_at(batch, 0)
            out.write(card(f"{query.topic}:{query.partition}:{record.offset}", record, self.time))
        out.writelines(printer(topic, query.partition, batch))


def card(place: str, record: Record, time: Callable[[int], str]) -> bytes:
    """Return the record's fields except its value, for people."""
    lines = [f"{place}  {time(record.timestamp)}  {TIMESTAMP_TYPES[record.timestamp_type]}".encode()]
    lines.append(b"key:     " + (b"(null)" if record.key is None else record.key))
    if record.headers:
        lines.append(b"headers: " + header_text(record.headers))
    lines.append(b"value:   " + (b"(null)" if record.value is None else b"%d bytes" % len(record.value)))
    return b"\n".join(lines) + b"\n"
