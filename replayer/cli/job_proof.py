"""`replayer verify --job`."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import click
import msgspec
import pyarrow as pa

from blockgz_runtime.errors import PARTLY_FAILED, UsageError
from blockgz_runtime.program.progress import record_progress
from blockgz_runtime.program.tables import print_table
from index_format.keys import parse_topic_folder
from replayer.cli.options.archive_options import ArchiveOptions, open_archive
from replayer.cli.options.job_options import open_jobs
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


def verify_job(name: str, jobs: str | None, kafka: dict[str, str], archive: ArchiveOptions, *, as_json: bool) -> int:
    """Proves the job, prints what was found, and gives the exit code."""
    folder = JobFolder(open_jobs(jobs, archive), Job(name, "", "").name)
    kept = folder.request()
    if kept is None:
        raise UsageError(f"there is no job {name}", why=f"{folder.address} is not there", remedy="see replayer jobs")
    proof = asyncio.run(_prove(kept, folder, kafka, archive, as_json=as_json))
    if as_json:
        click.echo(msgspec.json.encode(_document(proof)))
    else:
        _print(proof)
    return PARTLY_FAILED if proof.verdict == "FAILURE" else 0


async def _prove(
    kept: JobRequest, folder: JobFolder, kafka: dict[str, str], options: ArchiveOptions, *, as_json: bool
) -> JobProof:
    admin = await asyncio.to_thread(KafkaAdmin, kafka)
    facts = await asyncio.to_thread(admin.topic, kept.target)
    refuse_changed_target(kept, facts)
    assert facts is not None
    asked = _asked(kept, facts)
    feeding = _feeding(kept, asked.pipeline)
    positions = await asyncio.to_thread(_positions, kept, folder, kafka, sorted(feeding))
    written = {lane: each.written for lane, each in positions.items()}
    maps = await asyncio.to_thread(lambda: lane_maps((each for _, each in folder.segments()), written))
    forgotten = sorted(feeding.keys() - positions.keys())
    proof = JobProof(kept, not forgotten and all(each.complete for each in positions.values()))
    proof.warnings += _warnings(kept, asked, facts, positions, forgotten)
    isolation = "read_committed" if kept.transactional else "read_uncommitted"
    lanes = sorted(feeding.keys() | maps.keys())
    bounds = await asyncio.to_thread(admin.watermarks, kept.target, lanes, isolation)
    async with open_archive(options) as archive:
        selections = await _selections(archive, kept)
        total = sum(each.records for each in maps.values())
        with record_progress("proving", total, as_json=as_json) as advance:
            reader = await asyncio.to_thread(KafkaReader, kafka, isolation)
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
                    proof.lanes.append(await prove_lane(task, asked, lambda records: advance(records, 0)))
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
            why="this version does something else to records than the one that began it",
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
        reason = "the broker sets them" if by_broker else "they were those of sending"
        warnings.append(f"timestamps are not compared: {reason}")
    return warnings


async def _selections(archive: Archive, kept: JobRequest) -> dict[int, Selection]:
    opened = await archive.open_topic(kept.folder, sorted(kept.ranges))
    for partition in opened:
        if partition.marker.archive_id != kept.archive_id:
            raise ReplayRefused(
                f"job {kept.job} was begun from another archive",
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


def _document(proof: JobProof) -> dict[str, Any]:
    request = proof.request
    sums = ("records", "differing", "missing", "foreign", "sent_twice")
    return {
        "verdict": proof.verdict,
        "job": request.job,
        "source": request.folder,
        "target": request.target,
        "transactional": request.transactional,
        "complete": proof.complete,
        **{name: sum(getattr(lane, name) for lane in proof.lanes) for name in sums},
        "warnings": proof.warnings,
        "lanes": [asdict(lane) for lane in proof.lanes],
    }


def _print(proof: JobProof) -> None:
    columns = ("TARGET", "RUNS", "RECORDS", "DIFFERING", "MISSING", "FOREIGN", "SENT TWICE")
    rows = [(e.lane, e.runs, e.records, e.differing, e.missing, e.foreign, e.sent_twice) for e in proof.lanes]
    print_table(columns, rows, title=f"{proof.request.folder} -> {proof.request.target}, job {proof.request.job}")
    for lane in proof.lanes:
        for text in lane.faults:
            click.echo(f"FAILURE {text}")
        if lane.sent_twice:
            click.echo(f"WARNING partition {lane.lane}: {lane.sent_twice} records were sent twice")
    for text in proof.warnings:
        click.echo(f"WARNING {text}")
    click.echo(proof.verdict)
