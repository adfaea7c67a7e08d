"""What a whole program costs: wall clock, processor and memory, taken by a small parent that waits for it."""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson


@dataclass(frozen=True)
class Cost:
    """One run: seconds on the clock, seconds of processor (user and system), peak resident bytes, children included."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Done:
    """A process that ended well: what it cost, and what it printed."""

    cost: Cost
    stdout: str

    @property
    def json(self) -> Any:
        return orjson.loads(self.stdout)


class ProgramFailed(SystemExit):
    """A measured program ended with an error; the message holds the end of its output."""


PARENT = """
import _thread, json, os, sys, time
peak = 0
def tree(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [pid, *(each for child in children.read().split() for each in tree(int(child)))]
def proportional(pid):
    with open(f"/proc/{pid}/smaps_rollup") as rollup:
        return next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
def look(pid):
    global peak
    while True:
        time.sleep(0.1)
        try:
            family = tree(pid)
            if len(family) > 1:
                peak = max(peak, sum(map(proportional, family)))
        except OSError:
            pass  # one of them has just ended
files = [os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600) for name in sys.argv[1:3]]
actions = [(os.POSIX_SPAWN_DUP2, files[0], 1), (os.POSIX_SPAWN_DUP2, files[1], 2)]
started = time.perf_counter()
pid = os.posix_spawn(sys.argv[3], sys.argv[3:], os.environ, file_actions=actions)
_thread.start_new_thread(look, (pid,))
_, status, used = os.wait4(pid, 0)
seconds = time.perf_counter() - started
peak = max(peak, used.ru_maxrss * 1024)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, peak, os.waitstatus_to_exitcode(status)]))
"""
"""Ours is too large to be the parent: a child's peak memory counts what its parent had when it was forked.

`wait4` knows the peak of one process. Where there are several, it is the largest sum of their proportional shares that
was seen ten times a second: a page that they share counts once.
"""

_TAIL = 3000


def run(command: Sequence[object], env: Mapping[str, str] | None = None) -> Done:
    """Run a program to its end; raises ProgramFailed where it ends with an error."""
    words = [str(word) for word in command]
    with tempfile.TemporaryDirectory(prefix="blockgz-bench-run-") as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        done = subprocess.run(
            [sys.executable, "-S", "-c", PARENT, str(out), str(err), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=None if env is None else {**os.environ, **env},
            check=False,
        )
        printed = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    if done.returncode:
        raise ProgramFailed(f"{words[0]} could not be started:\n{done.stderr.decode()[-_TAIL:]}")
    seconds, cpu_seconds, peak_bytes, exit_code = orjson.loads(done.stdout)
    if exit_code:
        raise ProgramFailed(f"{' '.join(words)} ended with {exit_code}:\n{''.join(printed)[-_TAIL:]}")
    return Done(Cost(seconds, cpu_seconds, peak_bytes), printed[0])


def program(*arguments: object, env: Mapping[str, str] | None = None) -> Done:
    """Run one of our programs, `archiver` or `replayer`, as a user would: start-up counts."""
    return run([sys.executable, "-m", *arguments], env)


def bare(*arguments: object, env: Mapping[str, str] | None = None) -> Cost:
    """Run one part without us (`benchmarks.bare`), which times itself: start-up and loading do not count."""
    return Cost(**run([sys.executable, "-m", "benchmarks.bare", *arguments], env).json)


Action = Callable[[], Cost]


def interleaved(actions: Mapping[str, Action], runs: int, say: Callable[[str], None]) -> dict[str, list[Cost]]:
    """Run all actions in turn, `runs` times over: a slow minute of the machine hits them all alike."""
    costs: dict[str, list[Cost]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            costs[name].append(action())
            say(f"{name}: {costs[name][-1].seconds:.2f} s")
    return costs


def machine() -> dict[str, str]:
    """What the figures are measured on, and when."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":")[1].strip() for line in lines if "model name" in line]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": f"{len(os.sched_getaffinity(0))} cores of {models[0] if models else platform.processor()}",
        "memory": f"{memory:.0f} GiB",
        "python": platform.python_version(),
    }


def measured_on() -> str:
    facts = machine()
    return f"Measured on {facts['date']}, {facts['cpu']}, {facts['memory']}, load {os.getloadavg()[0]:.1f}"
