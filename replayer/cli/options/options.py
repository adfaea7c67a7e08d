"""Options that commands share: one name, one environment variable, one meaning everywhere; and those of Spark."""

import re
import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened
from blockgz.archive.partition import ObjectCache
from blockgz.errors import UsageError
from blockgz.process import every
from blockgz.program.archive_options import archive_option, keys_option, max_block_option, old_format_option, s3_options
from blockgz.program.main import noting_what_is_left
from blockgz.program.options import SIZE, Option, OptionSet, Parsed, choice_option
from blockgz.program.terminal import pass_everything, print_each, unescaped
from blockgz.store.address import parse_address
from blockgz.store.reader import CountingReader, DiskCache, ObjectReader, WatchedReader, default_folder
from blockgz.units import MILLISECONDS, timestamp_text
from replayer.groups import map_of

if TYPE_CHECKING:
    from blockgz.archive.formatting import Printer

FORMS = ("table", "json", "jsonl", "csv")


def _interval(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h)", text, re.ASCII)
    milliseconds = int(match[1]) * MILLISECONDS[match[2]] if match else 0
    if milliseconds < 100:
        raise ValueError(f"{text!r} is not a duration of at least 100 ms; write 500ms, 2s or 1m")
    return milliseconds / 1000


# Passes `as_json: bool`.
json_option = Option("--json", "as_json", is_flag=True, help="Print JSON.")

# `limit: int | None`.
limit_option = Option("-n", "--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N records.")

# Passes `jobs: str | None`.
jobs_option = Option(
    "--jobs",
    metavar="DIR|s3://BUCKET/PREFIX",
    envvar="BLOCKGZ_JOBS",
    help="Location of the job folders, which record what was written where.  [default: $XDG_STATE_HOME/blockgz/jobs]",
)

# Passes `interval: float` in seconds.
interval_option = Option(
    "--interval", type=Parsed("duration", _interval), default="1s", help="How often to look for new records."
)


# Passes `as_times: str`.
times_option = choice_option(
    "--timestamps",
    "as_times",
    choices=["rfc3339", "ms"],
    envvar="BLOCKGZ_TIMES",
    help="Print times as dates, or as milliseconds since 1970; JSON has the latter anyway.",
)


def time_printer(as_times: str) -> Callable[[int], str]:
    """Return a function that prints a timestamp as --timestamps says."""
    return str if as_times == "ms" else timestamp_text


def format_option(*more: str) -> OptionSet:
    """Add --format table|json|jsonl|csv, and `more` of them, and --json as its short form; passes `form: str`."""
    return OptionSet(
        "form",
        _form,
        json_option,
        Option("--format", "form", type=click.Choice([*FORMS, *more]), help="Output format; the default is a table."),
    )


def _form(form: str | None, as_json: bool) -> str:
    if as_json and form not in (None, "json"):
        raise click.UsageError("--json is --format json: use one of them")
    return "json" if as_json else form or "table"


# Regular expressions and names.
Rules = tuple[tuple[str, str], ...]


def _rule(option: str, text: str) -> tuple[str, str]:
    pattern, separator, name = text.partition("=")
    try:
        if not separator or not pattern or not name:
            raise ValueError("it is not REGEX=NAME")
        map_of([(pattern, name)])
    except ValueError as error:
        raise UsageError(
            f"{option} {text[:80]!r} renames nothing",
            why=str(error),
            remedy=r"write a regular expression and a name, such as '(.*)=restored-\1'",
        ) from error
    return pattern, name


def renaming_option(*names: str, **attributes: Any) -> Option:
    """Return a repeated option `REGEX=NAME` that gives new names; passes `Rules`."""

    def rules(texts: tuple[str, ...]) -> Rules:
        return tuple(_rule(names[0], text) for text in texts)

    return Option(*names, multiple=True, metavar="REGEX=NAME", parse=rules, **attributes)


# Passes `rename: Rules`.
group_map_option = renaming_option(
    "--group-map",
    "rename",
    help=r"Give groups other names, such as '(.*)=restored-\1'; may be repeated, the first match counts.",
)

# Passes `approximate: bool`.
approximate_option = Option(
    "--approximate",
    is_flag=True,
    help="If no exact position exists, take a lower one: records are read again, those below the copy skipped.",
)

SHOWN_NOTES = 20


def _archive_place(archive: str, keyring: str | None, **rest: Any) -> ArchivePlace:
    return ArchivePlace(parse_address(archive), keys=keyring, **rest)


# Adds -a/--archive and what goes with it; passes `archive: ArchivePlace`.
archive_options = OptionSet(
    "archive", _archive_place, archive_option(), keys_option, s3_options, max_block_option, old_format_option
)


