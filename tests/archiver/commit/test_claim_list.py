from concurrent.futures import ThreadPoolExecutor

import pytest

from archiver.commit.archive import open_archive
from archiver.commit.claims import MOST_TRIES, ClaimList
from blockgz.errors import AccessDenied, StoreUnavailable
from blockgz.store.writer import StoredObject
from index_format.errors import BlockgzError
from index_format.identity import ArchiveInfo, Inventory, parse_inventory
from index_format.keys import INVENTORY_OBJECT, SeedLayoutKeys, TopicFolder, TopicLayoutKeys, inventory_key
from tests.support.memory_store import MemoryStore

INFO = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic", inventory=True)


class FailingStore(MemoryStore):
    """Refuses what is asked of the inventory alone."""

    failure: BlockgzError | None = None
    gets = 0

    def get(self, key: str) -> StoredObject | None:
        self.gets += key == INVENTORY_OBJECT
        if self.failure is not None and key == INVENTORY_OBJECT:
            raise self.failure
        return super().get(key)


def keys(partition: int, incarnation: int = 1) -> TopicLayoutKeys:
    return TopicLayoutKeys(TopicFolder("orders", incarnation), partition)


def no_wait(_tries: int, _cause: object) -> None:
    """Tries again at once."""


def inventory(store: MemoryStore, layout: str = "topic") -> Inventory:
    key = inventory_key(layout)
    return parse_inventory(store.bodies()[key], key)


@pytest.fixture
def store() -> FailingStore:
    store = FailingStore()
    open_archive(store, layout="topic", cluster_id=None)
    return store


def test_a_new_archive_declares_an_inventory_that_is_stored_before() -> None:
    stored = []

    class Noting(MemoryStore):
        def put_if_absent(self, key: str, body: object, attempt: str) -> bool:
            stored.append(key)
            return super().put_if_absent(key, body, attempt)  # type: ignore[arg-type]

    for layout, home in (("topic", ""), ("seed", "_blockgz/")):
        stored.clear()
        assert open_archive(Noting(), layout=layout, cluster_id=None).inventory is True
        assert stored == [f"{home}_inventory.json", f"{home}_archive.json"]


def test_an_older_archive_is_not_given_one() -> None:
    from index_format import objects  # noqa: PLC0415

    store = MemoryStore()
    old = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")
    store.put_if_absent("_archive.json", objects.encode(old), "-")
    info = open_archive(store, layout="topic", cluster_id=None)
    claims = ClaimList(store, info)
    claims.add(keys(0), None)
    claims.settle(keys(0), no_wait)
    assert list(store.objects) == ["_archive.json"] and not claims.is_behind


def test_a_batch_of_claims_is_written_once(store: FailingStore) -> None:
    claims = ClaimList(store, INFO, lambda: 5)
    for number in range(100):
        claims.add(keys(number), "id")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: claims.settle(keys(number), no_wait), range(100)))
    assert len(store.versions[INVENTORY_OBJECT]) == 2 and store.gets == 1
    (listed,) = inventory(store).incarnations
    assert listed.partitions == tuple(range(100)) and (listed.topic_id, listed.seen_from) == ("id", 5)


def test_layout_seed(store: FailingStore) -> None:
    store = FailingStore()
    info = open_archive(store, layout="seed", cluster_id=None)
    claims, place = ClaimList(store, info), SeedLayoutKeys(TopicFolder("orders"), 3)
    claims.add(place, None)
    claims.settle(place, no_wait)
    assert inventory(store, "seed").incarnations[0].partitions == (3,)


@pytest.mark.parametrize(
    ("failure", "waits"), [(StoreUnavailable("no answer"), MOST_TRIES - 1), (AccessDenied("denied"), MOST_TRIES - 1)]
)
def test_a_commit_waits_for_a_while_and_the_claim_is_added_later(
    store: FailingStore, failure: BlockgzError, waits: int
) -> None:
    store.failure, waited = failure, list[int]()
    claims = ClaimList(store, INFO)
    claims.add(keys(0), None)
    claims.settle(keys(0), lambda tries, _: waited.append(tries))
    assert len(waited) == waits and claims.is_behind
    store.failure = None
    assert claims.write() is None and not claims.is_behind
    assert inventory(store).incarnations[0].partitions == (0,)


def test_a_damaged_inventory_keeps_nobody(store: FailingStore) -> None:
    found = store.get(INVENTORY_OBJECT)
    assert found is not None
    store.compare_and_swap(INVENTORY_OBJECT, b"{}", found.etag)
    claims = ClaimList(store, INFO)
    claims.add(keys(0), None)
    claims.settle(keys(0), lambda *_: pytest.fail("it does not pass by waiting"))
    assert claims.is_behind and store.bodies()[INVENTORY_OBJECT] == b"{}"


def test_a_topic_that_is_created_again_or_gone_is_over(store: FailingStore) -> None:
    times = iter(range(10, 100, 10))
    claims = ClaimList(store, INFO, lambda: next(times))
    for incarnation, topic_id in ((1, "a"), (2, "b")):
        claims.add(keys(0, incarnation), topic_id)
        assert claims.write() is None
    assert [each.seen_until for each in inventory(store).incarnations] == [20, None]
    claims.gone("orders")
    assert claims.write() is None
    assert [each.seen_until for each in inventory(store).incarnations] == [20, 30]


def test_a_topic_of_somebody_else_is_not_ended(store: FailingStore) -> None:
    claims = ClaimList(store, INFO)
    claims.gone("orders")
    assert not claims.is_behind
