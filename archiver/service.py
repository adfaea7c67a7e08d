"""The archiving service: takes partitions over, feeds them from one consumer, ends them in order."""

import logging
import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from index_format.blocks import COMPRESSORS
from index_format.errors import BlockgzError
from index_format.keys import LAYOUTS, TopicFolder
from index_format.record_formats import record_format
from index_format.records import Record

from .archive import open_archive, open_topic
from .buffer import BufferFolder
from .config import RunConfig
from .errors import BrokerUnreachable, BufferFailed, ShuttingDown, StoreUnavailable
from .kafka_cluster import KafkaCluster
from .kafka_settings import client_settings, consumer_settings
from .kafka_source import Event, KafkaLog, KafkaSource, Partition, PartitionFailed
from .partition_archiver import ChunkSettings, Flush, PartitionArchiver, PartitionCounts, Tick
from .probe import probe
from .protocol.commit import PartitionIdentity
from .protocol.driver import Driver
from .protocol.operations import LogBounds
from .protocol.recovery import Claimed, TakeoverPolicy, take_over
from .roll_policy import RollLimits, RollReason
from .stores import Store

log = logging.getLogger("blockgz.archiver")

CODEC = "gzip"
TAKEOVERS_AT_ONCE = 8
BUILDERS = 2
COMMITTERS = 4
TICK_SECONDS = 0.5
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 30.0
PAUSE_SECONDS = 0.005
SINGLE_READS = {"queued.max.messages.kbytes": 1024, "fetch.wait.max.ms": 10}
"""A fetch that waits at the end of one log would hold up the look-up in the next."""
BUFFER_PRESSURE = 0.8
"""At this share of the buffer budget the largest open chunk ends early."""
PASSING = (BrokerUnreachable, BufferFailed)
"""Failures after which a partition is taken over again."""
TRIES_OF_ONCE = 30
RESTARTS_IN_A_ROW = 5
"""So often a partition is taken over anew after a passing failure before `--once` gives up on it."""


@dataclass
class PartitionReport:
    """What a run did to one partition."""

    partition: Partition
    end_offset: int | None
    """Where `--once` stops: the last stable offset when the run started."""
    high_watermark: int | None
    """Above end_offset lie records of open transactions."""
    counts: PartitionCounts = field(default_factory=PartitionCounts)
    next_offset: int | None = None
    failure: BlockgzError | None = None

    def add(self, archiver: PartitionArchiver) -> None:
        """Note what one owner of the partition archived."""
        self.counts += archiver.counts
        self.next_offset = archiver.held.marker.next_offset


