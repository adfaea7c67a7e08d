"""Every operation of a take-over and several commits, with everything that may become of it, one at a time."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any

import pytest

from archiver.commit.commit import PartitionIdentity
from archiver.commit.operations import PutIfAbsent
from blockgz.store import writer as writer_store
from index_format import marker as markers
from index_format.records import Record
from tests.support.archives import records
from tests.support.chain import check_history, read_chain
from tests.support.chunks import archive_all, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import CRASHES, Actor, Fate, fates_of

FAN_OUT = 3
"""Of catalogs, cut down so that a short archive folds two levels deep."""
FOLDED = FAN_OUT + FAN_OUT**2
"""Chunks of one record that the archive holds before: the next commit folds the tail, and full catalogs of level 1."""
SCRIPT = (2, 1, 2, 3)
"""Records of the chunks that follow, of which the even ones take in the hole behind them."""
LAYOUTS = ("topic", "seed")
GIVES_UP = (*CRASHES, Fate.TAKEN_AWAY)


@pytest.fixture(autouse=True)
def small_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "FAN_OUT", FAN_OUT)


@pytest.fixture(autouse=True, params=[False, True], ids=["one PUT", "parts"])
def goes_up_in_parts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the data of every chunk is as large as bodies that are sent in parts."""
    if request.param:
        monkeypatch.setattr(writer_store, "PART_BYTES", 0)
    return bool(request.param)


@cache
def log_of(layout: str) -> MemoryLog:
    """Records, then records with holes; at the end an offset without a record."""
    offsets = [*range(FOLDED), 66, 67, 68, 71, 72, 80, 81, 82]
    rows = records(offsets, value_bytes=0)
    if layout == "seed":
        rows = [Record(row.offset, row.timestamp, row.timestamp_type, None, b"%d" % row.offset, ()) for row in rows]
    return MemoryLog(rows, high=90)


@cache
def before(layout: str) -> MemoryStore:
    """The archive with a full tail."""
    store, log = MemoryStore("pfx/"), log_of(layout)
    first = MemoryLog(log.records[:FOLDED])
    Actor(
        "first", archive_all(identity(layout), first, "first", lambda: 1), store, first, random.Random(1)
    ).run_to_end()
    return store


@cache
def identity(layout: str) -> PartitionIdentity:
    return identity_of(layout, key_prefix="pfx/")


def writer(layout: str, name: str, store: MemoryStore, takeovers: int = 1) -> Actor:
    """A writer that follows the script, then takes two records a chunk; at the end comes progress without records."""
    sizes = (SCRIPT[number] if number < len(SCRIPT) else 2 for number in count())
    log = log_of(layout)
    protocol = archive_all(identity(layout), log, name, lambda: next(sizes), takeovers=takeovers)
    return Actor(name, protocol, store, log, random.Random(name))


def check(layout: str, store: MemoryStore) -> None:
    keys = identity(layout).keys
    check_history(store.versions if layout == "topic" else _without_courtesy(store), keys.home)
    chain = read_chain(store.bodies(), keys.home, keys.chunks)
    assert chain is not None and not chain.gaps
    expected = [(row.offset, row.value) for row in log_of(layout).records if row.offset < chain.next_offset]
    assert [tuple(line) for line in chain.lines] == expected
    if layout == "seed":
        _check_sidecars(store.bodies(), chain.marker["tail"])


def _check_sidecars(objects: dict[str, bytes], tail: list[Any]) -> None:
    """Beside the data of every committed chunk lies the index that readers of the ancestor look for."""
    for entry in tail:
        index = json.loads(objects[entry["name"]])
        sidecar = json.loads(objects[index["data"]["name"].removesuffix(".gz") + ".index.json"])
        ends = [(block["byte_offset"], block["first_record_offset"]) for block in index["chunks"]]
        assert [(block["byte_offset"], block["first_record_offset"]) for block in sidecar["chunks"]] == ends
    named = objects["last_chunk_index.orders-00003.txt"].decode().removeprefix("pfx/")
    assert named in objects, "the courtesy marker names an object that is not there"


def _without_courtesy(store: MemoryStore) -> dict[str, list[bytes]]:
    """The ancestor's plain-text marker is the one other object that may change."""
    return {key: bodies for key, bodies in store.versions.items() if not key.endswith(".txt")}


def check_complete(layout: str, store: MemoryStore) -> None:
    check(layout, store)
    keys = identity(layout).keys
    chain = read_chain(store.bodies(), keys.home, keys.chunks)
    assert chain is not None
    assert (chain.lines[-1].offset, chain.next_offset) == (82, 90)
    assert len(chain.marker["catalogs"]) == 2, "the run was to fold the tail and the catalogs of level 1"


