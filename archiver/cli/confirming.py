"""Asking before something is changed."""

import sys

import click

from blockgz_runtime.errors import UsageError


def confirm(question: str, *, undone: str, is_agreed: bool) -> None:
    """Asks unless `is_agreed`; raises click.Abort at a no, UsageError with what is `undone` where nobody can answer."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            undone,
            why="there is no terminal to ask on, and --yes was not given",
            remedy="add --yes, or --dry-run to see the plan only",
        )
    click.confirm(question, abort=True, err=True)
