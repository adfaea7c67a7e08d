"""The consumer groups and the ACLs of a restore: set once all of its records are proved."""

import asyncio
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from blockgz.errors import BlockgzError, NotInArchive, listed
from blockgz.kafka.groups import GroupOffset, KafkaGroups
from blockgz.units import time_text
from index_format.keys import parse_topic_folder
from index_format.objects import Acl
from replayer.groups import map_of
from replayer.groups.applying import GroupChanges, refuse_active
from replayer.groups.planning import (
    GroupPlan,
    archived_groups,
    chosen_groups,
    plan_groups_of_job,
    positions_of,
    vanished_text,
)
from replayer.replay.pipeline import wall_clock
from replayer.replay.request import Surroundings
from replayer.restore.document import (
    AclsDone,
    GroupsDone,
    RestoreFolder,
    RestoreGroups,
    RestorePlan,
    TopicToRestore,
    topic_job,
)
from replayer.topics import acl_text, literal_acls

# The groups that continue in each topic, and what a person should know.
PlannedGroups = tuple[Sequence[GroupPlan], Sequence[str]]
# The pause between two settings of the groups, as a multiple of its duration: it reads their run maps each time.
REST = 9


class Applied(NamedTuple):
    """The outcome of setting groups or ACLs: the number of positions by group, or of ACLs by topic."""

    counts: Mapping[str, int]
    notes: Sequence[str] = ()
    """Notes for a person."""
    error: str | None = None
    """Reason why nothing was set."""


async def set_groups(plan: RestorePlan, folder: RestoreFolder, around: Surroundings, groups: KafkaGroups) -> Applied:
    """Set the groups of all topics, which are restored, unless an earlier run did.

    Raise ReplayRefused, before any is set, if a group has no exact position or has running consumers; otherwise raise
    as `GroupChanges.apply` does.
    """
    done = await asyncio.to_thread(folder.get, GroupsDone)
    if done is not None:
        return Applied(done.groups, ["the groups were set by an earlier run"])
    assert plan.groups is not None
    plans, notes = await plan_groups(plan, plan.groups, folder.name, around)
    if not plan.groups.approximate:
        for each in plans:
            each.refuse_inexact()
    names = sorted({group.name for each in plans for group in each.groups})
    if names:
        refuse_active(await asyncio.to_thread(groups.members, names))
    positions: dict[str, int] = {}
    for each in plans:
        await asyncio.to_thread(GroupChanges(around.jobs, each.job).apply, each, groups, wall_clock())
        for group in each.groups:
            positions[group.name] = positions.get(group.name, 0) + len(group.positions)
    await asyncio.to_thread(folder.put, GroupsDone(groups=positions, at=wall_clock()))
    return Applied(positions, notes)


class FollowedGroups:
    """The consumer groups of a standby, set when they moved; this takes at most a tenth of the time."""

    def __init__(self, wanted: RestoreGroups, restore: str, groups: KafkaGroups) -> None:
        self.wanted, self.restore, self.groups = wanted, restore, groups
        self._not_before = 0.0
        # State that decided the positions of each source's groups when they were last set.
        self._seen: dict[str, Hashable] = {}
        # The positions that were set, by topic and group.
        self._set: dict[tuple[str, str], Mapping[int, GroupOffset]] = {}
        self._notes: dict[str, list[str]] = {}

    async def follow(
        self, plan: RestorePlan, reached: Mapping[str, Mapping[int, int]], around: Surroundings
    ) -> tuple[str, ...]:
        """Set the groups of topics whose copy has `reached` these positions, by source; return why some are not set."""
        clock = asyncio.get_running_loop().time
        if (began := clock()) < self._not_before:
            return self._all_notes()
        for topic in plan.topics:
            seen = (topic.groups_at, tuple(sorted(reached[topic.source].items())))
            if self._seen.get(topic.source) == seen or topic.groups_at is None:
                continue
            try:
                notes = await self._set_of(msgspec.structs.replace(plan, topics=(topic,)), around)
            except BlockgzError as error:
                notes = [f"the groups of {topic.target} are not set: {error.reason}"]
            self._notes[topic.source] = notes
            if not notes:
                self._seen[topic.source] = seen
        self._not_before = clock() + REST * (clock() - began)
        return self._all_notes()

    async def _set_of(self, plan: RestorePlan, around: Surroundings) -> list[str]:
        """Set the groups of one topic."""
        notes = []
        for each in (await plan_groups(plan, self.wanted, self.restore, around))[0]:
            moved = [group for group in each.groups if self._set.get((each.topic, group.name)) != group.positions]
            members = await asyncio.to_thread(self.groups.members, [group.name for group in moved]) if moved else {}
            for group in moved:
                if not group.exact and not self.wanted.approximate:
                    notes.append(f"group {group.name} is not set in {each.topic}: {group.doubts[0]}")
                elif members[group.name].active:
                    notes.append(f"group {group.name} is not set in {each.topic}: consumers are at work in it")
                else:
                    await asyncio.to_thread(self.groups.set_positions, group.name, each.topic, group.positions)
                    self._set[each.topic, group.name] = group.positions
        return notes

    def _all_notes(self) -> tuple[str, ...]:
        return tuple(note for _, notes in sorted(self._notes.items()) for note in notes)


