"""What a process takes, sampled over time."""

import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

_EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """At `at` seconds of the monotonic clock."""

    at: float
    rss_bytes: int
    descriptors: int
    threads: int
    cpu_seconds: float


def sample(pid: int) -> Sample | None:
    """What the process takes now; None when it has ended."""
    home = Path(f"/proc/{pid}")
    try:
        pages = int((home / "statm").read_text().split()[1])
        numbers = (home / "stat").read_text().rpartition(")")[2].split()
        descriptors = len(list((home / "fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    return Sample(
        at=time.monotonic(),
        rss_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        descriptors=descriptors,
        threads=int(numbers[17]),
        cpu_seconds=(int(numbers[11]) + int(numbers[12])) / ticks,
    )


class Sampler:
    """Samples a process in a thread until it is stopped; each sample is a line of `log` as well, for whoever waits."""

    def __init__(self, pid: int, log: Path) -> None:
        self._pid = pid
        self._log = log
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.samples: list[Sample] = []
        self._thread.start()

    def stop(self) -> list[Sample]:
        """End; gives what was seen."""
        self._stop.set()
        self._thread.join()
        return self.samples

    def _run(self) -> None:
        with self._log.open("w", buffering=1) as log:
            log.write(",".join(field.name for field in fields(Sample)) + "\n")
            while not self._stop.wait(_EVERY_SECONDS):
                found = sample(self._pid)
                if found is not None:
                    self.samples.append(found)
                    log.write(",".join(map(str, astuple(found))) + "\n")


def slope_per_hour(points: Sequence[tuple[float, float]]) -> float:
    """Least squares over (seconds, value): by how much the value grows in an hour."""
    return statistics.linear_regression(*zip(*points, strict=True)).slope * 3600


def floors(points: Sequence[tuple[float, float]], seconds: float) -> list[tuple[float, float]]:
    """The least value of each whole window of so many seconds, with the time at which the window begins."""
    windows: dict[int, list[float]] = {}
    start = points[0][0]
    for at, value in points:
        windows.setdefault(int((at - start) // seconds), []).append(value)
    whole = int((points[-1][0] - start + _EVERY_SECONDS) // seconds)
    return [(start + number * seconds, min(windows[number])) for number in sorted(windows) if number < whole]
