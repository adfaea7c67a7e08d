"""How a command ends: errors as what, why and remedy on stderr, and the documented exit codes."""

import importlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import click

from index_format.errors import BlockgzError

INTERRUPTED = 130
PARTLY_FAILED = 3
EXIT_CODES = """\b
Exit codes:
    0  ok
    1  failed
    2  usage or configuration
    3  finished, but damage found or part of the work failed
    4  not in the archive
   10  no archive there
   11  partition owned by another writer
   12  credentials or permissions
  130  interrupted
"""

debug: ContextVar[bool] = ContextVar("debug", default=False)
"""Whether failures show their traceback: set by `--debug`."""


class Program(click.Group):
    """Commands that fail in one way: three lines and an exit code, a traceback only on demand."""

    def __init__(self, *args: Any, places: Mapping[str, str], **kwargs: Any) -> None:
        """`places`: of each command the module of this package and the name in it."""
        super().__init__(*args, **kwargs)
        self._places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """See click.Group."""
        return sorted(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """See click.Group."""
        if cmd_name in self._places and cmd_name not in self.commands:
            module, name = self._places[cmd_name].split(".")
            self.commands[cmd_name] = completed(getattr(importlib.import_module(f".{module}", __package__), name))
        return self.commands.get(cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run and exit; see click.Command.main."""
        kwargs["standalone_mode"] = False
        debug.set(False)
        try:
            code = super().main(*args, **kwargs)
            sys.stdout.flush()
        except click.exceptions.Exit as end:
            sys.exit(end.exit_code)
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(2)
        except click.ClickException as error:
            _print(_usage_lines(error))
            sys.exit(2)
        except (click.Abort, KeyboardInterrupt):
            _print(["interrupted"])
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output went away; nothing is left to say, not even at interpreter exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(0)
        except Exception as error:
            sys.exit(tell(error))
        sys.exit(code if isinstance(code, int) else 0)


def tell(error: Exception) -> int:
    """Say on stderr what went wrong; gives the exit code."""
    if isinstance(error, BlockgzError):
        _print(error_lines(error))
        return error.exit_code
    # The last resort, so that nobody sees a traceback unasked.
    _print(
        [
            f"error: {type(error).__name__}: {one_line(str(error))}",
            "why:   this is a fault of the program",
            "do:    run it again with --debug and report the traceback",
        ]
    )
    return 1


def error_lines(error: BlockgzError) -> list[str]:
    """What happened, why, and what to do, each on a line of its own."""
    lines = [f"error: {one_line(error.what)}"]
    lines += [f"why:   {one_line(error.why)}"] if error.why else []
    lines += [f"do:    {one_line(error.remedy)}"] if error.remedy else []
    return lines


def print_problems(problems: Iterable[tuple[str, BlockgzError]]) -> None:
    """Errors on stderr, each with where it was met."""
    for where, error in problems:
        lines = error_lines(error)
        click.echo("\n".join([lines[0].replace("error:", f"error: {where}:", 1), *lines[1:]]), err=True)


def one_line(text: str) -> str:
    """Text of a library with its line breaks folded."""
    return " ".join(text.split())


def closing(*examples: str) -> str:
    """The end of a help page: examples and exit codes."""
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples), "", EXIT_CODES])


def _usage_lines(error: click.ClickException) -> list[str]:
    command = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "archiver"
    return [
        f"error: {one_line(error.format_message())}",
        "why:   the command line cannot be used as it is",
        f"do:    see {command} --help",
    ]


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line, err=True)
    if debug.get():
        traceback.print_exc()


def completed(command: click.Command) -> click.Command:
    """The command, and those inside a group, with `--debug` and an environment variable for every option.

    The variable is BLOCKGZ_ and the long name in capitals, where the option names none.
    """
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            completed(inner)
        return command
    command.params.append(
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=lambda _ctx, _param, value: debug.set(value),
            help="Show tracebacks.",
        )
    )
    for param in command.params:
        if isinstance(param, click.Option):
            name = max(param.opts, key=len).lstrip("-").replace("-", "_").upper()
            param.envvar = param.envvar or "BLOCKGZ_" + {"X": "KAFKA_PROPERTIES"}.get(name, name)
            param.show_envvar = True
    return command
