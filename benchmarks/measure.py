"""Timing whole processes and in-process limits, interleaved, with medians."""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path


@dataclass
class Figure:
    """One thing measured several times: seconds of each run, and the peak memory of its process in bytes."""

    name: str
    seconds: list[float] = field(default_factory=list)
    peak_bytes: list[int] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Median seconds."""
        return statistics.median(self.seconds)


def interleaved(actions: Mapping[str, Callable[[], int | None]], runs: int) -> dict[str, Figure]:
    """Run all actions in turn, `runs` times; an action may give its process's peak memory."""
    figures = {name: Figure(name) for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            started = time.perf_counter()
            peak = action()
            figures[name].seconds.append(time.perf_counter() - started)
            if peak is not None:
                figures[name].peak_bytes.append(peak)
    return figures


PEAK_OF_CHILD = (
    "import resource, subprocess, sys\n"
    "done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)\n"
    "print(done.stdout.decode() if done.returncode else resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    "sys.exit(done.returncode)"
)
"""A small parent between us and the program: a child's peak memory counts what its parent had when it was forked."""


def program(*arguments: str) -> int:
    """Run one of our programs to its end; gives its peak memory in bytes."""
    command = [sys.executable, "-S", "-c", PEAK_OF_CHILD, sys.executable, "-m", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return int(done.stdout) * 1024


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": f"{len(os.sched_getaffinity(0))} cores of {cpu}",
        "memory": f"{memory:.0f} GiB",
        "python": platform.python_version(),
    }
