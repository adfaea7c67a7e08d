"""How records are printed."""

import functools
from typing import Any, NamedTuple, cast

import click

from replayer.cli.options.options import F, json_option, with_options
from replayer.read.formatting import Printer, envelope_printer, json_printer, template_printer


class Printing(NamedTuple):
    """How records are printed: `printer` is None where nothing was asked for; `as_json` where it is --json's."""

    printer: Printer | None
    as_json: bool


def printing_options(function: F) -> F:
    """Adds -f -J --json; passes `printing: Printing`."""

    @functools.wraps(function)
    def with_printing(*args: Any, template: str | None, as_envelope: bool, as_json: bool, **kwargs: Any) -> Any:
        if (template is not None) + as_envelope + as_json > 1:
            raise click.UsageError("-f, -J and --json exclude each other")
        printer = json_printer() if as_json else envelope_printer() if as_envelope else None
        if template is not None:
            printer = template_printer(template)
        return function(*args, printing=Printing(printer, as_json), **kwargs)

    options = [
        click.option(
            "-f", "template", envvar="BLOCKGZ_TEMPLATE", metavar="FORMAT", help="Print in kcat's format tokens."
        ),
        click.option("-J", "as_envelope", is_flag=True, envvar="BLOCKGZ_ENVELOPE", help="Print kcat's JSON."),
    ]
    return json_option(cast(F, with_options(with_printing, options)))
