"""What a subscription means: the logs of each topic, oldest first, with their partitions.

A topic that was created again has one log for each time. Several folders hold one log where it was truncated: a folder
then holds a partition's own part, up to where the next folder continues it.
"""

import re
import time
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from blockgz.archive.archive import Archive
from blockgz.archive.partition import ArchivedPartition, prefetched, streamed
from blockgz.errors import NotInArchive
from index_format.keys import TopicFolder, parse_topic_folder
from index_format.marker import ChunkEntry
from replayer.spark.source.options import Subscription

T = TypeVar("T")
R = TypeVar("R")

CONCURRENT_REQUESTS = 64
LISTED_SECONDS = 10.0
"""A stream lists topics and partitions no more often; a topic that was created again is seen in its markers."""

Place = tuple[TopicFolder, int]
"""A folder and a partition in it."""


class LogPart(NamedTuple):
    """A partition as one folder holds it: offsets [start, end) are its own part."""

    partition: ArchivedPartition
    log: int
    """Which of the topic's logs it is of; 0 is the oldest."""
    start: int
    end: int

    @property
    def folder(self) -> TopicFolder:
        return self.partition.keys.folder


class Stretch(NamedTuple):
    """Offsets [start, end) of a partition, and the chunks that hold them."""

    start: int
    end: int
    chunks: Sequence[ChunkEntry]


class Listing:
    """Which partitions a subscription has; lists them again after `LISTED_SECONDS`."""

    def __init__(self, subscription: Subscription, clock: Callable[[], float] = time.monotonic) -> None:
        self._subscription = subscription
        self._clock = clock
        self._listed_at: float | None = None
        self._places: list[Place] = []

    def forget(self) -> None:
        """Lists again when asked next."""
        self._listed_at = None

    async def places(self, archive: Archive) -> Sequence[Place]:
        """By topic in the order of the subscription, then by incarnation, oldest first; raises NotInArchive."""
        if self._listed_at is None or self._clock() - self._listed_at > LISTED_SECONDS:
            listed_at = self._clock()
            self._places = await _listed(archive, self._subscription)
            self._listed_at = listed_at
        return self._places


async def log_parts(archive: Archive, listing: Listing) -> list[LogPart]:
    """Every partition that is subscribed to, in the order of `Listing.places`, as its marker is now.

    Takes a request for each. Raises NotInArchive, or as `Archive.open_partition`.
    """
    found = parts_of(await _opened(archive, await listing.places(archive)))
    known = {f"{part.folder.topic}~{part.folder.incarnation}" for part in found}
    if any(part.partition.marker.successor not in {None, *known} for part in found):
        listing.forget()
        found = parts_of(await _opened(archive, await listing.places(archive)))
    return found


def parts_of(opened: Sequence[ArchivedPartition]) -> list[LogPart]:
    """The partitions with their logs: neighbouring folders of a topic hold one log if their ids or markers say so."""
    folders = sorted({each.keys.folder for each in opened})
    ids = {each.keys.folder: each.marker.topic_id for each in opened if each.marker.topic_id is not None}
    continued = {(older.folder, each.keys.folder) for each in opened for older, _ in each.folders[:-1]}
    logs = dict.fromkeys(folders[:1], 0)
    for before, folder in pairwise(folders):
        same_id = ids.get(folder) is not None and ids.get(before) == ids.get(folder)
        is_same = same_id or (before, folder) in continued
        logs[folder] = 0 if folder.topic != before.topic else logs[before] + (not is_same)
    ends = {
        (keys.folder, each.partition): behind for each in opened for (keys, _), (_, behind) in pairwise(each.folders)
    }
    parts = []
    for each in opened:
        folder, begins = each.keys.folder, each.folders
        start = max(each.own_start, begins[-1][1]) if begins[1:] else each.own_start
        end = min(each.next_offset, ends.get((folder, each.partition), each.next_offset))
        parts.append(LogPart(each, logs[folder], start, end))
    return parts


async def _listed(archive: Archive, subscription: Subscription) -> list[Place]:
    folders = sorted(map(parse_topic_folder, await archive.all_incarnations()))
    topics = subscription.topics
    if subscription.pattern is not None:
        names = sorted({folder.topic for folder in folders})
        topics = {name: None for name in names if re.fullmatch(subscription.pattern, name)}
        if not topics:
            raise NotInArchive(
                f"no archived topic matches {subscription.pattern!r}",
                why=f"there is {', '.join(names)}",
                remedy="subscribePattern must match a whole name",
            )
    wanted: dict[TopicFolder, tuple[int, ...] | None] = {}
    for name, numbers in topics.items():
        folder, is_one = parse_topic_folder(name), "~" in name
        mine = [each for each in folders if each == folder or (not is_one and each.topic == folder.topic)]
        if not mine:
            await archive.folder_of(name)  # raises NotInArchive
        wanted |= dict.fromkeys(mine, numbers)

    async def partitions_in(folder: TopicFolder) -> list[Place]:
        numbers = wanted[folder]
        archived = await archive.partitions_in(folder)
        return [(folder, number) for number in archived if numbers is None or number in numbers]

    return [place for places in await each_of(list(wanted), partitions_in) for place in places]


async def _opened(archive: Archive, places: Sequence[Place]) -> list[ArchivedPartition]:
    async def opened(place: Place) -> ArchivedPartition:
        folder, number = place
        return await archive.open_partition(f"{folder.topic}~{folder.incarnation}", number)

    return await each_of(places, opened)


async def each_of(items: Sequence[T], work: Callable[[T], Coroutine[Any, Any, R]]) -> list[R]:
    """The results of `work`, in the order of the items; many run at once."""
    return [each async for each in prefetched(streamed(items), work, cost=lambda _: 1, budget=CONCURRENT_REQUESTS)]
