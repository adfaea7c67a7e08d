"""One look at a running archiver: values only, which metrics, health and `archiver status` are made of.

Sizes in bytes, times in seconds, ages as of the snapshot. None: not known, or nothing there to tell of.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from archiver.commit.operations import LogBounds
from archiver.ingest.kafka_source import Partition
from archiver.ingest.ownership import PartitionState, PartitionView

LIVE_SECONDS = 60.0
"""A main loop that took no step for so long hangs."""
UNOWNED = (PartitionState.CLAIMING, PartitionState.WAITING, PartitionState.STOPPED)


class PartitionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that is or was this process's. Counts are of this process's life."""

    topic: str
    partition: int
    state: PartitionState
    failure: str | None = None
    """Why it stopped."""
    trouble: str | None = None
    """What failed last, while it is tried again."""
    epoch: int | None = None
    durable_offset: int | None = None
    """Up to here the archive holds the partition."""
    position: int | None = None
    """Up to here records were read."""
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    lag_records: int | None = None
    """Offsets from the durable one to the log's end; holes count."""
    lag_seconds: float | None = None
    """Age of the oldest record that is not durable; see `lag_seconds`."""
    retention_headroom: int | None = None
    """Offsets that retention may still delete before it reaches what is not archived."""
    open_chunk_seconds: float | None = None
    open_chunk_bytes: int = 0
    gaps: int = 0
    """Gaps that the marker lists."""
    records: int = 0
    stored_bytes: int = 0
    chunks: int = 0
    commits: int = 0
    commit_seconds: float = 0.0
    retries: int = 0
    restarts: int = 0
    fenced: int = 0
    lost_offsets: int = 0
    skipped: int = 0
    dropped_duplicates: int = 0

    @property
    def marker_gaps(self) -> int | None:
        """The gaps; None where no marker was read."""
        return self.gaps if self.epoch else None


class ServiceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A process and its partitions, in order."""

    version: str
    archive: str
    group_id: str
    joined: bool
    """Whether the group has told this process its partitions; with `--once` whether they were listed."""
    heartbeat_age_seconds: float
    """Time since the main loop's last step."""
    paused: bool
    memory_budget: int
    waiting_bytes: int
    """Records that were read and wait to be encoded."""
    open_block_bytes: int
    buffer_budget: int
    buffer_bytes: int
    watermarks_age_seconds: float | None
    partitions: tuple[PartitionSnapshot, ...]

    def in_state(self, *states: PartitionState) -> int:
        return sum(partition.state in states for partition in self.partitions)

    @property
    def assigned(self) -> int:
        """Partitions that are this process's now."""
        return len(self.partitions) - self.in_state(PartitionState.RELEASED)

    @property
    def stopped(self) -> int:
        return self.in_state(PartitionState.STOPPED)

    @property
    def unowned(self) -> int:
        """Partitions that are this process's and not being archived."""
        return self.in_state(*UNOWNED)

    @property
    def is_live(self) -> bool:
        return self.heartbeat_age_seconds <= LIVE_SECONDS


def partition_snapshots(
    views: Iterable[PartitionView], bounds: Mapping[Partition, LogBounds], *, now: float, wall_ms: int
) -> tuple[PartitionSnapshot, ...]:
    """The partitions in order; `now` is of the archivers' monotonic clock, `wall_ms` the time of day."""
    ordered = sorted(views, key=lambda view: view.report.partition)
    return tuple(_partition(view, bounds.get(view.report.partition), now, wall_ms) for view in ordered)


def _partition(view: PartitionView, bounds: LogBounds | None, now: float, wall_ms: int) -> PartitionSnapshot:
    report, counts, archiving = view.report, view.counts, view.archiving
    topic, number = report.partition
    snapshot = PartitionSnapshot(
        topic=topic,
        partition=number,
        state=view.state,
        failure=report.failure.what if report.failure is not None else None,
        trouble=view.trouble.error.reason if view.trouble is not None else None,
        records=counts.records,
        stored_bytes=counts.stored_bytes,
        chunks=counts.chunks,
        commits=counts.commits,
        commit_seconds=counts.commit_seconds,
        retries=report.retries,
        restarts=report.restarts,
        fenced=report.fenced,
        lost_offsets=report.lost_offsets,
        skipped=counts.skipped,
        dropped_duplicates=counts.dropped_duplicates,
    )
    if view.state is PartitionState.RELEASED:
        return snapshot
    if archiving is None:
        reach = Reach(report.next_offset, None, None, report.newest_ms)
    else:
        marker, chunk = archiving.marker, archiving.open_chunk
        reach = Reach(marker.next_offset, archiving.position, archiving.oldest_uncommitted_ms, marker.newest_timestamp)
        snapshot = replace(
            snapshot,
            epoch=marker.epoch,
            position=archiving.position,
            gaps=marker.num_gaps,
            open_chunk_seconds=None if chunk is None else now - chunk.opened_at,
            open_chunk_bytes=0 if chunk is None else chunk.compressed_bytes,
        )
    if bounds is not None:
        snapshot = replace(snapshot, log_start_offset=bounds.low, log_end_offset=bounds.high)
    return replace(
        snapshot,
        durable_offset=reach.durable,
        lag_records=lag_records(reach, bounds),
        lag_seconds=lag_seconds(reach, bounds, wall_ms),
        retention_headroom=None if bounds is None or reach.durable is None else reach.durable - bounds.low,
    )


class Reach(NamedTuple):
    """How far a partition came: offsets, and timestamps of records in ms."""

    durable: int | None
    position: int | None
    oldest_uncommitted_ms: int | None
    newest_durable_ms: int | None


def lag_records(reach: Reach, bounds: LogBounds | None) -> int | None:
    """Offsets of the log that are not durable yet."""
    if bounds is None:
        return None
    start = bounds.low if reach.durable is None else max(reach.durable, bounds.low)
    return max(0, bounds.high - start)


def lag_seconds(reach: Reach, bounds: LogBounds | None, wall_ms: int) -> float | None:
    """Age of the oldest record that is not durable, by its timestamp.

    While there are records that were not read yet, the newest durable one stands for them: an upper bound.
    """
    if reach.oldest_uncommitted_ms is not None:
        return _age(reach.oldest_uncommitted_ms, wall_ms)
    if bounds is None:
        return None
    if lag_records(reach, bounds) == 0 or (reach.position is not None and reach.position >= bounds.high):
        # What was read and is not durable are holes only, such as the end of a transaction.
        return 0.0
    return None if reach.newest_durable_ms is None else _age(reach.newest_durable_ms, wall_ms)


def _age(timestamp: int, wall_ms: int) -> float | None:
    return max(0, wall_ms - timestamp) / 1000 if timestamp >= 0 else None
