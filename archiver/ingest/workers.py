"""Several archivers on one machine: a parent that starts them, keeps them running, and ends them in order."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import IO, Generic, TypeVar, cast

from archiver.logs import LogEvent, log
from blockgz.config.model import RunConfig
from blockgz.errors import CORE_DUMP, end_text

T = TypeVar("T")


class Forks(Generic[T]):
    """`count` forks that call `work(number, tell)`; to be made before this process has threads that hold locks.

    What signals this thread blocks they block too, until `work` can be ended in order and lets them come. Safe to be
    told to `end` from a signal handler. All threads of a fork may `tell`.
    """

    def __init__(self, count: int, work: Callable[[int, Callable[[T], None]], None]) -> None:
        context = multiprocessing.get_context("fork")
        self._forks = []
        for number in range(count):
            receiving, sending = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(work, number, sending))
            process.start()
            sending.close()
            self._forks.append((process, receiving))

    def end(self) -> None:
        for process, _ in self._forks:
            process.terminate()

    def ended(self, heard: Callable[[int, T], bool] = lambda *_: False) -> Iterator[tuple[int, T | None, int]]:
        """Yield number, last message and exit code of each fork once all have ended.

        The message is None if the fork died before it sent one; the code is negative, a signal, if one killed it.
        `heard` takes each message and returns whether more will follow.
        """
        told: dict[int, T] = {}
        listening = {receiving: number for number, (_, receiving) in enumerate(self._forks)}
        while listening:
            for ready in wait(list(listening)):
                receiving, number = cast(Connection, ready), listening[cast(Connection, ready)]
                try:
                    message = receiving.recv()
                except EOFError:
                    del listening[receiving]
                    continue
                if not heard(number, message):
                    told[number] = message
        for number, (process, _) in enumerate(self._forks):
            process.join()
            yield number, told.get(number), process.exitcode or 0


def _work(work: Callable[[int, Callable[[T], None]], None], number: int, sending: Connection) -> None:
    gc.freeze()  # a client of the parent that was freed here would wait for threads that only the parent has
    guard = threading.Lock()

    def tell(message: T) -> None:
        with guard:
            sending.send(message)

    with sending:
        work(number, tell)


RESTART_SECONDS = 5.0
LOOK_SECONDS = 0.2
# Set in the environment of a worker: it shares its terminal with others.
WORKER_VARIABLE = "BLOCKGZ_WORKER"
# Exit codes that another start would only repeat: an order to end, configuration, another owner, permissions.
NOT_WORTH_A_RESTART = {0, 2, 11, 12, 130, -signal.SIGINT}
# Exit codes of a process that got a signal before it could end in order.
TOO_EARLY_TO_END = {-signal.SIGTERM, -signal.SIGINT, 143}
TAIL_LINES = 10
TAIL_CHARACTERS = 2000
TAIL_SECONDS = 2.0


class _Relay(threading.Thread):
    """Passes a worker's stderr on to this process's, and keeps its last lines for the report of its death."""

    def __init__(self, stderr: IO[bytes]) -> None:
        super().__init__(name="stderr", daemon=True)
        self._stderr = stderr
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self.start()

    def run(self) -> None:
        """Pass lines on until the worker has closed its end."""
        with self._stderr:
            for line in self._stderr:
                text = line.decode(errors="backslashreplace")
                self._lines.append(text.rstrip())
                with suppress(OSError, ValueError):  # nobody reads them any longer; the worker must not be held up
                    sys.stderr.write(text)
                    sys.stderr.flush()

    def tail(self) -> str | None:
        """Return the last lines of a worker that has ended, if it wrote any."""
        self.join(TAIL_SECONDS)  # something that it started may still hold its stderr open
        return " | ".join(self._lines)[-TAIL_CHARACTERS:] or None


class Workers:
    """Worker processes, one for each command. A signal handler may call `end`."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._relays: dict[int, _Relay] = {}
        self._ending = threading.Event()
        self._codes: list[int] = []

    def end(self) -> None:
        """Tell every worker to flush, commit and leave."""
        self._ending.set()
        for process in list(self._processes.values()):
            process.terminate()

    def hang_up(self) -> None:
        """Pass SIGHUP on: every worker tries its stopped partitions again."""
        for process in list(self._processes.values()):
            process.send_signal(signal.SIGHUP)

    def run(self) -> int:
        """Keep the workers running until all have ended; gives the first exit code that is not 0.

        One that died is started again after RESTART_SECONDS. One that ended for a reason that another start would only
        repeat ends the others too.
        """
        for number in range(len(self._commands)):
            self._start(number)
        while self._processes:
            for number, process in list(self._processes.items()):
                if process.poll() is not None:
                    self._ended(number, self._processes.pop(number).returncode)
            time.sleep(LOOK_SECONDS)
        return next((code for code in self._codes if code), 0)

    def _start(self, number: int) -> None:
        environment = {**os.environ, WORKER_VARIABLE: str(number)}
        process = subprocess.Popen(list(self._commands[number]), env=environment, stderr=subprocess.PIPE)
        self._processes[number] = process
        self._relays[number] = _Relay(cast(IO[bytes], process.stderr))

    def _ended(self, number: int, code: int) -> None:
        tail = self._relays.pop(number).tail()
        is_over = self._ending.is_set() or code in NOT_WORTH_A_RESTART
        is_killed = code < 0 and code not in TOO_EARLY_TO_END
        if is_killed or not is_over:
            advice = CORE_DUMP if is_killed and code != -signal.SIGKILL else None
            log.error(LogEvent.WORKER_DIED, worker=number, exit_code=code, cause=end_text(code), do=advice, tail=tail)
        if is_over:
            # One that got the signal before it could handle it has done nothing yet.
            self._codes.append(0 if code in TOO_EARLY_TO_END else code)
            self.end()
            return
        if not self._ending.wait(RESTART_SECONDS):
            self._start(number)


def worker_commands(arguments: Sequence[str], config: RunConfig) -> list[list[str]]:
    """Return the command of each worker: the arguments of this process, with a member id and a port of its own."""
    return [
        [sys.executable, "-m", "archiver", *arguments, "--workers", "1", *_own_options(config, number)]
        for number in range(config.workers)
    ]


def _own_options(config: RunConfig, number: int) -> list[str]:
    options = []
    if config.group_instance_id is not None:
        options += ["--group-instance-id", f"{config.group_instance_id}-{number}"]
    if config.http is not None:
        options += ["--http", own_http(config.http, number)]
    return options


def own_http(http: str, number: int) -> str:
    """Return the address of a worker's metrics: ports are consecutive."""
    host, _, port = http.rpartition(":")
    return f"{host}:{int(port) + number}"
