"""A batch whose data one process stores and another commits: every fate of every operation, and random schedules."""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import pytest

from archiver.commit.batch import ChainEnd, Committed, commit_batch, commit_reading, gap_before
from archiver.commit.commit import PartitionIdentity, StoredChunk, store_data
from archiver.commit.operations import Protocol
from archiver.commit.recovery import TakeoverPolicy, read_own
from archiver.errors import Fenced, GapRefused, OwnedByAnother
from blockgz.errors import UsageError
from index_format import marker as markers
from index_format import objects
from index_format.keys import archive_key
from index_format.marker import Marker
from index_format.objects import ArchiveInfo, Gap
from index_format.records import Record
from tests.support.archives import records
from tests.support.chain import Chain, check_history, read_chain
from tests.support.chunks import POLICY, archive_all, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.sampling import LONG
from tests.support.simulator import CRASHES, Actor, Fate, Scenario, fates_of, simulate

SEED = random.randrange(2**32)
GIVES_UP = (*CRASHES, Fate.TAKEN_AWAY)
LAYOUTS = ("topic", "seed")
BATCHES = (range(0, 6), range(6, 12), range(12, 20))
"""Rows of the log that each batch brings, two chunks of two tasks."""
SCHEDULES = 240 if LONG else 60


@cache
def log_of(layout: str) -> MemoryLog:
    """Records with holes inside the batches, and none between them."""
    offsets = [0, 1, 2, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 17, 18, 19, 20, 25, 26, 27]
    rows = records(offsets, value_bytes=0)
    if layout == "seed":
        rows = [Record(row.offset, row.timestamp, row.timestamp_type, None, b"%d" % row.offset, ()) for row in rows]
    return MemoryLog(rows)


@cache
def holey_log_of(layout: str) -> MemoryLog:
    """The same with holes wherever batches may meet."""
    rows = [row._replace(offset=row.offset + 3 * number) for number, row in enumerate(log_of(layout).records)]
    if layout == "seed":
        rows = [row._replace(value=b"%d" % row.offset) for row in rows]
    return MemoryLog(rows)


def readings_of(log: MemoryLog, batches: Sequence[range]) -> list[range]:
    """What batches read that cut the log in the middle of holes."""
    offsets = [row.offset for row in log.records]
    ends = [(offsets[cut.stop - 1] + offsets[cut.stop]) // 2 for cut in batches[:-1]]
    cuts = [0 if batches[0].start == 0 else offsets[batches[0].start], *ends, log.high]
    return [range(start, end) for start, end in pairwise(cuts)]


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
    identity: PartitionIdentity, rows: Sequence[Record], policy: TakeoverPolicy = POLICY, reading: range | None = None
) -> Protocol[Committed | None]:
    """A whole batch of two tasks; None where there was nothing new."""
    half = (len(rows) + 1) // 2
    ends, chunks = yield from tasks(identity, [rows[:half], rows[half:]])
    if not chunks:
        if reading is not None:
            yield from commit_reading(identity, reading, policy)
        return None
    return (yield from commit_batch(identity, ends, chunks, policy, reading))


def query(
    layout: str, batches: Sequence[range] = BATCHES, restarts: int = 0, log: MemoryLog | None = None
) -> Protocol[None]:
    """All batches in order, each from its beginning again where another writer was quicker.

    Of a `log` of its own it knows what each batch read.
    """
    rows = (log or log_of(layout)).records
    readings = readings_of(log, batches) if log else [None] * len(batches)
    for each, reading in zip(batches, readings, strict=True):
        for _ in range(restarts + 1):
            try:
                yield from batch(identity(layout), [rows[row] for row in each], reading=reading)
            except OwnedByAnother:
                continue
            break
        else:
            return


def actor(
    name: str, store: MemoryStore, protocol: Protocol[object], layout: str = "topic", log: MemoryLog | None = None
) -> Actor:
    return Actor(name, protocol, store, log or log_of(layout), random.Random(name))


