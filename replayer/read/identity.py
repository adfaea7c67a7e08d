"""Whose an archive and its topics are: the objects that say so, checked, and compared with what the markers say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from blockgz_runtime.errors import ObjectMissing
from index_format import objects
from index_format.errors import BlockgzError, MalformedObject
from index_format.identity import ArchiveInfo, TopicConfig, TopicInfo
from index_format.keys import TopicFolder, archive_key, topic_home
from index_format.marker import Marker
from replayer.read.archive import Archive
from replayer.read.damage import Damaged
from replayer.verify.findings import Damage

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(frozen=True)
class Identity:
    """What the objects of identity say; None and absent where they cannot be read or do not tell."""

    archive_id: str | None = None
    topic_ids: Mapping[TopicFolder, str] = field(default_factory=dict)
    partitions: Mapping[TopicFolder, int] = field(default_factory=dict)
    """How many partitions a topic has."""
    damage: tuple[Damage, ...] = ()

    def objections(self, folder: TopicFolder, marker: Marker) -> list[str]:
        """Why a marker of that folder is not of this archive and topic; ids that are not known never differ."""
        found = []
        if self.archive_id is not None and marker.archive_id != self.archive_id:
            found.append(f"it is of archive {marker.archive_id}, not {self.archive_id}")
        topic_id = self.topic_ids.get(folder)
        if None not in (topic_id, marker.topic_id) and marker.topic_id != topic_id:
            found.append(f"it is of the topic with id {marker.topic_id}, not {topic_id}")
        return found


async def read_identity(archive: Archive, topics: Iterable[str]) -> Identity:
    """Checks the objects that say whose the archive and its topics are, and the topics' configurations if any.

    An old archive has none.
    """
    folders = [await archive.folder_of(topic) for topic in topics]
    if archive.other is not None:
        return Identity()
    damage: list[Damage] = []
    topic_ids: dict[TopicFolder, str] = {}
    partitions: dict[TopicFolder, int] = {}
    info = await _checked(archive, archive_key(archive.layout), ArchiveInfo, damage)
    for folder in dict.fromkeys(folders):
        home = topic_home(archive.layout, folder)
        topic = await _checked(archive, home + "_topic.json", TopicInfo, damage)
        if topic is not None and (topic.topic, topic.incarnation) != folder:
            reason = f"it names another topic: {topic.topic}~{topic.incarnation}"
            damage.append(Damage(home + "_topic.json", reason))
        elif topic is not None and topic.topic_id is not None:
            topic_ids[folder] = topic.topic_id
        config = await _checked_config(archive, home + "_topic_config.json", folder, damage)
        if config is not None:
            partitions[folder] = config.partitions
    return Identity(None if info is None else info.archive_id, topic_ids, partitions, tuple(damage))


async def _checked(archive: Archive, key: str, kind: type[T], damage: list[Damage]) -> T | None:
    try:
        return await _read(archive, key, kind)
    except Damaged as error:
        damage.append(Damage(key, error.reason))
        return None


async def _checked_config(archive: Archive, key: str, folder: TopicFolder, damage: list[Damage]) -> TopicConfig | None:
    try:
        config = await _read(archive, key, TopicConfig)
        if config.topic != folder.topic:
            raise MalformedObject(f"it is of another topic: {config.topic}")
    except ObjectMissing:
        return None
    except Damaged as error:
        assert isinstance(error, BlockgzError)
        damage.append(Damage(key, error.reason))
        return None
    return config


async def _read(archive: Archive, key: str, kind: type[T]) -> T:
    return objects.decode((await archive.reader.get(key, objects.MAX_OBJECT_BYTES)).body, kind, key)