class ArchiverService:
    """One process's share of the work: all partitions of the named topics, assigned directly."""

    def __init__(
        self, config: RunConfig, store: Store, buffer: BufferFolder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._store = store
        self._buffer = buffer
        self._clock = clock
        self._writer = str(uuid.uuid4())
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        clients = client_settings(config.bootstrap_servers, config.kafka)
        self._cluster = KafkaCluster(clients)
        settings = consumer_settings(
            config.bootstrap_servers,
            config.kafka,
            group_id=config.group_id,
            isolation_level=config.isolation_level,
            queue_bytes=config.memory // 8,
        )
        self._source = KafkaSource(settings)
        self._log_guard = threading.Lock()
        self._log = KafkaLog(settings | SINGLE_READS)
        self._uncommitted = KafkaLog(settings | SINGLE_READS | {"isolation.level": "read_uncommitted"})
        self._takers = ThreadPoolExecutor(TAKEOVERS_AT_ONCE, thread_name_prefix="take-over")
        self._builders = ThreadPoolExecutor(BUILDERS, thread_name_prefix="build")
        self._committers = ThreadPoolExecutor(COMMITTERS, thread_name_prefix="commit")
        self._identities: dict[Partition, PartitionIdentity] = {}
        self._claims: dict[Partition, Future[Claimed]] = {}
        self._active: dict[Partition, PartitionArchiver] = {}
        self._ending: set[Partition] = set()
        self._restarts: dict[Partition, int] = {}
        self._retry_at: dict[Partition, float] = {}
        self._ticked_at = clock()
        self.reports: dict[Partition, PartitionReport] = {}
        """What was done so far; complete after `run`."""

    def stop(self) -> None:
        """End `run` in order: what is open is flushed and committed. Safe to call from a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Archive until `stop`, or with `--once` until every partition is drained.

        Raises what keeps the whole run from starting; the failure of one partition stands in its report.
        """
        try:
            self._prepare()
            while not self._stopping.is_set() and (self._claims or self._active or self._retry_at):
                self._step()
            self._flush_all()
        finally:
            self._close()

    def _prepare(self) -> None:
        topics = self._config.topics
        counts = self._cluster.partitions(topics)
        cluster_id = self._takers.submit(self._cluster.cluster_id)
        topic_ids = self._cluster.topic_ids(topics)
        if not self._config.single_writer:
            probe(self._store, multipart=self._store.url.startswith("s3:"))
        layout = self._config.layout
        archive = open_archive(self._store, layout=layout, cluster_id=cluster_id.result())
        for topic, num_partitions in counts.items():
            topic_id = topic_ids[topic]
            if topic_id is None:
                log.warning("topic_id_unknown topic=%s; a re-created topic cannot be told from the old one", topic)
            open_topic(self._store, layout=layout, topic=topic, topic_id=topic_id)
            for number in range(num_partitions):
                self._identities[topic, number] = PartitionIdentity(
                    keys=LAYOUTS[layout](TopicFolder(topic), number),
                    archive_id=archive.archive_id,
                    topic_id=topic_id,
                    group_id=self._config.group_id,
                    record_format=self._config.record_format,
                    codec=CODEC,
                    isolation_level=self._config.isolation_level,
                    key_prefix=self._store.prefix,
                )
        for partition in self._identities:
            self._start_report(partition)
            self._start_claim(partition)

    def _start_report(self, partition: Partition) -> None:
        end_offset = high_watermark = None
        if self._config.once:
            end_offset = self._log.bounds(partition).high
            high_watermark = self._uncommitted.bounds(partition).high
        self.reports[partition] = PartitionReport(partition, end_offset, high_watermark)

    def _start_claim(self, partition: Partition) -> None:
        identity = self._identities[partition]
        policy = TakeoverPolicy(
            gaps_are_recorded=self._config.on_gap == "record", other_groups_are_replaced=self._config.takeover
        )
        driver = self._driver(partition)
        self._claims[partition] = self._takers.submit(lambda: driver.run(take_over(identity, self._writer, policy)))

    def _driver(self, partition: Partition) -> Driver:
        return Driver(self._store, _PartitionLog(self._log, partition, self._log_guard), self._back_off, lambda: True)

    def _back_off(self, attempt: int, cause: str) -> None:
        """Wait with full jitter before another try at the store; raises ShuttingDown when the run ends meanwhile."""
        if self._config.once and attempt > TRIES_OF_ONCE:
            raise StoreUnavailable(f"{self._store.url} failed {attempt} times in a row", why=cause)
        log.warning("store_retry attempt=%d cause=%s", attempt, cause)
        longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**attempt)
        if self._abandoned.wait(random.uniform(0, longest)):
            raise ShuttingDown("the run ended before the store answered", why=cause)

    def _step(self) -> None:
        self._begin_claimed()
        if self._has_room():
            for event in self._source.poll():
                self._dispatch(event)
        else:
            self._stopping.wait(PAUSE_SECONDS)
        now = self._clock()
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            self._tick(now)
        for partition, archiver in list(self._active.items()):
            self._review(partition, archiver)

    def _begin_claimed(self) -> None:
        """Start consuming partitions whose claim has succeeded; retry or give up those whose claim failed."""
        positions: dict[Partition, int] = {}
        for partition, claim in list(self._claims.items()):
            if not claim.done():
                continue
            del self._claims[partition]
            try:
                claimed = claim.result()
            except BlockgzError as error:
                self._failed(partition, error)
                continue
            self._announce(partition, claimed)
            positions[partition] = claimed.position
            self._active[partition] = self._partition_archiver(partition, claimed)
        if positions:
            self._source.assign(positions)

    def _partition_archiver(self, partition: Partition, claimed: Claimed) -> PartitionArchiver:
        config = self._config
        return PartitionArchiver(
            self._identities[partition],
            claimed,
            ChunkSettings(
                record_format=record_format(config.record_format),
                compressor=COMPRESSORS[config.gzip_library](config.compression_level),
                block_bytes=config.block_bytes,
                limits=RollLimits(config.chunk_bytes, config.chunk_records, config.chunk_interval),
                bad_records_are_skipped=config.on_bad_record == "skip",
            ),
            buffer=self._buffer,
            driver=self._driver(partition),
            builders=self._builders,
            committers=self._committers,
            clock=self._clock,
            end_offset=self.reports[partition].end_offset,
        )

    def _announce(self, partition: Partition, claimed: Claimed) -> None:
        epoch = claimed.held.marker.epoch
        log.info("claimed topic=%s partition=%d epoch=%d position=%d", *partition, epoch, claimed.position)
        if claimed.gap is not None:
            gap = claimed.gap
            log.warning("gap topic=%s partition=%d from=%d to=%d reason=retention", *partition, gap.start, gap.end)
        if claimed.tail_was_compacted:
            log.warning("tail_unverified topic=%s partition=%d; the log compacted it away", *partition)

    def _has_room(self) -> bool:
        """Whether more may be fetched: what was handed over and what is buffered lie inside their budgets."""
        waiting = sum(archiver.inbox_bytes for archiver in self._active.values())
        return waiting < self._config.memory // 8 and self._buffer.used_bytes < self._config.buffer_bytes

    def _dispatch(self, event: Event) -> None:
        archiver = self._active.get(event.partition)
        if archiver is None:
            return
        if isinstance(event, PartitionFailed):
            self._end(event.partition, archiver)
            self._failed(event.partition, event.error)
        else:
            archiver.offer(event)

    def _tick(self, now: float) -> None:
        for partition in [partition for partition, due in self._retry_at.items() if due <= now]:
            del self._retry_at[partition]
            self._start_claim(partition)
        for archiver in self._active.values():
            archiver.offer(Tick(now))
        if self._active and self._buffer.used_bytes >= self._config.buffer_bytes * BUFFER_PRESSURE:
            largest = max(self._active.values(), key=lambda archiver: archiver.open_bytes)
            if largest.open_bytes:
                largest.offer(Flush(RollReason.BUFFER))

    def _review(self, partition: Partition, archiver: PartitionArchiver) -> None:
        """End a partition that failed or is archived up to its end."""
        if archiver.failure is not None:
            self._end(partition, archiver)
            self._failed(partition, archiver.failure)
        elif archiver.is_drained and archiver.is_idle:
            if partition in self._ending:
                self._end(partition, archiver)
            else:
                self._ending.add(partition)
                archiver.offer(Flush(RollReason.FLUSH))
        if archiver.counts.chunks:
            self._restarts.pop(partition, None)

    def _failed(self, partition: Partition, error: BlockgzError) -> None:
        """Take the partition over again where that may help, else leave it with its failure."""
        tries = self._restarts[partition] = self._restarts.get(partition, 0) + 1
        if isinstance(error, PASSING) and not (self._config.once and tries > RESTARTS_IN_A_ROW):
            log.warning("restart topic=%s partition=%d try=%d cause=%s", *partition, tries, error.what)
            self._retry_at[partition] = self._clock() + min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**tries)
            return
        log.error("stopped topic=%s partition=%d cause=%s", *partition, error.what)
        self.reports[partition].failure = error

    def _end(self, partition: Partition, archiver: PartitionArchiver) -> None:
        del self._active[partition]
        self._ending.discard(partition)
        self._source.release([partition])
        archiver.close()
        self.reports[partition].add(archiver)

    def _flush_all(self) -> None:
        """Commit what is open, within the grace time; what is not committed by then is archived by the next run."""
        for archiver in self._active.values():
            archiver.offer(Flush(RollReason.FLUSH))
        give_up = self._clock() + self._config.grace
        while not all(archiver.is_idle for archiver in self._active.values()) and self._clock() < give_up:
            self._abandoned.wait(PAUSE_SECONDS)
        for partition, archiver in list(self._active.items()):
            if not archiver.is_idle:
                log.warning("abandoned topic=%s partition=%d; the next run archives the rest", *partition)
            self._end(partition, archiver)
            self.reports[partition].failure = archiver.failure

    def _close(self) -> None:
        self._abandoned.set()
        for pool in (self._takers, self._builders, self._committers):
            pool.shutdown(wait=True, cancel_futures=True)
        for client in (self._source, self._log, self._uncommitted):
            client.close()
        self._buffer.close()


class _PartitionLog:
    """One partition's log for the protocols; the clients behind it serve one question at a time."""

    def __init__(self, log: KafkaLog, partition: Partition, guard: threading.Lock) -> None:
        self._log = log
        self._partition = partition
        self._guard = guard

    def bounds(self) -> LogBounds:
        with self._guard:
            return self._log.bounds(self._partition)

    def record_at(self, offset: int) -> Record | None:
        with self._guard:
            return self._log.record_at(self._partition, offset)
