"""Maintainers beside writers, readers and garbage collection, in schedules drawn from seeds; rules that are broken.

More of both run in system_test/test_maintainers.py.
"""

from tests.support.lifecycle.campaign import run_batch

FIRST_SEED = 20_262_000
NOTICED_AT = {}
"""A seed at which each broken rule shows."""
NEAR = 25


def test_no_schedule_breaks_the_archive() -> None:
    violation, counts, _ = run_batch(range(FIRST_SEED, FIRST_SEED + 40))
    assert violation is None, violation
    for what in ("commit merge", "commit erase", "commit prune", "objects deleted", "reader done"):
        assert counts[what] > 20, what
