"""What is committed to an archive while somebody looks on."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from index_format.errors import MalformedObject

from .archive import Archive
from .archived_partition import ArchivedPartition
from .errors import NotInArchive, StoreUnavailable
from .positions import OffsetRange
from .selection import Selection

CONCURRENT_POLLS = 32
POLLS_PER_LISTING = 10
"""New partitions are looked for once in so many polls, because that takes a listing."""


class Followed(NamedTuple):
    """A partition as last seen, and the offset from which on its records are new."""

    partition: ArchivedPartition
    position: int


class Follower:
    """Tells at each poll what was committed since the one before.

    `announce` is told, in a line for people, of gaps, of a topic that was created again (its new incarnation is
    followed), of new partitions (with `watch_for_partitions`), and of a store that does not answer.
    """

    def __init__(
        self,
        archive: Archive,
        topic: str,
        followed: Sequence[Followed],
        announce: Callable[[str], None],
        *,
        watch_for_partitions: bool,
    ) -> None:
        self._archive = archive
        self._topic = topic
        self._followed = {each.partition.partition: each for each in followed}
        self._announce = announce
        self._watches = watch_for_partitions
        self._polls = 0
        self._silent = False

    async def poll(self) -> list[Selection]:
        """The new offsets of each partition that has some; each offset is told once. One request per partition.

        Raises MalformedObject where a marker went backwards, and what opening a partition does; a store that cannot be
        reached is announced and has no news.
        """
        limit = asyncio.Semaphore(CONCURRENT_POLLS)

        async def seen(followed: Followed) -> list[ArchivedPartition]:
            async with limit:
                return await self._reread(followed.partition)

        try:
            if self._watches and self._polls % POLLS_PER_LISTING == 0:
                await self._find_partitions()
            numbers = sorted(self._followed)
            versions = await asyncio.gather(*(seen(self._followed[number]) for number in numbers))
        except StoreUnavailable as error:
            if not self._silent:
                self._announce(f"{error.what} ({error.why}); asking on")
            self._silent = True
            return []
        self._polls += 1
        self._silent = False
        return [
            selection
            for number, newer in zip(numbers, versions, strict=True)
            for version in newer
            if (selection := self._news(number, version)) is not None
        ]

    async def _find_partitions(self) -> None:
        for number in await self._archive.partitions(self._topic):
            if number not in self._followed:
                opened = await self._archive.open_partition(self._topic, number)
                self._announce(f"partition {opened} is new")
                self._followed[number] = Followed(opened, opened.start_offset)

    async def _reread(self, known: ArchivedPartition) -> list[ArchivedPartition]:
        """The partition as it is now; where the topic was created again, its older incarnations' ends come first."""
        here = known.keys.folder.incarnation
        try:
            newest = await self._archive.open_partition(self._topic, known.partition)
        except NotInArchive:
            return [await self._archive.open_partition(f"{known.topic}~{here}", known.partition)]
        if newest.keys.folder == known.keys.folder:
            return [newest]
        older = [await self._archive.open_partition(f"{known.topic}~{here}", known.partition)]
        for between in range(here + 1, newest.keys.folder.incarnation):
            try:
                older.append(await self._archive.open_partition(f"{known.topic}~{between}", known.partition))
            except NotInArchive:  # that incarnation had fewer partitions
                continue
        return [*older, newest]

    def _news(self, number: int, newer: ArchivedPartition) -> Selection | None:
        before, position = self._followed[number]
        if newer.keys.folder != before.keys.folder:
            self._announce(f"partition {before} goes on as {newer}: the topic was created again")
            position = newer.start_offset
        elif newer.next_offset < before.next_offset:
            raise MalformedObject(
                f"{newer.keys.marker} went back from offset {before.next_offset} to {newer.next_offset}",
                why="another archive was put in its place, or an old copy of it",
                remedy="start again if that was meant",
            )
        for gap in newer.marker.gaps:
            if gap.end > max(position, before.next_offset) and gap not in before.marker.gaps:
                self._announce(f"partition {newer} has a gap from {gap.start} to {gap.end}: {gap.reason}")
        self._followed[number] = Followed(newer, max(position, newer.next_offset))
        return Selection(newer, OffsetRange(position, newer.next_offset)) if newer.next_offset > position else None
