"""Membership in a consumer group, which says what partitions are this process's."""

import math
from collections.abc import Callable, Mapping, Sequence

from archiver.config.model import RunConfig
from archiver.errors import MemberRefused
from archiver.ingest.backpressure import Fetching
from archiver.ingest.kafka_source import Partition
from archiver.ingest.ownership import Ownership
from archiver.ingest.topic_watch import TopicWatch
from archiver.logs import LogEvent, log

GROUP_COMMIT_SECONDS = 5.0
REJOIN_SECONDS = 1.0


class GroupMember:
    """A share of work that the group deals out, for as long as the process runs. Its GroupListener as well."""

    def __init__(
        self,
        config: RunConfig,
        ownership: Ownership,
        fetching: Fetching,
        topics: Sequence[str],
        watch: TopicWatch,
        *,
        rest: Callable[[], None],
        wait: Callable[[float], object],
    ) -> None:
        """`rest` waits for a moment, `wait` for so many seconds or until the process is told to stop."""
        self._config = config
        self._ownership = ownership
        self._fetching = fetching
        self._topics = topics
        self._watch = watch
        self._rest = rest
        self._wait = wait
        self._informed_at = -math.inf
        self._told: dict[Partition, int] = {}
        self.joined = False
        """Whether the group told this process its partitions, be they none."""

    @property
    def is_over(self) -> bool:
        """Never by itself."""
        return False

    def start(self) -> None:
        """Join the group."""
        self._fetching.subscribe(self._topics, self)

    def tick(self, now: float) -> None:
        """Tell the group how far its partitions are; subscribe to topics that came or went."""
        if now - self._informed_at >= GROUP_COMMIT_SECONDS:
            self._informed_at = now
            self._inform({partition: archiver.committed for partition, archiver in self._ownership.active.items()})
        topics = self._watch.topics(now)
        if topics and topics != self._topics:
            log.info(LogEvent.SUBSCRIBED, topics=",".join(topics))
            self._topics = topics
            self._fetching.subscribe(topics, self)

    def refused(self, refusal: MemberRefused) -> None:
        """Join again: in the KIP-848 protocol a static id is free once the session of its last owner has ended.

        In the classic one its newest owner is right, so that the refusal is raised: this process is a zombie.
        """
        if self._config.group_protocol == "classic":
            raise refusal
        log.warning(LogEvent.LOST, partitions=len(self._ownership.assigned), cause=refusal.why)
        self.joined = False
        self._ownership.lose(list(self._ownership.assigned))
        self._fetching.close()
        self._wait(REJOIN_SECONDS)
        self._fetching.connect_anew()
        self.start()

    def give_up(self, partitions: Sequence[Partition]) -> None:
        """Flush and commit partitions that leave, within the grace time, and tell the group how far they came."""
        active = self._ownership.active
        leaving = {partition: active[partition] for partition in partitions if partition in active}
        self._ownership.give_up(partitions, self._config.grace, self._rest)
        self._inform({partition: archiver.committed for partition, archiver in leaving.items()})

    def assigned(self, partitions: Sequence[Partition]) -> None:
        """See GroupListener."""
        log.info(LogEvent.ASSIGNED, partitions=len(partitions))
        self.joined = True
        for partition in partitions:
            self._ownership.acquire(partition)

    def revoked(self, partitions: Sequence[Partition]) -> None:
        """See GroupListener."""
        log.info(LogEvent.REVOKED, partitions=len(partitions))
        self.give_up(partitions)

    def lost(self, partitions: Sequence[Partition]) -> None:
        """See GroupListener."""
        log.warning(LogEvent.LOST, partitions=len(partitions), cause="the group went on without this process")
        self.joined = False
        self._ownership.lose(partitions)

    def _inform(self, positions: Mapping[Partition, int | None]) -> None:
        """Advisory, for lag tools: the archive's markers alone say what is archived."""
        news = {
            partition: position
            for partition, position in positions.items()
            if position is not None and self._told.get(partition) != position
        }
        if news:
            self._told |= news
            self._fetching.commit(news)
