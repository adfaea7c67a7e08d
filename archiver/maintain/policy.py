"""Prune and compact by policy the partitions that `archiver run` archives, in a thread of its own."""

import dataclasses
import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial

from archiver.errors import Next, Situation, what_next
from archiver.groups import seconds_to_round
from archiver.ingest.chunk_builder import BufferFolder
from archiver.logs import LogEvent, log
from archiver.maintain import compact, prune
from archiver.maintain.compact import Compaction, PartitionCompaction
from archiver.maintain.prune import Keep, PartitionPruning
from archiver.maintain.rewrite.chunks import RewriteKeys
from archiver.maintain.rewrite.contents import MergeLimits, RewriteTools
from archiver.maintain.rewrite.intent import RewriteOutcome, not_done, request_fold
from archiver.maintain.throttle import Throttle, ThrottledDriver, ThrottledRanges
from archiver.monitor.snapshot import MaintenanceKind, MaintenanceSnapshot
from blockgz.config.model import RunConfig, parse_age, parse_bytes
from blockgz.errors import BlockgzError, ShuttingDown
from blockgz.store.opening import default_buffer_root
from blockgz.store.retry import TRIES_OF_COMMANDS, StoreBackoff
from blockgz.store.writer import ToolStore
from blockgz.topic_patterns import TopicRules, TopicSelection
from index_format.keys import PartitionKeys
from index_format.marker import MAX_RETIRED, CatalogReference, Marker

RETIRED_A_DOUBLING = 8
RUNS_A_ROUND = 4
# Milliseconds that the timestamps of a merged chunk span, unless a retention asks for less.
SPAN_MS = 86_400_000
# Seconds of copying in one rewrite at the configured rate, unless a single chunk needs more.
REWRITE_SECONDS = 600


