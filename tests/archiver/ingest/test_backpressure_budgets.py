"""Budgets kept over several partitions, with their threads and their buffer as in the service."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest

from archiver.ingest.backpressure import LARGEST_PART, LEAST_SHARE_BYTES, Budgets
from archiver.ingest.chunk_builder import BUFFER_SHARE_OF_OPEN_CHUNKS
from archiver.ingest.kafka_source import Fetched, Partition
from archiver.ingest.partition_archiver import PartitionArchiver
from index_format.records import batch_from_records
from tests.archiver.ingest.test_partition_archiver import Bench, until
from tests.index_format.builders import record

BIG = 10**9
SHARES_OF_OPEN_BLOCKS = 12
VALUE = b"x" * 100


class Partitions:
    """Four claimed partitions that share a buffer; blocks of 200 bytes hold one record each."""

    def __init__(self, root: Path) -> None:
        self.bench = Bench(root)
        self.work: dict[Partition, PartitionArchiver] = {}
        self.claim()
        self._next = dict.fromkeys(range(4), 0)
        self._may_wait = False

    def claim(self) -> None:
        for number in range(4):
            self.work["orders", number] = self.bench.archiver(partition=number)

    def budgets(self, *, memory: int = BIG, buffer_bytes: int = BIG) -> Budgets:
        return Budgets(memory, self.bench.buffer, buffer_bytes)

    def feed(self, number: int, records: int) -> None:
        """Records that end in buffered blocks, all but the last one."""
        offsets = range(self._next[number], self._next[number] + records)
        self._next[number] += records
        batch = batch_from_records([record(offset, VALUE) for offset in offsets])
        archiver = self.work["orders", number]
        archiver.offer(Fetched(("orders", number), batch, 0, batch.nbytes))
        self.until(
            lambda: archiver.state.inbox_bytes == 0 or archiver.state.is_blocked or self._may_wait,
            "the records are taken",
        )

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Nothing is encoded within the context: both threads that would are busy."""
        released = Event()
        for _ in range(2):
            self.bench.builders.submit(released.wait)
        self._may_wait = True
        try:
            yield
        finally:
            self._may_wait = False
            released.set()

    def settle(self) -> None:
        self.until(lambda: all(archiver.state.is_idle for archiver in self.work.values()), "all partitions are idle")

    def chunks(self) -> list[int]:
        """The number of committed chunks of each partition."""
        return [archiver.state.counts.chunks for archiver in self.work.values()]

    @staticmethod
    def until(condition: Callable[[], bool], what: str) -> None:
        until(condition, what)


@pytest.fixture
def partitions(tmp_path: Path) -> Iterator[Partitions]:
    partitions = Partitions(tmp_path)
    yield partitions
    partitions.bench.close()


def test_a_full_buffer_is_emptied_by_committing_the_largest_chunks(partitions: Partitions) -> None:
    for number, records in enumerate((3, 30, 12, 20)):
        partitions.feed(number, records)
    partitions.settle()
    sizes = [archiver.state.open_bytes for archiver in partitions.work.values()]
    # Without the largest one the rest lies inside the open chunks' share.
    budgets = partitions.budgets(buffer_bytes=int((sum(sizes) - sizes[1] + 1) / BUFFER_SHARE_OF_OPEN_CHUNKS))
    budgets.relieve(partitions.work)
    partitions.settle()
    assert partitions.chunks() == [0, 1, 0, 0]
    assert partitions.bench.buffer.used_bytes == sum(sizes) - sizes[1]
    budgets.relieve(partitions.work)
    partitions.settle()
    assert partitions.chunks() == [0, 1, 0, 0], "the rest fits"


def test_while_the_store_hangs_each_partition_ends_one_chunk_and_no_more(partitions: Partitions) -> None:
    for _, number in partitions.work:
        partitions.feed(number, 20)
    partitions.settle()
    partitions.bench.store.gated = True
    budgets = partitions.budgets(buffer_bytes=partitions.bench.buffer.used_bytes)
    for (_, number), archiver in partitions.work.items():
        assert not budgets.have_capacity(partitions.work)
        budgets.relieve(partitions.work)
        partitions.until(lambda archiver=archiver: not archiver.state.open_bytes, f"the chunk of {number} has ended")
        partitions.feed(number, 20)  # a new chunk fills the buffer behind the one that waits
    budgets.relieve(partitions.work)
    partitions.bench.store.gated = False
    partitions.bench.store.open(1000)
    partitions.settle()
    assert partitions.chunks() == [1, 1, 1, 1]
    budgets.relieve(partitions.work)
    partitions.settle()
    assert sum(partitions.chunks()) == 5 and budgets.have_capacity(partitions.work)


def in_time(budgets: Budgets, partitions: Partitions) -> None:
    budgets.relieve(partitions.work)


def after_much_was_taken(budgets: Budgets, partitions: Partitions) -> None:
    for _ in range(3):
        budgets.taken(("orders", 1), 1000, partitions.work)


