"""Positions of consumer groups of an archived topic in a copy of it: the plan for all groups of one replay job.

A position is the offset of the next record that a group reads. It is translated along the run map of the job, to the
first record of the copy at or after it. In a lane (target partition) with one source partition that is exact. If
several source partitions feed a lane, it is exact unless a record that the group has read comes after one that it has
not.
"""

import asyncio
import csv
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import numpy.typing as npt

from blockgz.archive.archive import ArchiveReader
from blockgz.archive.group_tables import GroupTable, groups_at, vanished_groups
from blockgz.archive.partition import SkipDamage
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Reading, Selection, selected
from blockgz.errors import NotInArchive, UsageError, listed
from blockgz.kafka import LogBounds
from blockgz.kafka.groups import GroupOffset
from blockgz.record_filter import RecordFilter
from blockgz.units import time_text
from index_format.keys import TopicFolder
from replayer.errors import ReplayRefused
from replayer.groups import GroupMap, twins
from replayer.replay.job import Run, SourceProgress
from replayer.replay.pipeline import Pipeline, ScannedBatch
from replayer.replay.plan import describe_source
from replayer.replay.recorded_job import LaneMap, RecordedJob, recorded_job, source_selections
from replayer.replay.request import Surroundings

# The offset of the next record by source partition; None if a group has no position.
SourcePositions = Mapping[int, int | None]


# A function that counts the records of a run in the archive whose source offsets are below this one.
CountRecords = Callable[[Run, int], Awaitable[int]]
# Gives how many records the archive has of a source partition between two offsets.
CountArchived = Callable[[int, OffsetRange], Awaitable[int]]


@dataclass(frozen=True)
class LaneTranslation:
    """The position of a group in a lane: an `offset`, or None.

    `doubts` say why it is not exact; then `offset` is low enough that no unread record of the copy is passed, and
    `read_again` counts records at or above it that the group has read already. `skipped` counts records in the archive
    below the copy that it has not read. `notes` say what else an operator should know.
    """

    lane: int
    offset: int | None
    metadata: str | None = None
    """The metadata of the group's position, if one source partition alone feeds the lane."""
    read_again: int = 0
    skipped: int = 0
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not self.doubts


@dataclass(frozen=True)
class MappedLane:
    """A lane's runs as a table of int64, one row a run with the fields of `Run`, and the progress of its sources."""

    number: int
    runs: npt.NDArray[np.int64]
    end: int
    """The target offset behind the last record of the job."""
    sources: Mapping[int, SourceProgress]

    def of_source(self, source: int) -> npt.NDArray[np.int64]:
        """Return the runs of one source partition, in order."""
        mine: npt.NDArray[np.bool_] = self.runs[:, Run._fields.index("source")] == source
        return np.asarray(self.runs[mine], np.int64)


def mapped_lane(number: int, lane_map: LaneMap, sources: Mapping[int, SourceProgress]) -> MappedLane:
    """Return the lane as the job recorded it. Raises ReplayRefused if its run map is damaged."""
    if lane_map.faults:
        raise ReplayRefused(
            f"the run map of target partition {number} cannot be relied on",
            why=lane_map.faults[0],
            remedy="see replayer verify --job, and set the groups' positions by time",
        )
    return MappedLane(number, lane_map.table, lane_map.end, sources)


