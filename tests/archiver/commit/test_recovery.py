"""What a take-over decides: claims, gaps, divergence, refusals."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from archiver.commit import operations as op
from archiver.commit.commit import Held, PartitionIdentity, commit_chunk, commit_progress, swap_marker
from archiver.commit.operations import Driver
from archiver.commit.recovery import Claimed, TakeoverPolicy, gap_before, take_over, why_diverged
from archiver.errors import AssignmentLost, Diverged, Fenced, GapRefused, OwnedByAnother
from blockgz import errors
from blockgz.kafka import LogBounds
from index_format.marker import Marker, decode_marker, encode
from index_format.objects import Gap
from index_format.records import Record
from tests.support.archives import records
from tests.support.chain import check_history, read_chain
from tests.support.chunks import POLICY, archive_all, finished_chunk, identity_of
from tests.support.memory_store import MemoryLog, MemoryStore
from tests.support.simulator import Actor, Fate

IDENTITY = identity_of()
KEY = IDENTITY.keys.marker
ROWS = records([0, 1, 2, 5, 6, 7])
NOT_TOLD = errors.PartitionUnavailable("the id is unknown", why="the cluster does not tell it", remedy="wait")
STOP_AT_GAPS = TakeoverPolicy(gaps_are_recorded=False, other_groups_are_replaced=False)
TAKE_FROM_OTHERS = TakeoverPolicy(gaps_are_recorded=True, other_groups_are_replaced=True)


def no_wait(attempt: int, cause: str) -> None:
    pass


def run(protocol: op.Protocol[Any], store: Any, log: MemoryLog, *, assigned: bool = True) -> Any:
    return Driver(store, log, no_wait, lambda: assigned).run(protocol)


@pytest.fixture
def store() -> MemoryStore:
    """Six records archived up to offset 8."""
    store, log = MemoryStore(), MemoryLog(ROWS)
    run(archive_all(IDENTITY, log, "first", lambda: 3), store, log)
    return store


def marker_in(store: MemoryStore) -> Marker:
    return decode_marker(store.objects[KEY].body)


def claim(
    store: Any, log: MemoryLog, identity: PartitionIdentity = IDENTITY, policy: TakeoverPolicy = POLICY
) -> Claimed:
    claimed: Claimed = run(take_over(identity, "me", policy), store, log)
    return claimed


def refused(
    kind: type[errors.BlockgzError],
    store: MemoryStore,
    log: MemoryLog,
    identity: PartitionIdentity = IDENTITY,
    policy: TakeoverPolicy = POLICY,
) -> errors.BlockgzError:
    """The refusal, after which the marker must be what it was."""
    before = store.bodies()
    with pytest.raises(kind) as caught:
        claim(store, log, identity, policy)
    assert store.bodies() == before, "a refused take-over may not claim"
    assert type(caught.value) is kind
    assert caught.value.what and caught.value.why and caught.value.remedy
    return caught.value


def test_the_first_claim_writes_a_marker_without_offsets() -> None:
    store = MemoryStore()
    claimed = claim(store, MemoryLog(records([7, 8]), low=7))
    assert (claimed.position, claimed.gap, claimed.tail_was_compacted) == (7, None, False)
    stored = json.loads(store.objects[KEY].body)
    assert (stored["epoch"], stored["writer"], stored["group_id"]) == (1, "me", IDENTITY.group_id)
    fields = ("start_offset", "next_offset", "leader_epoch", "tail_hash", "last_chunk_index")
    assert [stored[field] for field in fields] == [None] * 5


def test_a_log_that_starts_above_0_is_not_a_gap_at_the_second_claim_either() -> None:
    store, log = MemoryStore(), MemoryLog(records([7, 8]), low=7)
    claim(store, log)
    again = claim(store, log)
    assert (again.position, again.gap, again.held.marker.epoch) == (7, None, 2)


def test_a_claim_raises_the_epoch_and_keeps_the_chain(store: MemoryStore) -> None:
    before = marker_in(store)
    claimed = claim(store, MemoryLog(ROWS))
    now = marker_in(store)
    assert claimed.position == before.next_offset == 8
    assert (now.epoch, now.writer) == (before.epoch + 1, "me")
    assert now.nonce != before.nonce
    assert with_fields(now, epoch=before.epoch, writer=before.writer, nonce=before.nonce) == before
    assert claimed.held == Held(now, claimed.held.etag)


def test_records_lost_to_retention_become_a_gap(store: MemoryStore) -> None:
    claimed = claim(store, MemoryLog(records([12, 13]), low=12))
    assert claimed.gap == Gap(8, 12, "retention")
    assert claimed.position == marker_in(store).next_offset == 12
    assert marker_in(store).gaps == (Gap(8, 12, "retention"),)


def test_the_chunk_after_a_gap_starts_at_its_end_and_repeats_it(store: MemoryStore) -> None:
    log = MemoryLog(records([13, 14]), low=12)
    held = claim(store, log).held
    chunk = finished_chunk("json", tuple(log.records), 12, 15)
    run(commit_chunk(IDENTITY, held, chunk), store, log)
    index = json.loads(store.objects[IDENTITY.keys.chunks + marker_in(store).tail[-1].name].body)
    assert (index["start_offset"], index["first_offset"]) == (12, 13)
    assert index["gaps"] == [{"from": 8, "to": 12, "reason": "retention"}]


def test_a_gap_may_stop_the_partition(store: MemoryStore) -> None:
    error = refused(GapRefused, store, MemoryLog(records([12]), low=12), policy=STOP_AT_GAPS)
    assert "[8..12)" in error.what


@pytest.mark.parametrize(
    ("log", "policy", "gap", "is_compacted"),
    [
        (MemoryLog(records([8]), low=8), STOP_AT_GAPS, None, False),
        (MemoryLog([], low=20), POLICY, Gap(8, 20, "retention"), False),
        (MemoryLog([row._replace(headers=[*row.headers]) for row in ROWS]), POLICY, None, False),
        (MemoryLog([*ROWS[:-1], *records([9])]), POLICY, None, True),
    ],
    ids=["no gap, no stop", "an empty log far behind", "headers in another type", "a tail that was compacted away"],
)
def test_what_a_claim_finds(
    store: MemoryStore, log: MemoryLog, policy: TakeoverPolicy, gap: Gap | None, is_compacted: bool
) -> None:
    claimed = claim(store, log, policy=policy)
    assert (claimed.gap, claimed.tail_was_compacted) == (gap, is_compacted)
    assert claimed.position == (gap.end if gap else 8)


def test_a_log_that_ends_below_the_archive_has_diverged(store: MemoryStore) -> None:
    error = refused(Diverged, store, MemoryLog(ROWS[:-1]))
    assert "7" in error.what and "8" in error.what


@pytest.mark.parametrize(
    "change",
    [
        {"value": b"another"},
        {"value": None},
        {"key": b""},
        {"timestamp": 1},
        {"timestamp_type": 1},
        {"headers": (("h", None),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_log_that_was_written_again_has_diverged_whatever_differs(store: MemoryStore, change: dict[str, Any]) -> None:
    assert ROWS[-1] == ROWS[-1]._replace() != ROWS[-1]._replace(**change)
    refused(Diverged, store, MemoryLog([*ROWS[:-1], ROWS[-1]._replace(**change), *records(range(8, 20))]))


def test_another_group_is_refused_by_name(store: MemoryStore) -> None:
    error = refused(OwnedByAnother, store, MemoryLog(ROWS), identity_of(group_id="mine"))
    assert IDENTITY.group_id in error.what and "mine" in error.why and error.exit_code == 11


def test_another_group_is_replaced_on_demand(store: MemoryStore) -> None:
    claim(store, MemoryLog(ROWS), identity_of(group_id="mine"), TAKE_FROM_OTHERS)
    assert marker_in(store).group_id == "mine"


@pytest.mark.parametrize("other", [{"archive_id": "archive-2"}, {"topic_id": "id-2"}], ids=["archive", "topic id"])
def test_a_marker_of_something_else_is_refused(store: MemoryStore, other: dict[str, Any]) -> None:
    refused(Diverged, store, MemoryLog(ROWS), identity_of(**other))


@pytest.mark.parametrize("change", [{"topic": "payments"}, {"partition": 4}], ids=["topic", "partition"])
def test_a_marker_that_was_copied_here_is_refused(store: MemoryStore, change: dict[str, Any]) -> None:
    moved = with_fields(marker_in(store), **change)
    store.delete(KEY)
    store.put_if_absent(KEY, encode(moved), "moved")
    refused(Diverged, store, MemoryLog(ROWS))


def test_another_isolation_level_is_a_mistake_of_the_operators_and_no_divergence(store: MemoryStore) -> None:
    assert marker_in(store).isolation_level == "read_committed"
    uncommitted = replace(IDENTITY, isolation_level="read_uncommitted")
    shorter = MemoryLog(ROWS[:2], high=3)
    refusal = refused(errors.UsageError, store, shorter, uncommitted, TAKE_FROM_OTHERS)
    assert refusal.exit_code == 2 and "--isolation-level read_committed" in refusal.remedy


def test_before_anything_is_archived_the_isolation_level_may_change() -> None:
    store, log = MemoryStore(), MemoryLog(ROWS)
    claim(store, log)
    claim(store, log, replace(IDENTITY, isolation_level="read_uncommitted"))
    assert marker_in(store).isolation_level == "read_uncommitted"


def without_isolation_level(store: MemoryStore) -> None:
    """Make the marker one of an earlier writer."""
    fields = json.loads(store.objects[KEY].body)
    del fields["isolation_level"], fields["crc32"]
    store.delete(KEY)
    store.put_if_absent(KEY, json.dumps(fields).encode(), "older")


def test_a_claim_adds_the_isolation_level_to_a_marker_without_one(store: MemoryStore) -> None:
    without_isolation_level(store)
    claim(store, MemoryLog(ROWS))
    assert marker_in(store).isolation_level == "read_committed"


def test_the_newest_index_tells_the_isolation_level_that_a_marker_leaves_out(store: MemoryStore) -> None:
    without_isolation_level(store)
    uncommitted = replace(IDENTITY, isolation_level="read_uncommitted")
    assert "read_committed" in refused(errors.UsageError, store, MemoryLog(ROWS), uncommitted).remedy


def test_an_end_below_the_archive_is_not_a_divergence_where_only_the_isolation_level_differs() -> None:
    """An open transaction: the last stable offset lies below what was archived under read_uncommitted."""
    store, log = MemoryStore(), MemoryLog(ROWS)
    uncommitted = replace(IDENTITY, isolation_level="read_uncommitted")
    run(archive_all(uncommitted, log, "first", lambda: 3), store, log)
    stable = MemoryLog(ROWS[:2], high=2)
    assert "--isolation-level read_uncommitted" in refused(errors.UsageError, store, stable).remedy
    without_isolation_level(store)
    assert "--isolation-level read_uncommitted" in refused(errors.UsageError, store, stable).remedy
    assert claim(store, log, uncommitted).position == 8


def test_a_marker_whose_newest_index_is_gone_is_not_claimed_unchecked(store: MemoryStore) -> None:
    without_isolation_level(store)
    store.delete(IDENTITY.keys.chunks + marker_in(store).tail[-1].name)
    assert "missing" in refused(errors.StoreError, store, MemoryLog(ROWS)).what


def test_a_topic_id_that_the_broker_does_not_report_never_differs(store: MemoryStore) -> None:
    assert claim(store, MemoryLog(ROWS), identity_of(topic_id=None)).position == 8
    assert marker_in(store).topic_id == "id-1"


@pytest.mark.parametrize("position", [None, 0, 8])
def test_gap_before_is_none_where_the_log_holds_the_position(position: int | None) -> None:
    marker = Marker(
        archive_id="a", topic="orders", topic_id=None, partition=3, group_id="g", epoch=1, writer="w", nonce="n",
        start_offset=None if position is None else 0, next_offset=position,
    )  # fmt: skip
    low = 0 if position is None else position
    assert gap_before(marker, LogBounds(low, 8), IDENTITY) is None
    assert gap_before(marker, LogBounds(0, 8), IDENTITY) is None


def test_bounds_that_are_older_than_the_archive_are_not_a_divergence(store: MemoryStore) -> None:
    class AskedBefore(MemoryLog):
        """Its bounds were asked for as it ended at offset 3; the writer that was ahead archived more since."""

        def bounds(self, at_least: int = 0) -> LogBounds:
            return LogBounds(0, 3) if at_least <= 3 else super().bounds()

    archived = run(archive_all(IDENTITY, MemoryLog(ROWS), "first", lambda: 2), store, MemoryLog(ROWS))
    assert archived.marker.next_offset == 8
    claimed = claim(store, AskedBefore(ROWS))
    assert claimed.position == 8 and not claimed.tail_was_compacted
    changed = [*ROWS[:-1], ROWS[-1]._replace(value=b"another")]
    with pytest.raises(Diverged, match="is not the one that was archived"):
        claim(store, AskedBefore(changed))


def test_neither_a_gap_nor_the_archives_start_rests_on_the_bounds_of_a_former_topic(store: MemoryStore) -> None:
    class AskedBefore(MemoryLog):
        """Its bounds were asked for as a topic had the name of which retention had taken much."""

        def bounds(self, at_least: int = 0) -> LogBounds:
            return super().bounds() if at_least == op.NOW else LogBounds(50, 90)

    fresh = AskedBefore(records(range(100)))
    assert claim(MemoryStore(), fresh).position == 0
    later = claim(store, AskedBefore([*ROWS, *records(range(8, 100))]))
    assert (later.position, later.gap) == (8, None)


def test_a_lost_race_for_the_claim_starts_again_and_wins(store: MemoryStore) -> None:
    log = MemoryLog(ROWS)
    slow = Actor("slow", take_over(IDENTITY, "slow", POLICY), store, log, random.Random(1))
    while not isinstance(slow.operation, op.CompareAndSwap):
        slow.step()
    claim(store, log)
    slow.run_to_end()
    assert slow.failure is None
    assert (marker_in(store).writer, marker_in(store).epoch) == ("slow", 3)


def test_a_race_for_the_first_claim_has_one_winner_at_a_time() -> None:
    store, log = MemoryStore(), MemoryLog(ROWS)
    racers = [
        Actor(name, archive_all(IDENTITY, log, name, lambda: 2), store, log, random.Random(name)) for name in "abcdef"
    ]
    while any(racer.is_alive for racer in racers):
        for racer in racers:
            if racer.is_alive:
                racer.step()
    assert marker_in(store).writer in [racer.name for racer in racers if racer.result is not None]
    assert marker_in(store).next_offset == 8
    check_history(store.versions, IDENTITY.keys.home)
    chain = read_chain(store.bodies(), IDENTITY.keys.home, IDENTITY.keys.chunks)
    assert chain is not None and [line.offset for line in chain.lines] == [row.offset for row in ROWS]


def test_a_marker_that_vanishes_is_never_created_anew(store: MemoryStore) -> None:
    log = MemoryLog(ROWS)
    held = claim(store, log).held
    store.delete(KEY)
    with pytest.raises(errors.StoreError, match="vanished"):
        run(commit_progress(IDENTITY, held, 9), store, log)
    assert KEY not in store.objects


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", errors.MalformedObject),
        (b"{", errors.MalformedObject),
        (b"[]", errors.MalformedObject),
        (b'{"format":"block-gzip","version":1}', errors.MalformedObject),
        (b'{"format":"block-gzip-marker","version":3}', errors.UnsupportedVersion),
        (b'{"format":"block-gzip-marker","version":1,"epoch":1}', errors.MalformedObject),
    ],
)
def test_a_damaged_marker_is_refused_and_left_alone(
    store: MemoryStore, body: bytes, kind: type[errors.FormatError]
) -> None:
    store.delete(KEY)
    store.put_if_absent(KEY, body, "damage")
    with pytest.raises(kind):
        claim(store, MemoryLog(ROWS))
    assert store.objects[KEY].body == body


def test_a_marker_that_is_damaged_under_a_writer_stops_it(store: MemoryStore) -> None:
    held = claim(store, MemoryLog(ROWS)).held
    store.delete(KEY)
    store.put_if_absent(KEY, b"{}", "damage")
    with pytest.raises(errors.FormatError):
        run(commit_progress(IDENTITY, held, 9), store, MemoryLog(ROWS))


class RefusesItsOwnEtag(MemoryStore):
    """Swaps never succeed, whatever etag they name."""

    swaps = 0

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        self.swaps += 1
        return None


@pytest.mark.parametrize("is_new", [True, False])
def test_a_store_that_refuses_its_own_etag_is_unfit_after_ten(store: MemoryStore, is_new: bool) -> None:
    broken = RefusesItsOwnEtag()
    if not is_new:
        broken.objects = dict(store.objects)
    with pytest.raises(errors.StoreUnfit):
        claim(broken, MemoryLog(ROWS))
    assert broken.swaps == 10


def test_a_fenced_writer_is_told_by_whom(store: MemoryStore) -> None:
    log = MemoryLog(ROWS)
    held = claim(store, log).held
    run(take_over(IDENTITY, "the other", POLICY), store, log)
    with pytest.raises(Fenced) as caught:
        run(commit_progress(IDENTITY, held, 9), store, log)
    assert "the other" in caught.value.why and str(marker_in(store).epoch) in caught.value.why


def test_a_swap_whose_answer_was_lost_is_known_by_its_nonce(store: MemoryStore) -> None:
    held = claim(store, MemoryLog(ROWS)).held
    moved = with_fields(held.marker, nonce="mine")
    actor = Actor("a", swap_marker(KEY, moved, held.etag), store, MemoryLog(ROWS), random.Random(1))
    actor.step(Fate.ANSWER_LOST)
    actor.run_to_end()
    assert actor.result.marker == moved and store.versions[KEY][-1] == encode(moved)


def test_a_partition_that_was_reassigned_is_not_claimed_and_what_was_fetched_of_it_is_committed(
    store: MemoryStore,
) -> None:
    log = MemoryLog(ROWS)
    held = claim(store, log).held
    before = store.objects[KEY]
    with pytest.raises(AssignmentLost):
        run(take_over(IDENTITY, "b", POLICY), store, log, assigned=False)
    assert store.objects[KEY] == before
    assert run(commit_progress(IDENTITY, held, 9), store, log, assigned=False).marker.next_offset == 9


class TestIdsThatWereNotKnown:
    UNKNOWN = identity_of(topic_id=None)

    @pytest.fixture
    def nameless(self) -> MemoryStore:
        """As `store`, by a writer that could not ask for the topic's id."""
        store, log = MemoryStore(), MemoryLog(ROWS)
        run(archive_all(self.UNKNOWN, log, "first", lambda: 3), store, log)
        return store

    def test_are_adopted_once_the_tail_is_the_archived_one(self, nameless: MemoryStore) -> None:
        claimed = claim(nameless, MemoryLog(ROWS))
        assert claimed.held.marker.topic_id == IDENTITY.topic_id

    def test_are_not_adopted_of_another_log(self, nameless: MemoryStore) -> None:
        refused(Diverged, nameless, MemoryLog([row._replace(value=b"another") for row in ROWS]))

    def test_do_not_delay_a_claim_of_an_archive_that_has_one(self, store: MemoryStore) -> None:
        claimed = claim(store, MemoryLog(ROWS), self.UNKNOWN)
        assert claimed.held.marker.topic_id == IDENTITY.topic_id