def cases() -> Iterator[tuple[str, int, Fate]]:
    """Every layout, operation and fate."""
    for layout in LAYOUTS:
        actor = writer(layout, "a", before(layout).copy())
        number = 0
        while actor.operation is not None:
            yield from ((layout, number, fate) for fate in fates_of(actor.operation))
            actor.step()
            number += 1


def interrupted(layout: str, number: int, fate: Fate, takeovers: int = 1) -> tuple[MemoryStore, Actor]:
    """A writer whose operation of that number just met its fate, all before having gone well."""
    store = before(layout).copy()
    actor = writer(layout, "a", store, takeovers)
    for _ in range(number):
        actor.step()
    actor.step(fate)
    return store, actor


def told(layout: str, number: int, fate: Fate) -> str:
    return f"layout {layout}, operation {number}, {fate.value}"


def test_the_script_has_every_kind_of_operation(goes_up_in_parts: bool) -> None:
    kinds = Counter[str]()
    for layout in LAYOUTS:
        actor = writer(layout, "a", before(layout).copy())
        while actor.operation is not None:
            kinds[type(actor.operation).__name__] += 1
            actor.step()
    assert set(kinds) == {
        *("Get", "PutIfAbsent", "CompareAndSwap", "NewToken", "StillAssigned", "ReadLogBounds", "ReadLogRecord"),
        *(["Head"] if goes_up_in_parts else []),
    }
    assert kinds["CompareAndSwap"] >= 2 * (1 + len(SCRIPT)) and kinds["PutIfAbsent"] >= 2 * (2 * len(SCRIPT) + 2)


@pytest.mark.slow
def test_the_writer_continues_where_it_can_and_the_next_one_where_it_cannot() -> None:
    for layout, number, fate in cases():
        store, actor = interrupted(layout, number, fate)
        try:
            check(layout, store)
            actor.run_to_end()
            for request in list(actor.late):
                actor.deliver(request)
            check(layout, store)
            if fate in GIVES_UP:
                actor = writer(layout, "b", store)
                actor.run_to_end()
            assert actor.failure is None
            check_complete(layout, store)
        except AssertionError as error:
            raise AssertionError(told(layout, number, fate)) from error


@pytest.mark.slow
def test_another_writer_takes_over_and_the_first_comes_back_as_a_zombie() -> None:
    for layout, number, fate in cases():
        store, zombie = interrupted(layout, number, fate)
        try:
            other = writer(layout, "b", store)
            other.run_to_end()
            assert other.failure is None
            check_complete(layout, store)
            complete = dict(store.bodies())
            for request in list(zombie.late):
                zombie.deliver(request)
            zombie.run_to_end()
            marker = identity(layout).keys.marker
            # A zombie that had read nothing yet is a writer like any other and may claim; its claim changes no chunk.
            if store.bodies()[marker] != complete[marker]:
                assert zombie.result is not None and zombie.result.marker.tail == other.result.marker.tail
            check_complete(layout, store)
        except AssertionError as error:
            raise AssertionError(told(layout, number, fate)) from error


@pytest.mark.slow
def test_another_writer_takes_over_half_way_through_the_first_ones_commit_and_both_continue_in_turns() -> None:
    for layout, number, fate in cases():
        if fate in CRASHES:
            continue
        store, first = interrupted(layout, number, fate, takeovers=3)
        second = writer(layout, "b", store, takeovers=3)
        try:
            while first.is_alive or second.is_alive:
                for actor in (second, first):
                    if actor.is_alive:
                        actor.step()
            last = writer(layout, "c", store)
            last.run_to_end()
            check_complete(layout, store)
        except AssertionError as error:
            raise AssertionError(told(layout, number, fate)) from error


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_orphan_of_the_dead_is_neither_adopted_nor_overwritten(layout: str) -> None:
    conflicts = 0
    for case_layout, number, fate in cases():
        if case_layout == layout and fate is Fate.CRASH_AFTER:
            store, _ = interrupted(layout, number, fate)
            writer(layout, "b", store).run_to_end()
            conflicts += any("~e" in key for key in store.objects)
    assert conflicts >= 2 * len(SCRIPT) + 2, "data and index of each chunk, and the catalogs"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_writer_that_was_overtaken_learns_it_from_its_next_commit(layout: str) -> None:
    store = before(layout).copy()
    first = writer(layout, "a", store)
    while not isinstance(first.operation, PutIfAbsent):
        first.step()
    writer(layout, "b", store).run_to_end()
    held = store.bodies()[identity(layout).keys.marker]
    first.run_to_end()
    assert first.result is None, "it gave up"
    assert store.bodies()[identity(layout).keys.marker] == held
