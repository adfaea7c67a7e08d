"""Replays into many lanes, and over a network that takes 50 ms: `python -m benchmarks.replay_lanes`.

Prints the time of each run as a share of the one that it is compared with, in one run on one machine.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import measured_on
from system_test.support.delaying_proxy import DelayingProxy
from system_test.support.environment import free_port
from system_test.support.kafka_broker import KafkaBroker
from system_test.support.topics import create_topic
from tests.support.archives import ArchiveWriter, records

PROJECT = Path(__file__).resolve().parents[1]
ONE_WAY_SECONDS = 0.025
OPEN_FILES = 1024
MODES: Mapping[str, tuple[str, ...]] = {"idempotent": (), "transactional": ("--transactional",)}


@dataclass(frozen=True)
class Run:
    """What a replay took: seconds of the replay itself, and the most threads and descriptors that were seen."""

    seconds: float
    threads: int
    descriptors: int


@dataclass
class Bench:
    """A broker behind a proxy, and an archive."""

    bootstrap: str
    proxy: DelayingProxy
    home: Path
    number: int = 0

    def replay(self, topic: str, partitions: int, mode: str) -> Run:
        """One replay into a new topic, in a process that may open 1,024 files."""
        self.number += 1
        target = f"{topic}-{self.number}"
        create_topic(self.bootstrap, target, partitions, {"retention.ms": "-1"})
        limited = ["prlimit", f"--nofile={OPEN_FILES}:{OPEN_FILES}"]
        command = [*limited, sys.executable, "-m", "replayer", "replay", topic, "--to-topic", target, "--yes", "--json"]
        command += [*MODES[mode], "-b", self.bootstrap, "-a", str(self.home / "archive")]
        env = {**os.environ, "XDG_STATE_HOME": str(self.home / f"state-{self.number}")}
        with subprocess.Popen(command, env=env, cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            watch = _Watch(process.pid)
            watch.start()
            out, err = process.communicate(timeout=900)
            watch.ended.set()
        if process.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}\n{err.decode()}")
        result = json.loads(out)
        assert result["complete"]
        return Run(result["seconds"], watch.threads, watch.descriptors)


class _Watch(threading.Thread):
    """Looks at a process now and then."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._folder = Path(f"/proc/{pid}")
        self.ended = threading.Event()
        self.threads = self.descriptors = 0

    def run(self) -> None:
        while not self.ended.wait(0.1):
            try:
                self.threads = max(self.threads, len(list((self._folder / "task").iterdir())))
                self.descriptors = max(self.descriptors, len(list((self._folder / "fd").iterdir())))
            except OSError:
                return


@contextmanager
def bench() -> Iterator[Bench]:
    """Everything that is needed, gone in the end."""
    port = free_port()
    broker = KafkaBroker(advertised_port=port)
    with tempfile.TemporaryDirectory() as home, DelayingProxy(port, broker.port) as proxy, broker:
        yield Bench(f"127.0.0.1:{port}", proxy, Path(home))


def archived(home: Path, topic: str, partitions: int, each: int, value_bytes: int) -> None:
    """An archive of so many partitions with so many records each."""
    archive = ArchiveWriter(home / "archive")
    made = records(range(each), value_bytes=value_bytes)
    for partition in range(partitions):
        archive.partition(topic, partition).commit(made, block_bytes=1 << 20)


def median(runs: list[Run]) -> float:
    """The seconds of the run in the middle."""
    return statistics.median(run.seconds for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lanes", type=int, default=1000)
    parser.add_argument("--mb", type=int, default=100, help="megabytes of values over 16 partitions")
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    print(measured_on())
    with bench() as made:
        archived(made.home, "many", asked.lanes, 200, 1000)
        archived(made.home, "wide", 16, asked.mb * 1_000_000 // 16 // 1000, 1000)
        _lanes(made, asked.lanes, asked.runs)
        _far(made, asked.runs)


def _lanes(made: Bench, lanes: int, runs: int) -> None:
    taken: dict[str, list[Run]] = {mode: [] for mode in MODES}
    for _ in range(runs):
        for mode, known in taken.items():
            known.append(made.replay("many", lanes, mode))
    for mode, known in taken.items():
        threads, descriptors = max(run.threads for run in known), max(run.descriptors for run in known)
        print(f"{lanes} lanes, {mode}: {median(known):.2f} s, {threads} threads, {descriptors} descriptors")
    print(
        f"{lanes} lanes, transactional / idempotent: {median(taken['transactional']) / median(taken['idempotent']):.2f}"
    )


def _far(made: Bench, runs: int) -> None:
    for mode in MODES:
        near, far = [], []
        for _ in range(runs):
            made.proxy.seconds = 0.0
            near.append(made.replay("wide", 16, mode))
            made.proxy.seconds = ONE_WAY_SECONDS
            far.append(made.replay("wide", 16, mode))
        made.proxy.seconds = 0.0
        times = f"{median(near):.2f} s near, {median(far):.2f} s far"
        print(f"16 lanes, {mode}, 50 ms to the broker and back / none: {median(far) / median(near):.2f} ({times})")


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"{time.monotonic() - started:.0f} s in all")
