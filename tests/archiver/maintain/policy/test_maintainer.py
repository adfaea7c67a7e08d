"""A maintainer beside a writer: it does what the policy says, and whatever befalls it, archiving goes on."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.maintain import policy
from archiver.maintain.policy import (
    Maintainer,
    MaintenancePolicy,
    is_compaction_due,
    is_prune_due,
    num_small,
    rewrite_bytes,
    runs_of_a_round,
    worth,
)
from archiver.maintain.prune import Keep, PartitionPruning
from archiver.maintain.rewrite.tree import read_chain
from archiver.monitor.snapshot import MaintenanceSnapshot
from blockgz.config.model import RunConfig
from blockgz.errors import AccessDenied, StoreError
from index_format import marker as markers
from index_format.encryption import CIPHER
from index_format.keys import LAYOUTS, PartitionKeys, TopicFolder
from index_format.marker import MAX_RETIRED, Maintenance, Retired
from index_format.objects import Encryption, WrappedKey
from tests.archiver.maintain.erase.test_running import reference, world_of
from tests.archiver.maintain.erase.world import EraseWorld, encrypted_world, keys_in
from tests.archiver.maintain.repair.world import Died
from tests.index_format.builders import record
from tests.support.encryption import key_line, key_of
from tests.support.format_objects import chunk_of
from tests.support.memory_store import MemoryStore

HOUR = 3600.0


class Troubled:
    """The maintainer's way to the store: every request is looked at before it is made."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.look: Callable[[int], None] = lambda _: None
        self.requests = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in ("get", "get_range", "put_if_absent", "compare_and_swap"):
            return found

        def request(*arguments: Any) -> Any:
            self.requests += 1
            self.look(self.requests)
            return found(*arguments)

        return request


