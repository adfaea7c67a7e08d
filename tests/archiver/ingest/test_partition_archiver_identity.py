"""Records in hand when the log they came from is gone, moved on, or became another topic's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from archiver.errors import Diverged, Fenced, TopicChanged
from archiver.ingest.kafka_source import PartitionFailed
from archiver.ingest.partition_archiver import PartitionArchiver
from blockgz.errors import PartitionUnavailable, SyncFailed
from index_format.records import iter_records
from tests.support.partition_bench import FLUSH, PARTITION, Bench, GatedStore, some, unreadable, until

GONE = PartitionUnavailable("orders:3 cannot be read", why="unknown topic or partition")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def restart(archiver: PartitionArchiver) -> None:
    """As its owner does."""
    assert archiver.restart is not None
    archiver.offer(PartitionFailed(PARTITION, archiver.restart))


def test_what_was_fetched_before_the_client_gave_up_is_archived(bench: Bench) -> None:
    archiver = bench.archiver()
    archiver.offer(some(0, 1, 2))
    archiver.offer(PartitionFailed(PARTITION, GONE))
    bench.settle()
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
    archiver.offer(some(0, 1, 2))
    archiver.offer(FLUSH)
    bench.settle()
    assert bench.offsets() == [0, 1, 2]
    assert ("unconfirmed" in caplog.text) == (told is None), "nobody hears that this rests on no answer"
    assert archiver.state.confirmed == (3 if told else 0)


def test_an_answer_confirms_all_that_was_fetched_before_it(bench: Bench) -> None:
    archiver = bench.archiver(chunk_records=2)
    bench.topic_id = "id-1"
    archiver.offer(some(0, 1, 2, 3, 4))
    bench.settle()
    assert bench.offsets() == [0, 1, 2, 3]
    bench.topic_id = "id-2"
    archiver.offer(FLUSH)
    bench.settle()
    assert bench.offsets() == [0, 1, 2, 3, 4]


class TestCreatedAgain:
    def test_what_was_confirmed_is_archived_and_the_rest_dropped(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(some(*range(20)))
        archiver.told("id-1", 13)
        archiver.offer(some(*range(20, 30)))
        bench.topic_id = "id-2"
        archiver.offer(FLUSH)
        bench.settle()
        assert isinstance(archiver.state.failure, TopicChanged)
        assert bench.offsets() == list(range(13)), "the cut lies inside a block"
        assert archiver.state.counts.dropped_unconfirmed == 17
        assert archiver.state.counts.records == 13 and bench.buffer.used_bytes == 0

    def test_values_survive_the_cut(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(batch := some(*range(20)))
        archiver.told("id-1", 7)
        bench.topic_id = "id-2"
        archiver.offer(FLUSH)
        bench.settle()
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
        archiver.offer(FLUSH)
        bench.settle()
        assert bench.offsets() == [0, 1, 3]
        assert [(gap.start, gap.end) for gap in archiver.held.marker.gaps] == [(2, 3)]
        assert archiver.held.marker.next_offset == 4

    def test_nothing_is_archived_where_nothing_was_confirmed(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(some(0, 1))
        bench.topic_id = "id-2"
        archiver.offer(FLUSH)
        bench.settle()
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
        archiver.offer(some(2, 3, leader_epoch=0))
        bench.settle()
        assert isinstance(archiver.state.failure, TopicChanged) and bench.offsets() == [0, 1]
        assert archiver.state.counts.dropped_unconfirmed == 2

    def test_a_leader_epoch_that_fell_stops_a_partition_whose_id_nobody_reported(self, bench: Bench) -> None:
        archiver = bench.archiver(topic_id=None)
        bench.topic_id = None
        archiver.offer(some(0, 1, leader_epoch=5))
        archiver.offer(some(2, 3, leader_epoch=0))
        bench.settle()
        failure = archiver.state.failure
        assert isinstance(failure, Diverged) and bench.offsets() == [0, 1]
        assert failure.why == "the leader epoch fell to 0, and the cluster reported no topic id"

    def test_an_older_redelivery_does_not_lower_the_epoch(self, bench: Bench) -> None:
        archiver = bench.archiver()
        archiver.offer(some(0, 1, 2, leader_epoch=5))
        archiver.offer(some(0, 1, leader_epoch=3))
        bench.topic_id = None
        archiver.offer(some(3, leader_epoch=4))
        bench.settle()
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
    archiver.offer(FLUSH)
    bench.settle()
    assert archiver.state.failure is None and bench.offsets() == [0, 1, 2]
    assert archiver.held.marker.epoch == 2 + failing[1:].count(True)
    archiver.offer(some(3))
    archiver.offer(FLUSH)
    bench.settle()
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
    second.offer(some(0, 1))
    second.offer(FLUSH)
    bench.settle()
    assert bench.offsets() == [0, 1]


def test_a_partition_that_was_lost_is_not_claimed_again_to_commit_it(bench: Bench) -> None:
    store = bench.store = UnsyncedStore()
    archiver = bench.archiver()
    archiver.offer(some(0, 1))
    archiver.may_claim = False
    store.failing = [False]
    archiver.offer(FLUSH)
    bench.settle()
    assert isinstance(archiver.state.failure, SyncFailed) and bench.offsets() == []
