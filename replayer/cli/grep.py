"""`replayer grep`."""

import asyncio

import click

from blockgz_runtime.program.main import closing
from replayer.cli.cat import print_records
from replayer.cli.options.archive_options import ArchiveOptions, archive_options
from replayer.cli.options.damage import DamagePolicies, damage_option
from replayer.cli.options.printing_options import Printing, printing_options
from replayer.cli.options.selection_options import SelectionOptions, limit_option, selection_options
from replayer.cli.options.topic_argument import parse_topic
from replayer.read.formatting import template_printer
from replayer.read.record_filter import Condition, Not, Pattern, ValueMatches

NOTHING_FOUND = 4
DEFAULT_TEMPLATE = "%t:%p:%o:%s\\n"


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
@click.option("-i", "--ignore-case", is_flag=True, help="Take upper and lower case for the same.")
@click.option("-F", "--fixed-strings", is_flag=True, help="Take the pattern as it is, not as an expression.")
@click.option("-v", "--invert-match", is_flag=True, help="Print the records in which it is not found.")
@click.option("-c", "--count", is_flag=True, help="Print their number only.")
@selection_options
@limit_option
@printing_options
@damage_option
@archive_options
def command(
    pattern: str,
    topic: str,
    ignore_case: bool,
    fixed_strings: bool,
    invert_match: bool,
    count: bool,
    selection: SelectionOptions,
    limit: int | None,
    printing: Printing,
    on_damage: str,
    archive: ArchiveOptions,
) -> int:
    """Print the records in whose value REGEX is found, each with its place in front.

    REGEX has RE2's syntax. A value that is UTF-8 is searched as text, any other as bytes. Blocks outside --from, --to,
    --since and --until are not read. Exits 4 where nothing is found.
    """
    if count and printing.printer is not None:
        raise click.UsageError("--count prints a number: leave -f, -J and --json out")
    found = Pattern.literal(pattern, ignore_case=ignore_case) if fixed_strings else Pattern(pattern, ignore_case)
    condition: Condition = Not(ValueMatches(found)) if invert_match else ValueMatches(found)
    printer = (lambda *_: b"") if count else printing.printer or template_printer(DEFAULT_TEMPLATE)
    policies = DamagePolicies(on_damage)
    narrowed = selection.narrowed(condition)
    number = asyncio.run(print_records(archive, parse_topic(topic), narrowed, limit, printer, policies))
    if count:
        click.echo(number)
    return policies.report() or (0 if number else NOTHING_FOUND)
