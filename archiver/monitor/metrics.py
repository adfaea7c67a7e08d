"""The archiver's metrics for Prometheus: read from a snapshot when they are scraped, counted nowhere else.

Each is described in docs/monitoring.md.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from archiver.monitor.snapshot import ServiceSnapshot

PREFIX = "blockgz_"
Gauge, Counter = GaugeMetricFamily, CounterMetricFamily


class PartitionMetric(NamedTuple):
    """One series for each partition, labelled topic and partition. A counter's name is written without `_total`."""

    family: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    help: str
    field: str
    """Of PartitionSnapshot."""


class ServiceMetric(NamedTuple):
    """One series for the process, or one for each value of `label`."""

    name: str
    help: str
    fields: dict[str, str]
    """Value of the label -> field of ServiceSnapshot, or of a part of it that may be missing."""
    label: str | None = None
    family: type[GaugeMetricFamily] | type[CounterMetricFamily] = Gauge


PARTITION_METRICS = tuple(
    PartitionMetric(*row)
    for row in (
        (Gauge, "durable_offset", "Offset up to which the partition is archived", "durable_offset"),
        (Gauge, "position_offset", "Offset up to which records have been read", "position"),
        (Gauge, "lag_records", "Offsets of the log above the durable offset, including holes", "lag_records"),
        (Gauge, "lag_seconds", "Age of the oldest record that is not durable", "lag_seconds"),
        (
            Gauge,
            "unstable_records",
            "Offsets from the last stable one to the high watermark: open transactions hold them back",
            "unstable_records",
        ),
        (
            Gauge,
            "retention_headroom_records",
            "Offsets between the log's low watermark and the durable offset",
            "retention_headroom",
        ),
        (Gauge, "open_chunk_age_seconds", "Age of the chunk that is being filled", "open_chunk_seconds"),
        (Gauge, "uncommitted_seconds", "Time since the first uncommitted record was read", "uncommitted_seconds"),
        (Gauge, "commit_age_seconds", "Time since this process's last commit", "commit_age_seconds"),
        (
            Gauge,
            "fetch_age_seconds",
            "Time since the last records, or since the log's end was reached",
            "fetch_age_seconds",
        ),
        (Gauge, "partition_paused", "Whether only this partition is paused", "is_paused"),
        (Gauge, "epoch", "Number of claims of the partition so far", "epoch"),
        (Gauge, "gaps", "Gaps listed in the partition's marker", "marker_gaps"),
        (
            Gauge,
            "retired_rewrites",
            "Rewrites whose replaced objects wait for archiver gc, of 64 that a marker can list",
            "marker_retired",
        ),
        (Gauge, "retired_bytes", "Size of the data that these replaced, at most", "marker_retired_bytes"),
        (Counter, "archived_records", "Records committed", "records"),
        (Counter, "stored_bytes", "Stored size of committed chunks", "stored_bytes"),
        (Counter, "chunks", "Chunks committed", "chunks"),
        (Counter, "commits", "Marker updates, including progress without records", "commits"),
        (Counter, "commit_seconds", "Time spent on commits, including uploads and retries", "commit_seconds"),
        (Counter, "retries", "Pauses before a request to the store or broker was retried", "retries"),
        (Counter, "restarts", "Times the partition was claimed again after a failure", "restarts"),
        (Counter, "fenced", "Times another writer took over the partition", "fenced"),
        (Counter, "lost_offsets", "Offsets that retention deleted before they were archived", "lost_offsets"),
        (Counter, "skipped_records", "Records omitted because they cannot be archived", "skipped"),
        (Counter, "dropped_duplicates", "Records that the broker delivered twice", "dropped_duplicates"),
    )
)
SERVICE_METRICS = (
    ServiceMetric("group_joined", "Whether the consumer group has given this process an assignment", {"": "joined"}),
    ServiceMetric("heartbeat_age_seconds", "Time since the main loop's last step", {"": "heartbeat_age_seconds"}),
    ServiceMetric("paused", "Whether fetching is paused because memory or the buffer is full", {"": "paused"}),
    ServiceMetric("assigned_partitions", "Partitions assigned to this process", {"": "assigned"}),
    ServiceMetric("unowned_partitions", "Assigned partitions that are not being archived", {"": "unowned"}),
    ServiceMetric("stopped_partitions", "Assigned partitions stopped by a failure", {"": "stopped"}),
    ServiceMetric("stuck_partitions", "Partitions being archived that make no progress", {"": "stuck"}),
    ServiceMetric("memory_budget_bytes", "Memory budget for records", {"": "memory_budget"}),
    ServiceMetric(
        "memory_bytes",
        "Records in memory: waiting for encoding, or in open blocks",
        {"waiting": "waiting_bytes", "open_blocks": "open_block_bytes"},
        label="use",
    ),
    ServiceMetric("buffer_budget_bytes", "Budget of the local buffer folder", {"": "buffer_budget"}),
    ServiceMetric("buffer_bytes", "Bytes of open chunks in the local buffer folder", {"": "buffer_bytes"}),
    ServiceMetric("watermarks_age_seconds", "Time since the log's bounds were read", {"": "watermarks_age_seconds"}),
    ServiceMetric(
        "groups_age_seconds", "Time since the tables of consumer groups were up to date", {"": "groups_age_seconds"}
    ),
    ServiceMetric("group_tables", "Tables of consumer groups stored", {"": "group_tables"}, family=Counter),
    ServiceMetric(
        "group_failures",
        "Times consumer groups could not all be asked or stored",
        {"": "group_failures"},
        family=Counter,
    ),
    ServiceMetric(
        "maintenance_age_seconds",
        "Time since a round of maintenance in which nothing failed",
        {"retention": "maintenance.retention_age_seconds", "compaction": "maintenance.compaction_age_seconds"},
        label="kind",
    ),
    ServiceMetric(
        "maintenance_failures",
        "Times a partition could not be pruned or compacted",
        {"retention": "maintenance.retention_failures", "compaction": "maintenance.compaction_failures"},
        label="kind",
        family=Counter,
    ),
    ServiceMetric("pruned_chunks", "Chunks pruned", {"": "maintenance.pruned_chunks"}, family=Counter),
    ServiceMetric(
        "merged_chunks", "Chunks that compaction made fewer", {"": "maintenance.merged_chunks"}, family=Counter
    ),
    ServiceMetric(
        "maintenance_bytes",
        "Bytes of chunks and catalogs that maintenance read and wrote",
        {"": "maintenance.moved_bytes"},
        family=Counter,
    ),
)


