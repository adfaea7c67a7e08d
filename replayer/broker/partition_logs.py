"""The archive's topics as a broker names them, and each partition as a log that grows."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.partition import ArchivedPartition
from blockgz.errors import BlockgzError, NotInArchive
from blockgz.topic_patterns import TopicSelection
from index_format.keys import TopicFolder, parse_topic_folder

_log = logging.getLogger(__name__)

# The marker that a fetch is answered by is at most this old: what an erase removed is served no longer than that.
MOST_AGE_SECONDS = 60.0
# Between two reads of a marker for which somebody waits: while it changes, and at most.
FRESH_SECONDS, SLOWEST_SECONDS = 2.0, 30.0
_SLOWER = 1.5
# A log is followed until no client has waited for it for this time.
_UNWATCHED_SECONDS = 60.0
# Listings cost as much as writes. A topic or a partition that is new may be seen that much later.
_LISTING_SECONDS, _PARTITIONS_SECONDS = 30.0, 300.0
_LISTS_AT_ONCE = 16
_UNCOMMITTED = "read_uncommitted"


class Log:
    """One archived partition, read by many; its marker is read once for all of them."""

    def __init__(
        self, archive: ArchiveReader, topic: str, number: int, fresh_seconds: float, forget: Callable[[str], None]
    ) -> None:
        """`forget` gets a folder whose chunks were rewritten."""
        self.topic, self.number = topic, number
        self._forget = forget
        self._archive = archive
        self._fresh_seconds = fresh_seconds
        self._partition: ArchivedPartition | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()
        self._followers: set[asyncio.Event] = set()
        self._wanted_at = 0.0
        self._watching: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        return f"{self.topic}:{self.number}"

    async def partition(self, most_age: float = MOST_AGE_SECONDS) -> ArchivedPartition:
        """Return the partition by a marker that is at most this old; raise as `ArchiveReader.open_partition`."""
        async with self._reading:
            known = self._partition
            if known is not None and time.monotonic() - self._read_at < most_age:
                return known
            began = time.monotonic()
            found = await self._archive.open_partition(self.topic, self.number)
            self._read_at = began
            # The former object remembers catalogs and indexes.
            is_same = known is not None and known.is_unchanged(found)
            self._partition = known if known is not None and is_same else found
            if known is None and found.marker.isolation_level == _UNCOMMITTED:
                _log.warning("%s was archived with read_uncommitted: it has records of aborted transactions", self)
            if not is_same:
                if known is not None and known.marker.maintenance != found.marker.maintenance:
                    self._forget(known.keys.home)
                for changed in self._followers:
                    changed.set()
            return self._partition

    @property
    def known(self) -> ArchivedPartition | None:
        """The partition, if its marker is recent enough to answer a fetch."""
        return self._partition if time.monotonic() - self._read_at < MOST_AGE_SECONDS else None

    def follow(self, changed: asyncio.Event) -> None:
        """Set `changed` when the marker changes, until `unfollow`; from now on the marker is read regularly."""
        self._followers.add(changed)
        self._wanted_at = time.monotonic()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def unfollow(self, changed: asyncio.Event) -> None:
        self._followers.discard(changed)

    async def _watch(self) -> None:
        seconds = self._fresh_seconds
        while time.monotonic() - self._wanted_at < _UNWATCHED_SECONDS:
            await asyncio.sleep(seconds)
            before = self._partition
            try:
                is_new = await self.partition(most_age=seconds / 2) is not before
            except BlockgzError:
                is_new = False  # a fetch meets the same error once the marker is too old, and answers with it
            seconds = self._fresh_seconds if is_new else min(seconds * _SLOWER, max(SLOWEST_SECONDS, seconds))

    def close(self) -> None:
        """Stop following."""
        if self._watching is not None:
            self._watching.cancel()


class Logs:
    """All topics that a broker serves, with their partitions' logs."""

    def __init__(
        self,
        archive: ArchiveReader,
        served: TopicSelection,
        forget: Callable[[str], None],
        fresh_seconds: float = FRESH_SECONDS,
    ) -> None:
        """`forget` gets a folder whose chunks were rewritten."""
        self.archive = archive
        self._served = served
        self._forget = forget
        self._fresh_seconds = fresh_seconds
        # The archive's name of each topic that clients see.
        self._names: dict[str, str] = {}
        self._listed_at: float | None = None
        self._listing = asyncio.Lock()
        # Each topic's partitions, and when they were listed.
        self._numbers: dict[str, tuple[float, Sequence[int]]] = {}
        self._lists_at_once = asyncio.Semaphore(_LISTS_AT_ONCE)
        self._logs: dict[tuple[str, int], Log] = {}
        self.archive_id = ""
        # Why the archive's topics could not be listed the last time.
        self.trouble = ""

    async def names(self) -> Mapping[str, str]:
        """Return the archive's name of each topic, by the name that clients see; raise what a listing raises."""
        async with self._listing:
            if self._listed_at is None or time.monotonic() - self._listed_at >= _LISTING_SECONDS:
                try:
                    self._names = await self._list()
                    self.trouble = ""
                    self._listed_at = time.monotonic()
                except BlockgzError as error:
                    self.trouble = str(error)
                    if self._listed_at is None:
                        raise
        return self._names

    async def partitions(self, topic: str) -> Sequence[int] | None:
        """Return the numbers of a topic's partitions; None if it is not served."""
        name = (await self.names()).get(topic)
        if name is None:
            return None
        listed_at, numbers = self._numbers.get(topic, (0.0, ()))
        if topic not in self._numbers or time.monotonic() - listed_at >= _PARTITIONS_SECONDS:
            async with self._lists_at_once:
                try:
                    numbers = await self.archive.partitions(name)
                except NotInArchive:
                    numbers = ()
            self._numbers[topic] = time.monotonic(), numbers
        return numbers

    def opened(self) -> Iterator[tuple[Log, ArchivedPartition]]:
        """Yield the logs whose marker is known, with the partition."""
        for log in self._logs.values():
            if (known := log.known) is not None:
                yield log, known

    async def log(self, topic: str, number: int) -> Log | None:
        """Return a partition's log, or None if no such partition is served."""
        known = self._logs.get((topic, number))
        if known is None:
            if number not in (await self.partitions(topic) or ()):
                return None
            log = Log(self.archive, self._names[topic], number, self._fresh_seconds, self._forget)
            known = self._logs.setdefault((topic, number), log)
        return known

    async def _list(self) -> dict[str, str]:
        archive = await self.archive.pin()
        found = {topic: topic for topic in await archive.topics()}
        for name in await archive.all_incarnations():
            topic, separator, number = name.rpartition("~")
            alias = f"{topic}.incarnation-{number}"
            if separator and alias not in found and await archive.folder_of(topic) != TopicFolder(topic, int(number)):
                found[alias] = name
        served = set(self._served(found))
        names = {
            name: archived
            for name, archived in sorted(found.items())
            if {name, parse_topic_folder(archived).topic} & served
        }
        self._logs = {place: log for place, log in self._logs.items() if place[0] in names}
        if not self.archive_id:
            self.archive_id = await self._read_archive_id(archive, names.values())
        return names

    async def _read_archive_id(self, archive: ArchiveReader, names: Iterable[str]) -> str:
        for name in names:
            for number in await archive.partitions(name):
                try:
                    return (await archive.open_partition(name, number)).marker.archive_id
                except BlockgzError:
                    continue
        return ""

    def close(self) -> None:
        """Stop following all logs."""
        for log in self._logs.values():
            log.close()
