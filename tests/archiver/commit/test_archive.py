"""What a commit stands on: write-once objects, identities, the inventory, claims, markers that are lost."""

import hashlib
import json
import random
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from unittest.mock import ANY, patch

import pytest

from archiver.commit import operations as op
from archiver.commit.archive import find_incarnation, open_archive
from archiver.commit.commit import Held, RestingMarker, commit_chunk, store_once
from archiver.commit.operations import CompareAndSwap, Driver, Get, Protocol
from archiver.commit.recovery import MAX_REFUSALS, MOST_TRIES, ClaimList, change_inventory, take_over
from archiver.errors import Diverged, Next, Situation, what_next
from blockgz import errors
from blockgz.config.model import RunConfig
from blockgz.store.writer import PART_BYTES, FileBody, ObjectHead, StoredObject
from index_format import objects
from index_format.keys import INVENTORY_OBJECT, SeedLayoutKeys, TopicFolder, TopicLayoutKeys, inventory_key
from index_format.marker import Marker
from index_format.objects import ArchiveInfo, Incarnation, Inventory, parse_inventory, united
from tests.support.archives import records
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.format_objects import chunk_entry, marker_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor, Fate, fates_of

ARCHIVE = {"topic": "_archive.json", "seed": "_blockgz/_archive.json"}
TOPIC = {"topic": "topic=orders/_topic.json", "seed": "_blockgz/topic=orders/_topic.json"}


@pytest.mark.parametrize("layout", ARCHIVE)
def test_a_new_archive_is_settled_once(layout: str) -> None:
    store = MemoryStore()
    info = open_archive(store, layout=layout, cluster_id="cluster-1")
    assert json.loads(store.objects[ARCHIVE[layout]].body) == {
        "format": "block-gzip-archive",
        "version": 1,
        "archive_id": info.archive_id,
        "cluster_id": "cluster-1",
        "layout": layout,
        "group_id": f"blockgz-{info.archive_id[:8]}",
        "inventory": True,
        "crc32": ANY,
    }
    assert open_archive(store, layout=layout, cluster_id="cluster-1") == info
    assert len(store.versions[ARCHIVE[layout]]) == 1


@pytest.mark.parametrize("layout", TOPIC)
def test_a_new_topic_is_settled_once(layout: str) -> None:
    store = MemoryStore()
    folder = find_incarnation(store, layout=layout, topic="orders", topic_id="id-1")
    assert json.loads(store.objects[TOPIC[layout]].body) == {
        "format": "block-gzip-topic",
        "version": 1,
        "topic": "orders",
        "topic_id": "id-1",
        "incarnation": 1,
        "crc32": ANY,
    }
    assert find_incarnation(store, layout=layout, topic="orders", topic_id="id-1") == folder == TopicFolder("orders")
    assert len(store.versions[TOPIC[layout]]) == 1


def test_a_store_that_refuses_what_it_does_not_hold_is_asked_again() -> None:
    """So that the partition is claimed later, and is not stopped for good."""
    store = MemoryStore()
    with patch.object(store, "put_if_absent", return_value=False), pytest.raises(errors.StoreBusy) as raised:
        find_incarnation(store, layout="topic", topic="orders", topic_id="id-1")
    assert what_next(raised.value, Situation.SERVING) is Next.AGAIN
    assert find_incarnation(store, layout="topic", topic="orders", topic_id="id-1") == TopicFolder("orders")


@pytest.mark.parametrize(("layout", "other"), [("topic", "seed"), ("seed", "topic")])
def test_another_layout_is_refused(layout: str, other: str) -> None:
    store = MemoryStore()
    open_archive(store, layout=layout, cluster_id=None)
    before = store.bodies()
    with pytest.raises(errors.UsageError, match=layout) as caught:
        open_archive(store, layout=other, cluster_id=None)
    assert f"--layout {layout}" in caught.value.remedy and store.bodies() == before


def test_another_cluster_is_refused() -> None:
    store = MemoryStore()
    open_archive(store, layout="topic", cluster_id="cluster-1")
    with pytest.raises(Diverged) as caught:
        open_archive(store, layout="topic", cluster_id="cluster-2")
    assert "cluster-1" in caught.value.why and "cluster-2" in caught.value.why


