"""Plan and result of a replay as JSON documents, as `--json` prints them."""

from typing import Any

from blockgz.archive.positions import OffsetRange
from replayer.replay.plan import ReplayPlan
from replayer.replay.result import ReplayResult


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
        "transactional": plan.job.transactional,
        "records_before": plan.job.written,
        "notes": plan.notes,
        "warnings": plan.warnings,
    }


def result_json(plan: ReplayPlan, result: ReplayResult) -> dict[str, Any]:
    """What was done, for `--json`; `to` and `target_to` are excluded."""
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
