"""Maintainers beside writers, readers and garbage collection; rules of theirs that are broken on purpose.

More of both run in system_test/test_maintainers.py.
"""

import random
from functools import cache

import pytest

from tests.support.lifecycle.broken import BROKEN, first_violation
from tests.support.lifecycle.campaign import run_batch
from tests.support.lifecycle.directed import DIRECTED, play
from tests.support.lifecycle.exhaustive import Small, deviations
from tests.support.lifecycle.monitor import Harm
from tests.support.lifecycle.schedule import (
    COLLECTOR,
    MERGER,
    PRUNER,
    REWRAPPER,
    Kind,
    Schedule,
    fan_out,
    finish,
    writer_to,
)
from tests.support.lifecycle.world import World

FIRST_SEED = 20_262_000
NOTICED_AT = {
    "no_intent": 6,
    "grace_from_object_age": 1,
    "token_reused": 0,
    "token_unchecked": 10,
    "token_of_an_intent_not_spared": 3,
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
SCENARIOS = {
    "append, merge, gc": (writer_to(9), MERGER, COLLECTOR),
    "merge, prune, gc": (MERGER, PRUNER, COLLECTOR),
    "rewrap, gc": (REWRAPPER, COLLECTOR),
}


@pytest.mark.slow
def test_no_schedule_breaks_the_archive() -> None:
    violation, counts, _ = run_batch(range(FIRST_SEED, FIRST_SEED + 20))
    assert violation is None, violation
    for what in ("commit merge", "commit erase", "commit prune", "objects deleted", "reader done"):
        assert counts[what] > 10, what


@pytest.mark.parametrize("name", NOTICED_AT)
def test_a_broken_rule_is_noticed(name: str) -> None:
    start = NOTICED_AT[name]
    assert first_violation(name, range(start, start + NEAR)) is not None


@pytest.mark.parametrize("name", DIRECTED)
def test_a_rule_that_shows_rarely_is_noticed_by_a_schedule_of_its_own(name: str) -> None:
    play(DIRECTED[name])
    with BROKEN[name](), pytest.raises((Harm, ValueError)):  # a ValueError, where the program itself notices
        play(DIRECTED[name], strict=False)


def test_every_broken_rule_is_known() -> None:
    assert NOTICED_AT.keys() <= BROKEN.keys()


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_one_deviation_anywhere_does_no_harm(name: str) -> None:
    """A crash, a lost or late request, a jump of the clock, another process at any one step."""
    kinds: tuple[Kind, ...] = SCENARIOS[name]
    small = Small(archived_to_seven, kinds)
    assert sum(1 for _ in deviations(small, 1, end)) > 50


def archived_to_seven() -> World:
    return archived().copy(random.Random(1))  # other tokens than were drawn before


@cache
def archived() -> World:
    """Two catalogs of level 1 and a full tail."""
    world = World(random.Random(0), fan_out=2, log_end=14)
    schedule = Schedule(world)
    with fan_out(2):
        schedule.start(writer_to(7), world.partitions[0])
        schedule.run_to_end()
    return world


def end(schedule: Schedule) -> None:
    """Somebody archives a little more, and graces pass."""
    partition = schedule.world.partitions[0]
    schedule.start(writer_to(partition.monitor.next_offset + 1, name="fair writer", fair=True), partition)
    schedule.run_to_end()
    finish(schedule)
