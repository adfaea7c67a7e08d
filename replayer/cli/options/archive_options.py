"""Where the archive is: the options that say it, and opening it."""

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import click

from blockgz_runtime.errors import UsageError
from blockgz_runtime.program.options import F, with_options
from blockgz_runtime.store.address import Address, parse_address
from blockgz_runtime.store.cache import DiskCache, default_folder
from blockgz_runtime.store.opening import open_reader
from blockgz_runtime.store.reader import CountingReader
from index_format.ancestor.payloads import ANCESTORS_FORMAT, OLD_FORMATS, OldFormat
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES
from replayer.old_archives.detection import ancestor_finder
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


class Size(click.ParamType[int]):
    """Bytes: a number with B, kB, MB, KiB, MiB or GiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """See click.ParamType."""
        if isinstance(value, int):
            return value
        # Here, because few give sizes and it loads slowly.
        from pydantic import ByteSize, TypeAdapter, ValidationError  # noqa: PLC0415

        try:
            return int(TypeAdapter(ByteSize).validate_python(value))
        except ValidationError:
            self.fail(f"{value!r} is not a size; write 1048576, 64kB or 256MiB", param, ctx)


def archive_options(function: F) -> F:
    """Adds -a/--archive and what goes with it; passes `archive: ArchiveOptions`."""

    @functools.wraps(function)
    def with_archive(
        *args: Any,
        archive: str,
        endpoint_url: str | None,
        region: str | None,
        max_block_bytes: int,
        old_format: str,
        key_delimiter: str,
        **kwargs: Any,
    ) -> Any:
        try:
            parsed = OldFormat.of_options(old_format, key_delimiter)
        except ValueError as error:
            raise UsageError(
                f"--key-delimiter {key_delimiter!r} cannot be used",
                why=str(error),
                remedy=r"write it as '\t' or '\x1f'",
            ) from error
        options = ArchiveOptions(parse_address(archive), endpoint_url, region, max_block_bytes, parsed)
        return function(*args, archive=options, **kwargs)

    options = [
        click.option(
            "-a",
            "--archive",
            required=True,
            metavar="ADDRESS",
            help="Where the archive is: s3://bucket/prefix, file:///dir or ./dir.",
        ),
        click.option("--endpoint-url", metavar="URL", help="Where the S3 API is, if not at AWS."),
        click.option("--region", help="The bucket's region."),
        click.option(
            "--max-block-bytes",
            type=Size(),
            default=DEFAULT_MAX_BLOCK_BYTES,
            help="Refuse blocks that inflate to more than this; 256MiB unless told otherwise.",
        ),
        click.option(
            "--old-format",
            type=click.Choice(OLD_FORMATS),
            default=OLD_FORMATS[0],
            show_default=True,
            help="How records lie in an archive of kafka-connect-s3 or a fork: values in lines, key and delimiter "
            "before them, or length-prefixed without or with keys.",
        ),
        click.option(
            "--key-delimiter",
            default=r"\t",
            show_default=True,
            help=r"Of --old-format delimited; \t and \x1f mean bytes.",
        ),
    ]
    return cast(F, with_options(with_archive, options))


def cache_option(function: F) -> F:
    """Adds --no-cache; passes `cache: DiskCache | None`."""

    @functools.wraps(function)
    def with_cache(*args: Any, no_cache: bool, **kwargs: Any) -> Any:
        folder = None if no_cache else default_folder()
        return function(*args, cache=None if folder is None else DiskCache(folder), **kwargs)

    option = click.option("--no-cache", is_flag=True, help="Fetch indexes anew rather than from this machine's cache.")
    return cast(F, option(with_cache))


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
        counting = CountingReader(reader)
        finder = ancestor_finder(options.old_format, options.max_block_bytes)
        archive = Archive(counting, options.max_block_bytes, finder, cache)
        yield archive, counting
        for note in archive.other.notes[:SHOWN_NOTES] if archive.other else ():
            click.echo(f"note: {note}", err=True)
