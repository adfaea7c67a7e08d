"""One partition: its state, a buffer that takes no more, and a log that is another one now."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archiver.commit.commit import Held, RestingMarker
from archiver.errors import Diverged, Fenced, TopicChanged
from archiver.ingest.chunk_builder import BufferFile, RollLimits
from archiver.ingest.kafka_source import Fetched, PartitionFailed
from archiver.ingest.partition_archiver import PartitionArchiver
from archiver.ingest.partition_state import (
    ArchivingState,
    CommitProgress,
    Order,
    PendingCommit,
    Tick,
    due,
    flushed,
    wanted,
)
from blockgz.errors import BufferFull, PartitionUnavailable, SyncFailed
from index_format.errors import BlockgzError
from index_format.marker import Marker
from index_format.records import batch_from_records, iter_records
from tests.support.archives import records
from tests.support.partition_bench import FLUSH, PARTITION, Bench, GatedStore, some, unreadable, until


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
    bench.feed(archiver, Tick(bench.now))
    assert bench.offsets() == list(range(20))


def test_a_block_that_is_ended_early_waits_as_well(bench: Bench, disk: Disk) -> None:
    disk.room = 0
    archiver = bench.archiver()
    archiver.offer(some(0))
    archiver.offer(Order.END_BLOCK)
    until(lambda: archiver.state.full is not None, "the buffer is found full")
    disk.room = 10**9
    bench.feed(archiver, FLUSH)
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


GONE = PartitionUnavailable("orders:3 cannot be read", why="unknown topic or partition")


def restart(archiver: PartitionArchiver) -> None:
    """As its owner does."""
    assert archiver.restart is not None
    archiver.offer(PartitionFailed(PARTITION, archiver.restart))


def test_what_was_fetched_before_the_client_gave_up_is_archived(bench: Bench) -> None:
    archiver = bench.archiver()
    bench.feed(archiver, some(0, 1, 2), PartitionFailed(PARTITION, GONE))
    assert archiver.state.failure is GONE
    assert bench.offsets() == [0, 1, 2] and bench.buffer.used_bytes == 0


def test_a_second_chunk_waits_for_the_first_and_is_archived_too(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.store.gated = True
    archiver.offer(some(0, 1, 2))
    archiver.offer(PartitionFailed(PARTITION, GONE))
    until(lambda: bench.store.waiting == 1, "the first chunk is being stored")
    assert archiver.state.failure is None
    bench.store.gated = False
    bench.store.open(1)
    bench.settle()
    assert archiver.state.failure is GONE and bench.offsets() == [0, 1, 2]


@pytest.mark.parametrize("told", [None, "id-1"], ids=["the cluster is gone", "the same topic"])
def test_records_are_committed_unless_the_topic_is_known_to_be_another(
    bench: Bench, told: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    archiver = bench.archiver()
    bench.topic_id = told
    bench.feed(archiver, some(0, 1, 2), FLUSH)
    assert bench.offsets() == [0, 1, 2]
    assert ("unconfirmed" in caplog.text) == (told is None), "nobody hears that this rests on no answer"
    assert archiver.state.confirmed == (3 if told else 0)


def test_an_answer_confirms_all_that_was_fetched_before_it(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.topic_id = "id-1"
    bench.feed(archiver, some(0, 1, 2, 3, 4))
    assert bench.offsets() == [0, 1, 2, 3]
    bench.topic_id = "id-2"
    bench.feed(archiver, FLUSH)
    assert bench.offsets() == [0, 1, 2, 3, 4]


class TestCreatedAgain:
    def test_what_was_confirmed_is_archived_and_the_rest_dropped(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(some(*range(20)))
        archiver.told("id-1", 13)
        archiver.offer(some(*range(20, 30)))
        bench.topic_id = "id-2"
        bench.feed(archiver, FLUSH)
        assert isinstance(archiver.state.failure, TopicChanged)
        assert bench.offsets() == list(range(13)), "the cut lies inside a block"
        assert archiver.state.counts.dropped_unconfirmed == 17
        assert archiver.state.counts.records == 13 and bench.buffer.used_bytes == 0

    def test_values_survive_the_cut(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(batch := some(*range(20)))
        archiver.told("id-1", 7)
        bench.topic_id = "id-2"
        bench.feed(archiver, FLUSH)
        chain = bench.chain()
        values = [record.value for record in iter_records(batch.batch)]
        assert chain is not None and [line.value for line in chain.lines] == values[:7]

    def test_gaps_below_the_cut_are_kept(self, bench: Bench) -> None:
        archiver = bench.archiver(skip=True)
        archiver.offer(some(0, 1))
        archiver.offer(unreadable(2))
        archiver.offer(some(3, 4))
        archiver.offer(unreadable(5))
        archiver.told("id-1", 4)
        bench.topic_id = "id-2"
        bench.feed(archiver, FLUSH)
        assert bench.offsets() == [0, 1, 3]
        assert [(gap.start, gap.end) for gap in archiver.held.marker.gaps] == [(2, 3)]
        assert archiver.held.marker.next_offset == 4

    def test_nothing_is_archived_where_nothing_was_confirmed(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(some(0, 1))
        bench.topic_id = "id-2"
        bench.feed(archiver, FLUSH)
        assert bench.offsets() == [] and archiver.state.counts.dropped_unconfirmed == 2
        assert bench.buffer.used_bytes == 0

    def test_noticed_between_commits(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(some(0, 1))
        archiver.told("id-1", archiver.state.fetched)
        archiver.offer(some(2))
        bench.topic_id = "id-2"
        archiver.told("id-2", archiver.state.fetched)
        restart(archiver)
        bench.settle()
        assert isinstance(archiver.state.failure, TopicChanged) and bench.offsets() == [0, 1]

    @pytest.mark.parametrize("told", [None, "id-2"])
    def test_a_leader_epoch_that_fell_is_another_topics(self, bench: Bench, told: str | None) -> None:
        archiver = bench.archiver()
        archiver.offer(some(0, 1, leader_epoch=5))
        archiver.told("id-1", 2)
        bench.topic_id = told
        bench.feed(archiver, some(2, 3, leader_epoch=0))
        assert isinstance(archiver.state.failure, TopicChanged) and bench.offsets() == [0, 1]
        assert archiver.state.counts.dropped_unconfirmed == 2

    def test_a_leader_epoch_that_fell_stops_a_partition_whose_id_nobody_reported(self, bench: Bench) -> None:
        archiver = bench.archiver(topic_id=None)
        bench.topic_id = None
        bench.feed(archiver, some(0, 1, leader_epoch=5), some(2, 3, leader_epoch=0))
        failure = archiver.state.failure
        assert isinstance(failure, Diverged) and bench.offsets() == [0, 1]
        assert failure.why == "the leader epoch fell to 0, and the cluster reported no topic id"

    def test_an_older_redelivery_does_not_lower_the_epoch(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(some(0, 1, 2, leader_epoch=5))
        archiver.offer(some(0, 1, leader_epoch=3))
        bench.topic_id = None
        bench.feed(archiver, some(3, leader_epoch=4))
        assert isinstance(archiver.state.failure, TopicChanged)


def test_what_is_told_again_and_again_restarts_a_partition_once(bench: Bench) -> None:
    """Its events may wait for hours behind a commit that the store does not take."""
    archiver = bench.archiver()
    archiver.told("id-2", 0)
    archiver.restart = None
    archiver.told("id-2", 0)
    assert archiver.restart is None


def test_an_id_that_was_not_known_is_learnt_by_another_claim(bench: Bench) -> None:
    archiver = bench.archiver(topic_id=None)
    archiver.offer(some(0, 1))
    archiver.told(None, 2)
    assert archiver.restart is None
    archiver.told("id-1", 2)
    restart(archiver)
    bench.settle()
    assert isinstance(archiver.state.failure, PartitionUnavailable) and bench.offsets() == [0, 1]
    again = bench.archiver()
    assert again.held.marker.topic_id == "id-1"


class UnsyncedStore(GatedStore):
    """Some swaps are done, or not, and then its fsync fails."""

    def __init__(self) -> None:
        super().__init__()
        self.failing: list[bool] = []
        """Of the next swaps, whether each is done."""

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        if self.failing:
            if self.failing.pop(0):
                super().compare_and_swap(key, body, expected)
            raise SyncFailed("fsync failed")
        return super().compare_and_swap(key, body, expected)


@pytest.mark.parametrize("failing", [[True], [False], [True, True], [False, True], [False, False]])
def test_a_write_that_may_not_last_costs_the_claim_and_not_the_chunk(bench: Bench, failing: list[bool]) -> None:
    store = bench.store = UnsyncedStore()
    archiver = bench.archiver()
    archiver.offer(some(0, 1, 2))
    store.failing = list(failing)
    bench.feed(archiver, FLUSH)
    assert archiver.state.failure is None and bench.offsets() == [0, 1, 2]
    assert archiver.held.marker.epoch == 2 + failing[1:].count(True)
    bench.feed(archiver, some(3), FLUSH)
    assert bench.offsets() == [0, 1, 2, 3]


def test_after_another_writers_claim_such_a_chunk_is_dropped(bench: Bench) -> None:
    store = bench.store = UnsyncedStore()
    first = bench.archiver()
    first.offer(some(0, 1))
    second = bench.archiver()
    store.failing = [False]
    first.offer(FLUSH)
    until(lambda: first.state.is_idle, "the first writer is idle")
    assert isinstance(first.state.failure, Fenced)
    bench.feed(second, some(0, 1), FLUSH)
    assert bench.offsets() == [0, 1]


def test_a_partition_that_was_lost_is_not_claimed_again_to_commit_it(bench: Bench) -> None:
    store = bench.store = UnsyncedStore()
    archiver = bench.archiver()
    archiver.offer(some(0, 1))
    archiver.may_claim = False
    store.failing = [False]
    bench.feed(archiver, FLUSH)
    assert isinstance(archiver.state.failure, SyncFailed) and bench.offsets() == []


LIMITS = RollLimits(chunk_bytes=10**9, chunk_interval_seconds=60.0)
PROGRESS = PendingCommit(CommitProgress(12, (), 12))


def state(**fields: Any) -> ArchivingState:
    """A partition whose archive and position stand at 10."""
    marker = Marker(
        archive_id="a", topic="orders", topic_id=None, partition=0, group_id="g", isolation_level="read_committed",
        epoch=1, writer="w", nonce="n", start_offset=10, next_offset=10,
    )  # fmt: skip
    held = {"marker": RestingMarker.of(Held(marker, "etag")), "end_offset": None, "leader_epoch": 3}
    offsets = {"position": 10, "fetched": 10, "confirmed": 10, "chain_end": 10}
    return ArchivingState(**held | offsets | {"progressed_at": 1000.0} | fields)  # type: ignore[arg-type]


def some_records(*offsets: int, leader_epoch: int | None = 3) -> Fetched:
    return Fetched(("orders", 0), batch_from_records(records(offsets)), leader_epoch, 100)


def test_of_a_batch_what_was_taken_before_and_what_lies_beyond_the_end_is_not_wanted() -> None:
    batch, duplicates = wanted(state(end_offset=12), some_records(8, 9, 10, 11, 12, 13))
    assert (batch.column("offset").to_pylist(), duplicates) == ([10, 11], 2)
    with pytest.raises(Diverged):
        wanted(state(), some_records(9, leader_epoch=4))


def test_progress_is_committed_once_an_interval_and_not_beside_another_commit() -> None:
    ahead = state(position=15)
    assert due(ahead, LIMITS, 1059.9) == (ahead, None)
    later, ending = due(ahead, LIMITS, 1060.0)
    assert (later.progressed_at, ending) == (1060.0, CommitProgress(15, (), 15))
    assert flushed(state(position=15, pending=(PROGRESS,))) is None
    assert flushed(state(position=15, has_committer=True)) is None
    assert flushed(state()) is None, "nothing was read"


def test_ticks_and_ends_of_blocks_do_not_pile_up_behind_other_events() -> None:
    waiting = state().offered(some_records(10)).offered(Tick(1.0)).offered(Order.END_BLOCK).offered(Order.END_BLOCK)
    assert [type(event) for event in waiting.inbox] == [Fetched, Order]
    assert waiting.inbox_bytes == 100
    assert state(failure=BlockgzError("over")).offered(some_records(10)).inbox == ()


def test_writing_again_comes_before_a_batch_that_was_postponed_behind_it() -> None:
    """Nothing is handled before what waits for space is written: the partition would wait for ever."""
    waiting = state().offered(Order.WRITE_AGAIN).postponed(some_records(10)).offered(Order.WRITE_AGAIN)
    assert [type(event) for event in waiting.inbox] == [Order, Fetched]


def test_a_second_finished_chunk_stalls_building() -> None:
    one, starts = state(inbox=(Order.FLUSH,)).queued(PROGRESS, 12)
    assert starts and one.can_build
    two, starts = one.queued(PROGRESS, 14)
    assert not starts and not two.can_build
    assert two.next_event()[1] is None


def test_a_bad_record_is_the_failure_once_what_lies_before_it_is_committed() -> None:
    error = BlockgzError("a bad record")
    assert state().stopping(error).failure is error
    committing = state(pending=(PROGRESS,), has_committer=True).stopping(error)
    assert committing.failure is None and committing.is_over
    done, commit = committing.swapped(committing.marker, committing.counts, 5.0).next_commit()
    assert (done.failure, done.is_idle, commit) == (error, True, None)


def test_closed_it_keeps_only_what_a_thread_works_on() -> None:
    busy = state(inbox=(Tick(1.0),), pending=(PROGRESS,), has_committer=True)
    assert (busy.closed().inbox, busy.closed().pending) == ((), (PROGRESS,))
    assert busy.closed().next_commit()[0].is_idle
    assert state().closed().failed(BlockgzError("too late")).failure is None


def test_a_state_is_changed_by_fields_that_it_has() -> None:
    before = state()
    after = before._with(position=before.position + 1)
    assert after == replace(before, position=before.position + 1) != before
    with pytest.raises(TypeError, match="positon"):
        before._with(positon=1)
