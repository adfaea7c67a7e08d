"""One look at a running archiver: values only, which metrics, health and `archiver status` are made of.

Sizes in bytes, times in seconds, ages as of the snapshot. None: unknown, or there is nothing to report. Each metric
is declared with the field that it shows, and described in docs/monitoring.md.
"""

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, NamedTuple, get_type_hints

import msgspec
from msgspec.structs import replace

from archiver.ingest.backpressure import STALL_SECONDS
from archiver.ingest.kafka_cluster import LogView
from archiver.ingest.kafka_source import Partition, name_of
from archiver.ingest.ownership import PartitionState, PartitionView
from archiver.ingest.partition_state import ArchivingState, PartitionCounts
from blockgz.kafka import LogBounds

# Seconds without a step after which the main loop counts as hanging.
LIVE_SECONDS = 60.0
PROGRESS_INTERVALS = 3
LEAST_PROGRESS_SECONDS = 60.0


class MaintenanceKind(StrEnum):
    """A kind of maintenance that a policy can request."""

    RETENTION = "retention"
    COMPACTION = "compaction"


ROUND = ("maintenance_age_seconds", "Time since a round of maintenance in which nothing failed")
FAILURES = ("maintenance_failures", "Times a partition could not be pruned or compacted")
RETENTION, COMPACTION = (("kind", kind.value) for kind in MaintenanceKind)
MEMORY = ("memory_bytes", "Records in memory: waiting for encoding, or in open blocks")
UNOWNED = (PartitionState.CLAIMING, PartitionState.WAITING, PartitionState.STOPPED)


class Metric(NamedTuple):
    """A metric for Prometheus, beside the field that it shows. The name of a counter is written without `_total`."""

    name: str
    help: str
    is_counter: bool = False
    label: tuple[str, str] | None = None
    """Name and value of a label, for a metric that shows several fields."""
    value: Callable[[Any], float | None] | None = None
    """Returns what the metric shows of a snapshot; None: the field itself."""


gauge, counter = Metric, partial(Metric, is_counter=True)


def metrics_of(kind: type[msgspec.Struct]) -> dict[str, Metric]:
    """Return the metrics of a kind of snapshot by field or property, in order."""
    hints = get_type_hints(kind, include_extras=True)
    for name, each in vars(kind).items():
        if isinstance(each, property):
            hints[name] = get_type_hints(each.fget, include_extras=True)["return"]
    noted = ((name, note) for name, hint in hints.items() for note in getattr(hint, "__metadata__", ()))
    return {name: note for name, note in noted if isinstance(note, Metric)}


def _if_claimed(field: str) -> Callable[[Any], float | None]:
    """Return a value of a partition's marker, None while no marker was read."""
    return lambda partition: getattr(partition, field) if partition.epoch else None


class PartitionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A partition that is or was this process's. Counts are of this process's life."""

    topic: str
    partition: int
    state: PartitionState
    failure: str | None = None
    """Why it stopped."""
    trouble: str | None = None
    """The last failure, while it is tried again."""
    remedy: str | None = None
    """How to fix the failure or the trouble."""
    epoch: Annotated[int | None, gauge("epoch", "Number of claims of the partition so far")] = None
    durable_offset: Annotated[int | None, gauge("durable_offset", "Offset up to which the partition is archived")] = (
        None
    )
    position: Annotated[int | None, gauge("position_offset", "Offset up to which records have been read")] = None
    confirmed_offset: int | None = None
    """Records below it were fetched before the cluster confirmed the id of the topic that was claimed."""
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    unstable_records: Annotated[
        int | None,
        gauge(
            "unstable_records",
            "Offsets from the last stable one to the high watermark: open transactions hold them back",
        ),
    ] = None
    unfetched_records: int | None = None
    """Offsets below the end that the log had half a minute ago and that were not fetched since."""
    lag_records: Annotated[
        int | None, gauge("lag_records", "Offsets of the log above the durable offset, including holes")
    ] = None
    lag_seconds: Annotated[float | None, gauge("lag_seconds", "Age of the oldest record that is not durable")] = None
    retention_headroom: Annotated[
        int | None,
        gauge("retention_headroom_records", "Offsets between the log's low watermark and the durable offset"),
    ] = None
    open_chunk_seconds: Annotated[
        float | None, gauge("open_chunk_age_seconds", "Age of the chunk that is being filled")
    ] = None
    open_chunk_bytes: int = 0
    uncommitted_seconds: Annotated[
        float | None, gauge("uncommitted_seconds", "Time since the first uncommitted record was read")
    ] = None
    commit_age_seconds: Annotated[
        float | None, gauge("commit_age_seconds", "Time since this process's last commit")
    ] = None
    fetch_age_seconds: Annotated[
        float | None, gauge("fetch_age_seconds", "Time since the last records, or since the log's end was reached")
    ] = None
    paused_seconds: Annotated[
        float | None,
        gauge("partition_paused", "Whether only this partition is paused", value=lambda each: each.is_paused),
    ] = None
    stuck: str | None = None
    """Why it makes no progress, though this process archives it; see `why_stuck`."""
    gaps: Annotated[int, gauge("gaps", "Gaps listed in the partition's marker", value=_if_claimed("gaps"))] = 0
    retired: Annotated[
        int,
        gauge(
            "retired_rewrites",
            "Rewrites whose replaced objects wait for archiver gc, of 64 that a marker can list",
            value=_if_claimed("retired"),
        ),
    ] = 0
    retired_bytes: Annotated[
        int, gauge("retired_bytes", "Size of the data that these replaced, at most", value=_if_claimed("retired_bytes"))
    ] = 0
    records: Annotated[int, counter("archived_records", "Records committed")] = 0
    stored_bytes: Annotated[int, counter("stored_bytes", "Stored size of committed chunks")] = 0
    chunks: Annotated[int, counter("chunks", "Chunks committed")] = 0
    commits: Annotated[int, counter("commits", "Marker updates, including progress without records")] = 0
    commit_seconds: Annotated[
        float, counter("commit_seconds", "Time spent on commits, including uploads and retries")
    ] = 0.0
    retries: Annotated[int, counter("retries", "Pauses before a request to the store or broker was retried")] = 0
    restarts: Annotated[int, counter("restarts", "Times the partition was claimed again after a failure")] = 0
    fenced: Annotated[int, counter("fenced", "Times another writer took over the partition")] = 0
    lost_offsets: Annotated[
        int, counter("lost_offsets", "Offsets that retention deleted before they were archived")
    ] = 0
    skipped: Annotated[int, counter("skipped_records", "Records omitted because they cannot be archived")] = 0
    dropped_duplicates: Annotated[int, counter("dropped_duplicates", "Records that the broker delivered twice")] = 0

    @property
    def name(self) -> str:
        return name_of((self.topic, self.partition))

    @property
    def is_paused(self) -> bool:
        return self.paused_seconds is not None


# Counts that a partition's snapshot has under their own names.
COUNTED = tuple(name for name in PartitionCounts.__match_args__ if name in PartitionSnapshot.__struct_fields__)


class MaintenanceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Work of a maintenance policy on the partitions of a process. Counts are of this process's life."""

    retention_age_seconds: Annotated[float | None, gauge(*ROUND, label=RETENTION)]
    """It counts from the start before the first round; None if nothing is pruned."""
    compaction_age_seconds: Annotated[float | None, gauge(*ROUND, label=COMPACTION)]
    """It counts from the start before the first round; None if nothing is compacted."""
    pruned_chunks: Annotated[int, counter("pruned_chunks", "Chunks pruned")]
    merged_chunks: Annotated[int, counter("merged_chunks", "Chunks that compaction made fewer")]
    moved_bytes: Annotated[
        int, counter("maintenance_bytes", "Bytes of chunks and catalogs that maintenance read and wrote")
    ]
    retention_failures: Annotated[int, counter(*FAILURES, label=RETENTION)]
    """Partitions that could not be pruned, counted in each round."""
    compaction_failures: Annotated[int, counter(*FAILURES, label=COMPACTION)]
    """Partitions that could not be compacted, counted in each round."""
    troubles: tuple[str, ...] = ()
    """Partition and cause of each failure that no success has followed yet."""


class ServiceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A process and its partitions, in order."""

    version: str
    archive: str
    group_id: str | None
    """None until the archive was opened, if only the archive names the group."""
    joined: Annotated[bool, gauge("group_joined", "Whether the consumer group has given this process an assignment")]
    """With `--once`: True once the partitions were listed."""
    trouble: str | None = None
    """Why the run has not begun yet; None if nothing is in its way."""
    heartbeat_age_seconds: Annotated[float, gauge("heartbeat_age_seconds", "Time since the main loop's last step")]
    paused: Annotated[bool, gauge("paused", "Whether fetching is paused because memory or the buffer is full")]
    memory_budget: Annotated[int, gauge("memory_budget_bytes", "Memory budget for records")]
    waiting_bytes: Annotated[int, gauge(*MEMORY, label=("use", "waiting"))]
    open_block_bytes: Annotated[int, gauge(*MEMORY, label=("use", "open_blocks"))]
    buffer_budget: Annotated[int, gauge("buffer_budget_bytes", "Budget of the local buffer folder")]
    buffer_bytes: Annotated[int, gauge("buffer_bytes", "Bytes of open chunks in the local buffer folder")]
    watermarks_age_seconds: Annotated[
        float | None, gauge("watermarks_age_seconds", "Time since the log's bounds were read")
    ]
    groups_age_seconds: Annotated[
        float | None, gauge("groups_age_seconds", "Time since the tables of consumer groups were up to date")
    ] = None
    group_tables: Annotated[int, counter("group_tables", "Tables of consumer groups stored")] = 0
    group_failures: Annotated[
        int, counter("group_failures", "Times consumer groups could not all be asked or stored")
    ] = 0
    maintenance: MaintenanceSnapshot | None = None
    """None without a policy of maintenance."""
    progress_seconds: float
    """Seconds without progress after which a partition counts as stuck."""
    partitions: tuple[PartitionSnapshot, ...]

    def in_state(self, *states: PartitionState) -> int:
        return sum(partition.state in states for partition in self.partitions)

    @property
    def assigned(self) -> Annotated[int, gauge("assigned_partitions", "Partitions assigned to this process")]:
        return len(self.partitions) - self.in_state(PartitionState.RELEASED, PartitionState.GONE)

    @property
    def stopped(self) -> Annotated[int, gauge("stopped_partitions", "Assigned partitions stopped by a failure")]:
        return self.in_state(PartitionState.STOPPED)

    @property
    def unowned(self) -> Annotated[int, gauge("unowned_partitions", "Assigned partitions that are not being archived")]:
        return self.in_state(*UNOWNED)

    @property
    def stuck(self) -> Annotated[int, gauge("stuck_partitions", "Partitions being archived that make no progress")]:
        return sum(partition.stuck is not None for partition in self.partitions)

    @property
    def is_live(self) -> bool:
        return self.heartbeat_age_seconds <= LIVE_SECONDS


def partition_snapshots(
    views: Iterable[PartitionView],
    logs: Mapping[Partition, LogView],
    fetch_ages: Callable[[Partition, float], tuple[float | None, float | None]],
    *,
    now: float,
    wall_ms: int,
    progress_seconds: float,
) -> tuple[PartitionSnapshot, ...]:
    """Return the partitions in order; `now` is of the archivers' monotonic clock, `wall_ms` the time of day."""
    found = []
    for view in sorted(views, key=lambda view: view[1].partition):
        partition = view[1].partition
        seen = _partition(view, logs.get(partition, LogView()), fetch_ages(partition, now), now, wall_ms)
        found.append(replace(seen, stuck=why_stuck(seen, progress_seconds, logs_answer=bool(logs))))
    return tuple(found)


def progress_seconds(chunk_interval_seconds: float) -> float:
    """Return how long a partition may make no progress before it is stuck."""
    return max(LEAST_PROGRESS_SECONDS, PROGRESS_INTERVALS * chunk_interval_seconds)


def why_stuck(partition: PartitionSnapshot, progress_seconds: float, *, logs_answer: bool) -> str | None:
    """Return why a partition that is being archived makes no progress; None if it does, or has nothing to do.

    `logs_answer`: True if the brokers report the ends of any logs.
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


def _partition(
    view: PartitionView, log: LogView, fetch_ages: tuple[float | None, float | None], now: float, wall_ms: int
) -> PartitionSnapshot:
    state, report, archiving = view
    bounds = log.bounds
    topic, number = report.partition
    values = _archiving_values(archiving, log, fetch_ages, now) if archiving is not None else {}
    if state is not PartitionState.RELEASED:
        durable = report.next_offset if archiving is None else archiving.marker.next_offset
        values |= {
            "durable_offset": durable,
            "lag_records": lag_records(durable, bounds),
            "lag_seconds": lag_seconds(
                durable,
                archiving.position if archiving else None,
                bounds,
                oldest_uncommitted_ms=archiving.oldest_uncommitted_ms if archiving else None,
                newest_durable_ms=archiving.marker.newest_timestamp if archiving else report.newest_ms,
                wall_ms=wall_ms,
            ),
        }
        if bounds is not None and log.high_watermark is not None:
            values |= {
                "log_start_offset": bounds.low,
                "log_end_offset": bounds.end,
                "high_watermark": log.high_watermark,
                "unstable_records": max(0, log.high_watermark - bounds.end),
            }
        if bounds is not None and durable is not None:
            values["retention_headroom"] = durable - bounds.low
    return PartitionSnapshot(
        topic=topic,
        partition=number,
        state=state,
        failure=report.failure.what if report.failure is not None else None,
        trouble=report.trouble.reason if report.trouble is not None else None,
        remedy=getattr(report.failure or report.trouble, "remedy", None),
        retries=report.retries,
        restarts=report.restarts,
        fenced=report.fenced,
        lost_offsets=report.lost_offsets,
        **{name: getattr(report.counts, name) for name in COUNTED},
        **values,
    )


def _archiving_values(
    archiving: ArchivingState, log: LogView, fetch_ages: tuple[float | None, float | None], now: float
) -> dict[str, Any]:
    """Return the fields of a partition that is being archived."""
    marker, chunk = archiving.marker, archiving.open_chunk
    values: dict[str, Any] = {
        "epoch": marker.epoch,
        "position": archiving.position,
        "confirmed_offset": archiving.confirmed,
        "gaps": marker.num_gaps,
        "retired": marker.num_retired,
        "retired_bytes": marker.retired_bytes,
        "open_chunk_seconds": _since(chunk.opened_at if chunk else None, now),
        "open_chunk_bytes": 0 if chunk is None else chunk.compressed_bytes,
        "uncommitted_seconds": _since(archiving.taken_at, now),
        "commit_age_seconds": _since(archiving.committed_at, now),
        "fetch_age_seconds": fetch_ages[0],
        "paused_seconds": fetch_ages[1],
    }
    if log.earlier_end is not None:
        is_drained = archiving.is_drained
        values["unfetched_records"] = 0 if is_drained else max(0, log.earlier_end - archiving.position)
    return values


def _since(moment: float | None, now: float) -> float | None:
    return None if moment is None else now - moment


def lag_records(durable: int | None, bounds: LogBounds | None) -> int | None:
    """Return how many offsets of the log are not durable yet."""
    if bounds is None:
        return None
    return max(0, bounds.end - (bounds.low if durable is None else max(durable, bounds.low)))


def lag_seconds(
    durable: int | None,
    position: int | None,
    bounds: LogBounds | None,
    *,
    oldest_uncommitted_ms: int | None,
    newest_durable_ms: int | None,
    wall_ms: int,
) -> float | None:
    """Return the age of the oldest record that is not durable, by its timestamp."""
    # While there are records that were not read yet, the newest durable one counts in their place: an upper bound.
    if oldest_uncommitted_ms is not None:
        return _age(oldest_uncommitted_ms, wall_ms)
    if bounds is None:
        return None
    if lag_records(durable, bounds) == 0 or (position is not None and position >= bounds.end):
        # What was read and is not durable are holes only, such as the end of a transaction.
        return 0.0
    return None if newest_durable_ms is None else _age(newest_durable_ms, wall_ms)


def _age(timestamp: int, wall_ms: int) -> float | None:
    return max(0, wall_ms - timestamp) / 1000 if timestamp >= 0 else None
