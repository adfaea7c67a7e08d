"""Schedules of every simulator by the thousand, and rules that are broken on purpose.

A violation prints its steps and its seed; `python -m tests.support.campaign KIND --schedules 1 --seed N` runs it again.
BLOCKGZ_OPERATIONS says how many archives live for years.
"""

import os
import random
import subprocess
import sys
from collections import Counter

import pytest

from tests.support.campaign import SIMULATIONS, first_violation, run_all
from tests.support.lifecycle.directed import DIRECTED
from tests.support.sampling import LONG, in_long_run, mostly_long

FIRST_SEED = 40_000_000
SEQUENCES = int(os.environ.get("BLOCKGZ_OPERATIONS", "1000"))
OPERATIONS_SEED = int(os.environ.get("BLOCKGZ_SEED", str(random.randrange(10**9) if LONG else 84_128_367)))
OFTEN = (
    *("chunk", "progress", "gap", "died", "reader", "prune", "merge", "convert", "erase", "gc", "objects deleted"),
    *("salvage", "marker repaired", "log truncated", "accept-loss", "refetch"),
)
"""Sequences in which one of these never happens prove little."""
RARE = {*DIRECTED, "catalog_by_next_offset"}
"""Rules that show in one schedule of hundreds, or in none that is drawn: see tests/support/lifecycle/directed.py."""
NOTICED_AT = {
    "gc_ignores_retired": 23,
    "prune_keeps_the_floor": 2,
    "erase_keeps_a_record": 8,
    "reader_ignores_erased_ranges": 8,
    "reader_trusts_its_old_marker": 8,
}
"""The seed of a sequence that ends well, and in which a broken rule shows."""


def counted(kind: str, seeds: range) -> Counter[str]:
    counts = Counter[str]()
    for violation, found, _ in run_all(kind, seeds):
        assert violation is None, violation
        counts += found
    return counts


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "schedules"), [("protocols", 4_500), ("lifecycle", 200), ("losses", 200)])
def test_no_schedule_breaks_the_archive(kind: str, schedules: int) -> None:
    counted(kind, range(FIRST_SEED, FIRST_SEED + schedules))


@pytest.mark.timeout(3600)
def test_readers_agree_with_a_plain_model() -> None:
    print(f"BLOCKGZ_SEED={OPERATIONS_SEED}")
    counts = counted("operations", range(OPERATIONS_SEED, OPERATIONS_SEED + SEQUENCES))
    print(dict(counts))
    if SEQUENCES >= 1000:
        assert all(counts[what] > SEQUENCES / 100 for what in OFTEN), counts


@pytest.mark.parametrize(
    "part", [*mostly_long([f"service 60 {FIRST_SEED + part * 60}" for part in range(4)]), f"wide 3 {FIRST_SEED}"]
)
def test_what_was_fetched_is_kept(part: str) -> None:
    """In a process of its own: the order in which sets are walked is part of a schedule."""
    kind, schedules, seed = part.split()
    command = [sys.executable, "-m", "tests.support.campaign", kind, "--schedules", schedules, "--seed", seed]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@in_long_run
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(SIMULATIONS["lifecycle"].bugs.keys() - RARE))
def test_a_broken_rule_of_maintenance_is_noticed(name: str) -> None:
    assert first_violation("lifecycle", name, range(300)) is not None


@pytest.mark.parametrize("name", SIMULATIONS["operations"].bugs)
def test_a_broken_rule_of_operations_is_noticed(name: str) -> None:
    seeds = range(NOTICED_AT[name], NOTICED_AT[name] + 1)
    assert first_violation("operations", None, seeds) is None
    assert first_violation("operations", name, seeds) is not None
