"""Adding to the inventory through every crash point, and by many writers at once."""

import random
from collections.abc import Iterator

import pytest

from archiver.commit.claims import MAX_REFUSALS, change_inventory
from archiver.commit.operations import CompareAndSwap, Get, Protocol
from blockgz.errors import StoreUnavailable, StoreUnfit
from index_format import objects
from index_format.errors import MalformedObject
from index_format.identity import Incarnation, Inventory, parse_inventory, united
from index_format.keys import INVENTORY_OBJECT, TopicFolder, TopicLayoutKeys
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor, Fate, fates_of

KEY = INVENTORY_OBJECT


def claim(partition: int, topic_id: str | None = None) -> Incarnation:
    return Incarnation("orders", 1, topic_id, 10, None, (partition,))


def writer(partition: int) -> Protocol[bool]:
    """As ClaimList does: again until it is known to be done."""
    while True:
        try:
            return (
                yield from change_inventory(KEY, lambda before: united(before, [claim(partition)]), is_declared=True)
            )
        except StoreUnavailable:
            continue


def begun(store: MemoryStore, partition: int) -> Actor:
    """A writer of a partition whose marker is stored."""
    store.put_if_absent(TopicLayoutKeys(TopicFolder("orders"), partition).marker, b"", "-")
    return Actor(f"w{partition}", writer(partition), store, MemoryLog([]), random.Random(partition))


def with_inventory(*claims: Incarnation) -> MemoryStore:
    store = MemoryStore()
    store.put_if_absent(KEY, objects.encode(united(Inventory(), claims)), "-")
    return store


def listed(store: MemoryStore) -> set[int]:
    inventory = parse_inventory(store.bodies()[KEY], KEY)
    return {number for each in inventory.incarnations for number in each.partitions}


def crash_points() -> Iterator[tuple[int, Fate]]:
    for is_there in (True, False):
        actor, step = begun(with_inventory() if is_there else MemoryStore(), 1), 0
        while actor.operation is not None:
            yield from ((step, fate) for fate in fates_of(actor.operation))
            actor.step()
            step += 1


@pytest.mark.parametrize(("step", "fate"), sorted(set(crash_points()), key=str))
@pytest.mark.parametrize("is_there", [True, False])
def test_what_was_listed_stays_and_who_ends_is_listed(step: int, fate: Fate, is_there: bool) -> None:
    store = with_inventory(claim(0)) if is_there else MemoryStore()
    store.put_if_absent(TopicLayoutKeys(TopicFolder("orders"), 0).marker, b"", "-")
    harmed = begun(store, 1)
    for _ in range(step):
        if harmed.is_alive:
            harmed.step()
    if harmed.operation is None or fate not in fates_of(harmed.operation):
        pytest.skip("there is no such step")
    harmed.step(fate)
    other = begun(store, 2)
    other.run_to_end()
    harmed.run_to_end()
    for request in list(harmed.late):
        harmed.deliver(request)
    assert listed(store) >= {0, 2}
    if harmed.result:
        assert 1 in listed(store)
    begun(store, 1).run_to_end()
    assert listed(store) == {0, 1, 2}


def test_writers_that_interleave_lose_no_claim() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        store = with_inventory() if seed % 2 else MemoryStore()
        actors = [begun(store, number) for number in range(5)]
        while alive := [actor for actor in actors if actor.is_alive]:
            actor = rng.choice(alive)
            fates = [fate for fate in fates_of(actor.operation or Get("")) if "died" not in fate.value]
            actor.step(rng.choice(fates) if fates and rng.random() < 0.2 else Fate.NORMAL)
            if actor.late and rng.random() < 0.5:
                actor.deliver(actor.late[0])
        for actor in actors:
            for request in list(actor.late):
                actor.deliver(request)
        assert listed(store) == {0, 1, 2, 3, 4}, f"seed {seed}"


def test_nothing_new_writes_nothing() -> None:
    store = with_inventory(claim(0), claim(1))
    begun(store, 1).run_to_end()
    assert len(store.versions[KEY]) == 1


def test_an_older_copy_is_never_united() -> None:
    """A partition that an operator has it forget while a writer is between reading and swapping stays forgotten."""
    store = with_inventory(claim(0), claim(7))
    actor = begun(store, 1)
    actor.step()
    assert isinstance(actor.operation, CompareAndSwap)
    found = store.get(KEY)
    assert found is not None
    store.compare_and_swap(KEY, objects.encode(united(Inventory(), [claim(0)])), found.etag)
    actor.run_to_end()
    assert listed(store) == {0, 1}


def test_where_none_is_declared_nobody_begins_one() -> None:
    store = MemoryStore()
    protocol = change_inventory(KEY, lambda before: united(before, [claim(0)]), is_declared=False)
    actor = Actor("w", protocol, store, MemoryLog([]), random.Random(0))
    actor.run_to_end()
    assert actor.result is False and not store.objects


def test_one_that_is_declared_and_missing_is_made_from_a_listing() -> None:
    store = MemoryStore()
    store.now = 5
    begun(store, 3)
    begun(store, 1).run_to_end()
    assert listed(store) == {1, 3} and parse_inventory(store.bodies()[KEY], KEY).rebuilt_at == 5


def test_a_damaged_one_is_left_alone() -> None:
    store = MemoryStore()
    store.put_if_absent(KEY, b"{}", "-")
    actor = begun(store, 1)
    actor.run_to_end()
    assert isinstance(actor.failure, MalformedObject) and store.bodies()[KEY] == b"{}"


def test_a_store_that_refuses_forever_is_not_asked_forever() -> None:
    protocol = writer(1)
    operation = next(protocol)
    swaps = 0
    with pytest.raises(StoreUnfit):
        while True:
            swaps += isinstance(operation, CompareAndSwap)
            operation = protocol.send(with_inventory().get(KEY) if isinstance(operation, Get) else None)
    assert swaps == MAX_REFUSALS
