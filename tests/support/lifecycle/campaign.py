"""Random schedules by the million: `python -m tests.support.lifecycle.campaign --schedules N --seed S`.

Uses all processors. The first schedule after which the archive is not what it must be ends it with exit code 1, its
steps and its seed.
"""

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from tests.support.lifecycle.schedule import Violation, run

BATCH = 200
SECONDS_BETWEEN_LINES = 30.0


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.lifecycle.campaign", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    end = arguments.seed + arguments.schedules
    batches = [range(start, min(start + BATCH, end)) for start in range(arguments.seed, end, BATCH)]
    begun = told = time.monotonic()
    done, counts, seconds = 0, Counter[str](), 0.0
    with ProcessPoolExecutor(arguments.processes) as pool:
        for batch, (violation, found, spent) in zip(batches, pool.map(run_batch, batches), strict=True):
            if violation is not None:
                print(violation)
                pool.shutdown(cancel_futures=True)
                return 1
            done, counts, seconds = done + len(batch), counts + found, seconds + spent
            if time.monotonic() - told >= SECONDS_BETWEEN_LINES:
                told = time.monotonic()
                print(f"{done:,} of {arguments.schedules:,} schedules, {done / (told - begun):,.0f}/s", flush=True)
    took = f"{time.monotonic() - begun:.0f} s, {seconds:.0f} s of a processor"
    print(f"{done:,} schedules from seed {arguments.seed}, no violation, {took}")
    print(", ".join(f"{what} {number:,}" for what, number in sorted(counts.items())))
    return 0


def run_batch(seeds: range) -> tuple[str | None, Counter[str], float]:
    """The first violation in full, what happened how often before, and the seconds of a processor that it took."""
    begun, counts = time.process_time(), Counter[str]()
    for seed in seeds:
        try:
            world = run(seed)
        except Violation as violation:
            return str(violation), counts, time.process_time() - begun
        counts.update(world.counts)
        for partition in world.partitions:
            counts.update(partition.monitor.counts)
    return None, counts, time.process_time() - begun


if __name__ == "__main__":
    sys.exit(main())
