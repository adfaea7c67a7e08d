"""`python -m system_test.soak`: the soak run; prints its figures as JSON and stores them as soak.json."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from system_test.soak.running import MIB, Soak, SoakSettings

MOST_GROWTH_MIB_PER_HOUR = 5.0


def main() -> int:
    """Run; 0 when memory and descriptors stayed flat and inside the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--memory-mib", type=int, default=256)
    parser.add_argument("--home", type=Path, default=Path("build/soak"))
    options = parser.parse_args()
    settings = SoakSettings(options.partitions, options.minutes, memory=options.memory_mib * MIB)
    figures = Soak(settings, options.home).run()
    print(json.dumps(figures, indent=1))
    for complaint in (complaints := objections(figures)):
        print(f"FAILED {complaint}", file=sys.stderr)
    return 1 if complaints else 0


def objections(figures: dict[str, Any]) -> list[str]:
    """What a long run must not show."""
    found = []
    allowed = figures["idle_rss_mib"] + figures["memory_budget_mib"]
    for name in ("backlog_max_rss_mib", "max_rss_mib"):
        if figures[name] > allowed:
            found.append(f"{name} is {figures[name]}, above idle and budget together: {allowed}")
    if figures["rss_slope_mib_per_hour"] > MOST_GROWTH_MIB_PER_HOUR:
        found.append(f"memory grows by {figures['rss_slope_mib_per_hour']} MiB an hour")
    return found


if __name__ == "__main__":
    sys.exit(main())
