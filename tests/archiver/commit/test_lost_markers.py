"""No new chain is started in a partition that lost its marker."""

import pytest

from archiver.commit.commit import commit_chunk
from archiver.commit.driver import Driver
from archiver.commit.recovery import take_over
from blockgz.store.writer import StoredObject
from index_format import objects
from index_format.errors import MalformedObject
from index_format.identity import Incarnation, Inventory
from index_format.keys import inventory_key
from tests.support.archives import records
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore

IDENTITY = identity_of()
KEYS = IDENTITY.keys
ROWS = records(range(30))


def driver_of(store: MemoryStore) -> Driver:
    return Driver(store, MemoryLog(ROWS), lambda *_: None, lambda: True)


def declare(store: MemoryStore, *partitions: int) -> None:
    claimed = Incarnation(*KEYS.folder, IDENTITY.topic_id, seen_from=1, seen_until=None, partitions=partitions)
    body = objects.encode(Inventory(incarnations=(claimed,)))
    store.put_if_absent(inventory_key(KEYS.layout), body, "a")


@pytest.fixture
def store() -> MemoryStore:
    """A chunk, and no marker."""
    store = MemoryStore()
    driver = driver_of(store)
    held = driver.run(take_over(IDENTITY, "writer", POLICY)).held
    driver.run(commit_chunk(IDENTITY, held, finished_chunk("json", tuple(ROWS[:10]), 0, 10)))
    store.delete(KEYS.marker)
    return store


def test_an_archived_partition_gets_no_new_chain(store: MemoryStore) -> None:
    declare(store, KEYS.partition)
    before = store.bodies()
    with pytest.raises(MalformedObject, match="is missing") as caught:
        driver_of(store).run(take_over(IDENTITY, "another", POLICY))
    assert caught.value.remedy == f"rebuild the marker: archiver repair marker {KEYS.folder}:{KEYS.partition}"
    assert store.bodies() == before


def test_nor_is_one_whose_folder_is_lost() -> None:
    store = MemoryStore()
    declare(store, KEYS.partition)
    with pytest.raises(MalformedObject, match="is empty") as caught:
        driver_of(store).run(take_over(IDENTITY, "writer", POLICY))
    assert caught.value.remedy.endswith(f"archiver forget {KEYS.folder}:{KEYS.partition}")


def test_a_partition_that_the_inventory_does_not_name_is_begun() -> None:
    store = MemoryStore()
    declare(store, KEYS.partition + 1)
    assert driver_of(store).run(take_over(IDENTITY, "writer", POLICY)).position == 0


def test_a_claim_that_was_faster_is_no_lost_marker() -> None:
    class Raced(MemoryStore):
        """Another writer claims the partition right after this one read that there is no marker."""

        is_raced = False

        def get(self, key: str) -> StoredObject | None:
            found = super().get(key)
            if key == KEYS.marker and not self.is_raced:
                self.is_raced = True
                driver_of(self).run(take_over(IDENTITY, "faster", POLICY))
                declare(self, KEYS.partition)
            return found

    claimed = driver_of(Raced()).run(take_over(IDENTITY, "writer", POLICY))
    assert claimed.held.marker.epoch == 2
