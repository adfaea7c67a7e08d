"""`python -m system_test.soak`: the soak run; prints its figures as JSON and stores them as soak.json."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from system_test.soak.running import MIB, Soak, SoakSettings

MOST_GROWTH_MIB_PER_HOUR = 5.0
MOST_MORE_DESCRIPTORS = 10
"""Connections come and go; so many more at the end are no leak."""


def main() -> int:
    """Run; 0 when memory and descriptors stayed flat and inside the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--memory-mib", type=int, default=256)
    parser.add_argument(
        "--rate", type=float, help="records a second; by default half of what the backlog is drained at"
    )
    parser.add_argument("--lenient", action="store_true", help="judge no slope: too short a run has none")
    parser.add_argument("--home", type=Path, default=Path("build/soak"))
    options = parser.parse_args()
    settings = SoakSettings(options.partitions, options.minutes, memory=options.memory_mib * MIB, rate=options.rate)
    figures = Soak(settings, options.home).run()
    print(json.dumps(figures, indent=1))
    complaints = over_budget(figures) + ([] if options.lenient else growing(figures))
    for complaint in complaints:
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def over_budget(figures: dict[str, Any]) -> list[str]:
    """Where the process took more than what it takes when idle and its budget."""
    found = []
    allowed = figures["idle_rss_mib"] + figures["memory_budget_mib"]
    for name in ("backlog_max_rss_mib", "max_rss_mib"):
        if figures[name] > allowed:
            found.append(f"{name} is {figures[name]}, above idle and budget together: {allowed}")
    return found


def growing(figures: dict[str, Any]) -> list[str]:
    found = []
    if figures["rss_floor_slope_mib_per_hour"] > MOST_GROWTH_MIB_PER_HOUR:
        found.append(f"memory grows by {figures['rss_floor_slope_mib_per_hour']} MiB an hour")
    before, after = figures["descriptors_first_and_last"]
    if after > before + MOST_MORE_DESCRIPTORS:
        found.append(f"file descriptors went from {before} to {after}")
    return found


if __name__ == "__main__":
    sys.exit(main())
