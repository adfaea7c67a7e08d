"""A simulated archive: its store, its network, its clock, and who works on it, one request at a time."""

import random
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from archiver.commit import operations as op
from archiver.commit.commit import PartitionIdentity
from archiver.maintain.garbage import SHORTEST_GRACE_SECONDS
from blockgz.errors import AccessDenied
from blockgz.kafka import LogBounds
from index_format import objects
from index_format.keys import TOPIC_OBJECT, archive_key, topic_home
from index_format.objects import ArchiveInfo, TopicInfo
from index_format.records import Record
from tests.support.archives import CREATE_TIME
from tests.support.chunks import identity_of
from tests.support.lifecycle.blocking import ListPage
from tests.support.lifecycle.coroutines import GetRange
from tests.support.lifecycle.monitor import Monitor, Truth
from tests.support.memory_store import Kept, MemoryLog, MemoryStore
from tests.support.simulator import Actor, Fate, Run, Step

STEP = 60.0
"""Seconds that one step takes."""
GRACE = SHORTEST_GRACE_SECONDS
SKEW = 2 * STEP
"""By so much a clock may be wrong."""
PROMISE = GRACE - 2 * SKEW
"""For so long a marker that was read is good: two clocks take part in a grace."""
SECRET = b"secret"
"""The key of the records that an erasure is about."""
PATIENCE = 150 * STEP
"""For so long a maintainer that is patient leaves the intent of another one alone."""
CLUSTER = "cluster-1"
FAR = 40
"""No log ends above."""


def value_of(offset: int) -> bytes:
    return b"v%d" % offset


def is_hole(offset: int) -> bool:
    """Kafka itself has no record there."""
    return offset % 7 == 5


def is_secret(offset: int) -> bool:
    return offset % 3 == 1


def log_of(end: int) -> list[Record]:
    """The records of a partition."""
    return [
        Record(offset, 1_000_000 + offset, CREATE_TIME, SECRET if is_secret(offset) else b"k", value_of(offset), ())
        for offset in range(end)
        if not is_hole(offset)
    ]


_RECORDS = log_of(1_000)


class Log(MemoryLog):
    """A partition's log, whose beginning retention moves."""

    def __init__(self, high: int) -> None:
        super().__init__([record for record in _RECORDS if record.offset < high], high=high)

    def bounds(self, at_least: int = 0) -> LogBounds:
        return LogBounds(self.low, self.high)


@dataclass(eq=False)
class Partition:
    """One partition of the archive, its log, and who watches it."""

    identity: PartitionIdentity
    log: Log
    monitor: Monitor

    @property
    def home(self) -> str:
        return self.identity.keys.home

    def copy(self) -> "Partition":
        log = Log(self.log.high)
        log.low = self.log.low
        return Partition(self.identity, log, self.monitor.copy())


class WatchedStore(MemoryStore):
    """Tells the partitions' monitors of every change, before anybody else learns of it."""

    def __init__(self, world: "World") -> None:
        super().__init__()
        self._world = world

    def _keep(self, key: str, kept: Kept) -> None:
        self.objects[key] = kept
        partition = self._world.partition_of(key)
        if partition is None:
            return
        if key == partition.identity.keys.marker:
            partition.monitor.swapped(kept.body, self._world.acting, self.now)
        else:
            partition.monitor.stored(key, kept.body)

    def delete(self, key: str) -> None:
        partition = self._world.partition_of(key)
        if partition is not None and key in self.objects:
            partition.monitor.deleted(key, self.now)
        self.objects.pop(key, None)


