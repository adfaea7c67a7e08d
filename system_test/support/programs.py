"""The project's console scripts as a user runs them: child processes of the running environment."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

from system_test.support.program_server import ProgramServer, ServedProcess, can_serve
from system_test.support.waiting import DeadlineExceededError, wait_until
from tests.support.sampling import LONG

T = TypeVar("T")

SERVER = ProgramServer()

_TAIL = 3000
# The settings of whoever runs the tests must not leak into the programs under test.
_NOT_INHERITED = ("AWS_", "BLOCKGZ_")


class ProgramFailedError(AssertionError):
    """A program ended otherwise than expected; the message holds its command and the tails of its output."""


@dataclass(frozen=True, slots=True)
class Completed:
    """An ended program. A negative exit code is the signal that ended it."""

    command: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    seconds: float

    def expect(self, exit_code: int) -> Self:
        """This object, or ProgramFailedError when the program ended with another code."""
        if self.exit_code != exit_code:
            raise ProgramFailedError(
                f"expected exit code {exit_code}, got {self.exit_code}, after {self.seconds:.1f} s\n{self.transcript}"
            )
        return self

    @property
    def transcript(self) -> str:
        """Command and output tails, for messages."""
        return _transcript(self.command, self.stdout, self.stderr)


class Running:
    """A program that runs in the background. As a context manager it is killed at the end of the block."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str] | None, cwd: Path | None) -> None:
        self._command = command
        self._completed: Completed | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="blockgz-run-")
        self._out = Path(self._folder.name) / "stdout"
        self._err = Path(self._folder.name) / "stderr"
        self._started = time.monotonic()
        try:
            with self._out.open("wb") as out, self._err.open("wb") as err:
                self._process = _process(command, _environment(env), cwd, out, err)
        except BaseException:
            self._folder.cleanup()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def stdout(self) -> str:
        return self._completed.stdout if self._completed else _content(self._out)

    @property
    def stderr(self) -> str:
        """What it has printed to stderr so far."""
        return self._completed.stderr if self._completed else _content(self._err)

    def wait_for(self, condition: Callable[[], T], seconds: float, what: str = "a condition") -> T:
        """Wait until `condition` answers truthy and return its answer.

        ProgramFailedError when the program ends before, DeadlineExceededError when `seconds` pass.
        """

        def met() -> tuple[T] | None:
            ended = not self.alive
            answer = condition()
            if answer:
                return (answer,)
            if ended:
                done = self.wait(0)
                raise ProgramFailedError(f"ended with {done.exit_code} before {what}\n{done.transcript}")
            return None

        try:
            return wait_until(met, seconds, what)[0]
        except DeadlineExceededError as error:
            transcript = _transcript(self._command, self.stdout, self.stderr)
            raise DeadlineExceededError(f"{error}\n{transcript}") from None

    def wait(self, seconds: float) -> Completed:
        """Wait for its end; after `seconds` it is killed, and ProgramFailedError raised."""
        if self._completed is None:
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired as error:
                done = self.kill()
                raise ProgramFailedError(f"still ran after {seconds:g} s\n{done.transcript}") from error
            self._complete()
        assert self._completed is not None
        return self._completed

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; harmless when the program has ended."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def terminate(self, seconds: float = 30) -> Completed:
        """SIGTERM, and wait for the end as `wait` does."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds)

    def kill(self) -> Completed:
        """SIGKILL; returns what is left when the process is gone."""
        if self._completed is None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._complete()
        assert self._completed is not None
        return self._completed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _complete(self) -> None:
        seconds = time.monotonic() - self._started
        out, err = _content(self._out), _content(self._err)
        self._completed = Completed(self._command, self._process.returncode, out, err, seconds)
        self._folder.cleanup()


def start(program: str, *arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Running:
    """Start a console script (`archiver`, `replayer`) in the background. `env` adds to the environment."""
    script = Path(sys.executable).parent / program
    return Running((str(script), *map(str, arguments)), env, cwd)


def run(
    program: str,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 60,
    check: int | None = 0,
) -> Completed:
    """Run a console script to its end, which must come within `timeout` seconds.

    ProgramFailedError when its exit code is not `check`; with None every code will do.
    """
    with start(program, *arguments, env=env, cwd=cwd) as running:
        done = running.wait(timeout)
    return done if check is None else done.expect(check)


def _process(
    command: tuple[str, ...], env: Mapping[str, str], cwd: Path | None, out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes] | ServedProcess:
    if not LONG and can_serve(command[0], env):
        return SERVER.start(command, env, cwd, out, err)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, cwd=cwd)


def _environment(added: Mapping[str, str] | None) -> dict[str, str]:
    # pytest sets and takes away a variable of its own, while other threads start programs.
    names = [name for name in list(os.environ) if not name.startswith(_NOT_INHERITED)]
    inherited = {name: value for name in names if (value := os.environ.get(name)) is not None}
    return {**inherited, **(added or {})}


def _content(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _transcript(command: tuple[str, ...], stdout: str, stderr: str) -> str:
    shown = " ".join(command)
    return f"$ {shown}\n--- stdout\n{stdout[-_TAIL:]}\n--- stderr\n{stderr[-_TAIL:]}"
