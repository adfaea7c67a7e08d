"""`replayer spark replay`: the plan of a replay, its lanes as tasks of Spark, and what comes of them."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

import click

from replayer.cli.options.archive_options import ArchiveOptions, open_archive
from replayer.cli.options.cluster_options import KafkaOptions
from replayer.cli.options.damage import SKIPS, DamagePolicies
from replayer.cli.options.replay_options import ReplayOptions
from replayer.cli.replay_job import KnownJob, asked_job, job_begin
from replayer.cli.replay_output import print_plan, print_planned
from replayer.cli.replay_preflight import ask_before, confirm
from replayer.cli.replay_target import ShapedTarget, make_ready, shaped_target, tell_set_back, undo_retention
from replayer.cli.spark.lane_rounds import Replay, run_rounds
from replayer.cli.spark.replaying_output import print_done
from replayer.cli.spark.session_options import SessionOptions
from replayer.kafka.admin import KafkaAdmin
from replayer.read.archive import Archive
from replayer.read.selection import Reading
from replayer.replay.lane_position import refuse_long_metadata
from replayer.replay.pipeline import KeepPartitions, Pipeline
from replayer.replay.preflight import make_plan
from replayer.replay.run import Work
from replayer.spark.jobs.lane_task import ArchivePlace, LaneWork
from replayer.spark.jobs.source_lanes import LaneStore, SourceLane, places_for, source_lane

BY_SOURCE = "a lane for each source partition"
"""Part of what makes a job, where that is not a lane for each target partition as well."""


async def replay(
    options: ReplayOptions, spark: SessionOptions, as_json: bool, kafka: KafkaOptions, address: ArchiveOptions
) -> int:
    """The command; its exit code."""
    admin = await asyncio.to_thread(KafkaAdmin, kafka.properties)
    if options.shape.undo_retention:
        click.echo(await asyncio.to_thread(undo_retention, options.target, admin, kafka))
        return 0
    async with open_archive(address) as archive, AsyncExitStack() as stack:
        target = await shaped_target(options.shape, archive, options.topic.topic, options.target, admin)
        known, lanes, store = await _known(options, archive, target.pipeline, kafka)
        stack.callback(store.close)
        preflight = await ask_before(options, known, target, admin)
        notes = (*preflight.notes, f"{len(lanes)} tasks at most, one for each source partition")
        plan = make_plan(replace(preflight, notes=notes))
        if not as_json:
            print_plan(plan)
        if options.dry_run:
            if as_json:
                print_planned(plan)
            return 0
        confirm(plan, options.yes)
        await asyncio.to_thread(make_ready, target, admin, kafka)
        work = _work(options, known, target, kafka, address)
        begun = time.monotonic()
        done = await run_rounds(Replay(known, lanes, store, plan, work), spark, as_json=as_json)
        if done.complete:
            await tell_set_back(target.name, admin, kafka)
    return print_done(plan, done, known, time.monotonic() - begun, as_json=as_json)


async def _known(
    options: ReplayOptions, archive: Archive, pipeline: Pipeline, kafka: KafkaOptions
) -> tuple[KnownJob, Mapping[int, SourceLane], LaneStore]:
    """The job, its lanes by source partition, and where their positions are kept; nothing is written."""
    kept = isinstance(pipeline.router, KeepPartitions)
    selections, job = await asked_job(options, archive, pipeline, *(() if kept else (BY_SOURCE,)))
    sources = [each.partition.partition for each in selections]
    places = places_for(pipeline.router, sources)
    lanes = {source: source_lane(job, source, places) for source in sources}
    store = LaneStore(kafka.properties, tuple(lanes.values()))
    planning = Reading(options.selection.filter, DamagePolicies(options.on_damage).of)
    recorded = await asyncio.to_thread(store.read)
    by_source = Pipeline(pipeline.stages, KeepPartitions())
    selections, first = await job_begin(job, by_source, selections, recorded, planning)
    refuse_long_metadata(first)
    known = KnownJob(job, pipeline, Work(selections, first, planning), recorded, planning, options.transactional)
    return known, lanes, store


def _work(
    options: ReplayOptions, known: KnownJob, target: ShapedTarget, kafka: KafkaOptions, address: ArchiveOptions
) -> LaneWork:
    folder = known.work.selections[0].partition.keys.folder
    config = target.facts.config if target.facts else None
    return LaneWork(
        ArchivePlace(
            address.address, address.endpoint_url, address.region, address.max_block_bytes, address.old_format
        ),
        f"{folder.topic}~{folder.incarnation}",
        options.target,
        known.pipeline,
        options.selection.filter,
        options.on_damage == SKIPS,
        options.transactional,
        kafka.properties,
        config.max_message_bytes if config else None,
    )
