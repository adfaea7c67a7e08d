"""The consumer groups and the ACLs of a restore: set once all of its records are proved."""

import asyncio
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from blockgz.errors import BlockgzError, NotInArchive, listed
from blockgz.kafka.groups import GroupOffset, KafkaGroups
from blockgz.units import time_text, wall_clock
from index_format.keys import parse_topic_folder
from index_format.objects import Acl
from replayer.groups import map_of, planning
from replayer.groups.applying import GroupChanges, refuse_active
from replayer.replay.request import Surroundings
from replayer.restore import document as records
from replayer.topics import acl_text, literal_acls

# The groups that continue in each topic, and what a person should know.
PlannedGroups = tuple[Sequence[planning.GroupPlan], Sequence[str]]
NOTHING: Mapping[str, Sequence[records.SkippedOffsets]] = {}
# The pause between two settings of the groups, as a multiple of its duration: it reads their run maps each time.
REST = 9


class Applied(NamedTuple):
    """The outcome of setting groups or ACLs: the number of positions by group, or of ACLs by topic."""

    counts: Mapping[str, int]
    notes: Sequence[str] = ()
    """Notes for a person."""
    error: str | None = None
    """Reason why nothing was set."""


async def set_groups(
    plan: records.RestorePlan,
    folder: records.RestoreFolder,
    around: Surroundings,
    groups: KafkaGroups,
    whole: Mapping[str, Sequence[records.SkippedOffsets]],
) -> Applied:
    """Set the groups whose topics are all restored, unless an earlier run did, and name the others.

    `whole` has by source the topics that are restored, with the offsets that were skipped. Raise ReplayRefused, before
    any is set, if a group has no exact position or has running consumers; otherwise raise as `GroupChanges.apply` does.
    """
    assert plan.groups is not None
    done = await asyncio.to_thread(folder.get, records.GroupsDone)
    before = {} if done is None else done.groups
    rename = map_of(plan.groups.rename)
    known = {rename(group) for topic in plan.topics for group in topic.groups}
    if done is not None and known <= before.keys():
        return Applied(before, ["the groups were set by an earlier run"])
    restored = tuple(each for each in plan.topics if each.source in whole)
    plans, notes = await plan_groups(
        msgspec.structs.replace(plan, topics=restored), plan.groups, folder.name, around, whole
    )
    left_out = {rename(group): topic for topic in plan.topics if topic.source not in whole for group in topic.groups}
    notes = [*notes, *_left_out_notes(plan, folder.name, plans, left_out, before)]
    kept = {group.name for each in plans for group in each.groups} - left_out.keys() - before.keys()
    plans = [each.of(kept) for each in plans]
    if not plan.groups.approximate:
        for each in plans:
            each.refuse_inexact()
    names = sorted({group.name for each in plans for group in each.groups})
    if names:
        refuse_active(await asyncio.to_thread(groups.members, names))
    positions: dict[str, int] = dict(before)
    for each in plans:
        if not each.groups:
            continue
        await asyncio.to_thread(GroupChanges(around.jobs, each.job).apply, each, groups, wall_clock())
        for group in each.groups:
            positions[group.name] = positions.get(group.name, 0) + len(group.positions)
    await asyncio.to_thread(folder.replace, records.GroupsDone(groups=positions, at=wall_clock()))
    return Applied(positions, notes)


def _left_out_notes(
    plan: records.RestorePlan,
    restore: str,
    plans: Sequence[planning.GroupPlan],
    left_out: Mapping[str, records.TopicToRestore],
    before: Collection[str],
) -> Iterator[str]:
    """Yield the groups that are not set because a topic of theirs is not restored, and the commands that set them."""
    for name, topic in sorted(left_out.items()):
        if name in before:
            continue
        yield (
            f"group {name} is not set: it has positions in {topic.target}, which is not restored; replayer restore "
            f"--resume --name {restore} sets it when it is"
        )
        for each in plans:
            for group in each.groups:
                if group.name == name:
                    yield (
                        f"group {name}: to set it in {each.topic} alone: replayer groups apply --job {each.job} "
                        f"--group {group.source} --at @{plan.at}"
                    )


