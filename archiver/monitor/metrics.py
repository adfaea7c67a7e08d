"""The archiver's metrics for Prometheus: read from a snapshot when they are scraped, counted nowhere else.

Each is described in docs/operations.md.
"""

import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from archiver.ingest.ownership import PartitionState
from archiver.monitor.snapshot import PartitionSnapshot, ServiceSnapshot

PREFIX = "blockgz_"
Number = int | float | None
"""None: the series is left out."""
Gauge, Counter = GaugeMetricFamily, CounterMetricFamily


class PartitionMetric(NamedTuple):
    """One series for each partition, labelled topic and partition. A counter's name is written without `_total`."""

    family: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    help: str
    value: Callable[[PartitionSnapshot], Number]


class ServiceMetric(NamedTuple):
    """One series for the process, or one for each value of `label`."""

    name: str
    help: str
    values: Callable[[ServiceSnapshot], dict[str, Number]]
    label: str | None = None


PARTITION_METRICS = (
    PartitionMetric(
        Gauge, "durable_offset", "Offset up to which the archive holds the partition", lambda p: p.durable_offset
    ),
    PartitionMetric(Gauge, "position_offset", "Offset up to which records were read", lambda p: p.position),
    PartitionMetric(
        Gauge, "lag_records", "Offsets of the log above the durable offset, holes included", lambda p: p.lag_records
    ),
    PartitionMetric(Gauge, "lag_seconds", "Age of the oldest record that is not durable", lambda p: p.lag_seconds),
    PartitionMetric(
        Gauge,
        "retention_headroom_records",
        "Offsets between the log's low watermark and the durable offset",
        lambda p: p.retention_headroom,
    ),
    PartitionMetric(
        Gauge, "open_chunk_age_seconds", "Age of the chunk that takes records now", lambda p: p.open_chunk_seconds
    ),
    PartitionMetric(Gauge, "epoch", "Number of claims of the partition so far", lambda p: p.epoch),
    PartitionMetric(Gauge, "gaps", "Gaps that the partition's marker lists", lambda p: p.gaps if p.epoch else None),
    PartitionMetric(Counter, "archived_records", "Records committed", lambda p: p.records),
    PartitionMetric(Counter, "stored_bytes", "Bytes of the chunks committed, as stored", lambda p: p.stored_bytes),
    PartitionMetric(Counter, "chunks", "Chunks committed", lambda p: p.chunks),
    PartitionMetric(
        Counter, "commits", "Marker swaps, those of progress without records included", lambda p: p.commits
    ),
    PartitionMetric(
        Counter, "commit_seconds", "Time that commits took, uploads and retries included", lambda p: p.commit_seconds
    ),
    PartitionMetric(Counter, "retries", "Waits before another try at store or broker", lambda p: p.retries),
    PartitionMetric(
        Counter, "restarts", "Times the partition was taken over anew after a failure", lambda p: p.restarts
    ),
    PartitionMetric(Counter, "fenced", "Times another writer took the partition over", lambda p: p.fenced),
    PartitionMetric(
        Counter, "lost_offsets", "Offsets that retention deleted before they were archived", lambda p: p.lost_offsets
    ),
    PartitionMetric(
        Counter, "skipped_records", "Records left out because they cannot be archived", lambda p: p.skipped
    ),
    PartitionMetric(
        Counter, "dropped_duplicates", "Records that the broker delivered again", lambda p: p.dropped_duplicates
    ),
)


def _one(value: Callable[[ServiceSnapshot], Number]) -> Callable[[ServiceSnapshot], dict[str, Number]]:
    return lambda snapshot: {"": value(snapshot)}


SERVICE_METRICS = (
    ServiceMetric("group_joined", "Whether the group told this process its partitions", _one(lambda s: s.joined)),
    ServiceMetric(
        "heartbeat_age_seconds", "Time since the main loop's last step", _one(lambda s: s.heartbeat_age_seconds)
    ),
    ServiceMetric("paused", "Whether fetching is paused for want of memory or buffer", _one(lambda s: s.paused)),
    ServiceMetric("assigned_partitions", "Partitions that are this process's", _one(lambda s: s.assigned)),
    ServiceMetric("unowned_partitions", "Assigned partitions that are not being archived", _one(lambda s: s.unowned)),
    ServiceMetric(
        "stopped_partitions",
        "Assigned partitions that stopped with a failure",
        _one(lambda s: s.in_state(PartitionState.STOPPED)),
    ),
    ServiceMetric("memory_budget_bytes", "The budget of records in memory", _one(lambda s: s.memory_budget)),
    ServiceMetric(
        "memory_bytes",
        "Records in memory: waiting to be encoded, or in open blocks",
        lambda s: {"waiting": s.waiting_bytes, "open_blocks": s.open_block_bytes},
        label="use",
    ),
    ServiceMetric("buffer_budget_bytes", "The budget of the local buffer folder", _one(lambda s: s.buffer_budget)),
    ServiceMetric("buffer_bytes", "Bytes of open chunks in the local buffer folder", _one(lambda s: s.buffer_bytes)),
    ServiceMetric(
        "watermarks_age_seconds", "Time since the log's bounds were asked for", _one(lambda s: s.watermarks_age_seconds)
    ),
)


@dataclass(frozen=True)
class ArchiverCollector(Collector):
    """Takes one snapshot a scrape."""

    take_snapshot: Callable[[], ServiceSnapshot]

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client.registry.Collector."""
        snapshot = self.take_snapshot()
        build = InfoMetricFamily(f"{PREFIX}build", "Version of the archiver and of Python")
        build.add_metric((), {"version": snapshot.version, "python": platform.python_version()})
        yield build
        for metric in SERVICE_METRICS:
            yield _family(metric, metric.values(snapshot))
        for each in PARTITION_METRICS:
            family = each.family(PREFIX + each.name, each.help, labels=("topic", "partition"))
            for partition in snapshot.partitions:
                value = each.value(partition)
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


def _family(metric: ServiceMetric, values: dict[str, Number]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + metric.name, metric.help, labels=(metric.label,) if metric.label else ())
    for label, value in values.items():
        if value is not None:
            family.add_metric((label,) if metric.label else (), value)
    return family