@pytest.mark.parametrize("relieve", [in_time, after_much_was_taken])
def test_open_blocks_leave_memory_largest_first(
    partitions: Partitions, relieve: Callable[[Budgets, Partitions], None]
) -> None:
    partitions.bench.block_bytes = 10_000
    partitions.claim()
    for number, records in enumerate((3, 30, 12, 20)):
        partitions.feed(number, records)
    partitions.settle()
    sizes = [archiver.state.open_block_bytes for archiver in partitions.work.values()]
    assert min(sizes) > 0 and partitions.bench.buffer.used_bytes == 0
    budgets = partitions.budgets(memory=SHARES_OF_OPEN_BLOCKS * (sum(sizes) - sizes[1] - 1))
    relieve(budgets, partitions)
    partitions.settle()
    left = [archiver.state.open_block_bytes for archiver in partitions.work.values()]
    assert left == [sizes[0], 0, sizes[2], 0]
    assert partitions.bench.buffer.used_bytes > 0 and partitions.chunks() == [0] * 4


def test_what_open_chunks_note_of_their_blocks_is_bounded(partitions: Partitions) -> None:
    for number, records in enumerate((3, 30, 12, 20)):
        partitions.feed(number, records)
    partitions.settle()
    notes = sum(archiver.state.open_index_bytes for archiver in partitions.work.values())
    partitions.budgets(memory=24 * (notes - 1)).relieve(partitions.work)
    partitions.settle()
    assert partitions.chunks()[1] == 1
    assert sum(archiver.state.open_index_bytes for archiver in partitions.work.values()) < notes


SICK, *HEALTHY = (("orders", number) for number in range(4))
NOBODY: tuple[set[Partition], set[Partition]] = (set(), set())
HALF_OF_THE_LEAST_SHARE = LEAST_SHARE_BYTES // (2 * len(VALUE))


def with_a_commit_that_hangs(partitions: Partitions, chunk_records: int) -> Partitions:
    """Two chunks of the first partition wait for the store, and some records behind them."""
    partitions.work[SICK] = partitions.bench.archiver(partition=0, chunk_records=chunk_records)
    partitions.bench.store.gated = True
    partitions.feed(0, 2 * chunk_records + 1)
    assert partitions.work[SICK].state.is_blocked
    return partitions


@pytest.mark.slow
def test_a_partition_whose_commit_hangs_is_paused_alone(partitions: Partitions) -> None:
    with_a_commit_that_hangs(partitions, chunk_records=10)
    budgets = partitions.budgets(memory=32 * 1024**2)

    def hand_over(number: int) -> None:
        partitions.feed(number, HALF_OF_THE_LEAST_SHARE)
        budgets.taken(("orders", number), LEAST_SHARE_BYTES // 2, partitions.work)

    def turns() -> tuple[set[Partition], set[Partition]]:
        return budgets.turns(partitions.work, paused)

    paused: set[Partition] = set()
    for number in (0, 1):
        hand_over(number)
    assert turns() == NOBODY, "less than its share: a short commit costs no pause"
    while (now := turns()) == NOBODY:
        assert partitions.work[SICK].state.inbox_bytes < 4 * LEAST_SHARE_BYTES
        for number in (0, 1):
            hand_over(number)
    assert now == ({SICK}, set())
    paused = now[0]
    assert budgets.have_capacity(partitions.work), "the others are fetched"
    assert turns() == NOBODY
    partitions.bench.store.gated = False
    partitions.bench.store.open(1000)
    partitions.until(lambda: turns() == (set(), {SICK}), "the partition resumes")


@pytest.mark.slow
def test_a_commit_that_hangs_does_not_fill_the_buffer(partitions: Partitions) -> None:
    with_a_commit_that_hangs(partitions, chunk_records=10_000)
    for number in (1, 2, 3):
        partitions.feed(number, 1000)
    held, used = partitions.work[SICK].state.buffered_bytes, partitions.bench.buffer.used_bytes
    assert used > held > LEAST_SHARE_BYTES
    roomy, tight = partitions.budgets(buffer_bytes=2 * used), partitions.budgets(buffer_bytes=2 * used - 1)
    for budgets in (roomy, tight):
        for partition in partitions.work:
            budgets.taken(partition, 1, partitions.work)
    assert roomy.turns(partitions.work, set()) == NOBODY
    assert tight.turns(partitions.work, set()) == ({SICK}, set())
    assert tight.turns(partitions.work, {SICK}) == NOBODY, "somewhat more free space is no reason to resume"
    # What it holds is not there for the others: they have to end their chunks earlier.
    crowded = partitions.budgets(buffer_bytes=held + int((used - held) / BUFFER_SHARE_OF_OPEN_CHUNKS) - 1)
    crowded.relieve(partitions.work, {SICK})
    partitions.until(lambda: any(partitions.work[each].state.is_committing for each in HEALTHY), "a chunk ends")


@pytest.mark.slow
def test_a_partition_that_is_encoded_slowly_is_waited_for_while_there_is_memory_for_others(
    partitions: Partitions,
) -> None:
    """Else it would hold all of the memory once its commit hangs."""
    with partitions.held_up():
        partitions.feed(1, 2000)
        state = partitions.work["orders", 1].state
        assert state.inbox_bytes > 2 * LEAST_SHARE_BYTES and not state.is_blocked
        budgets = partitions.budgets(memory=12 * (LARGEST_PART * state.inbox_bytes - LARGEST_PART))
        budgets.taken(("orders", 1), state.inbox_bytes, partitions.work)
        assert budgets.turns(partitions.work, set()) == NOBODY, "a pause would drop what was fetched ahead"
        assert not budgets.have_capacity(partitions.work)
    partitions.settle()
    assert budgets.turns(partitions.work, set()) == NOBODY and budgets.have_capacity(partitions.work)
