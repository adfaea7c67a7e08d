"""A writer beside maintainers: they change their part of the marker, it goes on from there."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.commit.commit import commit_chunk, commit_progress
from archiver.commit.objects import Held, try_swap
from archiver.commit.operations import CompareAndSwap
from archiver.commit.recovery import claim_and_fold, reclaim, take_over
from archiver.errors import Fenced
from index_format import marker as markers
from index_format.chunk_index import EMPTY, Gap
from index_format.marker import Maintenance, Marker, decode_catalog, decode_marker
from tests.support.archives import records
from tests.support.chunks import POLICY, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor, Fate, Run

IDENTITY = identity_of()
KEYS = IDENTITY.keys
ROWS = records(range(30), value_bytes=0)
LOG = MemoryLog(ROWS)
TOKENS = random.Random(1)


def run(store: MemoryStore, protocol: Run, log: MemoryLog = LOG) -> Any:
    actor = Actor("a", protocol, store, log, TOKENS)
    actor.run_to_end()
    if actor.failure is not None:
        raise actor.failure
    return actor.result


def maintained(store: MemoryStore, **fields: Any) -> Held:
    """A maintainer changes its part of the marker."""
    found = store.get(KEYS.marker)
    assert found is not None
    marker = decode_marker(found.body)
    body = replace(marker.maintenance or Maintenance(), **fields)
    held: Held = run(store, try_swap(KEYS.marker, replace(marker, version=2, maintenance=body), found.etag))
    return held


def chunk(start: int, end: int) -> Any:
    return finished_chunk("json", tuple(ROWS[start:end]), start, end)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def held(store: MemoryStore) -> Held:
    held = run(store, take_over(IDENTITY, "writer", POLICY)).held
    return run(store, commit_chunk(IDENTITY, held, chunk(0, 3)))  # type: ignore[no-any-return]


def body_of(marker: Marker) -> Maintenance:
    assert isinstance(marker.maintenance, Maintenance)
    return marker.maintenance


WAYS: dict[str, Callable[[Held], Run]] = {
    "append": lambda held: commit_chunk(IDENTITY, held, chunk(3, 5)),
    "progress": lambda held: commit_progress(IDENTITY, held, 5),
    "reclaim": lambda _: reclaim(IDENTITY, "writer"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fate", [Fate.NORMAL, Fate.ANSWER_LOST, Fate.NOT_APPLIED, Fate.LATE])
def test_a_swap_goes_on_from_what_maintainers_wrote(way: str, fate: Fate, store: MemoryStore, held: Held) -> None:
    actor = Actor("writer", WAYS[way](held), store, LOG, TOKENS)
    while not isinstance(actor.operation, CompareAndSwap):
        actor.step()
    if fate is Fate.ANSWER_LOST:
        actor.step(fate)
        maintained(store, fold_before=1)
    else:
        maintained(store, fold_before=1)
        actor.step(fate)
    actor.run_to_end()
    assert actor.failure is None
    for request in list(actor.late):
        actor.deliver(request)
    now = decode_marker(store.bodies()[KEYS.marker])
    assert actor.result.marker == now and body_of(now).fold_before == 1
    assert (now.next_offset, now.epoch) == ((3, 2) if way == "reclaim" else (5, 1))
    assert body_of(now).revision == (1 if fate is Fate.ANSWER_LOST else 2)


@pytest.mark.parametrize("way", ["append", "progress"])
def test_a_fenced_writer_does_not(way: str, store: MemoryStore, held: Held) -> None:
    run(store, take_over(IDENTITY, "other", POLICY))
    maintained(store)
    with pytest.raises(Fenced):
        run(store, WAYS[way](held))


def test_what_maintainers_ask_for_is_folded_with_its_gaps(store: MemoryStore, held: Held) -> None:
    held = run(store, commit_progress(IDENTITY, held, 10, (Gap(4, 10, "skipped"),)))
    held = run(store, commit_chunk(IDENTITY, held, chunk(10, 12)))
    maintained(store, fold_before=12)
    now = run(store, commit_progress(IDENTITY, held, 15)).marker
    assert (now.tail, now.gaps, now.newest_offset) == ((), (Gap(12, 15, EMPTY, at=0),), 11)
    (reference,) = now.catalogs[0]
    assert (reference.start_offset, reference.next_offset, now.chain_end, now.cover(1)) == (0, 12, 15, 12)
    assert decode_catalog(store.bodies()[KEYS.home + reference.name], reference, 1).gaps == (Gap(4, 10, "skipped"),)
    now = run(store, commit_progress(IDENTITY, run(store, reclaim(IDENTITY, "writer")), 18)).marker
    assert now.gaps == (Gap(12, 18, EMPTY, at=0),)
    maintained(store, fold_before=20)
    now = run(store, commit_chunk(IDENTITY, run(store, reclaim(IDENTITY, "writer")), chunk(18, 20))).marker
    now = run(store, claim_and_fold(KEYS, "maintainer")).marker
    assert (now.gaps, now.catalogs[0][1].start_offset, now.chain_end) == ((), 12, 20)
    again = run(store, take_over(IDENTITY, "next", POLICY), MemoryLog(ROWS[:25]))
    assert (again.position, again.tail_was_compacted) == (20, False)


def test_a_gap_tells_when_it_was_recorded(store: MemoryStore, held: Held) -> None:
    maintained(store)
    store.now = 7.0
    log = MemoryLog(ROWS, low=6)
    again = run(store, take_over(IDENTITY, "next", POLICY), log)
    assert again.held.marker.gaps == (Gap(3, 6, "retention", at=7_000),)
    assert markers.encode(again.held.marker) == store.bodies()[KEYS.marker]
