"""One source partition of a replay, as one executor does it: the replayer's own core with a single lane."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from blockgz_runtime.store.address import Address
from blockgz_runtime.store.opening import open_reader
from index_format.ancestor.payloads import OldFormat
from index_format.errors import BlockgzError
from replayer.old_archives.detection import ancestor_finder
from replayer.read.archive import Archive
from replayer.read.damage import STOP, LostRange, SkipDamage
from replayer.read.positions import OffsetRange
from replayer.read.record_filter import RecordFilter
from replayer.read.selection import Reading, Selection
from replayer.replay.ledger import LanePosition, decode_position
from replayer.replay.pace import Commands, Unpaced
from replayer.replay.pipeline import Pipeline
from replayer.replay.result import ReplayResult
from replayer.replay.routing import MapPartitions
from replayer.replay.run import RecordSink, ReplayWork, run_replay
from replayer.replay.sinks.bounded_calls import Calls, NoAnswer
from replayer.replay.sinks.committed_positions import CommittedPositions
from replayer.replay.sinks.idempotent import KafkaSink
from replayer.replay.sinks.transactional import TransactionalSink
from replayer.replay.stages import LeftOut, TransformStage
from replayer.spark.jobs.source_lanes import OfSource, SourceLane

CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class ArchivePlace:
    """Where the archive is, for whoever opens it anew."""

    address: Address
    endpoint_url: str | None
    region: str | None
    max_block_bytes: int
    old_format: OldFormat


@dataclass(frozen=True)
class LaneWork:
    """What all lanes of a replay have in common."""

    place: ArchivePlace
    topic: str
    """The incarnation, so that every task opens the same."""
    target: str
    pipeline: Pipeline
    record_filter: RecordFilter
    skips_damage: bool
    transactional: bool
    properties: Mapping[str, str]
    max_message_bytes: int | None


@dataclass(frozen=True)
class LaneTask:
    """One lane, and the position that its job began with."""

    work: LaneWork
    lane: SourceLane
    first: LanePosition


@dataclass(frozen=True)
class LaneOutcome:
    """What one attempt did: `failure` is why it ended early."""

    source: int
    zero_timestamps: int = 0
    lost_commits: int = 0
    skipped: tuple[LostRange, ...] = ()
    left_out: LeftOut = field(default_factory=LeftOut)
    failure: BlockgzError | None = None


def run_lane(task: LaneTask) -> LaneOutcome:
    """Replays what the lane's position leaves to do.

    An error of ours is an outcome and no exception: Spark would begin the task again, whatever the error is, and show
    its traceback. What Spark does begin again are tasks whose process died.
    """
    damage = SkipDamage()
    # Counts of its own: an executor runs one task after the other.
    left_out = LeftOut()
    try:
        result = asyncio.run(_replayed(task, damage, left_out))
    except BlockgzError as error:
        return LaneOutcome(task.lane.source, skipped=tuple(damage.skipped), left_out=left_out, failure=error)
    return LaneOutcome(
        task.lane.source, result.zero_timestamps, result.lost_commits, tuple(damage.skipped), left_out=left_out
    )


async def _replayed(task: LaneTask, damage: SkipDamage, left_out: LeftOut) -> ReplayResult:
    work, lane, place = task.work, task.lane, task.work.place
    async with open_reader(place.address, endpoint_url=place.endpoint_url, region=place.region) as reader:
        archive = Archive(reader, place.max_block_bytes, ancestor_finder(place.old_format, place.max_block_bytes))
        partition = await archive.open_partition(work.topic, lane.source)
        progress = task.first.sources[lane.source]
        reading = Reading(work.record_filter, lambda _: damage if work.skips_damage else STOP)
        selection = Selection(partition, OffsetRange(progress.start, progress.end))
        stages = tuple(
            replace(stage, left_out=left_out) if isinstance(stage, TransformStage) else stage
            for stage in work.pipeline.stages
        )
        positions = CommittedPositions(work.properties, lane.job, decode_position)
        try:
            return await run_replay(
                ReplayWork([selection], {lane.number: task.first}, reading),
                Pipeline(stages, MapPartitions({lane.source: lane.number})),
                _sink(work, lane, positions),
                Unpaced(),
                Commands(),
                _untold,
            )
        finally:
            with suppress(NoAnswer):
                await asyncio.to_thread(Calls().make, positions.close, CLOSE_SECONDS)


def _sink(work: LaneWork, lane: SourceLane, positions: CommittedPositions[LanePosition]) -> RecordSink:
    router = OfSource(work.pipeline.router, lane.source)
    if work.transactional:
        return TransactionalSink(work.properties, lane.job, positions, work.max_message_bytes, router)
    store = _InCluster(positions, lane.number)
    return KafkaSink(work.properties, work.target, store, work.max_message_bytes, router)


@dataclass(frozen=True)
class _InCluster:
    """A lane's position without transactions: every machine sees it, where a file would be on one."""

    positions: CommittedPositions[LanePosition]
    lane: int

    def read(self) -> Mapping[int, LanePosition]:
        return self.positions.read([self.lane])

    def write(self, positions: Mapping[int, LanePosition]) -> None:
        self.positions.write(positions)


def _untold(records: int, num_bytes: int) -> None:
    """The driver learns of progress from the positions."""
