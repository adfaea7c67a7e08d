"""The shell of both programs: commands that are imported when used, errors as three lines, and exit codes.

Also what every command has: a help page in groups, options such as --debug, the error about missing options, and
completion of TOPIC in shells.
"""

import difflib
import errno
import importlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields
from typing import Any

import click
from click.shell_completion import CompletionItem

from blockgz.errors import FAILED, PARTLY_FAILED, USAGE, BlockgzError, UsageError, exit_code, joined, masked_urls
from blockgz.process import interrupted_by_signals
from blockgz.program import options as common
from blockgz.program.terminal import escaped_terminals
from blockgz.store.address import S3Settings
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


OWN = "Options"
# The groups of options in the order of the page, by parameter; an option without a group is the command's own.
GROUPS = {
    "Archive and cluster": ("archive", "bootstrap_server", "bootstrap_servers", "properties", "kafka"),
    OWN: (),
    "Selection": (
        *("start", "end", "at", "offset_file", "offsets", "since", "until", "timezone", "partitions"),
        *("keys", "null_key", "headers", "grep", "sample", "limit"),
    ),
    "Changes to records": (
        *("routing", "timestamps", "strip_headers", "add_headers", "provenance", "tombstones"),
        *("chain", "on_transform_error", "allow_unchanged", "compression"),
    ),
    "Target topic": (
        *("create_topic", "topic_config", "append", "into_source", "retention", "undo_retention"),
        *("replication_factor", "reset_extra", "ignored"),
    ),
    "Consumer groups": ("globs", "no_groups", "rename", "approximate"),
    "Warm standby": ("follow_archive", "every", "status", "switch_over"),
    "Jobs": ("resume", "job", "jobs", "partial", "patience", "rate", "speed"),
    "Output": ("as_json", "form", "template", "as_envelope", "raw", "stats"),
    "Reports": ("paths", "sign_key", "since_report", "key"),
    "Chunks and blocks": (
        *("chunk_bytes", "chunk_records", "chunk_interval", "chunk_idle", "chunk_span", "block_bytes", "key_filter"),
        *("layout", "record_format", "encrypt", "codec", "gzip_library", "gzip_level", "zstd_level"),
    ),
    "Reading from Kafka": (
        *("isolation_level", "group_id", "group_protocol", "group_instance_id", "topic_refresh"),
        *("on_gap", "on_bad_record", "dlq_topic", "groups", "groups_interval", "ends_interval"),
    ),
    "Maintenance": (
        *("archive_retention", "archive_retention_bytes", "compact", "compact_chunks"),
        *("maintenance_interval", "maintenance_rate", "maintenance_buffer"),
    ),
    "Process": (
        *("workers", "memory", "buffer_dir", "buffer_bytes", "grace", "http", "log_format"),
        *("single_writer", "takeover"),
    ),
    "Reading archives": ("keyring", "on_damage", "cache", "max_block_bytes", "old_format", "key_delimiter"),
    "Spark": ("on_spark", "master", "jars", "settings", "task_bytes", "min_tasks", "digests", "checkpoint"),
    "S3": (
        *("region", "endpoint_url", "profile", "role_arn", "external_id", "proxy_url", "customer_key"),
        *("access_key_id", "secret_access_key", "session_token"),
        *("sse", "kms_key_id", "storage_class", "acl", "object_tags", "checksum_algorithm"),
    ),
    "Program": ("config", "verbose", "debug", "version", "help"),
}
_GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


class ProgramCommand(click.Command):
    """A command whose error names everything that is missing at once.

    Its help page has examples, options in groups with the most used first, and exit codes; nothing is cut.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            options, _, _ = self.make_parser(ctx).parse_args(given)
            required = [param for param in self.params if param.required]
            raise _missing(
                ctx, [each for each in required if each.value_is_missing(each.consume_value(ctx, options)[0])]
            ) from error

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        examples, _, rest = (self.epilog or "").partition("\n\n")
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        _write_text(formatter, examples)
        self.format_options(ctx, formatter)
        _write_text(formatter, rest)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        _write_options(self, ctx, formatter)


class ProgramGroup(ProgramCommand, click.Group):
    """A group whose help page is like a command's: commands first, each with the whole first sentence of its help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        _write_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(1000)) for name, each in commands.items() if each])


