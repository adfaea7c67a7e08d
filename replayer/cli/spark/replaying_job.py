"""`replayer spark replay`: the plan of a replay, its lanes as tasks of Spark, and what comes of them."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import click
import msgspec

from index_format.errors import BlockgzError

from ...archive import Archive
from ...errors import BrokerUnreachable, CommitLost, StoreUnavailable, UsageError
from ...kafka_admin import KafkaAdmin
from ...lane_position import LanePosition, refuse_long_metadata
from ...lane_store import LaneStore
from ...pipeline import KeepPartitions, Pipeline
from ...republish import Work
from ...republish_plan import RepublishPlan
from ...republish_planning import make_plan
from ...selection import Reading
from ...source_lanes import SourceLane, places_for, source_lane
from ...spark.errors import spark_errors
from ...spark.lane_task import ArchivePlace, LaneOutcome, LaneTask, LaneWork, run_lane
from ...spark.session import session
from ...transforms.stage import Tally
from ..archive_options import ArchiveOptions, open_archive
from ..cluster_options import KafkaOptions
from ..damage import DAMAGE_FOUND, SKIPS, DamagePolicies
from ..progress import RecordProgress, record_progress
from ..replay_job import KnownJob, asked_job, job_begin
from ..replay_options import ReplayOptions
from ..replay_output import plan_json, print_left_out, print_plan
from ..replay_preflight import ask_before, confirm
from ..replay_target import ShapedTarget, make_ready, set_back, shaped_target, undo_retention
from ..tables import print_table
from .session_options import SessionOptions

BY_SOURCE = "a lane for each source partition"
"""Part of what makes a job, where that is not a lane for each target partition as well."""
ROUNDS_IN_VAIN = 3
"""So many rounds of tasks without any progress end a replay that the cluster or the store does not let go on."""
STATUS_SECONDS = 2.0
UNFIT_LEFT_OUT = 3


@dataclass(frozen=True)
class _Replay:
    """A replay that is to be done, or gone on with."""

    known: KnownJob
    lanes: Mapping[int, SourceLane]
    store: LaneStore
    plan: RepublishPlan
    work: LaneWork

    def tasks(self, recorded: Mapping[int, LanePosition]) -> list[LaneTask]:
        """Of the lanes that are not complete."""
        return [
            LaneTask(self.work, lane, self.known.work.first[source])
            for source, lane in self.lanes.items()
            if not recorded[source].complete
        ]


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
                click.echo(
                    msgspec.json.encode({"dry_run": True, "records": 0, "partitions": [], "plan": plan_json(plan)})
                )
            return 0
        confirm(plan, options.yes)
        await asyncio.to_thread(make_ready, target, admin, kafka)
        work = _work(options, known, target, kafka, address)
        begun = time.monotonic()
        done = await _done(_Replay(known, lanes, store, plan, work), spark, as_json=as_json)
        if done.complete:
            said = await asyncio.to_thread(set_back, target.name, admin, kafka)
            if said is not None:
                click.echo(said, err=True)
    return _told(plan, done, known, time.monotonic() - begun, as_json=as_json)


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


@dataclass(frozen=True)
class _Done:
    """Where the lanes stood before and stand now, and what tasks said."""

    before: Mapping[int, LanePosition]
    now: Mapping[int, LanePosition]
    outcomes: Sequence[LaneOutcome]

    @property
    def complete(self) -> bool:
        return all(position.complete for position in self.now.values())


async def _done(replay: _Replay, spark: SessionOptions, *, as_json: bool) -> _Done:
    """Rounds of tasks until every lane is complete; raises what a task failed with, or what Spark says."""
    store, first = replay.store, replay.known.work.first
    before = {**first, **replay.known.recorded}
    outcomes: list[LaneOutcome] = []
    with (
        session("blockgz replay", spark.master, spark.settings) as running,
        record_progress("replaying", replay.plan.records, as_json=as_json) as advance,
    ):
        if running.conf.get("spark.speculation", "false") == "true":
            raise UsageError(
                "Spark would run some tasks twice at a time",
                why="spark.speculation is on, and the second one of a partition takes it over from the first",
                remedy="add --conf spark.speculation=false",
            )
        now = await asyncio.to_thread(store.begin, first, transactional=replay.known.transactional)
        in_vain = 0
        while tasks := replay.tasks(now):
            reached = now
            context = running.sparkContext

            def collected(tasks: list[LaneTask] = tasks) -> list[LaneOutcome]:
                with spark_errors():
                    return context.parallelize(tasks, len(tasks)).map(run_lane).collect()

            round_of_tasks = asyncio.ensure_future(asyncio.to_thread(collected))
            told = now
            while not (await asyncio.wait({round_of_tasks}, timeout=STATUS_SECONDS))[0]:
                told = await _progress(replay, told, advance)
            outcomes += await round_of_tasks
            now = await asyncio.to_thread(store.read)
            _advance(replay, told, now, advance)
            in_vain = in_vain + 1 if now == reached else 0
            _raise_failure(outcomes[-len(tasks) :], last=in_vain >= ROUNDS_IN_VAIN)
    return _Done(before, now, outcomes)


def _raise_failure(outcomes: Sequence[LaneOutcome], *, last: bool) -> None:
    """Raises the first failure that another round would meet again, and in the last round any."""
    for outcome in outcomes:
        if outcome.failure is not None and (last or not _may_pass(outcome.failure)):
            raise outcome.failure


def _may_pass(failure: BlockgzError) -> bool:
    return isinstance(failure, CommitLost | BrokerUnreachable | StoreUnavailable)


async def _progress(
    replay: _Replay, told: Mapping[int, LanePosition], advance: RecordProgress
) -> Mapping[int, LanePosition]:
    try:
        now = await asyncio.to_thread(replay.store.read)
    except BrokerUnreachable:
        return told
    _advance(replay, told, now, advance)
    return now


def _advance(
    replay: _Replay, told: Mapping[int, LanePosition], now: Mapping[int, LanePosition], advance: RecordProgress
) -> None:
    records = _written(now) - _written(told)
    plan = replay.plan
    advance(records, records * plan.bytes // plan.records if plan.records else 0)


def _written(positions: Mapping[int, LanePosition]) -> int:
    return sum(position.written for position in positions.values())


def _told(plan: RepublishPlan, done: _Done, known: KnownJob, seconds: float, *, as_json: bool) -> int:
    """Prints what was done; the exit code."""
    tally = Tally()
    for outcome in done.outcomes:
        tally.dropped += outcome.left_out.dropped
        tally.routed_elsewhere += outcome.left_out.routed_elsewhere
        tally.unfit += outcome.left_out.unfit
    skipped = [
        {"partition": source, "from": start, "to": end, "reason": reason}
        for source, start, end, reason in sorted(
            {(outcome.source, *each) for outcome in done.outcomes for each in outcome.skipped}
        )
    ]
    zeros = sum(outcome.zero_timestamps for outcome in done.outcomes)
    partitions = [
        {
            "partition": source,
            "target_partitions": list(plan.router.targets(source)),
            "records": position.written - done.before[source].written,
            "records_before": done.before[source].written,
            "from": done.before[source].sources[source].next,
            "to": position.sources[source].next,
        }
        for source, position in sorted(done.now.items())
    ]
    records, before = _written(done.now) - _written(done.before), _written(done.before)
    if as_json:
        result = {
            "records": records,
            "partitions": partitions,
            "topic": plan.topic,
            "target": plan.target,
            "seconds": round(seconds, 3),
            "zero_timestamps": zeros,
            "records_before": before,
            "complete": done.complete,
            "lost_commits": sum(outcome.lost_commits for outcome in done.outcomes),
            "tasks": len(done.outcomes),
            "left_out": msgspec.to_builtins(tally),
            "skipped": skipped,
            "plan": plan_json(plan),
        }
        click.echo(msgspec.json.encode(result))
    else:
        rows = [(each["partition"], each["records"], f"{each['from']}..{each['to']}") for each in partitions]
        print_table(("PARTITION", "RECORDS", "OFFSETS"), rows)
        click.echo(f"{records} records replayed to {plan.target} in {seconds:.1f} s")
        if before:
            click.echo(f"{before} records of job {known.job.name} had been written before")
        if zeros:
            click.echo(f"warning: {zeros} records with timestamp 0 were sent with 1", err=True)
        print_left_out(tally)
    for each in skipped:
        click.echo(
            f"FAILURE {plan.topic}:{each['partition']} skipped offsets {each['from']}..{each['to']}: {each['reason']}",
            err=True,
        )
    return DAMAGE_FOUND if skipped else UNFIT_LEFT_OUT if tally.unfit else 0
