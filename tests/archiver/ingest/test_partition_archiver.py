"""One partition, with its threads as in the service, against a store in memory."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archiver.errors import Diverged, Fenced, UnencodableRecord, UnreadableRecord
from archiver.ingest.chunk_builder import ENTRY_BYTES
from archiver.ingest.kafka_source import EndReached, PartitionFailed
from archiver.ingest.partition_state import Order, PartitionCounts, Tick
from blockgz.errors import BufferFailed, PartitionUnavailable, StoreError, StoreUnavailable
from index_format.objects import Gap
from tests.index_format.builders import record
from tests.support.archives import records
from tests.support.partition_bench import FLUSH, PARTITION, Bench, fetched, some, unreadable, until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def test_nine_records_at_three_a_chunk_are_three_chunks(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=3)
    bench.feed(archiver, some(*range(9)))
    assert bench.spans() == [(0, 3, 3), (3, 6, 3), (6, 9, 3)]
    assert archiver.state.counts.chunks == 3 and archiver.state.counts.records == 9
    assert archiver.state.counts.stored_bytes == sum(entry.bytes for entry in archiver.held.marker.tail)
    assert bench.buffer.used_bytes == 0


@pytest.mark.parametrize("sizes", [(1,) * 9, (2,) * 5, (4, 4, 1), (7, 2)])
def test_chunks_hold_exactly_that_many_records_however_they_arrive(bench: Bench, sizes: tuple[int, ...]) -> None:
    archiver = bench.archiver(chunk_records=3)
    rows = records(range(0, 2 * sum(sizes), 2))
    start = 0
    for size in sizes:
        archiver.offer(fetched(rows[start : start + size]))
        start += size
    bench.feed(archiver, FLUSH)
    full, rest = divmod(len(rows), 3)
    assert [count for _, _, count in bench.spans()] == [3] * full + [rest] * bool(rest)
    assert bench.offsets() == [row.offset for row in rows]


class ByHand(Executor):
    """Runs what is submitted when the test says so."""

    def __init__(self) -> None:
        self.submitted: deque[Callable[[], object]] = deque()

    def submit(self, work: Any, /, *_: Any, **__: Any) -> Any:
        self.submitted.append(work)


def test_partitions_take_turns(bench: Bench) -> None:
    """One with much in hand does not keep the others from being built."""
    bench.builders = by_hand = ByHand()
    busy, idle = bench.archiver(partition=3), bench.archiver(partition=4)
    for offset in range(3):
        busy.offer(some(offset))
    idle.offer(some(0))
    positions = []
    while by_hand.submitted:
        by_hand.submitted.popleft()()
        positions.append((busy.state.position, idle.state.position))
    assert positions == [(1, 0), (1, 1), (2, 1), (2, 1), (3, 1), (3, 1)]
    assert busy.state.is_idle and idle.state.is_idle


def test_nothing_is_committed_before_a_limit_is_reached(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1, 2), Tick(bench.now + 59))
    assert bench.chain() is None and archiver.state.position == 3


def test_a_chunk_ends_at_its_compressed_size(bench: Bench) -> None:
    archiver = bench.archiver(chunk_bytes=500)
    for start in range(0, 60, 10):
        archiver.offer(some(*range(start, start + 10)))
    bench.settle()
    assert len(bench.spans()) >= 2
    assert all(entry.bytes >= 500 for entry in archiver.held.marker.tail)


def test_a_chunk_ends_at_its_age(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1))
    bench.now += 59.9
    bench.feed(archiver, Tick(bench.now))
    assert bench.spans() == []
    bench.now += 0.1
    bench.feed(archiver, Tick(bench.now))
    assert bench.spans() == [(0, 2, 2)]


def test_the_age_counts_from_the_first_record(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.now += 1000
    bench.feed(archiver, some(0), Tick(bench.now + 59))
    assert bench.spans() == []


def test_a_chunk_takes_in_the_offsets_after_its_records(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1), EndReached(PARTITION, 5), FLUSH)
    assert bench.spans() == [(0, 5, 2)]
    bench.feed(archiver, some(6), FLUSH)
    assert bench.spans() == [(0, 5, 2), (5, 7, 1)]


def test_a_log_that_starts_above_0(bench: Bench) -> None:
    archiver = bench.archiver(low=70)
    bench.feed(archiver, some(71, 72), FLUSH)
    assert bench.spans() == [(70, 73, 2)]
    chain = bench.chain()
    assert chain is not None and not chain.gaps


def test_progress_without_records_is_committed_at_intervals(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0), FLUSH, EndReached(PARTITION, 8))
    assert archiver.held.marker.next_offset == 1
    bench.now += 60
    bench.feed(archiver, Tick(bench.now))
    assert archiver.held.marker.next_offset == 8
    assert bench.spans() == [(0, 8, 1)]


def test_an_empty_partition_is_noted_as_archived_up_to_its_end(bench: Bench) -> None:
    archiver = bench.archiver(low=5, end_offset=5)
    assert archiver.state.is_drained
    bench.feed(archiver, FLUSH)
    assert (archiver.held.marker.start_offset, archiver.held.marker.next_offset) == (5, 5)


def test_the_next_owner_continues_where_the_last_one_committed(bench: Bench) -> None:
    first = bench.archiver(chunk_records=2)
    bench.feed(first, some(0, 1, 2))
    first.close()
    second = bench.archiver()
    assert second.state.position == 2
    bench.feed(second, some(2, 3), FLUSH)
    assert bench.spans() == [(0, 2, 2), (2, 4, 2)]


def test_a_redelivery_is_dropped_and_counted(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1, 2), some(1, 2, 3, 4), some(3, 4), FLUSH)
    assert bench.offsets() == [0, 1, 2, 3, 4] and archiver.state.counts.dropped_duplicates == 4


@pytest.mark.parametrize("epoch", [None, 3, 4])
def test_a_redelivery_written_under_an_older_leader_is_one_too(bench: Bench, epoch: int | None) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1, leader_epoch=3), some(2, leader_epoch=4), some(0, 1, leader_epoch=epoch), FLUSH)
    assert archiver.state.failure is None and bench.offsets() == [0, 1, 2]


def test_an_offset_that_comes_again_under_a_newer_leader_has_diverged(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.feed(archiver, some(0, 1, 2, leader_epoch=3), some(1, 2, 3, leader_epoch=4))
    assert isinstance(archiver.state.failure, Diverged)
    assert bench.offsets() == [0, 1, 2], "the log forgot what was fetched before"
    assert bench.buffer.used_bytes == 0


def test_a_new_leader_alone_is_not_a_divergence(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1, leader_epoch=3), some(2, leader_epoch=4), FLUSH)
    assert bench.offsets() == [0, 1, 2] and archiver.held.marker.leader_epoch == 4


def test_what_lies_beyond_the_end_offset_is_left_for_the_next_run(bench: Bench) -> None:
    archiver = bench.archiver(end_offset=3)
    bench.feed(archiver, some(0, 1, 2, 3, 4), EndReached(PARTITION, 5))
    assert archiver.state.is_drained and archiver.state.position == 3
    bench.feed(archiver, some(5, 6), unreadable(7), EndReached(PARTITION, 9), FLUSH)
    assert archiver.state.failure is None
    assert bench.spans() == [(0, 3, 3)], "the end of the log lies beyond what was taken from it"
    following = bench.archiver()
    assert following.state.position == 3
    bench.feed(following, some(3, 4, 5, 6), FLUSH)
    assert bench.offsets() == list(range(7))


@pytest.mark.parametrize(
    "last", [some(0, 1, 9), some(9), EndReached(PARTITION, 6), EndReached(PARTITION, 9), unreadable(8)]
)
def test_the_end_offset_is_reached_where_nothing_lies_at_it(bench: Bench, last: Any) -> None:
    archiver = bench.archiver(end_offset=6)
    bench.feed(archiver, last)
    assert archiver.state.is_drained and archiver.state.position == 6
    bench.feed(archiver, FLUSH)
    assert archiver.held.marker.next_offset == 6


def test_short_of_the_end_offset_it_is_not_drained(bench: Bench) -> None:
    archiver = bench.archiver(end_offset=6)
    bench.feed(archiver, some(0, 4))
    assert not archiver.state.is_drained and archiver.state.failure is None
    assert not bench.archiver().state.is_drained, "without an end there is none to reach"


def test_a_log_that_ends_below_the_end_offset_is_looked_at_again(bench: Bench) -> None:
    """It was truncated since the run began: the end would never be reached."""
    archiver = bench.archiver(end_offset=6)
    archiver.offer(some(0, 4))
    archiver.offer(EndReached(PARTITION, 5))
    archiver.offer(some(5))  # polled before anybody looks
    bench.settle()
    assert isinstance(archiver.restart, PartitionUnavailable) and archiver.state.failure is None
    bench.feed(archiver, PartitionFailed(PARTITION, archiver.restart))
    assert isinstance(archiver.state.failure, PartitionUnavailable) and bench.offsets() == [0, 4, 5]


def test_a_bad_record_stops_the_partition_by_default(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1), unreadable(2), some(3))
    assert isinstance(archiver.state.failure, UnreadableRecord)
    bench.feed(archiver, FLUSH)
    assert bench.spans() == [(0, 2, 2)], "what lies before it is archived"
    assert bench.buffer.used_bytes == 0 and archiver.state.inbox_bytes == 0


def test_what_lies_before_a_bad_record_is_committed_first_however_slow_the_store(bench: Bench) -> None:
    archiver = bench.archiver(layout="seed", chunk_records=2)
    bench.store.gated = True
    archiver.offer(fetched([record(0, b"a"), record(1, b"b"), record(2, b"c"), record(4, None), record(5, b"e")]))
    archiver.offer(fetched([record(6, b"f")]))
    until(lambda: archiver.state.position == 4 and bench.store.waiting == 1, "the bad record is seen")
    assert archiver.state.failure is None and not archiver.state.is_idle
    bench.store.gated = False
    bench.store.open(1)
    bench.settle()
    assert isinstance(archiver.state.failure, UnencodableRecord)
    assert bench.spans() == [(0, 2, 2), (2, 4, 1)]
    assert bench.buffer.used_bytes == 0 and archiver.state.inbox_bytes == 0


@pytest.mark.parametrize("position", [0, 5])
def test_a_bad_record_with_nothing_before_it(bench: Bench, position: int) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, unreadable(position))
    assert isinstance(archiver.state.failure, UnreadableRecord)
    assert bench.archiver().state.position == position, "the offsets before it hold nothing"


def test_a_commit_that_fails_before_a_bad_record_is_the_failure(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.store.failure = StoreError("the disk is gone")
    bench.feed(archiver, some(0), unreadable(1))
    assert archiver.state.failure is bench.store.failure and bench.buffer.used_bytes == 0


def test_a_record_that_the_format_cannot_hold_stops_the_partition_by_default(bench: Bench) -> None:
    archiver = bench.archiver(layout="seed")
    bench.feed(archiver, fetched([record(0, b"x"), record(1, None)]))
    assert isinstance(archiver.state.failure, UnencodableRecord)


def test_skipped_records_are_counted_and_recorded_as_gaps(bench: Bench) -> None:
    archiver = bench.archiver(layout="seed", skip=True)
    bench.feed(
        archiver,
        fetched([record(0, b"a"), record(1, None), record(2, None), record(3, b"d")]),
        unreadable(4),
        fetched([record(5, b"f")]),
        unreadable(6),
        FLUSH,
    )
    assert archiver.state.failure is None and archiver.state.counts.skipped == 4
    chain = bench.chain()
    assert chain is not None
    assert (chain.gaps, chain.next_offset) == ([(1, 3), (4, 5), (6, 7)], 7)
    assert bench.offsets() == [0, 3, 5]


def test_an_unreadable_record_that_comes_again_is_a_redelivery(bench: Bench) -> None:
    archiver = bench.archiver(skip=True)
    bench.feed(archiver, some(0), unreadable(1), some(2), unreadable(1), FLUSH)
    chain = bench.chain()
    assert archiver.state.failure is None and chain is not None and chain.gaps == [(1, 2)]


@pytest.mark.parametrize("by_tick", [True, False])
def test_progress_over_nothing_but_skipped_records(bench: Bench, by_tick: bool) -> None:
    archiver = bench.archiver(skip=True)
    archiver.offer(unreadable(0))
    archiver.offer(unreadable(1))
    bench.now += 60
    bench.feed(archiver, FLUSH)
    assert archiver.held.marker.next_offset == 2
    bench.feed(archiver, unreadable(2))
    bench.now += 60
    bench.feed(archiver, Tick(bench.now) if by_tick else FLUSH)
    assert (archiver.state.failure, archiver.held.marker.next_offset) == (None, 3)
    bench.feed(archiver, some(3), FLUSH)
    chain = bench.chain()
    assert chain is not None and (chain.gaps, chain.next_offset) == ([(0, 3)], 4)
    assert bench.offsets() == [3]


def test_a_slow_store_stalls_the_partition_after_a_chunk_in_flight_and_one_that_waits(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.store.gated = True
    for start in range(0, 20, 2):
        archiver.offer(some(start, start + 1))
    until(lambda: archiver.state.position == 4 and bench.store.waiting == 1, "two chunks are finished")
    waiting = archiver.state.inbox_bytes
    assert waiting > 0 and not archiver.state.is_idle
    for _ in range(100):
        archiver.offer(Tick(bench.now))
    assert archiver.state.position == 4 and archiver.state.inbox_bytes == waiting
    bench.store.gated = False
    bench.store.open(1)
    bench.settle()
    assert bench.spans() == [(start, start + 2, 2) for start in range(0, 20, 2)]
    assert archiver.state.inbox_bytes == 0 and bench.buffer.used_bytes == 0


def test_building_continues_as_soon_as_one_commit_is_done(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.store.gated = True
    for start in range(0, 20, 2):
        archiver.offer(some(start, start + 1))
    until(lambda: archiver.state.position == 4 and bench.store.waiting == 1, "two chunks are finished")
    bench.store.open(3)  # data, index and marker of the first chunk
    until(lambda: archiver.state.position == 6, "the third chunk is built while the second is committed")
    assert bench.spans() == [(0, 2, 2)]


def test_it_says_whether_a_chunk_waits_to_be_committed(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0))
    assert not archiver.state.is_committing
    bench.store.gated = True
    archiver.offer(FLUSH)
    assert archiver.state.is_committing
    until(lambda: bench.store.waiting == 1, "the chunk is being committed")
    assert archiver.state.is_committing
    bench.store.gated = False
    bench.store.open(1)
    bench.settle()
    assert not archiver.state.is_committing


def test_progress_is_not_queued_beside_a_commit(bench: Bench) -> None:
    """It would be computed from a marker that the commit is about to replace."""
    archiver = bench.archiver(chunk_records=2)
    bench.store.gated = True
    archiver.offer(some(0, 1))
    until(lambda: bench.store.waiting == 1, "the chunk is being stored")
    archiver.offer(EndReached(PARTITION, 5))
    archiver.offer(FLUSH)
    until(lambda: archiver.state.position == 5 and not archiver.state.inbox, "the flush is handled")
    until(lambda: not archiver.state.is_building, "the builder rests")
    assert len(archiver.state.pending) == 1 and archiver.state.chain_end == 2
    bench.store.gated = False
    bench.store.open(1)
    bench.settle()
    bench.feed(archiver, some(5, 6))
    assert bench.spans() == [(0, 2, 2), (2, 7, 2)]


def test_ticks_do_not_pile_up_behind_a_slow_store(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=1)
    bench.store.gated = True
    archiver.offer(some(0))
    archiver.offer(some(1))
    until(lambda: archiver.state.position == 2, "the partition is stalled")
    archiver.offer(some(2))
    for _ in range(1000):
        archiver.offer(Tick(bench.now))
    assert len(archiver.state.inbox) == 1


@pytest.mark.slow
def test_one_batch_of_many_chunks_is_cut_whole(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=1)
    bench.feed(archiver, some(*range(200)))
    counts = archiver.state.counts
    assert (counts.records, counts.chunks, counts.commits, counts.commit_seconds) == (200, 200, 200, 0.0)
    assert bench.offsets() == list(range(200))


def test_a_failed_commit_stops_the_partition_and_gives_everything_back(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.store.gated = True
    for start in range(0, 10, 2):
        archiver.offer(some(start, start + 1))
    until(lambda: archiver.state.position == 4, "two chunks are finished")
    bench.store.failure = StoreError("the disk is gone")
    bench.store.gated = False
    bench.store.open(1)
    bench.settle()
    assert archiver.state.failure is bench.store.failure
    bench.feed(archiver, some(10, 11))
    bench.store.failure = None
    assert bench.chain() is None
    assert (archiver.state.inbox_bytes, archiver.state.open_bytes, bench.buffer.used_bytes) == (0, 0, 0)


def test_a_store_that_stays_away_ends_as_the_driver_decides(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=1)
    bench.store.failure = StoreUnavailable("no answer")
    bench.feed(archiver, some(0))
    assert isinstance(archiver.state.failure, StoreUnavailable) and "3 times" in archiver.state.failure.what


def test_a_fenced_writer_stops(bench: Bench) -> None:
    first = bench.archiver()
    first.offer(some(0, 1))
    second = bench.archiver()
    first.offer(FLUSH)
    until(lambda: first.state.is_idle, "the first writer is idle")
    assert isinstance(first.state.failure, Fenced)
    bench.feed(second, some(0, 1, 2), FLUSH)
    assert bench.offsets() == [0, 1, 2]


def test_a_fault_of_our_own_stops_the_partition_and_blocks_nothing(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.feed(archiver, some(0, 1), replace(some(2), leader_epoch="no epoch"))
    assert archiver.state.failure is not None and "internal error" in archiver.state.failure.what
    assert isinstance(archiver.state.failure.__cause__, TypeError)
    assert bench.buffer.used_bytes == 0 and archiver.state.inbox_bytes == 0


def test_a_fault_of_our_own_in_a_commit_stops_the_partition_and_blocks_nothing(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.store.failure = ZeroDivisionError()
    bench.feed(archiver, some(0, 1))
    assert archiver.state.failure is not None and isinstance(archiver.state.failure.__cause__, ZeroDivisionError)
    assert bench.buffer.used_bytes == 0


@pytest.mark.slow
def test_a_buffer_that_fails_stops_the_partition(bench: Bench, tmp_path: Path) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(*range(2000)))
    (path,) = tmp_path.glob("*/*.chunk")
    path.unlink()
    bench.feed(archiver, FLUSH)
    assert isinstance(archiver.state.failure, BufferFailed) and bench.buffer.used_bytes == 0


def test_a_closed_partition_writes_nothing_more(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(*range(100)))
    assert bench.buffer.used_bytes > 0
    archiver.close()
    bench.feed(archiver, FLUSH)
    assert bench.chain() is None and bench.buffer.used_bytes == 0 and archiver.state.failure is None


def test_closing_during_a_commit_lets_that_one_end_and_drops_the_rest(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.store.gated = True
    for start in range(0, 10, 2):
        archiver.offer(some(start, start + 1))
    until(lambda: archiver.state.position == 4 and bench.store.waiting == 1, "two chunks are finished")
    archiver.close()
    bench.store.gated = False
    bench.store.open(1)
    bench.settle()
    assert bench.spans() == [(0, 2, 2)] and bench.buffer.used_bytes == 0


def test_counts_add_up() -> None:
    some_counts, more = PartitionCounts(*range(1, 8)), PartitionCounts(*range(10, 80, 10))
    assert some_counts + more == PartitionCounts(*range(11, 88, 11))


def test_an_open_block_is_told_to_end_once_while_the_partition_waits(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.store.gated = True
    for offset in range(3):  # the third chunk waits for the first, so that the inbox stands still
        archiver.offer(some(offset))
        archiver.offer(FLUSH)
    until(lambda: bench.store.waiting == 1, "the first commit is under way")
    archiver.offer(some(3))
    archiver.offer(Order.END_BLOCK)
    archiver.offer(some(4))
    archiver.offer(Order.END_BLOCK)
    bench.store.gated = False
    bench.store.open(100)
    bench.settle()
    chunk = archiver.state.open_chunk
    assert chunk is not None and (chunk.num_records, chunk.num_blocks) == (2, 1)
    assert archiver.state.open_index_bytes == ENTRY_BYTES


@pytest.mark.slow
def test_chunks_with_many_skipped_records_end_and_fold(bench: Bench) -> None:
    archiver = bench.archiver(layout="seed", skip=True, chunk_bytes=10**9)
    for start in range(0, 24_000, 2000):
        values = [b"good" if offset % 2 else b"two\nlines" for offset in range(start, start + 2000)]
        archiver.offer(fetched([record(start + row, value, timestamp=0) for row, value in enumerate(values)]))
    bench.feed(archiver, FLUSH)
    marker = archiver.held.marker
    assert (archiver.state.failure, marker.num_records, archiver.state.counts.skipped) == (None, 12_000, 12_000)
    assert marker.num_chunks == 12, "each has a thousand gaps"
    assert len(marker.gaps) == 1000, "those before moved into catalogs"


@pytest.mark.slow
def test_records_of_which_all_are_skipped_make_one_gap(bench: Bench) -> None:
    archiver = bench.archiver(layout="seed", skip=True)
    for offset in range(0, 900, 3):
        bench.feed(archiver, fetched([record(offset, None, timestamp=0)]), FLUSH)
    marker = archiver.held.marker
    assert (marker.gaps, marker.next_offset) == ((Gap(0, 898, "skipped"),), 898)
    assert archiver.state.counts.skipped == 300