class World:
    """Everything that a schedule is about."""

    def __init__(self, rng: random.Random, *, fan_out: int, partitions: int = 1, log_end: int = 14) -> None:
        self.rng = rng
        self.store = WatchedStore(self)
        self.acting = "writer"
        """The role of whoever sends the request that is carried out."""
        self.late: list[tuple[Process, Step]] = []
        """Requests under way."""
        self.sent: list[tuple[Process, Step]] = []
        """Every write that anybody ever asked for."""
        self.refused = set[str]()
        """Keys that the store refuses to commands."""
        self.counts: dict[str, int] = {}
        self.partitions = [_partition(number, log_end, fan_out) for number in range(partitions)]
        self._by_home = {partition.home: partition for partition in self.partitions}
        _found(self.store, self.partitions[0].identity)

    def copy(self, rng: random.Random) -> "World":
        twin = copy(self)
        twin.rng, twin.late, twin.sent, twin.counts = rng, [], [], {}
        twin.store = WatchedStore(twin)
        twin.store.objects, twin.store.now = dict(self.store.objects), self.store.now
        twin.partitions = [partition.copy() for partition in self.partitions]
        twin._by_home = {partition.home: partition for partition in twin.partitions}
        return twin

    def partition_of(self, key: str) -> Partition | None:
        topic, _, rest = key.partition("/")
        return self._by_home.get(f"{topic}/{rest.partition('/')[0]}/")

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def count_more(self, what: str, number: int) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def strictly(self, strict: bool) -> None:
        """Whether the rules themselves are checked, and not only what readers see."""
        for partition in self.partitions:
            partition.monitor.strict = strict


LOCAL = (
    *(op.NewToken, op.Wait, op.StillAssigned, op.CheckUnclaimed, op.CourtesyFailed, op.Compute),
    *(op.ReadLogBounds, op.ReadLogRecord, op.FindLogRecord, op.ConfirmTopic),
)
"""What nobody else notices: no steps of a schedule."""


class Process(Actor):
    """One process of the simulation: a writer, a maintainer, garbage collection or a reader."""

    def __init__(self, world: World, name: str, kind: str, role: str, protocol: Run, partition: Partition) -> None:
        """`role`: writer, maintainer, gc or reader, which decides what it may do; `kind` says more."""
        self.kind = kind
        self.role = role
        self.world = world
        self.partition = partition
        self.is_slow = world.rng.random() < 0.2
        self.skew = world.rng.uniform(-SKEW, SKEW)
        super().__init__(name, protocol, world.store, partition.log, world.rng)
        self._pass_local()

    def step(self, fate: Fate = Fate.NORMAL) -> None:
        """See Actor; what is still under way is the world's. Goes on to the next request that others may notice."""
        super().step(fate)
        self.world.late += [(self, request) for request in self.late]
        self.late.clear()
        self._pass_local()

    def _pass_local(self) -> None:
        while isinstance(self.operation, LOCAL):
            super().step()

    def kill(self) -> None:
        """It is never heard of again."""
        self._crash()

    def carry_out(self, request: Step) -> None:
        """A request arrives; nobody hears the answer."""
        self._carry_out(request)

    def _carry_out(self, operation: Step) -> Any:
        self.world.acting = self.role
        if self.role == "command" and getattr(operation, "key", None) in self.world.refused:
            raise AccessDenied("403")
        if isinstance(operation, op.Now):
            return round((self.world.store.now + self.skew) * 1000)
        if isinstance(operation, ListPage):
            behind = (each for each in self.world.store.list(operation.prefix) if each.key > operation.after)
            return list(islice(behind, operation.size))
        if isinstance(operation, GetRange):
            kept = self.world.store.objects.get(operation.key)
            return kept.body[operation.start : operation.end] if kept is not None else None
        return super()._carry_out(operation)


def _partition(number: int, log_end: int, fan_out: int) -> Partition:
    identity = identity_of(partition=number)
    keys = identity.keys
    log = Log(log_end)
    truth = Truth({record.offset: value_of(record.offset) for record in log.records}, _SECRETS)
    monitor = Monitor(truth, keys.marker, keys.home, keys.chunks, fan_out=fan_out, promise=PROMISE)
    return Partition(identity, log, monitor)


_SECRETS = frozenset(record.offset for record in _RECORDS if is_secret(record.offset))


def _found(store: MemoryStore, identity: PartitionIdentity) -> None:
    keys = identity.keys
    archive = ArchiveInfo(archive_id=identity.archive_id, cluster_id=CLUSTER, layout=keys.layout)
    topic = TopicInfo(topic=identity.topic, topic_id=identity.topic_id, incarnation=1)
    store.put_if_absent(archive_key(keys.layout), objects.encode(archive), "-")
    store.put_if_absent(topic_home(keys.layout, keys.folder) + TOPIC_OBJECT, objects.encode(topic), "-")