async def translate(
    lane: MappedLane, positions: SourcePositions, count: CountRecords, archived: CountArchived
) -> LaneTranslation:
    """Return the position of one group in a lane, from its positions in the lane's source partitions."""
    if all(positions.get(source) is None for source in lane.sources):
        return LaneTranslation(lane.number, None)
    doubts, notes, skipped = [], [], 0
    found: dict[int, int] = {}
    for source, progress in sorted(lane.sources.items()):
        position = positions.get(source)
        if position is None:
            if len(lane.of_source(source)):
                doubts.append(f"the group has no position in source partition {source}")
            position = progress.start
        elif position > progress.end:
            notes.append(f"source partition {source}: {position} lies above the copy, which ends before {progress.end}")
            position = progress.end
        elif position < progress.start:
            where = f"source partition {source}: {position} lies below the copy, which starts at {progress.start}"
            unread = await archived(source, OffsetRange(position, progress.start))
            (doubts if unread else notes).append(f"{where}: {unread:,} unread records are skipped" if unread else where)
            skipped += unread
        if position > progress.next:
            doubts.append(f"records of source partition {source} below {position} are not in the copy yet")
        found[source] = await _first_at_or_after(lane, source, position, count)
    offset = min(found.values())
    read_again = {source: _records_between(lane.of_source(source), offset, end) for source, end in found.items()}
    doubts += [
        f"{records} records of source partition {source} that the group has read lie above ones that it has not"
        for source, records in read_again.items()
        if records
    ]
    return LaneTranslation(lane.number, offset, None, sum(read_again.values()), skipped, tuple(doubts), tuple(notes))


async def _first_at_or_after(lane: MappedLane, source: int, position: int, count: CountRecords) -> int:
    """Return the target offset of the first record of a source at or after a position, or else the end of the lane."""
    runs = lane.of_source(source)
    row = int(np.searchsorted(runs[:, Run._fields.index("end")], position, side="right"))
    if row == len(runs):
        return lane.end
    run = Run(*runs[row].tolist())
    if position <= run.start:
        return run.target_start
    return run.target_start + await count(run, position)


def _records_between(runs: npt.NDArray[np.int64], start: int, end: int) -> int:
    """Return how many records of these runs have target offsets in [start, end)."""
    starts = runs[:, Run._fields.index("target_start")]
    ends = starts + runs[:, Run._fields.index("records")]
    return int(np.maximum(np.minimum(ends, end) - np.maximum(starts, start), 0).sum())


class ArchivedRuns:
    """Counts records of runs in the archive; each answer is checked against the run, and remembered."""

    def __init__(self, pipeline: Pipeline, record_filter: RecordFilter, selections: Mapping[int, Selection]) -> None:
        """Take the pipeline and filter of the job, and its source partitions."""
        self._pipeline, self._filter = pipeline, record_filter
        self._selections = selections
        self._known: dict[tuple[Run, int], int] = {}
        self._archived: dict[tuple[int, OffsetRange], int] = {}
        # True if every record goes to one lane: then indexes give the number of records.
        self._whole = not pipeline.stages and record_filter.passes_all and not pipeline.router.divides

    async def count(self, run: Run, offset: int) -> int:
        """See CountRecords; raises ReplayRefused where the archive does not hold what the run says."""
        if (run, offset) not in self._known:
            answer = await self._by_indexes(run, offset) if self._whole else None
            self._known[run, offset] = answer if answer is not None else await self._by_reading(run, offset)
        return self._known[run, offset]

    async def archived(self, source: int, offsets: OffsetRange) -> int:
        """See CountArchived: reads no more than the blocks at both edges."""
        asked = source, offsets
        if asked not in self._archived:
            skipping = Reading(on_damage=lambda _: SkipDamage())
            self._archived[asked] = (await describe_source(self._selection(source, *offsets), skipping)).records
        return self._archived[asked]

    async def _by_indexes(self, run: Run, offset: int) -> int | None:
        """Return the answer from indexes and one block; None if the run lacks records, as after damage."""
        below = await self.archived(run.source, OffsetRange(run.start, offset))
        above = await self.archived(run.source, OffsetRange(offset, run.end))
        return below if below + above == run.records else None

    async def _by_reading(self, run: Run, offset: int) -> int:
        below = total = 0
        selection = self._selection(run.source, run.start, run.end)
        async with aclosing(selected(selection, self._filter, SkipDamage())) as batches:
            async for batch in batches:
                for piece in self._pipeline(ScannedBatch(run.source, batch)):
                    if piece.target == run.lane:
                        offsets: Any = piece.records.column("offset").to_numpy()
                        total += len(offsets)
                        below += int(np.searchsorted(offsets, offset))
        if total != run.records:
            raise ReplayRefused(
                f"source partition {run.source} [{run.start}..{run.end}) cannot be translated",
                why=f"the job sent {run.records} of its records to target partition {run.lane}, "
                f"and the archive has {total} now",
                remedy="see replayer verify --deep and replayer verify --job",
            )
        return below

    def _selection(self, source: int, start: int, end: int) -> Selection:
        return Selection(self._selections[source].partition, OffsetRange(start, end))


