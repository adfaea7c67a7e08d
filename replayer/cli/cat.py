"""`replayer cat`."""

import asyncio
import sys
from contextlib import aclosing

import click

from ..formatting import Printer, template_printer
from ..selection import selected
from .options import (
    ArchiveOptions,
    Printing,
    SelectionOptions,
    TopicArgument,
    archive_options,
    limit_option,
    open_archive,
    parse_topic,
    printing_options,
    selection_options,
)
from .program import closing

DEFAULT_TEMPLATE = "%s\\n"


@click.command(
    "cat",
    epilog=closing(
        "replayer cat orders -a ./archive | head -3",
        "replayer cat orders:3 --from -10 -f '%o %k %s\\n' -a ./archive",
        "replayer cat orders:0,2-4 --from 2026-11-20 --at -1h --json -a s3://bucket/prefix",
        "replayer cat orders --since -1h --key 42 --header origin=web --grep 'total.: *[0-9]{5}' -a ./archive",
    ),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@selection_options
@limit_option
@printing_options
@archive_options
def command(
    topic: str, selection: SelectionOptions, limit: int | None, printing: Printing, archive: ArchiveOptions
) -> None:
    """Print records, partition after partition, in offset order; the value and a newline unless told otherwise."""
    printer = printing.printer or template_printer(DEFAULT_TEMPLATE)
    asyncio.run(print_records(archive, parse_topic(topic), selection, limit, printer))


async def print_records(
    options: ArchiveOptions,
    topic: TopicArgument,
    selection: SelectionOptions,
    limit: int | None,
    printer: Printer,
) -> int:
    """Prints at most `limit` records of a selection; returns how many."""
    out = sys.stdout.buffer
    printed = 0
    async with open_archive(options) as archive:
        for each in await selection.select(archive, topic):
            if printed == limit:
                break
            async with aclosing(selected(each, selection.filter)) as batches:
                async for batch in batches:
                    part = batch if limit is None else batch.slice(0, limit - printed)
                    out.write(printer(each.partition.topic, each.partition.partition, part))
                    printed += part.num_rows
                    if printed == limit:
                        break
        out.flush()
    return printed
