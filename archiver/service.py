"""The archiving service: one consumer feeding the partitions that this process owns."""

import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version

from index_format.identity import ArchiveInfo

from .allocators import give_back
from .archive import open_archive
from .buffer import BufferFolder
from .config import RunConfig
from .errors import MemberRefused, NoSuchTopic, ShuttingDown, StoreUnavailable
from .kafka_cluster import KafkaCluster
from .kafka_settings import client_settings, consumer_settings
from .kafka_source import Fetched, KafkaLog, KafkaSource, Partition, PartitionLog
from .logs import LogEvent, log
from .memory_plan import MemoryPlan
from .observing.snapshot import ServiceSnapshot, partition_snapshots
from .observing.watermarks import Watermarks
from .ownership import Ownership, PartitionReport, Workshop
from .partition_archiver import EndBlock, Flush
from .probe import probe
from .protocol.operations import LogBounds
from .roll_policy import RollReason, chunks_to_end
from .stores import Store
from .topic_configs import TopicConfigs
from .topic_selection import TopicSelection
from .topics import TopicDirectory

TAKEOVERS_AT_ONCE = 8
BUILDERS = 2
COMMITTERS = 4
TICK_SECONDS = 0.5
PAUSE_SECONDS = 0.005
STALL_SECONDS = 10.0
"""So long the consumer is left alone for want of room; then its partitions are paused and polling goes on."""
GIVE_BACK_SECONDS = 10.0
GROUP_COMMIT_SECONDS = 5.0
REJOIN_SECONDS = 1.0
TOPIC_CONFIG_SECONDS = 300.0
FIRST_BACKOFF_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 30.0
TRIES_OF_ONCE = 30
GIVEN_UP = (
    "the store is not asked whether it keeps writers apart: a second process, or one that was thought dead and came "
    "back, can overwrite markers and chunks, and records get lost or doubled"
)
SINGLE_READS = {
    "queued.min.messages": 1,
    "queued.max.messages.kbytes": 1024,
    "fetch.message.max.bytes": 64 * 1024,
    "fetch.wait.max.ms": 10,
}
"""One record is wanted. A fetch that waits at the end of one log would hold up the look-up in the next."""