def test_a_topic_that_was_created_again_gets_its_own_folder() -> None:
    store = MemoryStore()
    find = partial(find_incarnation, store, layout="topic", topic="orders")
    assert str(find(topic_id="id-1")) == "orders"
    assert str(find(topic_id="id-2")) == "orders~2"
    assert str(find(topic_id="id-3")) == "orders~3"
    assert [str(find(topic_id=f"id-{number}")) for number in (1, 2, 3)] == ["orders", "orders~2", "orders~3"]
    assert str(find(topic_id=None)) == "orders~3"


@pytest.mark.parametrize(("first", "second"), [(None, "x"), ("x", None), (None, None)])
def test_an_id_that_is_not_reported_never_differs(first: str | None, second: str | None) -> None:
    store = MemoryStore()
    assert open_archive(store, layout="topic", cluster_id=first).cluster_id == first
    assert open_archive(store, layout="topic", cluster_id=second).cluster_id == first
    assert find_incarnation(store, layout="topic", topic="orders", topic_id=first) == TopicFolder("orders")
    assert find_incarnation(store, layout="topic", topic="orders", topic_id=second) == TopicFolder("orders")


def test_of_many_that_create_an_archive_at_once_all_see_the_same() -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: open_archive(store, layout="topic", cluster_id=None), range(32)))
    assert len({info.archive_id for info in opened}) == 1


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", errors.MalformedObject),
        (b'{"format":"block-gzip-marker","version":1}', errors.MalformedObject),
        (b'{"format":"block-gzip-archive","version":9}', errors.UnsupportedVersion),
    ],
)
@pytest.mark.parametrize(
    "open_it",
    [
        partial(open_archive, layout="topic", cluster_id=None),
        partial(find_incarnation, layout="topic", topic="orders", topic_id=None),
    ],
    ids=["archive", "topic"],
)
def test_a_damaged_identity_is_refused(body: bytes, error: type[Exception], open_it: Callable[..., object]) -> None:
    store = MemoryStore()
    for key in (ARCHIVE["topic"], TOPIC["topic"]):
        store.put_if_absent(key, body.replace(b"archive", b"topic") if "topic=" in key else body, "damage")
    with pytest.raises(error):
        open_it(store)


def test_the_group_in_force() -> None:
    """The chosen one, else the archive's own; archives of earlier writers name none."""
    former = b'{"format":"block-gzip-archive","version":1,"archive_id":"a","cluster_id":null,"layout":"topic"}'
    named = former.replace(b'"topic"}', b'"topic","group_id":"blockgz-a"}')
    config = RunConfig(archive="./archive", bootstrap_servers="broker:9092", topics=("orders",))
    chosen = RunConfig(archive="./archive", bootstrap_servers="broker:9092", topics=("orders",), group_id="mine")
    nameless = named.replace(b'"blockgz-a"', b"null")
    for body, expected in ((former, "blockgz-archiver"), (nameless, "blockgz-archiver"), (named, "blockgz-a")):
        info = objects.decode(body, ArchiveInfo, "_archive.json")
        assert config.of_archive(info).group == expected
        assert chosen.of_archive(info).group == "mine"


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
        except errors.StoreUnavailable:
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
    assert isinstance(actor.failure, errors.MalformedObject) and store.bodies()[KEY] == b"{}"


def test_a_store_that_refuses_forever_is_not_asked_forever() -> None:
    protocol = writer(1)
    operation = next(protocol)
    swaps = 0
    with pytest.raises(errors.StoreUnfit):
        while True:
            swaps += isinstance(operation, CompareAndSwap)
            operation = protocol.send(with_inventory().get(KEY) if isinstance(operation, Get) else None)
    assert swaps == MAX_REFUSALS


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
    with pytest.raises(errors.MalformedObject, match="is missing") as caught:
        driver_of(store).run(take_over(IDENTITY, "another", POLICY))
    assert caught.value.remedy == f"rebuild the marker: archiver repair marker {KEYS.folder}:{KEYS.partition}"
    assert store.bodies() == before


def test_nor_is_one_whose_folder_is_lost() -> None:
    store = MemoryStore()
    declare(store, KEYS.partition)
    with pytest.raises(errors.MalformedObject, match="is empty") as caught:
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


