"""What a replay by lanes would do: as `replayer.replay.replaying`, with a lane for each source partition."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import replace
from typing import NamedTuple

from blockgz.archive.archive import Archive
from blockgz.archive.place import ArchivePlace
from blockgz.archive.positions import OffsetRange
from blockgz.archive.request import SKIPS
from blockgz.archive.selection import Selection
from replayer.replay.ledger import refuse_long_metadata
from replayer.replay.pipeline import KeepPartitions, Pipeline
from replayer.replay.plan import ReplayPlan
from replayer.replay.prepare import job_of, known_job, opened_partitions
from replayer.replay.replaying import Groundwork, groundwork
from replayer.replay.request import ReplayRequest
from replayer.spark.jobs.replaying import LaneWork, Replay, topics_of
from replayer.spark.lanes import LaneStore, LaneTarget, places_for, source_lane

BY_SOURCE = "a lane for each source partition"
"""Part of what makes a job: `replayer replay` has other lanes and producers, and cannot resume it."""


class PlannedLanes(NamedTuple):
    """A replay that can be run, once its target is ready."""

    ground: Groundwork
    plan: ReplayPlan
    replay: Replay


@asynccontextmanager
async def planned_lanes(
    request: ReplayRequest, archive: Archive, place: ArchivePlace, properties: Mapping[str, str]
) -> AsyncIterator[PlannedLanes]:
    """What a request would do; tasks open the archive at `place`. Nothing is written. Raises as `planned_replay`."""
    producing = request.producing(properties)
    ground = await groundwork(request, archive, properties)
    target, pipeline = ground.target, ground.target.pipeline
    opened = await opened_partitions(request, archive)
    sources = [each.partition for each in opened]
    places = places_for(pipeline.router, sources)
    with ExitStack() as stack:
        found = []
        for asked in request.by_rules:
            job = job_of(asked, opened, pipeline, BY_SOURCE)
            lanes = {source: source_lane(job, source, places) for source in sources}
            store = stack.enter_context(closing(LaneStore(properties, tuple(lanes.values()))))
            found.append((job, lanes, store, await asyncio.to_thread(store.read)))
        job, lanes, store, recorded = next((each for each in found if each[-1]), found[0])
        if recorded.keys() >= lanes.keys():
            # The ends that were found first are recorded: nothing is looked for again.
            selections = [Selection(each, OffsetRange(each.start_offset, each.next_offset)) for each in opened]
        else:
            selections = await request.selection.resolve(archive, request.topic, opened)
        by_source = Pipeline(pipeline.stages, KeepPartitions())
        known = replace(await known_job(request, job, by_source, selections, recorded), pipeline=pipeline)
        refuse_long_metadata(known.work.first)
        plan = await ground.plan(known, f"{len(lanes)} tasks at most, one for each source partition")
        config = target.facts.config if target.facts else None
        work = LaneWork(
            place,
            pipeline,
            request.selection.filter,
            request.on_damage == SKIPS,
            request.transactional,
            LaneTarget(producing, pipeline.router, config.max_message_bytes if config else None),
        )
        yield PlannedLanes(
            ground, plan, Replay(known.work.first, recorded, lanes, store, topics_of(known.work.selections), work)
        )
