"""Keeps tables of consumer groups in a thread of its own, and never in the way of archiving."""

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from archiver.commit.claim_list import wall_ms
from archiver.groups.tables import GroupTables
from archiver.logs import LogEvent, log
from blockgz_runtime.errors import AccessDenied, BrokerUnreachable
from blockgz_runtime.kafka.cluster_groups import Asked, GroupAnswer
from index_format.errors import BlockgzError

ROUND_SECONDS = 60.0
"""So long a round asks groups at the least before it leaves the rest to the next one."""
ONCE_SECONDS = 75.0
LOOK_SECONDS = 0.05
LEFT_OUT = "blockgz-"
"""What the ids of our own groups begin with: of archives and of replays."""


class Cluster(Protocol):
    """What is asked of the cluster; see ClusterGroups."""

    def ids(self) -> list[str]: ...

    def positions(self, group_ids: list[str], topics: Mapping[str, int], seconds: float) -> Asked: ...


@dataclass(frozen=True)
class KeepingContext:
    """What a keeper works with."""

    cluster: Cluster
    tables: GroupTables
    own_group: str
    is_selected: Callable[[str], bool]
    """Whether a group is kept."""
    topics: Callable[[], Collection[str]]
    """Those whose tables are this process's to keep: it owns their first partition."""
    partitions: Callable[[], Mapping[str, int]]
    """The cluster's topics, with their numbers of partitions."""
    interval_seconds: float


class GroupKeeper:
    """Asks and stores, round by round. Failures are logged once, counted, and left to the next round."""

    def __init__(
        self,
        context: KeepingContext,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self._context = context
        self._clock = clock
        self._wall_ms = wall_ms
        self._answers: dict[str, GroupAnswer] = {}
        self._is_failing = False
        self._kept_at = clock()
        self._ending = threading.Event()
        # Not at the points of the grid, where a moment more or less would make it another slot.
        self._phase = random.uniform(0.25, 0.75)
        self.stored = 0
        """Tables that were stored so far."""
        self.failures = 0
        """Rounds that failed, or of which a part failed, so far."""

    @property
    def age_seconds(self) -> float:
        """Time since the tables were up to date, or since the start."""
        return self._clock() - self._kept_at

    def start(self) -> None:
        """Keep tables until `close`."""
        threading.Thread(target=self._run, name="groups", daemon=True).start()

    def keep_once(self, is_ending: Callable[[], bool]) -> None:
        """Keep a table of each topic as of now; returns early where `is_ending`, and late where nobody answers."""
        round_ = threading.Thread(target=self.keep, name="groups", daemon=True)
        round_.start()
        deadline = self._clock() + ONCE_SECONDS
        while round_.is_alive() and not is_ending() and self._clock() < deadline:
            round_.join(LOOK_SECONDS)
        self.close()

    def close(self) -> None:
        """Keep no more. A round under way is not waited for."""
        self._ending.set()

    def keep(self) -> None:
        """One round: ask for all groups, then store what is due."""
        topics = sorted(self._context.topics())
        if not topics:
            self._kept_at = self._clock()
            return
        try:
            failed = self._keep(topics)
        except BlockgzError as error:
            failed = error
        except Exception as error:  # whatever it is, archiving goes on
            failed = BrokerUnreachable("the consumer groups cannot be kept", why=repr(error))
        if self._ending.is_set():
            return
        if failed is None:
            self._kept_at = self._clock()
        else:
            self.failures += 1
            if not self._is_failing:
                log.warning(LogEvent.GROUPS_UNKNOWN, cause=failed.what, why=failed.why)
        self._is_failing = failed is not None

    def _keep(self, topics: list[str]) -> BlockgzError | None:
        """Gives the first failure of those that leave the rest of the round as it is."""
        known = self._context.partitions()
        counts = {topic: known[topic] for topic in topics if topic in known}
        wanted = sorted(filter(self._is_kept, self._context.cluster.ids()), key=self._asked_at)
        seconds = max(ROUND_SECONDS, self._context.interval_seconds)
        asked = self._context.cluster.positions(wanted, counts, seconds)
        # A group that gives no answer now stands where it stood; one that may not be asked is left out.
        earlier = {each: self._answers[each] for each in wanted if each in self._answers}
        hidden = {each for each, error in asked.failures.items() if isinstance(error, AccessDenied)}
        self._answers = {each: answer for each, answer in (earlier | asked.answers).items() if each not in hidden}
        failed = next(iter(asked.failures.values()), None)
        if failed is None and len(asked.answers) < len(wanted):
            failed = BrokerUnreachable(
                f"{len(wanted) - len(asked.answers)} consumer groups were not asked in time",
                why=f"a round takes {seconds:.0f} s at most",
                remedy="raise --groups-interval, or choose fewer groups by --groups",
            )
        asked_at = self._wall_ms()
        for topic in counts:
            if self._ending.is_set():
                break
            try:
                self.stored += self._context.tables.keep(topic, self._answers, asked_at)
            except BlockgzError as error:
                failed = failed or error
        return failed

    def _asked_at(self, group_id: str) -> int:
        """Who waited longest is asked first."""
        answer = self._answers.get(group_id)
        return answer.asked_at if answer is not None else 0

    def _is_kept(self, group_id: str) -> bool:
        is_ours = group_id == self._context.own_group or group_id.startswith(LEFT_OUT)
        return not is_ours and self._context.is_selected(group_id)

    def _run(self) -> None:
        interval = self._context.interval_seconds
        while not self._ending.wait(seconds_to_round(self._wall_ms() / 1000, interval, self._phase)):
            self.keep()


def seconds_to_round(now: float, interval: float, phase: float) -> float:
    """Time until the next round, which is at that part of each interval of the grid; more than none."""
    return interval - (now - phase * interval) % interval
