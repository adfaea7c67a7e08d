"""Proving a whole job: what it recorded and the archive holds, against what its target topic holds."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from blockgz_runtime.errors import UsageError
from blockgz_runtime.store.writer import Store
from index_format.keys import parse_topic_folder
from replayer.errors import ReplayRefused
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.kafka.topic_facts import TopicFacts
from replayer.read.archive import Archive
from replayer.read.positions import OffsetRange
from replayer.read.selection import Selection
from replayer.replay.asked import shape_asked
from replayer.replay.job import Job
from replayer.replay.jobs.folder import JobFolder, JobRequest
from replayer.replay.ledger import LanePosition, decode_position
from replayer.replay.pipeline import Pipeline
from replayer.replay.prepare import refuse_changed_target
from replayer.replay.proof.lane_maps import LaneMap, lane_maps
from replayer.replay.proof.proving import COMPARED, Asked, LaneProof, LaneTask, prove_lane
from replayer.replay.routing import make_router
from replayer.replay.shaped_target import make_stages
from replayer.replay.sinks.committed_positions import CommittedPositions
from replayer.replay.stages import LeftOut, TimestampsNow


@dataclass
class JobProof:
    """What was found of a job."""

    request: JobRequest
    complete: bool
    lanes: list[LaneProof] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """FAILURE where records are wrong, foreign or not there; WARNING where some came twice or are still to come."""
        if any(lane.faulty for lane in self.lanes):
            return "FAILURE"
        return "WARNING" if self.warnings or any(lane.sent_twice for lane in self.lanes) else "OK"


def kept_job(name: str, jobs: Store) -> tuple[JobRequest, JobFolder]:
    """What a job was begun with, and its folder; raises UsageError where there is none."""
    folder = JobFolder(jobs, Job(name, "", "").name)
    kept = folder.request()
    if kept is None:
        raise UsageError(f"there is no job {name}", why=f"{folder.address} does not exist", remedy="see replayer jobs")
    return kept, folder


async def prove_job(
    kept: JobRequest,
    folder: JobFolder,
    archive: Archive,
    properties: Mapping[str, str],
    watched: Callable[[int], AbstractContextManager[Callable[[int], None]]] = lambda _: nullcontext(lambda _: None),
) -> JobProof:
    """Applies again what a job did to the archived records, and compares with what its target holds.

    `watched` is given the records that there are, and what it gives is called with those that are done. Raises
    TargetChanged, or ReplayRefused where the job is another archive's or cannot be repeated.
    """
    admin = await asyncio.to_thread(KafkaAdmin, properties)
    facts = await asyncio.to_thread(admin.topic, kept.target)
    refuse_changed_target(kept, facts)
    assert facts is not None
    asked = _asked(kept, facts)
    feeding = _feeding(kept, asked.pipeline)
    positions = await asyncio.to_thread(_positions, kept, folder, properties, sorted(feeding))
    written = {lane: each.written for lane, each in positions.items()}
    maps = await asyncio.to_thread(lambda: lane_maps((each for _, each in folder.segments()), written))
    forgotten = sorted(feeding.keys() - positions.keys())
    proof = JobProof(kept, not forgotten and all(each.complete for each in positions.values()))
    proof.warnings += _warnings(kept, asked, facts, positions, forgotten)
    isolation = "read_committed" if kept.transactional else "read_uncommitted"
    lanes = sorted(feeding.keys() | maps.keys())
    bounds = await asyncio.to_thread(admin.watermarks, kept.target, lanes, isolation)
    selections = await _selections(archive, kept)
    with watched(sum(each.records for each in maps.values())) as advance:
        reader = await asyncio.to_thread(KafkaReader, properties, isolation)
        try:
            for lane in lanes:
                lane_map = maps.get(lane) or LaneMap(bounds[lane].end)
                start = max(bounds[lane].low, lane_map.began)
                found = _in_thread(reader, kept.target, lane, start, bounds[lane].end)
                position = positions.get(lane)
                task = LaneTask(
                    lane,
                    lane_map,
                    found,
                    {number: selections[number] for number in feeding.get(lane, ())},
                    {number: _required(kept, position, number) for number in feeding.get(lane, ())},
                    rolls_back=kept.transactional,
                    open_end=not proof.complete,
                )
                proof.lanes.append(await prove_lane(task, asked, advance))
        finally:
            await asyncio.to_thread(reader.close)
    return proof


def _asked(kept: JobRequest, facts: TopicFacts) -> Asked:
    shape, record_filter = shape_asked(kept.asked, kept.job)
    stages = tuple(make_stages(shape, parse_topic_folder(kept.folder).topic, kept.target, LeftOut()))
    pipeline = Pipeline(stages, make_router(shape.routing, kept.target, int(kept.asked["target_partitions"])))
    if pipeline.fingerprint != kept.asked["pipeline"]:
        raise ReplayRefused(
            f"job {kept.job} cannot be proved",
            why="this version handles records differently from the one that started the job",
            remedy="use that version, or compare with verify --against-topic",
        )
    stamped = facts.config is not None and facts.config.timestamp_type == "LogAppendTime"
    without = stamped or isinstance(shape.timestamps, TimestampsNow)
    return Asked(pipeline, record_filter, COMPARED[1:] if without else COMPARED)


def _feeding(kept: JobRequest, pipeline: Pipeline) -> dict[int, list[int]]:
    """By lane the source partitions that may go there."""
    feeding: dict[int, list[int]] = {}
    for source in sorted(kept.ranges):
        for lane in pipeline.targets(source):
            feeding.setdefault(lane, []).append(source)
    return feeding


def _positions(kept: JobRequest, folder: JobFolder, kafka: Mapping[str, str], lanes: list[int]) -> dict[int, Any]:
    if not kept.transactional:
        return folder.positions.read()
    positions = CommittedPositions(kafka, Job(kept.job, kept.target, kept.selection), decode_position)
    try:
        return positions.settled(lanes)
    finally:
        positions.close()


def _required(kept: JobRequest, position: LanePosition | None, source: int) -> int:
    """Up to where the records of a source must be in the lane; all of them where the cluster does not tell."""
    if position is not None and source in position.sources:
        return position.sources[source].next
    return kept.ranges[source][1] if kept.transactional else kept.ranges[source][0]


def _warnings(
    kept: JobRequest, asked: Asked, facts: TopicFacts, positions: Mapping[int, LanePosition], forgotten: Sequence[int]
) -> list[str]:
    warnings = []
    if forgotten and kept.transactional:
        warnings.append(
            f"the cluster has no positions of the job in partitions {', '.join(map(str, forgotten))}: "
            "these are proved as if they were complete"
        )
    if not all(each.complete for each in positions.values()) or (forgotten and not kept.transactional):
        warnings.append("the job is not complete: it is proved as far as it got")
    if "timestamp" not in asked.compared:
        by_broker = facts.config is not None and facts.config.timestamp_type == "LogAppendTime"
        reason = "the broker sets them" if by_broker else "they are the times of sending"
        warnings.append(f"timestamps are not compared: {reason}")
    return warnings


async def _selections(archive: Archive, kept: JobRequest) -> dict[int, Selection]:
    opened = await archive.open_topic(kept.folder, sorted(kept.ranges))
    for partition in opened:
        if partition.marker.archive_id != kept.archive_id:
            raise ReplayRefused(
                f"job {kept.job} was started from another archive",
                why=f"that has id {kept.archive_id}, this one {partition.marker.archive_id}",
                remedy="check -a/--archive",
            )
    return {each.partition: Selection(each, OffsetRange(*kept.ranges[each.partition])) for each in opened}


async def _in_thread(
    reader: KafkaReader, topic: str, lane: int, start: int, end: int
) -> AsyncGenerator[pa.RecordBatch]:
    batches = reader.read(topic, lane, start, end)
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch
