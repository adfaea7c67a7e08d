"""Applies a policy to the partitions of this process, in a thread of its own, and never in the way of archiving."""

import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from archiver.errors import Next, Situation, what_next
from archiver.groups import seconds_to_round
from archiver.ingest.buffer import BufferFolder
from archiver.logs import LogEvent, log
from archiver.maintain.compact.planning import PartitionPlan, key_missing, partition_plan
from archiver.maintain.compact.running import Compacted, Room, carry_out
from archiver.maintain.policy.deciding import (
    MaintenancePolicy,
    is_compaction_due,
    is_prune_due,
    num_small,
    rewrite_bytes,
    runs_of_a_round,
)
from archiver.maintain.rewrite import planning as pruning
from archiver.maintain.rewrite.intent import Outcome, not_done
from archiver.maintain.rewrite.pruning import prune
from archiver.maintain.throttle import Throttle, ThrottledDriver, ThrottledRanges
from archiver.monitor.snapshot import MaintenanceKind, MaintenanceSnapshot
from blockgz.errors import ShuttingDown
from blockgz.store.retry import TRIES_OF_COMMANDS, StoreBackoff
from blockgz.store.writer import ToolStore
from index_format.chunk_index import DEFAULT_MAX_BLOCK_BYTES
from index_format.errors import BlockgzError
from index_format.keys import PartitionKeys
from index_format.marker import CatalogReference, Marker

END_SECONDS = 1.0
"""So long `close` waits for the step under way: what is stored after it is garbage."""


@dataclass(frozen=True)
class MaintenanceContext:
    """What a maintainer works with."""

    store: ToolStore
    policy: MaintenancePolicy
    partitions: Callable[[], Collection[PartitionKeys]]
    """Those that this process archives now."""
    new_buffers: Callable[[], BufferFolder]
    ending: threading.Event
    """Set once the process is to end."""
    interval_seconds: float
    bytes_per_second: int
    buffer_bytes: int


