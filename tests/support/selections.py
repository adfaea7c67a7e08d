"""Selections of archives in a directory, for tests of what takes them."""

import asyncio
from pathlib import Path

from blockgz_runtime.store.address import LocalAddress
from blockgz_runtime.store.local import LocalReader
from replayer.read.archive import Archive
from replayer.read.positions import OffsetRange
from replayer.read.selection import Selection


def selections_of(root: Path, topic: str, start: int = 0, end: int = 2**62) -> list[Selection]:
    """Each archived partition of the topic, with what it holds of offsets [start, end)."""

    async def opened() -> list[Selection]:
        partitions = await Archive(LocalReader(LocalAddress(str(root)))).open_topic(topic)
        ranges = [OffsetRange(max(start, each.start_offset), min(end, each.next_offset)) for each in partitions]
        return [Selection(each, offsets) for each, offsets in zip(partitions, ranges, strict=True)]

    return asyncio.run(opened())
