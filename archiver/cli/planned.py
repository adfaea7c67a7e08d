"""The shell of commands that change an archive: plan, question, result, as tables or JSON."""

from pathlib import Path

import click
import msgspec

from archiver.maintain.planned import PlannedCommand
from archiver.maintain.rewrite.chunks import RewriteKeys
from blockgz.program.archive_options import encrypt_option, keys_option
from blockgz.program.main import code_of_problems, confirm, print_problems
from blockgz.program.options import SIZE, F, LocalPath, OptionSet, with_options
from blockgz.program.terminal import print_table


def carry_out(command: PlannedCommand, archive: str, *, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Show the plan, carry it out if the user agrees, print the result, and return the exit code."""
    if not as_json:
        _print_plan(command)
    if command.question is not None and not dry_run:
        confirm(command.question, undone=command.undone, is_agreed=yes, typed=command.typed)
        command.carry_out()
    if not as_json and not dry_run and (summary := command.summary()):
        click.echo(summary)
    print_problems(command.problems)
    if as_json:
        document = {"archive": archive, **command.as_json(dry_run=dry_run)}
        document["problems"] = [each.as_json for each in command.problems]
        click.echo(msgspec.json.encode(document).decode())
    return code_of_problems([each.error for each in command.problems], tried=command.num_tried(dry_run=dry_run))


def _print_plan(command: PlannedCommand) -> None:
    rows = command.rows()
    if rows and not command.columns:
        for row in rows:
            click.echo("  ".join(map(str, row)))
    elif rows:
        print_table(command.columns, rows, droppable=command.droppable)
    elif not command.problems:
        click.echo(command.nothing)
    if rows and command.untouched:
        click.echo(f"{command.untouched:,} partitions stay as they are")
    for note in command.notes:
        click.echo(f"note: {note}", err=True)


def buffer_options(function: F) -> F:
    """Add `buffer_dir: Path | None` and `buffer_bytes: int`."""
    return with_options(
        function,
        [
            click.option("--buffer-dir", type=LocalPath(path_type=Path), help="Folder for chunks that are rewritten."),
            click.option(
                "--buffer-bytes",
                type=SIZE,
                default="8GiB",
                show_default=True,
                help="Rewrite at most this many bytes at a time, unless a single chunk is larger.",
            ),
        ],
    )


# Passes `rewrite_keys: RewriteKeys`.
rewrite_keys_options = OptionSet("rewrite_keys", RewriteKeys.of, keys_option, encrypt_option)
