"""A handful of the damaged archives that system_test/test_corruption.py tries by the thousand."""

import random

import pytest

from tests.support.corruption import cases, run_cases, sample_archive


@pytest.mark.slow
def test_damage_is_detected_and_costs_what_it_must() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng, sample = random.Random(seed), sample_archive("topic")
    chosen = rng.sample([*cases(sample, rng, 200)], 30)
    assert run_cases(sample, chosen, seed).total() == 30
