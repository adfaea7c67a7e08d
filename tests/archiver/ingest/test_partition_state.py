"""Decisions over a partition's state, without threads or a store."""

from dataclasses import replace
from typing import Any

import pytest

from archiver.commit.objects import Held, RestingMarker
from archiver.errors import Diverged
from archiver.ingest.chunk_builder import RollLimits
from archiver.ingest.kafka_source import Fetched
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
from index_format.errors import BlockgzError
from index_format.marker import Marker
from index_format.records import batch_from_records
from tests.support.archives import records

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


def some(*offsets: int, leader_epoch: int | None = 3) -> Fetched:
    return Fetched(("orders", 0), batch_from_records(records(offsets)), leader_epoch, 100)


def test_of_a_batch_what_was_taken_before_and_what_lies_beyond_the_end_is_not_wanted() -> None:
    batch, duplicates = wanted(state(end_offset=12), some(8, 9, 10, 11, 12, 13))
    assert (batch.column("offset").to_pylist(), duplicates) == ([10, 11], 2)
    with pytest.raises(Diverged):
        wanted(state(), some(9, leader_epoch=4))


def test_progress_is_committed_once_an_interval_and_not_beside_another_commit() -> None:
    ahead = state(position=15)
    assert due(ahead, LIMITS, 1059.9) == (ahead, None)
    later, ending = due(ahead, LIMITS, 1060.0)
    assert (later.progressed_at, ending) == (1060.0, CommitProgress(15, (), 15))
    assert flushed(state(position=15, pending=(PROGRESS,))) is None
    assert flushed(state(position=15, has_committer=True)) is None
    assert flushed(state()) is None, "nothing was read"


def test_ticks_and_ends_of_blocks_do_not_pile_up_behind_other_events() -> None:
    waiting = state().offered(some(10)).offered(Tick(1.0)).offered(Order.END_BLOCK).offered(Order.END_BLOCK)
    assert [type(event) for event in waiting.inbox] == [Fetched, Order]
    assert waiting.inbox_bytes == 100
    assert state(failure=BlockgzError("over")).offered(some(10)).inbox == ()


def test_writing_again_comes_before_a_batch_that_was_postponed_behind_it() -> None:
    """Nothing is handled before what waits for space is written: the partition would wait for ever."""
    waiting = state().offered(Order.WRITE_AGAIN).postponed(some(10)).offered(Order.WRITE_AGAIN)
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
