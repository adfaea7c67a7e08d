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

from blockgz.errors import FAILED, PARTLY_FAILED, USAGE, BlockgzError, UsageError, exit_code, masked_urls
from blockgz.process import interrupted_by_signals
from blockgz.program.command import completed, debug
from blockgz.program.help_page import HelpPageOfGroup
from blockgz.program.terminal import escaped_terminals
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


class CommandPlace(NamedTuple):
    """The place of a command's definition."""

    where: str
    """The definition, as `package.module:name`."""
    summary: str
    """The first sentence of its help: the group's help page shows it without importing the command."""


class Program(HelpPageOfGroup):
    """A group whose commands are imported when they are used; a failure is three lines on stderr and an exit code."""

    def __init__(self, *args: Any, places: Mapping[str, CommandPlace], **kwargs: Any) -> None:
        """`places` is the place of each command's definition."""
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
        """Complete commands, without importing any, and options."""
        commands = [(name, place.summary) for name, place in self.places.items() if name.startswith(incomplete)]
        return [CompletionItem(name, help=text) for name, text in commands] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest similar commands if there is none of that name; click knows only imported ones."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if not (alike := difflib.get_close_matches(args[0], self.places)):
                raise
            names = " or ".join(map(repr, alike))
            raise click.UsageError(f"No such command {args[0]!r}. Did you mean {names}?", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of stdout that ended (`| head`) is not a failure."""
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
                remedy="free space on its disk, and run it again",
            ) from error
        return result

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> Any:
        """Run the program and exit with the documented code; only here errors are printed."""
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
        """Import the command's module before signals are handled: until then nothing is open."""
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
            context = error.ctx if isinstance(error, click.UsageError) else None
            path = context.command_path if context else self.name
            _print(_lines(error.format_message(), "the command line is not valid", f"see {path} --help"))
            return USAGE
        except Exception as error:
            return print_failure(error)
        return result if isinstance(result, int) else 0


def ended_code(code: int, signals: Collection[int], *, is_done: bool) -> int:
    """Return the exit code of work that these signals ended, and that ends with `code` without them."""
    if signal.SIGINT in signals:
        return INTERRUPTED
    return TERMINATED if signal.SIGTERM in signals and not is_done else code


@contextmanager
def noting_what_is_left(note: Callable[[], str]) -> Iterator[None]:
    """Print the note on stderr if a signal ends the block."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception):  # KeyboardInterrupt, or asyncio's CancelledError that it leads to
            click.echo(f"note: {note()}", err=True)
        raise


def _forget_stdout() -> None:
    """Send stdout to /dev/null: the rest of its buffer would fail once more when the process ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_failure(error: Exception) -> int:
    """Print what happened, why, and what to do on stderr; return the exit code."""
    if isinstance(error, BlockgzError):
        _print(error_lines(error))
        return exit_code(error)
    # The last resort, so that nobody sees a traceback unasked.
    name = f"{type(error).__name__}: {error}"
    _print(_lines(name, "this is a bug", "run it again with --debug and report the traceback"))
    return FAILED


def print_problems(problems: Iterable[tuple[str, BlockgzError]]) -> None:
    """Print errors on stderr, each with its place, unless its text has the place."""
    for where, error in problems:
        first, *others = error_lines(error)
        place = "" if where in error.what.split() else f" {where}:"
        click.echo("\n".join([first.replace("error:", f"error:{place}", 1), *others]), err=True)


def code_of_problems(problems: Sequence[BlockgzError], *, tried: int | None = None) -> int:
    """Return the exit code of a command with these errors: the first error's if all of `tried` parts failed."""
    if not problems:
        return 0
    return exit_code(problems[0]) if len(problems) == tried else PARTLY_FAILED


def announce_retry(error: BlockgzError) -> None:
    """Print on stderr that a store does not answer and the request is retried."""
    click.echo(f"{error.what} ({error.why}); retrying", err=True)


def error_lines(error: BlockgzError) -> list[str]:
    """Return what happened, why, and what to do, each as a line."""
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
    """Ask unless `is_agreed`; after a no, print `undone` and end with INTERRUPTED.

    With `typed`, only that word means yes. Raises UsageError if nobody can answer.
    """
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise UsageError(
            undone,
            why="stdin is not a terminal, and --yes is not set",
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
    """Return the end of a help page: examples and exit codes."""
    codes = [f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["\b", "Examples:", *(f"  {example}" for example in examples), "", "\b", "Exit codes:", *codes])


def kernels() -> dict[str, Kernel]:
    """Return the C extensions by what they do."""
    # Asked of the one for Kafka only here: it loads Kafka's client.
    from blockgz.kafka.fetching import KERNEL as KAFKA  # noqa: PLC0415
    from index_format.kernel_choice import KERNEL as RECORDS  # noqa: PLC0415

    return {"records": RECORDS, "Kafka": KAFKA}


def kernel_words(found: dict[str, Kernel]) -> str:
    """Return the extensions that are used, and why the others are not."""
    return ", ".join(
        f"{name} in use" if each else f"{name} not in use ({each.why_not})" for name, each in found.items()
    )


def version_option(program: str) -> Callable[[Any], Any]:
    """Return `--version`: the program's version, and whether the C extensions are used."""

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
