"""The topics of a campaign: what they are, what is done to them, and the truth about it for the checker."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec, TopicPartition
from kafka.errors import KafkaError

from system_test.faults.servers import VerifiableProducer, archived_topic_id
from system_test.faults.watcher import parse_home
from system_test.support.consumer_groups import commit
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import alter_topic, create_topic, delete_records, delete_topic, watermarks
from system_test.support.waiting import wait_until

T = TypeVar("T")

PATTERN = "faults-*"
PLAIN, TRANSACTIONAL, COMPACTED = "faults-plain", "faults-transactional", "faults-compacted"
CREATED_AGAIN, TRUNCATED = "faults-created-again", "faults-truncated"
PARTITIONS = {PLAIN: 4, TRANSACTIONAL: 3, COMPACTED: 2, CREATED_AGAIN: 2, TRUNCATED: 1}
MOST_PARTITIONS = 12
KEYS = {COMPACTED: 120}
GROUPS = frozenset(f"reader-{number}" for number in range(12))
"""Groups with a position in the transactional topic that nobody deletes."""
_COMPACT = {
    "cleanup.policy": "compact",
    "segment.ms": "3000",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}
# By size, not by age: a record from a clock that is ahead keeps its segment from growing old.
_RETENTION = {"segment.ms": "200", "retention.bytes": "1"}
_NO_RETENTION = {"segment.ms": "604800000", "retention.bytes": "-1"}
_PATIENCE_SECONDS = 90.0
_SEGMENTS_SECONDS = 0.05
"""Between two looks; the broker's retention does something once a second at most."""


@dataclass
class Incarnation:
    """One life of a topic."""

    topic_id: str
    partitions: int
    compacted: bool
    deleted: bool = False
    truncations: list[tuple[int, int]] = field(default_factory=list)
    """Partition and low watermark of every truncation that was asked for, and of all that retention may have made."""