class FollowedGroups:
    """The consumer groups of a standby, set when they moved; this takes at most a tenth of the time."""

    def __init__(self, wanted: records.RestoreGroups, restore: str, groups: KafkaGroups) -> None:
        self.wanted, self.restore, self.groups = wanted, restore, groups
        self._not_before = 0.0
        # State that decided the positions of each source's groups when they were last set.
        self._seen: dict[str, Hashable] = {}
        # The positions that were set, by topic and group.
        self._set: dict[tuple[str, str], Mapping[int, GroupOffset]] = {}
        self._notes: dict[str, list[str]] = {}

    async def follow(
        self, plan: records.RestorePlan, reached: Mapping[str, Mapping[int, int]], around: Surroundings
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

    async def _set_of(self, plan: records.RestorePlan, around: Surroundings) -> list[str]:
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


async def plan_groups(
    plan: records.RestorePlan,
    wanted: records.RestoreGroups,
    restore: str,
    around: Surroundings,
    skipped: Mapping[str, Sequence[records.SkippedOffsets]] = NOTHING,
) -> PlannedGroups:
    """Return the groups of every topic as of the time of the restore; raise as `plan_groups_of_job` does.

    `skipped` are by source the offsets that the copies lack.
    """
    plans, notes, unknown = list[planning.GroupPlan](), list[str](), list[str]()
    around = around.reading(await around.archive.pin())
    for topic in plan.restorable:
        if not topic.numbers:
            continue
        found = await _of_topic(plan, topic, wanted, restore, around, notes, skipped.get(topic.source, ()))
        if found is None:
            unknown.append(topic.target)
        elif found.groups:
            plans.append(found)
            notes += [f"group {group.name}: {note}" for group in found.groups for note in (*group.notes, *group.doubts)]
    if unknown:
        notes.append(f"no group continues in {listed(unknown)}: the archive has no table of groups from then or before")
    return plans, notes


async def _of_topic(
    plan: records.RestorePlan,
    topic: records.TopicToRestore,
    wanted: records.RestoreGroups,
    restore: str,
    around: Surroundings,
    notes: list[str],
    skipped: Sequence[records.SkippedOffsets],
) -> planning.GroupPlan | None:
    """Return the groups of a topic; None if the archive has no positions of then."""
    # A name without a number means the newest folder: the log was truncated and continued there.
    folders = () if "~" in topic.source else await around.archive.incarnations(topic.source)
    source = folders[-1] if folders else parse_topic_folder(topic.source)
    try:
        table = await planning.archived_groups(around.archive, source, plan.at)
    except NotInArchive:
        return None
    if table.age_ms > table.content.interval:
        notes.append(f"the groups of {topic.target} are as of {time_text(table.slot)}")
    vanished = await planning.vanished_text(around.archive, source, table, wanted.globs)
    notes += [vanished] if vanished is not None else []
    positions = planning.chosen_groups(planning.positions_of(table), wanted.globs)
    notes += [
        f"group {group}: its position {position.offset} in {topic.source}:{number} was skipped at damage: it is set to "
        "the next record"
        for group, of_group in sorted(positions.items())
        for number, position in sorted(of_group.items())
        if any(lost.partition == number and lost.start <= position.offset < lost.end for lost in skipped)
    ]
    notes += _left_out(topic, positions)
    return await planning.plan_groups_of_job(
        records.topic_job(restore, topic.source), around, positions, map_of(wanted.rename)
    )


def _left_out(topic: records.TopicToRestore, positions: Mapping[str, Mapping[int, GroupOffset]]) -> list[str]:
    """Return notes about the positions in partitions that the archive lacked."""
    return [
        f"group {group}: its position {position.offset} in {topic.topic}:{number} is left out: the archive lacked it"
        for group, of_group in sorted(positions.items())
        for number, position in sorted(of_group.items())
        if topic.lacks and number not in topic.numbers
    ]


class AclCreation(Protocol):
    """Creates ACLs in the target."""

    def create_acls(self, acls: Collection[Acl]) -> tuple[Acl, ...]:
        """Create ACLs unless they exist, and return those left out because the client does not know their words."""


def acls_to_create(plan: records.RestorePlan) -> dict[str, tuple[Acl, ...]]:
    """Return the ACLs of each topic of the target that has any, on its name alone."""
    wanted = {each.target: literal_acls(each.acls or (), each.target) for each in plan.restorable}
    return {target: acls for target, acls in sorted(wanted.items()) if acls}


def set_acls(plan: records.RestorePlan, folder: records.RestoreFolder, acls: AclCreation) -> Applied:
    """Create the ACLs of all topics, which are restored, unless an earlier run did; raise what `acls` raises."""
    done = folder.get(records.AclsDone)
    if done is not None:
        return Applied(done.acls, ["the ACLs were created by an earlier run"])
    wanted = acls_to_create(plan)
    left_out = acls.create_acls([each for of_topic in wanted.values() for each in of_topic])
    created = {target: sum(each not in left_out for each in of_topic) for target, of_topic in wanted.items()}
    folder.put(records.AclsDone(acls=created, at=wall_clock()))
    notes = [f"{each.name}: {acl_text(each)} is not created: this release does not know it" for each in left_out]
    if unknown := [each.target for each in plan.restorable if each.acls is None]:
        notes.append(f"no ACL is created for {listed(unknown)}: the archive does not know which there were")
    return Applied(created, notes)
