"""Metrics and what they are made of."""

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from archiver.ingest.backpressure import STALL_SECONDS
from archiver.ingest.ownership import PartitionState
from archiver.monitor.server import make_registry, readiness
from archiver.monitor.snapshot import (
    LIVE_SECONDS,
    MaintenanceSnapshot,
    lag_records,
    lag_seconds,
    progress_seconds,
    why_stuck,
)
from blockgz.kafka import LogBounds
from tests.support.snapshots import partition, service

PAGE = (Path(__file__).parents[3] / "docs/monitoring.md").read_text()
NOW_MS = 1_760_000_100_000


def test_metrics_are_as_documented() -> None:
    families = make_registry(service).collect()
    served = {
        (
            family.name + ("_total" if family.type == "counter" else "_info" if family.type == "info" else ""),
            family.type,
        )
        for family in families
    }
    table = PAGE.partition("## Metrics")[2].partition("## Log")[0]
    documented = set(re.findall(r"^\| `(\w+)` \| (gauge|counter) \| \S.* \|.*\|$", table, re.MULTILINE))
    assert {(name, "gauge" if kind == "info" else kind) for name, kind in served} == documented


def test_values_come_from_one_snapshot_at_the_time_of_the_scrape() -> None:
    taken = []

    def take() -> object:
        taken.append(1)
        return service(
            partition(0, durable_offset=90, lag_records=10, records=90, retries=2, unstable_records=4, stuck="x"),
            partition(1, PartitionState.CLAIMING),
            partition(2, PartitionState.STOPPED, failure="the log diverged"),
            partition(3, PartitionState.RELEASED, records=7),
        )

    registry = make_registry(take)  # type: ignore[arg-type]
    assert not taken
    text = generate_latest(registry).decode()
    assert len(taken) == 1
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["blockgz_durable_offset", "0", "orders"] == 90
    assert samples["blockgz_lag_records", "0", "orders"] == 10
    assert samples["blockgz_retries_total", "0", "orders"] == 2
    assert samples["blockgz_archived_records_total", "3", "orders"] == 7, "a counter outlives the ownership"
    assert ("blockgz_lag_records", "1", "orders") not in samples, "what is not known is not 0"
    assert samples["blockgz_unstable_records", "0", "orders"] == 4
    assert samples["blockgz_partition_paused", "0", "orders"] == 0
    assert samples["blockgz_stuck_partitions",] == 1
    assert samples["blockgz_assigned_partitions",] == 3
    assert samples["blockgz_unowned_partitions",] == 2
    assert samples["blockgz_stopped_partitions",] == 1
    assert samples["blockgz_memory_bytes", "open_blocks"] == 20
    assert ("blockgz_watermarks_age_seconds",) not in samples
    assert ("blockgz_groups_age_seconds",) not in samples
    assert (samples["blockgz_group_tables_total",], samples["blockgz_group_failures_total",]) == (40, 2)


def test_maintenance_has_values_where_there_is_a_policy() -> None:
    maintenance = MaintenanceSnapshot(
        retention_age_seconds=7.5,
        compaction_age_seconds=None,
        pruned_chunks=64,
        merged_chunks=3,
        moved_bytes=99,
        retention_failures=2,
        compaction_failures=0,
    )
    partitions = partition(0, epoch=1, retired=5, retired_bytes=600), partition(1, PartitionState.CLAIMING)

    def samples(found: MaintenanceSnapshot | None) -> dict[tuple[str, ...], float]:
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in make_registry(lambda: service(*partitions, maintenance=found)).collect()
            for sample in family.samples
        }

    told = samples(maintenance)
    assert told["blockgz_maintenance_age_seconds", "retention"] == 7.5
    assert ("blockgz_maintenance_age_seconds", "compaction") not in told
    assert told["blockgz_maintenance_failures_total", "retention"] == 2
    assert (told["blockgz_pruned_chunks_total",], told["blockgz_merged_chunks_total",]) == (64, 3)
    assert told["blockgz_maintenance_bytes_total",] == 99
    assert (told["blockgz_retired_rewrites", "0", "orders"], told["blockgz_retired_bytes", "0", "orders"]) == (5, 600)
    assert ("blockgz_retired_rewrites", "1", "orders") not in told
    assert {name for name, *_ in told.keys() - samples(None).keys()} == {
        "blockgz_maintenance_age_seconds",
        "blockgz_maintenance_failures_total",
        "blockgz_pruned_chunks_total",
        "blockgz_merged_chunks_total",
        "blockgz_maintenance_bytes_total",
    }