# Positions by group and partition of one topic.
GroupPositions = Mapping[str, Mapping[int, GroupOffset]]


@dataclass(frozen=True)
class PlannedGroup:
    """One group: its name at the target, and its position in each lane."""

    source: str
    name: str
    lanes: tuple[LaneTranslation, ...]

    @property
    def exact(self) -> bool:
        return all(lane.exact for lane in self.lanes)

    @property
    def positions(self) -> dict[int, GroupOffset]:
        """Return the positions to set, by target partition."""
        return {each.lane: GroupOffset(each.offset, each.metadata) for each in self.lanes if each.offset is not None}

    @property
    def notes(self) -> list[str]:
        """Return what an operator should know, each once."""
        return list(dict.fromkeys(note for lane in self.lanes for note in lane.notes))

    @property
    def doubts(self) -> list[str]:
        """Return why the group's positions are not exact, each reason once."""
        return list(dict.fromkeys(doubt for lane in self.lanes for doubt in lane.doubts))


@dataclass(frozen=True)
class GroupPlan:
    """The groups of one copy; groups without a position in any copied partition are not in it."""

    job: str
    topic: str
    topic_id: str | None
    groups: tuple[PlannedGroup, ...]

    def of(self, names: Collection[str]) -> "GroupPlan":
        """Return the plan of these groups alone, by their names at the target."""
        return replace(self, groups=tuple(group for group in self.groups if group.name in names))

    def refuse_inexact(self) -> None:
        """Raise ReplayRefused if any position is not exact."""
        inexact = [group for group in self.groups if not group.exact]
        if inexact:
            names = listed(group.name for group in inexact)
            raise ReplayRefused(
                f"{len(inexact)} of {len(self.groups)} groups have no exact position in {self.topic}: {names}",
                why=inexact[0].doubts[0],
                remedy="choose the others with --group, or use --approximate: some records are then read again, "
                "and those below the copy are skipped",
            )


async def plan_groups(
    job: RecordedJob,
    selections: Mapping[int, Selection],
    groups: GroupPositions,
    rename: GroupMap,
    bounds: Mapping[int, LogBounds],
) -> GroupPlan:
    """Translate the positions of every group; `bounds` are the target's readable offsets.

    Raises ReplayRefused if the run map or the archive does not tell, or the target lost records of the job;
    UsageError where two groups would get one name.
    """
    lanes = [
        mapped_lane(number, lane_map, job.positions[number].sources)
        for number, lane_map in sorted(job.maps.items())
        if number in job.positions
    ]
    if job.forgotten:
        raise ReplayRefused(
            f"the positions of job {job.request.job} are not known",
            why=f"nothing is recorded for target partitions {', '.join(map(str, job.forgotten))}",
            remedy="run the job with --resume first",
        )
    runs = ArchivedRuns(job.pipeline, job.asked.selection.filter, selections)
    planned = []
    for group, positions in sorted(groups.items()):
        offsets = {partition: position.offset for partition, position in positions.items()}
        found = []
        for lane in lanes:
            position = _within(await translate(lane, offsets, runs.count, runs.archived), bounds)
            only = positions.get(*lane.sources) if len(lane.sources) == 1 else None
            found.append(replace(position, metadata=only.metadata if only else None))
        if any(lane.offset is not None for lane in found):
            planned.append(PlannedGroup(group, rename(group), tuple(found)))
    if found_twins := twins((group.source, group.name) for group in planned):
        first, second, name = found_twins
        raise UsageError(
            f"groups {first} and {second} would both be {name}",
            why="--group-map gives them one name",
            remedy="use other patterns",
        )
    return GroupPlan(job.request.job, job.request.target, job.target.topic_id, tuple(planned))


