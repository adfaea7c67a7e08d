"""`replayer tail`."""

import asyncio
import sys
from contextlib import AsyncExitStack, aclosing
from typing import NamedTuple

import click
import pyarrow as pa

from blockgz.archive.archive import ArchivePlace, ArchiveReader, TopicPartitions, parse_topic
from blockgz.archive.follow import Follower, last_records
from blockgz.archive.formatting import DEFAULT_TEMPLATE, Printer, template_printer
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, SelectionRequest, selected
from blockgz.errors import StoreUnavailable
from blockgz.process import ended_soon_after_signals, run_async
from blockgz.program.main import ENDED_BY, INTERRUPTED, announce_retry, closing
from blockgz.store.reader import DiskCache
from replayer.cli.options import options as common
from replayer.cli.options.selection_options import selection_options


@click.command(
    "tail",
    epilog=closing(
        "replayer tail orders:3 -n 5 -a ./archive",
        "replayer tail orders -F --json -a s3://bucket/prefix",
        "replayer tail orders -n 1 --key 42 -a ./archive",
    ),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=0),
    metavar="N",
    default=10,
    show_default=True,
    help="Number of records per partition.",
)
@click.option("-F", "--follow", is_flag=True, help="Keep printing new records as they are archived.")
@common.interval_option
@selection_options
@common.printing_options
@common.cache_option
@common.archive_options
def command(
    topic: str,
    lines: int,
    follow: bool,
    interval: float,
    selection: SelectionRequest,
    printing: common.Printing,
    cache: DiskCache | None,
    archive: ArchivePlace,
) -> int:
    """Print the newest records of each partition in offset order.

    Prints each value and a newline by default. With -F, prints new records as their chunks are committed, until you
    interrupt it (exit code 130). Gaps, new partitions and a topic that is created again are reported on stderr.
    """
    if follow and selection.ends:
        raise click.UsageError("--follow has no end: remove --to, --at and --until")
    tail = _RecordTail(parse_topic(topic), selection, printing.printer or template_printer(DEFAULT_TEMPLATE))
    try:
        run_async(tail.run(archive, cache, lines, interval if follow else None))
    except KeyboardInterrupt:
        if follow:
            return INTERRUPTED
        raise
    return 0


class _RecordTail(NamedTuple):
    topic: TopicPartitions
    selection: SelectionRequest
    printer: Printer

    async def run(self, options: ArchivePlace, cache: DiskCache | None, lines: int, interval: float | None) -> None:
        async with AsyncExitStack() as stack:
            stack.enter_context(ended_soon_after_signals(ENDED_BY))
            archive = await stack.enter_async_context(common.open_archive(options, cache))
            selections = await self.selection.select(archive, self.topic)
            for each in selections:
                for batch in await last_records(each, self.selection.filter, lines):
                    self._print(each.partition, batch)
            sys.stdout.buffer.flush()
            if interval is not None:
                await self._follow(archive, selections, interval)

    async def _follow(self, archive: ArchiveReader, selections: list[Selection], interval: float) -> None:
        follower = Follower(
            archive,
            self.topic.topic,
            [(partition, offsets.end) for partition, offsets, *_ in selections],
            lambda line: click.echo(line, err=True),
            watch_for_partitions=self.topic.partitions is None and self.selection.partitions is None,
        )
        while True:
            for news in await follower.poll():
                await self._print_news(news, interval)
            await asyncio.sleep(interval)

    async def _print_news(self, news: Selection, interval: float) -> None:
        partition, (start, end), *_ = news
        is_silent = False
        while True:
            try:
                rest = Selection(partition, OffsetRange(start, end))
                async with aclosing(selected(rest, self.selection.filter)) as batches:
                    async for batch in batches:
                        self._print(partition, batch)
                        sys.stdout.buffer.flush()
                        start = batch.column("offset")[-1].as_py() + 1
                return
            except StoreUnavailable as error:
                if not is_silent:
                    announce_retry(error)
                is_silent = True
                await asyncio.sleep(interval)

    def _print(self, partition: ArchivedPartition, batch: pa.RecordBatch) -> None:
        sys.stdout.buffer.writelines(self.printer(partition.topic, partition.partition, batch))
