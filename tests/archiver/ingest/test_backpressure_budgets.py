"""Budgets kept over several partitions, with their threads and their buffer as in the service."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archiver.ingest.backpressure import Budgets, MemoryPlan
from archiver.ingest.kafka_source import Fetched
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.roll_policy import BUFFER_SHARE_OF_OPEN_CHUNKS
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
        self.work: dict[int, PartitionArchiver] = {}
        for number in range(4):
            self.work[number] = self.bench.archiver(partition=number)
        self._next = dict.fromkeys(self.work, 0)

    def budgets(self, *, memory: int = BIG, buffer_bytes: int = BIG) -> Budgets:
        return Budgets(MemoryPlan(memory), self.bench.buffer, buffer_bytes)

    def feed(self, number: int, records: int) -> None:
        """Records that end in buffered blocks, all but the last one."""
        offsets = range(self._next[number], self._next[number] + records)
        self._next[number] += records
        batch = batch_from_records([record(offset, VALUE) for offset in offsets])
        self.work[number].offer(Fetched(("orders", number), batch, 0, batch.nbytes))
        self.until(lambda: self.work[number].state.inbox_bytes == 0, "the records are taken")

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
    for number in partitions.work:
        partitions.feed(number, 20)
    partitions.settle()
    partitions.bench.store.gated = True
    budgets = partitions.budgets(buffer_bytes=partitions.bench.buffer.used_bytes)
    for number, archiver in partitions.work.items():
        assert not budgets.have_capacity(partitions.work.values())
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
    assert sum(partitions.chunks()) == 5 and budgets.have_capacity(partitions.work.values())


def in_time(budgets: Budgets, partitions: Partitions) -> None:
    budgets.relieve(partitions.work)


def after_much_was_taken(budgets: Budgets, partitions: Partitions) -> None:
    for _ in range(3):
        budgets.taken(1000, partitions.work)


@pytest.mark.parametrize("relieve", [in_time, after_much_was_taken])
def test_open_blocks_leave_memory_largest_first(
    partitions: Partitions, relieve: Callable[[Budgets, Partitions], None]
) -> None:
    partitions.bench.block_bytes = 10_000
    partitions.work = {number: partitions.bench.archiver(partition=number) for number in partitions.work}
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
