"""Telling whether what lies somewhere is an archive of kafka-connect-s3 or a fork."""

import re
from collections.abc import Awaitable, Callable

from blockgz.archive.archive import OtherArchive
from blockgz.store.reader import ObjectReader
from index_format.ancestor.keys import found_partitions
from index_format.ancestor.payloads import OldFormat

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def old_archive_finder(
    old_format: OldFormat, max_block_bytes: int
) -> Callable[[ObjectReader], Awaitable[OtherArchive | None]]:
    """How `Archive` looks for an old archive where it finds no current one."""

    async def find(reader: ObjectReader) -> OtherArchive | None:
        if not any(_DATE.match(name) for name in await reader.folders("")):
            return None  # a bucket of other things may be too large to list
        # Here, because few archives are old ones and it loads slowly.
        from blockgz.archive.old_archive import OldArchive  # noqa: PLC0415

        found = found_partitions([key async for key in reader.list("")])
        return OldArchive(reader, found, old_format, max_block_bytes) if found else None

    return find