def test_a_service_is_live_and_ready() -> None:
    ready = service(partition(0), partition(1, PartitionState.DONE), partition(2, PartitionState.RELEASED))
    assert ready.is_live
    assert readiness(ready) is None
    assert readiness(service()) is None, "there may be no partition left for this process"
    assert readiness(service(joined=False)) is not None
    assert readiness(service(partition(0), partition(1, PartitionState.WAITING))) is not None
    assert not service(heartbeat_age=LIVE_SECONDS + 1).is_live


BOUNDS = LogBounds(10, 100)


@pytest.mark.parametrize(
    ("reach", "bounds", "records", "seconds"),
    [
        ((None, None, None, None), None, None, None),
        ((None, 10, None, None), BOUNDS, 90, None),
        ((100, 100, None, NOW_MS - 5000), BOUNDS, 0, 0.0),
        ((90, 100, NOW_MS - 3000, NOW_MS - 5000), BOUNDS, 10, 3.0),
        ((90, 100, NOW_MS - 3000, NOW_MS - 5000), None, None, 3.0),
        ((90, 100, NOW_MS + 3000, None), BOUNDS, 10, 0.0),
        ((90, 100, -1, NOW_MS - 5000), BOUNDS, 10, None),
        ((90, 100, None, NOW_MS - 5000), BOUNDS, 10, 0.0),
        ((90, 92, None, NOW_MS - 5000), BOUNDS, 10, 5.0),
        ((90, None, None, NOW_MS - 5000), BOUNDS, 10, 5.0),
        ((5, 10, None, NOW_MS - 5000), BOUNDS, 90, 5.0),
        ((120, 120, None, NOW_MS - 5000), BOUNDS, 0, 0.0),
    ],
    ids=[
        "nothing known",
        "nothing archived yet",
        "all archived",
        "records in an open chunk",
        "bounds not asked yet",
        "a clock ahead of this one",
        "records without a timestamp",
        "only holes are not durable",
        "records that were not read yet",
        "not owned right now",
        "retention passed the archive",
        "bounds older than the archive",
    ],
)
def test_lag(
    reach: tuple[int | None, ...], bounds: LogBounds | None, records: int | None, seconds: float | None
) -> None:
    durable, position, oldest_ms, newest_ms = reach
    assert lag_records(durable, bounds) == records
    age = lag_seconds(
        durable, position, bounds, oldest_uncommitted_ms=oldest_ms, newest_durable_ms=newest_ms, wall_ms=NOW_MS
    )
    assert age == seconds


PROGRESS = progress_seconds(chunk_interval_seconds=300)


def test_short_chunks_leave_a_minute() -> None:
    assert (progress_seconds(300), progress_seconds(1)) == (900, 60)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({}, None),
        ({"paused_seconds": STALL_SECONDS - 1}, None),
        (
            {"paused_seconds": STALL_SECONDS + 5},
            "paused for 15 s: its commit does not finish, or the buffer is full",
        ),
        ({"uncommitted_seconds": PROGRESS - 1, "commit_age_seconds": 10**6}, None),
        ({"uncommitted_seconds": PROGRESS}, "records have been waiting for their commit for 900 s"),
        ({"fetch_age_seconds": 10**6, "log_end_offset": 5, "unfetched_records": 0}, None),
        ({"fetch_age_seconds": PROGRESS - 1, "unfetched_records": 7}, None),
        (
            {"fetch_age_seconds": PROGRESS, "log_end_offset": 5, "unfetched_records": 7},
            "nothing was fetched for 900 s, although there are records",
        ),
        ({"fetch_age_seconds": PROGRESS}, "nothing was fetched for 900 s, and no broker answers for its log"),
    ],
    ids=[
        "just claimed",
        "a commit that takes long",
        "a commit that hangs",
        "a chunk that takes long",
        "an old chunk",
        "nothing is produced",
        "records came a moment ago",
        "records are not fetched",
        "no leader",
    ],
)
def test_a_partition_without_progress_is_stuck(found: dict[str, Any], why: str | None) -> None:
    assert why_stuck(partition(0, **found), PROGRESS, logs_answer=True) == why
    elsewhere = partition(0, PartitionState.RELEASED, **found)
    assert why_stuck(elsewhere, PROGRESS, logs_answer=True) is None


def test_where_no_broker_tells_ends_at_all_no_partition_is_blamed() -> None:
    assert why_stuck(partition(0, fetch_age_seconds=PROGRESS), PROGRESS, logs_answer=False) is None
