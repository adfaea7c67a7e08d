"""How a command ends: errors as what, why and remedy on stderr, and the documented exit codes."""

import os
import sys
from typing import Any

import click

from index_format.errors import BlockgzError

INTERRUPTED = 130
EXIT_CODES = """\b
Exit codes:
  0 ok · 1 failed · 2 usage or configuration · 3 finished, but part of the work failed
  11 partition owned by another writer · 12 credentials or permissions · 130 interrupted
"""


class OutcomeGroup(click.Group):
    """A command group whose commands fail in one way: three lines and an exit code, a traceback only on demand."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run and exit; see click.Command.main."""
        kwargs["standalone_mode"] = False
        try:
            code = super().main(*args, **kwargs)
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)
        except click.ClickException as error:
            _print(_usage_lines(error))
            sys.exit(2 if isinstance(error, click.UsageError) else error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            _print(["interrupted"])
            sys.exit(INTERRUPTED)
        except BlockgzError as error:
            if os.environ.get("BLOCKGZ_DEBUG"):
                raise
            _print(error_lines(error))
            sys.exit(error.exit_code)
        except BrokenPipeError:
            # The reader of our output went away; nothing is left to say, not even at interpreter exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        sys.exit(code if isinstance(code, int) else 0)


def error_lines(error: BlockgzError) -> list[str]:
    """What happened, why, and what to do, each on a line of its own."""
    lines = [f"error: {error.what}"]
    lines += [f"why:   {one_line(error.why)}"] if error.why else []
    lines += [f"do:    {error.remedy}"] if error.remedy else []
    return lines


def one_line(text: str) -> str:
    """Text of a library with its line breaks folded."""
    return " ".join(text.split())


def _usage_lines(error: click.ClickException) -> list[str]:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "archiver"
    return [
        f"error: {one_line(error.format_message())}",
        "why:   the command line cannot be used as it is",
        f"do:    see {command} --help",
    ]


def _print(lines: list[str]) -> None:
    for line in lines:
        click.echo(line, err=True)


def with_environment(command: click.Command) -> click.Command:
    """The command with an environment variable for every option: BLOCKGZ_ and its long name in capitals."""
    for param in command.params:
        if isinstance(param, click.Option):
            name = max(param.opts, key=len).lstrip("-").replace("-", "_").upper()
            param.envvar = "BLOCKGZ_" + {"X": "KAFKA"}.get(name, name)
    return command
