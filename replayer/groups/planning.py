"""Where consumer groups of an archived topic go on in a copy of it: the plan for all groups of one replay job."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blockgz.archive.archive import Archive
from blockgz.archive.selection import Selection
from blockgz.errors import UsageError, listed
from replayer.errors import ReplayRefused
from replayer.groups.renaming import GroupMap, twins
from replayer.groups.translation import ArchivedRuns, LaneTranslation, mapped_lane, translate
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.groups import GroupOffset
from replayer.kafka.topic_facts import Watermarks
from replayer.replay.jobs.folder import JobFolder, JobRequest
from replayer.replay.recorded_job import RecordedJob, recorded_job, source_selections

GroupPositions = Mapping[str, Mapping[int, GroupOffset]]
"""By group and partition of one topic."""


@dataclass(frozen=True)
class PlannedGroup:
    """One group: its name at the target, and where it goes on in each lane."""

    source: str
    name: str
    lanes: tuple[LaneTranslation, ...]
    metadata: Mapping[int, str]
    """By lane, what the group's consumer left with its position, where one source partition feeds the lane."""

    @property
    def exact(self) -> bool:
        return all(lane.exact for lane in self.lanes)

    @property
    def positions(self) -> dict[int, GroupOffset]:
        """By target partition, what to set."""
        return {
            lane.lane: GroupOffset(lane.offset, self.metadata.get(lane.lane))
            for lane in self.lanes
            if lane.offset is not None
        }

    @property
    def notes(self) -> list[str]:
        """What an operator should know, each once."""
        return list(dict.fromkeys(note for lane in self.lanes for note in lane.notes))

    @property
    def doubts(self) -> list[str]:
        """Why it is not exact, each once."""
        return list(dict.fromkeys(doubt for lane in self.lanes for doubt in lane.doubts))


@dataclass(frozen=True)
class GroupPlan:
    """The groups of one copy; groups without a position in any copied partition are not in it."""

    job: str
    topic: str
    topic_id: str | None
    groups: tuple[PlannedGroup, ...]

    def refuse_inexact(self) -> None:
        """Raises ReplayRefused where any position is not exact."""
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
    bounds: Mapping[int, Watermarks],
) -> GroupPlan:
    """Translates the positions of every group; `bounds` are the target's readable offsets.

    Raises ReplayRefused where the run map or the archive does not tell, or the target lost records of the job;
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
    runs = ArchivedRuns(job.pipeline, job.filter, selections)
    planned = []
    for group, positions in sorted(groups.items()):
        offsets = {partition: position.offset for partition, position in positions.items()}
        found = [_within(await translate(lane, offsets, runs.count, runs.archived), bounds) for lane in lanes]
        if any(lane.offset is not None for lane in found):
            metadata = {
                lane.number: text
                for lane in lanes
                if len(lane.sources) == 1 and (text := _metadata(positions, *lane.sources)) is not None
            }
            planned.append(PlannedGroup(group, rename(group), tuple(found), metadata))
    _refuse_twins(planned)
    return GroupPlan(job.request.job, job.request.target, job.target.topic_id, tuple(planned))


async def plan_groups_of_job(
    kept: JobRequest,
    folder: JobFolder,
    archive: Archive,
    properties: Mapping[str, str],
    groups: GroupPositions,
    rename: GroupMap,
    admin: KafkaAdmin | None = None,
) -> GroupPlan:
    """The plan for a job as its folder, archive and cluster record it; raises as `plan_groups` does.

    `admin` is asked, if there is one already.
    """
    admin = await asyncio.to_thread(admin.again if admin else lambda: KafkaAdmin(properties))
    job = await recorded_job(kept, folder, admin, properties)
    bounds = await asyncio.to_thread(admin.watermarks, kept.target, sorted(job.maps), kept.isolation_level)
    return await plan_groups(job, await source_selections(archive, job.request), groups, rename, bounds)


def group_plan_document(plan: GroupPlan) -> dict[str, Any]:
    """The plan as plain JSON values."""
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


def _metadata(positions: Mapping[int, GroupOffset], source: int) -> str | None:
    return positions[source].metadata if source in positions else None


def _within(lane: LaneTranslation, bounds: Mapping[int, Watermarks]) -> LaneTranslation:
    """The translation with what the target's own bounds say of it."""
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


def _refuse_twins(groups: Sequence[PlannedGroup]) -> None:
    if found := twins((group.source, group.name) for group in groups):
        first, second, name = found
        raise UsageError(
            f"groups {first} and {second} would both be {name}",
            why="--group-map gives them one name",
            remedy="use other patterns",
        )