class Maintainer:
    """Prunes and compacts, one partition after another, round by round. Failures are left to the next round."""

    def __init__(
        self,
        context: MaintenanceContext,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._context = context
        self._clock = clock
        self._wall = wall
        self._throttle = Throttle(context.bytes_per_second, context.ending, clock)
        wait = StoreBackoff(context.store.url, context.ending, TRIES_OF_COMMANDS)
        self._driver = ThrottledDriver(context.store, wait, self._throttle, wall)
        self._buffers: BufferFolder | None = None
        self._phase = random.random()
        self._thread = threading.Thread(target=self._run, name="maintenance", daemon=True)
        self._left: dict[str, int] = {}
        """By partition, the small chunks that its last compaction had to leave."""
        self._tried_at: dict[tuple[str, MaintenanceKind], float] = {}
        self._troubles: dict[tuple[str, MaintenanceKind], BlockgzError] = {}
        """By partition, what failed last and did not succeed since."""
        self._whole_at = dict.fromkeys(MaintenanceKind, clock())
        self._failures = dict.fromkeys(MaintenanceKind, 0)
        self._pruned_chunks = 0
        self._merged_chunks = 0

    def start(self) -> None:
        """Maintain until the process is to end."""
        self._thread.start()

    def close(self) -> None:
        """Maintain no more. A step under way is waited for only briefly."""
        self._context.ending.set()
        self._thread.join(END_SECONDS)

    def snapshot(self) -> MaintenanceSnapshot:
        """What there is to tell. Safe to call from any thread."""
        policy, now = self._context.policy, self._clock()
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
        context = self._context
        try:
            while not context.ending.wait(seconds_to_round(self._wall(), context.interval_seconds, self._phase)):
                self.maintain()
        finally:
            if self._buffers is not None:
                self._buffers.close()

    def maintain(self) -> None:
        """One round over the partitions of this process, each kind for itself."""
        works = {MaintenanceKind.RETENTION: self._prune, MaintenanceKind.COMPACTION: self._compact}
        with suppress(ShuttingDown):
            for kind, work in works.items():
                if self._round(kind, work):
                    self._whole_at[kind] = self._clock()

    def _round(self, kind: MaintenanceKind, work: Callable[[PartitionKeys], None]) -> bool:
        """Whether nothing failed, now or before in partitions that are left out now.

        What the store itself refuses now is not tried on one partition after another. A round begins nothing once an
        interval is over. It begins with those that the last one left out.
        """
        tried, until = self._tried_at, self._clock() + self._context.interval_seconds
        partitions = sorted(self._context.partitions(), key=lambda keys: (tried.get((_name(keys), kind), 0), keys.home))
        names = {_name(keys) for keys in partitions}
        self._troubles = {key: error for key, error in self._troubles.items() if key[0] in names}
        is_whole = True
        for keys in partitions:
            self._throttle.check()
            if self._clock() > until:
                break
            tried[_name(keys), kind] = self._clock()
            error = _failure(partial(work, keys))
            if error is None:
                self._troubles.pop((_name(keys), kind), None)
                continue
            is_whole = False
            self._note(keys, kind, error)
            if what_next(error, Situation.SERVING) is Next.AGAIN:
                break
        return is_whole and all(of is not kind for _, of in self._troubles)

    def _note(self, keys: PartitionKeys, kind: MaintenanceKind, error: BlockgzError) -> None:
        """Count a failure; log one that this partition did not have the last time."""
        self._failures[kind] += 1
        known = self._troubles.get((_name(keys), kind))
        self._troubles[_name(keys), kind] = error
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
        keeps = self._context.policy.keeps(keys.folder.topic, self._context.store.clock)
        plans = [self._driver.run(pruning.partition_plan(keys, keep)) for keep in keeps]
        plan = max(filter(None, plans), key=lambda plan: plan.going.pruned_before, default=None)
        if plan is None or not is_prune_due(plan):
            return
        going = plan.going
        if not _is_committed(keys, "pruned", self._driver.run(prune(keys, going.pruned_before))):
            return
        self._pruned_chunks += going.num_chunks
        log.info(
            LogEvent.PRUNED,
            topic=str(keys.folder),
            partition=keys.partition,
            pruned_before=going.pruned_before,
            records=going.num_records,
            chunks=going.num_chunks,
            bytes=going.num_bytes,
        )

    def _compact(self, keys: PartitionKeys) -> None:
        context, policy = self._context, self._context.policy
        if not policy.is_compacted(keys.folder.topic):
            return
        small = retired = 0

        def is_due(marker: Marker, references: Sequence[CatalogReference]) -> bool:
            nonlocal small, retired
            small, retired = num_small(references, policy.compaction.limits.small_bytes), len(marker.retired)
            left = min(small, self._left.get(keys.home, 0))
            return is_compaction_due(small, left, policy.compact_chunks, retired)

        room_bytes = rewrite_bytes(context.buffer_bytes, context.bytes_per_second)
        plan = self._driver.run(partition_plan(keys, policy.compaction, room_bytes, is_due))
        if plan is None:
            return
        self._compact_some(plan, small, retired, room_bytes)
        if plan.encrypted:
            raise key_missing(plan)

    def _compact_some(self, plan: PartitionPlan, small: int, retired: int, room_bytes: int) -> None:
        now = plan._replace(runs=plan.runs[: runs_of_a_round(len(plan.runs), retired)])
        if (not now.runs or self._carried_out(now, room_bytes)) and now == plan and not plan.encrypted:
            self._left[plan.keys.home] = max(0, small - (plan.chunks - plan.chunks_after))

    def _carried_out(self, plan: PartitionPlan, room_bytes: int) -> bool:
        """Whether all was compacted; raises what failed."""
        if self._buffers is None:
            self._buffers = self._context.new_buffers()
        ranges = ThrottledRanges(self._context.store, self._throttle)
        room = Room(self._buffers, room_bytes, DEFAULT_MAX_BLOCK_BYTES)
        ended: list[Compacted] = []
        carry_out(ranges, [plan], self._context.policy.compaction, self._driver, room, ended.append)
        ((_, done, outcome, error),) = ended
        fewer = sum(run.chunks - run.chunks_after for run in done)
        self._merged_chunks += fewer
        if done:
            log.info(
                LogEvent.COMPACTED,
                topic=str(plan.keys.folder),
                partition=plan.keys.partition,
                chunks=sum(run.chunks for run in done),
                chunks_after=sum(run.chunks_after for run in done),
                bytes=sum(run.moved_bytes for run in done),
            )
        if error is not None:
            raise error
        return _is_committed(plan.keys, "compacted", outcome)


def _name(keys: PartitionKeys) -> str:
    return f"{keys.folder}:{keys.partition}"


def _failure(work: Callable[[], None]) -> BlockgzError | None:
    """What failed; whatever it is, archiving goes on. Raises ShuttingDown."""
    try:
        work()
    except ShuttingDown:
        raise
    except BlockgzError as error:
        return error
    except Exception as error:
        return BlockgzError("maintenance failed in an unforeseen way", why=repr(error), remedy="report this as a bug")
    return None


def _is_committed(keys: PartitionKeys, what: str, outcome: Outcome) -> bool:
    """False where another maintainer is at work, or was quicker; raises RewriteRefused where the marker is full."""
    if outcome is Outcome.FULL:
        raise not_done(_name(keys), what, outcome)
    return outcome is Outcome.COMMITTED
