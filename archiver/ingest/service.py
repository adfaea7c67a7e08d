"""The archiving service: one consumer feeding the partitions that this process owns.

Each duty has a module of its own: how the process gets its partitions (assignment), what it does with them (ownership),
how much is fetched (backpressure), what topics there are (topics). The service connects them and runs the main loop.
"""

import random
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from typing import Any

from archiver.commit.archive import open_archive
from archiver.commit.recovery import ClaimList
from archiver.errors import MemberRefused, Next, Situation, what_next
from archiver.groups import GroupKeeper, GroupTables, KeepingContext
from archiver.ingest.assignment import WHOLE, Assignment, Drain, DrainShare, GroupMember, GroupOffsets, UnownedWatch
from archiver.ingest.backpressure import BATCHING, QUEUE, Budgets, Fetching
from archiver.ingest.chunk_builder import BufferFolder
from archiver.ingest.dead_letters import DeadLetterTopic
from archiver.ingest.kafka_cluster import (
    BoundsOrFailure,
    KafkaCluster,
    PartitionLog,
    RecordReader,
    Watch,
    WatermarkWatch,
)
from archiver.ingest.kafka_source import (
    POLL_SECONDS,
    EndReached,
    Fetched,
    KafkaSource,
    Partition,
    cluster_settings,
    consumer_settings,
    rebalance_seconds,
)
from archiver.ingest.ownership import (
    ArchivingContext,
    ClaimQueue,
    Ownership,
    PartitionHistory,
    PartitionState,
    confirm_ids,
)
from archiver.ingest.topics import (
    ASK_SECONDS,
    MissingTopics,
    TopicConfigs,
    TopicDirectory,
    TopicIds,
    TopicWatch,
    no_such_topic,
    selected_topics,
)
from archiver.logs import LogEvent, log, progress_log
from archiver.monitor.snapshot import ServiceSnapshot, partition_snapshots, progress_seconds
from blockgz.config.model import RunConfig
from blockgz.elastic_pool import ElasticPool
from blockgz.errors import AccessDenied, BlockgzError, BrokerUnreachable
from blockgz.kafka import LogBounds
from blockgz.kafka.groups import KafkaGroups
from blockgz.process import give_back
from blockgz.store.customer_key import fingerprint_of
from blockgz.store.probe import probe
from blockgz.store.retry import StoreBackoff, backoff_seconds, retry_while_busy
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicSelection, matcher
from index_format.keys import PartitionKeys
from index_format.objects import ArchiveInfo

# One of each kind: topics, their configurations, the ends of logs, the cluster's id.
QUESTIONS_AT_ONCE = 4
CLAIMS_AT_ONCE = 32
BUILDERS = 2
COMMITS_AT_ONCE = 32
TICK_SECONDS = 0.5
PAUSE_SECONDS = 0.005
GIVE_BACK_SECONDS = 10.0
# At most between two looks at the ends of logs if consumer groups are not kept.
ENDS_SECONDS = 300.0
SHOWN_TOPICS = 5
HELD = (PartitionState.ARCHIVING, PartitionState.DONE)
TRIES_OF_ONCE = 30
# A run that comes to an end is not to wait for records that nobody wants.
POLL_SECONDS_OF_ONCE = 0.01
GIVEN_UP = (
    "nothing is written on a condition: a second process, or one that was thought dead and came back, can "
    "overwrite markers, and records get lost or doubled"
)


