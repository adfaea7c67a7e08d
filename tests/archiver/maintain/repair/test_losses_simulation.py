"""Repairs of lost objects beside writers, maintainers and garbage collection; rules of theirs broken on purpose."""

import pytest

from tests.support.campaign import first_violation, run_batch
from tests.support.lifecycle import losses

NOTICED_AT = {
    "one_look": 3,
    "chunk_lost_with_its_block": 23,
    "gap_not_in_the_catalog": 147,
    "refetch_unchecked": 20,
    "tail_not_folded": 14,
    "loss_is_not_looked_at_again": 3,
    "refused_is_lost": 148,
    "crc_not_compared": 29,
    "refetch_takes_what_was_erased": 20,
    "erased_is_unknown_and_comes_back": 219,
    "lost_gap_begins_late": 147,
    "lost_gap_ends_late": 1_310,
    "data_without_its_index_is_lost": 11,
    "gc_takes_what_was_replaced": 1,
}
"""A seed at which a broken rule shows."""
NEAR = 30


@pytest.mark.slow
def test_no_schedule_takes_more_than_is_lost() -> None:
    violation, counts, _ = run_batch("losses", range(1_000, 1_050))
    assert violation is None, violation
    damages = ("block", "data", "index", "both", "seems", "refused")
    counted = [f"damage: {what}" for what in damages] + ["commit accept-loss", "commit refetch", "commit erase"]
    assert min(counts[what] for what in counted) > 4, counts


@pytest.mark.parametrize("name", NOTICED_AT)
def test_a_broken_rule_of_repairs_is_noticed(name: str) -> None:
    start = NOTICED_AT[name]
    assert first_violation("losses", name, range(start, start + NEAR)) is not None


def test_every_broken_rule_is_tried() -> None:
    assert NOTICED_AT.keys() == losses.BROKEN.keys()
