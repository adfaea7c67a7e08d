"""All commands of a program, and how one ended."""

from collections.abc import Iterator

import click
from click.testing import Result


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command and group inside a group, with the words that lead to it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


def exited(result: Result, exit_code: int) -> Result:
    """Return the result of a command; fail with its output unless that is its exit code."""
    assert result.exit_code == exit_code, result.output
    return result


def succeeded(result: Result) -> Result:
    """Return the result of a command; fail with its output unless its exit code is 0."""
    return exited(result, 0)