class ArchiverService:
    """One process's share of the work: by consumer group, or with `--once` every partition of the topics."""

    def __init__(
        self,
        config: RunConfig,
        store: ToolStore,
        buffer: BufferFolder,
        clock: Callable[[], float] = time.monotonic,
        share: DrainShare = WHOLE,
    ) -> None:
        """`share`: what of the partitions is this process's if several drain them with `--once`."""
        self._config = config
        self._store = store
        self._buffer = buffer
        self._clock = clock
        self._drain_share = share
        self._selection = TopicSelection(config.topics, config.exclude, of_source=True)
        self._missing = MissingTopics(self._selection)
        self._stopping = threading.Event()
        # Set once `run` is to end, or ends by itself.
        self.ending = threading.Event()
        # The error that `run` raises, known while it still ends.
        self.failure: Exception | None = None
        self._abandoned = threading.Event()
        self._cluster = KafkaCluster(cluster_settings(config))
        poll_seconds = POLL_SECONDS_OF_ONCE if config.once else POLL_SECONDS
        self._budgets = Budgets(config.memory, buffer, config.buffer_bytes)
        self._fetching = Fetching(
            lambda: KafkaSource(
                self._consumer_settings(), config.memory // BATCHING, clock, poll_seconds, self._archive_id
            ),
            self._budgets,
            clock,
            self._pause_briefly,
        )
        self._records = RecordReader(self._consumer_settings())
        self._dead_letters: DeadLetterTopic | None = None
        self._asking = ThreadPoolExecutor(QUESTIONS_AT_ONCE, thread_name_prefix="ask")
        self._takers = ElasticPool(CLAIMS_AT_ONCE, "claim", clock)
        self._builders = ThreadPoolExecutor(BUILDERS, thread_name_prefix="build")
        self._committers = ElasticPool(COMMITS_AT_ONCE, "commit", clock)
        self._watermarks = WatermarkWatch(
            self._assigned, lambda each: self._cluster.watermarks(each, config.isolation_level), clock
        )
        self._archive_id = ""
        self._num_partitions = 0
        # Why the run has not begun yet.
        self._trouble: str | None = None
        self._ownership: Ownership | None = None
        self._ids: TopicIds | None = None
        self._groups: GroupKeeper | None = None
        self._assignment: Assignment | None = None
        self._ticked_at = self._stepped_at = self._gave_back_at = clock()

    @property
    def reports(self) -> dict[Partition, PartitionHistory]:
        """Return the history of each partition so far; complete after `run`."""
        return self._ownership.reports if self._ownership else {}

    @property
    def missing_topics(self) -> list[str]:
        """Return the named topics that the cluster did not have at the last look."""
        return self._missing.names

    def archived_partitions(self) -> list[PartitionKeys]:
        """Return the partitions that this process archives now. Safe to call from any thread."""
        active = self._ownership.active.copy() if self._ownership else {}
        return [archiver.keys for archiver in active.values()]

    def snapshot(self) -> ServiceSnapshot:
        """Return a snapshot of this process. Safe to call from any thread; asks nobody."""
        views = self._ownership.views() if self._ownership else []
        active = [archiving for _, _, archiving in views if archiving is not None]
        now, progress_bound = self._clock(), progress_seconds(self._config.chunk_interval)
        return ServiceSnapshot(
            version=version("blockgz"),
            archive=self._store.url,
            group_id=self._config.group_id,
            joined=self._assignment is not None and self._assignment.joined,
            trouble=self._trouble,
            heartbeat_age_seconds=now - self._stepped_at,
            paused=self._fetching.is_paused,
            memory_budget=self._config.memory,
            waiting_bytes=sum(state.inbox_bytes for state in active),
            open_block_bytes=sum(state.open_block_bytes for state in active),
            buffer_budget=self._config.buffer_bytes,
            buffer_bytes=self._buffer.used_bytes,
            watermarks_age_seconds=self._watermarks.age_seconds,
            groups_age_seconds=self._groups.age_seconds if self._groups else None,
            group_tables=self._groups.stored if self._groups else 0,
            group_failures=self._groups.failures if self._groups else 0,
            progress_seconds=progress_bound,
            partitions=partition_snapshots(
                views,
                self._watermarks.logs,
                self._fetching.ages,
                now=now,
                wall_ms=round(time.time() * 1000),
                progress_seconds=progress_bound,
            ),
        )

    def stop(self) -> None:
        """End `run` in order: what is open is flushed and committed. Safe to call from a signal handler."""
        self._stopping.set()
        self.ending.set()

    def try_again(self) -> None:
        """Claim stopped partitions again whose object or disk may be fixed. Safe to call from a signal handler."""
        if self._ownership is not None:
            self._ownership.fixed.set()

    def run(self) -> None:
        """Archive until `stop`, or with `--once` until every partition is drained.

        Raises what keeps the whole run from starting; the failure of one partition is in its history.
        """
        try:
            self._run()
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.ending.set()
            self._close()

    def _run(self) -> None:
        topics = self._reach()
        if topics is None:
            return
        archive = self._open_archive()
        config = self._config = self._config.of_archive(archive)
        self._archive_id = archive.archive_id
        self._dead_letters = DeadLetterTopic(config) if config.dead_letter_topic else None
        self._tell_start(list(topics))
        ids = self._ids = TopicIds(self._cluster.topic_ids, lambda: {name for name, _ in self._assigned()}, self._clock)
        directory = TopicDirectory(self._store, ids, archive, self._clock)
        is_ending = (lambda: False) if self._config.once else self._stopping.is_set  # a short run keeps them, too
        wait = time.sleep if self._config.once else self._stopping.wait
        configs = TopicConfigs(self._store, archive.layout, directory.locate, self._cluster.describe, is_ending, wait)
        ownership = self._ownership = Ownership(self._context(archive, directory))
        if self._config.http is not None:
            self._watermarks.start()
        if self._config.once:
            configs.keep_due(topics, self._clock(), self._asking)  # a short run may end before the first tick
        assignment = self._assignment = self._assignment_of(ownership, topics)
        watch = Watch("topic-ids", lambda: confirm_ids(ids, ownership.in_hand), lambda: ASK_SECONDS)
        watch.start()
        groups = self._groups = self._keeper(archive, directory, ownership, ids)
        if not self._config.once:
            groups.start()
        try:
            assignment.start()
            while not (self._stopping.is_set() or assignment.is_over):
                try:
                    self._step(ownership, assignment, configs)
                except MemberRefused as refusal:
                    assignment.refused(refusal)
                except AccessDenied as denial:
                    if what_next(denial, ownership.situation) is Next.STOP:
                        raise
                    log.warning(LogEvent.DENIED, cause=denial.what, why=denial.why)
            if self._config.once:
                groups.keep_once(self._stopping.is_set)
        except Exception as error:
            self.failure = error  # known while the flush continues, which may not end in time
            raise
        finally:  # in any case: what was fetched is offered to the store
            self.ending.set()
            assignment.give_up(list(ownership.reports))
            watch.close()

    def _step(self, ownership: Ownership, assignment: Assignment, configs: TopicConfigs) -> None:
        self._stepped_at = self._clock()
        begun = ownership.begin()
        if begun:
            self._fetching.consume(begun)
        for event in self._fetching.poll(ownership.active):
            if isinstance(event, Fetched | EndReached):
                self._heard()
            ownership.offer(event)
            if isinstance(event, Fetched):
                self._budgets.taken(event.partition, event.num_bytes, ownership.active)
        now = self._clock()
        if now - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = now
            ownership.tick(now)
            self._restart(ownership)
            self._budgets.relieve(ownership.active, self._fetching.paused)
            claimed = {archiver.keys.folder for archiver in ownership.active.values()}
            configs.keep_due({topic for topic, _ in ownership.assigned}, now, self._asking, claimed)
            assignment.tick(now)
            if now - self._gave_back_at >= GIVE_BACK_SECONDS:
                self._gave_back_at = now
                give_back()
                self._buffer.mark_alive()
        self._fetching.release(ownership.review())

    def _restart(self, ownership: Ownership) -> None:
        """Take over again what is due, without dropping anything that was polled."""
        partitions = ownership.to_restart
        for event in self._fetching.batched(partitions):
            ownership.offer(event)
        self._fetching.release(partitions)
        for partition in partitions:
            ownership.restart(partition)

    def _reach(self) -> dict[str, int] | None:
        """Return the topics to archive; a service waits until a broker answers, and returns None if it is to end."""
        attempt = 0
        while True:
            self._stepped_at = self._clock()
            try:
                topics = self._select()
            except BrokerUnreachable as error:
                if self._config.once:
                    raise
                attempt, self._trouble = attempt + 1, f"{error.what}: {error.why}"
                if attempt == 1:
                    log.warning(LogEvent.WAITING, cause=error.what, why=error.why, remedy=error.remedy)
                if self._stopping.wait(random.uniform(0, backoff_seconds(attempt, error))):
                    return None
            else:
                self._trouble = None
                return topics

    def _select(self) -> dict[str, int]:
        """Return the topics to archive now, with their numbers of partitions."""
        # Raises NoSuchTopic if none of the named ones is there, or nothing to drain.
        known = self._cluster.topics()
        topics = selected_topics(self._selection, known)
        dead_letters = self._config.dead_letter_topic
        if dead_letters is not None and dead_letters not in known:
            raise no_such_topic(f"topic {dead_letters!r} for records that cannot be archived", known)
        if self._config.once and not topics:
            raise no_such_topic(f"topic like {', '.join(self._config.topics)}", known)
        self._num_partitions = sum(known[topic] for topic in topics)
        if self._drain_share.number == 0:  # of several workers one says so
            self._missing.look(known)
        return {topic: known[topic] for topic in topics}

    def _tell_start(self, topics: Sequence[str]) -> None:
        if self._drain_share.number == 0:  # of several workers one says so
            progress_log.info(
                LogEvent.STARTED,
                archive=self._store.url,
                topics=",".join(topics[:SHOWN_TOPICS]) + (f",… ({len(topics)})" if len(topics) > SHOWN_TOPICS else ""),
                partitions=self._num_partitions,
                group=self._config.group,
            )

    def _known_topics(self) -> dict[str, int]:
        known = self._cluster.topics()
        self._missing.look(known)
        return known

    def _open_archive(self) -> ArchiveInfo:
        cluster_id = self._asking.submit(self._cluster.cluster_id)
        if self._config.single_writer:
            log.warning(LogEvent.SINGLE_WRITER, store=self._store.url, given_up=GIVEN_UP)
        else:
            is_multipart = self._store.url.startswith("s3:")
            retry_while_busy(partial(probe, self._store, multipart=is_multipart), self._stopping, _passes_at_once)
        key = fingerprint_of(self._config.customer_key)
        opened = partial(
            open_archive, self._store, layout=self._config.layout, cluster_id=cluster_id.result(), customer_key=key
        )
        return retry_while_busy(opened, self._stopping, _passes_at_once)

    def _assignment_of(self, ownership: Ownership, topics: Mapping[str, int]) -> Assignment:
        if self._config.once:
            return Drain(
                self._config, self._cluster, ownership, topics, self._drain_share, self._pause_briefly, self._asking
            )
        watch = TopicWatch(
            self._selection,
            self._known_topics,
            self._asking,
            every_seconds=self._config.topic_refresh,
            topics=list(topics),
            now=self._clock(),
        )
        ask = partial(self._cluster.committed_metadata, self._config.group)
        offsets = GroupOffsets(self._config.group, self._archive_id, ask, self._asking)
        unowned = partial(self._cluster.unowned, self._config.group)
        return GroupMember(
            self._config,
            ownership,
            self._fetching,
            list(topics),
            watch,
            offsets,
            UnownedWatch(unowned, self._asking, rebalance_seconds(self._config) * random.uniform(1, 2)),
            rest=self._pause_briefly,
            wait=self._stopping.wait,
        )

    def _keeper(
        self, archive: ArchiveInfo, directory: TopicDirectory, ownership: Ownership, ids: TopicIds
    ) -> GroupKeeper:
        config, patterns = self._config, self._config.groups
        matchers = [matcher(pattern) for pattern in patterns or ()]
        ends_seconds = config.ends_interval
        interval_seconds = (
            min(ends_seconds or ENDS_SECONDS, ENDS_SECONDS) if patterns is None else config.groups_interval
        )

        def topics() -> set[str]:
            found = ((report.partition, state) for state, report, _ in ownership.views())
            return {topic for (topic, number), state in found if number == 0 and state in HELD}

        context = KeepingContext(
            cluster=KafkaGroups(cluster_settings(config), self._cluster.admin),
            tables=GroupTables(
                self._store,
                archive,
                max(1, round(interval_seconds * 1000)),
                None if ends_seconds is None else round(ends_seconds * 1000),
                directory.locate,
            ),
            own_group=config.group,
            is_selected=None if patterns is None else lambda name: any(matches(name) for matches in matchers),
            topics=topics,
            partitions=self._cluster.topics,
            topic_ids=lambda topics: ids.asked(topics).ids,
            high_watermarks=self._cluster.high_watermarks,
            store_clock=self._store.clock,
            interval_seconds=interval_seconds,
        )
        return GroupKeeper(context, self._clock)

    def _context(self, archive: ArchiveInfo, topics: TopicDirectory) -> ArchivingContext:
        return ArchivingContext(
            config=self._config,
            archive_id=archive.archive_id,
            store=self._store,
            buffer=self._buffer,
            topics=topics,
            log_of=lambda partition, known: PartitionLog(
                partition, known, self._ask_bounds, self._records, partial(topics.confirm, partition[0])
            ),
            writer=str(uuid.uuid4()),
            back_off=StoreBackoff(self._store.url, self._abandoned, TRIES_OF_ONCE if self._config.once else None),
            clock=self._clock,
            claim_list=ClaimList(self._store, archive),
            claims=ClaimQueue(self._ask_bounds, self._takers),
            builders=self._builders,
            committers=self._committers,
            dead_letters=self._dead_letters,
        )

    def _ask_bounds(self, partitions: Collection[Partition]) -> Mapping[Partition, BoundsOrFailure]:
        answers = self._cluster.ask_bounds(partitions, self._config.isolation_level)
        if any(isinstance(answer, LogBounds) for answer in answers.values()):
            self._heard()
        return answers

    def _heard(self) -> None:
        """Note that the cluster answered: one that delivers records or bounds may report ids, too."""
        if self._ids is not None:
            self._ids.heard()

    def _consumer_settings(self) -> dict[str, Any]:
        return consumer_settings(self._config, queue_bytes=self._config.memory // QUEUE)

    def _assigned(self) -> set[Partition]:
        return self._ownership.assigned if self._ownership else set()

    def _pause_briefly(self) -> None:
        self._stepped_at = self._clock()
        self._abandoned.wait(PAUSE_SECONDS)

    def _close(self) -> None:
        self._abandoned.set()
        self._store.abandon_uploads()
        self._watermarks.close()
        if self._groups is not None:
            self._groups.close()
        self._fetching.close()
        if self._dead_letters is not None:
            self._dead_letters.close()
        self._records.close()
        for pool in (self._asking, self._takers, self._builders, self._committers):
            pool.shutdown(wait=True, cancel_futures=True)
        self._buffer.close()


def _passes_at_once(error: BaseException) -> bool:
    return isinstance(error, BlockgzError) and what_next(error, Situation.OPENING) is Next.AGAIN
