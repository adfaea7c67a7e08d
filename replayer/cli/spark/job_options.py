"""Options of jobs that read records: what becomes of values, how the work is cut, and whether it is done at all."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from blockgz_runtime.errors import UsageError
from blockgz_runtime.program.options import with_options
from blockgz_runtime.topic_patterns import is_pattern, matching
from replayer.cli.options.archive_options import ArchiveOptions, Size
from replayer.cli.spark.session_options import SessionOptions
from replayer.read.archive import Archive
from replayer.read.request import SelectionRequest
from replayer.read.selection import Selection
from replayer.read.topics import TopicPartitions, parse_partitions, parse_topic

F = TypeVar("F", bound=Callable[..., Any])

TASK_BYTES = 128 * 1024 * 1024
_MAX_SCHEMA = 4 * 1024 * 1024


@dataclass(frozen=True)
class ValueArguments:
    """How keys and values are read; `schema` is the content of the file, or what was given in its place."""

    value: str
    key: str
    schema: str | None
    registry: str | None
    on_bad: str


@dataclass(frozen=True)
class Cutting:
    """Stored bytes of a task, and how many tasks there are at least."""

    task_bytes: int
    min_tasks: int


@dataclass(frozen=True)
class Request:
    """What was asked for, whatever the target is."""

    archive: ArchiveOptions
    topics: Sequence[str]
    selection: SelectionRequest
    values: ValueArguments
    cutting: Cutting
    on_damage: str
    spark: SessionOptions
    dry_run: bool
    as_json: bool


def value_options(function: F) -> F:
    """Adds --value --key --schema --schema-registry --on-bad-value; passes `values: ValueArguments`."""

    @functools.wraps(function)
    def with_values(
        *args: Any,
        value_as: str,
        key_as: str,
        schema: str | None,
        schema_registry: str | None,
        on_bad_value: str,
        **kwargs: Any,
    ) -> Any:
        text = None if schema is None else _schema_text(schema)
        values = ValueArguments(value_as, key_as, text, schema_registry, on_bad_value)
        return function(*args, values=values, **kwargs)

    options = [
        click.option(
            "--value",
            "value_as",
            type=click.Choice(["binary", "text", "json", "avro"]),
            default="binary",
            show_default=True,
            help="What values are; json and avro become columns.",
        ),
        click.option(
            "--key-as",
            type=click.Choice(["binary", "text"]),
            default="binary",
            show_default=True,
            help="What keys are.",
        ),
        click.option(
            "--schema",
            metavar="FILE|DDL",
            help="Of json: DDL (id BIGINT, name STRING), or a file with it or Spark's JSON; without it all values are "
            "read twice to find it out. Of avro: a file .avsc to read by.",
        ),
        click.option(
            "--schema-registry",
            metavar="URL",
            help="Where the schemas are that avro values were written by, and without --schema the one to read by: "
            "TOPIC-value's newest.",
        ),
        click.option(
            "--on-bad-value",
            type=click.Choice(["fail", "null", "skip"]),
            default="fail",
            show_default=True,
            help="A key or value that cannot be decoded: end the job, write null, or leave the record out; counted.",
        ),
    ]
    return cast(F, with_options(with_values, options))


def cutting_options(function: F) -> F:
    """Adds --task-bytes --min-tasks; passes `cutting: Cutting`."""

    @functools.wraps(function)
    def with_cutting(*args: Any, task_bytes: int, min_tasks: int, **kwargs: Any) -> Any:
        return function(*args, cutting=Cutting(max(1, task_bytes), min_tasks), **kwargs)

    options = [
        click.option(
            "--task-bytes",
            type=Size(),
            default=TASK_BYTES,
            show_default="128MiB",
            help="Stored bytes of a task.",
        ),
        click.option(
            "--min-tasks",
            type=click.IntRange(min=1),
            default=1,
            show_default=True,
            help="At least so many tasks, as far as there are blocks.",
        ),
    ]
    return cast(F, with_options(with_cutting, options))


def dry_run_option(function: F) -> F:
    """Adds --dry-run; passes `dry_run: bool`."""
    option = click.option(
        "--dry-run",
        is_flag=True,
        help="Say what would be read, and stop there; Spark is not started.",
    )
    return option(function)


async def selections(archive: Archive, topics: Sequence[str], selection: SelectionRequest) -> list[Selection]:
    """The offsets that are meant of every topic; raises as opening and resolving do."""
    arguments = await topic_arguments(archive, topics)
    return [each for argument in arguments for each in await selection.select(archive, argument)]


async def topic_arguments(archive: Archive, texts: Sequence[str]) -> list[TopicPartitions]:
    """What names, globs and `~regex` mean, each topic once; raises UsageError or NotInArchive."""
    found: dict[str, TopicPartitions] = {}
    for text in texts:
        for argument in await _meant(archive, text):
            known = found.get(argument.topic, argument)
            found[argument.topic] = replace(argument, partitions=_together(known.partitions, argument.partitions))
    return list(found.values())


async def _meant(archive: Archive, text: str) -> list[TopicPartitions]:
    if not is_pattern(text):
        return [parse_topic(text)]
    pattern, separator, numbers = (text, "", "") if text.startswith("~") else text.partition(":")
    partitions = parse_partitions(numbers) if separator else None
    return [TopicPartitions(topic, partitions) for topic in matching(pattern, await archive.topics())]


def _together(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> tuple[int, ...] | None:
    return None if one is None or other is None else tuple(sorted({*one, *other}))


def _schema_text(schema: str) -> str:
    """What the file of that name holds; the text itself where it is not one's name and has a blank, as all DDL has."""
    if " " in schema.strip() and not _is_file(schema):
        return schema
    try:
        return Path(schema).read_bytes()[:_MAX_SCHEMA].decode()
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--schema {schema[:80]!r} cannot be read", why=str(error), remedy='name a file, or write "id BIGINT"'
        ) from error


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # too long for a name
        return False