class RunningGroup(ProgramGroup):
    """A group that is a command as well: only a first word that names a command inside means that one."""

    allow_interspersed_args = True

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.commands:
            return self.commands[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def _write_text(formatter: click.HelpFormatter, text: str) -> None:
    if text:
        formatter.write_paragraph()
        formatter.write_text(text)


def _write_options(command: click.Command, context: click.Context, formatter: click.HelpFormatter) -> None:
    found: dict[str, dict[str, tuple[str, str]]] = {group: {} for group in GROUPS}
    for param in command.get_params(context):
        name = "help" if param is command.get_help_option(context) else str(param.name)
        if isinstance(param, click.Option) and (record := param.get_help_record(context)) is not None:
            found[_GROUP_OF.get(name, OWN)][name] = record
    for group, records in found.items():
        order = [name for name in GROUPS[group] if name in records] or list(records)
        if order:
            with formatter.section(group):
                formatter.write_dl([records[name] for name in order])


DEADLINE_SECONDS = 2.0


class _Topic(click.types.StringParamType):
    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        with ctx.scope(cleanup=False):
            return [CompletionItem(name) for name in topic_names(ctx) if name.startswith(incomplete)]


# A text that shells complete to a topic.
TOPIC = _Topic()


def topic_names(context: click.Context) -> list[str]:
    """Return the topics that the command could mean, as far as they are known within the deadline; raises nothing."""
    # Asks the brokers too, for commands that read from a cluster. TOPIC of an import is in a SOURCE that takes long to
    # list.
    given = context.params
    sources: list[Callable[[], Iterable[str]]] = []
    if given.get("archive") and "source" not in given:
        s3 = S3Settings(**{each.name: given[each.name] for each in fields(S3Settings) if given.get(each.name)})
        sources.append(lambda: _archived(given["archive"], s3))
    if given.get("bootstrap_servers"):
        kafka = common.kafka_defaults()
        with suppress(Exception):
            kafka |= common.kafka_properties(given.get("kafka") or ())
        sources.append(lambda: _of_brokers(kafka | {"bootstrap.servers": given["bootstrap_servers"]}))
    return sorted(_answers(sources))


def _answers(sources: list[Callable[[], Iterable[str]]]) -> set[str]:
    answers: queue.SimpleQueue[Iterable[str]] = queue.SimpleQueue()

    def ask(source: Callable[[], Iterable[str]]) -> None:
        found: Iterable[str] = ()
        with suppress(Exception):
            found = source()
        answers.put(found)

    for source in sources:
        threading.Thread(target=ask, args=(source,), daemon=True).start()
    until = time.monotonic() + DEADLINE_SECONDS
    names: set[str] = set()
    with suppress(queue.Empty):
        for _ in sources:
            names.update(answers.get(timeout=max(0.0, until - time.monotonic())))
    return names


def _archived(address: str, s3: S3Settings) -> set[str]:
    from blockgz.store.opening import open_existing_store  # noqa: PLC0415 - no command needs it but to complete
    from index_format.keys import LAYOUTS, archive_home, topic_folders  # noqa: PLC0415

    store = open_existing_store(address, s3)
    return {folder.topic for layout in LAYOUTS for folder in topic_folders(store.folders(archive_home(layout)))}


def _of_brokers(kafka: dict[str, str]) -> list[str]:
    from blockgz.kafka.admin import topics_of  # noqa: PLC0415
    from blockgz.kafka.connection import client_settings  # noqa: PLC0415
    from blockgz.kafka.secrets import without_code  # noqa: PLC0415

    return topics_of(without_code(client_settings(kafka, "blockgz-completion")), DEADLINE_SECONDS)


# Options that agree to one command: a variable would agree to all commands after it.
NEVER_FROM_ENVIRONMENT = {"yes", "into_source", "switch_over"}
# Commands that do the same on every machine, and never use a cluster that only a file names.
WITHOUT_CONFIG = {"demo"}

_DEBUG = "debug"
# True if failures show their traceback: set by `--debug`.
debug: ContextVar[bool] = ContextVar(_DEBUG, default=False)


def _missing(context: click.Context, params: list[click.Parameter]) -> UsageError:
    metavars = [param.make_metavar(context) for param in params]
    given = list(zip(params, metavars, strict=True))
    names = [metavar if isinstance(param, click.Argument) else "/".join(param.opts) for param, metavar in given]
    ways = [metavar if isinstance(param, click.Argument) else f"{param.opts[0]} {metavar}" for param, metavar in given]
    variables = [str(param.envvar) for param in params if param.envvar]
    fields = [common.SHARED[str(param.name)] for param in params if param.name in common.SHARED]
    elsewhere = [f"set {joined(variables)}"] if variables else []
    elsewhere += [f"put {joined(fields)} in {common.used_config().place}"] if fields else []
    return UsageError(
        f"{joined(names)} {'is' if len(params) == 1 else 'are'} missing",
        why=f"{context.command_path} needs {'it' if len(params) == 1 else 'them'}",
        remedy=f"{joined([f'add {joined(ways)}', *elsewhere], 'or')}; see {context.command_path} --help",
    )


def completed(command: click.Command) -> click.Command:
    """Return the command with the options of every command: variables of the environment, `-C`, `-v` and `--debug`.

    The same for the commands inside a group. Options of consent have no variable; the others have BLOCKGZ_ and the long
    name in capitals, unless they name another. May be called again.
    """
    plain = {click.Group: ProgramGroup, click.Command: ProgramCommand}
    command.__class__ = plain.get(type(command), type(command))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            completed(inner)
        if not isinstance(command, RunningGroup):
            return command
    names = {param.name for param in command.params}
    if common.CONFIG not in names and names & common.SHARED.keys() and command.name not in WITHOUT_CONFIG:
        command.params.append(common.config_option())
        if "verbose" not in names:
            command.params.append(_verbose_option(command))
    if "timezone" not in names and any(isinstance(param, common.TimeOption) for param in command.params):
        common.zone_option(command)
    if _DEBUG not in names:
        command.params.append(_debug_option())
    for param in command.params:
        if isinstance(param, click.Argument) and param.type is click.STRING and "TOPIC" in (param.metavar or ""):
            param.type = TOPIC
        if isinstance(param, click.Option) and param.allow_from_autoenv and param.name not in NEVER_FROM_ENVIRONMENT:
            name = max(param.opts, key=len).lstrip("-").replace("-", "_").upper()
            param.envvar = param.envvar or f"BLOCKGZ_{name}"
            param.show_envvar = True
    return command


def _debug_option() -> click.Option:
    return click.Option(
        [f"--{_DEBUG}"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=lambda _ctx, _param, value: debug.set(value),
        help="Show tracebacks.",
    )


def _verbose_option(command: click.Command) -> click.Option:
    """Return `-v`, which is not eager, because the file has to be known."""
    is_free = all("-v" not in param.opts for param in command.params)

    def tell(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            click.echo(f"configuration: {common.used_config().path or 'none'}", err=True)

    return click.Option(
        ["-v", "--verbose"] if is_free else ["--verbose"],
        is_flag=True,
        expose_value=False,
        callback=tell,
        help="Log which configuration file is used.",
    )


class Program(ProgramGroup):
    """A group whose commands are imported when they are used; a failure is three lines on stderr and an exit code."""

    def __init__(self, *args: Any, places: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        """`places` has each command's definition, as `package.module:name`, and the first sentence of its help."""
        # The group's help page shows that sentence without importing the command.
        super().__init__(*args, **kwargs)
        self.places = places

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.places:
            return None
        module, _, name = self.places[cmd_name][0].partition(":")
        return completed(getattr(importlib.import_module(module), name))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self.places.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete commands, without importing any, and options."""
        commands = [(name, summary) for name, (_, summary) in self.places.items() if name.startswith(incomplete)]
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
                importlib.import_module(self.places[named][0].partition(":")[0])

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
