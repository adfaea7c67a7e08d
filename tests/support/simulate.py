"""Simulates schedules by the million: `python -m tests.support.simulate --schedules N --seed S`.

Prints its rate as it goes; the first schedule after which the archive is not what it must be ends it with exit code 1,
its seed and its steps.
"""

import argparse
import sys
import time

from tests.support.broken_protocols import BROKEN, intercepted
from tests.support.scenarios import company_of, harmed_partition, run_schedule, short_partition
from tests.support.simulator import Violation

SECONDS_BETWEEN_LINES = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.simulate", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    parser.add_argument("--broken", choices=BROKEN, help="simulate a broken protocol instead, to see it found out")
    arguments = parser.parse_args()
    scenario = short_partition()
    if arguments.broken:
        handler = BROKEN[arguments.broken]
        scenario = harmed_partition(lambda protocol: intercepted(protocol, handler))
    begun = told = time.monotonic()
    for number in range(arguments.schedules):
        seed = arguments.seed + number
        try:
            run_schedule(scenario, seed, company_of(seed))
        except Violation as violation:
            print(violation)
            print(f"run it again: python -m tests.support.simulate --schedules 1 --seed {seed}")
            return 1
        now = time.monotonic()
        if now - told >= SECONDS_BETWEEN_LINES:
            told = now
            _tell(number + 1, arguments.schedules, now - begun)
    _tell(arguments.schedules, arguments.schedules, time.monotonic() - begun)
    print("no violation")
    return 0


def _tell(done: int, of: int, seconds: float) -> None:
    print(f"{done:,} of {of:,} schedules, {done / max(seconds, 1e-9):,.0f}/s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