async def plan_groups(plan: RestorePlan, wanted: RestoreGroups, restore: str, around: Surroundings) -> PlannedGroups:
    """Return the groups of every topic as of the time of the restore; raise as `plan_groups_of_job` does."""
    plans, notes, unknown = list[GroupPlan](), list[str](), list[str]()
    around = around.reading(await around.archive.pin())
    for topic in plan.restorable:
        if not topic.numbers:
            continue
        found = await _of_topic(plan, topic, wanted, restore, around, notes)
        if found is None:
            unknown.append(topic.target)
        elif found.groups:
            plans.append(found)
            notes += [f"group {group.name}: {note}" for group in found.groups for note in (*group.notes, *group.doubts)]
    if unknown:
        notes.append(f"no group continues in {listed(unknown)}: the archive has no table of groups from then or before")
    return plans, notes


async def _of_topic(
    plan: RestorePlan,
    topic: TopicToRestore,
    wanted: RestoreGroups,
    restore: str,
    around: Surroundings,
    notes: list[str],
) -> GroupPlan | None:
    """Return the groups of a topic; None if the archive has no positions of then."""
    # A name without a number means the newest folder: the log was truncated and continued there.
    folders = () if "~" in topic.source else await around.archive.incarnations(topic.source)
    source = folders[-1] if folders else parse_topic_folder(topic.source)
    try:
        table = await archived_groups(around.archive, source, plan.at)
    except NotInArchive:
        return None
    if table.age_ms > table.content.interval:
        notes.append(f"the groups of {topic.target} are as of {time_text(table.slot)}")
    vanished = await vanished_text(around.archive, source, table, wanted.globs)
    notes += [vanished] if vanished is not None else []
    positions = chosen_groups(positions_of(table), wanted.globs)
    return await plan_groups_of_job(topic_job(restore, topic.source), around, positions, map_of(wanted.rename))


class AclCreation(Protocol):
    """Creates ACLs in the target."""

    def create_acls(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        """Create ACLs unless they exist, and return those left out because the client does not know their words."""


def acls_to_create(plan: RestorePlan) -> dict[str, tuple[Acl, ...]]:
    """Return the ACLs of each topic of the target that has any, on its name alone."""
    wanted = {each.target: literal_acls(each.acls or (), each.target) for each in plan.restorable}
    return {target: acls for target, acls in sorted(wanted.items()) if acls}


def set_acls(plan: RestorePlan, folder: RestoreFolder, acls: AclCreation) -> Applied:
    """Create the ACLs of all topics, which are restored, unless an earlier run did; raise what `acls` raises."""
    done = folder.get(AclsDone)
    if done is not None:
        return Applied(done.acls, ["the ACLs were created by an earlier run"])
    wanted = acls_to_create(plan)
    left_out = acls.create_acls([each for of_topic in wanted.values() for each in of_topic])
    created = {target: sum(each not in left_out for each in of_topic) for target, of_topic in wanted.items()}
    folder.put(AclsDone(acls=created, at=wall_clock()))
    notes = [f"{each.name}: {acl_text(each)} is not created: this release does not know it" for each in left_out]
    if unknown := [each.target for each in plan.restorable if each.acls is None]:
        notes.append(f"no ACL is created for {listed(unknown)}: the archive does not know which there were")
    return Applied(created, notes)