class TestLogsThatNoRecordSpeaksFor:
    """Only the topic's id says then that the log is the archived one: it is asked after the log was looked at."""

    @pytest.mark.parametrize("topic_id", [None, IDENTITY.topic_id], ids=["not told", "told before"])
    @pytest.mark.parametrize(
        ("rows", "low", "high"),
        [([], 0, 3), ([], 40, 90), (ROWS[:-1], 0, 8), ([*ROWS[:-1], ROWS[-1]._replace(value=b"another")], 0, 8)],
        ids=["shorter", "a gap", "without the newest record", "with another record"],
    )
    def test_an_archive_that_knows_the_id_waits_for_it(
        self, store: MemoryStore, rows: list[Record], low: int, high: int, topic_id: str | None
    ) -> None:
        log = MemoryLog(rows, low=low, high=high)
        log.unconfirmed = NOT_TOLD
        refused(errors.PartitionUnavailable, store, log, identity_of(topic_id=topic_id))
        assert log.confirmed == ["id-1"]

    @pytest.mark.parametrize("rows", [[], ROWS], ids=["empty", "with records"])
    def test_a_partition_of_which_nothing_is_archived_waits_for_it(self, rows: list[Record]) -> None:
        store, log = MemoryStore(), MemoryLog(rows)
        log.unconfirmed = NOT_TOLD
        refused(errors.PartitionUnavailable, store, log)
        log.unconfirmed = None
        assert claim(store, log).held.marker.topic_id == "id-1"
        log.unconfirmed = NOT_TOLD
        refused(errors.PartitionUnavailable, store, log, identity_of(topic_id=None))

    def test_nothing_waits_where_nobody_ever_told_an_id(self) -> None:
        store, log = MemoryStore(), MemoryLog([], low=4, high=90)
        unknown = identity_of(topic_id=None)
        run(commit_progress(unknown, claim(store, log, unknown).held, 10), store, log)
        assert claim(store, MemoryLog([], low=20, high=90), unknown).gap == Gap(10, 20, "retention")
        assert not log.confirmed

    def test_nothing_waits_where_the_newest_record_is_the_archived_one(self, store: MemoryStore) -> None:
        log = MemoryLog(ROWS)
        assert claim(store, log).position == 8 and not log.confirmed


