"""What there is to verify, and whose it is: the objects of identity, checked, and compared with what markers say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import msgspec

from blockgz.archive.archive import Archive
from blockgz.archive.damage import Damage, Damaged
from blockgz.archive.inventory import Compared, Wanted, compare
from blockgz.errors import NotInArchive, ObjectMissing
from index_format import objects
from index_format.identity import ArchiveInfo, TopicConfig, TopicInfo
from index_format.keys import TOPIC_CONFIG_OBJECT, TopicFolder, archive_key, parse_topic_folder, topic_home
from index_format.marker import Marker
from replayer.verify.findings import AbsentPartition, ArchiveReport

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


class Survey(NamedTuple):
    """`report` has what is known before any partition is opened; `places` are topics and partitions in order."""

    identity: Identity
    places: Sequence[tuple[str, int]]
    report: ArchiveReport


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
        config = await _checked(archive, home + TOPIC_CONFIG_OBJECT, TopicConfig, damage)
        if config is not None and config.topic != folder.topic:
            damage.append(Damage(home + TOPIC_CONFIG_OBJECT, f"it is of another topic: {config.topic}"))
        elif config is not None:
            partitions[folder] = config.partitions
    return Identity(None if info is None else info.archive_id, topic_ids, partitions, tuple(damage))


NOTHING_CHECKED = "nothing was checked: the archive holds no partition"
NO_INVENTORY = "no inventory lists what the archive should hold: archiver repair inventory builds one from what exists"


async def survey(archive: Archive, wanted: Sequence[Wanted], expected: Sequence[str] = ()) -> Survey:
    """Of the wanted topics and partitions, all partitions of a topic where none are named, everything if empty.

    What the inventory has beyond that is missing; of each of the `expected` topics, something has to be there.
    """
    compared = await compare(archive, wanted)
    every = wanted or [(topic, None) for topic in await archive.all_incarnations()]
    asked = [each for each in every if not (wanted and await _is_lost(archive, each[0], compared))]
    identity = await read_identity(archive, [topic for topic, _ in asked])
    report = ArchiveReport(damage=list(identity.damage), archive_id=identity.archive_id)
    places = []
    for topic, partitions in asked:
        numbers = partitions or await archive.partitions(topic)
        if partitions and any(each.partition in partitions for each in compared.missing):
            numbers = sorted({*partitions} & {*await archive.partitions(topic)})
        places += [(topic, number) for number in numbers]
        if partitions is None:
            numbered = range(identity.partitions.get(await archive.folder_of(topic), 0))
            report.absent += [AbsentPartition(topic, number) for number in numbered if number not in numbers]
    _note(report, compared)
    if not places and not archive.other:
        report.warnings.append(NOTHING_CHECKED)
    report.unmet = [each for each in expected if not await _is_held(archive, each)]
    return Survey(identity, places, report)


async def _is_held(archive: Archive, topic: str) -> bool:
    try:
        return bool(await archive.partitions(topic))
    except NotInArchive:
        return False


async def _is_lost(archive: Archive, topic: str, compared: Compared) -> bool:
    """Whether the archive has no folder of the topic, though it had one."""
    folder = parse_topic_folder(topic)
    if folder.topic not in {each.topic for each in compared.missing}:
        return False
    held = await archive.find()
    return folder not in held if "~" in topic else folder.topic not in {each.topic for each in held}


def _note(report: ArchiveReport, compared: Compared) -> None:
    """What the inventory says, or that there is none."""
    report.missing = list(compared.missing)
    claimed = {(str(each.folder), each.partition) for each in compared.missing}
    claimed |= {(each.topic, each.partition) for each in compared.missing}
    report.absent = [each for each in report.absent if each not in claimed]
    if compared.damage is not None:
        report.damage.append(compared.damage)
    elif compared.inventory is not None:
        report.rebuilt_at = compared.inventory.rebuilt_at
    elif compared.is_expected:
        report.warnings.append(NO_INVENTORY)


async def _checked(archive: Archive, key: str, kind: type[T], damage: list[Damage]) -> T | None:
    """The object; None where it is damaged, which is noted, or missing, which is damage of all but configurations."""
    try:
        return objects.decode(await archive.reader.get(key, objects.MAX_OBJECT_BYTES), kind, key)
    except Damaged as error:
        if kind is not TopicConfig or not isinstance(error, ObjectMissing):
            damage.append(Damage(key, error.reason))
        return None
