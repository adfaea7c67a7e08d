"""Options that every command has, the error about missing ones, and completion of TOPIC in shells."""

import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields

import click
from click.shell_completion import CompletionItem

from blockgz.errors import UsageError, joined
from blockgz.program.config_file import CONFIG, SHARED, config_option, kafka_defaults, used_config
from blockgz.program.help_page import HelpPage, HelpPageOfGroup
from blockgz.program.kafka_options import kafka_properties
from blockgz.program.options import TimeOption, zone_option
from blockgz.store.s3_settings import S3Settings

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
        kafka = kafka_defaults()
        with suppress(Exception):
            kafka |= kafka_properties(given.get("kafka") or ())
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
    from blockgz.kafka.secrets import without_code  # noqa: PLC0415
    from blockgz.kafka.settings import client_settings  # noqa: PLC0415

    return topics_of(without_code(client_settings(kafka, "blockgz-completion")), DEADLINE_SECONDS)


# Options that agree to one command: a variable would agree to all commands after it.
NEVER_FROM_ENVIRONMENT = {"yes", "into_source", "switch_over"}
# Commands that do the same on every machine, and never use a cluster that only a file names.
WITHOUT_CONFIG = {"demo"}

_DEBUG = "debug"
# True if failures show their traceback: set by `--debug`.
debug: ContextVar[bool] = ContextVar(_DEBUG, default=False)


class ProgramCommand(HelpPage):
    """A command whose error names everything that is missing at once."""

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


def _missing(context: click.Context, params: list[click.Parameter]) -> UsageError:
    metavars = [param.make_metavar(context) for param in params]
    given = list(zip(params, metavars, strict=True))
    names = [metavar if isinstance(param, click.Argument) else "/".join(param.opts) for param, metavar in given]
    ways = [metavar if isinstance(param, click.Argument) else f"{param.opts[0]} {metavar}" for param, metavar in given]
    variables = [str(param.envvar) for param in params if param.envvar]
    fields = [SHARED[str(param.name)] for param in params if param.name in SHARED]
    elsewhere = [f"set {joined(variables)}"] if variables else []
    elsewhere += [f"put {joined(fields)} in {used_config().place}"] if fields else []
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
    if isinstance(command, click.Group):
        if type(command) is click.Group:
            command.__class__ = HelpPageOfGroup
        for inner in command.commands.values():
            completed(inner)
        return command
    if type(command) is click.Command:
        command.__class__ = ProgramCommand
    names = {param.name for param in command.params}
    if CONFIG not in names and names & SHARED.keys() and command.name not in WITHOUT_CONFIG:
        command.params.append(config_option())
        if "verbose" not in names:
            command.params.append(_verbose_option(command))
    if "timezone" not in names and any(isinstance(param, TimeOption) for param in command.params):
        zone_option(command)
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
            click.echo(f"configuration: {used_config().path or 'none'}", err=True)

    return click.Option(
        ["-v", "--verbose"] if is_free else ["--verbose"],
        is_flag=True,
        expose_value=False,
        callback=tell,
        help="Log which configuration file is used.",
    )
