"""Many damaged archives: each is detected, the lost offsets are named exactly, no wrong record is emitted."""

import random

import pytest

from tests.support.corruption import cases, run_cases, sample_archive
from tests.support.sampling import LONG, mostly_long

CASES = 1_250 if LONG else 300


@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", mostly_long(["topic", "seed"]))
def test_every_damage_is_detected_and_costs_what_it_must(layout: str) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    sample = sample_archive(layout)
    kinds = run_cases(sample, cases(sample, random.Random(seed), CASES), seed)
    print(kinds)
    assert kinds.total() >= CASES
    for thing in ("data", "index", "catalog", "last_chunk_index.json"):
        for damage in ("deleted", "cut", "double", "zero", "grow", "swapped"):
            assert kinds[f"{thing} {damage}"], f"no {thing} {damage}"
    assert all(kinds[f"data {where} flipped"] for where in ("header", "body", "trailer", "boundary"))
    assert all(kinds[f"last_chunk_index.json {where} flipped"] for where in ("digit", "letter", "structure", "tail"))
    assert kinds["older marker"] >= 10
