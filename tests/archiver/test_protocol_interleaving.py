"""Writers that interleave, sleep, die and come back, with requests lost, late and doubled; and broken protocols."""

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest

from archiver.protocol import operations as op
from archiver.stores import StoredObject
from index_format.errors import BlockgzError
from tests.support.archives import records
from tests.support.chain import check_history, read_chain
from tests.support.chunks import archive_all, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor, Overwrite, Run, Scenario, Violation, simulate

IDENTITY = identity_of()
LOG = MemoryLog(records([0, 1, 2, 4, 5, 9, 10, 11, 12], value_bytes=0), high=15)
FIRST_SEED = 20_260_700
SCHEDULES = 2_500
SCHEDULES_TO_BREAK = 1_000
Handler = Callable[[Any], Generator[Any, Any, Any]]
Mutation = Callable[[Run], Run]


def check(store: MemoryStore) -> None:
    """The chain is a whole beginning of the log."""
    check_history(store.versions, IDENTITY.keys.home)
    chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
    if chain is None:
        return
    assert chain.start_offset == 0 and not chain.gaps
    expected = [(record.offset, record.value) for record in LOG.records if record.offset < chain.next_offset]
    assert [tuple(line) for line in chain.lines] == expected, "records were lost, doubled or changed"


def check_complete(store: MemoryStore) -> None:
    check(store)
    chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
    assert chain is not None and len(chain.lines) == len(LOG.records), "the archive has no end"


def scenario(mutation: Mutation = lambda protocol: protocol, store: MemoryStore | None = None) -> Scenario:
    def writer(name: str, rng: random.Random) -> Run:
        return mutation(archive_all(IDENTITY, LOG, name, lambda: rng.randint(1, 4), takeovers=4))

    return Scenario(store or MemoryStore(), LOG, writer, check, check_complete)


def test_no_schedule_loses_or_doubles_a_record() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES):
        simulate(scenario(), seed)


def test_nor_does_a_crowd_of_writers() -> None:
    for seed in range(FIRST_SEED, FIRST_SEED + 150):
        simulate(scenario(), seed, writers=6, crashes=4)


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


def intercepted(protocol: Run, handle: Handler) -> Run:
    """The protocol with each of its operations replaced by what `handle` does for it."""
    try:
        operation = next(protocol)
        while True:
            try:
                answer = yield from handle(operation)
            except BlockgzError as error:
                operation = protocol.throw(error)
            else:
                operation = protocol.send(answer)
    except StopIteration as stop:
        return stop.value


def swap_without_condition(operation: Any) -> Generator[Any, Any, Any]:
    """The marker by a plain PUT."""
    if isinstance(operation, op.CompareAndSwap):
        return (yield Overwrite(operation.key, operation.body))
    return (yield operation)


def swap_with_a_fresh_etag(operation: Any) -> Generator[Any, Any, Any]:
    """A refused swap is tried again with the etag that stands there now."""
    answer = yield operation
    while isinstance(operation, op.CompareAndSwap) and answer is None:
        found: StoredObject | None = yield op.Get(operation.key)
        answer = yield op.CompareAndSwap(operation.key, operation.body, found.etag if found else None)
    return answer


def what_exists_is_done(operation: Any) -> Generator[Any, Any, Any]:
    """An object that stands there already is taken for one's own."""
    if isinstance(operation, op.Head):
        return None
    answer = yield operation
    return True if isinstance(operation, op.PutIfAbsent) else answer


def data_without_condition(operation: Any) -> Generator[Any, Any, Any]:
    """Data, index and catalogs by a plain PUT over whatever stands there."""
    if isinstance(operation, op.Head):
        return None
    if isinstance(operation, op.PutIfAbsent):
        yield Overwrite(operation.key, operation.body)
        return True
    return (yield operation)


def untouched(operation: Any) -> Generator[Any, Any, Any]:
    """Not broken: the protocol as it is, through the same machinery."""
    return (yield operation)


@pytest.mark.parametrize(
    "handler", [swap_without_condition, swap_with_a_fresh_etag, what_exists_is_done, data_without_condition]
)
def test_a_broken_protocol_is_found_out(handler: Handler) -> None:
    broken = scenario(lambda protocol: intercepted(protocol, handler))
    with pytest.raises(Violation, match=r"seed \d+: "):
        for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES_TO_BREAK):
            simulate(broken, seed)


def test_the_machinery_that_breaks_protocols_breaks_none_by_itself() -> None:
    sound = scenario(lambda protocol: intercepted(protocol, untouched))
    for seed in range(FIRST_SEED, FIRST_SEED + 100):
        simulate(sound, seed)


def test_a_seed_gives_the_same_schedule_again() -> None:
    broken = scenario(lambda protocol: intercepted(protocol, swap_without_condition))

    def first_violation() -> str:
        with pytest.raises(Violation) as caught:
            for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES_TO_BREAK):
                simulate(broken, seed)
        return str(caught.value)

    assert first_violation() == first_violation()
