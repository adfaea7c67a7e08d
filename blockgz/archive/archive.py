"""An archive and its topics: which there are, and the marker of each partition."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from blockgz import errors
from blockgz.archive.partition import ArchivedPartition, Damaged, ObjectCache
from blockgz.encryption.keyring import Keyring, keyring_of
from blockgz.store.address import AT_AWS, Address, LocalAddress, S3Settings
from blockgz.store.opening import open_reader
from blockgz.store.reader import ObjectReader
from index_format import objects
from index_format.keys import (
    LAYOUTS,
    MARKER_OBJECT,
    TOPIC_CONFIG_OBJECT,
    TOPIC_OBJECT,
    PartitionKeys,
    TopicFolder,
    ancestor_marker_partition,
    ancestor_marker_prefix,
    archive_home,
    archive_key,
    parse_topic_folder,
    partition_folders,
    topic_folders,
    topic_home,
)
from index_format.marker import decode_own_marker
from index_format.objects import DEFAULT_MAX_BLOCK_BYTES, TopicConfig, TopicInfo
from index_format.old_objects import OldFormat, group_by_partition

if TYPE_CHECKING:
    from blockgz.archive.old_archive import OldArchive

MAX_PARTITIONS = 100_000
CONCURRENT_MARKERS = 32
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@dataclass(frozen=True)
class TopicPartitions:
    """`orders`, `orders:3` or `orders:0,2-4`; partitions is None for all."""

    topic: str
    partitions: tuple[int, ...] | None

    def narrow(self, partitions: str | None) -> "TopicPartitions":
        """Return the topic with the partitions of `--partitions`; raises UsageError if it names some too."""
        if partitions is None:
            return self
        if self.partitions is not None:
            raise errors.UsageError(
                "the partitions are given twice", why="in the topic and with --partitions", remedy="give them once"
            )
        return TopicPartitions(self.topic, parse_partitions(partitions))


def parse_topic(text: str) -> TopicPartitions:
    """Return the topic and partitions that `text` names; raises UsageError or BadName."""
    topic, separator, partitions = text.partition(":")
    parse_topic_folder(topic)
    return TopicPartitions(topic, parse_partitions(partitions) if separator else None)


def parse_partitions(text: str) -> tuple[int, ...]:
    """Return the numbers that `0,2-4` names, rising; raises UsageError."""
    numbers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if first > last or last > MAX_PARTITIONS:
            raise errors.UsageError(
                f"{text[:80]!r} names no partitions",
                why=f"{part[:40]!r} is not a number or a range",
                remedy="write 3 or 0,2-4",
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


class SurveyedTopic(NamedTuple):
    """The partitions of a topic, in order of their numbers."""

    partitions: tuple[ArchivedPartition, ...]
    damaged: Mapping[int, errors.BlockgzError]
    """Partitions that exist and cannot be opened, by number, and why."""


class ArchiveReader:
    """An archive at one address."""

    def __init__(
        self,
        reader: ObjectReader,
        max_block_bytes: int = DEFAULT_MAX_BLOCK_BYTES,
        old_format: OldFormat | None = None,
        cache: ObjectCache | None = None,
        keyring: Keyring | None = None,
    ) -> None:
        """Create an archive that is read on demand; `old_format` is that of an old one, if one may be read instead."""
        self.reader = reader
        self.max_block_bytes = max_block_bytes
        self.keyring = keyring
        self._cache = cache
        self._layouts = tuple(LAYOUTS)
        self._old_format = old_format
        self._finding = asyncio.Lock()
        # The old archive that was found in the place of a current one.
        self.other: OldArchive | None = None
        # Each topic's folders, if they were listed once for all.
        self._pinned: dict[str, list[TopicFolder]] | None = None

    @property
    def layout(self) -> str:
        """The archive's layout, once something of it has been found; the default one before."""
        return self._layouts[0]

    async def pin(self) -> "ArchiveReader":
        """Return a copy that keeps the list of topics of now, to go through all of them. Raises NoArchiveThere."""
        folders = await self.find()
        same = copy(self)
        same._pinned = {}
        for folder in folders:
            same._pinned.setdefault(folder.topic, []).append(folder)
        return same

    async def topics(self) -> tuple[str, ...]:
        """Return the names of all archived topics, without older incarnations; raises NoArchiveThere."""
        return tuple(sorted({folder.topic for folder in await self.find()}))

    async def all_incarnations(self) -> tuple[str, ...]:
        """Return every incarnation of every topic, by its name: `orders`, or `orders~1` if there are several."""
        folders = await self.find()
        several = {folder.topic for folder in folders if folder.incarnation > 1}
        return tuple(f"{topic}~{incarnation}" if topic in several else topic for topic, incarnation in sorted(folders))

    async def incarnations(self, topic: str) -> tuple[TopicFolder, ...]:
        """Return a plain topic's archived incarnations, oldest first; raises NotInArchive, NoArchiveThere."""
        if self._pinned is not None and topic in self._pinned:
            return tuple(sorted(self._pinned[topic]))
        folders = await self.find()
        mine = sorted(folder for folder in folders if folder.topic == topic)
        if not mine:
            topics = sorted({folder.topic for folder in folders})
            raise errors.NotInArchive(
                f"topic {topic} is not in the archive",
                why=f"{self.reader.address} holds {errors.listed(topics, 'no topics')}",
                remedy=("choose one of these, or " if topics else "")
                + f"archive the topic first: archiver run {topic} --once",
            )
        return tuple(mine)

    async def partitions(self, topic: str) -> tuple[int, ...]:
        """Return the numbers of the topic's archived partitions; raises NotInArchive or NoArchiveThere."""
        # A plain name means the newest incarnation that has a partition.
        numbers = [await self.partitions_in(folder) for folder in await self._folders_of(topic)]
        return tuple(sorted({number for each in numbers for number in each}))

    async def folder_of(self, topic: str) -> TopicFolder:
        """Return the incarnation that `orders` or `orders~2` means; raises NotInArchive or NoArchiveThere."""
        # Partitions whose log was truncated continue in later folders: the topic is where they begin.
        return (await self._folders_of(topic))[0]

    async def whole_topic(self, folder: str) -> str:
        """Return a folder's topic: by its plain name if it may continue in later ones. Raises as `folder_of`."""
        first = parse_topic_folder(folder)
        same = await self.pin()
        folders = await same._folders_of(first.topic)
        if folders[0] != first:
            return folder
        # A newer topic of which nothing is archived yet is what the markers of this one may name as its successor.
        is_newest = folders[-1] == (await same.incarnations(first.topic))[-1]
        return first.topic if is_newest or len(folders) > 1 else folder

    async def _folders_of(self, topic: str) -> Sequence[TopicFolder]:
        folder = parse_topic_folder(topic)
        incarnations = await self.incarnations(folder.topic)
        if "~" not in topic:
            for position in range(len(incarnations), 0, -1):
                if await self.partitions_in(incarnations[position - 1]):
                    return await self._same_topic(incarnations[:position])
        if folder not in incarnations:
            raise errors.NotInArchive(
                f"{topic} is not in the archive", why=f"there is {errors.listed(map(str, incarnations))}"
            )
        return [folder]

    async def _same_topic(self, incarnations: Sequence[TopicFolder]) -> Sequence[TopicFolder]:
        if len(incarnations) == 1 or self.other is not None:
            return incarnations[-1:]
        ids = await asyncio.gather(*(self._topic_info(folder) for folder in incarnations))
        first = len(incarnations) - 1
        while first and ids[first] is not None and ids[first - 1] == ids[first]:
            first -= 1
        return incarnations[first:]

    async def _topic_info(self, folder: TopicFolder) -> tuple[str | None] | None:
        key = topic_home(self.layout, folder) + TOPIC_OBJECT
        try:
            return (objects.decode(await self.reader.get(key, objects.MAX_OBJECT_BYTES), TopicInfo, key).topic_id,)
        except Damaged:
            return None

    async def topic_config(self, topic: str) -> TopicConfig | None:
        """Return the topic's settings when last archived; None if they were not kept. Raises as `folder_of`."""
        key = topic_home(self.layout, await self.folder_of(topic)) + TOPIC_CONFIG_OBJECT
        try:
            body = await self.reader.get(key, objects.MAX_OBJECT_BYTES)
        except errors.ObjectMissing:
            return None
        return objects.decode(body, TopicConfig, key)

    async def open_partition(self, topic: str, partition: int) -> ArchivedPartition:
        """Return the partition of `orders`, the newest incarnation, or of the one that `orders~2` names; one request.

        Raises NotInArchive or NoArchiveThere (found out by listing, then only), ObjectMissing if the partition exists
        without its marker, AccessDenied, or a FormatError.
        """
        folder, pinned = parse_topic_folder(topic), "~" in topic
        # Most topics have one incarnation, few have more than two: try these by name before listing any.
        found = await self._read_marker(folder, partition)
        if found is None and not pinned:
            found = await self._read_marker(folder._replace(incarnation=2), partition)
            if found is None:
                newest = reversed(await self.incarnations(folder.topic))
                unread = [each for each in newest if each.incarnation > 2 or self.other is not None]
                for each in unread:
                    found = found or await self._read_marker(each, partition)
        while found is not None and not pinned and found.marker.successor is not None:
            successor = _parse_folder(found, found.marker.successor, is_behind=True)
            found = await self._read_marker(successor, partition)
            if found is None:
                raise errors.NotInArchive(
                    f"partition {partition} of {topic} is not in the archive",
                    why=f"the topic was created again as {successor}, and this partition has not been archived since",
                    remedy=f"name the previous incarnation, such as {folder.topic}~{successor.incarnation - 1}",
                )
        if found is None:
            raise await self._no_partition(topic, partition)
        return await self._with_older(found)

    async def _with_older(self, newest: ArchivedPartition) -> ArchivedPartition:
        continues = newest.marker.continues
        if not continues:
            return newest
        folder = _parse_folder(newest, continues.folder)
        older = await self._read_marker(folder, newest.partition)
        if older is None:
            keys = LAYOUTS[self.layout](folder, newest.partition)
            raise errors.MarkerMissing(keys.marker, keys)
        return await (await self._with_older(older)).append_folder(newest, continues.offset)

    async def _reopened(self, folder: TopicFolder, partition: int, reader: ObjectReader) -> ArchivedPartition:
        """Return the partition that ends in a folder, as its marker is now; raises as `open_partition`."""
        same = copy(self)
        same.reader = reader
        found = await same._read_marker(folder, partition)
        if found is None:
            keys = LAYOUTS[self.layout](folder, partition)
            raise errors.MarkerMissing(keys.marker, keys)
        return await same._with_older(found)

    async def open_topic(self, topic: str, partitions: Sequence[int] | None = None) -> tuple[ArchivedPartition, ...]:
        """Return the named partitions, or all, in order of their numbers; raises as `open_partition`."""
        opened = await self.survey_topic(topic, partitions)
        for error in opened.damaged.values():
            raise error
        return opened.partitions

    async def survey_topic(self, topic: str, partitions: Sequence[int] | None = None) -> SurveyedTopic:
        """Return the named partitions, or all, and apart from them those whose marker is damaged or missing."""
        numbers = await self.partitions(topic) if partitions is None else sorted(set(partitions))
        limit = asyncio.Semaphore(CONCURRENT_MARKERS)

        damaged: dict[int, errors.BlockgzError] = {}

        async def opened(number: int) -> ArchivedPartition | None:
            async with limit:
                try:
                    return await self.open_partition(topic, number)
                except Damaged as error:
                    damaged[number] = error
                    return None

        found = await asyncio.gather(*(opened(number) for number in numbers))
        return SurveyedTopic(tuple(each for each in found if each is not None), dict(sorted(damaged.items())))

    async def _read_marker(self, folder: TopicFolder, partition: int) -> ArchivedPartition | None:
        if self.other is not None:
            return await self.other.open_partition(folder, partition)
        denied: errors.AccessDenied | None = None
        for layout in self._layouts:
            keys: PartitionKeys = LAYOUTS[layout](folder, partition)
            try:
                body = await self.reader.get(keys.marker, objects.MAX_OBJECT_BYTES)
            except errors.ObjectMissing:
                continue
            except errors.AccessDenied as error:
                # A policy may deny the other layout's prefix: only if neither is readable, access is denied.
                denied = denied or error
                continue
            self._layouts = (layout,)
            marker = decode_own_marker(body, keys)
            reopen = partial(self._reopened, folder, partition)
            limit, cache, keyring = self.max_block_bytes, self._cache, self.keyring
            return ArchivedPartition(self.reader, keys, marker, limit, cache, (), reopen, keyring)
        if denied is not None:
            raise denied
        return None

    async def find(self) -> tuple[TopicFolder, ...]:
        """Return the folders of all topics, in order; settles the kind of archive. Raises NoArchiveThere."""
        if self._pinned is not None:
            return tuple(folder for folders in self._pinned.values() for folder in folders)
        if self.other is not None:
            return self.other.folders()
        for layout in self._layouts:
            folders = tuple(topic_folders(await self.reader.folders(archive_home(layout))))
            if folders or await self._has_archive_object(layout):
                self._layouts = (layout,)
                return folders
        # Concurrent callers must not list the whole bucket several times.
        async with self._finding:
            self.other = self.other or await self._find_old()
        if self.other is not None:
            return self.other.folders()
        raise errors.NoArchiveThere(
            f"there is no archive at {self.reader.address}",
            why="it holds neither _archive.json nor a topic",
            remedy="check -a/--archive, or create one: archiver run TOPIC --once -a ADDRESS",
        )

    async def _find_old(self) -> "OldArchive | None":
        # One request for folders, before everything is listed: a bucket of other things may be too large for that.
        if self._old_format is None or not any(_DATE.match(name) for name in await self.reader.folders("")):
            return None
        # Here, because few archives are old ones and it loads slowly.
        from blockgz.archive.old_archive import OldArchive  # noqa: PLC0415

        found = group_by_partition([key async for key in self.reader.list("")])
        return OldArchive(self.reader, found, self._old_format, self.max_block_bytes) if found else None

    async def _has_archive_object(self, layout: str) -> bool:
        try:
            await self.reader.size(archive_key(layout))
        except errors.ObjectMissing:
            return False
        return True

    async def partitions_in(self, folder: TopicFolder) -> tuple[int, ...]:
        """Return the numbers of the partitions that one folder holds, in order; one request."""
        if self.other is not None:
            return self.other.partitions(folder)
        names = await self.reader.folders(topic_home(self.layout, folder))
        numbers = {keys.partition for keys in partition_folders(self.layout, folder, names)}
        if self.layout == "seed" and folder == max(await self.incarnations(folder.topic)):
            async for key in self.reader.list(ancestor_marker_prefix(folder.topic)):
                if (number := ancestor_marker_partition(key, folder.topic)) is not None:
                    numbers.add(number)
        return tuple(sorted(numbers))

    async def _no_partition(self, topic: str, partition: int) -> errors.BlockgzError:
        numbers = await self.partitions(topic)
        if partition in numbers:
            name = f"{parse_topic_folder(topic)}:{partition}"
            return errors.MarkerMissing(f"{MARKER_OBJECT} of {name}", name)
        return errors.NotInArchive(
            f"partition {partition} of {topic} is not in the archive",
            why=f"there is {errors.listed(map(str, numbers))}",
            remedy="choose one of these",
        )


def _parse_folder(partition: ArchivedPartition, name: str, *, is_behind: bool = False) -> TopicFolder:
    """Return the folder that a marker names: its successor if `is_behind`, else one that it continues."""
    what = (
        f"{partition.keys.marker} names a {'successor that is none' if is_behind else 'folder that it cannot continue'}"
    )
    try:
        folder = parse_topic_folder(name)
    except errors.BadName as error:
        raise errors.MalformedObject(what, why=error.what) from error
    here = partition.keys.folder
    if folder.topic != here.topic or folder == here or (folder > here) != is_behind:
        raise errors.MalformedObject(what, why=f"it says {name[:80]!r}")
    return folder


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
) -> AsyncIterator[ArchiveReader]:
    """Open the archive of a place, which reads through `around`; close its store at the end."""
    keyring = keyring_of(place.keys)
    async with open_reader(place.address, place.s3) as reader:
        yield ArchiveReader(around(reader), place.max_block_bytes, place.old_format, cache, keyring)
