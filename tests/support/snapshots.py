"""Snapshots of a service to look at."""

from archiver.ingest.ownership import PartitionState
from archiver.monitor.snapshot import MaintenanceSnapshot, PartitionSnapshot, ServiceSnapshot


def partition(number: int, state: PartitionState = PartitionState.ARCHIVING, **values: object) -> PartitionSnapshot:
    return PartitionSnapshot(topic="orders", partition=number, state=state, **values)  # type: ignore[arg-type]


def service(
    *partitions: PartitionSnapshot,
    joined: bool = True,
    heartbeat_age: float = 0.5,
    paused: bool = False,
    watermarks_age: float | None = None,
    groups_age: float | None = None,
    maintenance: MaintenanceSnapshot | None = None,
) -> ServiceSnapshot:
    return ServiceSnapshot(
        version="1.2.3",
        archive="file:///archive",
        group_id="group",
        joined=joined,
        heartbeat_age_seconds=heartbeat_age,
        paused=paused,
        memory_budget=1000,
        waiting_bytes=10,
        open_block_bytes=20,
        buffer_budget=2000,
        buffer_bytes=30,
        watermarks_age_seconds=watermarks_age,
        groups_age_seconds=groups_age,
        group_tables=40,
        group_failures=2,
        maintenance=maintenance,
        progress_seconds=900.0,
        partitions=partitions,
    )