def _cache(is_unused: bool) -> DiskCache | None:
    folder = None if is_unused else default_folder()
    return None if folder is None else DiskCache(folder)


# Adds --no-cache; passes `cache: DiskCache | None`.
cache_option = Option(
    "--no-cache", "cache", is_flag=True, parse=_cache, help="Do not use this machine's cache of indexes."
)


@asynccontextmanager
async def open_archive(place: ArchivePlace, cache: ObjectCache | None = None) -> AsyncIterator[ArchiveReader]:
    """The archive that the options name; its store is closed at the end."""
    async with open_counted_archive(place, cache) as (archive, _):
        yield archive


@asynccontextmanager
async def open_counted_archive(
    place: ArchivePlace, cache: ObjectCache | None = None
) -> AsyncIterator[tuple[ArchiveReader, CountingReader]]:
    """Open the archive, with a reader that counts requests; close its store at the end."""

    def counted(reader: ObjectReader) -> CountingReader:
        return CountingReader(WatchedReader(reader, partial(click.echo, err=True)))

    async with opened(place, cache, counted) as archive:
        assert isinstance(archive.reader, CountingReader)
        yield archive, archive.reader
        print_each("note: ", archive.other.notes[:SHOWN_NOTES] if archive.other else (), err=True)


TASK_BYTES = 128 * 1024 * 1024
_MAX_SCHEMA = 4 * 1024 * 1024
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class SparkOptions:
    """Options of a Spark session, and of the job where `spark_switch` adds some."""

    master: str | None
    """None: the master of spark-submit, or this machine."""
    settings: dict[str, str]
    digests: bool = False
    task_bytes: int = TASK_BYTES
    dry_run: bool = False


def _spark_options(
    *, master: str | None, settings: tuple[str, ...], jars: tuple[str, ...], **of_job: Any
) -> SparkOptions:
    given = dict(map(_setting, settings))
    return SparkOptions(master, given | ({"spark.jars": ",".join(jars)} if jars else {}), **of_job)


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.startswith("spark."):
        raise UsageError(
            f"--conf {text[:80]!r} is not a setting of Spark",
            why="it has no '='" if not separator else "its name does not begin with spark.",
            remedy="write --conf spark.executor.memory=2g",
        )
    return name, value


def _schema_text(schema: str) -> str:
    """Return the content of the file, or the text itself if it is not a file's name and has a blank, as DDL has."""
    try:
        if " " in schema.strip() and not Path(schema).is_file():
            return schema
        return Path(schema).read_bytes()[:_MAX_SCHEMA].decode()
    except (OSError, ValueError) as error:
        if " " in schema.strip():  # too long for a name
            return schema
        raise UsageError(
            f"--schema {schema[:80]!r} cannot be read", why=str(error), remedy='name a file, or write "id BIGINT"'
        ) from error


_SESSION = (
    Option(
        "--master",
        envvar="BLOCKGZ_SPARK_MASTER",
        metavar="URL",
        help="Spark's master. The default is that of spark-submit, or local[*].",
    ),
    Option(
        "--conf",
        "settings",
        multiple=True,
        envvar="BLOCKGZ_SPARK_CONF",
        metavar="NAME=VALUE",
        help="A Spark setting; may be repeated.",
    ),
    Option(
        "--jars",
        multiple=True,
        envvar="BLOCKGZ_SPARK_JARS",
        metavar="FILE",
        help="A jar that Spark loads, such as spark-avro; may be repeated.",
    ),
)
session_options = OptionSet("spark", _spark_options, *_SESSION)


def spark_switch(*of_job: Option, without: Collection[str], why: str) -> OptionSet:
    """Return --spark, the options of a session, and those `of_job`; they pass `spark: SparkOptions | None`.

    `without` names the command's other parameters that a Spark job does not take, and `why`.
    """

    def make(*, on_spark: bool, **given: Any) -> SparkOptions | None:
        context = click.get_current_context()
        for parameter in context.command.params:
            name = str(parameter.name)
            # The environment is no refusal: its variables are set for all commands of a machine.
            is_given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
            if is_given and name in (without if on_spark else given):
                reason = f"cannot be combined with --spark: {why}" if on_spark else "requires --spark"
                raise click.UsageError(f"{max(parameter.opts, key=len)} {reason}")
        return _spark_options(**given) if on_spark else None

    switch = Option("--spark", "on_spark", is_flag=True, help="Do the work in the tasks of a Spark job.")
    return OptionSet("spark", make, switch, *_SESSION, *of_job)


