"""A server that runs as a child process, with its output in a file."""

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from system_test.support.environment import tail
from system_test.support.waiting import DeadlineExceededError, wait_until


class ServerFailedError(RuntimeError):
    """A server did not come up; the message holds its command and the tail of its log."""


class ServerProcess:
    """One run of a server program. Output is appended to `log`."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._log = log
        with log.open("ab") as sink:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_ready(self, ready: Callable[[], object], seconds: float) -> None:
        """Return when `ready` answers truthy; ServerFailedError when the process ends first or time runs out."""

        def ready_or_dead() -> object:
            return not self.alive or ready()

        try:
            wait_until(ready_or_dead, seconds, f"{self._command[0]} to be ready")
        except DeadlineExceededError as error:
            self.kill()
            raise ServerFailedError(self._complaint(str(error))) from error
        if not self.alive:
            raise ServerFailedError(self._complaint(f"ended with {self._process.returncode}"))

    def stop(self, seconds: float = 30) -> None:
        """SIGTERM, and SIGKILL when that is not heeded in time. Harmless on an ended process."""
        with suppress(ProcessLookupError):
            self._process.terminate()
            self.resume()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL; returns when the process is gone."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing answers."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, after `pause`."""
        self._process.send_signal(signal.SIGCONT)

    def _complaint(self, why: str) -> str:
        return f"{' '.join(self._command)}\n{why}\n{tail(self._log)}"


class Server:
    """A server that is started, ended and frozen, and keeps its address and data over that."""

    stop_seconds = 30.0

    def __init__(self) -> None:
        self._server: ServerProcess | None = None

    @property
    def running(self) -> bool:
        return self._server is not None and self._server.alive

    def stop(self) -> None:
        """Shut down in good order; harmless when it does not run."""
        if self._server is not None:
            self._server.stop(self.stop_seconds)
            self._server = None

    def kill(self) -> None:
        """SIGKILL: its data is left as it is at this moment."""
        if self._server is not None:
            self._server.kill()
            self._server = None

    def pause(self) -> None:
        """Freeze the process: clients see timeouts, not closed connections."""
        if self._server is not None:
            self._server.pause()

    def resume(self) -> None:
        if self._server is not None:
            self._server.resume()
