"""Runs of the real service on a cluster and a store that are simulated."""

import importlib
import pkgutil
import queue
import random
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from types import ModuleType
from typing import Any

import archiver.ingest
import blockgz
from archiver.ingest import service
from archiver.ingest.kafka_source import Event, Fetched, KafkaSource
from archiver.logs import LogEvent, log
from blockgz.config.model import RunConfig
from index_format.errors import BlockgzError
from tests.support.service_simulation import virtual_time as virtual
from tests.support.service_simulation.group import SESSION_SECONDS, Group
from tests.support.service_simulation.kafka import Kafka, SimulatedCluster, SimulatedConsumer
from tests.support.service_simulation.logs import Cluster, Origin, Partition
from tests.support.service_simulation.store import Bucket, SimulatedFolder, SimulatedStore
from tests.support.service_simulation.virtual_time import NOW, Host, Hub, Shadow

LEAVE_SECONDS = 4.0
RESTART_SECONDS = 3.0
POLL_SECONDS = 1.0
TICK_SECONDS = 2.0
RECORD_SECONDS = 0.2
KEPT_LINES = 20000


@lru_cache(maxsize=1)
def base_config() -> RunConfig:
    session = {"session.timeout.ms": str(round(SESSION_SECONDS * 1000))}
    return RunConfig(archive="./archive", bootstrap_servers="simulated:9092", topics=("t*",), kafka=session)


@dataclass
class Run:
    """One life of a process."""

    slot: str
    host: Host
    grace: float
    started_at: float
    service: Any = None
    told_to_stop_at: float | None = None
    ended_at: float | None = None
    how: str = ""
    """stopped, failed, killed, or forced: it did not end within its grace time."""
    error: BlockgzError | None = None
    fetched: list[tuple[float, Fetched]] = field(default_factory=list)
    left: list[tuple[float, Partition, str]] = field(default_factory=list)
    """Partitions that the group took: revoked or lost."""
    buffer: SimulatedFolder = field(default_factory=SimulatedFolder)
    buffer_failed: list[float] = field(default_factory=list)
    """Until when, each time: the block in memory is lost then."""
    taken_over_again: list[tuple[float, Partition]] = field(default_factory=list)
    """Partitions that had failed for a while, and took no records since."""
    most_polled: int = 0
    """Bytes that one poll gave at the most."""

    def origins(self) -> Iterator[tuple[float, Partition, Origin]]:
        for at, event in self.fetched:
            for value in event.batch.column("value").to_pylist():
                yield at, event.partition, Origin.of(value)


class World:
    def __init__(self, seed: int, *, preempt_rate: float = 0.01) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.hub = Hub(self.rng, preempt_rate)
        self.cluster = Cluster(self.hub)
        self.group = Group(self.cluster, self._left)
        self.kafka = Kafka(self.cluster, self.group)
        self.bucket = Bucket()
        self.runs: list[Run] = []
        self.config = base_config()
        self.is_restarting = True
        self.faults: dict[str, int] = {}
        self.trace: deque[str] = deque(maxlen=KEPT_LINES)
        NOW.hub = self.hub
        NOW.world = self

    def disturbed(self, kind: str, **what: Any) -> None:
        self.faults[kind] = self.faults.get(kind, 0) + 1
        self.say("*", kind, what)

    def say(self, who: str, event: str, what: dict[str, Any]) -> None:
        told = " ".join(f"{name}={value}" for name, value in what.items())
        self.trace.append(f"{self.hub.now:8.3f} {who:6} {event} {told}")

    def taken_over_again(self, host: str, partition: Partition) -> None:
        for run in self.runs:
            if run.host.name == host:
                run.taken_over_again.append((self.hub.now, partition))

    def living(self) -> list[Run]:
        return [run for run in self.runs if run.ended_at is None]

    def start(self, slot: str) -> None:
        number = sum(run.slot == slot for run in self.runs)
        run = Run(slot, Host(f"{slot}.{number}"), self.config.grace, self.hub.now)
        self.runs.append(run)
        self.say(run.host.name, "start", {})
        self.hub.spawn(run.host, self._live, run)

    def stop(self, run: Run) -> None:
        """SIGTERM; what does not end in its time is ended."""
        if run.told_to_stop_at is not None or run.ended_at is not None:
            return
        run.told_to_stop_at = self.hub.now
        self.say(run.host.name, "told to stop", {})
        if run.service is not None:
            run.service.stop()
        else:
            self.kill(run)
        self.hub.call_at(self.hub.now + run.grace + LEAVE_SECONDS, lambda: self._force(run))

    def kill(self, run: Run, how: str = "killed") -> None:
        if run.ended_at is None:
            self._ended(run, how)
            self.hub.kill(run.host)
            self.hub.call_at(self.hub.now + SESSION_SECONDS, lambda: self.group.expire(run.host.name))

    def close(self) -> None:
        for run in self.runs:
            self.hub.kill(run.host)

    def fetched(self, host: str, events: Sequence[Event]) -> None:
        run = self.run_of(host)
        batches = [event for event in events if isinstance(event, Fetched)]
        run.most_polled = max(run.most_polled, sum(event.num_bytes for event in batches))
        run.fetched += [(self.hub.now, event) for event in batches]

    def run_of(self, host: str) -> Run:
        return next(run for run in reversed(self.runs) if run.host.name == host)

    def _force(self, run: Run) -> None:
        if run.ended_at is None:
            had_time = run.host.was_frozen_until <= (run.told_to_stop_at or 0.0)
            self.kill(run, "forced" if had_time else "killed")

    def _live(self, run: Run) -> None:
        try:
            run.service = service.ArchiverService(
                self.config,
                SimulatedStore(self.bucket, run.host.name),
                run.buffer,  # type: ignore[arg-type]
                clock=virtual.monotonic,
            )
            run.service._keeper = NoKeeper
            run.service.run()
            how = "stopped" if run.told_to_stop_at is not None or self.config.once else "failed"
        except BlockgzError as error:
            run.error, how = error, "failed"
            self.say(run.host.name, "failed", {"error": error.what})
        if run.ended_at is None:
            self._ended(run, how)

    def _ended(self, run: Run, how: str) -> None:
        run.ended_at, run.how = self.hub.now, how
        self.say(run.host.name, how, {})
        if self.is_restarting:
            self.hub.call_at(self.hub.now + RESTART_SECONDS, lambda: self.is_restarting and self.start(run.slot))

    def _left(self, host: str, partition: Partition, how: str) -> None:
        self.run_of(host).left.append((self.hub.now, partition, how))


