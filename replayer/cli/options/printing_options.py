"""Options that say how records are printed."""

from typing import NamedTuple

import click

from blockgz.archive.formatting import Printer, envelope_printer, json_printer, template_printer
from blockgz.program.options import Option, OptionSet
from blockgz.program.terminal import pass_everything
from replayer.cli.options.options import json_option


class Printing(NamedTuple):
    """The way to print records: `printer` is None if no option was given; `as_json` is true for --json."""

    printer: Printer | None
    as_json: bool


def _printing(as_json: bool, template: str | None, as_envelope: bool, raw: bool) -> Printing:
    if (template is not None) + as_envelope + as_json > 1:
        raise click.UsageError("use only one of -f, -J and --json")
    if raw:
        pass_everything()
    printer = json_printer() if as_json else envelope_printer() if as_envelope else None
    return Printing(printer if template is None else template_printer(template), as_json)


printing_options = OptionSet(
    "printing",
    _printing,
    json_option,
    Option("-f", "template", envvar="BLOCKGZ_TEMPLATE", metavar="FORMAT", help="Print with kcat's format tokens."),
    Option("-J", "as_envelope", is_flag=True, envvar="BLOCKGZ_ENVELOPE", help="Print kcat's JSON."),
    Option("--raw", is_flag=True, help="Print control characters as they are, on a terminal too."),
)
