"""Where the archive is: the options that say it, and opening it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import click

from blockgz.archive.archive import Archive
from blockgz.archive.partition import ObjectCache
from blockgz.archive.place import ArchivePlace, opened
from blockgz.program.archive_options import (
    archive_option,
    keys_option,
    max_block_option,
    old_format_option,
    s3_options,
)
from blockgz.program.options import Option, OptionSet
from blockgz.store.address import parse_address
from blockgz.store.cache import DiskCache, default_folder
from blockgz.store.reader import CountingReader, ObjectReader, WatchedReader

SHOWN_NOTES = 20


def _archive_place(archive: str, keyring: str | None, **rest: Any) -> ArchivePlace:
    return ArchivePlace(parse_address(archive), keys=keyring, **rest)


archive_options = OptionSet(
    "archive", _archive_place, archive_option(), keys_option, s3_options, max_block_option, old_format_option
)
"""Adds -a/--archive and what goes with it; passes `archive: ArchivePlace`."""


def _cache(is_unused: bool) -> DiskCache | None:
    folder = None if is_unused else default_folder()
    return None if folder is None else DiskCache(folder)


cache_option = Option(
    "--no-cache", "cache", is_flag=True, parse=_cache, help="Do not use this machine's cache of indexes."
)
"""Adds --no-cache; passes `cache: DiskCache | None`."""


@asynccontextmanager
async def open_archive(place: ArchivePlace, cache: ObjectCache | None = None) -> AsyncIterator[Archive]:
    """The archive that the options name; its store is closed at the end."""
    async with open_counted_archive(place, cache) as (archive, _):
        yield archive


@asynccontextmanager
async def open_counted_archive(
    place: ArchivePlace, cache: ObjectCache | None = None
) -> AsyncIterator[tuple[Archive, CountingReader]]:
    """The same, with what counts the requests."""

    def counted(reader: ObjectReader) -> CountingReader:
        return CountingReader(WatchedReader(reader, partial(click.echo, err=True)))

    async with opened(place, cache, counted) as archive:
        assert isinstance(archive.reader, CountingReader)
        yield archive, archive.reader
        for note in archive.other.notes[:SHOWN_NOTES] if archive.other else ():
            click.echo(f"note: {note}", err=True)
