"""A cluster whose logs move: appended to, eaten by retention, truncated, deleted, created again, without a leader."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.support.service_simulation.virtual_time import Hub, Task

Partition = tuple[str, int]


class Entry(NamedTuple):
    """A readable record. `version` counts the truncations of its log before it was written."""

    offset: int
    value: bytes
    epoch: int
    version: int
    appended_at: float


class Origin(NamedTuple):
    """What a record's value says of where it was written."""

    topic_id: str
    partition: int
    offset: int
    version: int

    @classmethod
    def of(cls, value: bytes) -> "Origin":
        topic_id, partition, offset, version, _ = value.decode().split("/", 4)
        return cls(topic_id, int(partition), int(offset), int(version))


@dataclass
class Log:
    topic_id: str
    partition: int
    epoch: int
    entries: list[Entry] = field(default_factory=list)
    """All that the log ever held and no truncation took, those below `low` too."""
    low: int = 0
    high: int = 0
    held_back: int | None = None
    """Where an open transaction begins."""
    has_leader: bool = True
    first_epoch: int = field(init=False)
    version: int = 0
    truncations: list[int] = field(default_factory=list)
    """Where the log ended after each."""
    truncated: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.first_epoch = self.epoch

    @property
    def stable_end(self) -> int:
        return self.high if self.held_back is None else max(self.low, min(self.high, self.held_back))

    def append(self, now: float, size: int, hole: int = 0) -> None:
        """One record behind `hole` offsets without one, as control records and aborted transactions are.

        A truncated log gets no holes: one where the last archived record stood looks like compaction, so that nobody
        could tell.
        """
        offset = self.high + (0 if self.version else hole)
        value = f"{self.topic_id}/{self.partition}/{offset}/{self.version}/".encode().ljust(size, b".")
        self.entries.append(Entry(offset, value, self.epoch, self.version, now))
        self.high = offset + 1

    def retain_from(self, low: int) -> None:
        self.low = max(self.low, min(low, self.high))

    def truncate(self, end: int) -> None:
        """An unclean election: a leader that does not have the newest records."""
        self.epoch += 1
        end = max(end, self.low)
        if end < self.high:
            row = bisect_left(self.entries, end, key=lambda entry: entry.offset)
            self.truncated += self.entries[row:]
            del self.entries[row:]
            self.version += 1
            self.truncations.append(end)
            self.high = end
            if self.held_back is not None:
                self.held_back = min(self.held_back, end)

    def from_offset(self, offset: int, most: int) -> list[Entry]:
        row = bisect_left(self.entries, max(offset, self.low), key=lambda entry: entry.offset)
        end = self.stable_end
        return [entry for entry in self.entries[row : row + most] if entry.offset < end]


@dataclass
class Topic:
    name: str
    topic_id: str
    logs: list[Log]
    created_at: float
    deleted_at: float | None = None


class Cluster:
    """The truth; clients see it through requests that take time and fail."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.topics: dict[str, Topic] = {}
        self.lives: list[Topic] = []
        """Every topic that there ever was, in the order of creation."""
        self.tells_ids = True
        self.unreachable: dict[str | None, float] = {}
        """Until when the cluster answers nobody (None), or not this host."""
        self.id_hiccups: dict[str | None, float] = {}
        """Until when nobody is told ids."""
        self.has_started = False
        """Whether a broker has just started: the next one who asks for topics is not told of all."""
        self.waiting: list[Task] = []
        """Consumers that wait for something to happen."""
        self.last_epoch_of_new_topics = 0

    def create(self, name: str, partitions: int, epoch: int) -> Topic:
        topic_id = f"id{len(self.lives)}"
        logs = [Log(topic_id, number, epoch) for number in range(partitions)]
        topic = self.topics[name] = Topic(name, topic_id, logs, self.hub.now)
        self.lives.append(topic)
        self.changed()
        return topic

    def delete(self, name: str) -> None:
        topic = self.topics.pop(name, None)
        if topic is not None:
            topic.deleted_at = self.hub.now
            self.changed()

    def log(self, partition: Partition) -> Log | None:
        topic = self.topics.get(partition[0])
        return topic.logs[partition[1]] if topic and partition[1] < len(topic.logs) else None

    def partitions(self) -> Iterator[tuple[Partition, Log]]:
        for name, topic in self.topics.items():
            for number, log in enumerate(topic.logs):
                yield (name, number), log

    def answers(self, host: str) -> bool:
        return all(self.unreachable.get(scope, -1.0) <= self.hub.now for scope in (None, host))

    def answers_at(self, host: str) -> float:
        return max(self.unreachable.get(scope, 0.0) for scope in (None, host))

    def life(self, topic_id: str) -> Topic:
        return next(topic for topic in self.lives if topic.topic_id == topic_id)

    def successor(self, topic: Topic) -> Topic | None:
        """The next topic of that name."""
        later = self.lives[self.lives.index(topic) + 1 :]
        return next((each for each in later if each.name == topic.name), None)

    def changed(self) -> None:
        waiting, self.waiting = self.waiting, []
        for task in waiting:
            if not task.host.is_dead:
                self.hub.wake(task)
