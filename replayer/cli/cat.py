"""`replayer cat`."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

import click

from blockgz_runtime.program.main import closing
from replayer.cli.options.archive_options import ArchiveOptions, archive_options, open_archive
from replayer.cli.options.damage import STOPPING, DamagePolicies, damage_option
from replayer.cli.options.printing_options import Printing, printing_options
from replayer.cli.options.selection_options import SelectionOptions, limit_option, selection_options
from replayer.cli.options.topic_argument import TopicArgument, parse_topic
from replayer.read.formatting import Printer, template_printer
from replayer.read.positions import parse_kcat_offset
from replayer.read.selection import Positions, selected

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
@click.option(
    "-o",
    "--offset",
    "offsets",
    multiple=True,
    metavar="OFFSET",
    help="As kcat's -o: beginning, end, N, -N, s@MS to start and e@MS to end at a time.",
)
@selection_options
@limit_option
@printing_options
@damage_option
@archive_options
def command(
    topic: str,
    offsets: tuple[str, ...],
    selection: SelectionOptions,
    limit: int | None,
    printing: Printing,
    on_damage: str,
    archive: ArchiveOptions,
) -> int:
    """Print records, partition after partition, in offset order.

    The value and a newline unless told otherwise.
    Damage ends the output with exit code 3; with --on-damage skip all other records are printed, the offsets that are
    lost are named on stderr, and the exit code is 3 all the same.
    """
    if offsets:
        if selection.positions != Positions():
            raise click.UsageError("-o stands for --from and --to: give the one or the others")
        selection = replace(selection, positions=_kcat_positions(offsets))
    policies = DamagePolicies(on_damage)
    printer = printing.printer or template_printer(DEFAULT_TEMPLATE)
    asyncio.run(print_records(archive, parse_topic(topic), selection, limit, printer, policies))
    return policies.report()


def _kcat_positions(offsets: Sequence[str]) -> Positions:
    starts, ends = zip(*map(parse_kcat_offset, offsets), strict=True)
    chosen = [[each for each in which if each is not None] for which in (starts, ends)]
    if any(len(which) > 1 for which in chosen):
        raise click.UsageError("-o is given twice for the same end")
    start, end = (which[0] if which else None for which in chosen)
    return Positions(start, end)


async def print_records(
    options: ArchiveOptions,
    topic: TopicArgument,
    selection: SelectionOptions,
    limit: int | None,
    printer: Printer,
    policies: DamagePolicies = STOPPING,
) -> int:
    """Prints at most `limit` records of a selection; returns how many."""
    out = sys.stdout.buffer
    printed = 0
    async with open_archive(options) as archive:
        for each in await selection.select(archive, topic):
            if printed == limit:
                break
            async with aclosing(selected(each, selection.filter, policies.of(each.partition))) as batches:
                async for batch in batches:
                    part = batch if limit is None else batch.slice(0, limit - printed)
                    out.write(printer(each.partition.topic, each.partition.partition, part))
                    printed += part.num_rows
                    if printed == limit:
                        break
        out.flush()
    return printed
