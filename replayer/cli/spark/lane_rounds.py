"""The lanes of a replay as tasks of Spark, in rounds until every one is complete."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from blockgz_runtime.errors import BrokerUnreachable, StoreUnavailable, UsageError
from blockgz_runtime.spark.errors import spark_errors
from blockgz_runtime.spark.session import session
from index_format.errors import BlockgzError
from replayer.cli.progress import RecordProgress, record_progress
from replayer.cli.spark.replaying_output import Done, written
from replayer.cli.spark.session_options import SessionOptions
from replayer.errors import CommitLost
from replayer.replay.ledger import LanePosition
from replayer.replay.plan import ReplayPlan
from replayer.replay.prepare import KnownJob
from replayer.spark.jobs.lane_task import LaneOutcome, LaneTask, LaneWork, run_lane
from replayer.spark.jobs.source_lanes import LaneStore, SourceLane

ROUNDS_IN_VAIN = 3
"""So many rounds of tasks without any progress end a replay that the cluster or the store does not let go on."""
STATUS_SECONDS = 2.0


@dataclass(frozen=True)
class Replay:
    """A replay that is to be done, or gone on with."""

    known: KnownJob
    lanes: Mapping[int, SourceLane]
    store: LaneStore
    plan: ReplayPlan
    work: LaneWork

    def tasks(self, recorded: Mapping[int, LanePosition]) -> list[LaneTask]:
        """Of the lanes that are not complete."""
        return [
            LaneTask(self.work, lane, self.known.work.first[source])
            for source, lane in self.lanes.items()
            if not recorded[source].complete
        ]


async def run_rounds(replay: Replay, spark: SessionOptions, *, as_json: bool) -> Done:
    """Rounds of tasks until every lane is complete; raises what a task failed with, or what Spark says."""
    store, first = replay.store, replay.known.work.first
    before = {**first, **replay.known.recorded}
    outcomes: list[LaneOutcome] = []
    if not replay.tasks(before):
        return Done(before, before, outcomes)
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
        context, in_vain = running.sparkContext, 0

        def collected(tasks: list[LaneTask]) -> list[LaneOutcome]:
            with spark_errors():
                return context.parallelize(tasks, len(tasks)).map(run_lane).collect()

        while tasks := replay.tasks(now):
            reached = now
            round_of_tasks = asyncio.ensure_future(asyncio.to_thread(collected, tasks))
            told: Mapping[int, LanePosition] = now
            while not (await asyncio.wait({round_of_tasks}, timeout=STATUS_SECONDS))[0]:
                told = await _progress(replay, told, advance)
            outcomes += await round_of_tasks
            now = await asyncio.to_thread(store.read)
            _advance(replay, told, now, advance)
            in_vain = in_vain + 1 if now == reached else 0
            _raise_failure(outcomes[-len(tasks) :], last=in_vain >= ROUNDS_IN_VAIN)
    return Done(before, now, outcomes)


def _raise_failure(outcomes: Sequence[LaneOutcome], *, last: bool) -> None:
    """Raises the first failure that another round would meet again, and in the last round any."""
    for outcome in outcomes:
        if outcome.failure is not None and (last or not _may_pass(outcome.failure)):
            raise outcome.failure


def _may_pass(failure: BlockgzError) -> bool:
    return isinstance(failure, CommitLost | BrokerUnreachable | StoreUnavailable)


async def _progress(
    replay: Replay, told: Mapping[int, LanePosition], advance: RecordProgress
) -> Mapping[int, LanePosition]:
    try:
        now = await asyncio.to_thread(replay.store.read)
    except BrokerUnreachable:
        return told
    _advance(replay, told, now, advance)
    return now


def _advance(
    replay: Replay, told: Mapping[int, LanePosition], now: Mapping[int, LanePosition], advance: RecordProgress
) -> None:
    records = written(now) - written(told)
    plan = replay.plan
    advance(records, records * plan.bytes // plan.records if plan.records else 0)
