"""`replayer spark replay`: the plan of a replay, its lanes as tasks of Spark, and what comes of them."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

import click

from blockgz_runtime.program.kafka_options import KafkaOptions
from replayer.cli.options.archive_options import ArchiveOptions, open_archive
from replayer.cli.options.replay_options import ReplayOptions
from replayer.cli.replay_output import confirm, print_plan, print_planned, print_set_back
from replayer.cli.spark.lane_rounds import Replay, run_rounds
from replayer.cli.spark.replaying_output import print_done
from replayer.cli.spark.session_options import SessionOptions
from replayer.kafka.admin import KafkaAdmin
from replayer.read.archive import Archive
from replayer.read.request import SKIPS
from replayer.replay.ledger import refuse_long_metadata
from replayer.replay.pipeline import KeepPartitions, Pipeline
from replayer.replay.preflight import make_plan
from replayer.replay.prepare import KnownJob, ask_before, asked_job, known_job
from replayer.replay.request import ReplayRequest
from replayer.replay.target import ShapedTarget, make_ready, shaped_target, undo_retention
from replayer.spark.jobs.lane_task import ArchivePlace, LaneWork
from replayer.spark.jobs.source_lanes import LaneStore, SourceLane, places_for, source_lane

BY_SOURCE = "a lane for each source partition"
"""Part of what makes a job, where that is not a lane for each target partition as well."""


async def replay(
    options: ReplayOptions, spark: SessionOptions, as_json: bool, kafka: KafkaOptions, address: ArchiveOptions
) -> int:
    """The command; its exit code."""
    request, properties = options.request, kafka.properties
    admin = await asyncio.to_thread(KafkaAdmin, properties)
    if request.shape.undo_retention:
        click.echo(await asyncio.to_thread(undo_retention, request.target, admin, properties))
        return 0
    async with open_archive(address) as archive, AsyncExitStack() as stack:
        target = await shaped_target(request, archive, admin)
        known, lanes, store = await _known(request, archive, target.pipeline, properties)
        stack.callback(store.close)
        preflight = await ask_before(request, known, target, admin)
        notes = (*preflight.notes, f"{len(lanes)} tasks at most, one for each source partition")
        plan = make_plan(replace(preflight, notes=notes))
        if not as_json:
            print_plan(plan)
        if options.dry_run:
            if as_json:
                print_planned(plan)
            return 0
        confirm(plan, options.yes)
        await asyncio.to_thread(make_ready, target, admin, properties)
        work = _work(request, known, target, properties, address)
        begun = time.monotonic()
        done = await run_rounds(Replay(known, lanes, store, plan, work), spark, as_json=as_json)
        if done.complete:
            await print_set_back(target.name, admin, properties)
    return print_done(plan, done, known, time.monotonic() - begun, as_json=as_json)


async def _known(
    request: ReplayRequest, archive: Archive, pipeline: Pipeline, properties: Mapping[str, str]
) -> tuple[KnownJob, Mapping[int, SourceLane], LaneStore]:
    """The job, its lanes by source partition, and where their positions are kept; nothing is written."""
    kept = isinstance(pipeline.router, KeepPartitions)
    selections, job = await asked_job(request, archive, pipeline, *(() if kept else (BY_SOURCE,)))
    sources = [each.partition.partition for each in selections]
    places = places_for(pipeline.router, sources)
    lanes = {source: source_lane(job, source, places) for source in sources}
    store = LaneStore(properties, tuple(lanes.values()))
    recorded = await asyncio.to_thread(store.read)
    by_source = Pipeline(pipeline.stages, KeepPartitions())
    known = replace(await known_job(request, job, by_source, selections, recorded), pipeline=pipeline)
    refuse_long_metadata(known.work.first)
    return known, lanes, store


def _work(
    request: ReplayRequest,
    known: KnownJob,
    target: ShapedTarget,
    properties: Mapping[str, str],
    address: ArchiveOptions,
) -> LaneWork:
    folder = known.work.selections[0].partition.keys.folder
    config = target.facts.config if target.facts else None
    return LaneWork(
        ArchivePlace(
            address.address, address.endpoint_url, address.region, address.max_block_bytes, address.old_format
        ),
        f"{folder.topic}~{folder.incarnation}",
        request.target,
        known.pipeline,
        request.selection.filter,
        request.on_damage == SKIPS,
        request.transactional,
        properties,
        config.max_message_bytes if config else None,
    )