class Maintained:
    """An archiver's partition, and its maintainer."""

    def __init__(self, folder: Path, chunks: int | EraseWorld = 200, **fields: Any) -> None:
        self.world = world_of(random.Random(5), chunks) if isinstance(chunks, int) else chunks
        config = RunConfig(archive="./a", bootstrap_servers="b:1", topics="*", buffer_dir=folder, **fields)
        own = {"maintenance_interval": 0.01, "maintenance_rate": 1 << 30, "maintenance_buffer": 1 << 30}
        config = config.model_copy(update=own)
        self.ending = threading.Event()
        self.store = Troubled(self.world.store)
        self.now = HOUR
        self.partitions: Callable[[], list[PartitionKeys]] = lambda: [self.world.keys]
        self.maintainer = Maintainer(
            config,
            self.store,  # type: ignore[arg-type]
            self._listed,
            self.ending,
            clock=lambda: self.now,
            wall=lambda: self.now,
        )

    def _listed(self) -> list[PartitionKeys]:
        return self.partitions()

    def round(self) -> MaintenanceSnapshot:
        self.now += 2 * HOUR
        self.maintainer.maintain()
        return self.maintainer.snapshot()

    def archive(self) -> None:
        """The writer commits; nothing of it is lost or doubled."""
        before = self.world.marker.next_offset
        self.world.archive(random.Random(7), 3)
        assert (self.world.marker.next_offset or 0) > (before or 0)
        floor = self.world.marker.pruned_before
        archived, _ = self.world.archived()
        assert set(archived) == {offset for offset in self.world.stored if offset >= floor}


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What was logged as not maintained."""
    told: list[dict[str, Any]] = []

    class Log:
        def info(self, event: str, **_: Any) -> None:
            assert event in ("pruned", "compacted")

        def warning(self, event: str, **keys: Any) -> None:
            assert event == "not_maintained"
            told.append(keys)

    monkeypatch.setattr(policy, "log", Log())
    yield told


def test_a_round_does_what_the_policy_says(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, archive_retention_bytes="1kB", compact="*", compact_chunks=64)
    before = kept.world.marker
    seen = kept.round()
    after = kept.world.marker
    assert after.pruned_before > 0
    assert (seen.retention_age_seconds, seen.compaction_age_seconds, seen.troubles) == (0, 0, ())
    assert before.num_chunks == after.num_chunks + seen.pruned_chunks + seen.merged_chunks
    assert after.maintenance is not None
    assert after.maintenance.rewriting is None
    kept.archive()
    again = kept.round()
    assert again.pruned_chunks > seen.pruned_chunks, "the archiver has folded what was asked for"
    assert (kept.round().pruned_chunks, again.merged_chunks) == (again.pruned_chunks, seen.merged_chunks)


@pytest.mark.slow
def test_small_chunks_are_merged_once_there_are_enough(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, 100, compact="orders", compact_chunks=100)
    before = kept.world.marker
    assert kept.round().moved_bytes == 0
    assert kept.world.marker == before, "one catalog holds 64 chunks"
    kept.world.archive(random.Random(8), 60)
    num_chunks = kept.world.marker.num_chunks
    seen = kept.round()
    assert seen.merged_chunks > 100
    assert seen.moved_bytes > 0
    assert seen.retention_age_seconds is None
    assert kept.world.marker.num_chunks == num_chunks - seen.merged_chunks
    kept.world.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (AccessDenied("no", why="the key is wrong", remedy="renew it"), {"cause": "no", "remedy": "renew it"}),
        (StoreError("damaged", why="reasons"), {"cause": "damaged"}),
        (RuntimeError("a bug"), {"why": "RuntimeError('a bug')", "remedy": "report this as a bug"}),
    ],
)
def test_a_failure_is_told_once_and_the_next_round_makes_up_for_it(
    tmp_path: Path, warnings: list[dict[str, Any]], error: Exception, shown: dict[str, str]
) -> None:
    kept = Maintained(tmp_path, archive_retention_bytes="1kB", compact="*", compact_chunks=64)

    def fail(_: int) -> None:
        raise error

    kept.store.look = fail
    for _ in range(2):
        seen = kept.round()
        kept.archive()
    assert {each["kind"] for each in warnings} == {"retention", "compaction"}
    assert len(warnings) == 2
    assert all(each.items() >= {"topic": "orders", "partition": 3, **shown}.items() for each in warnings)
    assert (seen.retention_failures, seen.compaction_failures, len(seen.troubles)) == (2, 2, 2)
    assert seen.retention_age_seconds == 4 * HOUR
    kept.store.look = lambda _: None
    seen = kept.round()
    assert (seen.troubles, seen.retention_age_seconds, seen.retention_failures) == ((), 0, 2)
    assert seen.pruned_chunks > 0
    kept.archive()


def test_a_partition_that_fails_ages_its_kind_in_rounds_that_leave_it_out(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, archive_retention_bytes="1kB", compact="*", compact_chunks=64)
    lost = kept.world.store.get(kept.world.keys.marker)
    assert lost is not None
    kept.world.store.delete(kept.world.keys.marker)
    seen = kept.round()
    assert len(seen.troubles) == 2 and all("is missing" in trouble for trouble in seen.troubles)

    def late() -> list[PartitionKeys]:
        kept.now += HOUR
        return [kept.world.keys]

    kept.partitions = late
    assert kept.round().retention_age_seconds == kept.now - HOUR
    kept.partitions = lambda: [kept.world.keys]
    kept.world.store.compare_and_swap(kept.world.keys.marker, lost.body, None)
    seen = kept.round()
    assert (seen.retention_age_seconds, seen.compaction_age_seconds, seen.troubles) == (0, 0, ())


@pytest.mark.slow
def test_chunks_whose_keys_are_missing_are_told_and_the_others_merged(
    tmp_path: Path, warnings: list[dict[str, Any]]
) -> None:
    world = encrypted_world(random.Random(5), 140, keys_in(tmp_path, 1))
    before = world.marker.num_chunks
    kept = Maintained(tmp_path, world, compact="*", compact_chunks=2, encrypt=keys_in(tmp_path, 2))
    for rounds in (1, 2):
        seen = kept.round()
        assert seen.compaction_failures == rounds, "it is not forgotten"
    assert world.marker.num_chunks == before
    assert "their keys were" in warnings[0]["why"]
    kept = Maintained(tmp_path, world, compact="*", compact_chunks=2, encrypt=keys_in(tmp_path, 1, 2))
    assert (kept.round().troubles, world.marker.num_chunks < before) == ((), True)


@pytest.mark.slow
def test_wherever_it_ends_or_dies_the_writer_goes_on(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    world = world_of(random.Random(5), 140)
    policy = {"archive_retention_bytes": "6kB", "compact": "*", "compact_chunks": 2}
    whole = Maintained(tmp_path, world.copy(), **policy)
    whole.round()
    assert whole.store.requests > 100
    for request in random.Random(seed).sample(range(1, whole.store.requests + 1), 2):
        for dies in (False, True):
            kept = Maintained(tmp_path, world.copy(), **policy)

            def end(number: int, kept: Maintained = kept, request: int = request, *, dies: bool = dies) -> None:
                if number == request and dies:
                    raise Died
                if number == request:
                    kept.ending.set()

            kept.store.look = end
            try:
                kept.round()
            except Died:
                assert dies
            body = kept.world.marker.maintenance
            assert dies or body is None or body.rewriting is None, "it clears its intent"
            kept.archive()
            kept.ending.clear()
            kept.store.look = lambda _: None
            assert kept.round().troubles == ()
            assert kept.world.marker.num_chunks < 80
            kept.archive()


def test_a_marker_that_is_full_asks_for_garbage_collection(tmp_path: Path, warnings: list[dict[str, Any]]) -> None:
    kept = Maintained(tmp_path, 140, archive_retention_bytes="1")
    world, retired = kept.world, Retired(references=(reference(0),), token="0" * 32)
    held = world.store.get(world.keys.marker)
    assert held is not None
    full = replace(world.marker, version=2, maintenance=Maintenance(retired=(retired,) * MAX_RETIRED))
    world.store.compare_and_swap(world.keys.marker, markers.encode(full), held.etag)
    seen = kept.round()
    assert seen.retention_failures == 1
    assert warnings[0]["remedy"] == "run archiver gc now, and again once its grace period is over"


@pytest.mark.slow
def test_a_writer_commits_while_the_thread_maintains(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, 100, archive_retention_bytes="6kB", compact="*", compact_chunks=2)
    kept.maintainer.start()
    rng, deadline = random.Random(6), time.monotonic() + 10
    for _ in range(40):
        kept.world.archive(rng, 2)
    while not (kept.maintainer.snapshot().pruned_chunks and kept.maintainer.snapshot().merged_chunks):
        assert time.monotonic() < deadline
        kept.ending.wait(0.01)
    kept.maintainer.close()
    kept.archive()


def test_the_newest_chunks_of_a_silent_topic_are_pruned_as_well(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, 5, archive_retention="1s")
    kept.world.store.now = HOUR
    assert kept.round().pruned_chunks == 0, "the archiver may be at work on a backlog"
    assert kept.round().pruned_chunks == 5
    assert kept.world.marker.spans == ()
    kept.world.claim()
    kept.archive()


def test_the_archiver_of_a_living_topic_folds_its_older_chunks_itself(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, 5, archive_retention="1s")
    first, second = kept.world.marker.tail[:2]
    kept.world.store.now = (first.max_timestamp + 1 + 1000) / 1000
    epoch = kept.world.marker.epoch
    for _ in range(2):
        assert kept.round().pruned_chunks == 0
        body = kept.world.marker.maintenance
        assert body and (body.fold_before, body.revision) == (first.next_offset, 1)
    kept.world.archive(random.Random(8), 1)
    assert kept.round().pruned_chunks == 1
    marker = kept.world.marker
    assert (marker.epoch, marker.pruned_before) == (epoch, first.next_offset)
    assert marker.spans[0] == second
    kept.archive()


def test_an_archiver_with_an_old_backlog_is_not_fenced(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, 5, archive_retention="1s")
    kept.world.store.now, epoch = HOUR, kept.world.marker.epoch
    for _ in range(4):
        kept.round()
        kept.world.archive(random.Random(9), 2)
    assert kept.world.marker.epoch == epoch and kept.round().pruned_chunks > 5


@pytest.mark.slow
def test_the_thread_ends_at_once(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, archive_retention_bytes="1kB")
    kept.now = time.time()
    kept.maintainer.start()
    deadline = time.monotonic() + 10
    while not kept.maintainer.snapshot().pruned_chunks:
        assert time.monotonic() < deadline
        kept.ending.wait(0.01)
    begun = time.monotonic()
    kept.maintainer.close()
    assert time.monotonic() - begun < 0.5
    assert not [thread for thread in threading.enumerate() if thread.name == "maintenance"]


NOW_MS = 1_000_000_000
DAY_MS = 86_400_000


def decided_policy(**fields: Any) -> MaintenancePolicy:
    return MaintenancePolicy(RunConfig(archive="./a", bootstrap_servers="b:1", topics="*", **fields))


@pytest.mark.parametrize(
    ("topic", "keeps"),
    [
        ("audit-eu", []),
        ("clicks-eu", [Keep(since_ms=NOW_MS - DAY_MS), Keep(newest_bytes=500)]),
        ("orders", [Keep(since_ms=NOW_MS - 2 * DAY_MS)]),
        ("__consumer_offsets", [Keep(since_ms=NOW_MS - 2 * DAY_MS)]),
    ],
)
def test_the_first_rule_that_matches_a_topic_counts(topic: str, keeps: list[Keep]) -> None:
    rules = decided_policy(
        archive_retention=("audit-*=none", "~clicks.*=1d", "2d", "orders=1d"), archive_retention_bytes="clicks-*=500"
    )
    assert rules.keeps(topic, lambda: NOW_MS / 1000) == keeps
    assert rules.has_retention
    assert not rules.is_compacted(topic)


def test_topics_are_compacted_by_pattern_and_to_the_size_of_new_chunks() -> None:
    rules = decided_policy(compact="orders,eu-*", chunk_bytes=1000)
    assert [rules.is_compacted(topic) for topic in ("orders", "eu-1", "us-1")] == [True, True, False]
    compaction = rules.compaction_of("orders")
    assert (compaction.limits[:2], compaction.limits.span_ms, compaction.conversion) == ((500, 1000), DAY_MS, None)
    assert not rules.has_retention


def test_merged_chunks_span_a_tenth_of_the_retention_at_most() -> None:
    rules = decided_policy(compact="*", archive_retention=("audit=none", "clicks=5d", "90d"), chunk_span=60)
    spans = [rules.compaction_of(topic).limits.span_ms for topic in ("audit", "clicks", "orders")]
    assert spans == [DAY_MS, DAY_MS // 2, DAY_MS]


def test_a_retention_keeps_records_of_different_times_in_different_chunks(tmp_path: Path) -> None:
    kept = Maintained(tmp_path, compact="*", compact_chunks=2, archive_retention="1s")
    before = kept.world.marker
    kept.round()
    chain = read_chain(kept.world.store, kept.world.keys)
    assert chain is not None
    merged = [each for each in chain.entries if "~r" in each.name]
    assert len(chain.entries) < before.num_chunks and len(merged) > 2
    assert all(each.max_timestamp - each.min_timestamp <= 100 for each in merged)


def test_an_archiver_that_encrypts_compacts_what_it_encrypted(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(key_line(1))
    index = chunk_of([record(0, b"x")], "json", 1000)[0]
    encrypted = replace(index, version=2, encryption=Encryption(CIPHER, WrappedKey(key_of(1).id, b"wrapped")))
    for keys, opens in ((f"file:{tmp_path / 'keys'}", True), (None, False)):
        rules = decided_policy(compact="*", encrypt=keys)
        compaction_keys = rules.compaction_of("orders").keys
        assert (compaction_keys.opens(index), compaction_keys.opens(encrypted)) == (True, opens)
        assert not compaction_keys.encrypts_all


def plan(going: int, left: int, retired: int) -> PartitionPruning:
    keys = LAYOUTS["topic"](TopicFolder("orders"), 0)
    marker: Any = SimpleNamespace(num_bytes=going + left, retired=(None,) * retired)
    gone: Any = SimpleNamespace(bytes=going)
    return PartitionPruning(keys, marker, [gone], 1)


@pytest.mark.parametrize(
    ("retired", "least"),
    # What a prune has to take of 6,400 bytes that stay.
    [(0, 0), (7, 0), (8, 100), (16, 300), (24, 700), (32, 1500), (56, 12700)],
)
def test_a_prune_takes_more_the_more_is_retired(retired: int, least: int) -> None:
    assert is_prune_due(plan(least, 6400, retired))
    assert least == 0 or not is_prune_due(plan(least - 1, 6400, retired))


@pytest.mark.parametrize(
    ("small", "left", "retired", "due"),
    [
        (99, 0, 0, False),
        (100, 0, 0, True),
        (100, 1, 0, False),
        (150, 50, 7, True),
        (199, 0, 8, False),
        (200, 0, 8, True),
        (12_800, 0, 63, True),
        (12_799, 0, 63, False),
    ],
)
def test_a_compaction_needs_enough_small_chunks(small: int, left: int, retired: int, *, due: bool) -> None:
    assert is_compaction_due(small, left, 100, retired) is due


def test_chunks_are_small_by_the_average_of_their_catalog() -> None:
    references = [
        replace(reference(10 * n), num_chunks=chunks, bytes=size)
        for n, (chunks, size) in enumerate([(64, 6399), (64, 6400), (10, 0), (0, 0)])
    ]
    assert num_small(references, 100) == 74


def test_hourly_rewrites_do_not_fill_a_marker_within_a_grace() -> None:
    """With a chunk a second, a daily `gc` and a retention of a day, both kinds at work."""
    retired, small, overdue, hours = list[int](), 0, 0, 24 * 60
    for hour in range(hours):
        retired = [since for since in retired if hour - since < 24 * 9]
        small, overdue = small + 3600, overdue + 1
        if is_compaction_due(small, 0, 512, len(retired)):
            retired, small = [*retired, hour], 0
        if is_prune_due(plan(overdue, 24, len(retired))):
            retired, overdue = [*retired, hour], 0
        assert len(retired) < MAX_RETIRED
    assert worth(MAX_RETIRED) == 256


@pytest.mark.parametrize(
    ("planned", "retired", "runs"), [(0, 0, 0), (3, 0, 3), (100, 0, 4), (100, 30, 2), (100, 40, 1)]
)
def test_a_backlog_is_worked_off_in_several_rounds(planned: int, retired: int, runs: int) -> None:
    assert runs_of_a_round(planned, retired) == runs


@pytest.mark.parametrize(("buffer", "rate", "size"), [(1 << 30, 16 << 20, 1 << 30), (1 << 30, 1000, 600_000)])
def test_a_rewrite_copies_no_more_than_the_rate_allows_in_a_while(buffer: int, rate: int, size: int) -> None:
    assert rewrite_bytes(buffer, rate) == size