class TestALogThatWasWrittenAgainBehindTheNewestRecord:
    """It lost only offsets that held no record, and agrees in all that is archived."""

    @pytest.fixture
    def ended_in_holes(self, store: MemoryStore) -> MemoryStore:
        """Archived up to offset 12, and offsets 8 to 11 are holes."""
        run(commit_progress(IDENTITY, claim(store, MemoryLog(ROWS, high=12)).held, 12), store, MemoryLog(ROWS, high=12))
        return store

    @pytest.mark.parametrize("offset", [8, 11])
    def test_diverged(self, ended_in_holes: MemoryStore, offset: int) -> None:
        again = MemoryLog([*ROWS, *records([offset, 12, 13])])
        assert f"offset {offset} " in refused(Diverged, ended_in_holes, again).what
        marker = marker_in(ended_in_holes)
        assert isinstance(run(why_diverged(IDENTITY, marker), ended_in_holes, again), Diverged)

    def test_agrees_where_they_are_holes_still(self, ended_in_holes: MemoryStore) -> None:
        for log in (MemoryLog(ROWS, high=12), MemoryLog([*ROWS, *records([12, 13])])):
            assert claim(ended_in_holes, log).position == 12

    def test_what_a_gap_lists_may_be_there(self, ended_in_holes: MemoryStore) -> None:
        """Records that could not be encoded."""
        log = MemoryLog([*ROWS, *records([12, 13, 14])])
        held = claim(ended_in_holes, log).held
        run(commit_progress(IDENTITY, held, 15, (Gap(12, 14, "skipped"),)), ended_in_holes, log)
        refused(Diverged, ended_in_holes, log)
        assert claim(ended_in_holes, MemoryLog([*ROWS, *records([12, 13])], high=15)).position == 15


