"""`python -m benchmarks.endpoint`: a topic consumed from `replayer broker`, from a real broker, and restored first.

Consumers read every record and print nothing. Processor seconds of `replayer broker` are those of its process during
the run. Everything is interleaved and a median; what counts are the ratios.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Cost, interleaved, measured_on, program, run
from benchmarks.site import MB, Settings, Site, opened
from benchmarks.tables import Table, as_markdown

LISTENING = re.compile(r"serving \S+ on (\S+);")
GOALS = "goals: arrow 0.6 and json 0.4 of a broker's rate to kcat, the first record within 1 s"


@dataclass
class Served:
    """A running `replayer broker`."""

    bootstrap: str
    pid: int
    first_seconds: float

    @property
    def cpu_seconds(self) -> float:
        """Processor time so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_bytes(self) -> int:
        """Most memory so far."""
        (line,) = (each for each in Path(f"/proc/{self.pid}/status").read_text().splitlines() if "VmHWM" in each)
        return int(line.split()[1]) * 1024


@contextmanager
def serving(archive: Path, topic: str) -> Iterator[Served]:
    began = time.perf_counter()
    command = [sys.executable, "-m", "replayer", "broker", "-a", str(archive), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = LISTENING.search(process.stderr.readline())
        assert found is not None
        subprocess.run(["kcat", *consuming(found[1], topic), "-p", "0", "-c", "1"], check=True, capture_output=True)
        try:
            yield Served(found[1], process.pid, time.perf_counter() - began)
        finally:
            process.terminate()


def consuming(bootstrap: str, topic: str) -> list[str]:
    return ["-C", "-b", bootstrap, "-t", topic, "-e", "-q", "-f", ""]


def kcat(bootstrap: str, topic: str) -> Cost:
    return run([shutil.which("kcat") or "kcat", *consuming(bootstrap, topic)]).cost


def restored(site: Site, archive: Path, topic: str) -> Cost:
    """Restore into another topic and consume that."""
    copy = site.new_name("copy")
    began = time.perf_counter()
    where = ("-a", archive, "-b", site.bootstrap, "--create-topic", "--yes")
    copied = program("replayer", "replay", topic, "--to-topic", copy, *where, env={"XDG_STATE_HOME": str(site.home)})
    read = kcat(site.bootstrap, copy)
    cpu = copied.cost.cpu_seconds + read.cpu_seconds
    return Cost(time.perf_counter() - began, cpu, copied.cost.peak_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.endpoint", description=__doc__)
    parser.add_argument("--mb", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    with opened(Settings(mb=given.mb, runs=given.runs)) as site:
        rows = [row for value_bytes in (1024, 200) for row in measured(site, given.runs, value_bytes)]
    title = f"{given.mb} MB of values of 1 KB, half of that of 200 B, 4 partitions, by kcat ({GOALS})"
    head = ("from", "value", "MB/s", "of the broker's rate", "CPU s of replayer broker", "peak MB", "first record s")
    print(f"{measured_on()}\n")
    print(as_markdown(Table(title, head, rows)))


def measured(site: Site, runs: int, value_bytes: int) -> list[tuple[str, ...]]:
    shape = site.settings.shape(value_bytes)
    topic = site.topic(shape)
    archives = {form: site.archived(shape, "--record-format", form) for form in ("arrow", "json")}
    rates: dict[str, tuple[str, str, str]] = {}

    def from_archive(form: str) -> Cost:
        with serving(archives[form], topic) as served:
            before = served.cpu_seconds
            cost = kcat(served.bootstrap, topic)
            cpu, peak = served.cpu_seconds - before, served.peak_bytes / 1e6
            rates[f"archive, {form}"] = f"{cpu:.1f}", f"{peak:.0f}", f"{served.first_seconds:.1f}"
            return cost

    actions = {
        "broker": lambda: kcat(site.bootstrap, topic),
        "archive, arrow": lambda: from_archive("arrow"),
        "archive, json": lambda: from_archive("json"),
        "restored first": lambda: restored(site, archives["arrow"], topic),
    }
    costs = interleaved(actions, runs, site.say)
    seconds = {name: statistics.median(each.seconds for each in found) for name, found in costs.items()}
    return [
        (
            name,
            f"{value_bytes} B",
            f"{shape.raw_bytes / MB / taken:.0f}",
            f"{seconds['broker'] / taken:.2f}",
            *rates.get(name, ("", "", "")),
        )
        for name, taken in seconds.items()
    ]


if __name__ == "__main__":
    main()
