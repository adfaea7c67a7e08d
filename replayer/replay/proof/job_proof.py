"""Proving a whole job: what it recorded and the archive holds, against what its target topic holds."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from blockgz.archive.archive import Archive
from blockgz.archive.damage import Verdict
from blockgz.archive.positions import OffsetRange
from blockgz.archive.selection import Selection, erased_ranges, joined_ranges
from replayer.kafka.admin import KafkaAdmin
from replayer.kafka.reader import KafkaReader
from replayer.replay.jobs.folder import JobFolder, JobRequest
from replayer.replay.jobs.lane_maps import LaneMap
from replayer.replay.ledger import LanePosition
from replayer.replay.proof.proving import COMPARED, Asked, LaneProof, LaneTask, prove_lane
from replayer.replay.proof.sampling import Sample, prove_share
from replayer.replay.recorded_job import RecordedJob, recorded_job, source_selections
from replayer.replay.stages import TimestampsNow

FETCHING_PIECES: Mapping[str, str] = {
    "fetch.message.max.bytes": "1048576",
    "queued.max.messages.kbytes": "4096",
}
"""What lies behind a piece is not needed."""


@dataclass
class JobProof:
    """What was found of a job; `sample` is the share of it that was to be compared."""

    request: JobRequest
    complete: bool
    sample: Sample | None = None
    lanes: list[LaneProof] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """FAILURE where records are wrong, foreign or not there; WARNING where some came twice, are still to come, or
        were pruned or erased from the archive since.

        SAMPLED where nothing of that was found, and not all was looked at.
        """
        if any(lane.faulty for lane in self.lanes):
            return Verdict.FAILURE
        if self.warnings or any(lane.sent_twice or lane.gone for lane in self.lanes):
            return Verdict.WARNING
        return Verdict.SAMPLED if self.not_compared else Verdict.OK

    @property
    def not_compared(self) -> int:
        """So many records were only counted."""
        return sum(lane.not_compared for lane in self.lanes)


async def prove_job(
    kept: JobRequest,
    folder: JobFolder,
    archive: Archive,
    properties: Mapping[str, str],
    watched: Callable[[int], AbstractContextManager[Callable[[int], None]]] = lambda _: nullcontext(lambda _: None),
    admin: KafkaAdmin | None = None,
    sample: Sample | None = None,
) -> JobProof:
    """Applies again what a job did to the archived records, and compares with what its target holds.

    `watched` is given the records that there are, and what it gives is called with those that are done. `admin` is
    asked, if there is one already; with a `sample` only that share is compared. Raises TargetChanged, or ReplayRefused
    where the job is another archive's or cannot be repeated.
    """
    admin = await asyncio.to_thread(admin.again if admin else lambda: KafkaAdmin(properties))
    job = await recorded_job(kept, folder, admin, properties)
    kept = job.request
    asked = Asked(job.pipeline, job.filter, _compared(job))
    proof = JobProof(kept, job.complete, sample, warnings=_warnings(job, asked.compared))
    lanes = sorted(job.feeding.keys() | job.maps.keys())
    bounds = await asyncio.to_thread(admin.watermarks, kept.target, lanes, kept.isolation_level)
    selections = await source_selections(archive, kept)
    gone = {number: await _gone(selection) for number, selection in selections.items()}
    with watched(sum(each.records for each in job.maps.values())) as advance:
        fetching = properties if sample is None else {**properties, **FETCHING_PIECES}
        reader = await asyncio.to_thread(KafkaReader, fetching, kept.isolation_level)
        try:
            for lane in lanes:
                lane_map = job.maps.get(lane) or LaneMap(bounds[lane].end)
                start = max(bounds[lane].low, lane_map.began)
                read = partial(_in_thread, reader, kept.target, lane)
                position = job.positions.get(lane)
                task = LaneTask(
                    lane,
                    lane_map,
                    read(start, bounds[lane].end),
                    {number: selections[number] for number in job.feeding.get(lane, ())},
                    {number: _required(kept, position, number) for number in job.feeding.get(lane, ())},
                    rolls_back=kept.transactional,
                    open_end=not proof.complete,
                    gone={number: gone[number] for number in job.feeding.get(lane, ())},
                )
                if sample is None:
                    found = await prove_lane(task, asked, advance)
                else:
                    found = await prove_share(task, asked, advance, sample, OffsetRange(start, bounds[lane].end), read)
                proof.lanes.append(found)
        finally:
            await asyncio.to_thread(reader.close)
    return proof


async def _gone(selection: Selection) -> list[OffsetRange]:
    """What the archive has pruned or erased of a selection: offsets in order and apart."""
    partition, (start, end) = selection[:2]
    pruned = [(start, min(partition.floor, end))] if start < partition.floor else []
    return joined_ranges([*pruned, *await erased_ranges(partition, start, end)])


def proof_document(proof: JobProof) -> dict[str, Any]:
    """What was found, as plain JSON values."""
    request = proof.request
    sums = ("records", "differing", "missing", "foreign", "sent_twice", "not_compared", "gone")
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


def _compared(job: RecordedJob) -> tuple[str, ...]:
    """The columns that can be compared."""
    config = job.target.config
    stamped = config is not None and config.timestamp_type == "LogAppendTime"
    return COMPARED[1:] if stamped or isinstance(job.shape.timestamps, TimestampsNow) else COMPARED


def _required(kept: JobRequest, position: LanePosition | None, source: int) -> int:
    """Up to where the records of a source must be in the lane; all of them where the cluster does not tell."""
    if position is not None and source in position.sources:
        return position.sources[source].next
    return kept.ranges[source][1] if kept.transactional else kept.ranges[source][0]


def _warnings(job: RecordedJob, compared: Sequence[str]) -> list[str]:
    warnings = []
    transactional = job.request.transactional
    if job.forgotten and transactional:
        warnings.append(
            f"the cluster has no positions of the job in partitions {', '.join(map(str, job.forgotten))}: "
            "these are proved as if they were complete"
        )
    if not all(each.complete for each in job.positions.values()) or (job.forgotten and not transactional):
        warnings.append("the job is not complete: it is proved as far as it got")
    if "timestamp" not in compared:
        by_broker = job.target.config is not None and job.target.config.timestamp_type == "LogAppendTime"
        reason = "the broker sets them" if by_broker else "they are the times of sending"
        warnings.append(f"timestamps are not compared: {reason}")
    return warnings


async def _in_thread(
    reader: KafkaReader, topic: str, lane: int, start: int, end: int
) -> AsyncGenerator[pa.RecordBatch]:
    batches = reader.read(topic, lane, start, end)
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch
