"""A buffer that takes no more: what it holds is committed, what it does not take waits in memory, nothing is lost."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from archiver.ingest.buffer import BufferFile
from archiver.ingest.kafka_source import PartitionFailed
from archiver.ingest.partition_state import Order, Tick
from blockgz.errors import BufferFull, PartitionUnavailable
from tests.support.partition_bench import FLUSH, PARTITION, Bench, some, until


class Disk:
    """Takes so many bytes of all buffer files together."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 10**9
        append = BufferFile.append

        def checked(file: BufferFile, block: bytes) -> None:
            if bench.buffer.used_bytes + len(block) > self.room:
                raise BufferFull("the disk is full", why="No space left on device")
            append(file, block)

        monkeypatch.setattr(BufferFile, "append", checked)


def until_later(bench: Bench, condition: Callable[[], bool], what: str) -> None:
    """While time passes: a minute with each look."""

    def is_so() -> bool:
        bench.now += 60
        bench.made[-1].offer(Tick(bench.now))
        return condition()

    until(is_so, what)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


@pytest.fixture
def disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(bench, monkeypatch)


def test_what_is_in_the_buffer_is_committed_and_the_rest_continues_where_it_ends(bench: Bench, disk: Disk) -> None:
    disk.room = 700
    archiver = bench.archiver()
    archiver.offer(some(*range(40)))
    until_later(bench, lambda: archiver.state.committed is not None, "the short chunk is committed")
    archiver.offer(some(*range(40, 45), leader_epoch=1))
    archiver.offer(FLUSH)
    until_later(bench, lambda: archiver.state.committed == 45, "all is committed")
    bench.settle()
    assert bench.offsets() == list(range(45)), "each commit frees what the next one needs"
    spans = bench.spans()
    assert len(spans) > 2 and [start for start, _, _ in spans[1:]] == [end for _, end, _ in spans[:-1]]
    assert bench.buffer.used_bytes == 0 and archiver.state.failure is None


def test_a_disk_without_any_room_is_tried_again_and_the_flush_is_not_forgotten(bench: Bench, disk: Disk) -> None:
    disk.room = 0
    archiver = bench.archiver()
    archiver.offer(some(*range(20)))
    archiver.offer(FLUSH)
    until(lambda: archiver.state.full is not None and not archiver.state.is_building, "the buffer is found full")
    assert archiver.state.is_blocked and not archiver.state.is_idle
    disk.room = 10**9
    archiver.offer(Tick(bench.now))
    assert archiver.state.is_blocked, "not at once"
    bench.now += 60
    archiver.offer(Tick(bench.now))
    bench.settle()
    assert bench.offsets() == list(range(20))


def test_a_block_that_is_ended_early_waits_as_well(bench: Bench, disk: Disk) -> None:
    disk.room = 0
    archiver = bench.archiver()
    archiver.offer(some(0))
    archiver.offer(Order.END_BLOCK)
    until(lambda: archiver.state.full is not None, "the buffer is found full")
    disk.room = 10**9
    archiver.offer(FLUSH)
    bench.settle()
    assert bench.offsets() == [0]


def test_a_partition_fails_only_when_what_lies_below_is_committed(bench: Bench, disk: Disk) -> None:
    disk.room = 700
    archiver = bench.archiver()
    error = PartitionUnavailable("no leader")
    archiver.offer(some(*range(40)))
    archiver.offer(PartitionFailed(PARTITION, error))
    until_later(bench, lambda: archiver.state.failure is not None, "it failed")
    assert archiver.state.failure is error and bench.offsets() == list(range(40))


def test_a_run_that_is_to_end_gives_up(bench: Bench, disk: Disk) -> None:
    disk.room = 0
    archiver = bench.archiver(end_offset=20)
    archiver.offer(some(*range(20)))
    archiver.offer(FLUSH)
    until_later(bench, lambda: archiver.state.failure is not None, "it failed")
    assert isinstance(archiver.state.failure, BufferFull)
