"""Writers, readers and clocks that run apart, watched by a monitor that shares no code with them.

More schedules run in system_test/test_simulation.py, a million by `python -m tests.support.lifecycle.campaign`.
"""

import pytest

from tests.support.lifecycle.campaign import run_batch

FIRST_SEED = 20_261_100


@pytest.mark.slow
def test_no_schedule_breaks_the_archive() -> None:
    violation, counts, _ = run_batch(range(FIRST_SEED, FIRST_SEED + 40))
    assert violation is None, violation
    assert min(counts["writer fenced"], counts["reader done"], counts["claim"]) > 20