def test_progress_raises_the_newest_chunk_with_the_marker(store: MemoryStore) -> None:
    log = MemoryLog(ROWS, high=20)
    held = run(commit_progress(IDENTITY, claim(store, log).held, 12), store, log)
    assert held.marker.next_offset == held.marker.tail[-1].next_offset == 12
    later = claim(store, MemoryLog(records([12]), low=12, high=13))
    assert later.gap is None, "retention of offsets that held no record is no loss"


def test_a_broker_that_does_not_answer_claims_nothing(store: MemoryStore) -> None:
    actor = Actor("a", take_over(IDENTITY, "a", POLICY), store, MemoryLog(ROWS), random.Random(1))
    before = store.bodies()
    while not isinstance(actor.operation, op.ReadLogBounds):
        actor.step()
    for attempt in range(1, 50):
        actor.step(Fate.NOT_APPLIED)
        assert actor.operation == op.Wait(attempt, "the broker did not answer")
        actor.step()
    assert store.bodies() == before
    actor.run_to_end()
    assert actor.result.position == 8


def test_reads_are_repeated_until_the_store_answers_or_the_run_ends(store: MemoryStore) -> None:
    actor = Actor("a", take_over(IDENTITY, "a", POLICY), store, MemoryLog(ROWS), random.Random(1))
    for attempt in range(1, 50):
        actor.step(Fate.NOT_APPLIED)
        assert actor.operation == op.Wait(attempt, "the store did not answer")
        actor.step()
    actor.run_to_end()
    assert actor.result.position == 8

    def end(attempt: int, cause: str) -> None:
        raise errors.ShuttingDown("the run ended")

    with pytest.raises(errors.ShuttingDown):
        Driver(RefusesItsOwnEtag(), MemoryLog(ROWS), end, lambda: True).run(take_over(IDENTITY, "a", POLICY))


class ForgetsWhatItHolds(MemoryStore):
    """Says that a key is taken and that nothing is there."""

    def put_if_absent(self, key: str, body: Any, attempt: str) -> bool:
        return False


def test_a_store_that_contradicts_itself_is_asked_again_after_a_pause(store: MemoryStore) -> None:
    log = MemoryLog([*ROWS, *records([8])])
    held = claim(store, log).held
    broken = ForgetsWhatItHolds()
    causes: list[str] = []

    def wait(attempt: int, cause: str) -> None:
        causes.append(cause)
        if attempt == 5:
            raise errors.ShuttingDown("the run ended")

    with pytest.raises(errors.ShuttingDown):
        Driver(broken, log, wait, lambda: True).run(
            commit_chunk(IDENTITY, held, finished_chunk("json", tuple(log.records[-1:]), 8, 9))
        )
    assert len(causes) == 5 and "exists" in causes[0]
