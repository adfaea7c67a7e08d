"""Archives that live for years, by the thousand, against a plain model; broken rules are noticed.

BLOCKGZ_OPERATIONS makes it more, as continuous integration does beside the other tests; a failure names
its seed, and BLOCKGZ_OPERATIONS=1 BLOCKGZ_SEED=N repeats it alone.
"""

import os
import random
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.support.operations.broken import BROKEN, first_disagreement
from tests.support.operations.sequences import run_batch
from tests.support.sampling import LONG

FIRST_SEED = 84_128_367
"""Of each run but the long one, which draws its own."""
SEQUENCES = int(os.environ.get("BLOCKGZ_OPERATIONS", "1000"))
SEED = int(os.environ.get("BLOCKGZ_SEED", str(random.randrange(10**9) if LONG else FIRST_SEED)))
BATCH = 100
OFTEN = (
    *("chunk", "progress", "gap", "died", "reader", "prune", "merge", "convert", "erase", "gc", "objects deleted"),
    *("salvage", "marker repaired", "log truncated"),
)
"""Sequences in which one of these never happens prove little."""
NOTICED_AT = {
    "gc_ignores_retired": 313,
    "prune_keeps_the_floor": 1,
    "erase_keeps_a_record": 1,
    "reader_ignores_erased_ranges": 1,
    "reader_trusts_its_old_marker": 5,
}
"""The seed of a sequence that ends well, and in which a broken rule shows."""


@pytest.mark.timeout(3600)
def test_readers_agree_with_a_plain_model() -> None:
    print(f"BLOCKGZ_SEED={SEED}")
    end = SEED + SEQUENCES
    batches = [range(start, min(start + BATCH, end)) for start in range(SEED, end, BATCH)]
    counts = Counter[str]()
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        for disagreement, found, _ in pool.map(run_batch, batches):
            assert disagreement is None, disagreement
            counts += found
    print(dict(counts))
    if SEQUENCES >= 1000:
        assert all(counts[what] > SEQUENCES / 100 for what in OFTEN), counts


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(name: str) -> None:
    seeds = range(NOTICED_AT[name], NOTICED_AT[name] + 1)
    assert run_batch(seeds)[0] is None
    assert first_disagreement(name, seeds) is not None
