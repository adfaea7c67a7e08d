"""What there is to find out of a broker."""

import resource
from collections.abc import Iterator

from archiver.config.model import RunConfig
from archiver.doctor.findings import Finding, Verdict, listed, unreachable
from archiver.doctor.judging import (
    judge_group_permissions,
    judge_newest,
    judge_open_files,
    judge_protocols,
    judge_topic_ids,
    judge_topic_permissions,
    judge_topics,
)
from archiver.doctor.kafka_access import KafkaAccess
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_settings import cluster_settings
from blockgz_runtime.topic_patterns import TopicSelection


class ClusterChecks:
    """The checks that need a broker. Without one, all but the first say so and no more."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._known: dict[str, int] | None = None
        self._selected: list[str] = []
        self._brokers: int | None = None
        self.cluster_id: str | None = None

    def broker(self) -> Iterator[Finding]:
        """Whether a broker answers, and what it offers; the others rest on it."""
        settings = cluster_settings(self._config)
        self._cluster, self._access = KafkaCluster(settings), KafkaAccess(settings)
        known = self._known = self._cluster.topics()
        self._brokers = self._access.num_brokers()
        self.cluster_id = self._cluster.cluster_id()
        where = f"cluster {self.cluster_id or 'without an id'}, {self._brokers or '?'} brokers, {len(known)} topics"
        yield Finding("broker", Verdict.OK, where)
        sample = next(iter(known), None)
        if sample is not None:
            yield judge_topic_ids(self._cluster.topic_ids([sample])[sample])
        if self._config.group_protocol == "consumer":
            yield judge_protocols(self._access.rebalance_protocols())

    def topics(self) -> Iterator[Finding]:
        """Which topics are selected, and which are missing."""
        if self._known is None:
            yield unreachable("topics")
            return
        selection = TopicSelection(self._config.topics, self._config.exclude)
        self._selected = selection(self._known)
        missing = sorted(selection.names - self._known.keys())
        partitions = sum(self._known[topic] for topic in self._selected)
        if missing:
            yield Finding("topics", Verdict.FAIL, f"there is no topic {listed(missing)}", "create it, or check -b")
        if self._selected:
            yield Finding("topics", Verdict.OK, f"{len(self._selected)} topics, {partitions} partitions")
        elif not missing:
            yield Finding("topics", Verdict.WARN, "none is selected so far", "check TOPIC and --exclude")

    def permissions(self) -> Iterator[Finding]:
        """Whether topics and group may be read."""
        if self._known is None:
            yield unreachable("permissions")
            return
        allowed = self._access.topic_operations(self._selected) if self._selected else {}
        yield from judge_topic_permissions(allowed)
        yield judge_group_permissions(self._config.group_id, self._access.group_operations(self._config.group_id))

    def retention(self) -> Iterator[Finding]:
        """Whether records live long enough to be archived."""
        if self._known is None:
            yield unreachable("retention")
            return
        yield from judge_topics(self._cluster.describe(self._selected), self._config.chunk_interval)

    def timestamps(self, now: float) -> Iterator[Finding]:
        """Whether records come from the future; `now` in seconds since 1970."""
        if self._known is None:
            yield unreachable("timestamps")
            return
        known = self._known
        partitions = [(topic, number) for topic in self._selected for number in range(known[topic])]
        yield judge_newest(self._access.newest_timestamp(partitions), now)

    def open_files(self) -> Iterator[Finding]:
        """Whether the process may open what it needs."""
        known = self._known or {}
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        partitions = sum(known[topic] for topic in self._selected)
        limit = None if soft == resource.RLIM_INFINITY else soft
        yield judge_open_files(limit, self._brokers or 1, partitions)
