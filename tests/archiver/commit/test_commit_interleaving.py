"""Writers that interleave, sleep, die and come back, with requests lost, late and doubled; and broken protocols.

Thousands of schedules run in system_test/test_simulations.py, millions by `python -m tests.support.campaign protocols`.
"""

import random

import pytest

from archiver.commit.operations import PutIfAbsent
from blockgz.store import writer as writer_store
from tests.support.archives import records
from tests.support.broken_protocols import BROKEN, breaking, untouched
from tests.support.campaign import first_violation
from tests.support.chain import check_history, read_chain
from tests.support.chunks import archive_all
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.scenarios import (
    COLLECTED,
    CROWD,
    IDENTITY,
    PAIR,
    Company,
    run_schedule,
    short_partition,
)
from tests.support.simulator import Actor, Fate, Run, Scenario, collector, simulate

FIRST_SEED = 20_260_700
SCHEDULES_TO_BREAK = 5_000


@pytest.mark.slow
@pytest.mark.parametrize("company", [PAIR, CROWD, COLLECTED], ids=["pair", "crowd", "collected"])
def test_no_schedule_loses_or_doubles_a_record_of_chunks_that_go_up_in_parts(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_store, "PART_BYTES", 0)
    scenario = short_partition()
    for seed in range(FIRST_SEED, FIRST_SEED + 100):
        run_schedule(scenario, seed, company)


def test_the_collector_finds_orphans_to_delete() -> None:
    scenario = short_partition()
    store = scenario.store.copy()

    def writer(name: str) -> Actor:
        return Actor(name, scenario.writer(name, random.Random(name)), store, scenario.log, random.Random(name))

    dies = writer("dies")
    while not isinstance(dies.operation, PutIfAbsent):
        dies.step()
    orphan = dies.operation.key
    dies.step(Fate.CRASH_AFTER)
    writer("lives").run_to_end()
    assert orphan in store.objects
    Actor("collector", collector(), store, scenario.log, random.Random(1)).run_to_end()
    assert orphan not in store.objects
    scenario.check_complete(store)


@pytest.mark.slow
def test_nor_a_schedule_in_which_the_tail_folds() -> None:
    full = MemoryStore()
    long_log = MemoryLog(records(range(64), value_bytes=0))
    filler = Actor("filler", archive_all(IDENTITY, long_log, "filler", lambda: 1), full, long_log, random.Random(1))
    filler.run_to_end()
    log = MemoryLog(records(range(70), value_bytes=0))

    def check_beginning(store: MemoryStore) -> None:
        check_history(store.versions, IDENTITY.keys.home)
        chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
        assert chain is not None
        assert [line.offset for line in chain.lines] == list(range(chain.next_offset))

    def check_all(store: MemoryStore) -> None:
        check_beginning(store)
        chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
        assert chain is not None and chain.next_offset == 70 and chain.marker["catalogs"]

    def writer(name: str, rng: random.Random) -> Run:
        return archive_all(IDENTITY, log, name, lambda: rng.randint(1, 3), takeovers=3)

    for seed in range(FIRST_SEED, FIRST_SEED + 60):
        simulate(Scenario(full, log, writer, check_beginning, check_all), seed)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_protocol_is_found_out_by_the_harm_it_does(name: str) -> None:
    assert first_violation("protocols", name, range(FIRST_SEED, FIRST_SEED + SCHEDULES_TO_BREAK))


@pytest.mark.slow
def test_the_machinery_that_breaks_protocols_breaks_none_by_itself() -> None:
    with breaking(untouched):
        assert first_violation("protocols", None, range(FIRST_SEED, FIRST_SEED + 100)) is None


def test_a_seed_gives_the_same_schedule_again() -> None:
    seeds = range(FIRST_SEED, FIRST_SEED + SCHEDULES_TO_BREAK)
    first, again = (str(first_violation("protocols", "A", seeds)) for _ in range(2))
    assert first == again
