"""A replay by lanes: each source partition is a task of Spark, in rounds until every lane is complete."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from pyspark.sql import SparkSession

from blockgz.archive.archive import ArchivePlace, ArchiveReader, opened
from blockgz.archive.partition import STOP, LostRange, SkipDamage
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import SKIPS, Reading, Selection
from blockgz.errors import BlockgzError, BrokerUnreachable, StoreUnavailable, UsageError
from blockgz.record_filter import RecordFilter
from blockgz.spark.errors import spark_errors
from replayer.errors import CommitLost
from replayer.kafka.admin import KafkaAdmin
from replayer.replay.job import LanePosition, decode_position, refuse_long_metadata
from replayer.replay.pace import Commands, Slowest
from replayer.replay.pipeline import LeftOut, Pipeline, Routing, TransformStage
from replayer.replay.plan import ReplayPlan
from replayer.replay.replaying import check_request, job_of, opened_partitions, plan_work, refuse_source, work_of_job
from replayer.replay.request import ReplayRequest
from replayer.replay.run import ReplayResult, ReplayWork, run_replay
from replayer.replay.target_topic import TargetTopic, find_target
from replayer.spark.lanes import LaneStore, SourceLane, lane_sink, places_for, source_lane, untransactional_sink

# Rounds of tasks without progress after which a replay gives up on a cluster or store that fails.
ROUNDS_IN_VAIN = 3
STATUS_SECONDS = 2.0


@dataclass(frozen=True)
class LaneWork:
    """The work that all lanes of a replay have in common."""

    place: ArchivePlace
    pipeline: Pipeline
    record_filter: RecordFilter
    skips_damage: bool
    transactional: bool
    properties: Mapping[str, str]
    """The settings of producers."""
    max_message_bytes: int | None
    """The target's limit, if it is known."""


@dataclass(frozen=True)
class SourceTask:
    """One lane, and the position that its job began with."""

    work: LaneWork
    topic: str
    """The incarnation that holds the source, so that every attempt opens the same."""
    lane: SourceLane
    first: LanePosition


@dataclass(frozen=True)
class LaneOutcome:
    """The counts of one attempt; `failure` is the error that ended it early."""

    source: int
    zero_timestamps: int = 0
    lost_commits: int = 0
    skipped: tuple[LostRange, ...] = ()
    left_out: LeftOut = field(default_factory=LeftOut)
    failure: BlockgzError | None = None


@dataclass(frozen=True)
class Replay:
    """A replay that is to be begun or resumed; positions and lanes by source partition."""

    first: Mapping[int, LanePosition]
    recorded: Mapping[int, LanePosition]
    lanes: Mapping[int, SourceLane]
    store: LaneStore
    topics: Mapping[int, str]
    """The incarnation that holds each source; not the same one for all where logs were truncated."""
    work: LaneWork

    @property
    def before(self) -> Mapping[int, LanePosition]:
        """The positions of the lanes before this run."""
        return {**self.first, **self.recorded}

    def tasks(self, now: Mapping[int, LanePosition]) -> list[SourceTask]:
        """Return tasks for the lanes that are not complete."""
        return [
            SourceTask(self.work, self.topics[source], lane, self.first[source])
            for source, lane in self.lanes.items()
            if not now[source].complete
        ]


@dataclass(frozen=True)
class LanesResult:
    """The positions of the lanes before and now, and the outcomes of tasks."""

    before: Mapping[int, LanePosition]
    now: Mapping[int, LanePosition]
    outcomes: Sequence[LaneOutcome] = ()

    @property
    def records(self) -> int:
        """Records that this run wrote."""
        return written(self.now) - written(self.before)

    @property
    def records_before(self) -> int:
        """Records of the job that were in the target before this run."""
        return written(self.before)

    @property
    def complete(self) -> bool:
        """True if nothing is left to do."""
        return all(position.complete for position in self.now.values())

    @property
    def left_out(self) -> LeftOut:
        """The records that transforms left out, in all tasks."""
        return reduce(LeftOut.added, (each.left_out for each in self.outcomes), LeftOut())

    @property
    def skipped(self) -> list[tuple[int, LostRange]]:
        """The damaged ranges that were skipped, by source partition, in order and once."""
        return sorted({(outcome.source, each) for outcome in self.outcomes for each in outcome.skipped})


def topics_of(selections: Iterable[Selection]) -> dict[int, str]:
    """Map each source partition to the name of its folder, which is the same on every machine."""
    folders = {each.partition.partition: each.partition.keys.folder for each in selections}
    return {source: f"{folder.topic}~{folder.incarnation}" for source, folder in folders.items()}


def written(positions: Mapping[int, LanePosition]) -> int:
    """Return the number of the job's records in the target."""
    return sum(position.written for position in positions.values())