def run(store: MemoryStore, protocol: Protocol[Committed | None]) -> Committed | None:
    one = actor("one", store, protocol, log=MemoryLog([], high=2**40))  # batches may leave out any offsets
    one.run_to_end()
    if one.failure is not None:
        raise one.failure
    result: Committed | None = one.result
    return result


def check(layout: str, store: MemoryStore, log: MemoryLog | None = None) -> int:
    """The committed chain is a whole beginning of the log, so that gaps hold no record; gives its end.

    Of a `log` of its own it has no gaps.
    """
    keys = identity(layout).keys
    versions = {key: bodies for key, bodies in store.versions.items() if not key.endswith(".txt")}
    check_history(versions, keys.home)
    chain = read_chain(store.bodies(), keys.home, keys.chunks)
    if chain is None:
        return 0
    rows = (log or log_of(layout)).records
    assert [tuple(line) for line in chain.lines] == [
        (row.offset, row.value) for row in rows if row.offset < chain.next_offset
    ]
    assert log is None or chain.gaps == []
    return chain.next_offset


def check_prefix(layout: str, store: MemoryStore, log: MemoryLog | None = None) -> None:
    check(layout, store, log)


def check_complete(layout: str, store: MemoryStore, log: MemoryLog | None = None) -> None:
    assert check(layout, store, log) == (log or log_of(layout)).high


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_becomes_of_an_operation_holes_within_what_was_read_are_not_gaps(layout: str) -> None:
    log = holey_log_of(layout)
    one, number = actor("a", MemoryStore("pfx/"), query(layout, log=log), layout, log), 0
    fates = list[tuple[int, Fate]]()
    while one.operation is not None:
        fates += [(number, fate) for fate in fates_of(one.operation)]
        one.step()
        number += 1
    for number, fate in fates:
        store = MemoryStore("pfx/")
        one = actor("a", store, query(layout, restarts=1, log=log), layout, log)
        try:
            for _ in range(number):
                one.step()
            one.step(fate)
            one.run_to_end()
            for request in list(one.late):
                one.deliver(request)
            check(layout, store, log)
            again = actor("b", store, query(layout, [range(0, 3), range(3, 15), range(15, 20)], log=log), layout, log)
            again.run_to_end()
            assert again.failure is None
            assert check(layout, store, log) == log.high
        except AssertionError as error:
            raise AssertionError(f"operation {number}, {fate.value}") from error


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("knows", [False, True])
def test_queries_archivers_zombies_and_garbage_collection_in_random_schedules(layout: str, knows: bool) -> None:
    """Queries that know what they read leave no gaps, whoever else writes and wherever the others end."""
    log = holey_log_of(layout) if knows else None

    def writer(name: str, rng: random.Random) -> Protocol[object]:
        if rng.random() < 0.3:  # `archiver run` of the same group on the same partition
            return archive_all(
                identity(layout), log or log_of(layout), name, lambda: rng.choice((1, 2, 3)), takeovers=2
            )
        edges = sorted({0, len(log_of(layout).records), *(rng.randrange(1, 20) for _ in range(rng.randrange(4)))})
        cuts = [range(start, end) for start, end in pairwise(edges)]
        return query(layout, cuts, restarts=2, log=log)

    scenario = Scenario(
        empty_archive(layout),
        log or log_of(layout),
        writer,
        lambda store: check_prefix(layout, store, log),
        lambda store: check_complete(layout, store, log),
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


def marker_of(store: MemoryStore) -> Marker:
    return markers.decode_marker(store.bodies()[identity_of().keys.marker])


@pytest.mark.parametrize(
    ("reading", "is_hole"),
    [
        (None, False),
        (range(11, 30), True),
        (range(0, 30), True),
        (range(10, 30), True),
        (range(12, 30), False),
        (range(13, 30), False),
    ],
    ids=["unknown", "from the end on", "from the start", "from before the end", "behind the end", "from the record on"],
)
def test_a_hole_is_known_where_the_batch_read_from_the_archives_end_on(reading: range | None, is_hole: bool) -> None:
    store = MemoryStore()
    run(store, batch(identity_of(), rows(0, 1, 9, 10)))
    assert marker_of(store).next_offset == 11
    assert gap_before(marker_of(store), 11, reading) is None, "nothing lies between"
    assert gap_before(marker_of(store), 13, reading) == (None if is_hole else Gap(11, 13, "unverified"))


def test_a_reading_of_another_batch_is_not_believed() -> None:
    for wrong in (range(0, 20), range(14, 30)):
        store = MemoryStore()
        run(store, batch(identity_of(), rows(0, 1)))
        done = run(store, batch(identity_of(), rows(13, 14, 20), reading=wrong))
        assert done == Committed(21, 3, 2, Gap(2, 13, "unverified"), 0)


def test_the_archive_ends_where_the_batch_did_and_the_next_hole_is_reached_over() -> None:
    store = MemoryStore()
    assert run(store, batch(identity_of(), rows(2, 3), reading=range(0, 6))) == Committed(6, 2, 2, None, 0)
    assert run(store, batch(identity_of(), rows(8, 9), reading=range(6, 12))) == Committed(12, 2, 2, None, 0)
    chain = read(store)
    assert (chain.start_offset, chain.gaps, chain.next_offset) == (2, [], 12)
    assert [(each["start_offset"], each["next_offset"]) for each in chain.marker["tail"]] == [
        (2, 3),
        (3, 8),
        (8, 9),
        (9, 12),
    ]


def test_where_gaps_are_refused_known_holes_are_not() -> None:
    store = MemoryStore()
    strict = TakeoverPolicy(gaps_are_recorded=False, other_groups_are_replaced=False)
    run(store, batch(identity_of(), rows(0, 1)))
    assert run(store, batch(identity_of(), rows(4, 5), strict, range(2, 8))) == Committed(8, 2, 2, None, 0)
    with pytest.raises(GapRefused):
        run(store, batch(identity_of(), rows(11, 12), strict, range(9, 20)))


def test_batches_without_a_record_move_an_archives_end_and_begin_none() -> None:
    store = MemoryStore()
    run(store, batch(identity_of(), [], reading=range(0, 5)))
    assert identity_of().keys.marker not in store.bodies()
    run(store, batch(identity_of(), rows(6, 7), reading=range(5, 9)))
    for start, end in ((9, 12), (12, 15)):
        run(store, batch(identity_of(), [], reading=range(start, end)))
    assert run(store, batch(identity_of(), rows(17), reading=range(15, 18))) == Committed(18, 1, 1, None, 0)
    before = store.bodies()[identity_of().keys.marker]
    for elsewhere in (range(19, 30), range(0, 18), range(0, 10)):
        run(store, batch(identity_of(), [], reading=elsewhere))
        assert store.bodies()[identity_of().keys.marker] == before
    run(store, batch(identity_of(), rows(6, 7), reading=range(0, 25)))  # read again without a checkpoint
    chain = read(store)
    assert (chain.gaps, chain.next_offset, chain.start_offset) == ([], 25, 6)


def test_a_hole_after_a_gap_that_ends_the_archive_is_taken_for_a_gap() -> None:
    """The next chunk would have to start at the gap's end, and tasks do not know that."""
    store = MemoryStore()
    run(store, batch(identity_of(), rows(0, 1)))
    found = store.get(identity_of().keys.marker)
    assert found is not None
    gap = markers.advanced(marker_of(store), 5, nonce="n1", leader_epoch=None, gaps=[Gap(2, 5, "retention")])
    store.compare_and_swap(identity_of().keys.marker, markers.encode(gap), found.etag)
    done = run(store, batch(identity_of(), rows(7, 8), reading=range(5, 10)))
    assert done == Committed(10, 2, 2, Gap(5, 7, "unverified"), 0)
    assert read(store).gaps == [(2, 5), (5, 7)]


def test_after_a_gap_and_progress_without_records_the_chunk_starts_where_the_chain_ends() -> None:
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
    with pytest.raises(Fenced, match="archived up to 3 during this batch"):
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
