"""Where consumer groups stood on an archived topic: from the archive, or from a file of `kafka-consumer-groups`."""

import csv
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from blockgz.archive.archive import Archive
from blockgz.archive.group_tables import GroupTable, groups_at, vanished_groups
from blockgz.errors import NotInArchive, UsageError, listed
from blockgz.units import time_text
from index_format.keys import TopicFolder
from replayer.groups.planning import GroupPositions
from replayer.kafka.groups import GroupOffset

CSV_FORM = "group,topic,partition,offset"
MAX_FILE_BYTES = 64 * 1024 * 1024


async def archived_groups(archive: Archive, folder: TopicFolder, at_ms: int | None) -> GroupTable:
    """The newest table that was asked at or before a time; raises NotInArchive where there is none."""
    table = await groups_at(archive.reader, archive.layout, folder, at_ms)
    if table is None:
        raise NotInArchive(
            f"the archive does not say where consumer groups stood on {folder}",
            why="it has no table of groups" + (" from that time or before" if at_ms is not None else ""),
            remedy="archive with --groups, or give a file of kafka-consumer-groups --export with --positions",
        )
    return table


async def vanished_text(archive: Archive, folder: TopicFolder, table: GroupTable, globs: Collection[str]) -> str | None:
    """Return a warning of groups that the table before had and that did not leave; None if there are none.

    `globs` choose groups, as for `chosen_groups`.
    """
    vanished = await vanished_groups(archive.reader, archive.layout, folder, table)
    names = [group for group in vanished if not globs or any(fnmatchcase(group, glob) for glob in globs)]
    if not names:
        return None
    return (
        f"consumer groups {listed(names)} had positions on {folder} before {time_text(table.slot)} and are missing in "
        "the table of then, although nothing shows that they left; their broker may have been down: take an earlier "
        "--at for them"
    )


def positions_of(table: GroupTable) -> GroupPositions:
    """By group and partition."""
    return {
        group.group_id: {each.partition: GroupOffset(each.offset, each.metadata) for each in group.positions}
        for group in table.content.groups
    }


def positions_in_csv(text: str, topic: str) -> GroupPositions:
    """The lines of a topic, each `group,topic,partition,offset`; raises UsageError with the line that is not one."""
    found: dict[str, dict[int, GroupOffset]] = {}
    for number, row in enumerate(csv.reader(text.splitlines()), 1):
        if not row or (number == 1 and row == CSV_FORM.split(",")):
            continue
        if len(row) != 4 or not all(each.isascii() and each.isdigit() and len(each) < 19 for each in row[2:]):
            raise UsageError(
                f"line {number} of the positions file is not a position",
                why=f"it is {','.join(row)[:80]!r}",
                remedy=f"write {CSV_FORM}, as kafka-consumer-groups --export does for several groups",
            )
        group, of_topic, partition, offset = row
        if of_topic == topic:
            positions = found.setdefault(group, {})
            if int(partition) in positions:
                raise UsageError(
                    f"line {number} of the positions file names a partition again",
                    why=f"group {group} has a position in {topic}:{partition} already",
                    remedy="remove one of the lines",
                )
            positions[int(partition)] = GroupOffset(int(offset))
    return found


def chosen_groups(positions: GroupPositions, globs: Collection[str]) -> GroupPositions:
    """Those that any of the globs means; all without any."""
    return {
        group: found
        for group, found in positions.items()
        if not globs or any(fnmatchcase(group, glob) for glob in globs)
    }


def idle_globs(groups: Collection[str], globs: Iterable[str]) -> list[str]:
    """The globs that mean none of the groups."""
    return [glob for glob in globs if not any(fnmatchcase(group, glob) for group in groups)]


def meant_groups(positions: GroupPositions, globs: Collection[str], where: str) -> GroupPositions:
    """As `chosen_groups`; raises NotInArchive for a glob that means none."""
    idle = idle_globs(positions, globs)
    if idle:
        raise NotInArchive(
            f"no consumer group is {idle[0]!r} in {where}",
            why=f"groups there are {listed(sorted(positions))}" if positions else "no group has a position there",
            remedy="check the name; replayer groups show lists all groups of a topic",
        )
    return chosen_groups(positions, globs)
