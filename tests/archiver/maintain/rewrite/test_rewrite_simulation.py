"""Maintainers beside writers, readers and garbage collection; rules of theirs that are broken on purpose.

More of both run in system_test/test_simulations.py.
"""

import pytest

from tests.support.campaign import first_violation, run_batch
from tests.support.lifecycle.broken import BROKEN
from tests.support.lifecycle.directed import DIRECTED, play, topic_falls_silent
from tests.support.lifecycle.monitor import Harm

FIRST_SEED = 20_262_000
NOTICED_AT = {
    "no_intent": 6,
    "grace_from_object_age": 1,
    "token_reused": 0,
    "token_unchecked": 195,
    "token_of_an_intent_not_spared": 83,
    "commit_with_old_tree": 3,
    "prune_by_start_offset": 0,
    "at_stamped_by_the_commit": 7,
    "more_references_than_before": 7,
    "range_from_the_index": 19,
    "writer_swaps_its_old_catalogs": 1,
    "rebase_ignores_epoch": 0,
    "fold_not_computed_again": 2,
    "rewrite_touches_tail": 12,
    "gc_reads_before_listing": 30,
    "retired_not_spared": 0,
    "all_that_a_retired_catalog_lists": 1,
    "catalog_by_next_offset": 100,
    "repair_without_floor": 0,
}
"""A seed at which a broken rule shows, near which it is looked for; what shows rarely is left to the long tests."""
NEAR = 30


@pytest.mark.slow
def test_no_schedule_breaks_the_archive() -> None:
    violation, counts, _ = run_batch("lifecycle", range(FIRST_SEED, FIRST_SEED + 40))
    assert violation is None, violation
    assert min(counts["commit merge"], counts["commit erase"], counts["commit prune"], counts["objects deleted"]) > 10
    assert min(counts["writer fenced"], counts["reader done"], counts["claim"]) > 20


@pytest.mark.parametrize("name", NOTICED_AT)
def test_a_broken_rule_is_noticed(name: str) -> None:
    start = NOTICED_AT[name]
    assert first_violation("lifecycle", name, range(start, start + NEAR)) is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", DIRECTED)
def test_a_rule_that_shows_rarely_is_noticed_by_a_schedule_of_its_own(name: str) -> None:
    play(DIRECTED[name])
    with BROKEN[name](), pytest.raises((Harm, ValueError)):  # a ValueError, where the program itself notices
        play(DIRECTED[name], strict=False)


def test_a_silent_topic_is_pruned_to_its_end_by_whoever_comes_after_the_dead() -> None:
    play(topic_falls_silent)


def test_every_broken_rule_is_known() -> None:
    assert NOTICED_AT.keys() <= BROKEN.keys()
