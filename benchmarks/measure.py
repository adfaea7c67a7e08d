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


def program(*arguments: str) -> int:
    """Run one of our programs to its end; gives its peak memory in bytes."""
    command = [sys.executable, "-m", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{output.decode()}")
    return usage.ru_maxrss * 1024


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