INFO = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic", inventory=True)


class FailingStore(MemoryStore):
    """Refuses what is asked of the inventory alone."""

    failure: errors.BlockgzError | None = None
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


def inventory(failing_store: MemoryStore, layout: str = "topic") -> Inventory:
    key = inventory_key(layout)
    return parse_inventory(failing_store.bodies()[key], key)


@pytest.fixture
def failing_store() -> FailingStore:
    failing_store = FailingStore()
    open_archive(failing_store, layout="topic", cluster_id=None)
    return failing_store


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

    failing_store = MemoryStore()
    old = ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")
    failing_store.put_if_absent("_archive.json", objects.encode(old), "-")
    info = open_archive(failing_store, layout="topic", cluster_id=None)
    claims = ClaimList(failing_store, info)
    claims.add(keys(0), None)
    claims.settle(keys(0), no_wait)
    assert list(failing_store.objects) == ["_archive.json"] and not claims.is_behind


def test_a_batch_of_claims_is_written_once(failing_store: FailingStore) -> None:
    claims = ClaimList(failing_store, INFO, lambda: 5)
    for number in range(100):
        claims.add(keys(number), "id")
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: claims.settle(keys(number), no_wait), range(100)))
    assert len(failing_store.versions[INVENTORY_OBJECT]) == 2 and failing_store.gets == 1
    (listed,) = inventory(failing_store).incarnations
    assert listed.partitions == tuple(range(100)) and (listed.topic_id, listed.seen_from) == ("id", 5)


def test_layout_seed(failing_store: FailingStore) -> None:
    failing_store = FailingStore()
    info = open_archive(failing_store, layout="seed", cluster_id=None)
    claims, place = ClaimList(failing_store, info), SeedLayoutKeys(TopicFolder("orders"), 3)
    claims.add(place, None)
    claims.settle(place, no_wait)
    assert inventory(failing_store, "seed").incarnations[0].partitions == (3,)


@pytest.mark.parametrize(
    ("failure", "waits"),
    [(errors.StoreUnavailable("no answer"), MOST_TRIES - 1), (errors.AccessDenied("denied"), MOST_TRIES - 1)],
)
def test_a_commit_waits_for_a_while_and_the_claim_is_added_later(
    failing_store: FailingStore, failure: errors.BlockgzError, waits: int
) -> None:
    failing_store.failure, waited = failure, list[int]()
    claims = ClaimList(failing_store, INFO)
    claims.add(keys(0), None)
    claims.settle(keys(0), lambda tries, _: waited.append(tries))
    assert len(waited) == waits and claims.is_behind
    failing_store.failure = None
    assert claims.write() is None and not claims.is_behind
    assert inventory(failing_store).incarnations[0].partitions == (0,)


def test_a_damaged_inventory_keeps_nobody(failing_store: FailingStore) -> None:
    found = failing_store.get(INVENTORY_OBJECT)
    assert found is not None
    failing_store.compare_and_swap(INVENTORY_OBJECT, b"{}", found.etag)
    claims = ClaimList(failing_store, INFO)
    claims.add(keys(0), None)
    claims.settle(keys(0), lambda *_: pytest.fail("it does not pass by waiting"))
    assert claims.is_behind and failing_store.bodies()[INVENTORY_OBJECT] == b"{}"


def test_a_topic_that_is_created_again_or_gone_is_over(failing_store: FailingStore) -> None:
    times = iter(range(10, 100, 10))
    claims = ClaimList(failing_store, INFO, lambda: next(times))
    for incarnation, topic_id in ((1, "a"), (2, "b")):
        claims.add(keys(0, incarnation), topic_id)
        assert claims.write() is None
    assert [each.seen_until for each in inventory(failing_store).incarnations] == [20, None]
    claims.gone("orders")
    assert claims.write() is None
    assert [each.seen_until for each in inventory(failing_store).incarnations] == [20, 30]


def test_a_topic_of_somebody_else_is_not_ended(failing_store: FailingStore) -> None:
    claims = ClaimList(failing_store, INFO)
    claims.gone("orders")
    assert not claims.is_behind


SEED = 5