class ArchiverService:
    """One process's share of the work: by consumer group, or with `--once` every partition of the topics."""

    def __init__(
        self, config: RunConfig, store: Store, buffer: BufferFolder, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._store = store
        self._buffer = buffer
        self._clock = clock
        self._selection = TopicSelection(config.topics, config.exclude)
        self._stopping = threading.Event()
        self._abandoned = threading.Event()
        self._cluster = KafkaCluster(client_settings(config.bootstrap_servers, config.kafka))
        self._memory = MemoryPlan(config.memory)
        self._source_settings = consumer_settings(config, queue_bytes=self._memory.queue_bytes)
        self._source = KafkaSource(self._source_settings)
        self._log = KafkaLog(self._source_settings | SINGLE_READS)
        self._takers = ThreadPoolExecutor(TAKEOVERS_AT_ONCE, thread_name_prefix="take-over")
        self._builders = ThreadPoolExecutor(BUILDERS, thread_name_prefix="build")
        self._committers = ThreadPoolExecutor(COMMITTERS, thread_name_prefix="commit")
        self._ownership: Ownership | None = None
        self._topics: Sequence[str] = ()
        self._refresh: Future[list[str]] | None = None
        self._refreshed_at = self._ticked_at = self._committed_at = self._stepped_at = clock()
        self._configs: TopicConfigs | None = None
        self._config_keeping: Future[None] | None = None
        self._configs_kept_at: dict[str, float] = {}
        self._watermarks = Watermarks(self._assigned, self._ask_bounds, clock)
        self._joined = False
        self._group_positions: dict[Partition, int] = {}
        self._room_since: float | None = None
        self._paused = False
        self._offered_bytes = 0
        self._gave_back_at = clock()

    @property
    def reports(self) -> dict[Partition, PartitionReport]:
        """What was done so far; complete after `run`."""
        return self._ownership.reports if self._ownership else {}

    def snapshot(self) -> ServiceSnapshot:
        """What there is to tell of this process now. Safe to call from any thread, asks nobody."""
        ownership = self._ownership
        views = ownership.views() if ownership else []
        archivers = [view.archiver for view in views if view.archiver is not None]
        now = self._clock()
        return ServiceSnapshot(
            version=version("blockgz"),
            archive=self._store.url,
            group_id=self._config.group_id,
            joined=self._joined,
            heartbeat_age_seconds=now - self._stepped_at,
            paused=self._paused,
            memory_budget=self._config.memory,
            waiting_bytes=sum(archiver.inbox_bytes for archiver in archivers),
            open_block_bytes=sum(archiver.open_block_bytes for archiver in archivers),
            buffer_budget=self._config.buffer_bytes,
            buffer_bytes=self._buffer.used_bytes,
            watermarks_age_seconds=self._watermarks.age_seconds,
            partitions=partition_snapshots(views, self._watermarks.bounds, now=now, wall_ms=round(time.time() * 1000)),
        )

    def stop(self) -> None:
        """End `run` in order: what is open is flushed and committed. Safe to call from a signal handler."""
        self._stopping.set()

    def run(self) -> None:
        """Archive until `stop`, or with `--once` until every partition is drained.

        Raises what keeps the whole run from starting; the failure of one partition stands in its report.
        """
        try:
            ownership = self._ownership = self._prepare()
            if self._config.http is not None:
                self._watermarks.start()
            if self._config.once:
                self._keep_topic_configs(self._topics, self._clock())
                self._acquire_all(ownership)
                self._joined = True
            else:
                self._source.subscribe(self._topics, _Rebalances(self, ownership))
            while not self._stopping.is_set() and not (self._config.once and ownership.is_over):
                try:
                    self._step(ownership)
                except MemberRefused as error:
                    self._join_again(ownership, error)
            self.give_up(ownership, list(ownership.reports))
        finally:
            self._close()

    def _join_again(self, ownership: Ownership, refusal: MemberRefused) -> None:
        """In the KIP-848 protocol a static id is free again once the session of its last owner has ended.

        In the classic one its newest owner is right, so that the refusal is raised: this process is a zombie.
        """
        if self._config.group_protocol == "classic":
            raise refusal
        log.warning(LogEvent.LOST, partitions=len(ownership.assigned), cause=refusal.why)
        self.note_lost()
        ownership.lose(list(ownership.assigned))
        self._source.close()
        self._stopping.wait(REJOIN_SECONDS)
        self._source = KafkaSource(self._source_settings)
        self._paused = False
        self._source.subscribe(self._topics, _Rebalances(self, ownership))

    def give_up(self, ownership: Ownership, partitions: Sequence[Partition]) -> None:
        """Flush and commit partitions that leave, within the grace time, and tell the group how far they came."""
        leaving = {partition: ownership.active[partition] for partition in partitions if partition in ownership.active}
        ownership.give_up(partitions, self._config.grace, self._pause_briefly)
        self._commit_group_positions({partition: archiver.committed for partition, archiver in leaving.items()})

    def note_joined(self) -> None:
        """The group told this process its partitions, be they none."""
        self._joined = True

    def note_lost(self) -> None:
        """The group went on without this process, which joins it anew."""
        self._joined = False

    def _prepare(self) -> Ownership:
        self._topics = self._select()
        cluster_id = self._takers.submit(self._cluster.cluster_id)
        if self._config.single_writer:
            log.warning(LogEvent.SINGLE_WRITER, store=self._store.url, given_up=GIVEN_UP)
        else:
            probe(self._store, multipart=self._store.url.startswith("s3:"))
        archive = open_archive(self._store, layout=self._config.layout, cluster_id=cluster_id.result())
        topics = TopicDirectory(self._store, self._cluster, archive)
        self._configs = TopicConfigs(self._store, archive.layout, topics.locate, self._cluster.describe)
        return Ownership(self._workshop(archive, topics))

    def _workshop(self, archive: ArchiveInfo, topics: TopicDirectory) -> Workshop:
        return Workshop(
            config=self._config,
            archive_id=archive.archive_id,
            store=self._store,
            buffer=self._buffer,
            topics=topics,
            log_of=lambda partition: PartitionLog(self._log, partition),
            writer=str(uuid.uuid4()),
            back_off=self._back_off,
            clock=self._clock,
            takers=self._takers,
            builders=self._builders,
            committers=self._committers,
        )

    def _select(self) -> list[str]:
        """The topics to archive now; raises NoSuchTopic for a named one that is missing, or where none is selected."""
        known = self._cluster.topics()
        missing = self._selection.names - known.keys()
        selected = self._selection(known)
        if missing or (not selected and self._config.once):
            names = sorted(name for name in known if not name.startswith("__"))
            wanted = f"topic {sorted(missing)[0]!r}" if missing else f"topic like {', '.join(self._config.topics)}"
            raise NoSuchTopic(
                f"the cluster has no {wanted}",
                why=f"it has {', '.join(names[:10]) or 'no topics'}{' …' if len(names) > 10 else ''}",
                remedy="check the name and -b, or create the topic first",
            )
        return selected

    def _acquire_all(self, ownership: Ownership) -> None:
        """Take over every partition up to its end now: `--once` asks no group."""
        uncommitted = KafkaLog(
            consumer_settings(self._config, queue_bytes=0) | SINGLE_READS | {"isolation.level": "read_uncommitted"}
        )
        known = self._cluster.topics()
        for topic in self._topics:
            for number in range(known[topic]):
                partition = (topic, number)
                end, high = self._log.bounds(partition).high, uncommitted.bounds(partition).high
                ownership.acquire(partition, end, high)
        uncommitted.close()

    def _step(self, ownership: Ownership) -> None:
        self._stepped_at = self._clock()
        begun = ownership.begin()
        if begun:
            self._source.consume(begun)
            if self._paused:
                self._source.pause()
        self._poll(ownership)
        now = self._clock()
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            ownership.tick(now)
            self._relieve_buffer(ownership)
            self._relieve_memory(ownership)
            self._give_memory_back(now)
            self._keep_topic_configs({topic for topic, _ in ownership.assigned}, now)
            if not self._config.once:
                self._keep_group_informed(ownership, now)
                self._refresh_topics(ownership, now)
        self._source.release(ownership.review())

    def _poll(self, ownership: Ownership) -> None:
        """Fetch while there is room; without room for long, pause but poll, so that the group keeps this member."""
        now = self._clock()
        if self._has_room(ownership):
            self._room_since = now
            if self._paused:
                self._source.resume()
                self._paused = False
                log.info(LogEvent.RESUMED)
        elif not self._paused:
            if self._room_since is not None and now - self._room_since < STALL_SECONDS:
                self._pause_briefly()
                return
            log.warning(LogEvent.PAUSED, buffer_bytes=self._buffer.used_bytes)
            self._source.pause()
            self._paused = True
        for event in self._source.poll():
            ownership.offer(event)
            self._offered_bytes += event.num_bytes if isinstance(event, Fetched) else 0
        if self._offered_bytes >= self._memory.open_block_bytes // 2:
            self._relieve_memory(ownership)

    def _has_room(self, ownership: Ownership) -> bool:
        """Whether more may be fetched: what was handed over and what is buffered lie inside their budgets."""
        waiting = sum(archiver.inbox_bytes for archiver in ownership.active.values())
        in_memory = waiting < self._memory.waiting_bytes
        return in_memory and self._buffer.used_bytes < self._config.buffer_bytes

    def _relieve_buffer(self, ownership: Ownership) -> None:
        """End the largest open chunks early: thousands of partitions with a chunk each would fill the buffer."""
        active = ownership.active
        open_bytes = {partition: archiver.open_bytes for partition, archiver in active.items()}
        committing = {partition: archiver.is_committing for partition, archiver in active.items()}
        for partition in chunks_to_end(open_bytes, committing, self._config.buffer_bytes):
            active[partition].offer(Flush(RollReason.BUFFER))
        index_bytes = {partition: archiver.open_index_bytes for partition, archiver in active.items()}
        for partition in chunks_to_end(index_bytes, committing, self._memory.index_bytes):
            active[partition].offer(Flush(RollReason.MEMORY))

    def _relieve_memory(self, ownership: Ownership) -> None:
        """End the largest open blocks early: thousands of partitions with a block each would fill the memory."""
        self._offered_bytes = 0
        excess = sum(archiver.open_block_bytes for archiver in ownership.active.values())
        excess -= self._memory.open_block_bytes
        if excess <= 0:
            return
        for archiver in sorted(ownership.active.values(), key=lambda archiver: -archiver.open_block_bytes):
            if excess <= 0:
                break
            excess -= archiver.open_block_bytes
            archiver.offer(EndBlock())

    def _give_memory_back(self, now: float) -> None:
        if now - self._gave_back_at >= GIVE_BACK_SECONDS:
            self._gave_back_at = now
            give_back()

    def _keep_group_informed(self, ownership: Ownership, now: float) -> None:
        if now - self._committed_at >= GROUP_COMMIT_SECONDS:
            self._committed_at = now
            self._commit_group_positions(
                {partition: archiver.committed for partition, archiver in ownership.active.items()}
            )

    def _commit_group_positions(self, positions: dict[Partition, int | None]) -> None:
        """Advisory, for lag tools: the archive's markers alone say what is archived."""
        news = {
            partition: position
            for partition, position in positions.items()
            if position is not None and self._group_positions.get(partition) != position
        }
        if news and not self._config.once:
            self._group_positions |= news
            self._source.commit(news)

    def _refresh_topics(self, ownership: Ownership, now: float) -> None:
        """Subscribe to topics that came or went since."""
        if self._refresh is None:
            if now - self._refreshed_at >= self._config.topic_refresh:
                self._refresh = self._takers.submit(lambda: self._selection(self._cluster.topics()))
            return
        if not self._refresh.done():
            return
        self._refreshed_at = now
        refresh, self._refresh = self._refresh, None
        if refresh.exception() is not None:
            log.warning(LogEvent.TOPICS_UNKNOWN, cause=str(refresh.exception()))
            return
        topics = refresh.result()
        if topics and topics != self._topics:
            log.info(LogEvent.SUBSCRIBED, topics=",".join(topics))
            self._topics = topics
            self._source.subscribe(topics, _Rebalances(self, ownership))

    def _keep_topic_configs(self, topics: Iterable[str], now: float) -> None:
        """Store what these topics are like, in a thread and not too often."""
        if self._configs is None or (self._config_keeping is not None and not self._config_keeping.done()):
            return
        due = [
            topic
            for topic in sorted(topics)
            if now - self._configs_kept_at.get(topic, -TOPIC_CONFIG_SECONDS) >= TOPIC_CONFIG_SECONDS
        ]
        if due:
            self._configs_kept_at |= dict.fromkeys(due, now)
            self._config_keeping = self._takers.submit(self._configs.keep, due)

    def _assigned(self) -> set[Partition]:
        return self._ownership.assigned if self._ownership else set()

    def _ask_bounds(self, partitions: Collection[Partition]) -> dict[Partition, LogBounds]:
        return self._cluster.bounds(partitions, self._config.isolation_level)

    def _back_off(self, attempt: int, cause: str) -> None:
        """Wait with full jitter before another try at the store; raises ShuttingDown when the run ends meanwhile."""
        if self._config.once and attempt > TRIES_OF_ONCE:
            raise StoreUnavailable(f"{self._store.url} failed {attempt} times in a row", why=cause)
        longest = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**attempt)
        if self._abandoned.wait(random.uniform(0, longest)):
            raise ShuttingDown("the run ended before the store answered", why=cause)

    def _pause_briefly(self) -> None:
        self._stepped_at = self._clock()
        self._abandoned.wait(PAUSE_SECONDS)

    def _close(self) -> None:
        self._abandoned.set()
        self._store.abandon_uploads()
        self._watermarks.close()
        self._source.close()
        for pool in (self._takers, self._builders, self._committers):
            pool.shutdown(wait=True, cancel_futures=True)
        self._log.close()
        self._buffer.close()


class _Rebalances:
    """The consumer group's decisions, carried out on this process's partitions."""

    def __init__(self, service: ArchiverService, ownership: Ownership) -> None:
        self._service = service
        self._ownership = ownership

    def assigned(self, partitions: Sequence[Partition]) -> None:
        log.info(LogEvent.ASSIGNED, partitions=len(partitions))
        self._service.note_joined()
        for partition in partitions:
            self._ownership.acquire(partition)

    def revoked(self, partitions: Sequence[Partition]) -> None:
        log.info(LogEvent.REVOKED, partitions=len(partitions))
        self._service.give_up(self._ownership, partitions)

    def lost(self, partitions: Sequence[Partition]) -> None:
        log.warning(LogEvent.LOST, partitions=len(partitions), cause="the group went on without this process")
        self._service.note_lost()
        self._ownership.lose(partitions)
