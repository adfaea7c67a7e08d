"""Selections of archives in a directory, for tests of what takes them."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection
from blockgz.store.address import LocalAddress
from blockgz.store.local import LocalReader


def selections_of(root: Path, topic: str, start: int = 0, end: int = 2**62) -> list[Selection]:
    """Each archived partition of the topic, with what it holds of offsets [start, end)."""

    async def opened() -> list[Selection]:
        partitions = await ArchiveReader(LocalReader(LocalAddress(str(root)))).open_topic(topic)
        ranges = [OffsetRange(max(start, each.start_offset), min(end, each.next_offset)) for each in partitions]
        return [Selection(each, offsets) for each, offsets in zip(partitions, ranges, strict=True)]

    return asyncio.run(opened())


def judged_cut(rows: Iterable[tuple[int, int]], at: int, start: int, end: int, settled: int = 1000) -> int:
    """Return the cut by the rule of FORMAT.md, record by record; `rows` are offsets and timestamps in order."""
    lowest, best, total = None, end, 0
    for offset, timestamp in rows:
        if not start <= offset < end:
            continue
        if timestamp >= at and (lowest is None or total < lowest):
            lowest, best = total, offset
        total += 1 if timestamp >= at else -1 if timestamp >= 0 else 0
        if lowest is not None and total >= lowest + settled:
            return best
    return end if lowest is None or total < lowest else best
