"""Garbage collection where chunks are rewritten: book-keeping, what is spared, and the floor."""

import random
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.commit.commit import commit_chunk
from archiver.commit.objects import Held
from archiver.commit.recovery import take_over
from archiver.maintain.garbage import Chain, find_guarded_gaps, next_start, update_books
from archiver.maintain.gc import plan_sweep, read_current
from archiver.maintain.prune import prune
from archiver.maintain.rewrite.intent import RewriteOutcome
from blockgz.errors import StoreUnavailable
from blockgz.store.writer import Body
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import EMPTY, ERASED, Gap
from index_format.identity import ArchiveInfo, TopicInfo
from index_format.keys import TOPIC_OBJECT, archive_key, catalog_name, floor_name, topic_home
from index_format.marker import CatalogReference, Floor, Maintenance, Retired, Rewriting
from tests.support.archives import records
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor, Run

IDENTITY = identity_of()
KEYS = IDENTITY.keys
ROWS = records(range(40), value_bytes=0)
LOG = MemoryLog(ROWS)
TOKENS = random.Random(1)
GRACE = 3600.0
GRACE_MS = 3_600_000
OTHER = "0" * 32


class RefusingStore(MemoryStore):
    """Stores no floor."""

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        """See Store."""
        if "/_pruned/" in key:
            raise StoreUnavailable("not now")
        return super().put_if_absent(key, body, attempt)


def run(store: MemoryStore, protocol: Run) -> Any:
    actor = Actor("a", protocol, store, LOG, TOKENS)
    actor.run_to_end()
    if actor.failure is not None:
        raise actor.failure
    return actor.result


def filled(store: MemoryStore) -> MemoryStore:
    """Fourteen chunks of one record, twelve of them in catalogs of two."""
    archive = ArchiveInfo(archive_id=IDENTITY.archive_id, cluster_id=None, layout="topic")
    topic = TopicInfo(topic=IDENTITY.topic, topic_id=IDENTITY.topic_id, incarnation=1)
    store.put_if_absent(archive_key("topic"), objects.encode(archive), "-")
    store.put_if_absent(topic_home("topic", KEYS.folder) + TOPIC_OBJECT, objects.encode(topic), "-")
    held: Held = run(store, take_over(IDENTITY, "writer", POLICY)).held
    for offset in range(14):
        held = run(store, commit_chunk(IDENTITY, held, finished_chunk("json", (ROWS[offset],), offset, offset + 1)))
    return store


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    return filled(MemoryStore())


def body_of(store: MemoryStore) -> Maintenance:
    marker = read_current(store, KEYS)  # type: ignore[arg-type]
    assert marker is not None
    assert marker.maintenance
    return marker.maintenance


def collect(store: MemoryStore, **options: Any) -> int:
    plan = plan_sweep(store, (), GRACE, **options)
    assert not plan.problems
    plan.carry_out()
    assert not plan.problems
    return plan.deleted or 0


def retired(at: int | None) -> Retired:
    reference = CatalogReference(
        name=catalog_name(1, 0), start_offset=0, next_offset=1, min_timestamp=0, max_timestamp=0, num_records=1,
        num_chunks=1, bytes=1, sha256="0" * 64,
    )  # fmt: skip
    return Retired(references=(reference,), token=OTHER, at=at)


def test_the_grace_counts_from_the_first_look(store: MemoryStore) -> None:
    body = Maintenance(retired=(retired(None), retired(5)))
    assert update_books(body, now=10, grace_ms=5).retired == (retired(10), retired(5))
    assert update_books(body, now=11, grace_ms=5).retired == (retired(11),)
    intent = Rewriting(token=OTHER, kind="merge", level=1, start=0, end=2, since=5)
    for now, left in ((10, intent), (11, None)):
        assert update_books(Maintenance(rewriting=intent), now=now, grace_ms=5).rewriting == left


def test_a_time_further_in_the_future_than_a_grace_is_none() -> None:
    body = Maintenance(retired=(retired(20), retired(21)))
    assert update_books(body, now=15, grace_ms=5).retired == (retired(20), retired(15))
    intent = Rewriting(token=OTHER, kind="merge", level=1, start=0, end=2, since=20)
    for now, left in ((15, intent), (14, None)):
        assert update_books(Maintenance(rewriting=intent), now=now, grace_ms=5).rewriting == left


