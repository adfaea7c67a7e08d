"""Repairs of lost objects beside writers, maintainers and garbage collection; rules of theirs broken on purpose."""

import pytest

from tests.support.campaign import first_violation, run_batch
from tests.support.lifecycle import losses

NOTICED_AT = {
    "one_look": 2,
    "chunk_lost_with_its_block": 41,
    "gap_not_in_the_catalog": 41,
    "refetch_unchecked": 10,
    "tail_not_folded": 1,
    "loss_is_not_looked_at_again": 19,
}
"""A seed at which a broken rule shows."""
NEAR = 30


@pytest.mark.slow
def test_no_schedule_takes_more_than_is_lost() -> None:
    violation, counts, _ = run_batch("losses", range(1_000, 1_040))
    assert violation is None, violation
    assert min(counts["commit accept-loss"], counts["commit refetch"], counts["damage: seems"]) > 4


@pytest.mark.parametrize("name", NOTICED_AT)
def test_a_broken_rule_of_repairs_is_noticed(name: str) -> None:
    start = NOTICED_AT[name]
    assert first_violation("losses", name, range(start, start + NEAR)) is not None


def test_every_broken_rule_is_tried() -> None:
    assert NOTICED_AT.keys() == losses.BROKEN.keys()
