"""Options that commands share: one name, one environment variable, one meaning everywhere."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import click

from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened
from blockgz.archive.partition import ObjectCache
from blockgz.errors import UsageError
from blockgz.program.archive_options import archive_option, keys_option, max_block_option, old_format_option, s3_options
from blockgz.program.options import Option, OptionSet, Parsed, choice_option
from blockgz.program.terminal import print_each
from blockgz.store.address import parse_address
from blockgz.store.reader import CountingReader, DiskCache, ObjectReader, WatchedReader, default_folder
from blockgz.units import MILLISECONDS, timestamp_text
from replayer.groups import map_of

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
