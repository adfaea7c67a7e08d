"""From options to the result of `spark replay`."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

import click
import msgspec

from blockgz_runtime.errors import PARTLY_FAILED
from blockgz_runtime.program.main import noting_what_is_left
from blockgz_runtime.program.progress import record_progress
from blockgz_runtime.program.tables import print_table
from blockgz_runtime.spark.session import session
from replayer.cli.options.archive_options import ArchiveOptions, open_archive
from replayer.cli.options.replay_options import ReplayOptions
from replayer.cli.replay_output import agreed, plan_json, print_left_out, print_set_back
from replayer.cli.spark.job_options import SessionOptions
from replayer.kafka.admin import KafkaAdmin
from replayer.place import ArchivePlace
from replayer.read.archive import Archive
from replayer.read.request import SKIPS
from replayer.replay.ledger import refuse_long_metadata
from replayer.replay.pipeline import KeepPartitions, Pipeline
from replayer.replay.plan import ReplayPlan
from replayer.replay.preflight import make_plan
from replayer.replay.prepare import (
    KnownJob,
    ask_before,
    asked_job,
    known_job,
    missing_sources,
    with_missing,
)
from replayer.replay.request import ReplayRequest
from replayer.replay.shaped_target import ShapedTarget, make_ready, shaped_target
from replayer.replay.target_topic import undo_retention
from replayer.spark.jobs.replaying import LanesResult, LaneWork, Replay, run_rounds, topics_of, written
from replayer.spark.lanes import LaneStore, LaneTarget, SourceLane, places_for, source_lane

BY_SOURCE = "a lane for each source partition"
"""Part of what makes a job: `replayer replay` has other lanes and producers, and cannot resume it."""


async def replay(
    options: ReplayOptions, spark: SessionOptions, as_json: bool, properties: dict[str, str], address: ArchiveOptions
) -> int:
    """The command; its exit code."""
    request = options.request
    producing = request.producing(properties)
    admin = await asyncio.to_thread(KafkaAdmin, properties)
    if request.shape.undo_retention:
        click.echo(await asyncio.to_thread(undo_retention, request.target, admin, properties))
        return 0
    async with open_archive(address) as archive, AsyncExitStack() as stack:
        missing = await missing_sources(request, archive)
        target = await shaped_target(request, archive, admin)
        known, lanes, store = await _known(request, archive, target.pipeline, properties)
        stack.callback(store.close)
        preflight = with_missing(await ask_before(request, known, target, admin), missing)
        notes = (*preflight.notes, f"{len(lanes)} tasks at most, one for each source partition")
        plan = make_plan(replace(preflight, notes=notes))
        if not agreed(plan, options, as_json=as_json):
            return 0
        await asyncio.to_thread(make_ready, target, admin, properties)
        work = _work(request, known, target, producing, address)
        begun = time.monotonic()
        job = Replay(known.work.first, known.recorded, lanes, store, topics_of(known.work.selections), work)
        result = await _run(job, plan, spark, as_json=as_json)
        if result.complete:
            await print_set_back(target.name, admin, properties)
    if as_json:
        click.echo(msgspec.json.encode(_result_json(plan, result, time.monotonic() - begun)))
    else:
        _print_result(plan, result, time.monotonic() - begun)
    for source, (start, end, reason) in result.skipped:
        click.echo(f"FAILURE {plan.topic}:{source} skipped offsets [{start}..{end}): {reason}", err=True)
    return PARTLY_FAILED if result.skipped or result.left_out.unfit or missing else 0


async def _known(
    request: ReplayRequest, archive: Archive, pipeline: Pipeline, properties: Mapping[str, str]
) -> tuple[KnownJob, Mapping[int, SourceLane], LaneStore]:
    """The job, its lanes by source partition, and where their positions are kept; nothing is written."""
    selections, job = await asked_job(request, archive, pipeline, BY_SOURCE)
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
    config = target.facts.config if target.facts else None
    return LaneWork(
        ArchivePlace(**vars(address)),
        known.pipeline,
        request.selection.filter,
        request.on_damage == SKIPS,
        request.transactional,
        LaneTarget(properties, known.pipeline.router, config.max_message_bytes if config else None),
    )


async def _run(job: Replay, plan: ReplayPlan, spark: SessionOptions, *, as_json: bool) -> LanesResult:
    if not job.tasks(job.before):
        return LanesResult(job.before, job.before)
    with (
        session("blockgz replay", spark.master, spark.settings) as running,
        noting_what_is_left(lambda: f"not complete: repeat the command with --resume --job {plan.job.name}"),
        record_progress("replaying", plan.records, as_json=as_json) as advance,
    ):
        bytes_each = plan.bytes / plan.records if plan.records else 0
        return await run_rounds(job, running, lambda records: advance(records, int(records * bytes_each)))


def _result_json(plan: ReplayPlan, result: LanesResult, seconds: float) -> dict[str, object]:
    return {
        "records": written(result.now) - written(result.before),
        "partitions": [
            {
                "partition": source,
                "target_partitions": list(plan.router.targets(source)),
                "records": position.written - result.before[source].written,
                "records_before": result.before[source].written,
                "from": result.before[source].sources[source].next,
                "to": position.sources[source].next,
            }
            for source, position in sorted(result.now.items())
        ],
        "topic": plan.topic,
        "target": plan.target,
        "seconds": round(seconds, 3),
        "zero_timestamps": sum(outcome.zero_timestamps for outcome in result.outcomes),
        "records_before": written(result.before),
        "complete": result.complete,
        "lost_commits": sum(outcome.lost_commits for outcome in result.outcomes),
        "tasks": len(result.outcomes),
        "left_out": msgspec.to_builtins(result.left_out),
        "skipped": [
            {"partition": source, "from": start, "to": end, "reason": reason}
            for source, (start, end, reason) in result.skipped
        ],
        "plan": plan_json(plan),
    }


def _print_result(plan: ReplayPlan, result: LanesResult, seconds: float) -> None:
    rows = []
    for source, now in sorted(result.now.items()):
        before = result.before[source]
        offsets = f"{before.sources[source].next}..{now.sources[source].next}"
        rows.append((str(source), str(now.written - before.written), offsets))
    print_table(("PARTITION", "RECORDS", "OFFSETS"), rows)
    records_before = written(result.before)
    click.echo(f"{written(result.now) - records_before} records replayed to {plan.target} in {seconds:.1f} s")
    if records_before:
        click.echo(f"{records_before} records of job {plan.job.name} had been written before")
    if zeros := sum(outcome.zero_timestamps for outcome in result.outcomes):
        click.echo(f"warning: {zeros} records with timestamp 0 were sent with 1", err=True)
    print_left_out(result.left_out)