class MaintenancePolicy:
    """The topics that are pruned and compacted, and the rules for it."""

    def __init__(self, config: RunConfig) -> None:
        self._keep_seconds = TopicRules(config.archive_retention, parse_age)
        self._keep_bytes = TopicRules(config.archive_retention_bytes, parse_bytes)
        self.has_retention = bool(config.archive_retention or config.archive_retention_bytes)
        # None: no topic is compacted.
        self.compacted = TopicSelection(config.compact) if config.compact else None
        limits = MergeLimits(config.chunk_bytes // 2, config.chunk_bytes, span_ms=SPAN_MS)
        self.rewrite_keys = RewriteKeys.of(config.encrypt, None)
        self._compaction = Compaction(limits, keys=self.rewrite_keys)

    def keeps(self, topic: str, clock: Callable[[], float]) -> list[Keep]:
        """Return what of each partition stays; several rules if anything beyond any of them goes."""
        seconds, size = self._keep_seconds(topic), self._keep_bytes(topic)
        # By the store's clock: a wrong clock of this machine would prune new records.
        by_age = [] if seconds is None else [Keep(since_ms=round((clock() - seconds) * 1000))]
        return by_age if size is None else [*by_age, Keep(newest_bytes=size)]

    def is_compacted(self, topic: str) -> bool:
        return self.compacted is not None and bool(self.compacted([topic]))

    def compaction_of(self, topic: str) -> Compaction:
        """Return how chunks of a topic are merged: within a day, or a tenth of the time that its records are kept."""
        keep_seconds, limits = self._keep_seconds(topic), self._compaction.limits
        # Records stay as long as the newest one in their chunk.
        span_ms = SPAN_MS if keep_seconds is None else min(SPAN_MS, round(keep_seconds * 1000 / 10))
        return dataclasses.replace(self._compaction, limits=limits._replace(span_ms=span_ms))


def worth(retired: int) -> int:
    """Return how many times more a rewrite has to do if the marker lists this many retired ones, of 64 at most."""
    # They leave the marker only a grace period after gc saw them: hourly rewrites would fill it.
    return int(2 ** (retired // RETIRED_A_DOUBLING))


def is_prune_due(plan: PartitionPruning) -> bool:
    """Return whether a prune frees enough: anything at first, a larger share as retired rewrites pile up."""
    return plan.num_bytes * MAX_RETIRED >= plan.left_bytes * (worth(len(plan.marker.retired)) - 1)


def num_small(references: Iterable[CatalogReference], small_bytes: int) -> int:
    """Return the number of chunks in catalogs whose chunks are smaller than `small_bytes` on average."""
    return sum(each.num_chunks for each in references if each.bytes < small_bytes * each.num_chunks)


def is_compaction_due(small: int, left: int, least: int, retired: int) -> bool:
    """Return whether there are `least` more small chunks than the last compaction had to leave."""
    # More are needed as retired rewrites pile up.
    return small - left >= least * worth(retired)


def runs_of_a_round(planned: int, retired: int) -> int:
    """Return how many of the planned rewrites of a partition are carried out in one round."""
    # Half of a marker's list is left to prunes, and time to other partitions.
    return min(planned, RUNS_A_ROUND, max(1, MAX_RETIRED // 2 - retired))


def rewrite_bytes(buffer_bytes: int, bytes_per_second: int) -> int:
    """Return the bytes that one rewrite copies: it claims the partition and the archiver's disk no longer."""
    return min(buffer_bytes, bytes_per_second * REWRITE_SECONDS)


# Seconds that `close` waits for the current step: what is stored after it is garbage.
END_SECONDS = 1.0


class Maintainer:
    """A thread that prunes and compacts one partition after another, in rounds; the next round retries failures."""

    def __init__(
        self,
        config: RunConfig,
        store: ToolStore,
        partitions: Callable[[], Collection[PartitionKeys]],
        ending: threading.Event,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`partitions` returns those that this process archives now; `ending` is set when the process is to end."""
        self._config, self._policy = config, MaintenancePolicy(config)
        self._store, self._partitions, self._ending = store, partitions, ending
        self._clock, self._wall = clock, wall
        self._throttle = Throttle(config.maintenance_rate, ending, clock)
        wait = StoreBackoff(store.url, ending, TRIES_OF_COMMANDS)
        self._driver = ThrottledDriver(store, wait, self._throttle, wall)
        self._buffers: BufferFolder | None = None
        self._phase = random.random()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        # Small chunks that the last compaction of a partition had to leave, by partition.
        self._left: dict[str, int] = {}
        self._tried_at: dict[tuple[str, MaintenanceKind], float] = {}
        # The last failure of a partition without a success since, by partition.
        self._troubles: dict[tuple[str, MaintenanceKind], BlockgzError] = {}
        self._whole_at = dict.fromkeys(MaintenanceKind, clock())
        self._failures = dict.fromkeys(MaintenanceKind, 0)
        self._pruned_chunks = 0
        self._merged_chunks = 0

    def start(self) -> None:
        """Maintain until the process is to end."""
        self._thread.start()

    def close(self) -> None:
        """Stop; waits only briefly for the current step."""
        self._ending.set()
        self._thread.join(END_SECONDS)

    def snapshot(self) -> MaintenanceSnapshot:
        """Return the state for metrics; safe to call from any thread."""
        policy, now = self._policy, self._clock()
        ages = {kind: now - at for kind, at in self._whole_at.items()}
        return MaintenanceSnapshot(
            retention_age_seconds=ages[MaintenanceKind.RETENTION] if policy.has_retention else None,
            compaction_age_seconds=ages[MaintenanceKind.COMPACTION] if policy.compacted is not None else None,
            pruned_chunks=self._pruned_chunks,
            merged_chunks=self._merged_chunks,
            moved_bytes=self._throttle.taken,
            retention_failures=self._failures[MaintenanceKind.RETENTION],
            compaction_failures=self._failures[MaintenanceKind.COMPACTION],
            troubles=tuple(f"{where}: {error.reason}" for (where, _), error in self._troubles.copy().items()),
        )

    def _run(self) -> None:
        interval = self._config.maintenance_interval
        try:
            while not self._ending.wait(seconds_to_round(self._wall(), interval, self._phase)):
                self.maintain()
        finally:
            if self._buffers is not None:
                self._buffers.close()

    def maintain(self) -> None:
        """Do one round over the partitions of this process, for each kind of maintenance."""
        works = {MaintenanceKind.RETENTION: self._prune, MaintenanceKind.COMPACTION: self._compact}
        with suppress(ShuttingDown):
            for kind, work in works.items():
                if self._round(kind, work):
                    self._whole_at[kind] = self._clock()

    def _round(self, kind: MaintenanceKind, work: Callable[[PartitionKeys], None]) -> bool:
        """Return whether nothing failed, in this round or before in partitions that it leaves out."""
        tried, until = self._tried_at, self._clock() + self._config.maintenance_interval
        # First those that the last round left out.
        partitions = sorted(self._partitions(), key=lambda keys: (tried.get((str(keys), kind), 0), keys.home))
        names = {str(keys) for keys in partitions}
        self._troubles = {key: error for key, error in self._troubles.items() if key[0] in names}
        is_whole = True
        for keys in partitions:
            self._throttle.check()
            if self._clock() > until:
                break
            tried[str(keys), kind] = self._clock()
            error = _failure(partial(work, keys))
            if error is None:
                self._troubles.pop((str(keys), kind), None)
                continue
            is_whole = False
            self._note(keys, kind, error)
            # Other partitions would meet an error of the store itself as well.
            if what_next(error, Situation.SERVING) is Next.AGAIN:
                break
        return is_whole and all(of is not kind for _, of in self._troubles)

    def _note(self, keys: PartitionKeys, kind: MaintenanceKind, error: BlockgzError) -> None:
        """Count a failure, and log it if this partition did not have it the last time."""
        self._failures[kind] += 1
        known = self._troubles.get((str(keys), kind))
        self._troubles[str(keys), kind] = error
        if known is None or known.what != error.what:
            log.warning(
                LogEvent.NOT_MAINTAINED,
                topic=str(keys.folder),
                partition=keys.partition,
                kind=kind.value,
                cause=error.what,
                why=error.why,
                remedy=error.remedy,
            )

    def _prune(self, keys: PartitionKeys) -> None:
        keeps = self._policy.keeps(keys.folder.topic, self._store.clock)
        rewrite_keys = self._policy.rewrite_keys
        planned = [self._driver.run(prune.plan_partition(keys, keep, rewrite_keys, is_thrifty=True)) for keep in keeps]
        plans = [plan for plan in planned if plan is not None and plan.floor is not None]
        plan = max(plans, key=lambda plan: plan.pruned_before, default=None)
        if plan is None or not is_prune_due(plan):
            return
        if plan.folds_before is not None and not plan.is_silent:
            # The archiver of the partition, most likely this one, is not to be fenced: it folds with its next chunk,
            # also if all chunks so far are of an old backlog.
            self._driver.run(request_fold(keys, plan.folds_before))
            plan = plan.without_tail()
        if plan.floor is None:
            return
        if not _is_committed(keys, "pruned", prune.prune_partition(plan, self._tools(0), rewrite_keys)):
            return
        self._pruned_chunks += plan.num_chunks
        log.info(
            LogEvent.PRUNED,
            topic=str(keys.folder),
            partition=keys.partition,
            pruned_before=plan.pruned_before,
            records=plan.num_records,
            chunks=plan.num_chunks,
            bytes=plan.num_bytes,
        )

    def _compact(self, keys: PartitionKeys) -> None:
        if not self._policy.is_compacted(keys.folder.topic):
            return
        compaction = self._policy.compaction_of(keys.folder.topic)
        small = retired = 0

        def is_due(marker: Marker, references: Sequence[CatalogReference]) -> bool:
            nonlocal small, retired
            small, retired = num_small(references, compaction.limits.small_bytes), len(marker.retired)
            left = min(small, self._left.get(keys.home, 0))
            return is_compaction_due(small, left, self._config.compact_chunks, retired)

        room_bytes = rewrite_bytes(self._config.maintenance_buffer, self._config.maintenance_rate)
        plan = self._driver.run(compact.plan_partition(keys, compaction, room_bytes, is_due))
        if plan is None:
            return
        self._compact_some(plan, small, retired, room_bytes)
        if plan.encrypted:
            raise plan.key_missing()

    def _compact_some(self, plan: PartitionCompaction, small: int, retired: int, room_bytes: int) -> None:
        now = dataclasses.replace(plan, runs=plan.runs[: runs_of_a_round(len(plan.runs), retired)])
        if (not now.runs or self._carried_out(now, room_bytes)) and now == plan and not plan.encrypted:
            self._left[plan.keys.home] = max(0, small - (plan.chunks - plan.chunks_after))

    def _tools(self, room_bytes: int) -> RewriteTools:
        if self._buffers is None:
            self._buffers = BufferFolder(self._config.buffer_dir or default_buffer_root(self._config.archive))
        return RewriteTools(self._driver, ThrottledRanges(self._store, self._throttle), self._buffers, room_bytes)

    def _carried_out(self, plan: PartitionCompaction, room_bytes: int) -> bool:
        """Return whether everything was compacted; raises the failure."""
        ended = compact.compact(plan, self._policy.compaction_of(plan.keys.folder.topic), self._tools(room_bytes))
        done = ended.done
        self._merged_chunks += sum(run.chunks - run.chunks_after for run in done)
        if done:
            log.info(
                LogEvent.COMPACTED,
                topic=str(plan.keys.folder),
                partition=plan.keys.partition,
                chunks=sum(run.chunks for run in done),
                chunks_after=sum(run.chunks_after for run in done),
                bytes=sum(run.moved_bytes for run in done),
            )
        if ended.error is not None:
            raise ended.error
        return _is_committed(plan.keys, "compacted", ended.outcome)


def _failure(work: Callable[[], None]) -> BlockgzError | None:
    """Do the work and return its error, of any kind: archiving continues. Raises ShuttingDown."""
    try:
        work()
    except ShuttingDown:
        raise
    except BlockgzError as error:
        return error
    except Exception as error:
        return BlockgzError("maintenance failed in an unforeseen way", why=repr(error), remedy="report this as a bug")
    return None


def _is_committed(keys: PartitionKeys, what: str, outcome: RewriteOutcome) -> bool:
    """Return False if another maintainer runs, or was faster; raises RewriteRefused if the marker is full."""
    if outcome is RewriteOutcome.FULL:
        raise not_done(str(keys), what, outcome)
    return outcome is RewriteOutcome.COMMITTED
