"""How every command ends: errors as three lines, and the exit codes."""

import importlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import click

from index_format.errors import BlockgzError

EXIT_CODES = {
    0: "ok",
    1: "failed",
    2: "usage or configuration",
    3: "finished, but damage found or part of the work failed",
    4: "not in the archive",
    10: "no archive there",
    11: "partition owned by another writer",
    12: "credentials or permissions",
    130: "interrupted",
}

DEBUG = "debug"
debug: ContextVar[bool] = ContextVar("debug", default=False)
"""Whether failures show their traceback: set by `--debug`."""


class Program(click.Group):
    """A group whose commands live in modules of this package, each under the name `command`."""

    def __init__(self, *args: Any, modules: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """See click.Group."""
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """See click.Group."""
        if cmd_name not in self._modules:
            return None
        command: click.Command = importlib.import_module(f".{self._modules[cmd_name]}", __package__).command
        return completed(command)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; a reader of stdout that went away (`| head`) is no failure."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        return result

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Runs the program and exits with the documented code; the only place where errors are printed."""
        if not extra.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **extra)
        debug.set(False)
        sys.exit(self._run(args, prog_name, extra))

    def _run(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        try:
            result = super().main(args, prog_name, standalone_mode=False, **extra)
        except click.Abort:
            click.echo("interrupted", err=True)
            return 130
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return 2
        except click.ClickException as error:
            print_usage_error(error)
            return 2
        except BlockgzError as error:
            print_failure(error)
            return error.exit_code
        except Exception as error:  # the last resort, so that nobody sees a traceback unasked
            _print_lines(
                f"{type(error).__name__}: {' '.join(str(error).split())}",
                "this is a fault of the program",
                "run it again with --debug and report the traceback",
            )
            return 1
        return result if isinstance(result, int) else 0


def completed(command: click.Command) -> click.Command:
    """The command, and those inside a group, with `--debug` and an environment variable for every option.

    The variable is BLOCKGZ_ and the long name in capitals, where the option names none. May be done again.
    """
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            completed(inner)
        return command
    if all(param.name != DEBUG for param in command.params):
        command.params.append(_debug_option())
    for param in command.params:
        if isinstance(param, click.Option):
            name = max(param.opts, key=len).lstrip("-").replace("-", "_").upper()
            param.envvar = param.envvar or f"BLOCKGZ_{name}"
            param.show_envvar = True
    return command


def _debug_option() -> click.Option:
    return click.Option(
        [f"--{DEBUG}"],
        is_flag=True,
        expose_value=False,
        callback=lambda _ctx, _param, value: debug.set(value),
        help="Show tracebacks.",
    )


def print_failure(error: BlockgzError) -> None:
    """What happened, why, what to do: a line each, on stderr."""
    _print_lines(error.what, error.why, error.remedy)


def announce_silence(error: BlockgzError) -> None:
    """A store that does not answer and is asked on, in a line on stderr."""
    click.echo(f"{error.what} ({error.why}); asking on", err=True)


def print_usage_error(error: click.ClickException) -> None:
    """The same for what click found out about the command line."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "replayer"
    _print_lines(error.format_message(), "the command line cannot be used as it is", f"see {path} --help")


def _print_lines(what: str, why: str, remedy: str) -> None:
    click.echo(f"error: {what}", err=True)
    for name, text in (("why", why), ("do", remedy)):
        if text:
            click.echo(f"{name + ':':<6} {text}", err=True)
    if debug.get():
        traceback.print_exc()


def closing(*examples: str) -> str:
    """The end of a help page: examples and exit codes."""
    codes = [f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples), "", "\b", "Exit codes:", *codes])
