"""A batch whose data one process stores and another commits: every fate of every operation, and random schedules."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import pytest

from archiver.errors import Fenced, GapRefused, OwnedByAnother, UsageError
from archiver.protocol.batch import ChainEnd, Committed, commit_batch
from archiver.protocol.commit import PartitionIdentity, StoredChunk, store_data
from archiver.protocol.operations import Protocol
from archiver.protocol.recovery import TakeoverPolicy, read_own
from index_format import marker as markers
from index_format import objects
from index_format.chunk_index import Gap
from index_format.identity import ArchiveInfo
from index_format.keys import archive_key
from index_format.records import Record
from tests.support.archives import records
from tests.support.chain import Chain, check_history, read_chain
from tests.support.chunks import POLICY, archive_all, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import CRASHES, Actor, Fate, Scenario, fates_of, simulate

SEED = random.randrange(2**32)
GIVES_UP = (*CRASHES, Fate.TAKEN_AWAY)
LAYOUTS = ("topic", "seed")
BATCHES = (range(0, 6), range(6, 12), range(12, 20))
"""Rows of the log that each batch brings, two chunks of two tasks."""
SCHEDULES = 300


@cache
def log_of(layout: str) -> MemoryLog:
    """Records with holes inside the batches, and none between them."""
    offsets = [0, 1, 2, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18, 19, 20, 25, 26, 27]
    rows = records(offsets, value_bytes=0)
    if layout == "seed":
        rows = [Record(row.offset, row.timestamp, row.timestamp_type, None, b"%d" % row.offset, ()) for row in rows]
    return MemoryLog(rows)


@cache
def identity(layout: str) -> PartitionIdentity:
    return identity_of(layout, key_prefix="pfx/")


def tasks(
    identity: PartitionIdentity, parts: Sequence[Sequence[Record]]
) -> Protocol[tuple[list[ChainEnd], list[StoredChunk]]]:
    """What tasks do, one after the other: each reads the marker for itself and stores what is new of its part."""
    ends, chunks = list[ChainEnd](), list[StoredChunk]()
    for part in parts:
        held = yield from read_own(identity, POLICY)
        end = ChainEnd.of(held)
        new = tuple(row for row in part if end.next_offset is None or row.offset >= end.next_offset)
        if not new:
            continue
        chunk = finished_chunk(identity.record_format, new, end.start_of(new[0].offset), new[-1].offset + 1)
        chunks.append((yield from store_data(identity, chunk, 1)))
        ends.append(end)
    return ends, chunks


def batch(
    identity: PartitionIdentity, rows: Sequence[Record], policy: TakeoverPolicy = POLICY
) -> Protocol[Committed | None]:
    """A whole batch of two tasks; None where there was nothing new."""
    half = (len(rows) + 1) // 2
    ends, chunks = yield from tasks(identity, [rows[:half], rows[half:]])
    if not chunks:
        return None
    return (yield from commit_batch(identity, ends, chunks, policy))


def query(layout: str, batches: Sequence[range] = BATCHES, restarts: int = 0) -> Protocol[None]:
    """All batches in order, each from its beginning again where another writer was quicker."""
    rows = log_of(layout).records
    for each in batches:
        for _ in range(restarts + 1):
            try:
                yield from batch(identity(layout), [rows[row] for row in each])
            except OwnedByAnother:
                continue
            break
        else:
            return


def actor(name: str, store: MemoryStore, protocol: Protocol[object], layout: str = "topic") -> Actor:
    return Actor(name, protocol, store, log_of(layout), random.Random(name))


def run(store: MemoryStore, protocol: Protocol[Committed | None]) -> Committed | None:
    one = actor("one", store, protocol)
    one.run_to_end()
    if one.failure is not None:
        raise one.failure
    result: Committed | None = one.result
    return result


def check(layout: str, store: MemoryStore) -> int:
    """The committed chain is a whole beginning of the log, so that gaps hold no record; gives its end."""
    keys = identity(layout).keys
    versions = {key: bodies for key, bodies in store.versions.items() if not key.endswith(".txt")}
    check_history(versions, keys.home)
    chain = read_chain(store.bodies(), keys.home, keys.chunks)
    if chain is None:
        return 0
    expected = [(row.offset, row.value) for row in log_of(layout).records if row.offset < chain.next_offset]
    assert [tuple(line) for line in chain.lines] == expected
    return chain.next_offset


def check_prefix(layout: str, store: MemoryStore) -> None:
    check(layout, store)


def check_complete(layout: str, store: MemoryStore) -> None:
    assert check(layout, store) == log_of(layout).high


def empty_archive(layout: str) -> MemoryStore:
    store = MemoryStore("pfx/")
    info = ArchiveInfo(archive_id=identity(layout).archive_id, cluster_id=None, layout=layout)
    store.put_if_absent(archive_key(layout), objects.encode(info), "-")
    return store


def cases() -> Iterator[tuple[str, int, Fate]]:
    for layout in LAYOUTS:
        one, number = actor("a", MemoryStore("pfx/"), query(layout), layout), 0
        while one.operation is not None:
            yield from ((layout, number, fate) for fate in fates_of(one.operation))
            one.step()
            number += 1


def test_whatever_becomes_of_an_operation_a_repeated_query_ends_with_every_record_once() -> None:
    for layout, number, fate in cases():
        store = MemoryStore("pfx/")
        one = actor("a", store, query(layout, restarts=1), layout)
        try:
            for _ in range(number):
                one.step()
            one.step(fate)
            check(layout, store)
            one.run_to_end()
            for request in list(one.late):
                one.deliver(request)
            check(layout, store)
            again = actor("b", store, query(layout), layout)  # a lost checkpoint: from the first batch
            again.run_to_end()
            assert again.failure is None
            check_complete(layout, store)
        except AssertionError as error:
            raise AssertionError(f"layout {layout}, operation {number}, {fate.value}") from error


def test_a_zombie_driver_comes_back_after_another_did_its_work() -> None:
    for layout, number, fate in cases():
        if fate in CRASHES:
            continue
        store = MemoryStore("pfx/")
        zombie = actor("a", store, query(layout), layout)
        for _ in range(number):
            zombie.step()
        zombie.step(fate)
        other = actor("b", store, query(layout), layout)
        other.run_to_end()
        assert other.failure is None
        check_complete(layout, store)
        for request in list(zombie.late):
            zombie.deliver(request)
        zombie.run_to_end()
        try:
            check_complete(layout, store)
        except AssertionError as error:
            raise AssertionError(f"layout {layout}, operation {number}, {fate.value}") from error


@pytest.mark.parametrize("layout", LAYOUTS)
def test_queries_archivers_zombies_and_garbage_collection_in_random_schedules(layout: str) -> None:
    def writer(name: str, rng: random.Random) -> Protocol[object]:
        if rng.random() < 0.3:  # `archiver run` of the same group on the same partition
            return archive_all(identity(layout), log_of(layout), name, lambda: rng.choice((1, 2, 3)), takeovers=2)
        edges = sorted({0, len(log_of(layout).records), *(rng.randrange(1, 20) for _ in range(rng.randrange(4)))})
        cuts = [range(start, end) for start, end in pairwise(edges)]
        return query(layout, cuts, restarts=2)

    scenario = Scenario(
        empty_archive(layout),
        log_of(layout),
        writer,
        lambda store: check_prefix(layout, store),
        lambda store: check_complete(layout, store),
    )
    for number in range(SCHEDULES):
        simulate(scenario, SEED + number, writers=3, collectors=layout == "topic")


def rows(*offsets: int) -> list[Record]:
    return records(offsets, value_bytes=0)


def test_the_first_batch_begins_the_chain_at_its_first_offset() -> None:
    store = MemoryStore()
    done = run(store, batch(identity_of(), rows(7, 8, 12)))
    assert done == Committed(13, 3, 2, None, 0)
    assert read(store).start_offset == 7


def test_a_jump_between_batches_is_a_gap_and_one_inside_a_batch_is_not() -> None:
    store = MemoryStore()
    run(store, batch(identity_of(), rows(0, 1, 9, 10)))
    done = run(store, batch(identity_of(), rows(13, 14, 20)))
    assert done is not None and done.gap == Gap(11, 13, "unverified")
    chain = read(store)
    assert (chain.gaps, chain.next_offset) == ([(11, 13)], 21)
    assert [line.offset for line in chain.lines] == [0, 1, 9, 10, 13, 14, 20]


def test_a_jump_may_be_refused() -> None:
    store = MemoryStore()
    run(store, batch(identity_of(), rows(0, 1)))
    strict = TakeoverPolicy(gaps_are_recorded=False, other_groups_are_replaced=False)
    before = store.bodies()[identity_of().keys.marker]
    with pytest.raises(GapRefused):
        run(store, batch(identity_of(), rows(3, 4), strict))
    assert store.bodies()[identity_of().keys.marker] == before, "a refused batch fences nobody"


def test_behind_a_gap_and_progress_without_records_the_chunk_starts_where_the_chain_ends() -> None:
    store = MemoryStore()
    run(store, batch(identity_of(), rows(0, 1)))
    marker = markers.decode_marker(store.bodies()[identity_of().keys.marker])
    gap = markers.advanced(marker, 5, nonce="n1", leader_epoch=None, gaps=[Gap(2, 5, "retention")])
    further = markers.advanced(gap, 8, nonce="n2", leader_epoch=None)
    assert (further.chain_end, further.next_offset) == (5, 8)
    found = store.get(identity_of().keys.marker)
    assert found is not None
    store.compare_and_swap(identity_of().keys.marker, markers.encode(further), found.etag)
    run(store, batch(identity_of(), rows(8, 9, 10)))
    assert [entry["start_offset"] for entry in read(store).marker["tail"]] == [0, 1, 5, 10]


def test_what_was_archived_since_passes_and_what_was_archived_in_part_is_refused() -> None:
    store = MemoryStore()
    stored = actor("tasks", store, tasks(identity_of(), [rows(0, 1), rows(2, 3)]))
    stored.run_to_end()
    ends, chunks = stored.result
    run(store, batch(identity_of(), rows(0, 1, 2)))
    with pytest.raises(Fenced, match="archived up to 3 while this batch was under way"):
        run(store, commit_batch(identity_of(), ends, chunks, POLICY))
    run(store, batch(identity_of(), rows(3, 4, 5)))
    before = store.bodies()[identity_of().keys.marker]
    assert run(store, commit_batch(identity_of(), ends, chunks, POLICY)) == Committed(6, 0, 0, None, 4)
    assert store.bodies()[identity_of().keys.marker] == before


def test_another_group_and_another_isolation_level_are_refused() -> None:
    store = MemoryStore()
    run(store, batch(identity_of(), rows(0, 1)))
    with pytest.raises(OwnedByAnother):
        run(store, batch(identity_of(group_id="other"), rows(2, 3)))
    other = identity_of()
    level = PartitionIdentity(**{**other.__dict__, "isolation_level": "read_uncommitted"})
    with pytest.raises(UsageError, match="isolation level"):
        run(store, batch(level, rows(2, 3)))


def read(store: MemoryStore) -> Chain:
    keys = identity_of().keys
    chain = read_chain(store.bodies(), keys.home, keys.chunks)
    assert chain is not None
    return chain
