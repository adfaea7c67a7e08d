"""Options of commands that print a plan before they change something."""

import click

from blockgz.program.options import F, Option, with_options

dry_run_option = Option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
"""Passes `dry_run: bool`."""

yes_option = Option("--yes", is_flag=True, help="Do not ask.")
"""Passes `yes: bool`."""


def plan_options(function: F) -> F:
    """Adds both, and `as_json: bool`."""
    as_json = click.option("--json", "as_json", is_flag=True, help="Print plan and result as JSON.")
    return with_options(function, [dry_run_option, yes_option, as_json])
