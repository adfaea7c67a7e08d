"""Coverage as plain JSON values, for `--json` and the API."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

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
    """`records_by_slice` are estimates, and add up to the records on the axis; a gap's times are those beside it."""
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
        "records_by_slice": [] if axis is None else _whole_numbers(sliced(coverage, axis).records),
    }


def _whole_numbers(amounts: npt.NDArray[np.float64]) -> list[int]:
    """Return the amounts rounded so that neither the sum of all nor that of the first ones is off by more than half."""
    found: list[int] = np.diff(np.rint(np.cumsum(amounts)).astype(np.int64), prepend=0).tolist()
    return found


def _gap(gap: TimedGap) -> dict[str, Any]:
    return {**msgspec.to_builtins(gap.gap), "after_ms": gap.after, "before_ms": gap.before}
