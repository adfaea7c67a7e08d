"""`replayer cat` and `replayer grep`."""

import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace

import click

from blockgz.archive.archive import ArchivePlace, TopicPartitions, parse_topic
from blockgz.archive.formatting import DEFAULT_TEMPLATE, Printer, template_printer
from blockgz.archive.positions import parse_kcat_offset
from blockgz.archive.selection import DamagePolicies, Positions, Selection, SelectionRequest, selected_batches
from blockgz.process import ended_soon_after_signals, run_async
from blockgz.program.main import ENDED_BY, closing
from blockgz.record_filter import Condition, Not, Pattern, RecordFilter, ValueMatches
from replayer.cli.options.options import Printing, archive_options, limit_option, open_archive, printing_options
from replayer.cli.options.selection_options import damage_option, print_cuts, print_skipped, selection_options

NOTHING_FOUND = 4
GREP_TEMPLATE = "%t:%p:%o:%s\\n"


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
    help="Like kcat's -o: beginning, end, N, -N; s@MS starts and e@MS ends at a time.",
)
@selection_options
@limit_option
@printing_options
@damage_option
@archive_options
def cat(
    topic: str,
    offsets: tuple[str, ...],
    selection: SelectionRequest,
    limit: int | None,
    printing: Printing,
    on_damage: str,
    archive: ArchivePlace,
) -> int:
    """Print records, one partition after another, in offset order.

    Prints each value and a newline by default. Damage ends the output with exit code 3. With --on-damage skip, all
    other records are printed, the lost offsets are named on stderr, and the exit code is still 3.
    """
    if offsets:
        if selection.positions != Positions():
            raise click.UsageError("-o replaces --from and --to: use one or the other")
        selection = replace(selection, positions=_kcat_positions(offsets))
    damage = DamagePolicies(on_damage)
    printer = printing.printer or template_printer(DEFAULT_TEMPLATE)
    run_async(print_records(archive, parse_topic(topic), selection, limit, printer, damage))
    return print_skipped(damage)


def _kcat_positions(offsets: Sequence[str]) -> Positions:
    starts, ends = zip(*map(parse_kcat_offset, offsets), strict=True)
    chosen = [[each for each in which if each is not None] for which in (starts, ends)]
    if any(len(which) > 1 for which in chosen):
        raise click.UsageError("-o sets the same end twice")
    start, end = (which[0] if which else None for which in chosen)
    return Positions(start, end)


@click.command(
    "grep",
    epilog=closing(
        "replayer grep 'error|failed' logs --since -1h -a s3://bucket/prefix",
        "replayer grep -F -i '[timeout]' logs:0-3 -n 10 --json -a ./archive",
        "replayer grep -c . orders --at 2026-11-20 -a ./archive",
    ),
)
@click.argument("pattern", metavar="REGEX")
@click.argument("topic", metavar="TOPIC[:P[,P-P]]")
@click.option("-i", "--ignore-case", is_flag=True, help="Ignore case.")
@click.option("-F", "--fixed-strings", is_flag=True, help="Match the pattern literally, not as a regex.")
@click.option("-v", "--invert-match", is_flag=True, help="Print the records that do not match.")
@click.option("-c", "--count", is_flag=True, help="Print only the number of matches.")
@selection_options
@limit_option
@printing_options
@damage_option
@archive_options
def grep(
    pattern: str,
    topic: str,
    ignore_case: bool,
    fixed_strings: bool,
    invert_match: bool,
    count: bool,
    selection: SelectionRequest,
    limit: int | None,
    printing: Printing,
    on_damage: str,
    archive: ArchivePlace,
) -> int:
    """Print the records whose value matches REGEX, each preceded by its place.

    REGEX uses RE2 syntax. A value that is UTF-8 is searched as text, any other as bytes. Blocks outside --from, --to,
    --since and --until are not read. Exits with 4 if nothing matches.
    """
    if count and printing.printer is not None:
        raise click.UsageError("--count prints a number: remove -f, -J and --json")
    found = Pattern.literal(pattern, ignore_case=ignore_case) if fixed_strings else Pattern(pattern, ignore_case)
    condition: Condition = Not(ValueMatches(found)) if invert_match else ValueMatches(found)
    printer = (lambda *_: ()) if count else printing.printer or template_printer(GREP_TEMPLATE)
    damage = DamagePolicies(on_damage)
    narrowed = selection.narrow(condition)
    number = run_async(print_records(archive, parse_topic(topic), narrowed, limit, printer, damage))
    if count:
        click.echo(number)
    return print_skipped(damage) or (0 if number else NOTHING_FOUND)


async def print_records(
    options: ArchivePlace,
    topic: TopicPartitions,
    selection: SelectionRequest,
    limit: int | None,
    printer: Printer,
    damage: DamagePolicies,
) -> int:
    """Print at most `limit` records of a selection; return how many."""
    out = sys.stdout.buffer
    printed = 0
    async with AsyncExitStack() as stack:
        stack.enter_context(ended_soon_after_signals(ENDED_BY))
        archive = await stack.enter_async_context(open_archive(options))
        chosen = await selection.select(archive, topic)
        print_cuts(chosen, copies=False)
        printing = selected_batches(chosen, selection.filter, limit, damage)
        batches = await stack.enter_async_context(aclosing(printing))
        async for partition, batch in batches:
            out.writelines(printer(partition.topic, partition.partition, batch))
            printed += batch.num_rows
            del batch
        out.flush()
        if printed == 0 and limit != 0:
            say_why_nothing(chosen, selection.filter)
    return printed


def say_why_nothing(chosen: Sequence[Selection], record_filter: RecordFilter) -> None:
    """Say on stderr why no record was found: no offsets were chosen, or they are a gap, pruned, erased or markers."""
    if all(each.offsets.start == each.offsets.end for each in chosen):
        held = [
            f"{each.partition} holds offsets [{each.partition.start_offset}..{each.partition.next_offset})"
            for each in chosen
        ]
        click.echo(f"no records: {', '.join(held[:3] + ['...'] * (len(held) > 3))}", err=True)
    elif record_filter.passes_all:
        for each in chosen:
            start, end = each.offsets.start, each.offsets.end
            if start < end:
                said = (
                    f"no records at {each.partition} [{start}..{end}): replayer get {each.partition}:{start} says why"
                )
                click.echo(said, err=True)
