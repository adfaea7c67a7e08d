"""The processes under test, and their supervisor: `archiver run`, started, frozen, killed and started again."""

import itertools
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from system_test.faults.positions import SUFFIX, Process
from system_test.support.program_server import ServedProcess
from system_test.support.programs import SERVER
from tests.support.sampling import LONG

REFUSED = 11
"""The exit code of a process that finds its place in the group taken."""
PARTLY = 3
"""The exit code of a process one of whose topics was deleted."""
_TRACE_SECONDS = 0.5
_ASSIGNED = re.compile(r"^(\S+) INFO assigned ", re.MULTILINE)
_NOT_INHERITED = ("AWS_", "BLOCKGZ_")


@dataclass
class Archiver:
    """One run of one process."""

    name: str
    process: subprocess.Popen[bytes] | ServedProcess
    log: Path
    frozen: bool = False
    asked_to_end: bool = False

    @property
    def ended_in_order(self) -> bool:
        """After a SIGTERM: exit 0, or its place was another's by then, or a topic gone, or it had no partition yet."""
        text = self.log.read_text(errors="replace")
        said_so = self.process.returncode == PARTLY and " topic_gone " in text
        return said_so or self.process.returncode in (0, REFUSED) or " claimed " not in text

    @property
    def joined_at(self) -> float | None:
        """When the group first told it its partitions, in seconds of the epoch; None while it waits for the store."""
        told = _ASSIGNED.search(self.log.read_text(errors="replace"))
        return datetime.fromisoformat(told[1]).timestamp() if told else None

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; harmless when it has ended."""
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    def freeze(self) -> None:
        self.frozen = True
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.frozen = False
        self.signal(signal.SIGCONT)

    def term(self) -> None:
        """SIGTERM; a frozen one heeds it when it is thawed."""
        self.asked_to_end = True
        self.signal(signal.SIGTERM)

    def kill_hanging(self) -> None:
        """SIGKILL, after the stacks of its threads went to its log."""
        self.signal(signal.SIGUSR1)
        time.sleep(_TRACE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.asked_to_end = True
        self.signal(signal.SIGKILL)
        self.process.wait()

    @property
    def rss_bytes(self) -> int:
        """Resident memory now; 0 when it has ended."""
        try:
            fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if fields else 0


@dataclass
class Endings:
    """How processes ended that nobody asked to, and how those did that were asked to by SIGTERM."""

    by_themselves: Counter[str] = field(default_factory=Counter)
    """Their exit code and the first line of their message."""
    violations: list[str] = field(default_factory=list)


class Fleet:
    """Starts archivers and looks after them."""

    def __init__(self, arguments: Sequence[object], env: Mapping[str, str], logs: Path) -> None:
        self._arguments = arguments
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_INHERITED)}
        self._env = {**inherited, **env}
        self._logs = logs
        self._runs = itertools.count(1)
        self.all: list[Archiver] = []
        self.endings = Endings()
        self.starts = 0
        self.max_rss_bytes = 0
        self.processes: dict[str, Process] = {}
        """Those that ended, by the name of their log."""

    def start(self, name: str, instance: str | None = None) -> Archiver:
        """Start one more process; `instance` makes it a static member of the group."""
        static = ["--group-instance-id", instance] if instance else []
        archiver = self.spawn(name, "system_test.faults.traced", "run", *self._arguments, *static, "-v")
        self.all.append(archiver)
        self.starts += 1
        return archiver

    def spawn(self, name: str, module: str, *arguments: object) -> Archiver:
        """Start any module's process, which who calls this looks after."""
        log = self._logs / f"{name}-{next(self._runs):04d}.log"
        command, env = (
            ["-m", module, *map(str, arguments)],
            {**self._env, "FAULTS_POSITIONS": str(log.with_suffix(SUFFIX))},
        )
        with log.open("wb") as sink:
            if LONG:  # as users start it: the memory of a fork is not its own
                process = subprocess.Popen(
                    [sys.executable, *command], stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env
                )
            else:
                process = SERVER.start(command, env, None, sink, sink)
        return Archiver(name, process, log)

    def look_after(self) -> list[Archiver]:
        """Note who ended since the last call, and how much memory the others take; gives those that ended."""
        ended = []
        for archiver in list(self.all):
            if archiver.alive:
                self.max_rss_bytes = max(self.max_rss_bytes, archiver.rss_bytes)
                continue
            self.all.remove(archiver)
            ended.append(archiver)
            self._judge(archiver)
        return ended

    def kill_all(self) -> None:
        for archiver in self.all:
            archiver.kill()
        self.all.clear()

    def _judge(self, archiver: Archiver) -> None:
        code = archiver.process.returncode
        self.processes[archiver.log.stem] = Process(code, time.time())
        self.endings.violations += crashes(archiver)
        text = archiver.log.read_text(errors="replace")
        if archiver.asked_to_end and code in (0, PARTLY, -signal.SIGKILL, -signal.SIGTERM, 143):
            return
        last = [line for line in text.splitlines() if line and not line[:4].isdigit()][:2]
        self.endings.by_themselves[f"exit {code}: {' / '.join(last)[:200]}"] += 1


def crashes(ended: Archiver) -> list[str]:
    """What no process that has ended may show."""
    code, text, found = ended.process.returncode, ended.log.read_text(errors="replace"), []
    if "Traceback" in text or "internal error" in text:
        found.append(f"{ended.log.name} holds a traceback or an internal error")
    if code < 0 and code not in (-signal.SIGKILL, -signal.SIGTERM):
        found.append(f"{ended.log.name} was ended by signal {-code}")
    return found
