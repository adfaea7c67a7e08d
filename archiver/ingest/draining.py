"""`--once`: every partition of the topics, or a worker's share, up to where its log ends now. No group is asked."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from archiver.config.model import RunConfig
from archiver.errors import MemberRefused
from archiver.ingest.kafka_cluster import KafkaCluster
from archiver.ingest.kafka_settings import consumer_settings
from archiver.ingest.kafka_source import SINGLE_READS, KafkaLog, Partition
from archiver.ingest.ownership import Ownership


@dataclass(frozen=True)
class DrainShare:
    """Which partitions are one worker's where several drain the topics together."""

    number: int
    workers: int

    def holds(self, partition: Partition) -> bool:
        """Whether it is this worker's; of a topic's partitions each worker has as many, give or take one."""
        topic, number = partition
        return (zlib.crc32(topic.encode()) + number) % self.workers == self.number


WHOLE = DrainShare(0, 1)


class Drain:
    """A share of work that is all there is; over once every partition came to its end."""

    def __init__(
        self,
        config: RunConfig,
        cluster: KafkaCluster,
        log: KafkaLog,
        ownership: Ownership,
        topics: Sequence[str],
        share: DrainShare,
        rest: Callable[[], None],
    ) -> None:
        """`log` tells the ends; `rest` waits for a moment."""
        self._config = config
        self._cluster = cluster
        self._log = log
        self._ownership = ownership
        self._topics = topics
        self._share = share
        self._rest = rest
        self.joined = False
        """Whether the partitions were listed."""

    @property
    def is_over(self) -> bool:
        """Whether every partition is drained or stopped."""
        return self._ownership.is_over

    def start(self) -> None:
        """Start to take every partition over, up to its end now."""
        uncommitted = KafkaLog(
            consumer_settings(self._config, queue_bytes=0) | SINGLE_READS | {"isolation.level": "read_uncommitted"}
        )
        known = self._cluster.topics()
        for topic in self._topics:
            for number in range(known[topic]):
                partition = (topic, number)
                if not self._share.holds(partition):
                    continue
                end, high = self._log.bounds(partition).high, uncommitted.bounds(partition).high
                self._ownership.acquire(partition, end, high)
        uncommitted.close()
        self.joined = True

    def tick(self, now: float) -> None:
        """Nothing changes with time."""

    def refused(self, refusal: MemberRefused) -> None:
        """Not by a group: whatever it is, another try would meet it again."""
        raise refusal

    def give_up(self, partitions: Sequence[Partition]) -> None:
        """Flush and commit partitions that leave, within the grace time."""
        self._ownership.give_up(partitions, self._config.grace, self._rest)