def test_what_was_pruned_goes_a_grace_after_it_was_seen(store: MemoryStore) -> None:
    store.now = 1e6
    assert run(store, prune(KEYS, 6)) is RewriteOutcome.COMMITTED
    before = set(store.bodies())
    assert collect(store) == 0
    (seen,) = body_of(store).retired
    assert seen.at == 1e9
    store.now += GRACE
    assert (collect(store), set(store.bodies())) == (0, before)
    store.now += 1
    deleted = collect(store)
    gone = before - set(store.bodies())
    assert deleted == len(gone) > 12
    assert {f"{KEYS.home}{offset:020d}.gz" for offset in range(6)} < gone
    floor = store.bodies()[KEYS.home + floor_name(6)]
    assert floor == b'{"format":"block-gzip-floor","version":1,"pruned_before":6}'
    assert objects.decode(floor, Floor, "floor").pruned_before == 6
    assert body_of(store).retired == ()
    run(store, prune(KEYS, 12))
    for _ in range(3):
        store.now += GRACE + 1
        collect(store)
    assert [key for key in store.bodies() if "_pruned" in key] == [KEYS.home + floor_name(12)]
    assert collect(store) == 0


def test_a_dry_run_shows_the_same_and_writes_nothing(store: MemoryStore) -> None:
    run(store, prune(KEYS, 6))
    collect(store)
    store.now += GRACE + 1
    before = store.bodies()
    shown = plan_sweep(store, (), GRACE, keeps_books=False)
    assert store.bodies() == before
    assert plan_sweep(store, (), GRACE).garbage == shown.garbage != ()


def test_nothing_is_deleted_where_the_floor_was_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", 2)
    store = filled(RefusingStore())
    run(store, prune(KEYS, 6))
    collect(store)
    store.now += GRACE + 1
    plan, before = plan_sweep(store, (), GRACE), store.bodies()
    assert plan.garbage
    plan.carry_out()
    assert ([each.where for each in plan.problems], plan.deleted) == ([KEYS.home + floor_name(6)], 0)
    assert store.bodies() == before


def test_a_token_is_spared_while_its_intent_is_in_force(store: MemoryStore) -> None:
    run(store, prune(KEYS, 4))
    names = [f"_catalog/1-{0:020d}~r{OTHER}-0.json", f"{0:020d}~r{OTHER}-1.gz", f"{0:020d}~r{OTHER}-1.index.json"]
    for name in names:
        store.put_if_absent(KEYS.home + name, b"{}", "-")
    marker = read_current(store, KEYS)  # type: ignore[arg-type]
    assert marker is not None
    store.now = 1e6
    intent = Rewriting(token=OTHER, kind="merge", level=1, start=4, end=6, since=round(store.now * 1000))
    body = markers.encode(replace(marker, maintenance=replace(body_of(store), rewriting=intent)))
    store.objects[KEYS.marker] = store.objects[KEYS.marker]._replace(body=body)
    collect(store)
    assert all(KEYS.home + name in store.bodies() for name in names)
    store.now += GRACE + 1
    collect(store)
    assert body_of(store).rewriting is None
    assert not any(KEYS.home + name in store.bodies() for name in names)


@pytest.mark.parametrize(
    ("gap", "is_guarded"),
    [
        (Gap(12, 14, "retention"), True),
        (Gap(12, 14, "retention", at=0), True),
        (Gap(12, 14, EMPTY), False),
        (Gap(12, 14, ERASED), False),
        (Gap(5, 7, "retention"), True),
        (Gap(5, 7, "retention", at=1), False),
        (Gap(5, 7, "retention", at=9_000), True),
        (Gap(2, 4, "retention"), False),
    ],
)
def test_a_gap_guards_what_may_hold_its_records(gap: Gap, is_guarded: bool, store: MemoryStore) -> None:
    run(store, prune(KEYS, 4))
    marker = read_current(store, KEYS)  # type: ignore[arg-type]
    assert marker is not None
    chain = Chain(KEYS, marker, (), frozenset(), [gap])
    assert find_guarded_gaps(chain, now=10.0, grace=5.0) == ([gap] if is_guarded else [])


def test_a_chunk_may_start_where_an_empty_gap_does(store: MemoryStore) -> None:
    marker = read_current(store, KEYS)  # type: ignore[arg-type]
    assert marker is not None
    assert next_start(marker) == 14
    longer = replace(marker, next_offset=20, gaps=(Gap(14, 20, EMPTY),))
    assert (longer.chain_end, next_start(longer)) == (20, 14)
    assert next_start(replace(longer, gaps=(Gap(14, 20, "retention"),))) == 20
