"""The result of a replay: counts, offsets on both sides, and a digest that can be computed from either."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from blockgz.archive.positions import OffsetRange
from index_format.records import SCHEMA, canonical_stream, payload_bytes
from replayer.replay.job import LanePosition
from replayer.replay.plan import ReplayPlan


@dataclass(frozen=True)
class LaneResult:
    """Records of one source partition in one target partition, and their offsets; None if there are none.

    The target's offsets are those of all that this run wrote to that partition.
    """

    partition: int
    target_partition: int
    records: int = 0
    offsets: OffsetRange | None = None
    target_offsets: OffsetRange | None = None


@dataclass(frozen=True)
class TargetResult:
    """One target partition: what this run wrote, and how many records of the job earlier runs had written.

    `sha256` is that of `digest_form`'s canonical stream, over this run's records in their order.
    """

    target_partition: int
    records: int
    records_before: int
    offsets: OffsetRange | None
    sha256: str


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay; `bytes` are those of keys and values. A replay that ended early is not complete.

    `lost_commits` counts transactions that were rolled back, after which their records were sent a second time.
    """

    partitions: tuple[LaneResult, ...]
    targets: tuple[TargetResult, ...]
    bytes: int
    seconds: float
    zero_timestamps: int
    lost_commits: int
    complete: bool

    @property
    def records(self) -> int:
        """Records of all partitions that this run wrote."""
        return sum(lane.records for lane in self.targets)

    @property
    def records_before(self) -> int:
        """Records of all partitions that earlier runs of the job had written."""
        return sum(lane.records_before for lane in self.targets)


def digest_form(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with what differs between archive and copy set to 0: offsets, and the kind of timestamp."""
    columns = {name: batch.column(name) for name in SCHEMA.names}
    columns["offset"] = pa.array(np.zeros(batch.num_rows, np.int64))
    columns["timestamp_type"] = pa.array(np.zeros(batch.num_rows, np.int8))
    return pa.record_batch(list(columns.values()), schema=SCHEMA)


@dataclass
class LaneCounts:
    """Counts of what was handed over to one lane."""

    digest: Any = field(default_factory=hashlib.sha256)
    sources: dict[int, LaneResult] = field(default_factory=dict)
    bytes: int = 0
    zero_timestamps: int = 0

    @property
    def records(self) -> int:
        return sum(flow.records for flow in self.sources.values())

    def copied(self) -> "LaneCounts":
        return LaneCounts(self.digest.copy(), dict(self.sources), self.bytes, self.zero_timestamps)


class RunCounts:
    """The counts of records that were handed over, and of those that were committed."""

    def __init__(self, lanes: Iterable[int]) -> None:
        self._running = {lane: LaneCounts() for lane in lanes}
        self._committed = {lane: LaneCounts() for lane in self._running}

    @property
    def records(self) -> int:
        """Records that were committed."""
        return sum(counts.records for counts in self._committed.values())

    def add(self, source: int, lane: int, batch: pa.RecordBatch, zero_timestamps: int) -> None:
        """A batch of records of `source`, as it was handed over; its offsets are the source's."""
        counts = self._running[lane]
        before, offsets = counts.sources.get(source), batch.column("offset")
        first = before.offsets.start if before and before.offsets else offsets[0].as_py()
        records = batch.num_rows + (before.records if before else 0)
        counts.sources[source] = LaneResult(source, lane, records, OffsetRange(first, offsets[-1].as_py() + 1))
        counts.bytes += payload_bytes(batch)
        counts.zero_timestamps += zero_timestamps
        counts.digest.update(canonical_stream(digest_form(batch)))

    def noted(self, lanes: Iterable[int]) -> Mapping[int, LaneCounts]:
        """Return copies of the counts of these lanes, for `committed`."""
        return {lane: self._running[lane].copied() for lane in lanes}

    def committed(self, noted: Mapping[int, LaneCounts]) -> None:
        """Note that these counts are committed."""
        self._committed.update(noted)

    def rolled_back(self) -> None:
        """Forget the counts of records that were not committed."""
        self._running = {lane: counts.copied() for lane, counts in self._committed.items()}

    def result(
        self,
        positions: Mapping[int, LanePosition],
        delivered: Mapping[int, OffsetRange],
        *,
        seconds: float,
        lost_commits: int,
    ) -> ReplayResult:
        """Return the result of what was committed; `positions` are the last ones of all lanes."""
        sources, targets = [], []
        for number, position in sorted(positions.items()):
            counts, written = self._committed[number], delivered.get(number)
            before = position.written - counts.records
            targets.append(TargetResult(number, counts.records, before, written, counts.digest.hexdigest()))
            for source in sorted(position.sources):
                found = counts.sources.get(source, LaneResult(source, number))
                sources.append(replace(found, target_offsets=written))
        return ReplayResult(
            partitions=tuple(sorted(sources, key=lambda each: (each.partition, each.target_partition))),
            targets=tuple(targets),
            bytes=sum(counts.bytes for counts in self._committed.values()),
            seconds=seconds,
            zero_timestamps=sum(counts.zero_timestamps for counts in self._committed.values()),
            lost_commits=lost_commits,
            complete=all(position.complete for position in positions.values()),
        )


def plan_json(plan: ReplayPlan) -> dict[str, Any]:
    """Return the plan for `--json`; `to` is excluded, and there are at most `records` unless `records_exact`."""
    return {
        "topic": plan.topic,
        "target": plan.target,
        "target_partitions": plan.target_partitions,
        "records": plan.records,
        "records_exact": plan.is_exact,
        "bytes": plan.bytes,
        "stored_bytes": plan.stored_bytes,
        "requests": plan.requests,
        "partitions": [
            {
                "partition": source.partition,
                "target_partitions": list(plan.router.targets(source.partition)),
                "from": source.start,
                "to": source.end,
                "records": source.records,
                "bytes": source.bytes,
                "min_timestamp_ms": source.timestamps.min if source.timestamps else None,
                "max_timestamp_ms": source.timestamps.max if source.timestamps else None,
                "pruned": _range_json(source.pruned),
            }
            for source in plan.sources
        ],
        "cuts": [cut.document(partition) for _, partition, cut in plan.cuts],
        "cut_bytes": plan.cut_bytes,
        "job": plan.job.name,
        "transactional": plan.transactional,
        "records_before": plan.written,
        "notes": plan.notes,
        "warnings": plan.warnings,
    }


def result_json(plan: ReplayPlan, result: ReplayResult) -> dict[str, Any]:
    """Return the result for `--json`; `to` and `target_to` are excluded."""
    return {
        "records": result.records,
        "partitions": [
            {
                "partition": lane.partition,
                "target_partition": lane.target_partition,
                "records": lane.records,
                **_range_json(lane.offsets),
                **_range_json(lane.target_offsets, "target_"),
            }
            for lane in result.partitions
        ],
        "topic": plan.topic,
        "target": plan.target,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "zero_timestamps": result.zero_timestamps,
        "records_before": result.records_before,
        "complete": result.complete,
        "lost_commits": result.lost_commits,
        "targets": [
            {
                "target_partition": lane.target_partition,
                "records": lane.records,
                "records_before": lane.records_before,
                **_range_json(lane.offsets),
                "sha256": lane.sha256,
            }
            for lane in result.targets
        ],
        "plan": plan_json(plan),
    }


def _range_json(offsets: OffsetRange | None, prefix: str = "") -> dict[str, int | None]:
    start, end = offsets or (None, None)
    return {f"{prefix}from": start, f"{prefix}to": end}
