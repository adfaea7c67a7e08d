"""The shell of both programs: commands that are imported when used, errors as three lines, and exit codes."""

import difflib
import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from blockgz.errors import FAILED, PARTLY_FAILED, USAGE, UsageError, exit_code
from blockgz.process import interrupted_by_signals
from blockgz.program.command import completed, debug
from blockgz.program.help_page import HelpPageOfGroup
from blockgz.program.terminal import escaped_terminals
from index_format.errors import BlockgzError, masked_urls
from index_format.kernel_choice import Kernel

INTERRUPTED = 130
TERMINATED = 143
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ENDED_BY: Mapping[int, int] = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
EXIT_CODES = {
    0: "ok",
    FAILED: "failed",
    USAGE: "usage or configuration",
    3: "finished, but damage was found or part of the work failed",
    4: "not in the archive",
    10: "no archive at this address",
    11: "the partition is owned by another writer",
    12: "credentials or permissions",
    INTERRUPTED: "interrupted (SIGINT)",
    TERMINATED: "ended by SIGTERM before the work was done",
}


class Place(NamedTuple):
    """Where a command is defined."""

    where: str
    """As `package.module:name`."""
    summary: str
    """The first sentence of its help: the group's help page shows it without importing the command."""


class Program(HelpPageOfGroup):
    """A group whose commands are imported when they are used, and fail in one way.

    A failure is three lines on stderr and an exit code, with a traceback only on demand.
    """

    def __init__(self, *args: Any, places: Mapping[str, Place], **kwargs: Any) -> None:
        """`places` gives for each command where it is defined."""
        super().__init__(*args, **kwargs)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name].where.partition(":")
        return completed(getattr(importlib.import_module(module), name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.summary) for name, place in self.places.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands by their places, so that none is imported, and options."""
        commands = [(name, place.summary) for name, place in self.places.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=text) for name, text in commands] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the commands that look alike where there is none of that name; click knows imported ones only."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not (alike := difflib.get_close_matches(args[0], self.places)):
                raise
            names = " or ".join(map(repr, alike))
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {names}?", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command; a reader of stdout that went away (`| head`) is no failure."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _forget_stdout()
            return None
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            _forget_stdout()
            raise BlockgzError(
                "the output cannot be written",
                why=error.strerror or str(error),
                remedy="free space where it goes, and run it again",
            ) from error
        return result

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Runs the program and exits with the documented code; the only place where errors are printed."""
        if not extra.pop("standalone_mode", True):
            return super().main(args, prog_name, standalone_mode=False, **extra)
        debug.set(False)
        self._import_command(sys.argv[1:] if args is None else args)
        signals: Collection[int] = ()
        try:
            with escaped_terminals(), interrupted_by_signals() as signals:
                code = self._run(args, prog_name, extra)
        except KeyboardInterrupt:  # a second signal, or one between the command's end and this program's
            code = INTERRUPTED
        sys.exit(TERMINATED if signals and code == INTERRUPTED else code)

    def _import_command(self, args: Sequence[str]) -> None:
        """Import the command's module before signals are handled: until then nothing is open, and they just end it."""
        named = next((each for each in args if each in self.places), None)
        if named is not None:
            with suppress(Exception):  # it fails again when the command is looked up, and is reported there
                importlib.import_module(self.places[named].where.partition(":")[0])

    def _run(self, args: Sequence[str] | None, prog_name: str | None, extra: dict[str, Any]) -> int:
        try:
            result = super().main(args, prog_name, standalone_mode=False, **extra)
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            return INTERRUPTED
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            return USAGE
        except click.ClickException as error:
            self._print_usage_error(error)
            return USAGE
        except Exception as error:
            return print_failure(error)
        return result if isinstance(result, int) else 0

    def _print_usage_error(self, error: click.ClickException) -> None:
        context = error.ctx if isinstance(error, click.UsageError) else None
        path = context.command_path if context else self.name
        _print(_lines(error.format_message(), "the command line is not valid", f"see {path} --help"))


def ended_code(code: int, signals: Collection[int], *, is_done: bool) -> int:
    """The exit code of work that these signals asked to end, and that ends with `code` without them."""
    if signal.SIGINT in signals:
        return INTERRUPTED
    return TERMINATED if signal.SIGTERM in signals and not is_done else code


@contextmanager
def noting_what_is_left(note: Callable[[], str]) -> Iterator[None]:
    """Prints the note on stderr where a signal ends the block."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):  # KeyboardInterrupt, or asyncio's CancelledError that it leads to
            click.echo(f"note: {note()}", err=True)
        raise


def _forget_stdout() -> None:
    """What is left in its buffer would fail once more as the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_failure(error: Exception) -> int:
    """Prints what happened, why, and what to do on stderr; gives the exit code."""
    if isinstance(error, BlockgzError):
        _print(error_lines(error))
        return exit_code(error)
    # The last resort, so that nobody sees a traceback unasked.
    name = f"{type(error).__name__}: {error}"
    _print(_lines(name, "this is a bug", "run it again with --debug and report the traceback"))
    return FAILED


def print_problems(problems: Iterable[tuple[str, BlockgzError]]) -> None:
    """Prints errors on stderr, each with where it was met, unless it says that itself."""
    for where, error in problems:
        first, *others = error_lines(error)
        place = "" if where in error.what.split() else f" {where}:"
        click.echo("\n".join([first.replace("error:", f"error:{place}", 1), *others]), err=True)


def code_of_problems(problems: Sequence[BlockgzError], *, tried: int | None = None) -> int:
    """The exit code of a command that met those: that of the first where as many were tried, and all failed."""
    if not problems:
        return 0
    return exit_code(problems[0]) if len(problems) == tried else PARTLY_FAILED


def announce_retry(error: BlockgzError) -> None:
    """Prints on stderr that a store does not answer and is asked again."""
    click.echo(f"{error.what} ({error.why}); retrying", err=True)


def error_lines(error: BlockgzError) -> list[str]:
    """What happened, why, and what to do, each on a line of its own."""
    return _lines(error.what, error.why, error.remedy)


def _lines(what: str, why: str, remedy: str) -> list[str]:
    parts = (("error: ", what), ("why:   ", why), ("do:    ", remedy))
    return [f"{name}{masked_urls(' '.join(text.split()))}" for name, text in parts if text]


def _print(lines: Sequence[str]) -> None:
    for line in lines:
        click.echo(line, err=True)
    if debug.get():
        click.echo(masked_urls(traceback.format_exc()), nl=False, err=True)


def confirm(question: str, *, undone: str, is_agreed: bool, typed: str | None = None) -> None:
    """Asks unless `is_agreed`; at a no, says what is `undone` and ends with INTERRUPTED.

    With `typed`, that word is the only yes. Raises UsageError where nobody can answer.
    """
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            undone,
            why="there is no terminal to ask on, and --yes is not set",
            remedy="add --yes, or --dry-run to see only the plan",
        )
    if typed is None:
        agreed = click.confirm(question, err=True)
    else:
        agreed = click.prompt(f"{question} Type {typed} to agree", err=True) == typed
    if not agreed:
        click.echo(undone, err=True)
        raise click.exceptions.Exit(INTERRUPTED)


def closing(*examples: str) -> str:
    """The end of a help page: examples and exit codes."""
    codes = [f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples), "", "\b", "Exit codes:", *codes])


def kernels() -> dict[str, Kernel]:
    """The C extensions, by what they do."""
    # Asked of the one for Kafka only here: it loads Kafka's client.
    from blockgz.kafka.fetching import KERNEL as KAFKA  # noqa: PLC0415
    from index_format.kernel_choice import KERNEL as RECORDS  # noqa: PLC0415

    return {"records": RECORDS, "Kafka": KAFKA}


def kernel_words(found: dict[str, Kernel]) -> str:
    """Which of them are in use, and why the others are not."""
    return ", ".join(
        f"{name} in use" if each else f"{name} not in use ({each.why_not})" for name, each in found.items()
    )


def version_option(program: str) -> Callable[[Any], Any]:
    """Adds `--version`: of the program, and whether the C extensions are in use."""

    def show(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            from importlib.metadata import version  # noqa: PLC0415

            click.echo(f"{program}, version {version('blockgz')}")
            click.echo(f"C extensions: {kernel_words(kernels())}")
            context.exit()

    return click.option(
        "--version",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Show the version, and whether the C extensions are in use.",
    )