class Topics:
    """Creates, grows, truncates and deletes topics; methods that change one belong to one thread."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._bootstrap = broker.bootstrap
        self._producers: dict[str, VerifiableProducer] = {}
        self.truth: dict[str, list[Incarnation]] = {}

    def create_all(self, plain: VerifiableProducer, transactional: VerifiableProducer) -> None:
        """Create every topic and have it produced to."""
        for topic in PARTITIONS:
            self._producers[topic] = transactional if topic == TRANSACTIONAL else plain
            self._create(topic)
        for group in GROUPS:
            commit(self._bootstrap, group, TRANSACTIONAL, {0: 0})

    def recreate(self, topic: str, seconds: float) -> None:
        """Delete the topic and create it again `seconds` later."""
        self._producers[topic].pause(topic)
        self.truth[topic][-1].deleted = True
        _patiently(lambda: self._delete(topic))
        time.sleep(seconds)
        self._create(topic)

    def grow(self, topic: str) -> None:
        now = self.truth[topic][-1]
        if now.partitions >= MOST_PARTITIONS:
            return
        _patiently(lambda: self._grow(topic, now.partitions + 1))
        now.partitions += 1
        self._produce(topic)

    def truncate(self, topic: str, dice: float) -> None:
        """Raise a partition's low watermark to its end, or near it."""
        now = self.truth[topic][-1]
        partition = int(dice * now.partitions)
        low, high = _patiently(lambda: watermarks(self._bootstrap, topic, partition))
        before = max(low, high - int(dice * 1000) % 20)
        now.truncations.append((partition, before))
        _patiently(lambda: delete_records(self._bootstrap, topic, before, partition))

    def expire(self, topic: str, dice: float) -> None:
        """Let retention delete segments of the topic until a partition's low watermark has risen."""
        now = self.truth[topic][-1]
        partition = int(dice * now.partitions)
        low, _ = _patiently(lambda: watermarks(self._bootstrap, topic, partition))
        with self._noting_segments(topic, now):
            _patiently(lambda: alter_topic(self._bootstrap, topic, _RETENTION))
            wait_until(
                lambda: min(self._broker.segment_starts(topic, partition), default=low) > low,
                _PATIENCE_SECONDS,
                f"retention to delete something of {topic}:{partition}",
            )
            _patiently(lambda: alter_topic(self._bootstrap, topic, _NO_RETENTION))

    @contextmanager
    def _noting_segments(self, topic: str, life: Incarnation) -> Iterator[None]:
        """While retention works, every segment's start may become the low watermark."""
        done = threading.Event()

        def note() -> None:
            while True:
                last = done.wait(_SEGMENTS_SECONDS)
                for partition in range(life.partitions):
                    found = {(partition, start) for start in self._broker.segment_starts(topic, partition)}
                    life.truncations += sorted(found - set(life.truncations))
                if last:
                    return

        with ThreadPoolExecutor(1, thread_name_prefix="segments") as noting:
            noted = noting.submit(note)
            try:
                yield
            finally:
                done.set()
                noted.result()

    def compacted_unread(self, archived: Callable[[int], int]) -> bool:
        """Whether the log cleaner went over records that are not archived yet, given how far a partition is."""
        return any(
            self._broker.cleaned_to(COMPACTED, partition) > archived(partition)
            for partition in range(self.truth[COMPACTED][-1].partitions)
        )

    def is_gone(self, home: str, offset: int) -> bool:
        """Whether the record there may be in no log any longer, by the partition's folder in the archive."""
        topic, incarnation, partition = parse_home(home)
        life = self.truth[topic][incarnation - 1]
        return life.deleted or any(number == partition and low > offset for number, low in list(life.truncations))

    def ends(self) -> dict[tuple[str, int], int]:
        """The last stable offset of every partition."""
        return _patiently(self._ends)

    def group_positions(self, group: str) -> dict[tuple[str, int], int]:
        with KafkaAdminClient(bootstrap_servers=self._bootstrap, bootstrap_timeout_ms=1000) as admin:
            offsets: dict[Any, Any] = admin.list_group_offsets(group)[group]
        return {(where.topic, where.partition): entry.offset for where, entry in offsets.items()}

    def as_truth(self) -> dict[str, Any]:
        return {topic: [vars(incarnation) for incarnation in lives] for topic, lives in self.truth.items()}

    def _create(self, topic: str) -> None:
        config = _COMPACT if topic == COMPACTED else {}
        _patiently(lambda: create_topic(self._bootstrap, topic, PARTITIONS[topic], config))
        topic_id = archived_topic_id(_patiently(lambda: self._described(topic)["topic_id"]))
        life = Incarnation(topic_id, PARTITIONS[topic], topic == COMPACTED)
        self.truth.setdefault(topic, []).append(life)
        self._produce(topic)

    def _produce(self, topic: str) -> None:
        now = self.truth[topic][-1]
        producer = self._producers[topic]
        producer.open(topic, now.topic_id, now.partitions, KEYS.get(topic, 0))

    def _described(self, topic: str) -> dict[str, Any]:
        with KafkaAdminClient(bootstrap_servers=self._bootstrap) as admin:
            (described,) = admin.describe_topics([topic])
        found: dict[str, Any] = described
        return found

    def _delete(self, topic: str) -> None:
        with KafkaAdminClient(bootstrap_servers=self._bootstrap) as admin:
            if topic in admin.list_topics():
                delete_topic(self._bootstrap, topic)

    def _grow(self, topic: str, partitions: int) -> None:
        if len(self._described(topic)["partitions"]) < partitions:
            with KafkaAdminClient(bootstrap_servers=self._bootstrap) as admin:
                admin.create_partitions({topic: partitions})

    def _ends(self) -> dict[tuple[str, int], int]:
        wanted = {
            TopicPartition(topic, partition): OffsetSpec.LATEST
            for topic, lives in self.truth.items()
            for partition in range(lives[-1].partitions)
        }
        with KafkaAdminClient(bootstrap_servers=self._bootstrap) as admin:
            found = admin.list_partition_offsets(wanted, isolation_level=IsolationLevel.READ_COMMITTED)
        return {(where.topic, where.partition): entry.offset for where, entry in found.items()}


def _patiently(ask: Callable[[], T]) -> T:
    """Ask until the broker answers; what it answers after a long while is raised."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except (KafkaError, OSError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
