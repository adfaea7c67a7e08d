"""Where the archive is: the options that say it, and opening it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from blockgz_runtime.program.archive_options import (
    archive_option,
    endpoint_option,
    max_block_option,
    old_format_option,
    region_option,
)
from blockgz_runtime.program.options import Option, OptionSet
from blockgz_runtime.store.address import Address, parse_address
from blockgz_runtime.store.cache import DiskCache, default_folder
from blockgz_runtime.store.opening import open_reader
from blockgz_runtime.store.reader import CountingReader, WatchedReader
from index_format.ancestor.payloads import ANCESTORS_FORMAT, OldFormat
from replayer.old_archives.detection import old_archive_finder
from replayer.read.archive import Archive
from replayer.read.partition import ObjectCache

SHOWN_NOTES = 20


@dataclass(frozen=True)
class ArchiveOptions:
    """Where the archive is and what a reader accepts."""

    address: Address
    endpoint_url: str | None
    region: str | None
    max_block_bytes: int
    old_format: OldFormat = ANCESTORS_FORMAT


def _archive_options(archive: str, **rest: Any) -> ArchiveOptions:
    return ArchiveOptions(parse_address(archive), **rest)


archive_options = OptionSet(
    "archive", _archive_options, archive_option(), endpoint_option, region_option, max_block_option, old_format_option
)
"""Adds -a/--archive and what goes with it; passes `archive: ArchiveOptions`."""


def _cache(is_unused: bool) -> DiskCache | None:
    folder = None if is_unused else default_folder()
    return None if folder is None else DiskCache(folder)


cache_option = Option(
    "--no-cache", "cache", is_flag=True, parse=_cache, help="Fetch indexes again rather than from this machine's cache."
)
"""Adds --no-cache; passes `cache: DiskCache | None`."""


@asynccontextmanager
async def open_archive(options: ArchiveOptions, cache: ObjectCache | None = None) -> AsyncIterator[Archive]:
    """The archive that the options name; its store is closed at the end."""
    async with open_counted_archive(options, cache) as (archive, _):
        yield archive


@asynccontextmanager
async def open_counted_archive(
    options: ArchiveOptions, cache: ObjectCache | None = None
) -> AsyncIterator[tuple[Archive, CountingReader]]:
    """The same, with what counts the requests."""
    async with open_reader(options.address, endpoint_url=options.endpoint_url, region=options.region) as reader:
        counting = CountingReader(WatchedReader(reader, partial(click.echo, err=True)))
        finder = old_archive_finder(options.old_format, options.max_block_bytes)
        archive = Archive(counting, options.max_block_bytes, finder, cache)
        yield archive, counting
        for note in archive.other.notes[:SHOWN_NOTES] if archive.other else ():
            click.echo(f"note: {note}", err=True)
