"""The address of an archive, and how programs, Spark tasks and callers of the library open it."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from blockgz.archive.archive import Archive, OtherArchive
from blockgz.archive.partition import ObjectCache
from blockgz.encryption.keyring import keyring_of
from blockgz.store.address import Address, LocalAddress
from blockgz.store.opening import open_reader
from blockgz.store.reader import ObjectReader
from blockgz.store.s3_settings import AT_AWS, S3Settings
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES
from index_format.old_objects import OldFormat, group_by_partition


@dataclass(frozen=True)
class ArchivePlace:
    """An archive's address and what its store needs; credentials come from the environment of each machine."""

    address: Address
    s3: S3Settings = AT_AWS
    max_block_bytes: int = DEFAULT_MAX_BLOCK_BYTES
    old_format: OldFormat | None = None
    """The format of an archive of kafka-connect-s3, if one is to be read."""
    keys: str | None = None
    """The setting that says where the keys of encrypted chunks are, which each machine looks up."""

    def absolute(self) -> "ArchivePlace":
        """Return the place with an absolute address, for processes that work in folders of their own."""
        address = self.address
        return replace(self, address=LocalAddress(str(address.root()))) if isinstance(address, LocalAddress) else self


@asynccontextmanager
async def opened(
    place: ArchivePlace,
    cache: ObjectCache | None = None,
    around: Callable[[ObjectReader], ObjectReader] = lambda reader: reader,
) -> AsyncIterator[Archive]:
    """Open the archive of a place, which reads through `around`; close its store at the end."""
    old, limit = place.old_format, place.max_block_bytes
    finder = None if old is None else old_archive_finder(old, limit)
    keyring = keyring_of(place.keys)
    async with open_reader(place.address, place.s3) as reader:
        yield Archive(around(reader), limit, finder, cache, keyring)


_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def old_archive_finder(
    old_format: OldFormat, max_block_bytes: int
) -> Callable[[ObjectReader], Awaitable[OtherArchive | None]]:
    """Return a function that looks for an old archive, for use if no current one is found."""

    async def find(reader: ObjectReader) -> OtherArchive | None:
        # One request for folders, before everything is listed.
        if not any(_DATE.match(name) for name in await reader.folders("")):
            return None  # a bucket of other things may be too large to list
        # Here, because few archives are old ones and it loads slowly.
        from blockgz.archive.old_archive import OldArchive  # noqa: PLC0415

        found = group_by_partition([key async for key in reader.list("")])
        return OldArchive(reader, found, old_format, max_block_bytes) if found else None

    return find