@dataclass(frozen=True)
class ArchiverCollector(Collector):
    """Takes one snapshot a scrape."""

    take_snapshot: Callable[[], ServiceSnapshot]

    def collect(self) -> Iterator[Metric]:
        snapshot = self.take_snapshot()
        build = InfoMetricFamily(f"{PREFIX}build", "Version of the archiver and of Python")
        build.add_metric((), {"version": snapshot.version, "python": platform.python_version()})
        yield build
        for metric in SERVICE_METRICS:
            yield _family(metric, snapshot)
        for each in PARTITION_METRICS:
            family = each.family(PREFIX + each.name, each.help, labels=("topic", "partition"))
            for partition in snapshot.partitions:
                value = getattr(partition, each.field)
                if value is not None:
                    family.add_metric((partition.topic, str(partition.partition)), value)
            yield family

    def describe(self) -> Iterable[Metric]:
        """No names to compare at registration: the registry holds nothing else of ours."""
        return ()


def make_registry(take_snapshot: Callable[[], ServiceSnapshot]) -> CollectorRegistry:
    """A registry of its own with the archiver's metrics and the process's memory, descriptors and CPU time."""
    registry = CollectorRegistry()
    registry.register(ArchiverCollector(take_snapshot))
    ProcessCollector(registry=registry)
    return registry


def _family(metric: ServiceMetric, snapshot: ServiceSnapshot) -> GaugeMetricFamily | CounterMetricFamily:
    family = metric.family(PREFIX + metric.name, metric.help, labels=(metric.label,) if metric.label else ())
    for label, field in metric.fields.items():
        part, _, name = field.rpartition(".")
        owner = getattr(snapshot, part) if part else snapshot
        value = None if owner is None else getattr(owner, name)
        if value is not None:
            family.add_metric((label,) if metric.label else (), value)
    return family
