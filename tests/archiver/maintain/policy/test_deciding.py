"""Which topics are maintained, and when a rewrite is worth it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from archiver.maintain.policy import (
    MaintenancePolicy,
    is_compaction_due,
    is_prune_due,
    num_small,
    rewrite_bytes,
    runs_of_a_round,
    worth,
)
from archiver.maintain.prune import Keep, PartitionPruning
from blockgz.config.model import RunConfig
from index_format.chunk_index import Encryption, WrappedKey
from index_format.encryption import CIPHER
from index_format.keys import LAYOUTS, TopicFolder
from index_format.marker import MAX_RETIRED
from tests.archiver.maintain.erase.test_running import reference
from tests.index_format.builders import chunk_of, record
from tests.support.encryption import key_line, key_of

NOW_MS = 1_000_000_000
DAY_MS = 86_400_000


def policy(**fields: Any) -> MaintenancePolicy:
    return MaintenancePolicy.of(RunConfig(archive="./a", bootstrap_servers="b:1", topics="*", **fields))


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
    rules = policy(
        archive_retention=("audit-*=none", "~clicks.*=1d", "2d", "orders=1d"), archive_retention_bytes="clicks-*=500"
    )
    assert rules.keeps(topic, lambda: NOW_MS / 1000) == keeps
    assert rules.has_retention
    assert not rules.is_compacted(topic)


def test_topics_are_compacted_by_pattern_and_to_the_size_of_new_chunks() -> None:
    rules = policy(compact="orders,eu-*", chunk_bytes=1000)
    assert [rules.is_compacted(topic) for topic in ("orders", "eu-1", "us-1")] == [True, True, False]
    assert rules.compaction.limits[:2] == (500, 1000)
    assert rules.compaction.conversion is None
    assert not rules.has_retention


def test_an_archiver_that_encrypts_compacts_what_it_encrypted(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(key_line(1))
    index = chunk_of([record(0, b"x")], "json", 1000)[0]
    encrypted = replace(index, version=2, encryption=Encryption(CIPHER, WrappedKey(key_of(1).id, b"wrapped")))
    for keys, opens in ((f"file:{tmp_path / 'keys'}", True), (None, False)):
        rules = policy(compact="*", encrypt=keys)
        assert (rules.compaction.keys.opens(index), rules.compaction.keys.opens(encrypted)) == (True, opens)
        assert not rules.compaction.keys.encrypts_all


def plan(going: int, left: int, retired: int) -> PartitionPruning:
    keys = LAYOUTS["topic"](TopicFolder("orders"), 0)
    marker: Any = SimpleNamespace(num_bytes=going + left, retired=(None,) * retired)
    gone: Any = SimpleNamespace(bytes=going)
    return PartitionPruning(keys, marker, [gone])


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