async def plan_groups_of_job(name: str, around: Surroundings, groups: GroupPositions, rename: GroupMap) -> GroupPlan:
    """Return the plan for a job as its folder, archive and cluster record it. Raises as `plan_groups` does."""
    job = await recorded_job(name, around)
    target, isolation_level = job.request.target, job.request.isolation_level
    bounds = await asyncio.to_thread(around.admin.watermarks, target, sorted(job.maps), isolation_level)
    return await plan_groups(job, await source_selections(around.archive, job.request), groups, rename, bounds)


def group_plan_document(plan: GroupPlan) -> dict[str, Any]:
    """Return the plan as plain JSON values."""
    return {
        "job": plan.job,
        "topic": plan.topic,
        "groups": [
            {
                "group": group.name,
                "source_group": group.source,
                "exact": group.exact,
                "partitions": [
                    {
                        "partition": lane.lane,
                        "offset": lane.offset,
                        "exact": lane.exact,
                        "read_again": lane.read_again,
                        "skipped": lane.skipped,
                    }
                    for lane in group.lanes
                    if lane.offset is not None
                ],
                "doubts": group.doubts,
                "notes": group.notes,
            }
            for group in plan.groups
        ],
    }


def _within(lane: LaneTranslation, bounds: Mapping[int, LogBounds]) -> LaneTranslation:
    """Return the translation, raised to the target's start. Raises ReplayRefused if the target ends before it."""
    low, end = bounds[lane.lane]
    if lane.offset is None or low <= lane.offset <= end:
        return lane
    if lane.offset > end:
        raise ReplayRefused(
            f"target partition {lane.lane} lacks records of the job",
            why=f"it ends before {end}, and the job wrote up to {lane.offset}",
            remedy="see replayer verify --job",
        )
    note = f"target partition {lane.lane}: its records below {low} are deleted already"
    return replace(lane, offset=low, notes=(*lane.notes, note))


CSV_FORM = "group,topic,partition,offset"
MAX_FILE_BYTES = 64 * 1024 * 1024


async def archived_groups(archive: ArchiveReader, folder: TopicFolder, at_ms: int | None) -> GroupTable:
    """Return the newest table from before or at that time. Raises NotInArchive if there is none."""
    table = await groups_at(archive.reader, archive.layout, folder, at_ms)
    if table is None:
        raise NotInArchive(
            f"the archive does not say where consumer groups stood on {folder}",
            why="it has no table of groups" + (" from that time or before" if at_ms is not None else ""),
            remedy="archive with --groups, or give a file of kafka-consumer-groups --export with --positions",
        )
    return table


async def vanished_text(
    archive: ArchiveReader, folder: TopicFolder, table: GroupTable, globs: Collection[str]
) -> str | None:
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
    """Return the positions in a table by group and partition."""
    return {
        group.group_id: {each.partition: GroupOffset(each.offset, each.metadata) for each in group.positions}
        for group in table.content.groups
    }


def positions_in_csv(text: str, topic: str) -> GroupPositions:
    """Return the positions in lines `group,topic,partition,offset`. Raises UsageError with a wrong line."""
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
    """Return the groups that any of the globs matches; all groups without globs."""
    return {
        group: found
        for group, found in positions.items()
        if not globs or any(fnmatchcase(group, glob) for glob in globs)
    }


def idle_globs(groups: Collection[str], globs: Iterable[str]) -> list[str]:
    """Return the globs that match none of the groups."""
    return [glob for glob in globs if not any(fnmatchcase(group, glob) for group in groups)]


def meant_groups(positions: GroupPositions, globs: Collection[str], where: str) -> GroupPositions:
    """Return the groups as `chosen_groups` does. Raises NotInArchive for a glob that matches none."""
    idle = idle_globs(positions, globs)
    if idle:
        raise NotInArchive(
            f"no consumer group is {idle[0]!r} in {where}",
            why=f"groups there are {listed(sorted(positions))}" if positions else "no group has a position there",
            remedy="check the name; replayer groups show lists all groups of a topic",
        )
    return chosen_groups(positions, globs)
