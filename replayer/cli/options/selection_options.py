"""Options that choose records, and that say what happens at damage among them."""

import os
import sys
from collections.abc import Callable, Iterable
from typing import BinaryIO

import click

from blockgz.archive import selection
from blockgz.archive.cuts import cut_lines, refuse_doubtful
from blockgz.archive.positions import AtTime, BeforeTime, Rule, parse_position, parse_time, position_text
from blockgz.errors import PARTLY_FAILED, CutUndecided
from blockgz.program.main import print_failure
from blockgz.program.options import (
    Option,
    OptionSet,
    TimeOption,
    choice_option,
    grep_option,
    header_option,
    option_zone,
)
from blockgz.program.terminal import print_each
from blockgz.record_filter import Condition, KeyIn, Pattern, RecordFilter, ValueMatches
from blockgz.units import wall_clock


def _positions(start: str | None, end: str | None, at: str | None, at_rule: Rule | None) -> selection.Positions:
    """Return the positions of the options; `--at` becomes the end."""
    if end is not None and at is not None:
        raise click.UsageError("--to and --at both set the end: use one of them")
    if at_rule is not None and at is None:
        raise click.UsageError("--at-rule says how --at is understood: add --at TIME")
    now, zone = wall_clock(), option_zone()
    last = parse_time(at, now, zone) if at is not None else parse_position(end, now, zone) if end is not None else None
    first = parse_position(start, now, zone) if start is not None else None
    asked = (position_text(start or "earliest", first, zone), position_text(end or at or "latest", last, zone))
    if at is not None and isinstance(last, AtTime):
        return selection.positions_before(first, BeforeTime(last.timestamp, at_rule), asked)
    return selection.Positions(first, last, asked=asked)


def _selection(
    positions: selection.Positions,
    offset_file: BinaryIO | None,
    since: str | None,
    until: str | None,
    keys: tuple[str, ...],
    null_key: bool,
    headers: tuple[Condition, ...],
    grep: str | None,
    partitions: str | None = None,
) -> selection.SelectionRequest:
    now, zone = wall_clock(), option_zone()
    conditions = list(headers)
    if keys or null_key:
        conditions.append(KeyIn((*(os.fsencode(key) for key in keys), *([None] if null_key else []))))
    if grep is not None:
        conditions.append(ValueMatches(Pattern(grep)))
    start, end = (None if text is None else parse_time(text, now, zone).timestamp for text in (since, until))
    content = None if offset_file is None else offset_file.read(selection.MAX_FILE_BYTES + 1)
    return selection.SelectionRequest(
        positions, content, partitions, RecordFilter(start, end, tuple(conditions)), now, zone
    )


at_rule_option = Option(
    "--at-rule",
    type=click.Choice(["majority", "first"]),
    help="Where clocks disagree, --at leaves the fewest records on the wrong side (majority), or ends at the first "
    "record of the time or later, as Kafka does (first).  [default: majority; asks if it is in doubt]",
)

range_options = OptionSet(
    "positions",
    _positions,
    Option(
        "--from",
        "start",
        cls=TimeOption,
        metavar="POS",
        help="Start here: an offset, earliest, latest, +N, -N, a time, @UNIXTIME or a duration before now (-1h).",
    ),
    Option("--to", "end", cls=TimeOption, metavar="POS", help="End before this position; +N counts from --from."),
    Option("--at", cls=TimeOption, metavar="TIME", help="Select everything before this time."),
    at_rule_option,
)

_RECORD_PARTS = (
    range_options,
    Option(
        "--positions",
        "offset_file",
        type=click.File("rb"),
        metavar="FILE",
        help="Positions per partition: kafka-consumer-groups' CSV (topic,partition,offset), or JSON.",
    ),
    Option("--since", cls=TimeOption, metavar="TIME", help="Only records with this or a later timestamp."),
    Option("--until", cls=TimeOption, metavar="TIME", help="Only records with an earlier timestamp."),
    Option(
        "--key", "keys", multiple=True, metavar="TEXT", help="Only records with this key; repeat it to allow more keys."
    ),
    Option("--null-key", is_flag=True, help="Only records without a key; with --key, these as well."),
    header_option,
    grep_option,
)

# Passes `selection: SelectionRequest`, of all partitions.
record_options = OptionSet("selection", _selection, *_RECORD_PARTS)

selection_options = OptionSet(
    "selection", _selection, *_RECORD_PARTS, Option("--partitions", metavar="P,P-P", help="Only these partitions.")
)

CHOOSE_BY_OPTION = (
    "look at the records around both offsets with replayer cat, and repeat the command with --at-rule majority, or "
    "with --at-rule first"
)


def print_cuts(chosen: Iterable[selection.Selection], *, copies: bool) -> None:
    """Print on stderr which partitions end elsewhere as of a time than a person may expect.

    Raises CutUndecided if their records are to be copied and nobody chose a rule.
    """
    chosen = list(chosen)
    print_each("note: ", selection.notes_of(chosen), err=True)
    cuts = selection.cuts_of(chosen)
    print_each("warning: ", cut_lines(cuts), err=True)
    if copies:
        refuse_doubtful(cuts, CHOOSE_BY_OPTION)


def with_choice(run: Callable[[Rule | None], int]) -> int:
    """Run a command; if a rule for `--at` has to be chosen, ask for it on the terminal, and run it again with it."""
    try:
        return run(None)
    except CutUndecided as undecided:
        if not sys.stdin.isatty():
            raise
        print_failure(undecided)
        rule: Rule = click.prompt("--at-rule", type=click.Choice(["majority", "first"]), err=True)
    return run(rule)


# `on_damage: str`, for DamagePolicies.
damage_option = choice_option(
    "--on-damage",
    choices=[selection.STOPS, selection.SKIPS],
    help="At a damaged block: stop, or skip its records and name their offsets.",
)


def print_skipped(damage: selection.DamagePolicies) -> int:
    """Name the skipped offsets on stderr; return the exit code that this means."""
    for partition, (start, end, reason) in damage.skipped:
        click.echo(f"FAILURE {partition} skipped offsets [{start}..{end}): {reason}", err=True)
    return PARTLY_FAILED if damage.skipped else 0
