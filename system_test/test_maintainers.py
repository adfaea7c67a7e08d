"""Schedules of maintainers, writers, readers and garbage collection; every broken rule is noticed.

The long run asks for the broken rules, of which the unit tests look at most for a moment. Schedules by the thousand,
as continuous integration runs them beside the other tests, and one again by its
seed, run by `python -m tests.support.lifecycle.campaign --schedules 1 --seed N`.
"""

import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.support.lifecycle.broken import BROKEN, first_violation
from tests.support.lifecycle.campaign import BATCH, run_batch
from tests.support.lifecycle.directed import DIRECTED
from tests.support.sampling import in_long_run

FIRST_SEED = 40_000_000
SCHEDULES = BATCH
RARE = {*DIRECTED, "catalog_by_next_offset"}
"""Rules that show in one schedule of hundreds, or in none that is drawn: see tests/support/lifecycle/directed.py."""


@pytest.mark.timeout(3600)
def test_no_schedule_breaks_the_archive() -> None:
    batches = [range(start, start + BATCH) for start in range(FIRST_SEED, FIRST_SEED + SCHEDULES, BATCH)]
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        for violation, _, _ in pool.map(run_batch, batches):
            assert violation is None, violation


@in_long_run
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(BROKEN.keys() - RARE))
def test_a_broken_rule_is_noticed(name: str) -> None:
    assert first_violation(name, range(300)) is not None
