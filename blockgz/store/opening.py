"""Choosing the store by its address."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from blockgz.errors import NoArchiveThere
from blockgz.store.address import AT_AWS, Address, LocalAddress, S3Address, S3Settings, parse_address
from blockgz.store.local import LocalReader, LocalStore
from blockgz.store.reader import ObjectReader
from blockgz.store.writer import ToolStore


@asynccontextmanager
async def open_reader(address: Address, s3: S3Settings = AT_AWS) -> AsyncIterator[ObjectReader]:
    """Yield the store at the address, closed at the end."""
    if isinstance(address, LocalAddress):
        yield LocalReader(address)
        return
    # Here, because the AWS library takes longer to load than a small command to run.
    from blockgz.store.customer_key import KeyCheckingReader, fingerprint_of  # noqa: PLC0415
    from blockgz.store.s3_reader import HedgingReader, open_s3  # noqa: PLC0415

    async with open_s3(address, s3) as reader:
        yield KeyCheckingReader(HedgingReader(reader), fingerprint_of(s3.customer_key))


def open_store(address: str, s3: S3Settings, *, single_writer: bool = False) -> ToolStore:
    """Open the store at `s3://bucket/prefix`, `file:///dir` or `./dir`; create a missing folder, but no bucket."""
    # For a single writer, S3 is used without conditional writes, which some of its work-alikes do not have.
    parsed = parse_address(address)
    if isinstance(parsed, LocalAddress):
        return LocalStore(parsed.root())
    # A client for S3 takes a third of the start of a program that only uses a folder.
    from blockgz.store.s3_writer import S3Store  # noqa: PLC0415

    return S3Store(parsed, s3, is_conditional=not single_writer)


def open_existing_store(address: str, s3: S3Settings) -> ToolStore:
    """Open a store for tools, which create nothing.

    Raises NoArchiveThere if the folder does not exist, AccessDenied if S3 needs another customer key.
    """
    parsed = parse_address(address)
    with suppress(PermissionError):  # the store reports it
        if isinstance(parsed, LocalAddress) and not parsed.root().is_dir():
            raise NoArchiveThere(
                f"there is no archive at {address}", why="the folder does not exist", remedy="check -a/--archive"
            )
    store = open_store(address, s3)
    if isinstance(parsed, S3Address):
        from blockgz.store.customer_key import check_stored_archive, fingerprint_of  # noqa: PLC0415

        check_stored_archive(store, fingerprint_of(s3.customer_key))
    return store


def default_buffer_root(address: str) -> Path:
    """Return the default folder of open chunks: inside a local archive, so that they are linked and not copied."""
    parsed = parse_address(address)
    if isinstance(parsed, LocalAddress):
        return parsed.root() / ".buffer"
    named = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(named) if Path(named).is_absolute() else Path("~/.cache").expanduser()
    return home / "blockgz" / "buffer"
