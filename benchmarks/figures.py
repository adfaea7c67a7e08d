"""From runs to figures: medians, shares of a limit, slopes. Pure."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.measure import Cost

Json = dict[str, Any]


def row(costs: Sequence[Cost], *, records: int | None = None, raw_bytes: int | None = None, **facts: Any) -> Json:
    """One line of a table: every run, their medians, and what there is to say beside. Bytes are those of the values."""
    return {
        "seconds": statistics.median(cost.seconds for cost in costs),
        "cpu_seconds": statistics.median(cost.cpu_seconds for cost in costs),
        "peak_bytes": max(cost.peak_bytes for cost in costs),
        "records": records,
        "raw_bytes": raw_bytes,
        "runs": [round(cost.seconds, 4) for cost in costs],
        **facts,
    }


def faster(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """How many times as fast as theirs ours is; of a limit, the share of it that is reached."""
    return float(theirs["seconds"] / ours["seconds"])


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of at least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The exponent of growth: least squares of log y over log x. 1 is linear, 0 flat."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    return statistics.linear_regression([x for x, _ in logs], [y for _, y in logs]).slope


def marginal(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points behind the first, less the first: growth without what every run costs, start-up above all."""
    (x0, y0), *rest = points
    return [(x - x0, max(y - y0, 1e-9)) for x, y in rest]


def processor_bound(cores: int, *parts: Mapping[str, Any]) -> float:
    """Seconds in which `cores` could do all the parts, were they spread perfectly."""
    return sum(float(part["cpu_seconds"]) for part in parts) / cores
