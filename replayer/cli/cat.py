"""`replayer cat`."""

import asyncio
import sys
from contextlib import aclosing

import click

from ..formatting import Printer, envelope_printer, json_printer, template_printer
from ..scan import scan
from .damage import DamagePolicies, damage_option
from .options import (
    ArchiveOptions,
    RangeOptions,
    TopicArgument,
    archive_options,
    json_option,
    open_archive,
    parse_topic,
    range_options,
)
from .program import closing

DEFAULT_TEMPLATE = "%s\\n"


@click.command(
    "cat",
    epilog=closing(
        "replayer cat orders -a ./archive | head -3",
        "replayer cat orders:3 --from -10 -f '%o %k %s\\n' -a ./archive",
        "replayer cat orders:0,2-4 --from 2026-11-20 --at -1h --json -a s3://bucket/prefix",
    ),
)
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@range_options
@click.option(
    "-n", "limit", type=click.IntRange(min=0), envvar="BLOCKGZ_LIMIT", show_envvar=True, help="Stop after N records."
)
@click.option(
    "-f",
    "template",
    envvar="BLOCKGZ_TEMPLATE",
    show_envvar=True,
    metavar="FORMAT",
    help="Print in kcat's format tokens.",
)
@click.option("-J", "as_envelope", is_flag=True, envvar="BLOCKGZ_ENVELOPE", show_envvar=True, help="Print kcat's JSON.")
@damage_option
@json_option
@archive_options
def command(
    topic: str,
    selection: RangeOptions,
    limit: int | None,
    template: str | None,
    as_envelope: bool,
    on_damage: str,
    as_json: bool,
    archive: ArchiveOptions,
) -> int:
    """Print records, partition after partition, in offset order; the value and a newline unless told otherwise.

    Damage ends the output with exit code 3; with --on-damage skip all other records are printed, the offsets that are
    lost are named on stderr, and the exit code is 3 all the same.
    """
    if (template is not None) + as_envelope + as_json > 1:
        raise click.UsageError("-f, -J and --json exclude each other")
    printer = json_printer() if as_json else envelope_printer() if as_envelope else None
    policies = DamagePolicies(on_damage)
    asyncio.run(
        _cat(
            archive,
            parse_topic(topic),
            selection,
            limit,
            printer or template_printer(template or DEFAULT_TEMPLATE),
            policies,
        )
    )
    return policies.report()


async def _cat(
    options: ArchiveOptions,
    topic: TopicArgument,
    selection: RangeOptions,
    limit: int | None,
    printer: Printer,
    policies: DamagePolicies,
) -> None:
    out = sys.stdout.buffer
    remaining = limit
    async with open_archive(options) as archive:
        for partition in await archive.open_topic(topic.topic, topic.partitions):
            start, end = await selection.resolve(partition)
            batches = scan(partition, start, end, on_damage=policies.of(partition))
            async with aclosing(batches):
                async for batch in batches:
                    part = batch if remaining is None else batch.slice(0, remaining)
                    out.write(printer(partition.topic, partition.partition, part))
                    if remaining is not None:
                        remaining -= part.num_rows
                        if remaining == 0:
                            break
            if remaining == 0:
                break
        out.flush()
