"""What the archive says of a topic as of a time: its partitions, its settings, its groups, and what is missing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from blockgz.archive.archive import Archive, SurveyedTopic
from blockgz.archive.damage import Damaged
from blockgz.archive.group_tables import config_at, groups_at
from blockgz.archive.inventory import Compared
from blockgz.archive.partition import ArchivedPartition
from blockgz.archive.positions import BeforeTime
from blockgz.archive.selection import Positions, resolved
from index_format.identity import TopicConfig as ArchivedTopic
from index_format.keys import TopicFolder, check_topic
from replayer.groups import GroupMap
from replayer.groups.planning import chosen_groups, positions_of, vanished_text
from replayer.kafka.groups import GroupOffset
from replayer.restore.choosing import ChosenIncarnation, same_topic
from replayer.restore.document import RestoreGroups, TopicLeftOut, TopicToRestore
from replayer.topics import left_behind, new_topic


class LookedAt(NamedTuple):
    """A topic, or why it is left out; the archive's id, where a partition says it; a warning about its groups."""

    topic: TopicToRestore | TopicLeftOut
    archive_id: str | None = None
    warning: str | None = None


class Looking(NamedTuple):
    """What is looked at: `archive` pinned, `compared` with its inventory, at a time in ms."""

    archive: Archive
    compared: Compared
    at_ms: int
    rename: GroupMap
    groups: RestoreGroups | None

    async def at(self, chosen: ChosenIncarnation) -> LookedAt:
        """The topic of an incarnation; raises BadName for a new name that no topic can have."""
        folders = same_topic(chosen.folder, self.compared.inventory)
        held = self.compared.held or dict.fromkeys(await self.archive.find())
        source, missing = str(chosen.folder), [each for each in self.compared.missing if each.folder in folders]
        source = source if "~" in source else f"{source}~1"
        if chosen.folder not in held:
            survey = SurveyedTopic((), ())
        else:
            meant = [chosen.folder]
            if len(folders) > 1 and chosen.folder == max(each for each in held if each.topic == chosen.folder.topic):
                # The plain name means the folders before it, too.
                source, meant = chosen.folder.topic, [each for each in folders if each in held]
            numbers = [number for each in meant for number in self.compared.held.get(each, ())]
            survey = await self.archive.survey_topic(source, numbers if self.compared.held else None)
        archive_id = next((each.marker.archive_id for each in survey.partitions), None)
        if chosen.in_doubt and not await self._began_before(survey.partitions):
            return LookedAt(
                TopicLeftOut(chosen.folder.topic, f"{chosen.note}, and holds no record from before"), archive_id
            )
        archived, damage = await self._config(chosen.folder)
        count = await self._partitions(archived, survey)
        found = TopicToRestore(
            source=source,
            target=check_topic(self.rename(chosen.folder.topic)),
            partitions=count,
            numbers=tuple(each.partition for each in survey.partitions if each.partition < count),
            settings=dict(new_topic("", count, archived, {}).config),
            left_behind=left_behind(archived.config if archived else None),
            acls=None if archived is None or archived.acls is msgspec.UNSET else archived.acls,
            lacks=(
                *(f"{each} is missing" for each in map(str, missing)),
                *(f"partition {number} cannot be read: {error.reason}" for number, error in survey.damaged),
            ),
            notes=tuple(_notes(chosen, archived, damage, folders, source)),
        )
        return (await self._with_groups(found, chosen.folder))._replace(archive_id=archive_id)

    async def _config(self, folder: TopicFolder) -> tuple[ArchivedTopic | None, str | None]:
        try:
            return await config_at(self.archive.reader, self.archive.layout, folder, self.at_ms), None
        except Damaged as error:
            return None, f"its configuration cannot be read: {error.reason}"

    async def _partitions(self, archived: ArchivedTopic | None, survey: SurveyedTopic) -> int:
        """How many the topic had at the time: those that were seen, and those that hold records from before."""
        numbers = [each.partition for each in survey.partitions] + [each.partition for each in survey.damaged]
        if archived is None or archived.seen_at is msgspec.UNSET:
            seen = 0 if archived is None else archived.partitions
            return max([1, seen, *(number + 1 for number in numbers)])
        later = [each for each in survey.partitions if each.partition >= archived.partitions]
        begun = [each.partition + 1 for each in later if await self._began_before([each])]
        return max([1, archived.partitions, *begun])

    async def _began_before(self, partitions: Sequence[ArchivedPartition]) -> bool:
        before = Positions(None, BeforeTime(self.at_ms))
        chosen = await resolved(self.archive, partitions, before)
        return any(each.offsets.start < each.offsets.end for each in chosen)

    async def _with_groups(self, topic: TopicToRestore, folder: TopicFolder) -> LookedAt:
        if self.groups is None:
            return LookedAt(topic)
        try:
            table = await groups_at(self.archive.reader, self.archive.layout, folder, self.at_ms)
        except Damaged as error:
            note = f"where consumer groups stood cannot be read: {error.reason}"
            return LookedAt(msgspec.structs.replace(topic, notes=(*topic.notes, note)))
        if table is None:
            note = "the archive does not say where consumer groups stood"
            return LookedAt(msgspec.structs.replace(topic, notes=(*topic.notes, note)))
        warning = await vanished_text(self.archive, folder, table, self.groups.globs)
        groups = chosen_groups(positions_of(table), self.groups.globs)
        found = msgspec.structs.replace(
            topic,
            groups=tuple(sorted(groups)),
            positions=sum(map(len, groups.values())),
            group_ends=_foremost(groups),
            groups_at=table.slot,
        )
        return LookedAt(found, warning=warning)


def _foremost(groups: Mapping[str, Mapping[int, GroupOffset]]) -> dict[int, int]:
    """Return by partition how far the foremost group had come."""
    ends: dict[int, int] = {}
    for positions in groups.values():
        for number, position in positions.items():
            ends[number] = max(ends.get(number, 0), position.offset)
    return ends


def _notes(
    chosen: ChosenIncarnation,
    archived: ArchivedTopic | None,
    damage: str | None,
    folders: Sequence[TopicFolder],
    source: str,
) -> Iterator[str]:
    if chosen.note is not None:
        yield chosen.note + (": it is taken, because it holds records from before" if chosen.in_doubt else "")
    if damage is not None:
        yield damage
    elif archived is None:
        yield "the archive does not say what it was like: it gets Kafka's defaults"
    elif archived.config is None:
        yield "the archive holds its partition count and not its configuration: it gets the cluster's defaults"
    elif archived.seen_at is msgspec.UNSET:
        yield "its settings are those it had last: the archive has none from that time or before"
    if len(folders) > 1 and "~" in source:
        yield f"its log was truncated: partitions that are only in {folders[-2]} and before are not restored"
