"""The soak run: an idle archiver, a backlog drained as fast as it goes, then steady load."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from system_test.soak.measuring import Sample, Sampler, floors, slope_per_hour
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.object_store import VersityGateway
from system_test.support.programs import Running, start
from system_test.support.topics import create_topic

PREFIX = "soak"
TOPICS = 10
BACKLOG_A_PARTITION = 400
LEAST_BACKLOG = 800_000
"""Records; fewer would measure the start of the program rather than its rate."""
MIB = 1024 * 1024
_CREATE = {"segment.ms": "1200000", "retention.ms": "600000", "segment.bytes": str(64 * MIB)}
"""The log forgets after ten to thirty minutes, so that an hour of load fits on a disk. An archiver that lags by
that loses records.

Two segments a partition at most: a broker keeps three files of each open, and may have 20,000.
"""
_START_SECONDS = 300.0
_DRAIN_SECONDS = 1800.0
_CATCH_UP_SECONDS = 900.0


@dataclass(frozen=True)
class SoakSettings:
    """Sizes in bytes, times in seconds."""

    partitions: int
    minutes: float
    memory: int = 256 * MIB
    rate: float | None = None
    """Records a second of the steady load; None: half of what the backlog was drained at."""

    @property
    def chunk_interval(self) -> float:
        """Some seven commits a second for all partitions together: of 2,000, the default of `--chunk-interval`."""
        return max(10.0, self.partitions * 0.15)

    @property
    def backlog(self) -> int:
        return max(LEAST_BACKLOG, self.partitions * BACKLOG_A_PARTITION)

    @property
    def warm_up_seconds(self) -> float:
        """What is not looked at when growth is judged: a third of the run, twenty minutes at most.

        So long the heaps take to fill with what they keep free, up to 64 MiB, while chunks end in waves.
        """
        return min(1200.0, self.minutes * 60 / 3)


class Soak:
    """One run, from empty servers to its figures."""

    def __init__(self, settings: SoakSettings, home: Path) -> None:
        self._settings = settings
        self._home = home
        count = settings.partitions // TOPICS
        self._topics = {f"soak-{number}": count for number in range(TOPICS)}

    def run(self) -> dict[str, Any]:
        """The figures; raises what keeps the run from its end."""
        self._home.mkdir(parents=True, exist_ok=True)
        settings = self._settings
        with ExitStack() as stack:
            self._broker = stack.enter_context(KafkaBroker())
            self._store = stack.enter_context(VersityGateway())
            self._root = self._store.root / self._store.bucket / PREFIX
            idle_bytes = self._idle()
            began = time.monotonic()
            for topic, partitions in self._topics.items():
                create_topic(self._broker.bootstrap, topic, partitions, {**_CREATE, "retention.ms": "-1"})
            created = time.monotonic()
            backlog = _acknowledged(self._load("--records", settings.backlog))
            drained = self._drain(backlog)
            print(json.dumps({"backlog": backlog, "idle_rss_mib": _mib(idle_bytes), **drained}), flush=True)
            figures = {
                "partitions": settings.partitions,
                "memory_budget_mib": settings.memory // MIB,
                "idle_rss_mib": _mib(idle_bytes),
                "create_seconds": round(created - began, 1),
                "backlog_records": backlog,
                **{f"backlog_{name}": value for name, value in drained.items()},
                **self._steady(backlog, settings.rate or drained["records_per_second"] / 2),
            }
        (self._home / "soak.json").write_text(json.dumps(figures, indent=1) + "\n")
        return figures

    def _idle(self) -> int:
        """What an archiver takes that has nothing to do."""
        create_topic(self._broker.bootstrap, "idle")
        with self._archiver("idle") as archiver:
            sampler = self._sampler(archiver, "idle")
            archiver.wait_for(lambda: self._claims(archiver) >= 1, _START_SECONDS, "the claim of an empty partition")
            archiver.wait_for(lambda: len(sampler.samples) >= 5, _START_SECONDS, "samples")
            archiver.terminate()
        return max(entry.rss_bytes for entry in sampler.stop())

    def _drain(self, backlog: int) -> dict[str, Any]:
        """`archiver run --once` over the whole backlog."""
        began = time.monotonic()
        with self._archiver("soak-*", "--once", "--json") as archiver:
            sampler = self._sampler(archiver, "backlog")
            done = archiver.wait(_DRAIN_SECONDS).expect(0)
        seconds = time.monotonic() - began
        archived = json.loads(done.stdout)["records"]
        if archived != backlog:
            raise AssertionError(f"{archived} records were archived of {backlog}\n{done.transcript}")
        samples = sampler.stop()
        return {
            "seconds": round(seconds, 1),
            "records_per_second": round(backlog / seconds),
            "cpu_seconds": samples[-1].cpu_seconds,
            "max_rss_mib": _mib(max(entry.rss_bytes for entry in samples)),
        }

    def _steady(self, before: int, rate: float) -> dict[str, Any]:
        settings = self._settings
        with self._archiver("soak-*", "--chunk-interval", f"{settings.chunk_interval:g}s") as archiver:
            began = time.monotonic()
            sampler = self._sampler(archiver, "steady")
            archiver.wait_for(lambda: self._claims(archiver) >= settings.partitions, _START_SECONDS, "all claims")
            owned = time.monotonic()
            load = self._load("--rate", rate)
            end = owned + settings.minutes * 60
            archiver.wait_for(lambda: time.monotonic() > end, settings.minutes * 60 + 60, "the end of the load")
            total = before + _acknowledged(load)
            stopped = time.monotonic()
            archiver.wait_for(
                lambda: self._archived() >= total, _CATCH_UP_SECONDS, f"all {total} records to be archived"
            )
            caught_up = time.monotonic()
            samples = [entry for entry in sampler.stop() if entry.at < stopped]
            archiver.terminate(60).expect(0)
        if self._archived() != total:
            raise AssertionError(f"{self._archived()} records were archived of {total}")
        warm = [entry for entry in samples if entry.at > owned + settings.warm_up_seconds]
        return {
            "claimed_seconds": round(owned - began, 1),
            "steady_minutes": settings.minutes,
            "steady_records_per_second": round((total - before) / (stopped - owned)),
            "caught_up_seconds": round(caught_up - stopped, 1),
            **_growth(warm, settings.chunk_interval),
            "max_rss_mib": _mib(max(entry.rss_bytes for entry in samples)),
            "cpu_share": round((warm[-1].cpu_seconds - warm[0].cpu_seconds) / (warm[-1].at - warm[0].at), 2),
        }

    def _sampler(self, archiver: Running, phase: str) -> Sampler:
        return Sampler(archiver.pid, self._home / f"{phase}.csv")

    def _archiver(self, topics: str, *arguments: object) -> Running:
        archive = ("-a", self._store.url(PREFIX), "--endpoint-url", self._store.endpoint_url)
        where = ("-b", self._broker.bootstrap, *archive)
        own = ("--memory", str(self._settings.memory), "--buffer-dir", self._home / "buffer", "-v")
        return start("archiver", "run", topics, *where, *own, *arguments, env=self._store.env)

    def _load(self, *arguments: object) -> subprocess.Popen[str]:
        topics = ",".join(f"{name}:{count}" for name, count in self._topics.items())
        words = ["--bootstrap", self._broker.bootstrap, "--topics", topics, *map(str, arguments)]
        command = [sys.executable, "-m", "system_test.soak.kafka_load", *words]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    @staticmethod
    def _claims(archiver: Running) -> int:
        return archiver.stderr.count(" claimed ")

    def _archived(self) -> int:
        """Records in the archive's chains, from the markers' own sums."""
        total = 0
        for path in self._root.glob("topic=soak-*/partition=*/last_chunk_index.json"):
            marker = json.loads(path.read_bytes())
            total += sum(entry["num_records"] for entry in marker["tail"])
            total += sum(reference["num_records"] for level in marker["catalogs"] for reference in level)
        return total


def _acknowledged(load: subprocess.Popen[str]) -> int:
    """Ends a load without an end of its own; gives how many of its records are in the log."""
    return int(load.communicate(timeout=_DRAIN_SECONDS)[0])


def _growth(warm: Sequence[Sample], chunk_interval: float) -> dict[str, Any]:
    """Memory comes and goes with each wave of chunks that end; what leaks would raise the least between two waves."""
    rss = [(entry.at, entry.rss_bytes / MIB) for entry in warm]
    least = floors(rss, chunk_interval)
    descriptors = [entry.descriptors for entry in warm]
    return {
        "rss_floors_mib": [round(value, 1) for _, value in least],
        "rss_floor_slope_mib_per_hour": round(slope_per_hour(least), 2),
        "rss_slope_mib_per_hour": round(slope_per_hour(rss), 2),
        "rss_mib_first_and_last_minute": [_average(rss[:60]), _average(rss[-60:])],
        "descriptors_min_max": [min(descriptors), max(descriptors)],
        "descriptors_first_and_last": [descriptors[0], descriptors[-1]],
        "threads_max": max(entry.threads for entry in warm),
    }


def _average(points: Sequence[tuple[float, float]]) -> float:
    return round(sum(value for _, value in points) / len(points), 1)


def _mib(number: float) -> float:
    return round(number / MIB, 1)
