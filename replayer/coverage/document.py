"""Coverage as plain JSON values, for `--json` and the API."""

from collections.abc import Sequence
from typing import Any

import msgspec

from replayer.coverage.partition_coverage import Axis, TimedGap, sliced
from replayer.coverage.picture import CoverageRow


def coverage_document(rows: Sequence[CoverageRow], axis: Axis | None) -> dict[str, Any]:
    """The partitions over an axis; None where there is nothing to place on one."""
    unit = "offset" if axis is not None and axis.scale == "offset" else "ms"
    start, end, slices = (None, None, 0) if axis is None else (axis.start, axis.end, axis.slices)
    return {
        f"from_{unit}": start,
        f"to_{unit}": end,
        "slices": slices,
        "partitions": [_partition(row, axis) for row in rows],
    }


def _partition(row: CoverageRow, axis: Axis | None) -> dict[str, Any]:
    """`records_by_slice` are estimates; a gap's times are those of the records beside it."""
    coverage = row.coverage
    earliest, latest = coverage.times or (None, None)
    return {
        "topic": row.topic,
        "partition": coverage.partition,
        "records": coverage.records,
        "records_without_timestamp": coverage.untimed,
        "start_offset": coverage.start_offset,
        "next_offset": coverage.next_offset,
        "pruned_before": coverage.pruned_before,
        "min_timestamp_ms": earliest,
        "max_timestamp_ms": latest,
        "gaps": list(map(_gap, coverage.gaps)),
        "erased": list(map(_gap, coverage.erased)),
        "damage": list(map(_gap, coverage.damage)),
        "records_by_slice": [] if axis is None else [round(each) for each in sliced(coverage, axis).records.tolist()],
    }


def _gap(gap: TimedGap) -> dict[str, Any]:
    return {**msgspec.to_builtins(gap.gap), "after_ms": gap.after, "before_ms": gap.before}
