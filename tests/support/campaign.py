"""The simulators at length, and with planted bugs: `python -m tests.support.campaign KIND --schedules N --seed S`.

KIND is `protocols` (writers of one partition), `lifecycle` (maintainers beside them), `losses` (repairs of
lost objects), `operations` (years of an archive
against a plain model), `service` (the real service in virtual time) or `wide` (the same with 200 partitions). A
schedule is a function of its seed. The first one after which something does not hold that must ends the run with exit
code 1, its steps and its seed. --planted NAME shows after how many schedules that bug is noticed; `all` names all bugs.
"""

import argparse
import gc
import logging
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from itertools import repeat
from typing import Any, NamedTuple

from tests.support import broken_protocols, scenarios
from tests.support.lifecycle import broken as broken_lifecycle
from tests.support.lifecycle import losses
from tests.support.lifecycle import schedule as lifecycle
from tests.support.operations import broken as broken_operations
from tests.support.operations import sequences as operations
from tests.support.service_simulation import planted as planted_service
from tests.support.service_simulation.judge import Broken
from tests.support.service_simulation.schedules import WIDE_SICK, Schedule, Shape, shape_of
from tests.support.service_simulation.world import simulated
from tests.support.simulator import Violation

SCHEDULES = "schedules"
SECONDS_BETWEEN_LINES = 10.0
SELDOM = (100_000, 20, 100)
"""Python looks for cycles so seldom: what simulations cache would be looked through all the time."""


class Simulation(NamedTuple):
    """A simulator, the bugs that are planted for it, and what all its schedules need around them."""

    run: Callable[[int, bool, Any], Counter[str]]
    """One schedule by its seed; raises Violation. If not strict, only harm to readers counts, as of planted bugs."""
    bugs: Mapping[str, Callable[[], AbstractContextManager[Any]]]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    batch: int = 200
    """Schedules that one process takes at a time."""


def run_protocol(seed: int, is_strict: bool, _: Any) -> Counter[str]:
    scenarios.run_schedule(_scenario(is_strict), seed, scenarios.company_of(seed))
    return Counter()


@cache
def _scenario(is_strict: bool) -> scenarios.Scenario:
    return scenarios.short_partition() if is_strict else scenarios.harmed_partition()


def run_lifecycle(seed: int, is_strict: bool, _: Any) -> Counter[str]:
    world = lifecycle.run(seed, strict=is_strict)
    counts = Counter(world.counts)
    for partition in world.partitions:
        counts.update(partition.monitor.counts)
    return counts


def run_service(shape: Shape | None, seed: int, _: bool, __: Any) -> Counter[str]:
    schedule = Schedule(seed, shape or shape_of(seed))
    try:
        world = schedule.run()
    except Broken as broken:
        raise Violation(seed, str(broken), list(schedule.world.trace)) from broken
    return Counter(world.faults)


@contextmanager
def in_virtual_time() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    try:
        with simulated():
            yield
    finally:
        logging.disable(logging.NOTSET)


SERVICE_BUGS = {name: partial(planted_service.planted, bug) for name, bug in planted_service.PLANTED.items()}
SIMULATIONS = {
    "protocols": Simulation(run_protocol, broken_protocols.BROKEN),
    "lifecycle": Simulation(run_lifecycle, broken_lifecycle.BROKEN),
    "losses": Simulation(losses.run, losses.BROKEN),
    "operations": Simulation(operations.run, broken_operations.BROKEN, operations.tools_at_hand, batch=100),
    "service": Simulation(partial(run_service, None), SERVICE_BUGS, in_virtual_time, batch=20),
    "wide": Simulation(partial(run_service, WIDE_SICK), {}, in_virtual_time, batch=1),
}


def first_violation(kind: str, bug: str | None, seeds: Iterable[int]) -> Violation | None:
    """Return the violation of the first of these schedules that ends in one, with a planted bug if one is named."""
    simulation = SIMULATIONS[kind]
    with simulation.around() as tools, simulation.bugs[bug]() if bug else nullcontext():
        for seed in seeds:
            try:
                simulation.run(seed, bug is None, tools)
            except Violation as violation:
                return violation
    return None


def run_batch(kind: str, seeds: range, until: float = math.inf) -> tuple[str | None, Counter[str], float]:
    """Return the first violation in full, what happened how often before, and the seconds of a processor it took."""
    begun, counts, simulation = time.process_time(), Counter[str](), SIMULATIONS[kind]
    due = seeds if time.monotonic() < until else ()
    gc.set_threshold(*SELDOM)
    with simulation.around() as tools:
        for seed in due:
            try:
                counts += simulation.run(seed, True, tools)
            except Violation as violation:
                return str(violation), counts, time.process_time() - begun
            counts[SCHEDULES] += 1
    return None, counts, time.process_time() - begun


def run_all(
    kind: str, seeds: range, until: float = math.inf, processes: int | None = None
) -> Iterator[tuple[str | None, Counter[str], float]]:
    """Yield the outcome of each batch of schedules, on all processors."""
    size = SIMULATIONS[kind].batch
    batches = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    with ProcessPoolExecutor(processes or os.cpu_count() or 1) as pool:
        try:
            yield from pool.map(run_batch, repeat(kind), batches, repeat(until))
        finally:
            pool.shutdown(cancel_futures=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.campaign", description=__doc__)
    parser.add_argument("kind", choices=SIMULATIONS)
    parser.add_argument("--schedules", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule; the others follow")
    parser.add_argument("--seconds", type=int, help="begin no more schedules after so long, and say how many ran")
    parser.add_argument("--processes", type=int, help="by default one for each processor")
    parser.add_argument("--planted", help="a bug of this name, or `all`")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # sets are walked in the order of hashes
        command = [sys.executable, "-m", "tests.support.campaign", *sys.argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    seeds = range(given.seed, given.seed + given.schedules)
    if given.planted:
        return notice(given.kind, SIMULATIONS[given.kind].bugs if given.planted == "all" else [given.planted], seeds)
    begun = told = time.monotonic()
    until = math.inf if given.seconds is None else begun + given.seconds
    counts, seconds = Counter[str](), 0.0
    for violation, found, spent in run_all(given.kind, seeds, until, given.processes):
        counts, seconds, now = counts + found, seconds + spent, time.monotonic()
        if violation is not None:
            print(violation)
            return 1
        if now - told >= SECONDS_BETWEEN_LINES:
            told, done = now, counts[SCHEDULES]
            print(f"{done:,} of {given.schedules:,} schedules, {done / (now - begun):,.0f}/s", flush=True)
    took = f"{time.monotonic() - begun:.0f} s, {seconds:.0f} s of a processor"
    print(f"{counts[SCHEDULES]:,} of {given.schedules:,} schedules from seed {given.seed}, no violation, {took}")
    print(", ".join(f"{what} {number:,}" for what, number in sorted(counts.items()) if what != SCHEDULES))
    return 0


def notice(kind: str, bugs: Iterable[str], seeds: range) -> int:
    """Print at which schedule each planted bug shows; return 1 if one does not."""
    missed = 0
    for bug in bugs:
        found = first_violation(kind, bug, seeds)
        missed += found is None
        told = f"noticed at seed {found.seed}: {found.why[:110]}" if found else f"not noticed in {len(seeds)}"
        print(f"{bug:34} {told}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
