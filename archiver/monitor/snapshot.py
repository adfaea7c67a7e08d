"""One look at a running archiver: values only, which metrics, health and `archiver status` are made of.

Sizes in bytes, times in seconds, ages as of the snapshot. None: not known, or nothing there to tell of.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from archiver.commit.operations import LogBounds
from archiver.ingest.backpressure import STALL_SECONDS, FetchState
from archiver.ingest.kafka_cluster import LogView
from archiver.ingest.kafka_source import Partition, name_of
from archiver.ingest.ownership import PartitionState, PartitionView
from archiver.ingest.partition_state import ArchivingState

LIVE_SECONDS = 60.0
"""A main loop that took no step for so long hangs."""
PROGRESS_INTERVALS = 3
LEAST_PROGRESS_SECONDS = 60.0


class MaintenanceKind(StrEnum):
    """What a policy of maintenance asks for."""

    RETENTION = "retention"
    COMPACTION = "compaction"


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
    confirmed_offset: int | None = None
    """Up to here the cluster named the id of the topic that was claimed, after the records were fetched."""
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    unstable_records: int | None = None
    """Offsets from the last stable one to the high watermark: an open transaction, and all that came after it."""
    unfetched_records: int | None = None
    """Offsets of the log as it ended half a minute ago that were not fetched since."""
    lag_records: int | None = None
    """Offsets from the durable one to the log's end; holes count."""
    lag_seconds: float | None = None
    """Age of the oldest record that is not durable; see `lag_seconds`."""
    retention_headroom: int | None = None
    """Offsets that retention may still delete before it reaches what is not archived."""
    open_chunk_seconds: float | None = None
    open_chunk_bytes: int = 0
    uncommitted_seconds: float | None = None
    """Since the first of the records that are not committed was taken into a chunk."""
    commit_age_seconds: float | None = None
    """Since this process committed last."""
    fetch_age_seconds: float | None = None
    """Since records came, or the answer that there are no more."""
    paused_seconds: float | None = None
    """Since the partition was paused alone."""
    stuck: str | None = None
    """Why it makes no progress, though this process archives it; see `why_stuck`."""
    gaps: int = 0
    """Gaps that the marker lists."""
    retired: int = 0
    """Rewrites whose replaced objects wait for garbage collection, as of this process's last commit."""
    retired_bytes: int = 0
    """Of the data that these replaced, or a part of it: what stayed in place counts too."""
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
    def name(self) -> str:
        return name_of((self.topic, self.partition))

    @property
    def marker_gaps(self) -> int | None:
        """The gaps; None where no marker was read."""
        return self.gaps if self.epoch else None

    @property
    def marker_retired(self) -> int | None:
        """The retired rewrites; None where no marker was read."""
        return self.retired if self.epoch else None

    @property
    def marker_retired_bytes(self) -> int | None:
        """The bytes of the same."""
        return self.retired_bytes if self.epoch else None

    @property
    def is_paused(self) -> bool:
        return self.paused_seconds is not None


class MaintenanceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy did to the partitions of a process. Counts are of this process's life."""

    retention_age_seconds: float | None
    """Time since a round of retention in which nothing failed, or since the start; None where nothing is pruned."""
    compaction_age_seconds: float | None
    """The same of compaction."""
    pruned_chunks: int
    merged_chunks: int
    """By so many chunks the archive has fewer for being compacted."""
    moved_bytes: int
    """Of chunks and catalogs, read and written."""
    retention_failures: int
    """Partitions that could not be pruned, counted in each round."""
    compaction_failures: int
    troubles: tuple[str, ...] = ()
    """Partition and cause of each failure that was not followed by a success yet."""


class ServiceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A process and its partitions, in order."""

    version: str
    archive: str
    group_id: str | None
    """None until the archive was opened, where it is the one that names it."""
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
    groups_age_seconds: float | None = None
    """Time since the tables of consumer groups were up to date; None where none are kept."""
    group_tables: int = 0
    """Tables of consumer groups that were stored."""
    group_failures: int = 0
    """Rounds of asking for consumer groups and storing their tables that failed, or of which a part failed."""
    maintenance: MaintenanceSnapshot | None = None
    """None where no policy of maintenance is set."""
    progress_seconds: float
    """A partition that makes no progress for so long is stuck."""
    partitions: tuple[PartitionSnapshot, ...]

    def in_state(self, *states: PartitionState) -> int:
        return sum(partition.state in states for partition in self.partitions)

    @property
    def assigned(self) -> int:
        """Partitions assigned to this process now."""
        return len(self.partitions) - self.in_state(PartitionState.RELEASED, PartitionState.GONE)

    @property
    def stopped(self) -> int:
        return self.in_state(PartitionState.STOPPED)

    @property
    def unowned(self) -> int:
        """Partitions assigned to this process and not being archived."""
        return self.in_state(*UNOWNED)

    @property
    def stuck(self) -> int:
        """Partitions that are being archived and make no progress."""
        return sum(partition.stuck is not None for partition in self.partitions)

    @property
    def is_live(self) -> bool:
        return self.heartbeat_age_seconds <= LIVE_SECONDS


def partition_snapshots(
    views: Iterable[PartitionView],
    logs: Mapping[Partition, LogView],
    fetch_state: Callable[[Partition, float], FetchState],
    *,
    now: float,
    wall_ms: int,
    progress_seconds: float,
) -> tuple[PartitionSnapshot, ...]:
    """The partitions in order; `now` is of the archivers' monotonic clock, `wall_ms` the time of day."""
    found = []
    for view in sorted(views, key=lambda view: view.report.partition):
        partition = view.report.partition
        seen = _partition(view, logs.get(partition, LogView()), fetch_state(partition, now), now, wall_ms)
        found.append(replace(seen, stuck=why_stuck(seen, progress_seconds, logs_answer=bool(logs))))
    return tuple(found)


def progress_seconds(chunk_interval_seconds: float) -> float:
    """How long a partition may make no progress before it is stuck."""
    return max(LEAST_PROGRESS_SECONDS, PROGRESS_INTERVALS * chunk_interval_seconds)


def why_stuck(partition: PartitionSnapshot, progress_seconds: float, *, logs_answer: bool) -> str | None:
    """Why a partition that is being archived makes no progress; None where it does, or has nothing to do.

    `logs_answer`: whether the brokers tell where the logs end, be it only of others.
    """
    paused, uncommitted = partition.paused_seconds or 0.0, partition.uncommitted_seconds or 0.0
    fetch_age = partition.fetch_age_seconds or 0.0
    fetches_nothing = fetch_age >= progress_seconds
    reasons = {
        f"paused for {paused:.0f} s: its commit does not finish, or the buffer is full": paused >= STALL_SECONDS,
        f"records have been waiting for their commit for {uncommitted:.0f} s": uncommitted >= progress_seconds,
        f"nothing was fetched for {fetch_age:.0f} s, although there are records": fetches_nothing
        and bool(partition.unfetched_records),
        f"nothing was fetched for {fetch_age:.0f} s, and no broker answers for its log": fetches_nothing
        and partition.log_end_offset is None
        and logs_answer,
    }
    if partition.state is not PartitionState.ARCHIVING:
        return None
    return next((reason for reason, holds in reasons.items() if holds), None)


def _partition(view: PartitionView, log: LogView, fetch: FetchState, now: float, wall_ms: int) -> PartitionSnapshot:
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
            confirmed_offset=archiving.confirmed,
            gaps=marker.num_gaps,
            retired=marker.num_retired,
            retired_bytes=marker.retired_bytes,
            open_chunk_seconds=_since(chunk.opened_at if chunk else None, now),
            open_chunk_bytes=0 if chunk is None else chunk.compressed_bytes,
            uncommitted_seconds=_since(archiving.taken_at, now),
            commit_age_seconds=_since(archiving.committed_at, now),
            fetch_age_seconds=fetch.fetched,
            paused_seconds=fetch.paused,
            unfetched_records=_unfetched(archiving, log.earlier_end),
        )
    bounds = log.bounds
    if bounds is not None and log.high_watermark is not None:
        snapshot = replace(
            snapshot,
            log_start_offset=bounds.low,
            log_end_offset=bounds.high,
            high_watermark=log.high_watermark,
            unstable_records=max(0, log.high_watermark - bounds.high),
        )
    return replace(
        snapshot,
        durable_offset=reach.durable,
        lag_records=lag_records(reach, bounds),
        lag_seconds=lag_seconds(reach, bounds, wall_ms),
        retention_headroom=None if bounds is None or reach.durable is None else reach.durable - bounds.low,
    )


def _since(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


def _unfetched(archiving: ArchivingState, earlier_end: int | None) -> int | None:
    if earlier_end is None:
        return None
    return 0 if archiving.is_drained else max(0, earlier_end - archiving.position)


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
