"""Random schedules by the million: `python -m tests.support.lifecycle.campaign --schedules N --seed S`.

Uses all processors. The first schedule after which the archive is not what it must be ends it with exit code 1, its
steps and its seed.
"""

import argparse
import gc
import math
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tests.support.lifecycle.schedule import Violation, run

BATCH = 200
SECONDS_BETWEEN_LINES = 30.0
SCHEDULES = "schedules"
SELDOM = (100_000, 20, 100)
"""Python looks for cycles so seldom: what simulations cache would be looked through all the time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.lifecycle.campaign", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    parser.add_argument("--seconds", type=int, help="begin no more schedules after so long, and say how many ran")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    end = arguments.seed + arguments.schedules
    batches = [range(start, min(start + BATCH, end)) for start in range(arguments.seed, end, BATCH)]
    begun = told = time.monotonic()
    until = math.inf if arguments.seconds is None else begun + arguments.seconds
    counts, seconds = Counter[str](), 0.0
    with ProcessPoolExecutor(arguments.processes) as pool:
        for violation, found, spent in pool.map(_run_in_time, batches, repeat(until)):
            if violation is not None:
                print(violation)
                pool.shutdown(cancel_futures=True)
                return 1
            counts, seconds = counts + found, seconds + spent
            if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                done = counts[SCHEDULES]
                print(f"{done:,} of {arguments.schedules:,} schedules, {done / (told - begun):,.0f}/s", flush=True)
    took = f"{time.monotonic() - begun:.0f} s, {seconds:.0f} s of a processor"
    of = "" if counts[SCHEDULES] == arguments.schedules else f" of {arguments.schedules:,}, for which there was time,"
    print(f"{counts[SCHEDULES]:,}{of} schedules from seed {arguments.seed}, no violation, {took}")
    print(", ".join(f"{what} {number:,}" for what, number in sorted(counts.items()) if what != SCHEDULES))
    return 0


def _run_in_time(seeds: range, until: float) -> tuple[str | None, Counter[str], float]:
    """See run_batch; nothing where it is too late to begin."""
    if time.monotonic() >= until:
        return None, Counter(), 0.0
    gc.set_threshold(*SELDOM)
    return run_batch(seeds)


def run_batch(seeds: range) -> tuple[str | None, Counter[str], float]:
    """The first violation in full, what happened how often before, and the seconds of a processor that it took."""
    begun, counts = time.process_time(), Counter[str]()
    for seed in seeds:
        try:
            world = run(seed)
        except Violation as violation:
            return str(violation), counts, time.process_time() - begun
        counts[SCHEDULES] += 1
        counts.update(world.counts)
        for partition in world.partitions:
            counts.update(partition.monitor.counts)
    return None, counts, time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
