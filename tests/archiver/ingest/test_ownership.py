"""Giving partitions up: what could not be committed is told, and what `--once` left."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from archiver.cli.run import RunResult, run_exit_code
from archiver.commit.recovery import ClaimList
from archiver.errors import Diverged, OwnedByAnother, TopicChanged, TopicGone
from archiver.ingest.chunk_builder import BufferFolder
from archiver.ingest.kafka_source import Fetched, Partition
from archiver.ingest.ownership import (
    MOST_BETWEEN_LOOKS,
    STOPPED_SECONDS,
    ArchivingContext,
    ClaimQueue,
    Ownership,
    PartitionState,
    RunningTime,
    denial_to_show,
)
from archiver.ingest.partition_state import Order
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied, BufferFailed, PartitionUnavailable, StoreFull, StoreUnfit, exit_code
from blockgz.kafka import LogBounds
from blockgz.store.retry import StoreBackoff
from blockgz.store.writer import Body, StoredObject
from index_format.errors import BlockgzError, MalformedObject, UnsupportedVersion
from index_format.keys import LAYOUTS, TopicFolder
from index_format.marker import decode_marker
from index_format.objects import ArchiveInfo
from index_format.records import batch_from_records
from tests.support.archives import records
from tests.support.memory_store import MemoryLog, MemoryStore

PARTITION = ("orders", 0)


def test_a_process_that_was_suspended_had_no_time_meanwhile() -> None:
    now = 100.0
    running = RunningTime(lambda: now)
    begun = running()
    now += 1.5
    assert running() - begun == 1.5
    now += 3600.0
    assert running() - begun == 1.5 + MOST_BETWEEN_LOOKS


class RefusingStore(MemoryStore):
    """Fails once a chunk is to be stored, not before."""

    def __init__(self, refusal: BlockgzError | None) -> None:
        super().__init__()
        self._refusal = refusal

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        if self._refusal is not None:
            raise self._refusal
        return super().put_if_absent(key, body, attempt)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads


@pytest.fixture
def buffer(tmp_path: Path) -> Iterator[BufferFolder]:
    folder = BufferFolder(tmp_path)
    yield folder
    folder.close()


def claimed(
    store: MemoryStore,
    buffer: BufferFolder,
    pool: ThreadPoolExecutor,
    end_offset: int | None = None,
    topic_id: str | None = None,
) -> Ownership:
    """An owner of PARTITION, which is being archived."""
    ownership = owner(store, buffer, pool, topic_id=topic_id)
    ownership.acquire(PARTITION, end_offset)
    wait_for(ownership.begin)
    return ownership


def owner(
    store: MemoryStore,
    buffer: BufferFolder,
    pool: ThreadPoolExecutor,
    back_off: Any = None,
    topic_id: str | None = None,
    *,
    high: int = 10**6,
    archived_id: str | None = None,
    unconfirmed: BlockgzError | None = None,
    **settings: Any,
) -> Ownership:
    """An owner of no partition yet; `high` is where the log ends, `archived_id` what the topic's folder says."""
    topics: Any = SimpleNamespace(
        locate=lambda topic: (topic_id, TopicFolder(topic)),
        id_of_claimed=lambda *_: topic_id,
        archived_id=lambda _: archived_id or topic_id,
    )
    log = MemoryLog([], high=high)
    log.unconfirmed = unconfirmed
    context = ArchivingContext(
        config=RunConfig(archive="./archive", bootstrap_servers="b:9092", topics=("orders",), **settings),
        archive_id="a",
        store=store,
        buffer=buffer,
        topics=topics,
        log_of=lambda *_: log,
        writer="w",
        back_off=back_off or (lambda *_: time.sleep(0.001)),
        clock=time.monotonic,
        claims=ClaimQueue(lambda partitions: dict.fromkeys(partitions, LogBounds(0, high)), pool),
        claim_list=ClaimList(store, ArchiveInfo(archive_id="a", cluster_id=None, layout="topic")),
        builders=pool,
        committers=pool,
    )
    return Ownership(context)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("refusal", "is_the_runs"), [(None, False), (AccessDenied("denied"), True), (BufferFailed("no space"), False)]
)
def test_a_last_chunk_that_could_not_be_committed(
    refusal: BlockgzError | None,
    is_the_runs: bool,
    pool: ThreadPoolExecutor,
    buffer: BufferFolder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    ownership = claimed(RefusingStore(refusal), buffer, pool)
    ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
    ownership.give_up([PARTITION], 0.5 if isinstance(refusal, AccessDenied) else 10, lambda: time.sleep(0.001))
    report = ownership.reports[PARTITION]
    assert report.counts.records == (0 if refusal else 3)
    assert (report.failure is refusal) == (is_the_runs or refusal is None)
    assert bool(caplog.messages) == (refusal is not None), "nobody hears of it"


class GatedStore(MemoryStore):
    """Chunks are stored once the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        assert self.gate.wait(10)
        return super().put_if_absent(key, body, attempt)


class GatedSwaps(MemoryStore):
    """Markers are swapped once the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.swapping = threading.Event()

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        self.swapping.set()
        assert self.gate.wait(10)
        return super().compare_and_swap(key, body, expected)


def test_a_claim_of_a_partition_that_left_meanwhile_is_not_used(pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
    store = GatedSwaps()
    ownership = owner(store, buffer, pool)
    ownership.acquire(PARTITION)
    assert ownership.begin() == {}
    assert store.swapping.wait(10)
    ownership.lose([PARTITION])
    store.gate.set()
    positions: dict[Partition, int] = {}

    def is_over() -> bool:
        positions.update(ownership.begin())
        return ownership.is_over or bool(positions)

    wait_for(is_over)
    assert positions == {} and ownership.active == {}, "its records would be fetched beside the new owner"


def next_offset(store: MemoryStore) -> int | None:
    return decode_marker(store.objects["topic=orders/partition=00000/last_chunk_index.json"].body).next_offset


class TestLosing:
    """The group went on without this process."""

    def test_what_was_fetched_is_archived_before_the_partition_is_claimed_again(
        self, pool: ThreadPoolExecutor, buffer: BufferFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store = GatedStore()
        ownership = claimed(store, buffer, pool)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.lose([PARTITION])
        assert ownership.assigned == set() and ownership.active == {} and not ownership.is_over
        with monkeypatch.context() as patch:
            patch.setattr(ClaimQueue, "submit", lambda *_: pytest.fail("claimed while the chunk is under way"))
            ownership.acquire(PARTITION)
            ownership.tick(math.inf)
            assert ownership.begin() == {}
        assert next_offset(store) is None
        store.gate.set()
        wait_for(lambda: not ownership.review() and not ownership.in_hand)
        assert next_offset(store) == 3
        ownership.tick(math.inf)
        wait_for(lambda: ownership.begin() == {PARTITION: 3})
        assert ownership.reports[PARTITION].counts.records == 3

    def test_a_newer_owner_wins(self, pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
        store = GatedStore()
        ownership = claimed(store, buffer, pool)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.lose([PARTITION])
        newer = claimed(store, buffer, pool)
        store.gate.set()
        wait_for(lambda: not ownership.review() and not ownership.in_hand)
        assert next_offset(store) is None
        newer.offer(Fetched(PARTITION, batch_from_records(records(range(2))), None, 100))
        newer.give_up([PARTITION], 10, lambda: time.sleep(0.001))
        assert next_offset(store) == 2

    def test_it_ends_with_the_grace(self, pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
        store = GatedStore()
        ownership = owner(store, buffer, pool, grace=0.05)
        ownership.acquire(PARTITION)
        wait_for(ownership.begin)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.lose([PARTITION])
        wait_for(lambda: not ownership.review() and not ownership.in_hand)
        assert next_offset(store) is None
        store.gate.set()

    def test_the_end_of_the_run_waits_for_it(self, pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
        store = GatedStore()
        ownership = claimed(store, buffer, pool)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.lose([PARTITION])
        ownership.give_up([PARTITION], 10, store.gate.set)
        assert next_offset(store) == 3

    def test_a_wait_that_is_cut_short_continues_at_the_end(
        self, pool: ThreadPoolExecutor, buffer: BufferFolder
    ) -> None:
        """SIGTERM comes while a partition that leaves holds up the others, which are to be flushed as well."""
        store = GatedStore()
        ownership = claimed(store, buffer, pool)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.give_up([PARTITION], 10, lambda: time.sleep(0.001), lambda: True)
        assert next_offset(store) is None and PARTITION in ownership.in_hand
        ownership.give_up([PARTITION], 10, store.gate.set)
        assert next_offset(store) == 3

    def test_nothing_is_written_where_the_store_keeps_no_writers_apart(
        self, pool: ThreadPoolExecutor, buffer: BufferFolder
    ) -> None:
        store = MemoryStore()
        ownership = owner(store, buffer, pool, single_writer=True)
        ownership.acquire(PARTITION)
        wait_for(ownership.begin)
        before = store.bodies()
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.lose([PARTITION])
        assert not ownership.in_hand
        pool.shutdown()
        assert store.bodies() == before and buffer.used_bytes == 0


MARKER = LAYOUTS["topic"](TopicFolder("orders"), 0).marker


@pytest.mark.parametrize("is_asked", [False, True], ids=["after minutes", "at once if asked"])
def test_a_partition_whose_marker_was_fixed_is_claimed_again(
    pool: ThreadPoolExecutor, buffer: BufferFolder, is_asked: bool
) -> None:
    store = MemoryStore()
    store.put_if_absent(MARKER, b"damaged", "attempt")
    ownership = owner(store, buffer, pool)
    ownership.acquire(PARTITION)
    wait_for(lambda: ownership.begin() or ownership.reports[PARTITION].failure)
    assert isinstance(ownership.reports[PARTITION].failure, MalformedObject)
    store.delete(MARKER)
    now = time.monotonic()
    ownership.tick(now + STOPPED_SECONDS - 10)
    assert ownership.reports[PARTITION].failure is not None, "it is tried every few minutes"
    if is_asked:
        ownership.fixed.set()
    ownership.tick(now + (STOPPED_SECONDS - 10 if is_asked else STOPPED_SECONDS + 10))
    wait_for(ownership.begin)
    assert PARTITION in ownership.active


def of_another_group(store: MemoryStore, buffer: BufferFolder, pool: ThreadPoolExecutor) -> Ownership:
    """An owner whose only partition is archived by another consumer group."""
    claimed(store, buffer, pool).give_up([PARTITION], 1, lambda: time.sleep(0.001))
    ownership = owner(store, buffer, pool, group_id="another")
    ownership.acquire(PARTITION)
    wait_for(lambda: ownership.begin() or ownership.reports[PARTITION].failure)
    return ownership


def test_a_process_whose_partitions_are_all_another_groups_ends_after_minutes(
    pool: ThreadPoolExecutor, buffer: BufferFolder
) -> None:
    ownership = of_another_group(MemoryStore(), buffer, pool)
    now = time.monotonic()
    ownership.tick(now)
    ownership.tick(now + STOPPED_SECONDS - 1)
    with pytest.raises(OwnedByAnother, match=r"nothing is left to archive .* group 'blockgz-archiver'") as caught:
        ownership.tick(now + STOPPED_SECONDS)
    assert exit_code(caught.value) == 11 and "--takeover" in caught.value.remedy


@pytest.mark.parametrize(
    "failure", [Diverged("another log"), OwnedByAnother("another group"), UnsupportedVersion("newer"), StoreUnfit("x")]
)
def test_what_needs_a_decision_is_not_tried_again(
    pool: ThreadPoolExecutor, buffer: BufferFolder, failure: BlockgzError
) -> None:
    ownership = owner(MemoryStore(), buffer, pool)
    ownership.refuse(PARTITION, failure)
    ownership.fixed.set()
    ownership.tick(time.monotonic())
    assert ownership.reports[PARTITION].failure is failure and not ownership.begin()


def test_a_topic_that_is_gone_is_the_partitions_failure(pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
    ownership = claimed(MemoryStore(), buffer, pool)
    ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
    ownership.give_up([PARTITION], 10, lambda: time.sleep(0.001))
    ownership.gone({"orders"})
    assert isinstance(ownership.reports[PARTITION].failure, TopicGone)
    assert [state for state, _, _ in ownership.views()] == [PartitionState.GONE]
    assert run_exit_code(RunResult(list(ownership.reports.values()), (), {signal.SIGTERM}), once=False) == 3


def test_a_topic_that_is_back_is_nobodys_failure(pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
    """The group may not have noticed, so that its partitions were never assigned again."""
    ownership = claimed(MemoryStore(), buffer, pool)
    ownership.gone({"orders"})
    ownership.back({"payments"})
    assert isinstance(ownership.reports[PARTITION].failure, TopicGone)
    ownership.back({"orders"})
    ownership.give_up([PARTITION], 10, lambda: time.sleep(0.001))
    assert run_exit_code(RunResult(list(ownership.reports.values()), (), {signal.SIGTERM}), once=False) == 0


class TestDraining:
    @pytest.mark.parametrize(("end_offset", "is_drained"), [(3, True), (4, False)])
    def test_given_up_in_the_middle(
        self, end_offset: int, is_drained: bool, pool: ThreadPoolExecutor, buffer: BufferFolder
    ) -> None:
        ownership = claimed(MemoryStore(), buffer, pool, end_offset)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.give_up([PARTITION], 10, lambda: time.sleep(0.001))
        report = ownership.reports[PARTITION]
        assert (report.counts.records, report.is_drained) == (3, is_drained)
        assert run_exit_code(RunResult([report], (), {signal.SIGTERM}), once=True) == (0 if is_drained else 143)
        assert run_exit_code(RunResult([report], (), {signal.SIGTERM}), once=False) == 0
        assert run_exit_code(RunResult([report], (), {signal.SIGINT}), once=False) == 130

    def test_to_the_end(self, pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
        ownership = claimed(MemoryStore(), buffer, pool, 3)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        wait_for(ownership.review)
        assert ownership.is_over
        report = ownership.reports[PARTITION]
        assert report.is_drained
        assert run_exit_code(RunResult([report], ()), once=True) == 0
        assert run_exit_code(RunResult([report], ["missing"]), once=True) == 3
        assert run_exit_code(RunResult([report], ["missing"]), once=False) == 0

    def test_a_last_chunk_that_is_not_committed(self, pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
        ownership = claimed(RefusingStore(BufferFailed("no space")), buffer, pool, 3)
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.give_up([PARTITION], 10, lambda: time.sleep(0.001))
        assert run_exit_code(RunResult(list(ownership.reports.values()), (), {signal.SIGTERM}), once=True) == 143

    def test_not_even_started(self) -> None:
        assert run_exit_code(RunResult([], (), {signal.SIGTERM}), once=True) == 143
        assert run_exit_code(RunResult([], ()), once=True) == 3


class DenyingStore(MemoryStore):
    """Denies what touches keys that contain `denied`; None denies nothing."""

    denied: str | None = None

    def get(self, key: str) -> StoredObject | None:
        self._check(key)
        return super().get(key)

    def put_if_absent(self, key: str, body: Body, attempt: str) -> bool:
        self._check(key)
        return super().put_if_absent(key, body, attempt)

    def compare_and_swap(self, key: str, body: bytes, expected: str | None) -> str | None:
        self._check(key)
        return super().compare_and_swap(key, body, expected)

    def _check(self, key: str) -> None:
        if self.denied is not None and self.denied in key:
            raise AccessDenied("access was denied", why="403")


def denial(why: str, remedy: str, *, has_cause: bool = True) -> AccessDenied:
    error = AccessDenied("access was denied", why=why, remedy=remedy)
    error.has_cause = has_cause
    return error


EXPIRED = denial("ExpiredToken", "renew the credentials")
FORBIDDEN = denial("AccessDenied", "grant s3:PutObject")
BARE = denial("403 of HeadObject", "grant s3:GetObject", has_cause=False)


@pytest.mark.parametrize(
    ("known", "denied", "why", "remedy"),
    [
        (None, BARE, "403 of HeadObject", "grant s3:GetObject"),
        (StoreFull("full"), BARE, "403 of HeadObject", "grant s3:GetObject"),
        (EXPIRED, BARE, "ExpiredToken", "renew the credentials"),
        (BARE, EXPIRED, "ExpiredToken", "renew the credentials"),
        (EXPIRED, FORBIDDEN, "AccessDenied; before that: ExpiredToken", "grant s3:PutObject"),
        (
            denial_to_show(EXPIRED, FORBIDDEN),
            FORBIDDEN,
            "AccessDenied; before that: ExpiredToken",
            "grant s3:PutObject",
        ),
    ],
    ids=["first", "other trouble", "named stays", "bare goes", "both are named", "both stay"],
)
def test_a_denial_without_a_cause_hides_none_that_has_one(
    known: BlockgzError | None, denied: AccessDenied, why: str, remedy: str
) -> None:
    shown = denial_to_show(known, denied)
    assert (shown.why, shown.remedy) == (why, remedy)


class TestRefusals:
    def test_a_running_service_waits_shows_it_and_loses_nothing(
        self, pool: ThreadPoolExecutor, buffer: BufferFolder
    ) -> None:
        store = DenyingStore()
        ownership = claimed(store, buffer, pool)
        store.denied = ""
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        archiver = ownership.active[PARTITION]
        archiver.offer(Order.FLUSH)
        wait_for(lambda: ownership.reports[PARTITION].retries > 3)
        assert ownership.review() == [], "it is archived still"
        ((state, report, _),) = ownership.views()
        assert state is PartitionState.ARCHIVING
        assert report.trouble is not None and report.trouble.reason == "access was denied: 403"
        store.denied = None
        wait_for(lambda: archiver.state.is_idle)
        ((_, report, _),) = ownership.views()
        assert (archiver.state.committed, archiver.state.marker.epoch, report.trouble) == (3, 1, None)
        ownership.give_up([PARTITION], 1, lambda: time.sleep(0.001))

    def test_a_wait_of_minutes_does_not_outlast_the_grace(
        self, pool: ThreadPoolExecutor, buffer: BufferFolder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("blockgz.store.retry.FIRST_BACKOFF_SECONDS", 8.0)
        monkeypatch.setattr("blockgz.store.retry.random.uniform", lambda _, longest: longest)
        store = DenyingStore()
        ownership = owner(store, buffer, pool, back_off=StoreBackoff("memory:", threading.Event(), None))
        ownership.acquire(PARTITION)
        wait_for(ownership.begin)
        store.denied = ""
        ownership.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
        ownership.active[PARTITION].offer(Order.FLUSH)
        wait_for(lambda: ownership.reports[PARTITION].retries)
        store.denied = None
        ownership.give_up([PARTITION], 5, lambda: time.sleep(0.001))
        assert ownership.reports[PARTITION].next_offset == 3

    def test_where_all_first_claims_are_refused_the_service_ends(
        self, pool: ThreadPoolExecutor, buffer: BufferFolder
    ) -> None:
        store = DenyingStore()
        store.denied = "orders"
        ownership = owner(store, buffer, pool)
        ownership.acquire(PARTITION)
        with pytest.raises(AccessDenied):
            wait_for(ownership.begin)

    def test_with_once_the_refused_partition_stops(self, pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
        store = DenyingStore()
        store.denied = "orders"
        ownership = owner(store, buffer, pool, once=True)
        ownership.acquire(PARTITION, 3)
        wait_for(lambda: (ownership.begin(), ownership.is_over)[1])
        assert run_exit_code(RunResult(list(ownership.reports.values()), ()), once=True) == 12

    def test_a_refused_claim_is_tried_again_once_another_succeeded(
        self, pool: ThreadPoolExecutor, buffer: BufferFolder
    ) -> None:
        store, other = DenyingStore(), ("letters", 0)
        store.denied = "orders"
        ownership = owner(store, buffer, pool)
        ownership.acquire(PARTITION)
        ownership.acquire(other)
        wait_for(ownership.begin)
        wait_for(lambda: (ownership.begin(), ownership.reports[PARTITION].restarts)[1])
        assert [state for state, _, _ in ownership.views()] == [PartitionState.WAITING, PartitionState.ARCHIVING]
        store.denied = None
        wait_for(lambda: (ownership.tick(math.inf), ownership.begin(), PARTITION in ownership.active)[2])
        ownership.lose([PARTITION, other])


def test_an_id_that_is_not_reported_is_the_archives(pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
    """Otherwise nothing would be compared, and a topic that was created again be archived into the old one's folder."""
    store = MemoryStore()
    for topic_id in ("id-1", None):
        ownership = claimed(store, buffer, pool, topic_id=topic_id)
        assert ownership.active[PARTITION]._identity.topic_id == "id-1"


def test_an_id_that_is_not_reported_is_the_folders(pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
    """Of a partition that was never claimed the topic's folder alone says whose it is."""
    ownership = owner(MemoryStore(), buffer, pool, archived_id="id-1")
    ownership.acquire(PARTITION)
    wait_for(ownership.begin)
    archiver = ownership.active[PARTITION]
    assert archiver._identity.topic_id == archiver.held.marker.topic_id == "id-1"


@pytest.mark.parametrize(
    ("unconfirmed", "state"),
    [(None, PartitionState.STOPPED), (PartitionUnavailable("another one"), PartitionState.WAITING)],
    ids=["same", "another"],
)
def test_a_log_that_ends_early_is_not_a_divergence_where_it_may_be_another_topics(
    unconfirmed: BlockgzError | None, state: PartitionState, pool: ThreadPoolExecutor, buffer: BufferFolder
) -> None:
    store = MemoryStore()
    first = claimed(store, buffer, pool, topic_id="id-1")
    first.offer(Fetched(PARTITION, batch_from_records(records(range(3))), None, 100))
    first.give_up([PARTITION], 10, lambda: time.sleep(0.001))
    second = owner(store, buffer, pool, topic_id="id-1", high=1, unconfirmed=unconfirmed)
    second.acquire(PARTITION)
    wait_for(lambda: second.begin() or second.views()[0][0] is not PartitionState.CLAIMING)
    assert second.views()[0][0] is state
    assert isinstance(second.reports[PARTITION].failure, Diverged) == (unconfirmed is None)


def test_a_claim_from_before_a_loss_is_not_used_where_the_partition_came_back(
    pool: ThreadPoolExecutor, buffer: BufferFolder
) -> None:
    """Two claims in use at once would be two archivers of one partition, and one of them would forget its records."""
    ownership, may_go_on = owner(MemoryStore(), buffer, pool), threading.Event()
    topics: Any = ownership._context.topics
    locate = topics.locate
    topics.locate = lambda topic: (may_go_on.wait(10), locate(topic))[1]
    ownership.acquire(PARTITION)
    ownership.begin()
    ownership.lose([PARTITION])
    ownership.acquire(PARTITION)
    may_go_on.set()
    wait_for(lambda: (ownership.begin(), not ownership._claims)[1])
    assert not ownership.active
    ownership.tick(math.inf)
    wait_for(ownership.begin)
    epoch = ownership.active[PARTITION].held.marker.epoch
    ownership.tick(math.inf)
    assert epoch == 2 and not ownership._claims


def test_a_log_that_ends_below_the_end_of_a_drain_ends_it(pool: ThreadPoolExecutor, buffer: BufferFolder) -> None:
    """The topic that was to be drained is gone, and nothing may ever fill the new one."""
    ownership = owner(MemoryStore(), buffer, pool, high=9, once=True)
    ownership.acquire(PARTITION, 10)
    wait_for(lambda: not ownership.begin() and ownership.is_over)
    assert isinstance(ownership.reports[PARTITION].failure, TopicChanged)
