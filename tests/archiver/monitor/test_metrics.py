"""Metrics and what they are made of."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from archiver.commit.operations import LogBounds
from archiver.ingest.ownership import PartitionState
from archiver.monitor.metrics import make_registry
from archiver.monitor.server import readiness
from archiver.monitor.snapshot import LIVE_SECONDS, Reach, lag_records, lag_seconds
from tests.support.snapshots import partition, service

PAGE = (Path(__file__).parents[3] / "docs/operations.md").read_text()
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
            partition(0, durable_offset=90, lag_records=10, records=90, retries=2),
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
    assert samples["blockgz_assigned_partitions",] == 3
    assert samples["blockgz_unowned_partitions",] == 2
    assert samples["blockgz_stopped_partitions",] == 1
    assert samples["blockgz_memory_bytes", "open_blocks"] == 20
    assert ("blockgz_watermarks_age_seconds",) not in samples


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
        (Reach(None, None, None, None), None, None, None),
        (Reach(None, 10, None, None), BOUNDS, 90, None),
        (Reach(100, 100, None, NOW_MS - 5000), BOUNDS, 0, 0.0),
        (Reach(90, 100, NOW_MS - 3000, NOW_MS - 5000), BOUNDS, 10, 3.0),
        (Reach(90, 100, NOW_MS - 3000, NOW_MS - 5000), None, None, 3.0),
        (Reach(90, 100, NOW_MS + 3000, None), BOUNDS, 10, 0.0),
        (Reach(90, 100, -1, NOW_MS - 5000), BOUNDS, 10, None),
        (Reach(90, 100, None, NOW_MS - 5000), BOUNDS, 10, 0.0),
        (Reach(90, 92, None, NOW_MS - 5000), BOUNDS, 10, 5.0),
        (Reach(90, None, None, NOW_MS - 5000), BOUNDS, 10, 5.0),
        (Reach(5, 10, None, NOW_MS - 5000), BOUNDS, 90, 5.0),
        (Reach(120, 120, None, NOW_MS - 5000), BOUNDS, 0, 0.0),
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
def test_lag(reach: Reach, bounds: LogBounds | None, records: int | None, seconds: float | None) -> None:
    assert lag_records(reach, bounds) == records
    assert lag_seconds(reach, bounds, NOW_MS) == seconds
