"""Thousands of schedules of writers that die, stall and come back: the committed chain stays exact in all of them.

A violation names its seed and prints its schedule; `python -m tests.support.simulate --seed N` runs it again.
"""

import pytest

from tests.support.scenarios import COLLECTED, CROWD, PAIR, Company, run_schedule, short_partition

FIRST_SEED = 30_000_000


@pytest.mark.parametrize(
    ("company", "schedules"), [(PAIR, 4_000), (CROWD, 150), (COLLECTED, 300)], ids=["pair", "crowd", "collected"]
)
def test_no_schedule_loses_or_doubles_a_record(company: Company, schedules: int) -> None:
    scenario = short_partition()
    for seed in range(FIRST_SEED, FIRST_SEED + schedules):
        run_schedule(scenario, seed, company)