class RecordingSource(KafkaSource):
    """Notes what it hands over."""

    def poll(self) -> list[Event]:
        events = super().poll()
        task = NOW.hub.current
        assert task is not None
        NOW.world.fetched(task.host.name, events)
        return events

    def batched(self, partitions: Iterable[Partition]) -> list[Event]:
        events = super().batched(partitions)
        task = NOW.hub.current
        assert task is not None
        NOW.world.fetched(task.host.name, events)
        return events


class NoKeeper:
    """In the place of the keeper of consumer groups and ends, which works apart from archiving."""

    age_seconds, stored, failures = 0.0, 0, 0

    def __init__(self, *_: Any) -> None:
        pass

    def start(self) -> None: ...

    def keep_once(self, is_ending: Callable[[], bool]) -> None: ...

    def close(self) -> None: ...


class RecordingLog:
    """In the place of the archiver's log: lines of the schedule's trace."""

    def __getattr__(self, level: str) -> Callable[..., None]:
        return self._say

    def _say(self, event: str, **what: Any) -> None:
        task = NOW.hub.current
        host = task.host.name if task else "-"
        NOW.world.say(host, str(event), what)
        if event is LogEvent.RESTART:
            NOW.world.taken_over_again(host, (what["topic"], what["partition"]))


def replacements() -> list[tuple[Any, Any]]:
    shadows = {
        threading: {
            name: getattr(virtual, name)
            for name in ("Condition", "Event", "Lock", "RLock", "Thread", "Timer", "current_thread")
        },
        time: {"monotonic": virtual.monotonic, "time": virtual.wall, "sleep": virtual.sleep},
        uuid: {"uuid4": virtual.seeded_uuid},
        random: {"uniform": virtual.uniform},
        queue: {},
        futures: {"ThreadPoolExecutor": virtual.Pool, "Future": virtual.Future},
    }
    pairs: list[tuple[Any, Any]] = [(module, Shadow(module, **names)) for module, names in shadows.items()]
    for module, names in shadows.items():
        pairs += [(getattr(module, name), made) for name, made in names.items()]
    return [*pairs, (log, RecordingLog())]


def make_client(_: Any, settings: dict[str, Any]) -> Any:
    return SimulatedConsumer(NOW.world.kafka, settings)


SPECIAL: list[tuple[str, str, Any]] = [
    ("archiver.ingest.service", "KafkaSource", RecordingSource),
    ("archiver.ingest.service", "KafkaCluster", lambda *_, **__: SimulatedCluster(NOW.world.kafka)),
    ("archiver.ingest.service", "probe", lambda *_, **__: None),
    ("archiver.ingest.service", "give_back", lambda: None),
    ("archiver.ingest.service", "POLL_SECONDS", POLL_SECONDS),
    ("archiver.ingest.service", "POLL_SECONDS_OF_ONCE", POLL_SECONDS / 2),
    ("archiver.ingest.service", "TICK_SECONDS", TICK_SECONDS),
    ("archiver.ingest.kafka_source", "make_client", make_client),
    ("archiver.ingest.kafka_source", "kernel_takes", lambda _: False),
    ("archiver.ingest.kafka_source", "SECONDS_A_PARTITION", 0.01),
    ("archiver.ingest.kafka_cluster", "make_client", make_client),
    ("archiver.ingest.kafka_cluster", "POLL_SECONDS", RECORD_SECONDS),
    ("archiver.ingest.service", "consumer_settings", lambda config, **_: {"isolation.level": config.isolation_level}),
]


@contextmanager
def simulated() -> Iterator[None]:
    """Inside, the archiver's modules run in virtual time. One schedule at a time, in one thread."""
    undo: list[tuple[ModuleType, str, Any]] = []

    def put(module: ModuleType, name: str, value: Any) -> None:
        undo.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    for package in (archiver.ingest, blockgz):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.startswith("blockgz.spark") and not found.name.endswith("._kernel"):
                importlib.import_module(found.name)
    pairs = replacements()
    for module in [sys.modules[name] for name in sorted(sys.modules) if name.startswith(("archiver.", "blockgz."))]:
        for name, value in list(vars(module).items()):
            made = next((made for real, made in pairs if value is real), None)
            if made is not None:
                put(module, name, made)
    for where, name, value in SPECIAL:
        put(sys.modules[where], name, value)
    try:
        yield
    finally:
        for module, name, value in reversed(undo):
            setattr(module, name, value)