value_options = OptionSet(
    "values",
    dict,
    choice_option(
        "--value",
        choices=["binary", "text", "json", "avro", "protobuf"],
        help="How to decode values; json, avro and protobuf give columns.",
    ),
    choice_option("--key-as", "key", choices=["binary", "text"], help="How to decode keys."),
    Option(
        "--schema",
        parse=_schema_text,
        metavar="FILE|DDL",
        help="For json: DDL (id BIGINT, name STRING), or a file with DDL or Spark's JSON; without it, all values are "
        "read twice to infer it. For avro: a .avsc file with the reader's schema.",
    ),
    Option(
        "--schema-registry",
        "registry",
        metavar="URL",
        help="Registry with the schemas of avro and protobuf values. Without --schema, values are read with "
        "the newest schema of TOPIC-value.",
    ),
    choice_option(
        "--on-bad-value",
        "on_bad",
        choices=["fail", "null", "skip"],
        help="When a key or value cannot be decoded: fail, write null, or skip the record; counted.",
    ),
)

task_bytes_option = Option(
    "--task-bytes",
    type=SIZE,
    default=TASK_BYTES,
    show_default="128MiB",
    parse=lambda size: max(1, size),
    help="Stored bytes per task of Spark.",
)

min_tasks_option = Option(
    "--min-tasks", type=click.IntRange(min=1), default=1, help="Minimum number of tasks, given enough blocks."
)

dry_run_option = Option("--dry-run", is_flag=True, help="Print what would be read and exit without starting Spark.")

mode_option = choice_option(
    "--mode",
    choices=["error", "append", "overwrite"],
    envvar="BLOCKGZ_SPARK_MODE",
    help="If the destination exists: refuse, append, or overwrite it.",
)

partition_by_option = Option(
    "--partition-by",
    default="",
    metavar="PART,PART",
    parse=lambda text: tuple(part.strip() for part in text.split(",") if part.strip()),
    help="Make folders by topic, date, hour (of the timestamp, UTC) or value.FIELD.",
)


@contextmanager
def stage_progress(what: str, tracker: Any, *, as_json: bool) -> Iterator[None]:
    """Show the tasks of the stages that pyspark's StatusTracker knows while the block runs.

    On stderr: a bar on a terminal, status lines in JSON with `--json`, nothing elsewhere. Says so if a signal ends
    the block.
    """
    with noting_what_is_left(lambda: f"{what} ended early: run it again"):
        if not as_json and not sys.stderr.isatty():
            yield
            return
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

        # It imports rich, which most commands that share these options do not use.
        from blockgz.program.progress import StatusLines  # noqa: PLC0415

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(file=unescaped(sys.stderr)), transient=True, disable=as_json) as bar:
            shown = bar.add_task(what, total=None)
            lines = StatusLines(what)

            def report() -> None:
                with suppress(Exception):  # the session ends, or its JVM died: the job itself will say so
                    tasks = tasks_now(tracker)
                    bar.update(shown, completed=tasks["done"], total=tasks["total"] or None)
                    if as_json:
                        lines.report(lambda seconds: {"tasks": tasks, "seconds": round(seconds, 3)})

            with every(POLL_SECONDS, report):
                yield


def tasks_now(tracker: Any) -> dict[str, int]:
    """Return the tasks of all stages that run now: `done`, `running`, `failed` and `total`."""
    stages = [info for each in tracker.getActiveStageIds() if (info := tracker.getStageInfo(each)) is not None]
    return {
        "done": sum(stage.numCompletedTasks for stage in stages),
        "running": sum(stage.numActiveTasks for stage in stages),
        "failed": sum(stage.numFailedTasks for stage in stages),
        "total": sum(stage.numTasks for stage in stages),
    }


class Printing(NamedTuple):
    """The way to print records: `printer` is None if no option was given; `as_json` is true for --json."""

    printer: "Printer | None"
    as_json: bool


def _printing(as_json: bool, template: str | None, as_envelope: bool, raw: bool) -> Printing:
    # Here, because it loads pyarrow, which `ls` does without.
    from blockgz.archive.formatting import envelope_printer, json_printer, template_printer  # noqa: PLC0415

    if (template is not None) + as_envelope + as_json > 1:
        raise click.UsageError("use only one of -f, -J and --json")
    if raw:
        pass_everything()
    printer = json_printer() if as_json else envelope_printer() if as_envelope else None
    return Printing(printer if template is None else template_printer(template), as_json)


# Passes `printing: Printing`, how records are printed.
printing_options = OptionSet(
    "printing",
    _printing,
    json_option,
    Option("-f", "template", envvar="BLOCKGZ_TEMPLATE", metavar="FORMAT", help="Print with kcat's format tokens."),
    Option("-J", "as_envelope", is_flag=True, envvar="BLOCKGZ_ENVELOPE", help="Print kcat's JSON."),
    Option("--raw", is_flag=True, help="Print control characters as they are, on a terminal too."),
)