def full_marker(rng: random.Random) -> Marker:
    """With the longest tail there is."""
    tail = tuple(
        chunk_entry(
            start,
            start + 600,
            name=f"2026/11/21/{start:020}-{1_790_000_000_000 + start * 150}.index.json",
            bytes=rng.randrange(10_000, 30_000),
            raw_bytes=rng.randrange(300_000, 400_000),
            min_timestamp=1_790_000_000_000 + start * 150,
            max_timestamp=1_790_000_000_000 + start * 150 + 89_999,
            sha256=hashlib.sha256(rng.randbytes(8)).hexdigest(),
        )
        for start in range(10**9, 10**9 + 64 * 600, 600)
    )
    ends = {"start_offset": tail[0].start_offset, "next_offset": tail[-1].next_offset}
    return marker_of(epoch=7, tail_hash="0" * 64, last_chunk_index=tail[-1].name, tail=tail, **ends)


def test_it_is_the_same_marker() -> None:
    held = Held(full_marker(random.Random(SEED)), '"etag"')
    resting = RestingMarker.of(held)
    assert resting.unpack() == held
    assert (resting.epoch, resting.next_offset, resting.num_gaps) == (7, held.marker.next_offset, 0)
    assert resting.newest_timestamp == held.marker.tail[-1].max_timestamp


def test_a_thousand_partitions_with_full_tails_take_a_few_megabytes() -> None:
    rng = random.Random(SEED)
    tracemalloc.start()
    try:
        resting = [RestingMarker.of(Held(full_marker(rng), '"etag"')) for _ in range(20)]
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    # Other threads of this process may log meanwhile.
    ours = [tracemalloc.Filter(True, file) for file in ("*/archiver/*", "*/index_format/*")]
    held = sum(trace.size for trace in snapshot.filter_traces(ours).traces)
    assert len(resting[0].packed) < held / len(resting)
    assert held / len(resting) < 8 * 1024, "decoded, one takes five times as much"


def asked(protocol: op.Protocol[object], *answers: object) -> list[type]:
    """The operations of a protocol to which the store gives these answers; an error is raised in it."""
    kinds = []
    step = partial(next, protocol)
    with suppress(StopIteration):
        for answer in answers:
            kinds.append(type(step()))
            step = partial(protocol.throw if isinstance(answer, Exception) else protocol.send, answer)
        kinds.append(type(step()))
    return kinds


class TestStoringOnce:
    LOST = errors.StoreUnavailable("no answer")

    @pytest.mark.parametrize(
        ("answers", "kinds"),
        [
            ([True], [op.PutIfAbsent]),
            ([False, ObjectHead(1, "mine")], [op.PutIfAbsent, op.Head]),
            ([LOST, None, ObjectHead(1, "mine")], [op.PutIfAbsent, op.Wait, op.Head]),
            ([LOST, None, None, True], [op.PutIfAbsent, op.Wait, op.Head, op.PutIfAbsent]),
            (
                [False, None, False, None, ObjectHead(1, "mine")],
                [op.PutIfAbsent, op.Head, op.PutIfAbsent, op.Wait, op.Head],
            ),
            ([False, ObjectHead(1, "other"), "t", True], [op.PutIfAbsent, op.Head, op.NewToken, op.PutIfAbsent]),
        ],
    )
    def test_a_body_of_one_put_is_sent_at_once(self, answers: list[object], kinds: list[type]) -> None:
        assert asked(self.storing(PART_BYTES), "mine", *answers) == [op.NewToken, *kinds]

    @pytest.mark.parametrize(
        ("answers", "kinds"),
        [
            ([None, True], [op.Head, op.PutIfAbsent]),
            ([None, LOST, None, ObjectHead(1, "mine")], [op.Head, op.PutIfAbsent, op.Wait, op.Head]),
            ([ObjectHead(1, "other"), "t", None, True], [op.Head, op.NewToken, op.Head, op.PutIfAbsent]),
        ],
    )
    def test_a_larger_one_only_where_its_key_is_free(self, answers: list[object], kinds: list[type]) -> None:
        assert asked(self.storing(PART_BYTES + 1), "mine", *answers) == [op.NewToken, *kinds]

    @staticmethod
    def storing(size: int) -> op.Protocol[object]:
        return store_once([(lambda conflict: f"key{conflict or ''}", FileBody(Path("body"), size, ""))], 1)
