"""Runs schedules: `python -m tests.support.service_simulation --schedules N --seed S`.

The first violation ends it with exit code 1, its seed and its schedule. PYTHONHASHSEED is set, since sets are walked
in the order of hashes.
"""

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from contextlib import nullcontext

from tests.support.service_simulation.judge import Violation
from tests.support.service_simulation.planted import PLANTED, planted
from tests.support.service_simulation.schedules import WIDE_SICK, Schedule, shape_of
from tests.support.service_simulation.world import World, simulated

SECONDS_BETWEEN_LINES = 10.0
LAST_LINES = 20000


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.service_simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    parser.add_argument("--wide", action="store_true", help="200 partitions, a tenth of them sick")
    parser.add_argument("--planted", choices=PLANTED, help="with a bug of this name, to see it found")
    parser.add_argument("--keep-going", action="store_true", help="count violations by rule instead of ending")
    parser.add_argument("--trace", action="store_true", help="print the schedule of the last seed in any case")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.support.service_simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    faults, broken, records = Counter[str](), Counter[str](), 0
    begun = told = time.monotonic()
    with simulated(), planted(PLANTED[arguments.planted]) if arguments.planted else nullcontext():
        for number in range(arguments.schedules):
            seed = arguments.seed + number
            schedule = Schedule(seed, WIDE_SICK if arguments.wide else shape_of(seed))
            try:
                schedule.run()
            except Violation as violation:
                broken[violation.rule] += 1
                print(f"seed {seed}: {violation}", flush=True)
                if not arguments.keep_going:
                    tell_trace(schedule.world)
                    return 1
            faults.update(schedule.world.faults)
            records += sum(len(log.entries) for topic in schedule.world.cluster.lives for log in topic.logs)
            if time.monotonic() - told > SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                print(
                    f"{number + 1:,} of {arguments.schedules:,} schedules, {(number + 1) / (told - begun):,.0f}/s",
                    flush=True,
                )
    if arguments.trace:
        tell_trace(schedule.world)
    seconds = time.monotonic() - begun
    print(
        f"{arguments.schedules:,} schedules, {records:,} records, {seconds:.0f} s, violations: {dict(broken) or 'none'}"
    )
    print("faults:", ", ".join(f"{count:,} {kind}" for kind, count in faults.most_common()))
    return 1 if broken else 0


def tell_trace(world: World) -> None:
    print("\n".join(list(world.trace)[-LAST_LINES:]))


if __name__ == "__main__":
    sys.exit(main())