async def run_rounds(replay: Replay, spark: SparkSession, progress: Callable[[int], None]) -> LanesResult:
    """Run rounds of tasks until every lane is complete; calls `progress` with the records that came since."""
    if spark.conf.get("spark.speculation", "false") == "true":
        raise UsageError(
            "Spark would run some tasks twice at the same time",
            why="spark.speculation is on, and the second task of a partition takes it over from the first",
            remedy="add --conf spark.speculation=false",
        )
    store, outcomes, in_vain = replay.store, list[LaneOutcome](), 0
    now = await asyncio.to_thread(store.begin, replay.first, transactional=replay.work.transactional)
    while tasks := replay.tasks(now):
        reached = shown = now
        collecting = asyncio.ensure_future(asyncio.to_thread(_collected, spark, tasks))
        while not (await asyncio.wait({collecting}, timeout=STATUS_SECONDS))[0]:
            with suppress(BrokerUnreachable):
                moved = {**shown, **await asyncio.to_thread(store.read)}
                progress(written(moved) - written(shown))
                shown = moved
        outcomes += await collecting
        # What is committed may be seen a moment later.
        now = {**now, **await asyncio.to_thread(store.read)}
        progress(written(now) - written(shown))
        in_vain = in_vain + 1 if now == reached else 0
        # Raise what another round would meet again, and in the last round any failure.
        for outcome in outcomes[-len(tasks) :]:
            may_pass = isinstance(outcome.failure, CommitLost | BrokerUnreachable | StoreUnavailable)
            if outcome.failure is not None and (in_vain >= ROUNDS_IN_VAIN or not may_pass):
                raise outcome.failure
    return LanesResult(replay.before, now, outcomes)


def _collected(spark: SparkSession, tasks: list[SourceTask]) -> list[LaneOutcome]:
    with spark_errors():
        return spark.sparkContext.parallelize(tasks, len(tasks)).map(run_lane).collect()


def run_lane(task: SourceTask) -> LaneOutcome:
    """Replay what the lane's position leaves to do: the replayer's own core with a single lane.

    An error of ours is an outcome and no exception: Spark would run the task again, for any error, and show
    its traceback. What Spark does run again are tasks whose process died.
    """
    damage = SkipDamage(skips_closed=True)
    # Counts of its own: an executor runs one task after the other.
    left_out = LeftOut()
    try:
        result = asyncio.run(_replayed(task, damage, left_out))
    except BlockgzError as error:
        return LaneOutcome(task.lane.source, skipped=tuple(damage.skipped), left_out=left_out, failure=error)
    return LaneOutcome(
        task.lane.source, result.zero_timestamps, result.lost_commits, tuple(damage.skipped), left_out=left_out
    )


async def _replayed(task: SourceTask, damage: SkipDamage, left_out: LeftOut) -> ReplayResult:
    work, lane = task.work, task.lane
    async with opened(work.place) as archive:
        partition = await archive.open_partition(task.topic, lane.source)
        progress = task.first.sources[lane.source]
        reading = Reading(work.record_filter, lambda _: damage if work.skips_damage else STOP)
        selection = Selection(partition, OffsetRange(progress.start, progress.end))
        stages = tuple(
            replace(stage, left_out=left_out) if isinstance(stage, TransformStage) else stage
            for stage in work.pipeline.stages
        )
        pipeline = Pipeline(stages, Routing("map", places=((lane.source, lane.number),)))
        lane_work = ReplayWork(lane.job, pipeline, [selection], {lane.number: task.first}, reading)
        opened_sink = partial(lane_sink, decode=decode_position) if work.transactional else untransactional_sink
        with opened_sink(lane, work.properties, work.pipeline.router, work.max_message_bytes) as sink:
            # The driver learns of progress from the positions.
            return await run_replay(lane_work, sink, Slowest(), Commands(), lambda *_: None)


# Part of what makes a job: `replayer replay` has other lanes and producers, and cannot resume it.
BY_SOURCE = "a lane for each source partition"


@asynccontextmanager
async def planned_lanes(
    request: ReplayRequest, archive: ArchiveReader, place: ArchivePlace, properties: Mapping[str, str]
) -> AsyncIterator[tuple[TargetTopic, ReplayPlan, Replay]]:
    """Plan a replay, whose tasks open the archive at `place`; write nothing. Raises as `planned_replay`."""
    producing = request.producing(properties)
    missing = await check_request(request, archive)
    admin = await asyncio.to_thread(KafkaAdmin, properties)
    target = await find_target(request, archive, properties, admin)
    await refuse_source(request, archive, target)
    pipeline = target.pipeline
    opened = await opened_partitions(request, archive)
    sources = [each.partition for each in opened]
    places = places_for(pipeline.router, sources)
    with ExitStack() as stack:
        # A rule that nobody chose may be the one that the job was begun with: its positions say so.
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
        by_source = Pipeline(pipeline.stages, Routing())
        work = replace(await work_of_job(request, job, by_source, selections, recorded), pipeline=pipeline)
        refuse_long_metadata(work.first)
        note = f"{len(lanes)} tasks at most, one for each source partition"
        plan = await plan_work(request, target, work, missing, note, created=False)
        config = target.facts.config if target.facts else None
        lane_work = LaneWork(
            place,
            pipeline,
            request.selection.filter,
            request.on_damage == SKIPS,
            request.transactional,
            producing,
            config.max_message_bytes if config else None,
        )
        yield target, plan, Replay(work.first, recorded, lanes, store, topics_of(work.selections), lane_work)
